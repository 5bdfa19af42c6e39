"""From a group to the tiles that compute it: one class for each family of operators."""

from __future__ import annotations

from npusim.compiler.groups import VIEWS, Group
from npusim.compiler.lower.base import Context, Lowering
from npusim.compiler.lower.conv import ConvLowering
from npusim.compiler.lower.element import Elementwise
from npusim.compiler.lower.matmul import MatMulLowering
from npusim.compiler.lower.movement import ConcatLowering, CopyLowering, GatherLowering, PadLowering, ScalarLowering
from npusim.compiler.lower.reduce import ReduceLowering
from npusim.compiler.lower.routine import RoutineLowering
from npusim.compiler.lower.rows import PoolLowering, ResampleLowering, RowLowering
from npusim.errors import CompileError

_LOWERINGS: dict[str, type[Lowering]] = {
    "conv": ConvLowering,
    "matmul": MatMulLowering,
    "pool": PoolLowering,
    "reduce": ReduceLowering,
    "resample": ResampleLowering,
    "concat": ConcatLowering,
    "pad": PadLowering,
    "gather": GatherLowering,
    "routine": RoutineLowering,
    **dict.fromkeys(("softmax", "normalize", "cumsum", "lrn", "arg_reduce"), RowLowering),
    **dict.fromkeys(("gather_elements", "scatter_elements", "topk"), ScalarLowering),
    **dict.fromkeys(VIEWS, CopyLowering),
}


def lower(context: Context, group: Group) -> Lowering:
    """The lowering of a group for the context's device."""
    if group.anchor is None:
        return Elementwise(context, group)
    try:
        cls = _LOWERINGS[group.anchor.kind]
    except KeyError:
        raise CompileError(f"{group.name}: there is no lowering for {group.anchor.kind!r}") from None
    return cls(context, group)


__all__ = ["Context", "Lowering", "lower"]
