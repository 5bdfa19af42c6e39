"""FULLY_CONNECTED and BATCH_MATMUL: a product with a weight matrix, and products of matrices."""

from __future__ import annotations

from ..types import OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering
from .products import BIAS, FILTER, X, bias_scale, factors, give_product
from .rules import activation, ranks, same_rank
from .signature import F16, F32, I32, Q8, Q8S, forms, rows


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


def _batch_matmul(op: Lowering) -> None:
    """Products of the matrices in the last two dimensions; inputs 2 and 3: whether a factor is transposed."""
    a, b, attrs = factors(op)
    rank = len(a.shape)
    # A batch of 1 is multiplied with all matrices of input 0; the output has the batches of input 0.
    if len(b.shape) != rank or any(one not in (1, all_) for one, all_ in zip(b.shape[:-2], a.shape[:-2], strict=True)):
        raise InvalidOperationError(f"batches of {list(b.shape)} do not fit those of {list(a.shape)}")
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    pair = [op.transpose(x, swapped) if op.scalar(2 + n, False) else x for n, x in enumerate((a, b))]
    give_product(op, op.add("matmul", pair, attrs), rank - 1)


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
define(
    OperationType.BATCH_MATMUL,
    forms("T T b b", "T", rows("T", (F32, F16, Q8S, I32))),
    _batch_matmul,
    ranks(0, 2, 3, 4),
    ranks(1, 2, 3, 4),
    same_rank(0, 1),
    optional=(2, 3),
)
