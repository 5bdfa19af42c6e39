"""Preparing a model: checked at the launch, compiled by another thread, or taken from the compilation cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from npusim.errors import UnsupportedError
from npusim.graph import Graph
from npusim.polling import poll
from npusim.program import Program
from npusim.runtime import ProgramStore

from .. import extensions
from ..cache import files as cache
from ..errors import StatusError
from ..execution.deadline import Deadline
from ..execution.engine import Engine
from ..memory.mapping import Mapping
from ..operations.constants import Constants
from ..operations.signature import operation_name
from ..operations.versions import Version
from ..plan import Plan, Vocabulary
from ..types import ErrorStatus, ExecutionPreference, Model, Priority
from ..validation import validate_model, validate_preference, validate_priority
from .prepared import PreparedModel

Handles = Sequence[Sequence[int]]


def own_model(model: Model, version: Version) -> Model:
    """A checked copy of a client's model, which shares only the memory of its pools. ``version``: of the interface that
    was used.

    Raises InvalidModelError.
    """
    checked = validate_model(model, version)
    return replace(checked, operandValues=bytes(checked.operandValues))


def constants_of(model: Model, unreadable: dict[int, str] | None = None) -> Constants:
    """The constants of a checked model with mapped pools.

    A pool that cannot be mapped is added to ``unreadable`` with the reason. Without that argument, and for a pool that
    contradicts itself, raises StatusError.
    """
    mapped: list[Mapping | None] = []
    for number, pool in enumerate(model.pools):
        try:
            mapped.append(pool.map(writable=False))
        except StatusError as error:
            if unreadable is None or error.status is ErrorStatus.INVALID_ARGUMENT:
                raise
            unreadable[number] = error.message
            mapped.append(None)
    return Constants(model, mapped, extensions.storage_of(model))


def vocabulary_of(model: Model) -> Vocabulary:
    """The definitions of the types of a checked model."""
    return Vocabulary(extensions.definitions_of(model), extensions.storage_of(model))


def scope_of(model: Model) -> str:
    """A key that distinguishes the memory of a model's pools from other models'; empty if it has no pools."""
    return "".join(f"|{pool.identity}" for pool in model.pools)


def compiler(
    store: ProgramStore, scope: str = "", confirm: Callable[[], object] = lambda: None, *, needed: bool = True
) -> Callable[[Graph], Program]:
    """A function that compiles the graphs of a model with constants in memory ``scope``; see ProgramStore.compile."""
    return lambda graph: store.compile(graph.fingerprint() + scope, lambda: graph, confirm, needed=needed)


class Preparation:
    """One preparation. Its methods check everything, raise StatusError or InvalidModelError, and return the work
    to do."""

    def __init__(
        self, engine: Engine, state_dir: Path | None, priority: Priority | int, deadline: Deadline | None
    ) -> None:
        self._engine = engine
        self._programs = engine.executor.programs
        self._config = engine.executor.config
        self._state_dir = state_dir
        self._priority = validate_priority(priority)
        self._deadline = deadline

    def from_model(
        self,
        model: Model,
        version: Version,
        preference: ExecutionPreference | int,
        model_cache: Handles,
        data_cache: Handles,
        token: bytes,
    ) -> Callable[[], PreparedModel]:
        """Return the work that compiles a model, and stores it in the cache files if there are usable ones."""
        own = own_model(
            model, version
        )  # copied now, because the client may change its model as soon as the launch returns
        validate_preference(preference)
        self._check_deadline()
        constants, vocabulary = constants_of(own), vocabulary_of(own)
        files = cache.open_for_saving(model_cache, data_cache, token)

        def work() -> PreparedModel:
            with files:
                with self._limited():
                    poll()  # it may have waited for a thread
                    refuse_unknown(own, vocabulary)
                    compile_here = compiler(self._programs, scope_of(own), constants.confirm)
                    plan = Plan(own, constants, vocabulary, compile_here, self._drop, time_ps=self._timer(own))
                    try:
                        plan.prepare()
                        constants.confirm()
                        poll()
                    except BaseException:
                        self._programs.release(plan.programs())
                        raise
                prepared = self._prepared(own, plan)
                files.save(self._config, self._state_dir, own, constants, plan)
                return prepared

        return work

    def from_cache(self, model_cache: Handles, data_cache: Handles, token: bytes) -> Callable[[], PreparedModel]:
        """Return the work that creates a model from the cache files, whose security-sensitive part has been checked."""
        kept = cache.open_kept(self._config, self._state_dir, model_cache, data_cache, token)
        self._check_deadline()

        def work() -> PreparedModel:
            with kept, self._limited():
                poll()
                model, constants, records = kept.read(strict=self._engine.time_ps is None)
                poll()
            compile_here, vocabulary = compiler(self._programs), vocabulary_of(model)
            plan = Plan(model, constants, vocabulary, compile_here, self._drop, time_ps=self._timer(model))
            plan.load(records)
            self._programs.acquire(plan.programs())
            return self._prepared(model, plan)

        return work

    def _timer(self, model: Model) -> Callable[[Program], int] | None:
        """The time of a program, with which a relaxed model is compiled for FLOAT16, too; None for any other."""
        return self._engine.time_ps if model.relaxComputationFloat32toFloat16 else None

    def _limited(self) -> AbstractContextManager[None]:
        return self._engine.limited(self._deadline, "preparation")

    def _prepared(self, model: Model, plan: Plan) -> PreparedModel:
        """The prepared model. Its programs are released when it is collected."""
        prepared = PreparedModel(self._engine, model, plan, self._priority)
        # At process exit this memory need not be freed, and other parts may no longer exist.
        weakref.finalize(prepared, _release, self._programs, plan).atexit = False
        return prepared

    def _drop(self, program: Program) -> None:
        self._programs.release([program])

    def _check_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.check("preparation")


def refuse_unknown(model: Model, vocabulary: Vocabulary) -> None:
    """Raise UnsupportedError for operations that this driver does not know: OEM operations, and those of foreign
    extensions."""
    unknown = [
        (f"{number}", operation_name(operation.type), "is not an operation that this driver knows")
        for subgraph in (model.main, *model.referenced)
        for number, operation in enumerate(subgraph.operations)
        if operation.type not in vocabulary.definitions
    ]
    if unknown:
        raise UnsupportedError(unknown)


def _release(programs: ProgramStore, plan: Plan) -> None:
    programs.release(plan.programs())  # the programs at that time: executions compile and drop further ones
