"""L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION, SOFTMAX, LOG_SOFTMAX, INSTANCE_NORMALIZATION."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce

from ..types import OperandType, OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering
from .rules import (
    axis_of,
    input_types,
    inputs_beyond,
    other_ranks,
    output_quantisation,
    positive,
    rank_at_most,
    ranks,
    scalars,
)
from .signature import F16, F32, QUANT8, forms, rows
from .versions import V1_2
from .windows import image_of, layout_of

_SCALARS = [{"T": F32, "s": OperandType.FLOAT32}, {"T": F16, "s": OperandType.FLOAT16}]
_QUANTISED_SCALARS = [{"T": kind, "s": OperandType.FLOAT32} for kind in QUANT8]


def _axis(op: Lowering, index: int) -> int:
    """Return the dimension that input ``index`` names; the last one if it is omitted."""
    rank = len(op.shape(0))
    return rank - 1 if op.omitted(index) else op.axis(index, rank)


def _l2_normalization(op: Lowering) -> None:
    """x / sqrt(sum of x * x along the axis); 0 where all of them are 0."""
    x, axis = op.real(0), _axis(op, 1)
    norm = op.reduce(Reduce.L2, x, (axis,))
    # 0 / tiny is 0, as the interface requires, where 0 / 0 would be NaN.
    op.give_real(op.binary(Binary.DIV, x, op.binary(Binary.MAX, norm, op.f32(np.finfo(np.float32).tiny))))


def _local_response_normalization(op: Lowering) -> None:
    """x / (bias + alpha * sum of squares of the 2 * radius + 1 elements around it) ** beta."""
    radius, bias, alpha, beta = (op.scalar(index) for index in (1, 2, 3, 4))
    if radius < 0:
        raise InvalidOperationError(f"input 1, the radius, must be >= 0, got {radius}")
    size = 2 * int(radius) + 1
    # The graph's alpha applies to the mean of the window, this one to its sum.
    attrs = {"axis": _axis(op, 5), "size": size, "alpha": alpha * size, "beta": beta, "bias": bias}
    op.give_real(op.add("lrn", [op.real(0)], attrs))


def _softmax(*, log: bool) -> Callable[[Lowering], None]:
    """(log of) exp(x * beta) / sum of exp(x * beta) along the axis."""

    def lower(op: Lowering) -> None:
        axis = _axis(op, 2)
        op.give_real(op.add("softmax", [_scaled(op, op.real(0), axis)], {"axis": axis, "log": log}))

    return lower


def _scaled(op: Lowering, x: Tensor, axis: int) -> Tensor:
    """x * beta, up to a constant along the axis."""
    beta = op.known(1)
    if (beta is not None and beta.item() == 1) or not x.size:
        return x
    # The maximum is subtracted first. After the product, differences of elements far from 0 would lose digits.
    apart = op.binary(Binary.SUB, x, op.reduce(Reduce.MAX, x, (axis,)))
    return op.binary(Binary.MUL, apart, op.real(1))


def _instance_normalization(op: Lowering) -> None:
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta, over the pixels of each channel of each image."""
    layout = layout_of(op, 4)
    image_of(op.shape(0), layout)
    nchw = layout == "NCHW"
    # The graph normalises over all dimensions from one on, so the pixels must come last.
    x = op.real(0) if nchw else op.transpose(op.real(0), (0, 3, 1, 2))
    y = op.add("normalize", [x], {"axis": 2, "mode": "layer", "epsilon": op.scalar(3)})
    y = op.binary(Binary.ADD, op.binary(Binary.MUL, y, op.real(1)), op.real(2))
    op.give_real(y if nchw else op.transpose(y, (0, 2, 3, 1)))


define(
    OperationType.L2_NORMALIZATION,
    forms("T [ i ]", "T", rows("T", (F32, F16, *QUANT8))),
    _l2_normalization,
    rank_at_most(0, 4),
    axis_of(1),
    output_quantisation(1 / 128, 128),
    later=[inputs_beyond(1, V1_2), input_types(0, V1_2, *QUANT8), other_ranks(0, V1_2, 4)],
)
define(
    OperationType.LOCAL_RESPONSE_NORMALIZATION,
    forms("T i s s s [ i ]", "T", _SCALARS),
    _local_response_normalization,
    rank_at_most(0, 4),
    scalars("input 1, the radius, must be >= 0", lambda radius: radius >= 0, 1),
    axis_of(5),
    later=[inputs_beyond(5, V1_2), other_ranks(0, V1_2, 4)],
)
define(
    OperationType.SOFTMAX,
    forms("T s [ i ]", "T", [*_SCALARS, *_QUANTISED_SCALARS]),
    _softmax(log=False),
    rank_at_most(0, 4),
    positive(1),
    axis_of(2),
    output_quantisation(1 / 256, 0),
    later=[inputs_beyond(2, V1_2), other_ranks(0, V1_2, 2, 4)],
)
define(OperationType.LOG_SOFTMAX, forms("T s i", "T", _SCALARS), _softmax(log=True), positive(1), axis_of(2))
define(OperationType.INSTANCE_NORMALIZATION, forms("T s*3 b", "T", _SCALARS), _instance_normalization, ranks(0, 4))
