"""The importers of ONNX operators, by operator and first version of its operator set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from npusim.graph import Tensor

if TYPE_CHECKING:
    from npusim.frontends.onnx.node import Node

Handler = Callable[["Node"], "Tensor | Sequence[Tensor | None]"]
"""Adds the operators of one node and returns its outputs (None for an unused one)."""
_Handler = TypeVar("_Handler", bound=Handler)

MICROSOFT = "com.microsoft"
BLOCKED = "com.microsoft.nchwc"
"""onnxruntime's operators on images whose channels are in blocks."""


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """One importer. ``limits``: sentences for the manual about unsupported cases."""

    op_type: str
    domain: str
    since: int
    handler: Handler
    limits: tuple[str, ...]


_ENTRIES: dict[tuple[str, str], list[OperatorEntry]] = {}


def handles(
    *op_types: str, since: int = 1, domain: str = "", limits: Sequence[str] = ()
) -> Callable[[_Handler], _Handler]:
    """Register a function as the importer of these operators, from version ``since`` of their domain on."""

    def decorate(handler: _Handler) -> _Handler:
        for op_type in op_types:
            entries = _ENTRIES.setdefault((domain, op_type), [])
            if any(entry.since == since for entry in entries):
                raise ValueError(f"{op_type} since {since} is registered twice")
            entries.append(OperatorEntry(op_type, domain, since, handler, tuple(limits)))
            entries.sort(key=lambda entry: entry.since)
        return handler

    return decorate


def lookup(domain: str, op_type: str, version: int) -> Handler | None:
    """The importer of an operator for a version of its domain, or None."""
    known = [entry.handler for entry in _ENTRIES.get((domain, op_type), ()) if entry.since <= version]
    return known[-1] if known else None


def entries() -> list[OperatorEntry]:
    """All entries, by domain, name and version."""
    return [entry for key in sorted(_ENTRIES) for entry in _ENTRIES[key]]
