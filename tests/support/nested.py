"""Access to values of nested lists and mappings by path."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]
"""Keys and indices, the outermost first."""


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield each value that is neither a list nor a mapping, with its path."""
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, name))
    else:
        yield path, value


def at(whole: Any, path: Path) -> Any:
    """Return the value at a path."""
    return functools.reduce(lambda inside, name: inside[name], path, whole)


def changed(whole: Any, path: Path, value: Any) -> Any:
    """Return a copy with another value at a path."""
    *above, last = path
    found = copy.deepcopy(whole)
    at(found, tuple(above))[last] = value
    return found
