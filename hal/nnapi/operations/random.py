"""RANDOM_MULTINOMIAL: classes drawn at random."""

from __future__ import annotations

from npusim.ops.routine import routine_attrs

from ..types import OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering
from .rules import positive, ranks
from .signature import FLOATS, forms, rows
from .view import OpView


def _multinomial(op: Lowering) -> None:
    """Draws the number of classes per row that input 1 states; equal seeds give equal classes."""
    logits, samples = op.real(0), op.scalar(1)
    if samples < 1:
        raise InvalidOperationError(f"input 1 must be >= 1, got {samples}")
    attrs = routine_attrs("npusim.multinomial", samples=samples)
    [classes] = op.add_all("routine", [logits, op.tensor(2)], attrs)
    op.give(classes)


def _two_seeds(view: OpView) -> bool:
    """input 2 must be 1-D with two seeds"""
    dims = view.dims(2)
    return not dims or (len(dims) == 1 and dims[0] in (0, 2))


define(
    OperationType.RANDOM_MULTINOMIAL,
    forms("T i I32", "I32", rows("T", FLOATS)),
    _multinomial,
    ranks(0, 2),
    positive(1),
    _two_seeds,
)
