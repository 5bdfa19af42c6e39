"""The importers of TFLite's builtin operators, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from npusim.graph import Tensor

if TYPE_CHECKING:
    from npusim.frontends.tflite.operation import Operation

Handler = Callable[["Operation"], "Tensor | Sequence[Tensor]"]
"""Adds the operators of one operation and returns its outputs in storage form."""

_HANDLERS: dict[str, Handler] = {}
_LIMITS: dict[str, tuple[str, ...]] = {}


def handles(*names: str, limits: Sequence[str] = ()) -> Callable[[Handler], Handler]:
    """Register a function as the importer of these operators. ``limits``: sentences for the manual."""

    def decorate(handler: Handler) -> Handler:
        for name in names:
            if name in _HANDLERS:
                raise ValueError(f"{name} is registered twice")
            _HANDLERS[name], _LIMITS[name] = handler, tuple(limits)
        return handler

    return decorate


HANDLERS: Mapping[str, Handler] = MappingProxyType(_HANDLERS)
"""The importers by operator."""
LIMITS: Mapping[str, tuple[str, ...]] = MappingProxyType(_LIMITS)
"""Limits of each operator, for the manual."""
