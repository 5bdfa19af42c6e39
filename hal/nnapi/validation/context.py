"""Properties of a whole model that rules of its parts need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..extensions import ExtensionDefinition, ExtensionOperandType, find_extension
from ..extensions.registry import CODE_BITS
from ..memory import HARDWARE_BUFFER
from ..operations import REGISTRY, Definition
from ..operations.versions import LAST_OPERATION
from ..operations.view import STORAGE
from ..types import Model, OperandType, OperationType

ELEMENT_BYTES: Mapping[int, int] = {
    **{kind: storage.itemsize for kind, storage in STORAGE.items()},
    OperandType.TENSOR_OEM_BYTE: 1,
}
"""Bytes of an element; other types have no known size."""


@dataclass(frozen=True, slots=True)
class Context:
    """``values``: bytes of operandValues. ``pools``: bytes of each pool, None where only the pool knows.

    ``prefixes``: the extension of each prefix, None for one that this driver does not have.
    """

    values: int
    pools: tuple[int | None, ...]
    referenced: int
    prefixes: Mapping[int, ExtensionDefinition | None] = field(default_factory=dict)

    def operand_type(self, kind: int) -> ExtensionOperandType | None:
        """Return this driver's extension definition of a type; None for any other type."""
        extension = self.prefixes.get(kind >> CODE_BITS)
        return extension.operand_types.get(kind & _CODE) if extension else None

    def operation(self, kind: int) -> Definition | None:
        """Return the definition of an operation; None for one that this driver does not have."""
        if kind <= _CODE:
            return REGISTRY.get(kind)
        extension = self.prefixes.get(kind >> CODE_BITS)
        return extension.operations.get(kind & _CODE) if extension else None

    def knows_operation(self, kind: int) -> bool:
        """Return whether a number is an operation of any version of the interface, or of an extension named by the
        model."""
        prefix = kind >> CODE_BITS
        if not prefix:
            return kind <= LAST_OPERATION or kind == OperationType.OEM_OPERATION
        extension = self.prefixes.get(prefix)
        return (extension is None and prefix in self.prefixes) or self.operation(kind) is not None

    def knows_operand(self, kind: int) -> bool:
        """Return whether a number is an operand type of the interface, or of an extension named by the model."""
        prefix = kind >> CODE_BITS
        if not prefix:
            return kind in _KNOWN
        extension = self.prefixes.get(prefix)
        return (extension is None and prefix in self.prefixes) or self.operand_type(kind) is not None

    def element_bytes(self, kind: int) -> int | None:
        """Return the bytes of an element, None if unknown."""
        known = ELEMENT_BYTES.get(kind)
        if known is None and kind > _CODE:
            extension = self.operand_type(kind)
            return extension.storage.itemsize if extension else None
        return known


_CODE = (1 << CODE_BITS) - 1
_KNOWN = frozenset(map(int, OperandType))


def context_of(model: Model) -> Context:
    """Return the context of a model with valid extension names."""
    return Context(
        values=len(model.operandValues),
        pools=tuple(None if pool.name == HARDWARE_BUFFER else pool.size for pool in model.pools),
        referenced=len(model.referenced),
        prefixes={entry.prefix: find_extension(entry.name) for entry in model.extensionNameToPrefix},
    )
