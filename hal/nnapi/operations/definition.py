"""Definitions of operations: signatures, rules, and lowering to graph operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ..types import OperationType
from .signature import Form, type_name
from .versions import Version, operation_version
from .view import OpView

if TYPE_CHECKING:
    from .lowering import Lowering

Rule = Callable[[OpView], bool]
"""True when the operation keeps the rule; the docstring is the client's message and the manual's line. Unknown
properties (dimension 0, values that are no constants) satisfy every rule."""
Later = tuple[Version, Rule]
"""A feature that a later version added to an existing operation with existing operand types: the rule is true of an
operation that uses it; its docstring names the feature."""
Matcher = Callable[[OpView], bool]
"""A signature that is no finite set (any number of inputs); the docstring describes it."""

T = TypeVar("T", bound=Callable[..., bool])


def stated(message: str, rule: T) -> T:
    """The rule with its message, if the docstring does not contain it."""
    rule.__doc__ = message
    return rule


@dataclass(frozen=True, slots=True)
class Definition:
    """One operation.

    ``signatures``: the legal types of inputs and outputs, as a set, or as a function if the set is not finite.
    ``optional``: inputs that may be omitted (NO_VALUE) although they are listed. ``rules`` apply to every model.
    ``lower`` adds operators to a Graph; all shapes are known. The signatures are those of the newest version;
    ``later``: features that older versions with the same operation and types lack.
    """

    type: OperationType | int
    signatures: frozenset[Form] | Matcher
    lower: Callable[[Lowering], None]
    rules: tuple[Rule, ...] = ()
    optional: frozenset[int] = field(default_factory=frozenset)
    later: tuple[Later, ...] = ()

    def too_new(self, view: OpView, version: Version) -> str | None:
        """The feature of a valid operation that a version of the interface lacks, or None."""
        since = operation_version(view.operation.type)
        if since is not None and since > version:
            return f"came with version {since} of the interface, this model comes by {version}"
        for brought, uses in self.later:
            if brought > version and uses(view):
                return f"{uses.__doc__} came with version {brought} of the interface, this model comes by {version}"
        return None

    def problem(self, view: OpView) -> str | None:
        """The first violated rule of an operation, or None."""
        if isinstance(self.signatures, frozenset):
            kinds = [operand.type for operand in view.inputs], [operand.type for operand in view.outputs]
            wrong = self.types_problem(*kinds)
            if wrong:
                return wrong
        elif not self.signatures(view):
            return (self.signatures.__doc__ or "the operand types do not fit").strip()
        # After the types, because a wrong number of inputs is the clearer message.
        for index, operand in enumerate(view.inputs):
            if operand.lifetime == _NO_VALUE and index not in self.optional:
                return f"input {index} must have a value"
        for rule in self.rules:
            if not rule(view):
                return (rule.__doc__ or rule.__name__).strip()
        return None

    def types_problem(self, input_types: Sequence[int], output_types: Sequence[int]) -> str | None:
        """The problem with the types of an operation, or None; also None if its signatures are not a finite set."""
        inputs, outputs = tuple(input_types), tuple(output_types)
        if not isinstance(self.signatures, frozenset) or (inputs, outputs) in self.signatures:
            return None
        counts = sorted({len(form[0]) for form in self.signatures})
        if len(inputs) not in counts:
            return f"takes {', '.join(map(str, counts))} inputs, got {len(inputs)}"
        results = sorted({len(form[1]) for form in self.signatures})
        if len(outputs) not in results:
            return f"has {', '.join(map(str, results))} outputs, got {len(outputs)}"
        got = ", ".join(map(type_name, inputs)) + " -> " + ", ".join(map(type_name, outputs))
        same_count = [form[0] for form in self.signatures if len(form[0]) == len(inputs)]
        for place in range(len(inputs)):
            if not any(types[: place + 1] == inputs[: place + 1] for types in same_count):
                allowed = {types[place] for types in same_count if types[:place] == inputs[:place]}
                names = ", ".join(map(type_name, sorted(allowed)))
                return f"input {place} must be {names}, got {type_name(inputs[place])} (in {got})"
        return f"no such combination of types: {got}"


_NO_VALUE = 5  # OperandLifeTime.NO_VALUE, as it is compared once for each operand of each model

REGISTRY: dict[int, Definition] = {}


def define(
    kind: OperationType,
    signatures: frozenset[Form] | Matcher,
    lower: Callable[[Lowering], None],
    *rules: Rule,
    optional: Iterable[int] = (),
    later: Iterable[Later] = (),
) -> Definition:
    """Add an operation to the registry. Each can be defined only once."""
    if kind in REGISTRY:
        raise ValueError(f"{kind.name} is already defined")
    definition = Definition(kind, signatures, lower, rules, frozenset(optional), tuple(later))
    REGISTRY[kind] = definition
    return definition
