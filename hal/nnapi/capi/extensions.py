"""Prefixes of vendor extensions: one per name in the whole process, so that models may refer to each other."""

from __future__ import annotations

import threading

from ..aidl.model import MAX_PREFIX
from ..extensions import find_extension
from ..extensions.registry import CODE_BITS
from ..types import ExtensionNameAndPrefix
from ..validation.context import Context
from .codes import bad_data

CODE_MASK = (1 << CODE_BITS) - 1
_prefixes: dict[str, int] = {}
_lock = threading.Lock()


def full_type(name: str, code: int) -> int:
    """The 32 bits of an extension's type or operation in every model. Raises ApiError for an unknown extension."""
    return prefix_of(name) << CODE_BITS | code


def prefix_of(name: str) -> int:
    """The prefix of an extension. Raises ApiError (BAD_DATA) if the driver does not have it."""
    if find_extension(name) is None:
        raise bad_data(f"extension {name!r} is not supported by any device")
    with _lock:
        if name not in _prefixes and len(_prefixes) >= MAX_PREFIX:
            raise bad_data("there are no prefixes left for extensions")
        return _prefixes.setdefault(name, len(_prefixes) + 1)


def known() -> list[ExtensionNameAndPrefix]:
    """All prefixes that have been assigned so far."""
    with _lock:
        return [ExtensionNameAndPrefix(name, prefix) for name, prefix in _prefixes.items()]


def context() -> Context:
    """The context of types outside a model, including extensions."""
    return Context(0, (), 0, {entry.prefix: find_extension(entry.name) for entry in known()})
