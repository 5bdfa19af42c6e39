"""Rules for the names and prefixes of extensions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import InvalidModelError
from ..types import ExtensionNameAndPrefix

_NAME = re.compile(r"[a-z0-9._]+")


def check_names(entries: Iterable[ExtensionNameAndPrefix]) -> None:
    """Check ``extensionNameToPrefix``. Raises InvalidModelError."""
    names: set[str] = set()
    prefixes: set[int] = set()
    for number, entry in enumerate(entries):
        where = f"extensionNameToPrefix[{number}]"
        if not is_extension_name(entry.name):
            raise InvalidModelError(
                where, f"name must consist of lower-case letters, digits, '_' and at least one '.', got {entry.name!r}"
            )
        if not entry.prefix:
            raise InvalidModelError(where, "prefix must not be 0")
        if entry.name in names or entry.prefix in prefixes:
            raise InvalidModelError(
                where, f"name and prefix must be unique, got {entry.name!r} and {entry.prefix} again"
            )
        names.add(entry.name)
        prefixes.add(entry.prefix)


def is_extension_name(name: str) -> bool:
    """Return whether a name has the form of an extension's: [a-z0-9._], and at least one dot."""
    return _NAME.fullmatch(name) is not None and "." in name
