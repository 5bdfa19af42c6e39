"""Programs as files: versioned, checked before use, found again by fingerprint; nothing in them is executable.

Layout, little-endian: magic, format version, lengths of the three parts, SHA-256 over lengths and parts; then the
parts: a JSON description, the instruction stream, the constants. Each is padded to 64 bytes, so that constants can be
mapped.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import reprlib
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType
from npusim.errors import CacheError, UsageError
from npusim.isa.base import ISA_VERSION
from npusim.program import CONSTANTS, FIRST_IO, Binding, ConstantData, OpEntry, Program

FORMAT_VERSION = 1
"""Of the file's layout; raise it with any change to the layout or the description."""
SUFFIX = ".npu"
LONGEST_DESCRIPTION = 1 << 26
"""Bytes of JSON that are looked at: some 100 for each operator."""
LONGEST_NAME = 1 << 16
MOST_DIMENSIONS = 32
"""As many as every NumPy has."""

_MAGIC = b"NPUSIM\x00\x1a"
_HEADER = struct.Struct("<8sIIQQQ32s")
_PAD = 64
_NONSENSE = "the description does not make sense"
_log = logging.getLogger("npusim.cache")


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached program: its file, what it was compiled from and for, its size in bytes."""

    path: Path
    model: str
    config: str
    bytes: int


def default_directory() -> Path:
    """``$NPUSIM_CACHE_DIR``, else ``npusim`` in the user's cache directory."""
    chosen = os.environ.get("NPUSIM_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npusim"


def write_program(program: Program, path: Path) -> None:
    """Write the file whole or not at all, whoever else writes it at the same time. Raises OSError, and CacheError for
    a program that could not be read again (see :func:`restore`)."""
    description, constants = describe(program), program.constants.joined()
    restore(description, program.code, constants)
    meta = json.dumps(description, separators=(",", ":"), sort_keys=True).encode()
    _check_description(path, len(meta))
    parts = (meta, program.code, constants.data)
    lengths = tuple(len(part) for part in parts)
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, ISA_VERSION, *lengths, _digest(lengths, parts))
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is not a regular file, and would be replaced", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(header)
            file.write(bytes(-_HEADER.size % _PAD))
            for part in parts:
                file.write(part)
                file.write(bytes(-len(part) % _PAD))
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def read_program(path: Path) -> Program:
    """Read and check a program file. UsageError if it cannot be read, CacheError saying what is wrong with it."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    meta, code, constants = _split(path, data)
    description = _parsed(path, meta.tobytes())
    try:
        return restore(description, code.tobytes(), constants)
    except CacheError as error:
        raise CacheError(f"{path}: {_NONSENSE}: {error}") from None


def entries(directory: Path) -> list[Entry]:
    """Every program file in a directory, by name; files that are none are left out."""
    found = []
    for path in sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else ():
        try:
            meta = _peek(path)
            found.append(Entry(path, meta["name"], meta["config"], path.stat().st_size))
        except (OSError, CacheError) as error:
            _log.info("%s: not a program of ours: %s", path, error)
    return found


class Cache:
    """Programs in a directory, by key. Trouble with files is logged, never raised: the cache is only a shortcut."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, key: str) -> Path:
        return self.directory / f"{key}{SUFFIX}"

    def get(self, key: str) -> Program | None:
        """The program, or None when there is none that is sound."""
        path = self.path(key)
        try:
            if not path.exists():
                return None
            program = read_program(path)
            if program.key != key:
                raise CacheError(f"{path}: holds the program of key {program.key[:16]}..., not of its name")
        except (CacheError, UsageError, OSError) as error:
            _log.warning("%s; compiling again", error)
            return None
        program.from_cache = True
        return program

    def put(self, program: Program) -> None:
        """Keep a program under its key."""
        try:
            write_program(program, self.path(program.key))
        except (OSError, CacheError) as error:
            _log.warning("%s: the program is not kept: %s", self.directory, getattr(error, "strerror", None) or error)


def _digest(lengths: tuple[int, ...], parts: tuple[Any, ...]) -> bytes:
    state = hashlib.sha256(struct.pack("<IIQQQ", FORMAT_VERSION, ISA_VERSION, *lengths))
    for part in parts:
        state.update(part)
    return state.digest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _header(path: Path, data: bytes) -> tuple[int, int, int, bytes]:
    if len(data) < _HEADER.size:
        raise CacheError(f"{path}: {len(data)} bytes, too short for a program file")
    magic, version, isa, meta, code, constants, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise CacheError(f"{path}: is not a program file of npusim")
    if (version, isa) != (FORMAT_VERSION, ISA_VERSION):
        raise CacheError(
            f"{path}: has format {version} and instruction set {isa}; "
            f"this npusim reads format {FORMAT_VERSION} and instruction set {ISA_VERSION}"
        )
    return meta, code, constants, digest


def _split(path: Path, data: Any) -> tuple[Any, Any, Any]:
    *lengths, digest = _header(path, data[: _HEADER.size].tobytes())
    _check_description(path, lengths[0])
    spans = list(_spans(lengths))
    end = spans[-1][1] + -spans[-1][1] % _PAD
    if data.size != end:
        kind = "is truncated" if data.size < end else "has bytes behind its end"
        raise CacheError(f"{path}: {kind}: {data.size} bytes, its header says {end}")
    parts = tuple(data[low:high] for low, high in spans)
    if _digest(tuple(lengths), parts) != digest:
        raise CacheError(f"{path}: has been altered: its checksum does not match")
    return parts[0], parts[1], parts[2]


def _check_description(path: Path, size: int) -> None:
    if size > LONGEST_DESCRIPTION:
        raise CacheError(f"{path}: the description must have at most {LONGEST_DESCRIPTION} bytes, got {size}")


def _spans(lengths: list[Any]) -> Iterator[tuple[int, int]]:
    position = _HEADER.size + -_HEADER.size % _PAD
    for length in lengths:
        yield position, position + length
        position += length + -length % _PAD


def _peek(path: Path) -> dict[str, Any]:
    """The description alone, unchecked: for lists."""
    with path.open("rb") as file:
        meta, *_ = _header(path, file.read(_HEADER.size))
        _check_description(path, meta)
        file.seek(_HEADER.size + -_HEADER.size % _PAD)
        return _fields(_parsed(path, file.read(meta)))


def describe(program: Program) -> dict[str, Any]:
    """Everything about a program but its instructions and constants, as JSON values."""
    return {
        "name": program.name,
        "config": program.config_name,
        "fingerprint": program.config_fingerprint,
        "key": program.key,
        "regions": program.region_bytes,
        "inputs": [_binding(item) for item in program.inputs],
        "outputs": [_binding(item) for item in program.outputs],
        "ops": [(entry.name, entry.kind) for entry in program.ops],
        "commands": program.commands,
        "macs": [(dtype.label, count) for dtype, count in program.macs],
    }


def _binding(binding: Binding) -> tuple[str, int, tuple[int, ...], str]:
    return binding.name, binding.region, binding.shape, binding.dtype.label


def restore(meta: object, code: bytes, constants: npt.NDArray[np.uint8]) -> Program:
    """The program of a description (see :func:`describe`). CacheError for one that breaks a rule, saying which."""
    rows = _fields(meta)
    bindings = [Binding(*row) for row in (*rows["inputs"], *rows["outputs"])]
    regions = rows["regions"]
    if len(regions) != FIRST_IO + len(bindings):
        raise CacheError(
            f"regions: there must be {FIRST_IO}, and one for each of {len(bindings)} inputs and outputs, "
            f"got {len(regions)}"
        )
    if constants.size > regions[CONSTANTS]:
        raise CacheError(f"regions[0]: must hold {constants.size} bytes of constants, got {regions[CONSTANTS]}")
    for number, binding in enumerate(bindings, FIRST_IO):
        if binding.region != number:
            raise CacheError(f"{binding.name!r}: its region must be {number}, got {binding.region}")
        if binding.nbytes > regions[number]:
            raise CacheError(f"{binding.name!r}: takes {binding.nbytes} bytes, but its region has {regions[number]}")
    count = len(rows["inputs"])
    inputs, outputs = tuple(bindings[:count]), tuple(bindings[count:])
    for what, group in (("inputs", inputs), ("outputs", outputs)):
        if len({binding.name for binding in group}) < len(group):
            raise CacheError(f"{what}: no two may have the same name")
    return Program(
        rows["name"], rows["config"], rows["fingerprint"], rows["key"], code, ConstantData.of(constants), regions,
        inputs, outputs, tuple(OpEntry(*row) for row in rows["ops"]), rows["commands"], rows["macs"],
    )  # fmt: skip


# The schema. A reader takes a value and where it stands, and gives what it means, or raises CacheError.


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


def _dtype(value: object, where: str) -> DType:
    if not isinstance(value, str) or value not in _DTYPES:
        raise _wrong(where, f"one of {', '.join(_DTYPES)}", value)
    return _DTYPES[value]


def _shape(value: object, where: str) -> tuple[int, ...]:
    found = _many(_size)(value, where)
    # Dimensions of 0 do not count: NumPy refuses (0, 2^48, 2^48), too.
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
    "macs": _many(_row(_dtype, _upto(64))),
}  # fmt: skip


def _fields(meta: object) -> dict[str, Any]:
    if not isinstance(meta, dict) or meta.keys() != _SCHEMA.keys():
        raise _wrong("the description", f"an object with {', '.join(_SCHEMA)} and nothing else", meta)
    return {name: read(meta[name], name) for name, read in _SCHEMA.items()}


def _parsed(path: Path, text: bytes) -> object:
    """JSON as values; the same key twice is an error. The parser bounds depth and digits by itself."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key stands there twice")
        return found

    try:
        return json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise CacheError(f"{path}: {_NONSENSE}: {error}") from None
