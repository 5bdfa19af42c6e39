"""The driver's own copy of a model, as the transport would have delivered it.

In Android a model passes through a binder: the driver gets a copy whose fields have their declared types. Here the copy
is made explicitly, so that the rules only see valid types, and the client cannot change anything later.
"""

from __future__ import annotations

from ..errors import InvalidModelError
from ..memory import Memory
from ..types import (
    DataLocation,
    ExtensionNameAndPrefix,
    ExtraParams,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
    SymmPerChannelQuantParams,
)
from .fields import (
    I32,
    U16,
    U32,
    U64,
    MalformedError,
    blob,
    boolean,
    code,
    instance,
    instances,
    integer,
    integers,
    items,
    real,
)

_OPERAND_TYPES = {int(kind): kind for kind in OperandType}
_OPERATION_TYPES = {int(kind): kind for kind in OperationType}
_LIFETIMES = {int(kind): kind for kind in OperandLifeTime}
_NOWHERE = DataLocation()


def copy_model(model: Model) -> Model:
    """Return a copy of the model in which every field has its declared type and range.

    ``operandValues`` and the pools are the client's own. Raises InvalidModelError.
    """
    try:
        return _model(instance(model, Model, "the model"))
    except InvalidModelError:
        raise
    except MalformedError as error:
        raise InvalidModelError("model", str(error)) from None
    except Exception as error:  # reading the client's objects may raise anything
        raise InvalidModelError("model", f"cannot be read: {type(error).__name__}: {error}") from error


def _model(model: Model) -> Model:
    return Model(
        main=_subgraph(instance(model.main, Subgraph, "main"), "main"),
        referenced=tuple(
            _subgraph(each, f"referenced[{number}]")
            for number, each in instances(model.referenced, Subgraph, "referenced")
        ),
        operandValues=blob(model.operandValues, "operandValues"),
        pools=tuple(pool for _, pool in instances(model.pools, Memory, "pools")),
        relaxComputationFloat32toFloat16=boolean(
            model.relaxComputationFloat32toFloat16, "relaxComputationFloat32toFloat16"
        ),
        extensionNameToPrefix=tuple(
            ExtensionNameAndPrefix(
                instance(each.name, str, f"extensionNameToPrefix[{number}].name"),
                integer(each.prefix, 0, U16, f"extensionNameToPrefix[{number}].prefix"),
            )
            for number, each in instances(model.extensionNameToPrefix, ExtensionNameAndPrefix, "extensionNameToPrefix")
        ),
    )


def _subgraph(subgraph: Subgraph, name: str) -> Subgraph:
    operands: list[Operand] = []
    operations: list[Operation] = []
    place = "operand"
    try:
        for each in items(subgraph.operands, "operands"):
            operands.append(_operand(instance(each, Operand, "it")))
        place = "operation"
        for other in items(subgraph.operations, "operations"):
            operations.append(_operation(instance(other, Operation, "it")))
    except MalformedError as error:
        number = len(operations) if place == "operation" else len(operands)
        raise InvalidModelError(f"{name}: {place} {number}", str(error)) from None
    try:
        inputs = integers(subgraph.inputIndexes, U32, "inputIndexes")
        outputs = integers(subgraph.outputIndexes, U32, "outputIndexes")
    except MalformedError as error:
        raise InvalidModelError(name, str(error)) from None
    return Subgraph(tuple(operands), tuple(operations), inputs, outputs)


def _operand(operand: Operand) -> Operand:
    kind = code(operand.type, "type")
    scale, extra = operand.scale, operand.extraParams
    return Operand(
        _OPERAND_TYPES.get(kind, kind),
        integers(operand.dimensions, U32, "dimensions"),
        integer(operand.numberOfConsumers, 0, U32, "numberOfConsumers"),
        # The usual case first: models have many thousands of operands, and each field is checked.
        0.0 if type(scale) is float and scale == 0 else real(scale, "scale"),
        integer(operand.zeroPoint, *I32, "zeroPoint"),
        _lifetime(operand.lifetime),
        _location(operand.location),
        None if extra is None else _extra(instance(extra, ExtraParams, "extraParams")),
    )


def _lifetime(value: object) -> OperandLifeTime:
    number = integer(value, *I32, "lifetime")
    if number not in _LIFETIMES:
        names = ", ".join(f"{kind.name} {kind.value}" for kind in OperandLifeTime)
        raise MalformedError(f"lifetime must be one of {names}, got {number}")
    return _LIFETIMES[number]


def _location(value: object) -> DataLocation:
    place = instance(value, DataLocation, "location")
    pool, offset, length, padding = place.poolIndex, place.offset, place.length, place.padding
    if type(pool) is type(offset) is type(length) is type(padding) is int and not (pool or offset or length or padding):
        return _NOWHERE
    return DataLocation(
        integer(pool, 0, U32, "location.poolIndex"),
        integer(offset, 0, U64, "location.offset"),
        integer(length, 0, U64, "location.length"),
        integer(padding, 0, U64, "location.padding"),
    )


def _extra(extra: ExtraParams) -> ExtraParams | None:
    quant, extension = extra.channelQuant, extra.extension
    if quant is None and extension is None:
        return None
    if quant is not None and extension is not None:
        raise MalformedError("extraParams must be channelQuant or extension, not both")
    if quant is None:
        return ExtraParams(extension=bytes(blob(extension, "extraParams.extension")))
    quant = instance(quant, SymmPerChannelQuantParams, "extraParams.channelQuant")
    scales = items(quant.scales, "channelQuant.scales")
    return ExtraParams(
        SymmPerChannelQuantParams(
            tuple(real(scale, "channelQuant.scales") for scale in scales),
            integer(quant.channelDim, 0, U32, "channelQuant.channelDim"),
        )
    )


def _operation(operation: Operation) -> Operation:
    kind = code(operation.type, "type")
    return Operation(
        _OPERATION_TYPES.get(kind, kind),
        integers(operation.inputs, U32, "inputs"),
        integers(operation.outputs, U32, "outputs"),
    )
