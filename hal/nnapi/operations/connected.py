"""FULLY_CONNECTED: a product with a weight matrix."""

from __future__ import annotations

from ..types import OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering
from .products import BIAS, FILTER, X, bias_scale, factors, give_product
from .rules import activation, ranks
from .signature import F16, F32, I32, Q8, Q8S, forms


def _fully_connected(op: Lowering) -> None:
    """The input as [batches, input size] times the weights [units, input size]."""
    x, weights, attrs = factors(op)
    units, size = op.shape(FILTER)
    if size < 1 or x.size % size:
        raise InvalidOperationError(
            f"weights of {units} units and {size} inputs do not fit an input of {list(x.shape)}: {x.size} elements"
        )
    # The input may have any rank: its elements are cut into rows as long as the weights.
    rows = op.reshape(x, (x.size // size, size))
    product = op.add("matmul", [rows, op.transpose(weights, (1, 0)), op.tensor(BIAS)], attrs)
    give_product(op, product, 1, 3)


_ROWS = [{"T": F32, "B": F32}, {"T": F16, "B": F16}, {"T": Q8, "B": I32}, {"T": Q8S, "B": I32}]
define(
    OperationType.FULLY_CONNECTED,
    forms("T T B i", "T", _ROWS),
    _fully_connected,
    ranks(X, 2, 3, 4),
    ranks(FILTER, 2),
    ranks(BIAS, 1),
    bias_scale,
    activation(3),
)
