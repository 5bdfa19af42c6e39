"""Merge pixels of several rows and images into one run, for operators that compute each pixel independently."""

from __future__ import annotations

from npusim.compiler.buffers import View, collapse
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context
from npusim.graph import Tensor


def pixel_run(
    context: Context, group: Group, x: View, out: View, axes: tuple[int, ...] = (), kept: int = 0
) -> tuple[View, View, Context] | None:
    """Views [rows, columns, channels] of the operand and result of a matrix operator, and the context of its chain.

    The views of the chain have the same dimensions. None if strides do not allow two dimensions. ``x``, ``out``: views
    with channels last. ``axes``: the dimensions of the model's result in the order of ``out``, if they differ.
    ``kept``: dimensions before the channels that are not merged.
    """
    operands = {tensor: context.view(tensor) for tensor in group.loads()}
    shape = out.shape
    if axes:
        plain = tuple(shape[axes.index(axis)] for axis in range(len(shape)))
        views = {tensor: view.broadcast(plain).permute(axes) for tensor, view in operands.items()}
    else:
        views = {tensor: view.broadcast(shape) for tensor, view in operands.items()}
    ends = len(shape) - 1 - kept
    merged, _ = collapse(shape[:ends], *(view.strides[:ends] for view in (x, out, *views.values())))
    if len(merged) + kept > 2:
        return None
    outer = (1,) * (2 - kept - len(merged)) + tuple(merged)

    def flat(view: View) -> View:
        found = view.reshape((*outer, *view.shape[ends:]))
        assert found is not None
        # A dimension of size one is not a broadcast one: it gets a stride.
        return found.broadcast(found.shape)

    flattened: dict[Tensor, View] = {tensor: flat(view) for tensor, view in views.items()}
    inner = Context(context.config, context.constants, flattened, memo=context.memo, facts=context.facts)
    return flat(x), flat(out), inner
