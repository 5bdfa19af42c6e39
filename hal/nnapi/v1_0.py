"""HAL 1.0: its structures, and their conversion to HAL 1.3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from . import types
from .errors import invalid_argument
from .operations.versions import V1_0, Version, operand_version, operation_version
from .types import DataLocation, OperandLifeTime, OperandType, Operation, PerformanceInfo
from .validation.fields import MalformedError, items

if TYPE_CHECKING:
    from .memory import Memory


@dataclass(slots=True)
class Capabilities:
    """Performance of a driver."""

    float32Performance: PerformanceInfo
    quantized8Performance: PerformanceInfo


@dataclass(slots=True)
class Operand:
    """One operand of a model."""

    type: OperandType | int
    dimensions: Sequence[int] = ()
    numberOfConsumers: int = 0
    scale: float = 0.0
    zeroPoint: int = 0
    lifetime: OperandLifeTime | int = OperandLifeTime.TEMPORARY_VARIABLE
    location: DataLocation = field(default_factory=DataLocation)


@dataclass(slots=True)
class Model:
    """A model: one subgraph."""

    operands: Sequence[Operand]
    operations: Sequence[Operation]
    inputIndexes: Sequence[int]
    outputIndexes: Sequence[int]
    operandValues: bytes | bytearray | memoryview = b""
    pools: Sequence[Memory] = ()


@dataclass(slots=True)
class Request:
    """Inputs, outputs and pools of an execution."""

    inputs: Sequence[types.RequestArgument]
    outputs: Sequence[types.RequestArgument]
    pools: Sequence[Memory] = ()


_FIELDS = attrgetter("type", "dimensions", "numberOfConsumers", "scale", "zeroPoint", "lifetime", "location")


def model_to_1_3(model: Model) -> types.Model:
    """The same model in HAL 1.3. Raises StatusError (INVALID_ARGUMENT) for types that HAL 1.0 does not have.

    On its floats: HAL 1.0 left it to the driver whether they are computed in half precision; this one does not.
    """
    check_types(model, V1_0)
    return types.Model(subgraph_to_1_3(model), (), model.operandValues, model.pools)


def request_to_1_3(request: Any) -> types.Request:
    """Convert a request to HAL 1.3. Raises StatusError (INVALID_ARGUMENT) if it is not one."""
    try:
        pools = [
            pool if isinstance(pool, types.MemoryPool) else types.MemoryPool(pool)
            for pool in items(request.pools, "pools")
        ]
        return types.Request(request.inputs, request.outputs, pools)
    except (AttributeError, TypeError, MalformedError) as error:
        raise invalid_argument(f"not a request of this version of the interface: {error}") from None


def subgraph_to_1_3(model: object) -> types.Subgraph:
    """Return the only subgraph of a model of HAL 1.0 to 1.2."""
    given = _operands(model)
    operands = [types.Operand(*_FIELDS(each)) for each in given]
    for operand, each in zip(operands, given, strict=True):
        operand.extraParams = getattr(each, "extraParams", None)
    return types.Subgraph(operands, model.operations, model.inputIndexes, model.outputIndexes)  # type: ignore[attr-defined]


def check_types(model: object, version: Version) -> None:
    """Raise StatusError (INVALID_ARGUMENT) for types of a later interface. ``validate_model`` checks later operand
    types of operations."""
    for number, operation in enumerate(items(model.operations, "operations")):  # type: ignore[attr-defined]
        _check(f"operation {number}", operation.type, operation_version(operation.type), version)
    for number, operand in enumerate(_operands(model)):
        _check(f"operand {number}", operand.type, operand_version(operand.type), version)


def _operands(model: object) -> Sequence[Any]:
    return items(model.operands, "operands")  # type: ignore[attr-defined]


def _check(where: str, kind: int, brought: Version | None, version: Version) -> None:
    if brought is None or brought > version:
        raise invalid_argument(f"{where}: type {kind} does not exist in version {version} of the interface")


def converted(convert: Callable[[Any], types.Model], model: Any) -> types.Model:
    """Convert a model of an older interface to HAL 1.3. Raises StatusError (INVALID_ARGUMENT) if it is not one."""
    try:
        return convert(model)
    except (AttributeError, TypeError, MalformedError) as error:
        raise invalid_argument(f"not a model of this version of the interface: {error}") from None


def capabilities_from_1_3(found: types.Capabilities) -> Capabilities:
    """The part of the capabilities that HAL 1.0 knows."""
    return Capabilities(
        performance_of(found, OperandType.TENSOR_FLOAT32), performance_of(found, OperandType.TENSOR_QUANT8_ASYMM)
    )


def performance_of(found: types.Capabilities, kind: int) -> PerformanceInfo:
    """Performance with operands of a type; a missing entry means the worst performance."""
    return next((entry.info for entry in found.operandPerformance if entry.type == kind), PerformanceInfo())
