"""The interface versions that introduced operations and operand types.

A model for an older interface must not use later features. Features that were added to existing operations are in their
definitions.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ..types import OperandType, OperandTypeRange, OperationType


class Version(enum.IntEnum):
    """A version of the HIDL interface, or of the AIDL interface that followed it."""

    V1_0 = 0
    V1_1 = 1
    V1_2 = 2
    V1_3 = 3
    AIDL_1 = 4
    AIDL_2 = 5
    AIDL_3 = 6
    AIDL_4 = 7

    def __str__(self) -> str:
        return f"1.{self.value}" if self <= Version.V1_3 else f"AIDL {self.value - Version.V1_3}"


V1_0, V1_1, V1_2, V1_3, AIDL_1, AIDL_2, AIDL_3, AIDL_4 = Version
NEWEST = AIDL_4
"""The version of the AIDL interface that this driver implements: NNAPI feature level 8."""

_LAST_OPERATION: Mapping[Version, int] = {
    V1_0: OperationType.TANH,
    V1_1: OperationType.TRANSPOSE,
    V1_2: OperationType.RESIZE_NEAREST_NEIGHBOR,
    V1_3: OperationType.RANK,
    AIDL_2: OperationType.PACK,
    AIDL_3: OperationType.REVERSE,
}
_LAST_OPERAND: Mapping[Version, int] = {
    V1_0: OperandType.TENSOR_QUANT8_ASYMM,
    V1_2: OperandType.TENSOR_QUANT8_SYMM,
    V1_3: OperandType.SUBGRAPH,
}
"""Numbers were assigned in order: the last of each version."""
LAST_OPERATION = max(_LAST_OPERATION.values())
"""The last operation type of any version."""


def operation_version(kind: int) -> Version | None:
    """The version that introduced an operation type; None if it is unknown. OEM operations belong to every version,
    those of extensions to 1.2."""
    return _brought(kind, _LAST_OPERATION)


def operand_version(kind: int) -> Version | None:
    """The version that introduced an operand type; None if it is unknown."""
    return _brought(kind, _LAST_OPERAND)


def _brought(kind: int, last: Mapping[Version, int]) -> Version | None:
    if kind > OperandTypeRange.BASE_MAX:
        return V1_2
    if OperandTypeRange.OEM_MIN <= kind <= OperandTypeRange.OEM_MAX:
        return V1_0
    return next((version for version, number in last.items() if 0 <= kind <= number), None)
