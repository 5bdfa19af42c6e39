"""HAL 1.2: its structures, and their conversion to HAL 1.3. Requests are those of HAL 1.0, operands those of HAL
1.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import types
from .operations.versions import V1_2
from .types import (
    ExtensionNameAndPrefix,
    Operand,
    OperandPerformance,
    Operation,
    PerformanceInfo,
)
from .v1_0 import Request, check_types, subgraph_to_1_3

if TYPE_CHECKING:
    from .memory import Memory

__all__ = ["Capabilities", "Model", "Operand", "Request", "model_to_1_3"]


@dataclass(slots=True)
class Capabilities:
    """Performance of a driver."""

    relaxedFloat32toFloat16PerformanceScalar: PerformanceInfo
    relaxedFloat32toFloat16PerformanceTensor: PerformanceInfo
    operandPerformance: Sequence[OperandPerformance]


@dataclass(slots=True)
class Model:
    """A model: one subgraph."""

    operands: Sequence[Operand]
    operations: Sequence[Operation]
    inputIndexes: Sequence[int]
    outputIndexes: Sequence[int]
    operandValues: bytes | bytearray | memoryview = b""
    pools: Sequence[Memory] = ()
    relaxComputationFloat32toFloat16: bool = False
    extensionNameToPrefix: Sequence[ExtensionNameAndPrefix] = ()


def model_to_1_3(model: Model) -> types.Model:
    """The same model in HAL 1.3. Raises StatusError (INVALID_ARGUMENT) for types that HAL 1.2 does not have."""
    check_types(model, V1_2)
    return types.Model(
        subgraph_to_1_3(model),
        (),
        model.operandValues,
        model.pools,
        model.relaxComputationFloat32toFloat16,
        model.extensionNameToPrefix,
    )


def capabilities_from_1_3(found: types.Capabilities) -> Capabilities:
    """The part of the capabilities that HAL 1.2 knows."""
    return Capabilities(
        found.relaxedFloat32toFloat16PerformanceScalar,
        found.relaxedFloat32toFloat16PerformanceTensor,
        found.operandPerformance,
    )
