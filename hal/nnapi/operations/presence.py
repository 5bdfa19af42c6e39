"""Conditions on optional inputs that must be given together, checked for models as far as known, and for executions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import OperandLifeTime
from .definition import Rule, stated
from .lowering import InvalidOperationError, Lowering
from .view import OpView

Has = Callable[[int], bool | None]
"""Whether an input has a value; None while that is unknown."""
Condition = Callable[[Has], bool]
"""True unless the known inputs violate it; the docstring is the message."""


def all_or_none(what: str, *indexes: int) -> Condition:
    """The condition that all or none of these inputs are given."""
    message = f"{what}: {_listed(indexes)} must all have a value or all be omitted"
    return stated(message, lambda has: not {has(index) for index in indexes} >= {True, False})


def needs(what: str, index: int, *others: int) -> Condition:
    """The condition that input ``index`` is given only with all the others."""
    message = f"{what}: with input {index}, {_listed(others)} must have a value"
    return stated(message, lambda has: has(index) is not True or all(has(other) is not False for other in others))


def if_given(index: int, condition: Condition) -> Condition:
    """The condition, checked only if input ``index`` is known to have a value."""
    message = f"{condition.__doc__}, if input {index} has one"
    return stated(message, lambda has: has(index) is not True or condition(has))


def presence_rules(conditions: Sequence[Condition]) -> tuple[Rule, ...]:
    """The conditions as rules of a model: its inputs are not known to be given before the execution."""
    return tuple(_rule(condition) for condition in conditions)


def check_presence(op: Lowering, conditions: Sequence[Condition]) -> None:
    """Raise InvalidOperationError unless the operands of an execution satisfy the conditions."""
    for condition in conditions:
        if not condition(lambda index: not op.omitted(index)):
            raise InvalidOperationError((condition.__doc__ or "").strip())


def _rule(condition: Condition) -> Rule:
    def rule(view: OpView) -> bool:
        def has(index: int) -> bool | None:
            if view.omitted(index):
                return False
            return None if view.inputs[index].lifetime == OperandLifeTime.SUBGRAPH_INPUT else True

        return condition(has)

    return stated(condition.__doc__ or "", rule)


def _listed(indexes: Sequence[int]) -> str:
    return f"{'input' if len(indexes) == 1 else 'inputs'} {', '.join(map(str, indexes))}"
