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
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.errors import CacheError, UsageError
from npusim.isa.base import ISA_VERSION
from npusim.program import Binding, ConstantData, OpEntry, Program

FORMAT_VERSION = 1
"""Of the file's layout; raise it with any change to the layout or the description."""
SUFFIX = ".npu"

_MAGIC = b"NPUSIM\x00\x1a"
_HEADER = struct.Struct("<8sIIQQQ32s")
_PAD = 64
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
    """Write the file whole or not at all, whoever else writes it at the same time. Raises OSError."""
    meta = json.dumps(describe(program), separators=(",", ":"), sort_keys=True).encode()
    parts = (meta, program.code, program.constants.joined().data)
    lengths = tuple(len(part) for part in parts)
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, ISA_VERSION, *lengths, _digest(lengths, parts))
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is not a regular file, and would be replaced", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same directory, since a rename is atomic within one file system only; under a name
    # that entries() does not list.
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(header)
            file.write(bytes(-_HEADER.size % _PAD))
            for part in parts:
                file.write(part)
                file.write(bytes(-len(part) % _PAD))
        # mkstemp keeps files to their owner, but a cache may be shared. There is no reading the mask without setting
        # it; a file that another thread makes in between has none.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(draft, 0o666 & ~mask)
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
            # Mapped, so that constants of gigabytes are not copied: the checksum reads them once, and they
            # stay in the page cache.
            data = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    meta, code, constants = _split(path, data)
    try:
        return restore(json.loads(meta.tobytes()), code.tobytes(), constants)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(f"{path}: the description does not make sense: {error!r}") from None


def entries(directory: Path) -> list[Entry]:
    """Every program file in a directory, by name; files that are none are left out."""
    found = []
    for path in sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else ():
        try:
            meta = _peek(path)
            found.append(Entry(path, str(meta["name"]), str(meta["config"]), path.stat().st_size))
        except (OSError, ValueError, KeyError, CacheError) as error:
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
            # A file that was renamed is sound by its checksum, and still another program.
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
        except OSError as error:
            _log.warning("%s: the program is not kept: %s", self.directory, error.strerror or error)


def _digest(lengths: tuple[int, ...], parts: tuple[Any, ...]) -> bytes:
    # The lengths, too: else bytes could change from the end of one part to the beginning of the next.
    state = hashlib.sha256(struct.pack("<IIQQQ", FORMAT_VERSION, ISA_VERSION, *lengths))
    for part in parts:
        state.update(part)
    return state.digest()


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
    spans, end = [], _HEADER.size + -_HEADER.size % _PAD
    for length in lengths:
        spans.append((end, end + length))
        end += length + -length % _PAD
    if data.size != end:
        kind = "is truncated" if data.size < end else "has bytes behind its end"
        raise CacheError(f"{path}: {kind}: {data.size} bytes, its header says {end}")
    parts = tuple(data[low:high] for low, high in spans)
    if _digest(tuple(lengths), parts) != digest:
        raise CacheError(f"{path}: has been altered: its checksum does not match")
    return parts[0], parts[1], parts[2]


def _peek(path: Path) -> dict[str, Any]:
    """The description alone, unchecked: for lists."""
    with path.open("rb") as file:
        meta, *_ = _header(path, file.read(_HEADER.size))
        # The length is not checked by anything yet; read() would try to allocate what a damaged header says.
        if meta > path.stat().st_size:
            raise CacheError(f"{path}: is truncated")
        file.seek(_HEADER.size + -_HEADER.size % _PAD)
        found = json.loads(file.read(meta))
    if not isinstance(found, dict):
        raise CacheError(f"{path}: the description does not make sense")
    return found


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


def restore(meta: dict[str, Any], code: bytes, constants: Any) -> Program:
    """The program of a description (see :func:`describe`).

    Raises ValueError, KeyError, TypeError, AttributeError for one that makes no sense.
    """

    def bindings(rows: list[Any]) -> tuple[Binding, ...]:
        return tuple(Binding(name, region, tuple(shape), DType[kind.upper()]) for name, region, shape, kind in rows)

    return Program(
        meta["name"], meta["config"], meta["fingerprint"], meta["key"], code, ConstantData.of(constants),
        tuple(meta["regions"]),
        bindings(meta["inputs"]), bindings(meta["outputs"]), tuple(OpEntry(name, kind) for name, kind in meta["ops"]),
        meta["commands"], tuple((DType[name.upper()], count) for name, count in meta["macs"]),
    )  # fmt: skip
