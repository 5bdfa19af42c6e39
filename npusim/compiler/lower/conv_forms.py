"""The ways to compute a convolution: as it is, by phases, or as a product of weights and image."""

from __future__ import annotations

from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, Lowering
from npusim.compiler.lower.conv import ConvLowering
from npusim.compiler.lower.image_product import ImageProductLowering, image_product
from npusim.compiler.lower.phases import RowPhases, phased
from npusim.errors import CompileError


def conv_lowering(context: Context, group: Group) -> Lowering:
    """The faster way to compute a convolution; the product where it is little slower, as the matrix product of the same
    bytes has no other way."""
    # Cascades make rows of images.
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
    """The picoseconds by which the ways to compute a convolution are compared."""
    ps = lowering.estimate()
    if isinstance(lowering, ImageProductLowering):
        return ps * _PRODUCT_PERCENT // 100
    if isinstance(lowering, RowPhases) and (lowering.problem.x_turned or lowering.problem.out_turned):
        return ps * _APART_PERCENT // 100
    return ps


_PRODUCT_PERCENT = 80
"""A product is chosen where it is little slower."""

_APART_PERCENT = 130
"""Where transfers transpose, estimates take each row for a run of its own. Rows of a phase are; neighbouring rows are
one run, and faster than estimated."""


def _phased(context: Context, group: Group) -> ConvLowering | None:
    """The lowering by phases where there is one, and tiles of it fit."""
    assert group.anchor is not None
    kind = phased(group.anchor)
    try:
        return None if kind is None else kind(context, group)
    except CompileError:
        return None


def conv_like(first: Lowering, context: Context, group: Group) -> Lowering | None:
    """The lowering of another core's shard in the way of the first core's; None where that is no convolution."""
    if isinstance(first, ImageProductLowering):
        return image_product(context, group, chosen=True)
    return type(first)(context, group) if isinstance(first, ConvLowering) else None
