"""HAL 1.1: its structures, and their conversion to HAL 1.3. Operands and requests are those of HAL 1.0."""

from __future__ import annotations

from dataclasses import dataclass

from . import types, v1_0
from .operations.versions import V1_1
from .types import OperandType, PerformanceInfo
from .v1_0 import Operand, Request, check_types, performance_of, subgraph_to_1_3

__all__ = ["Capabilities", "Model", "Operand", "Request", "model_to_1_3"]


@dataclass(slots=True)
class Capabilities(v1_0.Capabilities):
    """Performance of a driver."""

    relaxedFloat32toFloat16Performance: PerformanceInfo


@dataclass(slots=True)
class Model(v1_0.Model):
    """A model: one subgraph."""

    relaxComputationFloat32toFloat16: bool = False


def model_to_1_3(model: Model) -> types.Model:
    """The same model in HAL 1.3. Raises StatusError (INVALID_ARGUMENT) for types that HAL 1.1 does not have."""
    check_types(model, V1_1)
    relaxed = model.relaxComputationFloat32toFloat16
    return types.Model(subgraph_to_1_3(model), (), model.operandValues, model.pools, relaxed)


def capabilities_from_1_3(found: types.Capabilities) -> Capabilities:
    """The part of the capabilities that HAL 1.1 knows."""
    return Capabilities(
        performance_of(found, OperandType.TENSOR_FLOAT32),
        performance_of(found, OperandType.TENSOR_QUANT8_ASYMM),
        found.relaxedFloat32toFloat16PerformanceTensor,
    )
