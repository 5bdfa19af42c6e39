"""One execution of a prepared model: everything is checked when it is made, ``run`` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..border import status_of
from ..errors import StatusError
from ..memory import Memory
from ..memory.mapping import Mapping, PoolMappings
from ..operations.view import Array, Shape
from ..plan import Held, Target, Value
from ..plan.backend import bytes_of
from ..types import (
    NOT_MEASURED,
    ErrorStatus,
    MeasureTiming,
    MemoryPool,
    Operand,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from ..validation import validate_request
from .backend import DeviceBackend
from .deadline import Deadline, Duration, TimePoint, deadline_of, loop_timeout_ps
from .duration import job_ps

if TYPE_CHECKING:
    from ..driver.prepared import PreparedModel

PS_PER_US = 10**6
PS_PER_NS = 10**3


class Mappings(Protocol):
    """Mapped pools of requests, which may be kept over several executions; ``fresh`` counts those mapped anew."""

    fresh: int

    def get(self, key: int, memory: Memory) -> Mapping:
        """The bytes of a pool."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an execution ended.

    Times are in simulated picoseconds, None unless they were to be measured and all went well.
    """

    status: ErrorStatus
    outputShapes: list[OutputShape] = field(default_factory=list)
    device_ps: int | None = None
    driver_ps: int | None = None

    def timing(self) -> Timing:
        """The times in microseconds, as HIDL has them; a part of one counts as one."""
        if self.device_ps is None or self.driver_ps is None:
            return Timing(NOT_MEASURED, NOT_MEASURED)
        return Timing(-(-self.device_ps // PS_PER_US), -(-self.driver_ps // PS_PER_US))

    def times_ns(self) -> tuple[int, int]:
        """(time on device, time in driver) in nanoseconds, as AIDL has them; -1 if they were not measured."""
        if self.device_ps is None or self.driver_ps is None:
            return -1, -1
        return -(-self.device_ps // PS_PER_NS), -(-self.driver_ps // PS_PER_NS)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an argument lies: bytes of a mapped pool, or a buffer of the driver (``raw`` is None)."""

    raw: Mapping | None
    omitted: bool = False


class Execution:
    """One execution. Making it raises what is wrong with it: StatusError, InvalidRequestError.

    ``mappings``: keeps pools mapped over several executions; without it each pool is mapped for this one.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        request: Request,
        measure: MeasureTiming | bool | int,
        deadline: TimePoint,
        loop_timeout: Duration,
        mappings: Mappings | None = None,
        *,
        fenced: bool = False,
    ) -> None:
        device = prepared._device
        device._check_available()
        self._prepared = prepared
        self._measure = checked_measure(measure)
        self.deadline = deadline_of(deadline, device._clock)
        self._loop_timeout_ps = loop_timeout_ps(loop_timeout)
        self._fenced = fenced
        tracker = device._buffers
        self._shapes = validate_request(request, prepared._model, fenced=fenced, token=tracker.check_token)
        request = self._shapes.request
        self._uses = tracker.uses(prepared, request)
        mappings = PoolMappings() if mappings is None else mappings
        before = mappings.fresh
        self._inputs = [_place(argument, request.pools, mappings) for argument in request.inputs]
        self._outputs = [_place(argument, request.pools, mappings, written=True) for argument in request.outputs]
        self._mapped = mappings.fresh - before
        self._ended = False
        if self.deadline is not None:
            self.deadline.check("execution")

    def run(self, deadline: Deadline | None = None) -> Outcome:
        """Execute. Never raises. ``deadline`` replaces the one that the execution was made with."""
        try:
            return self._run(deadline or self.deadline)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a status
            status = status_of(error, "execution")
            self._finish(None)
            return Outcome(ErrorStatus.DEVICE_UNAVAILABLE if self._prepared._device._closed else status)

    def abandon(self) -> None:
        """The execution will not run: outputs in buffers of the driver become uninitialised."""
        self._finish(None)

    def _run(self, deadline: Deadline | None) -> Outcome:
        device, plan = self._prepared._device, self._prepared._plan
        if deadline is not None:
            needed = self._least_ps()
            deadline.check_fit(needed, device._executor.backlog_ps(self._prepared._queue))
        for place in (*self._inputs, *self._outputs):
            if place.raw is not None:
                place.raw.check()  # the file may have been cut since the launch
        plan.constants.check()  # weights are read when they go to the device
        self._uses.start()
        backend = DeviceBackend(device._executor, self._prepared._queue, deadline, self._mapped)
        inputs = [self._input(index) for index in range(len(self._inputs))]
        targets = [self._target(index) for index in range(len(self._outputs))]
        try:
            values = plan.execute(backend, inputs, targets, self._loop_timeout_ps)
        finally:
            self._confirm()
        stored = [self._store(index, value) for index, value in enumerate(values)]
        if not all(output.isSufficient for output in stored):
            self._finish(None)
            return Outcome(ErrorStatus.GENERAL_FAILURE) if self._fenced else Outcome(_TOO_SMALL, stored)
        self._finish([tuple(output.dimensions) for output in stored])
        times = (backend.device_ps, backend.driver_ps) if self._measure else (None, None)
        return Outcome(ErrorStatus.NONE, stored, *times)

    def _confirm(self) -> None:
        """Whatever came of it counts for nothing if a file was cut while it was read."""
        self._prepared._plan.constants.confirm()
        for place in self._inputs:
            if place.raw is not None:
                place.raw.confirm()

    def _least_ps(self) -> int:
        """What the execution takes at the least: its first program, the only one of most models. 0 if that is not
        known yet, because no execution has had inputs of these shapes."""
        executor, main = self._prepared._device._executor, self._prepared._model.main
        node = self._prepared._plan.first_node([self._input_shape(i) for i in range(len(self._inputs))])
        if node is None or node.program is None:
            return 0
        numbers = (*main.inputIndexes, *main.outputIndexes)
        places = dict(zip(numbers, (*self._inputs, *self._outputs), strict=True))
        ports = [port for port in (*node.inputs, *node.outputs) if port.operand in places]
        moved = [port.nbytes for port in ports if places[port.operand].raw is not None]
        return job_ps(executor, node.program, moved, self._mapped)

    def _finish(self, shapes: list[Shape] | None) -> None:
        if not self._ended:
            self._ended = True
            self._uses.finish(shapes)

    # Inputs

    def _input_shape(self, index: int) -> Shape | None:
        if self._inputs[index].omitted:
            return None
        use = self._uses.inputs.get(index)
        shape = use.shape if use is not None else None
        return tuple(shape or self._shapes.inputs[index] or ())

    def _input(self, index: int) -> Value | None:
        place = self._inputs[index]
        if place.omitted:
            return None
        storage = self._prepared._storage_of(self._operand(self._prepared._model.main.inputIndexes[index]))
        use = self._uses.inputs.get(index)
        if use is not None:
            assert use.shape is not None
            return Held(use.buffer, tuple(use.shape), storage)
        assert place.raw is not None
        shape = self._input_shape(index)
        raw: Array = np.asarray(place.raw)  # the device reads them when it is this job's turn
        if storage == np.bool_:
            truth: Array = raw != 0
            return truth.reshape(shape)
        return raw.view(storage).reshape(shape)

    def _operand(self, number: int) -> Operand:
        return self._prepared._model.main.operands[number]

    # Outputs

    def _target(self, index: int) -> Target:
        use = self._uses.outputs.get(index)
        if use is None:
            return lambda shape, dtype: None
        return lambda shape, dtype: use.target(shape, bytes_of(shape, dtype))

    def _store(self, index: int, value: Value) -> OutputShape:
        """Write an output to its pool; its shape, and whether it had room."""
        shape = tuple(int(dim) for dim in value.shape)
        place = self._outputs[index]
        if isinstance(value, Held) or place.omitted:
            return OutputShape(list(shape), True)
        if place.raw is None:  # in a buffer of the driver, and empty
            return OutputShape(list(shape), True)
        if value.nbytes > place.raw.nbytes:
            return OutputShape(list(shape), False)
        place.raw.store(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return OutputShape(list(shape), True)


_TOO_SMALL = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE


def checked_measure(measure: object) -> bool:
    """Whether to measure. Raises StatusError (INVALID_ARGUMENT) for what is no MeasureTiming."""
    if not isinstance(measure, int) or measure not in (MeasureTiming.NO, MeasureTiming.YES):
        raise StatusError(ErrorStatus.INVALID_ARGUMENT, f"measure must be a MeasureTiming: 0 or 1, got {measure!r}")
    return bool(measure)


def _place(
    argument: RequestArgument, pools: Sequence[MemoryPool | Memory | int], mappings: Mappings, *, written: bool = False
) -> Place:
    """Where an argument lies. Raises StatusError for a pool that cannot be mapped, or not be written."""
    if argument.hasNoValue:
        return Place(None, omitted=True)
    index = argument.location.poolIndex
    pool = pools[index]
    memory = pool.hidlMemory if isinstance(pool, MemoryPool) else pool
    if not isinstance(memory, Memory):
        return Place(None)
    mapping = mappings.get(index, memory)
    if written and not mapping.flags.writeable:
        raise StatusError(ErrorStatus.INVALID_ARGUMENT, f"pools[{index}] is read-only, and an output lies in it")
    return Place(mapping.part(argument.location.offset, argument.location.length))
