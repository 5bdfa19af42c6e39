"""SVDF: a layer whose filters are products of a feature and a time vector; the state is the memory of past features.

The state is [batches, filters * memory]: for each filter the features of the last ``memory`` time steps, the oldest
first, with room for the newest at the end.
"""

from __future__ import annotations

import numpy as np

from npusim.isa.functions import Reduce

from ..types import OperationType
from .definition import define
from .dimensions import Dimensions
from .lowering import InvalidOperationError, Lowering
from .recurrent import add, columns, joined, multiply, product
from .rules import activation, positive
from .signature import FLOATS, forms, rows

_BIAS, _STATE, _RANK, _ACTIVATION = 3, 4, 5, 6
_SHAPES = Dimensions(
    {0: "batches inputs", 1: "filters inputs", 2: "filters memory", _BIAS: "units", _STATE: "batches state"},
    optional=(_BIAS,),
)


def _sizes(op: Lowering) -> tuple[int, int, int, int]:
    """Batches, units, filters of a unit, length of the memory."""
    sizes = _SHAPES.sizes(op)
    filters, memory, rank = sizes["filters"], sizes["memory"], int(op.scalar(_RANK))
    if rank < 1 or filters % rank:
        raise InvalidOperationError(f"the rank must divide the number of filters, {filters}, got {rank}")
    units = filters // rank
    if sizes.get("units", units) != units:
        raise InvalidOperationError(f"input {_BIAS} must be [units = {units}], got [{sizes['units']}]")
    if memory < 1 or sizes["state"] != filters * memory:
        raise InvalidOperationError(
            f"input {_STATE} must be [{sizes['batches']}, {filters} filters * memory of {memory} >= 1], got "
            f"[{sizes['batches']}, {sizes['state']}]"
        )
    return sizes["batches"], units, rank, memory


def _svdf(op: Lowering) -> None:
    batches, units, rank, memory = _sizes(op)
    filters = units * rank
    features = op.reshape(product(op, op.real(0), columns(op, op.real(1))), (batches, filters, 1))
    past = op.slice(op.reshape(op.real(_STATE), (batches, filters, memory)), 2, 0, memory - 1)
    filled = joined(op, [past, features], 2)
    weighted = op.reshape(multiply(op, filled, op.real(2)), (batches, units, rank * memory))
    output = op.reduce(Reduce.SUM, weighted, (2,), keepdims=False)
    if not op.omitted(_BIAS):
        output = add(op, output, op.real(_BIAS))
    # One step older, with room for the next features at the end.
    older = joined(op, [op.slice(filled, 2, 1, memory - 1), op.f32(np.zeros((batches, filters, 1)))], 2)
    op.give_real(op.reshape(older, (batches, filters * memory)), 0)
    op.give_real(op.activate(output, _ACTIVATION), 1)


define(
    OperationType.SVDF,
    forms("T*5 i i", "T*2", rows("T", FLOATS)),
    _svdf,
    _SHAPES.agree,
    positive(_RANK),
    activation(_ACTIVATION),
    optional=(_BIAS,),
)
