"""The reader of files from untrusted sources.

Each kind of file is a :class:`FileKind`, with a row of the same name in docs/security.md. A file is opened without
blocking and must be a regular one. Size, number of values, digits and nesting depth are limited.
"""

from __future__ import annotations

import io
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npusim.errors import NpusimError, UsageError
from npusim.trusted_files import open_regular

Path_ = str | os.PathLike[str]
DEEPEST = 32
"""Limit of the nesting depth of a document."""
MOST_DIGITS = 60
"""Most characters of a number: 64 bits need 20, exact floats about 30 in practice."""
TOML_BYTES = 1 << 14
"""Limit for TOML in bytes: a device with every key has about 3 000. The time of the parser is quadratic in the parts of
a key."""
MOST_VALUES = 1 << 20
"""Most values of a document; a value takes at most about 100 bytes of memory."""
_PIECE = 1 << 20


class _RefusedError(ValueError):
    """A document is refused. Argument: the expected form."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that npusim reads.

    ``name``: of its row in docs/security.md. ``most``: limit in bytes for methods that read whole files. ``error``:
    raised for invalid contents. ``unreadable``: raised for a file that cannot be read. ``links``: whether a symbolic
    link is followed. ``own``: whether the file must belong to the user and not be writable by others.
    """

    name: str
    most: int = 0
    error: type[NpusimError] = UsageError
    unreadable: type[NpusimError] = UsageError
    links: bool = True
    own: bool = False

    def open(self, path: Path_) -> io.FileIO:
        """A regular file, opened for unbuffered reading without blocking. Raises OSError."""
        return open_regular(Path(path), own=self.own, links=self.links)

    def read(self, path: Path_, label: str | None = None) -> bytes:
        """The bytes of a file. ``label``: name for messages instead of the path.

        Raises ``error`` or ``unreadable``.
        """
        label = str(path) if label is None else label
        data = bytearray()
        try:
            with self.open(path) as file:
                # Not by its size alone: it may grow, and files in /proc have size 0.
                size = os.fstat(file.fileno()).st_size
                while len(data) <= self.most >= size and (piece := file.read(min(_PIECE, self.most + 1 - len(data)))):
                    data += piece
        except FileNotFoundError:
            raise self.unreadable(f"{label}: no such file") from None
        except OSError as error:
            raise self.unreadable(f"{label}: cannot be read: {error.strerror or error}") from None
        if max(size, len(data)) > self.most:
            got = f"{size}" if size > self.most else "more"
            raise self.error(f"{label}: must have at most {self.most} bytes, got {got}")
        return bytes(data)

    def text(self, path: Path_, label: str | None = None) -> str:
        """The text of a UTF-8 file. Arguments and errors as for :meth:`read`."""
        label = str(path) if label is None else label
        try:
            return self.read(path, label).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{label}: {_not_text(error)}") from None

    def json(self, path: Path_, label: str | None = None) -> Any:
        """The value of a JSON file, see :meth:`parse_json`. Arguments and errors as for :meth:`read`."""
        label = str(path) if label is None else label
        return self.parse_json(self.read(path, label), label)

    def toml(self, path: Path_, label: str | None = None) -> dict[str, Any]:
        """The tables of a TOML file of at most TOML_BYTES. Arguments and errors as for :meth:`read`."""
        import tomllib

        label = str(path) if label is None else label
        data = self.read(path, label)
        try:
            found = tomllib.loads(data.decode("utf-8"), parse_float=_number)
            _check(found)
        except UnicodeDecodeError as error:
            raise self.error(f"{label}: not valid TOML: {_not_text(error)}") from None
        except RecursionError:
            raise self.error(f"{label}: not valid TOML: {_TOO_DEEP}") from None
        except (tomllib.TOMLDecodeError, _RefusedError) as error:
            raise self.error(f"{label}: not valid TOML: {error}") from None
        except ValueError:  # Python's error for integers that are too long
            raise self.error(f"{label}: not valid TOML: {_TOO_LONG}") from None
        return found

    def parse_json(self, data: bytes, label: str) -> Any:
        """The value of JSON text. Duplicate keys, infinities, NaNs and lone surrogates are refused."""
        import json

        try:
            # A cheap upper bound of the number of values; punctuation in texts is counted, too.
            if sum(map(data.count, (b",", b"[", b"{", b":"))) > MOST_VALUES:
                raise _RefusedError(f"has more than {MOST_VALUES} values")
            found = json.loads(
                data.decode("utf-8"),
                object_pairs_hook=_object,
                parse_int=_integer,
                parse_float=_finite,
                parse_constant=_constant,
            )
            _check(found)
        except UnicodeDecodeError as error:
            raise self.error(f"{label}: not valid JSON: {_not_text(error)}") from None
        except RecursionError:
            raise self.error(f"{label}: not valid JSON: {_TOO_DEEP}") from None
        except ValueError as error:
            raise self.error(f"{label}: not valid JSON: {error}") from None
        return found


_TOO_DEEP = f"nested too deeply; must be at most {DEEPEST} tables or lists deep"
_TOO_LONG = "an integer has too many digits"
_SURROGATE = re.compile("[\ud800-\udfff]")


def _not_text(error: UnicodeDecodeError) -> str:
    return f"must be UTF-8 text, got byte {error.object[error.start]:#04x} at offset {error.start}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RefusedError("an object has a key twice")
    return found


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise _RefusedError(_TOO_LONG)
    return int(text)


def _number(text: str) -> float:
    if len(text) > MOST_DIGITS:
        raise _RefusedError("a number has too many digits")
    return float(text)


def _finite(text: str) -> float:
    number = _number(text)
    if math.isinf(number):
        raise _RefusedError(f"{text} is too large a number")
    return number


def _constant(text: str) -> float:
    raise _RefusedError(f"{text} is not a JSON number")


def _check(found: object) -> None:
    """Refuse deep nesting, integers of more than 64 bits (TOML has hexadecimal ones), and text that cannot be encoded.
    Level by level, because recursion could overflow."""
    level, depth = [found], 0
    while level:
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict | list):
                if depth == DEEPEST:
                    raise _RefusedError(_TOO_DEEP)
                below += each
                if isinstance(each, dict):
                    below += each.values()
            elif isinstance(each, str):
                if not each.isascii() and _SURROGATE.search(each):
                    raise _RefusedError("a text has half of a surrogate pair")
            elif isinstance(each, int) and each.bit_length() > 4 * MOST_DIGITS:
                raise _RefusedError(_TOO_LONG)
        level, depth = below, depth + 1
