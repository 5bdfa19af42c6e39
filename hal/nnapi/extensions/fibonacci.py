"""``com.example.fibonacci``: the worked example of a vendor extension.

One operation, FIBONACCI, with one input n and one output: the first n Fibonacci numbers 1, 1, 2, 3, 5, ... as a
1-D tensor. n is an EXAMPLE_INT64, or a TENSOR_FLOAT32 of one element, from which it is truncated. The output is a
TENSOR_FLOAT32 or an EXAMPLE_TENSOR_QUANT64_ASYMM, to which a FibonacciQuant64Params is attached.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.ops.routine import routine_attrs
from npusim.routines import Routine, Spec, register_routine
from npusim.routines.base import Array, Params
from npusim.work import ScalarWork

from ..operations.definition import Definition
from ..operations.lowering import InvalidOperationError, Lowering
from ..operations.view import OpView
from ..types import Operand, OperandType
from .registry import ExtensionDefinition, ExtensionOperandType, own, register

NAME = "com.example.fibonacci"
EXAMPLE_INT64 = 0
"""A signed 64-bit scalar."""
EXAMPLE_TENSOR_QUANT64_ASYMM = 1
"""64-bit integers that represent real numbers: real = (integer - zeroPoint) * scale."""
EXAMPLE_FIBONACCI = 0
"""The operation."""

LARGEST = 92
"""The last Fibonacci number that 63 bits hold is the 92nd."""
_PARAMS = struct.Struct("<dq")


class FibonacciQuant64Params(NamedTuple):
    """The attached data of an operand of EXAMPLE_TENSOR_QUANT64_ASYMM."""

    scale: float
    zeroPoint: int

    def pack(self) -> bytes:
        """The blob for ``extraParams.extension``: a double and a signed 64-bit integer, little-endian."""
        return _PARAMS.pack(*self)


def quantisation(operand: Operand) -> FibonacciQuant64Params:
    """The parameters attached to an operand that has been checked."""
    assert operand.extraParams is not None
    assert operand.extraParams.extension is not None
    return FibonacciQuant64Params(*_PARAMS.unpack(bytes(operand.extraParams.extension)))


def _check_quantisation(operand: Operand) -> str | None:
    blob = operand.extraParams.extension if operand.extraParams else None
    if blob is None or len(blob) != _PARAMS.size:
        got = "none" if blob is None else f"{len(blob)} bytes"
        return f"extraParams.extension must be a FibonacciQuant64Params of {_PARAMS.size} bytes, got {got}"
    scale = quantisation(operand).scale
    return None if math.isfinite(scale) and scale > 0 else f"scale must be a finite number > 0, got {scale}"


# The routine: what the device's scalar unit does.


def _infer(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    if not 1 <= params["count"] <= LARGEST:
        raise ModelError(f"n must be in [1, {LARGEST}], got {params['count']}")
    return [Spec((params["count"],), DType.INT64 if params["scale"] else DType.FLOAT32)]


def _execute(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    """Fill the output; a scale of 0 means real numbers. Values outside of 64 bits saturate."""
    scale, zero = params["scale"], params["zero_point"]
    limits = np.iinfo(np.int64)
    before, number = 0, 1
    for index in range(params["count"]):
        value = round(number / Fraction(scale)) + zero if scale else number
        outputs[0][index] = min(max(value, int(limits.min)), int(limits.max)) if scale else value
        before, number = number, before + number


def _work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> ScalarWork:
    """An addition and a store for each number."""
    return ScalarWork(outputs[0].size, outputs[0].nbytes)


ROUTINE = register_routine(
    Routine("example.fibonacci", 1, _infer, _execute, _work, params={"count": int, "scale": float, "zero_point": int})
)

# The operation: what the driver checks, and how it becomes a part of a Graph.


def _signature(view: OpView) -> bool:
    """takes EXAMPLE_INT64 or TENSOR_FLOAT32, gives EXAMPLE_TENSOR_QUANT64_ASYMM or TENSOR_FLOAT32"""
    if (len(view.inputs), len(view.outputs)) != (1, 1):
        return False
    return view.type(0) in (own(view, EXAMPLE_INT64), OperandType.TENSOR_FLOAT32) and view.outputs[0].type in (
        own(view, EXAMPLE_TENSOR_QUANT64_ASYMM),
        OperandType.TENSOR_FLOAT32,
    )


def _one_element(view: OpView) -> bool:
    """input 0 must have one element"""
    dims = view.dims(0)
    return not dims or all(dim in (0, 1) for dim in dims)


def _output_rank(view: OpView) -> bool:
    """output 0 must have rank 1"""
    dims = view.out_dims()
    return dims is None or len(dims) == 1


def _lower(op: Lowering) -> None:
    n: Any = op.scalar(0)
    if not (math.isfinite(n) and 1 <= n < LARGEST + 1):
        raise InvalidOperationError(f"input 0 must be in [1, {LARGEST}], got {n}")
    quantised = op.out_type() != OperandType.TENSOR_FLOAT32
    scale, zero = quantisation(op.view.outputs[0]) if quantised else (0.0, 0)
    op.give(op.add("routine", [op.tensor(0)], routine_attrs(ROUTINE.name, count=int(n), scale=scale, zero_point=zero)))


EXTENSION = register(
    ExtensionDefinition(
        NAME,
        operand_types={
            EXAMPLE_INT64: ExtensionOperandType("EXAMPLE_INT64", np.dtype(np.int64), tensor=False),
            EXAMPLE_TENSOR_QUANT64_ASYMM: ExtensionOperandType(
                "EXAMPLE_TENSOR_QUANT64_ASYMM", np.dtype(np.int64), tensor=True, check=_check_quantisation
            ),
        },
        operations={EXAMPLE_FIBONACCI: Definition(EXAMPLE_FIBONACCI, _signature, _lower, (_one_element, _output_rank))},
    )
)
