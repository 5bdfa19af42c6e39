"""The rules of a model, in the order of their dependencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidModelError
from ..extensions import storage_of
from ..operations.constants import Constants
from ..operations.signature import operation_name
from ..operations.versions import NEWEST, Version
from ..operations.view import OpView
from ..types import Model, Subgraph
from . import control, extensions, operands, pools, structure, subgraph
from .context import Context, context_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def validate_model(model: Model, version: Version = NEWEST) -> Model:
    """Check a model against every rule of the interface, and for features newer than the client's ``version``.

    Returns the driver's own copy of the model, which the client cannot change: fields are plain values, lists are
    tuples. Constants are not copied: ``operandValues`` is the client's, as a read-only view if necessary, and ``pools``
    are the same objects. Only the bytes of constants that a rule needs are read. An operation that this driver does not
    have is valid if the interface or an extension named by the model may have it.

    Raises InvalidModelError, and FileCutError for a pool that is truncated while its constants are read.
    """
    # The copy comes first: later changes by the client do not affect the checked model.
    copy = structure.copy_model(model)
    pools.check_pools(copy)
    extensions.check_names(copy.extensionNameToPrefix)
    context = context_of(copy)
    for name, part in _subgraphs(copy):
        _check_subgraph(name, part, context)
    control.check_references(copy)
    mapped = pools.MappedOnDemand(copy.pools)
    constants = Constants(copy, mapped, storage_of(copy))
    try:
        for name, part in _subgraphs(copy):
            _check_operations(name, part, copy, context, constants, version)
    finally:
        mapped.confirm()
    return copy


def _subgraphs(model: Model) -> Iterator[tuple[str, Subgraph]]:
    yield "main", model.main
    for number, each in enumerate(model.referenced):
        yield f"referenced subgraph {number}", each


def _check_subgraph(name: str, part: Subgraph, context: Context) -> None:
    _check(subgraph.has_operands, name, part)
    _check(subgraph.has_operations, name, part)
    for number, operand in enumerate(part.operands):
        problem = operands.operand_problem(operand, context)
        if problem:
            raise InvalidModelError(f"{name}: operand {number}", problem)
    for number, operation in enumerate(part.operations):
        if not context.knows_operation(operation.type):
            raise InvalidModelError(
                f"{name}: operation {number}",
                f"type must be one of the interface, or of an extension in extensionNameToPrefix, "
                f"got {operation.type:#x}",
            )
    for rule in subgraph.RULES:
        _check(rule, name, part)


def _check(rule: subgraph.Rule, name: str, part: Subgraph) -> None:
    problem = rule(part)
    if problem:
        raise InvalidModelError(name, problem)


def _check_operations(
    name: str, part: Subgraph, model: Model, context: Context, constants: Constants, version: Version
) -> None:
    for number, operation in enumerate(part.operations):
        definition = context.operation(operation.type)
        if definition is None:
            continue
        view = OpView(part, operation, constants, number)
        problem = definition.problem(view) or definition.too_new(view, version) or control.problem(view, model)
        if problem:
            raise InvalidModelError(f"{name}: operation {number} ({operation_name(operation.type)})", problem)
