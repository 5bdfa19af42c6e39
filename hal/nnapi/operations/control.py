"""IF and WHILE: the host selects the next program, see ``hal.nnapi.plan``.

``hal.nnapi.validation.control`` checks the referenced subgraphs, because that needs the whole model.
"""

from __future__ import annotations

from npusim.errors import UsageError

from ..types import OperandType, OperationType
from .definition import define
from .lowering import Lowering
from .view import OpView


def _if_signature(view: OpView) -> bool:
    """takes a TENSOR_BOOL8, two SUBGRAPHs and what these take, and gives one output or more"""
    kinds = [operand.type for operand in view.inputs[:3]]
    return kinds == [OperandType.TENSOR_BOOL8, OperandType.SUBGRAPH, OperandType.SUBGRAPH] and bool(view.outputs)


def _while_signature(view: OpView) -> bool:
    """takes two SUBGRAPHs and one operand or more that these take, and gives one output or more"""
    kinds = [operand.type for operand in view.inputs[:2]]
    return kinds == [OperandType.SUBGRAPH] * 2 and len(view.inputs) >= 3 and bool(view.outputs)


def _condition(view: OpView) -> bool:
    """input 0 must have one element"""
    dims = view.dims(0)
    return dims is None or all(dim in (0, 1) for dim in dims)


def _not_lowered(op: Lowering) -> None:
    raise UsageError(f"{OperationType(op.view.operation.type).name} is run by a plan: it becomes no part of a graph")


define(OperationType.IF, _if_signature, _not_lowered, _condition, optional=(0,))
define(OperationType.WHILE, _while_signature, _not_lowered)
