"""Definitions of vendor extensions, and the registry of supported ones.

A package adds one by calling :func:`register`, or by an entry point of the group ``npusim.nnapi_extensions`` that names
an :class:`ExtensionDefinition`. npusim itself is not touched.

In a model the 32 bits of an extension's operand or operation type are a prefix, which the model maps to the extension's
name, and below it the extension's own code.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..operations.definition import REGISTRY, Definition
from ..operations.view import STORAGE, OpView
from ..types import Extension, ExtensionTypeEncoding, Model, Operand, OperandTypeInformation

ENTRY_POINTS = "npusim.nnapi_extensions"
CODE_BITS = int(ExtensionTypeEncoding.LOW_BITS_TYPE)
_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
_log = logging.getLogger("hal.nnapi.extensions")


def any_data(operand: Operand) -> str | None:
    """Accept any data attached to an operand."""
    return None


@dataclass(frozen=True, slots=True)
class ExtensionOperandType:
    """One operand type: ``storage`` is the numpy type of an element.

    ``check`` returns the problem of an operand of this type, such as that of its attached data, or None.
    """

    name: str
    storage: np.dtype[Any]
    tensor: bool
    check: Callable[[Operand], str | None] = any_data


@dataclass(frozen=True, slots=True)
class ExtensionDefinition:
    """An extension: its name, which starts with the reversed domain of its vendor; its types and operations by code.

    Operations are declared like those of the interface: see :class:`~hal.nnapi.operations.definition.Definition`. The
    signature is a function that compares with :func:`own`, because prefixes differ between models.
    """

    name: str
    operand_types: Mapping[int, ExtensionOperandType] = field(default_factory=dict)
    operations: Mapping[int, Definition] = field(default_factory=dict)

    def describe(self) -> Extension:
        """Its entry in ``IDevice.getSupportedExtensions``."""
        kinds = sorted(self.operand_types.items())
        return Extension(
            self.name, [OperandTypeInformation(code, kind.tensor, kind.storage.itemsize) for code, kind in kinds]
        )


def own(view: OpView, code: int) -> int:
    """The full type, in this model, of an operand type of the operation's extension."""
    return view.operation.type >> CODE_BITS << CODE_BITS | code


_REGISTERED: dict[str, ExtensionDefinition] = {}
_lock = threading.Lock()


def register(extension: ExtensionDefinition) -> ExtensionDefinition:
    """Add an extension. Raises ValueError if the name is already defined."""
    if not _NAME.fullmatch(extension.name):
        raise ValueError(f"extension name must be lower-case words joined by '.', got {extension.name!r}")
    for code in (*extension.operand_types, *extension.operations):
        if not 0 <= code < 1 << CODE_BITS:
            raise ValueError(f"{extension.name}: codes must be in [0, {(1 << CODE_BITS) - 1}], got {code}")
    with _lock:
        if extension.name in _REGISTERED:
            raise ValueError(f"extension {extension.name} is already registered")
        _REGISTERED[extension.name] = extension
    return extension


def unregister(extension: ExtensionDefinition) -> None:
    """Remove an extension, for example when its package is unloaded. Raises ValueError if it is not the
    registered one."""
    with _lock:
        if _REGISTERED.get(extension.name) is not extension:
            raise ValueError(f"extension {extension.name} is not registered")
        del _REGISTERED[extension.name]


def find_extension(name: str) -> ExtensionDefinition | None:
    """The registered extension of that name, or None."""
    return _REGISTERED.get(name)


def registered() -> tuple[ExtensionDefinition, ...]:
    """Every registered extension, by name."""
    return tuple(_REGISTERED[name] for name in sorted(_REGISTERED))


def definitions_of(model: Model) -> Mapping[int, Definition]:
    """The operations that a model can name: those of the interface, and under their full types those of extensions."""
    found = dict(_with_prefixes(model, lambda extension: extension.operations))
    return {**REGISTRY, **found} if found else REGISTRY


def storage_of(model: Model) -> Mapping[int, np.dtype[Any]]:
    """The storage type of every operand type that a model can use."""
    found = _with_prefixes(model, lambda extension: extension.operand_types)
    return {**STORAGE, **{code: kind.storage for code, kind in found.items()}} if found else STORAGE


def _with_prefixes(model: Model, part: Callable[[ExtensionDefinition], Mapping[int, Any]]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for entry in model.extensionNameToPrefix:
        extension = _REGISTERED.get(entry.name)
        if extension is not None:
            # The client chooses prefixes, and they differ between models. Only names are permanent.
            found.update((entry.prefix << CODE_BITS | code, value) for code, value in part(extension).items())
    return found


def load_entry_points() -> None:
    """Register the extensions of installed packages; those that cannot be loaded are logged and skipped."""
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            extension = point.load()
            # Extensions that called `register` before take precedence, such as a test with another version.
            if find_extension(extension.name) is None:
                register(extension)
        except Exception as error:  # noqa: BLE001 - the package may be anybody's
            _log.error("extension %s: cannot be loaded: %s: %s", point.value, type(error).__name__, error)
