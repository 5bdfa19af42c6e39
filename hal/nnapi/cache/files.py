"""The files of the compilation cache: a model file and a data file, which the client keeps and the driver does not
trust.

The model file: magic, version, length of the body, MAC, body. The MAC is HMAC-SHA256 over the client's token and the
rest of the file, with a key that only the driver has. The body has the checksum of the data file. Files are read once
into memory, and only the copy is used, so that later changes have no effect. Nothing in them is executable on the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import logging
import os
import stat
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from npusim.errors import CacheError
from npusim.hw.config import Config
from npusim.trusted_files import state_directory, user_key

from ..errors import StatusError, invalid_argument
from ..operations.constants import Constants
from ..plan import Plan, Record
from ..types import Constant, ErrorStatus, Model
from .format import decode, describes_data, encode

MODEL_FILES = DATA_FILES = 1
KEY_NAME = "nnapi-cache.key"
LARGEST = 1 << 28
"""Largest model file in bytes; it holds no weights."""

_MAGIC = b"NPUNNAPI"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQ")
_MAC_BYTES = 32
_log = logging.getLogger("hal.nnapi.cache")
Handles = Sequence[Sequence[int]]


def driver_key(directory: Path | None = None) -> bytes | None:
    """The key of this user's drivers, created on first use; None if it cannot be stored, or not safely."""
    path = (directory or state_directory()) / KEY_NAME
    try:
        return user_key(path)
    except OSError as error:
        _log.warning("%s: the compilation cache cannot be used: %s", path, error.strerror or error)
        return None


class Files:
    """Duplicates of the descriptors of the cache files; none if they cannot be used."""

    def __init__(self, descriptors: Sequence[int], token: bytes) -> None:
        self._descriptors = list(descriptors)
        self._token = token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __del__(self) -> None:
        self.close()

    def save(self, config: Config, state_dir: Path | None, model: Model, constants: Constants, plan: Plan) -> None:
        """Store a prepared model. Failures are only logged, because they do not affect the model."""
        if not self._descriptors:
            return
        key = driver_key(state_dir)
        if key is None:
            return
        try:
            body, pieces = encode(config, model, constants, plan)
            header = _HEADER.pack(_MAGIC, _VERSION, 0, len(body))
            mac = _mac(key, self._token, header, body)
            # Written before the model file, which alone makes a cached model valid.
            _rewrite(self._descriptors[1], pieces)
            constants.confirm()
            for program in plan.programs():
                program.constants.check()
            _rewrite(self._descriptors[0], [header, mac, body])
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the model is there
            _log.warning("the model was not cached: %s", error)
            for descriptor in self._descriptors:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)


def open_for_saving(model_cache: Handles, data_cache: Handles, token: bytes) -> Files:
    """The files for storing a model. If they are unusable, the reason is logged and the model is not stored."""
    try:
        if not len(model_cache) and not len(data_cache):
            return Files((), b"")
        return Files(*_opened(model_cache, data_cache, token))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the files, the model is prepared
        _log.warning("the model will not be cached: %s", error)
        return Files((), b"")


class Kept:
    """A model in the cache whose model file has been authenticated."""

    def __init__(self, config: Config, files: Files, body: bytes) -> None:
        self._config = config
        self._files = files
        self._body = body

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def read(self, *, strict: bool) -> tuple[Model, Constants, list[Record]]:
        """The model, its constants and its compiled segments. Raises CacheError."""
        try:
            document, code, size, checksum = describes_data(self._body)
            data = _read(self._files._descriptors[1], "the data file", size)
            if len(data) != size or zlib.crc32(data) != checksum:
                raise CacheError("the data file does not belong to the model file")
            return decode(document, code, memoryview(data), self._config, strict=strict)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CacheError(f"the model file is malformed: {error!r}") from error


def open_kept(config: Config, state_dir: Path | None, model_cache: Handles, data_cache: Handles, token: bytes) -> Kept:
    """Check the model file. Raises StatusError: INVALID_ARGUMENT for invalid arguments, GENERAL_FAILURE for a file that
    this driver did not write."""
    key = driver_key(state_dir)
    if key is None:
        raise StatusError(
            ErrorStatus.GENERAL_FAILURE, "the compilation cache cannot be used: there is no place for its key"
        )
    files = Files(*_opened(model_cache, data_cache, token))
    try:
        content = _read(files._descriptors[0], "the model file", LARGEST)
        return Kept(config, files, _authentic(key, files._token, content))
    except (OSError, CacheError) as error:
        files.close()
        raise StatusError(ErrorStatus.GENERAL_FAILURE, str(error)) from error


def _authentic(key: bytes, token: bytes, content: bytes) -> bytes:
    """The body of a model file. Raises CacheError unless this driver wrote every byte of it for this token."""
    begin = _HEADER.size + _MAC_BYTES
    if len(content) < begin:
        raise CacheError(f"the model file must have at least {begin} bytes, got {len(content)}")
    header, mac, body = content[: _HEADER.size], content[_HEADER.size : begin], content[begin:]
    # Before anything is parsed, and in constant time, so that the duration of a refusal reveals nothing.
    if not hmac.compare_digest(mac, _mac(key, token, header, body)):
        raise CacheError("the model file is not what this driver wrote for this token")
    magic, version, _, length = _HEADER.unpack(header)
    if (magic, version, length) != (_MAGIC, _VERSION, len(body)):
        raise CacheError(f"the model file is of version {version}, but this driver reads version {_VERSION}")
    return body


def _mac(key: bytes, token: bytes, header: bytes, body: bytes) -> bytes:
    return hmac.digest(key, token + header + body, "sha256")


def _opened(model_cache: Sequence[Any], data_cache: Sequence[Any], token: Any) -> tuple[list[int], bytes]:
    """Duplicates of the two descriptors, and the token. Raises StatusError: INVALID_ARGUMENT, or GENERAL_FAILURE for a
    file that is not open for reading and writing."""
    if len(model_cache) != MODEL_FILES or len(data_cache) != DATA_FILES:
        raise invalid_argument(
            f"the cache needs 1 model file and 1 data file, got {len(model_cache)} and {len(data_cache)}"
        )
    for handle in (*model_cache, *data_cache):
        if not isinstance(handle, Sequence) or len(handle) != 1 or not isinstance(handle[0], int):
            raise invalid_argument(f"the handle of a cache file must hold one descriptor, got {handle!r}")
    token = bytes(token)
    if len(token) != Constant.BYTE_SIZE_OF_CACHE_TOKEN:
        raise invalid_argument(f"the token must have {int(Constant.BYTE_SIZE_OF_CACHE_TOKEN)} bytes, got {len(token)}")
    descriptors: list[int] = []
    try:
        for handle in (*model_cache, *data_cache):
            # From 3 on: in a process without standard streams a duplicate must not become one of them.
            descriptors.append(fcntl.fcntl(handle[0], fcntl.F_DUPFD_CLOEXEC, 3))
            mode = fcntl.fcntl(descriptors[-1], fcntl.F_GETFL) & os.O_ACCMODE
            if mode != os.O_RDWR:
                raise StatusError(ErrorStatus.GENERAL_FAILURE, "a cache file must be open for reading and writing")
            if not stat.S_ISREG(os.fstat(descriptors[-1]).st_mode):  # a device file may be endless
                raise StatusError(ErrorStatus.GENERAL_FAILURE, "a cache file must be a regular file")
    except BaseException as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, OSError | OverflowError | ValueError):
            raise invalid_argument(f"the descriptor of a cache file cannot be used: {error}") from None
        raise
    return descriptors, token


def _rewrite(descriptor: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
    """Replace a file's content, whatever its file position."""
    # First, so that a partly written file is too short and is refused.
    os.ftruncate(descriptor, 0)
    offset = 0
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        while len(rest):
            # Without seeking, because duplicates share the file position of the client.
            written = os.pwrite(descriptor, rest, offset)
            rest, offset = rest[written:], offset + written


def _read(descriptor: int, what: str, most: int) -> bytes:
    """A file's content, whatever its file position. Raises OSError, and CacheError for more than ``most`` bytes."""
    size = os.fstat(descriptor).st_size
    if size > most:
        raise CacheError(f"{what} must have at most {most} bytes, got {size}")
    pieces: list[bytes] = []
    offset = 0
    # One byte more than allowed, to detect a longer file.
    while piece := os.pread(descriptor, max(size - offset, 1), offset):
        pieces.append(piece)
        offset += len(piece)
        if offset > most:
            raise CacheError(f"{what} grew while it was read")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
