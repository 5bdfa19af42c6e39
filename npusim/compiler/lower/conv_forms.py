"""The forms of a convolution: direct, by phases, or as a product of weights and image."""

from __future__ import annotations

from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, Lowering
from npusim.compiler.lower.conv import ConvLowering
from npusim.compiler.lower.image_product import ImageProductLowering, image_product
from npusim.compiler.lower.phases import RowPhases, phased
from npusim.errors import CompileError


def conv_lowering(context: Context, group: Group) -> Lowering:
    """The fastest form of a convolution, with a handicap that favours the product: see ``_PRODUCT_PERCENT``.

    Raises CompileError if no form fits.
    """
    # Cascades compute rows of images.
    if context.rows or not context.tiles:
        return ConvLowering(context, group)
    others = [each for each in (image_product(context, group), _phased(context, group)) if each is not None]
    try:
        others.insert(0, ConvLowering(context, group))
    except CompileError:
        if not others:
            raise
    return min(others, key=_compared)


def _compared(lowering: Lowering) -> int:
    """The picoseconds by which forms are compared."""
    ps = lowering.estimate()
    if isinstance(lowering, ImageProductLowering):
        return ps * _PRODUCT_PERCENT // 100
    if isinstance(lowering, RowPhases) and (lowering.problem.x_turned or lowering.problem.out_turned):
        return ps * _APART_PERCENT // 100
    return ps


_PRODUCT_PERCENT = 80
"""A product is also chosen if it is slightly slower, because a matrix product of the same bytes has no other form."""

_APART_PERCENT = 130
"""If transfers transpose, estimates count each row as a separate run. This is true for the rows of a phase, but
neighbouring rows form one run and are faster than estimated."""


def _phased(context: Context, group: Group) -> ConvLowering | None:
    """The lowering by phases, if there is one and its tiles fit."""
    assert group.anchor is not None
    kind = phased(group.anchor)
    try:
        return None if kind is None else kind(context, group)
    except CompileError:
        return None


def conv_like(first: Lowering, context: Context, group: Group) -> Lowering | None:
    """The lowering of another core's shard in the form that the first core uses; None if it is not a convolution."""
    if isinstance(first, ImageProductLowering):
        return image_product(context, group, chosen=True)
    return type(first)(context, group) if isinstance(first, ConvLowering) else None
