"""Supported operations of a model, and the reasons of unsupported ones."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from npusim.runtime import Executor

from ..operations.signature import operation_name
from ..operations.versions import NEWEST, Version
from ..plan import Support
from ..types import Model
from .preparation import compiler, constants_of, own_model, scope_of, vocabulary_of

_log = logging.getLogger("hal.nnapi")


@dataclass(frozen=True, slots=True)
class OperationSupport:
    """One operation of the main subgraph: its index, its name, and the reason if it is not supported."""

    index: int
    operation: str
    supported: bool
    reason: str = ""


def explain(
    executor: Executor, model: Model, version: Version = NEWEST, *, strict: bool = False
) -> list[OperationSupport]:
    """The support of each operation of the main subgraph, in order. Unsupported ones are logged, one line each.

    An operation whose constants are in unreadable memory is not supported. ``strict``: relaxed models are computed in
    FLOAT32. Raises InvalidModelError, and FileCutError for a file that is truncated during the call.
    """
    own = own_model(model, version)
    unreadable: dict[int, str] = {}
    constants, vocabulary = constants_of(own, unreadable), vocabulary_of(own)
    compile_here = compiler(executor.programs, scope_of(own), constants.confirm, needed=False)
    half = own.relaxComputationFloat32toFloat16 and not strict
    support = Support(own, constants, vocabulary, executor.config, compile_here, unreadable, half=half)
    reasons = support.unsupported()
    constants.confirm()
    found = [
        OperationSupport(number, operation_name(operation.type), number not in reasons, reasons.get(number, ""))
        for number, operation in enumerate(own.main.operations)
    ]
    for entry in found:
        if not entry.supported:
            _log.warning(
                "%s: operation %d (%s) is not supported: %s",
                executor.config.name,
                entry.index,
                entry.operation,
                entry.reason,
            )
    return found
