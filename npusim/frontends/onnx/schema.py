"""Type constraints of operands, from the operator definitions of the onnx package."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto

from npusim.dtypes import DType
from npusim.frontends.onnx.tensors import ELEMENT_TYPES, PACKED
from npusim.graph import Tensor

_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic
_CODES = {f"tensor({name.lower()})": code for name, code in TensorProto.DataType.items()}


def schema_of(domain: str, op_type: str, version: int) -> Any:
    """The definition of an operator for a version of its domain; None if there is none."""
    if not 0 < version < 1 << 31:
        return None
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A formal operand. ``variable``: the name of a type shared by all operands with this name; None if not shared."""

    variable: str | None
    whole: frozenset[DType]
    """Allowed types."""
    packed: frozenset[DType]
    """Types of unpacked constants whose element type has less than 8 bits and is allowed."""
    variadic: bool


@functools.lru_cache(maxsize=4096)
def parameters(domain: str, op_type: str, version: int) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]] | None:
    """(inputs, outputs) of an operator for a version of its domain; None if it has no definition."""
    schema = schema_of(domain, op_type, version)
    if schema is None:
        return None
    allowed = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}
    return tuple(_parameter(formal, allowed) for formal in schema.inputs), tuple(
        _parameter(formal, allowed) for formal in schema.outputs
    )


def _parameter(formal: Any, allowed: dict[str, Sequence[str]]) -> Parameter:
    codes = [_CODES[text] for text in allowed.get(formal.type_str, [formal.type_str]) if text in _CODES]
    return Parameter(
        formal.type_str if formal.is_homogeneous else None,
        frozenset(ELEMENT_TYPES[code] for code in codes if code in ELEMENT_TYPES),
        frozenset(PACKED[code][0] for code in codes if code in PACKED),
        formal.option == _VARIADIC,
    )


def type_problems(
    formal: Sequence[Parameter], operands: Sequence[object], bound: dict[str, DType], packed: Collection[Tensor]
) -> Iterator[tuple[bool, str]]:
    """(whether it differs from another operand, problem) for each operand whose type is not allowed.

    ``bound``: types determined by earlier operands. ``packed``: constants whose elements have less than 8 bits in the
    model. Operands that are not tensors are skipped.
    """
    for index, tensor in enumerate(operands):
        if not isinstance(tensor, Tensor) or not formal or (index >= len(formal) and not formal[-1].variadic):
            continue
        parameter, dtype = formal[min(index, len(formal) - 1)], tensor.dtype
        if dtype not in (parameter.packed if tensor in packed else parameter.whole):
            names = ", ".join(each.label for each in sorted(parameter.whole)) or "another kind of value"
            yield False, f"{index} ({tensor.name!r}) is {dtype.label}, must be {names}"
        elif parameter.variable is not None and bound.setdefault(parameter.variable, dtype) is not dtype:
            other = bound[parameter.variable].label
            yield True, f"{index} ({tensor.name!r}) is {dtype.label}, must be {other} as another operand"
