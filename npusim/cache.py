"""Program files and the cache: versioned, validated before use, found by fingerprint; they contain no executable code.

Layout, little-endian: magic, format version, lengths of the three parts, SHA-256 over lengths and parts; then the
parts, each padded to 64 bytes: a JSON description, the instruction stream, the constants. A cache file has another
magic, and an HMAC with a key of the user instead of the checksum: only files written by npusim of this user are loaded
from a cache.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import hmac
import json
import logging
import math
import os
import reprlib
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType
from npusim.errors import CacheError, NpusimError, UsageError
from npusim.graph import HostPart, HostWork
from npusim.isa.base import ISA_VERSION, operators
from npusim.isa.control import resident_bytes
from npusim.program import (
    CONSTANTS,
    EVERY,
    FIRST_IO,
    MEMORIES,
    PLACE_KINDS,
    Binding,
    ConstantData,
    OpEntry,
    Place,
    Program,
)
from npusim.trusted_files import remove_drafts, replace_file, state_directory, user_key
from npusim.units import Dimension, parse
from npusim.untrusted import FileKind

FORMAT_VERSION = 1
"""Version of the file layout. Increment it with any change of the layout or the description."""
SUFFIX = ".npu"
KEY_NAME = "program-cache.key"
LIMIT_VARIABLE = "NPUSIM_CACHE_SIZE"
DEFAULT_LIMIT = 4 << 30
LONGEST_DESCRIPTION = 1 << 26
"""Limit for the JSON in bytes; an operator takes about 100."""
LONGEST_NAME = 1 << 16
MOST_DIMENSIONS = 32
"""The limit of all versions of NumPy."""

PROGRAM = FileKind("compiled program (.npu)", error=CacheError)
CACHED = FileKind("file in the cache of programs", error=CacheError, own=True)
_MAGIC = b"NPUSIM\x00\x1a"
_CACHED = b"NPUCACHE"
_HEADER = struct.Struct("<8sIIQQQ32s")
_PAD = 64
_NONSENSE = "the description does not make sense"
_log = logging.getLogger("npusim.cache")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A cached program: its file, its source and device, its size in bytes."""

    path: Path
    model: str
    config: str
    bytes: int


def default_directory() -> Path:
    """``$NPUSIM_CACHE_DIR``, or ``npusim`` in the cache directory of the user."""
    chosen = os.environ.get("NPUSIM_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npusim"


def default_limit() -> int:
    """Size limit of the cache in bytes: ``$NPUSIM_CACHE_SIZE`` such as ``20 GB``, default 4 GiB. Raises UsageError."""
    chosen = os.environ.get(LIMIT_VARIABLE)
    if not chosen:
        return DEFAULT_LIMIT
    try:
        return int(chosen) if chosen.isdecimal() else parse(chosen, Dimension.SIZE)
    except UsageError as error:
        raise UsageError(f"{LIMIT_VARIABLE}: {error}") from None


def write_program(program: Program, path: Path) -> None:
    """Write a program file atomically. Raises OSError, or CacheError for a program that could not be read again (see
    :func:`restore`)."""
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is not a regular file, and would be replaced", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, _packed(program, None, path), mode=0o666)


def read_program(path: Path) -> Program:
    """Read and validate a program file. Raises UsageError if it cannot be read, CacheError if it is invalid."""
    return _read(path, None)


def is_program(path: Path) -> bool:
    """Whether a file begins with the magic of program files."""
    try:
        with PROGRAM.open(path) as file:
            return file.read(len(_MAGIC)) in (_MAGIC, _CACHED)
    except OSError:
        return False


def _read(path: Path, key: bytes | None) -> Program:
    try:
        # Copied to memory, so that the validated bytes cannot change. A mapping would take three quarters of the time.
        with (PROGRAM if key is None else CACHED).open(path) as file:
            start = file.read(_HEADER.size)
            lengths, digest = _header(path, start, os.fstat(file.fileno()).st_size, key is not None)
            data = np.empty(_spans(lengths)[-1][1], np.uint8)
            data[: len(start)] = np.frombuffer(start, np.uint8)
            done = len(start)
            while got := file.readinto(data[done:].data):
                done += got
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if done < data.size:
        raise CacheError(f"{path}: is truncated: it was cut while it was read")
    meta, code, constants = parts = [data[low:high] for low, high in _spans(lengths)]
    if not hmac.compare_digest(_digest(lengths, parts, key), digest):
        problem = "its checksum does not match" if key is None else "it was not written by npusim of this user"
        raise CacheError(f"{path}: has been altered: {problem}")
    description = PROGRAM.parse_json(meta.tobytes(), f"{path}: {_NONSENSE}")
    try:
        return restore(description, code.tobytes(), constants)
    except CacheError as error:
        raise CacheError(f"{path}: {_NONSENSE}: {error}") from None


class Cache:
    """A directory of programs by key. File errors are logged and never raised, because the cache is optional.

    The directory may be shared: only files written by npusim of this user are used (see ADR 0013).
    """

    def __init__(self, directory: Path, limit: int | None = None) -> None:
        """``limit``: size limit in bytes; None: see :func:`default_limit`."""
        self.directory = directory
        self.limit = default_limit() if limit is None else limit

    @functools.cached_property
    def _mac_key(self) -> bytes | None:
        path = state_directory() / KEY_NAME
        try:
            return user_key(path)
        except OSError as error:
            _log.warning("%s: programs are not kept: %s", path, error.strerror or error)
            return None

    def path(self, key: str) -> Path:
        """The file of a program."""
        return self.directory / f"{key}{SUFFIX}"

    def get(self, key: str) -> Program | None:
        """The program, or None if there is no valid file."""
        program = self._sound(self.path(key), "compiling again")
        if program is not None:
            self._touch(self.path(key))
        return program

    def _sound(self, path: Path, otherwise: str) -> Program | None:
        if not os.path.lexists(path) or self._mac_key is None:
            return None
        try:
            program = _read(path, self._mac_key)
            # A renamed file has a valid digest but another program.
            if program.key != path.stem:
                raise CacheError(f"{path}: holds the program of key {program.key[:16]}..., not of its name")
        except (CacheError, UsageError) as error:
            _log.warning("%s; %s", error, otherwise)
            return None
        program.from_cache = True
        return program

    def _touch(self, path: Path) -> None:
        """Mark a file as used now; least recently used files are evicted first."""
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)

    def put(self, program: Program) -> None:
        """Store a program under its key; least recently used files are evicted if needed."""
        path = self.path(program.key)
        if self._mac_key is None:
            return
        size = _file_size(program)
        if size > self.limit:
            _log.warning("%s: is not kept: it takes %d bytes, the cache may take %d", program.name, size, self.limit)
            return
        written = _WRITTEN.get(self.directory)
        if written is None or written + size > self.limit // _SHARE:
            self.prune(self.limit - size)
            written = 0
        try:
            try:
                replace_file(path, _packed(program, self._mac_key, path), durable=False)
            except OSError as error:
                # On a full disk evict files of the cache, although the disk may be full because of others.
                if error.errno != errno.ENOSPC or not self.prune(max(0, self._kept() - 2 * size)):
                    raise
                replace_file(path, _packed(program, self._mac_key, path), durable=False)
        except (OSError, NpusimError) as error:
            _log.warning("%s: the program is not kept: %s", self.directory, getattr(error, "strerror", None) or error)
            return
        _WRITTEN[self.directory] = written + size

    def prune(self, limit: int | None = None) -> list[int]:
        """Evict least recently used files of this user until the rest takes at most ``limit`` bytes (None: the limit of
        the cache). Returns the sizes of the evicted files."""
        found = sorted(self._files())
        kept, limit = sum(size for _, _, size in found), self.limit if limit is None else limit
        removed = []
        for _, path, size in found:
            if kept <= limit:
                break
            kept -= size
            if self._remove(path):
                removed.append(size)
        return removed

    def _files(self) -> Iterator[tuple[int, Path, int]]:
        """(last use, size) of each file of this user."""
        for path in self.directory.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):  # another process may remove files
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    yield status.st_mtime_ns, path, status.st_size

    def _kept(self) -> int:
        return sum(size for _, _, size in self._files())

    def entries(self) -> list[CacheEntry]:
        """All valid programs by file name."""
        found = []
        for path in sorted(self.directory.glob(f"*{SUFFIX}")):
            program = self._sound(path, "left out")
            if program is not None:
                with contextlib.suppress(FileNotFoundError):  # another process may clear the directory
                    found.append(CacheEntry(path, program.name, program.config_name, path.stat().st_size))
        return found

    def clear(self) -> list[int]:
        """Remove all program files of this user, including damaged and outdated ones, and old drafts. Returns their
        sizes in bytes."""
        removed = [size for path in self.directory.glob(f"*{SUFFIX}") if (size := self._remove(path)) is not None]
        remove_drafts(self.directory)
        return removed

    def _remove(self, path: Path) -> int | None:
        """Remove a program file of this user. Returns its size, None if it is not removed."""
        try:
            with CACHED.open(path) as file:
                ours = file.read(len(_MAGIC)) in (_MAGIC, _CACHED)
                size = os.fstat(file.fileno()).st_size
            if ours:
                path.unlink(missing_ok=True)
                return size
        except FileNotFoundError:  # removed by another process
            pass
        except OSError as error:
            _log.warning("%s: is not touched: %s", path, error.strerror or error)
        return None


_SHARE = 16
"""A process checks the size of the directory each time it has written this fraction of the limit, because there may be
very many files."""
_WRITTEN: dict[Path, int] = {}
"""Bytes written by this process since its last check, by directory."""


def _file_size(program: Program) -> int:
    """Approximate size of a program file."""
    return program.constants.held_bytes + len(program.code) + 100 * (len(program.ops) + len(program.places))


def _packed(program: Program, key: bytes | None, path: Path) -> Iterator[Any]:
    """The pieces of a file. Raises CacheError for a program that could not be read again."""
    description, constants = describe(program), program.constants
    _restored(description, program.code, constants)
    meta = json.dumps(description, separators=(",", ":"), sort_keys=True).encode()
    _check_description(path, len(meta))
    lengths = [len(meta), len(program.code), constants.held_bytes]

    def parts() -> Iterator[Any]:
        # Constants piece by piece, twice, because all together may not fit in memory.
        return chain([meta, program.code], (part.data for part in constants.parts()))

    magic = _MAGIC if key is None else _CACHED
    yield _HEADER.pack(magic, FORMAT_VERSION, ISA_VERSION, *lengths, _digest(lengths, parts(), key))
    begin = _HEADER.size
    for part, (low, high) in zip([meta, program.code], _spans(lengths), strict=False):
        yield bytes(low - begin)
        yield part
        begin = high
    yield bytes(-begin % _PAD)
    yield from (part.data for part in constants.parts())
    yield bytes(-lengths[-1] % _PAD)
    constants.check()


def _digest(lengths: Iterable[int], parts: Iterable[Any], key: bytes | None) -> bytes:
    """SHA-256, or with a key HMAC-SHA-256, over versions, lengths and parts."""
    state = hashlib.sha256() if key is None else hmac.new(key, digestmod="sha256")
    # Including the lengths, so that bytes cannot move from one part to the next.
    state.update(struct.pack("<IIQQQ", FORMAT_VERSION, ISA_VERSION, *lengths))
    for part in parts:
        state.update(part)
    return state.digest()


def _header(path: Path, start: bytes, size: int, cached: bool) -> tuple[list[int], bytes]:
    """Lengths of the parts, which must match the size of the file, and the digest."""
    if len(start) < _HEADER.size:
        raise CacheError(f"{path}: {len(start)} bytes, too short for a program file")
    magic, version, isa, *lengths, digest = _HEADER.unpack(start)
    if magic not in (_MAGIC, _CACHED):
        raise CacheError(f"{path}: is not a program file of npusim")
    if version != FORMAT_VERSION:
        raise CacheError(f"{path}: has format {version}; this npusim reads format {FORMAT_VERSION}")
    if isa != ISA_VERSION:
        problem = f"is for instruction set {isa}, this npusim has instruction set {ISA_VERSION}"
        raise CacheError(f"{path}: {problem}: compile the model again")
    if magic != (_CACHED if cached else _MAGIC):
        problem = "was not written by a cache" if cached else "is of a cache; npusim compile -o makes one to give away"
        raise CacheError(f"{path}: {problem}")
    _check_description(path, lengths[0])
    end = _padded(_spans(lengths)[-1][1])
    if size != end:
        kind = "is truncated" if size < end else "has bytes after its end"
        raise CacheError(f"{path}: {kind}: {size} bytes, its header says {end}")
    return lengths, digest


def _padded(size: int) -> int:
    return size + -size % _PAD


def _spans(lengths: Iterable[int]) -> list[tuple[int, int]]:
    end, spans = _HEADER.size, []
    for length in lengths:
        begin = _padded(end)
        end = begin + length
        spans.append((begin, end))
    return spans


def _check_description(path: Path, size: int) -> None:
    if size > LONGEST_DESCRIPTION:
        raise CacheError(f"{path}: the description must have at most {LONGEST_DESCRIPTION} bytes, got {size}")


def describe(program: Program) -> dict[str, Any]:
    """The description of a program as JSON values: everything except instructions and constants."""
    return {
        "name": program.name,
        "config": program.config_name,
        "fingerprint": program.config_fingerprint,
        "key": program.key,
        "regions": program.region_bytes,
        "inputs": [_binding(*item) for item in enumerate(program.inputs, FIRST_IO)],
        "outputs": [_binding(*item) for item in enumerate(program.outputs, FIRST_IO + len(program.inputs))],
        "ops": [(entry.name, entry.kind) for entry in program.ops],
        "members": [entry.members for entry in program.ops],
        "results": [entry.result for entry in program.ops],
        "commands": program.commands,
        "macs": [(dtype.label, count) for dtype, count in program.macs],
        "bound": program.bound,
        "states": _states(program),
        "places": program.places,
        # Only if true, so that other files do not change.
        **({"timing_only": True} if program.timing_only else {}),
        **({"host_work": program.host.work} if program.host.work else {}),
        **({"decided": program.host.decided} if program.host.decided else {}),
    }


def _states(program: Program) -> list[tuple[int, int, int, int]]:
    """(input, output, axis, capacity in rows) of those that share a region."""
    return [
        (program.inputs.index(source), program.outputs.index(target), source.axis, source.capacity)
        for source, target in program.states
    ]


def _place(
    bindings: list[Binding], count: int, regions: Sequence[int], states: Iterable[tuple[int, int, int, int]]
) -> None:
    """Check that inputs and outputs are in their regions; states share one."""
    for number, binding in enumerate(bindings, FIRST_IO):
        if binding.region != number:
            raise CacheError(f"{binding.name!r}: its region must be {number}, got {binding.region}")
    for number, state in enumerate(states):
        try:
            _share(bindings, count, *state)
        except CacheError as error:
            raise CacheError(f"states[{number}]: {error}") from None
    for binding in bindings:
        if binding.nbytes > regions[binding.region]:
            size = regions[binding.region]
            raise CacheError(f"{binding.name!r}: takes {binding.nbytes} bytes, but its region has {size}")


def _share(bindings: list[Binding], count: int, source: int, target: int, axis: int, rows: int) -> None:
    """Move an output to the region of an input. Raises CacheError if that is invalid."""
    if source >= count or target >= len(bindings) - count:
        raise CacheError(f"there are {count} inputs and {len(bindings) - count} outputs, got {source} and {target}")
    numbers = source, count + target
    first, last = (bindings[number] for number in numbers)
    if first.capacity or last.capacity:
        raise CacheError(f"{first.name!r} and {last.name!r} must not share their regions with others")
    shapes = [binding.shape[:axis] + binding.shape[axis + 1 :] for binding in (first, last)]
    if axis >= len(first.shape) or len(first.shape) != len(last.shape) or shapes[0] != shapes[1]:
        raise CacheError(f"{first} and {last} must be equal except for axis {axis}")
    if first.dtype is not last.dtype or not first.shape[axis] <= last.shape[axis] <= rows or not rows:
        raise CacheError(f"{first} must grow to {last} along axis {axis}, within {rows} rows")
    for number in numbers:
        bindings[number] = replace(bindings[number], region=first.region, axis=axis, capacity=rows)


def _binding(number: int, binding: Binding) -> tuple[str, int, tuple[int, ...], str]:
    return binding.name, number, binding.shape, binding.dtype.label


def restore(meta: object, code: bytes, constants: npt.NDArray[np.uint8]) -> Program:
    """The program of a description (see :func:`describe`). Raises CacheError for an invalid description."""
    return _restored(meta, code, ConstantData.of(constants))


def _restored(meta: object, code: bytes, constants: ConstantData) -> Program:
    # Older files do not have later fields.
    lists = ("bound", "members", "results", "places", "states", "host_work", "decided")
    known = {**{name: [] for name in lists}, "timing_only": False}
    rows = _fields({**known, **meta} if isinstance(meta, dict) else meta)
    bindings = [Binding(*row) for row in (*rows["inputs"], *rows["outputs"])]
    regions = rows["regions"]
    if len(regions) != FIRST_IO + len(bindings):
        raise CacheError(
            f"regions: there must be {FIRST_IO}, and one for each of {len(bindings)} inputs and outputs, "
            f"got {len(regions)}"
        )
    if rows["timing_only"]:
        if constants.held_bytes:
            raise CacheError(f"timing_only: there must be no constants then, got {constants.held_bytes} bytes")
        constants = ConstantData(regions[CONSTANTS], (), left_out=True)
    if constants.nbytes > regions[CONSTANTS]:
        raise CacheError(f"regions[0]: must hold {constants.nbytes} bytes of constants, got {regions[CONSTANTS]}")
    count = len(rows["inputs"])
    _place(bindings, count, regions, rows["states"])
    inputs, outputs = tuple(bindings[:count]), tuple(bindings[count:])
    given = [binding.name for binding in inputs] + [name for name, _ in rows["bound"]]
    for what, names in (("inputs", given), ("outputs", [binding.name for binding in outputs])):
        if len(set(names)) < len(names):
            raise CacheError(f"{what}: names must be unique")
    ops = len(rows["ops"])
    if (last := max(operators(code), default=-1)) >= ops:
        raise CacheError(f"ops: there are {ops}, but a command is for number {last}")
    for field, what in (("members", "list"), ("results", "text")):
        if len(rows[field]) not in (0, ops):
            raise CacheError(f"{field}: there must be a {what} for each of {ops} operators, got {len(rows[field])}")
    told = zip(rows["ops"], rows["members"] or [()] * ops, rows["results"] or [""] * ops, strict=True)
    entries = tuple(OpEntry(name, kind, own, result) for (name, kind), own, result in told)
    places = tuple(Place(*row) for row in rows["places"])
    for number, place in enumerate(places):
        if not place.first <= place.last < len(rows["ops"]):
            raise CacheError(
                f"places[{number}]: must be from one of {len(rows['ops'])} operators to it or a later one, "
                f"got {place.first} to {place.last}"
            )
    host = HostPart(tuple(HostWork(*row) for row in rows["host_work"]), rows["decided"])
    return Program(
        rows["name"], rows["config"], rows["fingerprint"], rows["key"], code, constants, regions, inputs, outputs,
        entries, rows["commands"], rows["macs"], rows["bound"], resident_bytes(code), places=places, host=host,
    )  # fmt: skip


# The schema. A reader takes a value and its path, and returns the parsed value or raises CacheError.


def _wrong(where: str, wanted: str, value: object) -> CacheError:
    if isinstance(value, list | tuple | dict):
        got = f"{len(value)} entries" if isinstance(value, list | tuple) else "an object"
    else:
        got = reprlib.repr(value)
    return CacheError(f"{where}: must be {wanted}, got {got}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise _wrong(where, f"a string of at most {LONGEST_NAME} characters", value)
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise _wrong(where, "text without half surrogates", value)
    return value


def _upto(power: int) -> Callable[[object, str], int]:
    def read(value: object, where: str) -> int:
        if type(value) is not int or not 0 <= value <= 1 << power:
            raise _wrong(where, f"an integer from 0 to 2^{power}", value)
        return value

    return read


def _core(value: object, where: str) -> int:
    return EVERY if type(value) is int and value == EVERY else _upto(16)(value, where)


def _one_of(words: tuple[str, ...]) -> Callable[[object, str], str]:
    def read(value: object, where: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise _wrong(where, f"one of {', '.join(words)}", value)
        return value

    return read


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)
    return value


def _dtype(value: object, where: str) -> DType:
    if not isinstance(value, str) or value not in _DTYPES:
        raise _wrong(where, f"one of {', '.join(_DTYPES)}", value)
    return _DTYPES[value]


def _shape(value: object, where: str) -> tuple[int, ...]:
    found = _many(_size)(value, where)
    # Dimensions of 0 are ignored, because NumPy refuses (0, 2^48, 2^48), too.
    if len(found) > MOST_DIMENSIONS or math.prod(size for size in found if size) > 1 << 48:
        raise _wrong(where, f"at most {MOST_DIMENSIONS} dimensions with a product of at most 2^48", value)
    return found


def _many(item: Callable[[object, str], Any]) -> Callable[[object, str], tuple[Any, ...]]:
    def read(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise _wrong(where, "a list", value)
        return tuple(item(each, f"{where}[{index}]") for index, each in enumerate(value))

    return read


def _row(*items: Callable[[object, str], Any]) -> Callable[[object, str], tuple[Any, ...]]:
    def read(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise _wrong(where, f"a list of {len(items)}", value)
        return tuple(
            item(each, f"{where}[{index}]") for index, (item, each) in enumerate(zip(items, value, strict=True))
        )

    return read


_size = _upto(48)
"""An address has 48 bits for the offset in a region."""
_DTYPES = {dtype.label: dtype for dtype in DType}
_BINDINGS = _many(_row(_text, _size, _shape, _dtype))
_SCHEMA: dict[str, Callable[[object, str], Any]] = {
    "name": _text, "config": _text, "fingerprint": _text, "key": _text, "regions": _many(_size),
    "inputs": _BINDINGS, "outputs": _BINDINGS, "ops": _many(_row(_text, _text)), "commands": _size,
    "members": _many(_many(_text)), "results": _many(_text),
    "macs": _many(_row(_dtype, _upto(64))), "bound": _many(_row(_text, _text)), "timing_only": _flag,
    "states": _many(_row(_size, _size, _size, _size)),
    "host_work": _many(_row(_text, _text, _size, _size)), "decided": _many(_row(_text, _text)),
    "places": _many(
        _row(_one_of(MEMORIES), _core, _one_of(PLACE_KINDS), _text, _size, _size, _upto(32), _upto(32))
    ),
}  # fmt: skip


def _fields(meta: object) -> dict[str, Any]:
    if not isinstance(meta, dict) or meta.keys() != _SCHEMA.keys():
        raise _wrong("the description", f"an object with {', '.join(_SCHEMA)} and nothing else", meta)
    return {name: read(meta[name], name) for name, read in _SCHEMA.items()}
