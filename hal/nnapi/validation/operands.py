"""Rules of one operand. A docstring begins with the field that the rule is about: the message adds what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..operations.definition import stated
from ..operations.signature import type_name
from ..operations.view import SCALARS
from ..types import Operand, OperandLifeTime, OperandType
from .context import Context

Rule = Callable[[Operand, Context], bool]

LARGEST_BYTES = (1 << 32) - 1


def type_is_known(operand: Operand, context: Context) -> bool:
    """type must be one of the interface, or of an extension in extensionNameToPrefix"""
    return context.knows_operand(operand.type)


# Of types


def scalar_has_no_dimensions(operand: Operand, context: Context) -> bool:
    """dimensions must be empty for a scalar"""
    return not operand.dimensions


def tensor_is_addressable(operand: Operand, context: Context) -> bool:
    """dimensions must amount to less than 4 GiB"""
    dimensions = operand.dimensions
    if 0 in dimensions:
        return True
    size = context.element_bytes(operand.type) or 1
    for dim in dimensions:
        size *= dim
        if size > LARGEST_BYTES:
            return False
    return True


def scale_is_zero(operand: Operand, context: Context) -> bool:
    """scale must be 0 for a type without a scale"""
    return operand.scale == 0


def scale_is_not_negative(operand: Operand, context: Context) -> bool:
    """scale must be >= 0"""
    return operand.scale >= 0


def scale_is_positive(operand: Operand, context: Context) -> bool:
    """scale must be > 0 for a quantised type"""
    return operand.scale > 0


def zero_point_is_zero(operand: Operand, context: Context) -> bool:
    """zeroPoint must be 0 for a type without a zero point"""
    return operand.zeroPoint == 0


def _zero_point_within(low: int, high: int) -> Rule:
    """The rule that the zero point is a value of the type's integers."""
    return stated(f"zeroPoint must be in [{low}, {high}]", lambda operand, context: low <= operand.zeroPoint <= high)


zero_point_is_uint8 = _zero_point_within(0, 255)
zero_point_is_int8 = _zero_point_within(-128, 127)
zero_point_is_uint16 = _zero_point_within(0, 65535)


def no_extra_params(operand: Operand, context: Context) -> bool:
    """extraParams must be none for this type"""
    return operand.extraParams is None


def extension_data_only(operand: Operand, context: Context) -> bool:
    """extraParams must be none or an extension's data"""
    return operand.extraParams is None or operand.extraParams.channelQuant is None


def channels_have_scales(operand: Operand, context: Context) -> bool:
    """extraParams must be channelQuant: channelDim a known dimension, and a scale > 0 for each of its entries"""
    quant = operand.extraParams.channelQuant if operand.extraParams else None
    if quant is None or quant.channelDim >= len(operand.dimensions):
        return False
    count = operand.dimensions[quant.channelDim]
    return len(quant.scales) == count != 0 and min(quant.scales) > 0


def subgraph_lifetime(operand: Operand, context: Context) -> bool:
    """lifetime must be SUBGRAPH for an operand of type SUBGRAPH"""
    return operand.lifetime == OperandLifeTime.SUBGRAPH


def not_subgraph_lifetime(operand: Operand, context: Context) -> bool:
    """lifetime must not be SUBGRAPH for an operand of another type"""
    return operand.lifetime != OperandLifeTime.SUBGRAPH


def extension_type_agrees(operand: Operand, context: Context) -> bool:
    """dimensions must be empty for a type that its extension declares to be a scalar"""
    kind = context.operand_type(operand.type)
    return kind is None or kind.tensor or not operand.dimensions


# Of lifetimes


def no_location(operand: Operand, context: Context) -> bool:
    """location must be 0 for an operand that is not constant"""
    place = operand.location
    return not (place.offset or place.length or place.poolIndex or place.padding)


def values_in_first_pool(operand: Operand, context: Context) -> bool:
    """location must have poolIndex 0 for a CONSTANT_COPY"""
    return operand.location.poolIndex == 0


def values_in_bounds(operand: Operand, context: Context) -> bool:
    """location must lie within operandValues"""
    place = operand.location
    return place.offset + place.length + place.padding <= context.values


def pool_exists(operand: Operand, context: Context) -> bool:
    """location must have the poolIndex of one of the model's pools"""
    return operand.location.poolIndex < len(context.pools)


def pool_in_bounds(operand: Operand, context: Context) -> bool:
    """location must lie within its pool"""
    place = operand.location
    size = context.pools[place.poolIndex]
    return size is None or place.offset + place.length + place.padding <= size


def constant_is_specified(operand: Operand, context: Context) -> bool:
    """dimensions must be known for a constant tensor: at least one, and none of them 0"""
    if not operand.dimensions:
        kind = context.operand_type(operand.type)
        return operand.type in _WITHOUT_RANK or (operand.type > 0xFFFF and (kind is None or not kind.tensor))
    return 0 not in operand.dimensions


def constant_has_its_length(operand: Operand, context: Context) -> bool:
    """location must be as long as the operand"""
    size = context.element_bytes(operand.type)
    if size is None:
        return operand.location.length > 0
    for dim in operand.dimensions:
        size *= dim
    return operand.location.length == size


def subgraph_exists(operand: Operand, context: Context) -> bool:
    """location must have the index of a referenced subgraph as its offset, and 0 in all other fields"""
    place = operand.location
    return place.offset < context.referenced and not (place.length or place.poolIndex or place.padding)


_WITHOUT_RANK = frozenset({*SCALARS, OperandType.OEM})

_SCALAR = (scalar_has_no_dimensions, scale_is_zero, zero_point_is_zero, no_extra_params, not_subgraph_lifetime)
_TENSOR = (tensor_is_addressable, no_extra_params, not_subgraph_lifetime)
_PLAIN = (*_TENSOR, scale_is_zero, zero_point_is_zero)
_QUANTISED = (*_TENSOR, scale_is_positive)
_EXTENSION = (
    extension_type_agrees,
    tensor_is_addressable,
    scale_is_zero,
    zero_point_is_zero,
    extension_data_only,
    not_subgraph_lifetime,
)

TYPE_RULES: Mapping[int, tuple[Rule, ...]] = {
    **dict.fromkeys(SCALARS, _SCALAR),
    OperandType.TENSOR_FLOAT32: _PLAIN,
    OperandType.TENSOR_FLOAT16: _PLAIN,
    OperandType.TENSOR_BOOL8: _PLAIN,
    OperandType.TENSOR_INT32: (*_TENSOR, scale_is_not_negative, zero_point_is_zero),
    OperandType.TENSOR_QUANT8_ASYMM: (*_QUANTISED, zero_point_is_uint8),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (*_QUANTISED, zero_point_is_int8),
    OperandType.TENSOR_QUANT8_SYMM: (*_QUANTISED, zero_point_is_zero),
    OperandType.TENSOR_QUANT16_ASYMM: (*_QUANTISED, zero_point_is_uint16),
    OperandType.TENSOR_QUANT16_SYMM: (*_QUANTISED, zero_point_is_zero),
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: (
        tensor_is_addressable,
        scale_is_zero,
        zero_point_is_zero,
        channels_have_scales,
        not_subgraph_lifetime,
    ),
    OperandType.SUBGRAPH: (
        subgraph_lifetime,
        scalar_has_no_dimensions,
        scale_is_zero,
        zero_point_is_zero,
        no_extra_params,
    ),
    OperandType.OEM: _TENSOR,
    OperandType.TENSOR_OEM_BYTE: _TENSOR,
}
"""Rules of each type of the interface; those of extensions have ``EXTENSION_RULES``."""
EXTENSION_RULES: tuple[Rule, ...] = (type_is_known, *_EXTENSION)

_CONSTANT = (constant_is_specified, constant_has_its_length)
LIFETIME_RULES: Mapping[int, tuple[Rule, ...]] = {
    OperandLifeTime.TEMPORARY_VARIABLE: (no_location,),
    OperandLifeTime.SUBGRAPH_INPUT: (no_location,),
    OperandLifeTime.SUBGRAPH_OUTPUT: (no_location,),
    OperandLifeTime.CONSTANT_COPY: (values_in_first_pool, values_in_bounds, *_CONSTANT),
    OperandLifeTime.CONSTANT_REFERENCE: (pool_exists, pool_in_bounds, *_CONSTANT),
    OperandLifeTime.NO_VALUE: (no_location,),
    OperandLifeTime.SUBGRAPH: (subgraph_exists,),
}


def operand_problem(operand: Operand, context: Context) -> str | None:
    """Return the first broken rule of an operand, or None."""
    # Types first: rules of lifetimes, such as the length of a constant, are only meaningful for known types.
    for rules in (TYPE_RULES.get(operand.type, EXTENSION_RULES), LIFETIME_RULES[operand.lifetime]):
        for rule in rules:
            if not rule(operand, context):
                return _message(rule, operand)
    kind = context.operand_type(operand.type) if operand.type > 0xFFFF else None
    return kind.check(operand) if kind else None


def _message(rule: Rule, operand: Operand) -> str:
    text = rule.__doc__ or ""
    field = text.partition(" ")[0]
    value = getattr(operand, field)
    if field == "type":
        return f"{text}, got {type_name(value)}"
    shown = value.name if isinstance(value, OperandLifeTime) else repr(value)
    return f"{text}, got {shown} ({type_name(operand.type)})"
