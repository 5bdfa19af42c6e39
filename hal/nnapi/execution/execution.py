"""One execution of a prepared model: its constructor checks everything, ``run`` executes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from npusim.plan import bytes_of
from npusim.program import Program
from npusim.runtime import Priority as QueuePriority

from ..border import status_of
from ..buffers.tracker import BufferTracker
from ..memory.pools import PoolMappings
from ..operations.view import Shape
from ..plan import DeviceValue, Plan, Target, Value, on_host
from ..types import ErrorStatus, MeasureTiming, Model, OutputShape, Priority, Request
from ..validation import RequestRules
from .arguments import Places, checked_measure
from .backend import DeviceBackend
from .deadline import Deadline, Duration, TimePoint, deadline_of, loop_timeout_ps
from .duration import job_ps
from .engine import Engine
from .outcome import Outcome


class Executable:
    """The part of a prepared model that executions need: the driver's copy of the model, its plan, device and queue.

    Any number of executions may run concurrently.
    """

    def __init__(self, engine: Engine, model: Model, plan: Plan, priority: Priority) -> None:
        self.engine = engine
        self.model = model
        self.plan = plan
        self.queue = QueuePriority(int(priority))
        self.rules = RequestRules(model)
        self._pinned: list[list[Program]] = []

    @property
    def buffers(self) -> BufferTracker:
        """The driver buffers of its device."""
        return self.engine.buffers

    def run(
        self,
        request: Request,
        measure: MeasureTiming | bool | int,
        deadline: TimePoint,
        loop_timeout: Duration,
        mappings: PoolMappings | None = None,
    ) -> Outcome:
        """Execute in the caller's thread. Never raises."""
        try:
            execution = Execution(self, request, measure, deadline, loop_timeout, mappings)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a status
            return Outcome(status_of(error, "execution"))
        return execution.run()

    def check_request(self, request: Request, measure: MeasureTiming | bool | int, loop_timeout: Duration) -> None:
        """Raise the error that every execution of a request would have."""
        checked_measure(measure)
        loop_timeout_ps(loop_timeout)
        self.rules.check(request, token=self.buffers.check_token)

    # Residence on the device, for bursts

    def pin(self) -> None:
        """Keep the programs on the device until ``unpin`` has been called as often."""
        pinned: list[Program] = []
        try:
            for program in list(self.plan.programs()):
                self.engine.executor.keep(program)
                pinned.append(program)
        except BaseException:
            self._unpin(pinned)
            raise
        self._pinned.append(pinned)

    def unpin(self) -> None:
        """Undo one ``pin``. Takes no lock, because finalizers may call it anywhere."""
        self._unpin(self._pinned.pop())

    def _unpin(self, programs: Sequence[Program]) -> None:
        for program in programs:
            self.engine.executor.unpin(program)


class Execution:
    """One execution. The constructor raises StatusError or InvalidRequestError for an invalid request.

    ``mappings``: keeps pools mapped over several executions. Without it, each pool is mapped for this execution alone.
    """

    def __init__(
        self,
        model: Executable,
        request: Request,
        measure: MeasureTiming | bool | int,
        deadline: TimePoint,
        loop_timeout: Duration,
        mappings: PoolMappings | None = None,
        *,
        fenced: bool = False,
    ) -> None:
        engine = model.engine
        engine.check_available()
        self._engine = engine
        self._model = model
        self._main = model.model.main
        self._measure = checked_measure(measure)
        self.deadline = deadline_of(deadline, engine.clock)
        self._loop_timeout_ps = loop_timeout_ps(loop_timeout)
        self._fenced = fenced
        self._resolved = model.rules.check(request, fenced=fenced, token=engine.buffers.check_token)
        self._uses = engine.buffers.uses(model, self._resolved.request)
        mappings = PoolMappings() if mappings is None else mappings
        before = mappings.fresh  # the mappings may have been used before: this execution is charged only for its own
        self._places = Places(self._resolved, mappings)
        self._mapped = mappings.fresh - before
        self._ended = False
        # Last, because an invalid request is INVALID_ARGUMENT even after its deadline.
        if self.deadline is not None:
            self.deadline.check("execution")

    def run(self, deadline: Deadline | None = None) -> Outcome:
        """Execute. Never raises. ``deadline`` replaces that of the creation."""
        try:
            return self._run(deadline or self.deadline)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a status
            status = status_of(error, "execution")
            self._finish(None)
            # A closed device makes executions fail in many ways, but the client gets one status.
            return Outcome(ErrorStatus.DEVICE_UNAVAILABLE if self._engine.closed else status)

    def abandon(self) -> None:
        """Give up without running: outputs in driver buffers become uninitialised."""
        self._finish(None)

    def _run(self, deadline: Deadline | None) -> Outcome:
        executor, plan = self._engine.executor, self._model.plan
        if deadline is not None:
            deadline.check_fit(self._least_ps(), executor.backlog_ps(self._model.queue))
        for pool in self._places.pools:
            pool.check()  # the file may have been truncated since the launch
        plan.constants.check()  # weights are read when they are copied to the device
        # From here on outputs in driver buffers are uninitialised, and a failure leaves them so.
        self._uses.start()
        limited = partial(self._engine.limited, deadline, "execution")
        backend = DeviceBackend(executor, self._model.queue, deadline, self._mapped, limited)
        inputs = [self._input(index) for index in range(len(self._places.inputs))]
        targets = [self._target(index) for index in range(len(self._places.outputs))]
        try:
            values = plan.execute(backend, inputs, targets, self._loop_timeout_ps)
        finally:
            # Results are invalid if a file was truncated while it was read.
            plan.constants.confirm()
            for pool in self._places.read:
                pool.confirm()
        # Store all outputs before checking for one that is too small, so that the client learns the size of each.
        stored = [self._store(index, value) for index, value in enumerate(values)]
        if False in [output.isSufficient for output in stored]:
            self._finish(None)
            if self._fenced:  # a fenced client has no way to learn the size of the outputs
                return Outcome(ErrorStatus.GENERAL_FAILURE)
            return Outcome(ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, stored)
        self._finish([value.shape for value in values])
        times = (backend.device_ps, backend.driver_ps) if self._measure else (None, None)
        return Outcome(ErrorStatus.NONE, stored, *times)

    def _least_ps(self) -> int:
        """The minimum modelled duration: that of the first program, which is the only one in most models.

        0 if unknown, because no execution has had inputs of these shapes.
        """
        node = self._model.plan.first_node([self._input_shape(i) for i in range(len(self._places.inputs))])
        if node is None or node.program is None:
            return 0
        numbers = (*self._main.inputIndexes, *self._main.outputIndexes)
        places = dict(zip(numbers, (*self._places.inputs, *self._places.outputs), strict=True))
        ports = [port for port in (*node.inputs, *node.outputs) if port.number in places]
        moved = [port.nbytes for port in ports if places[port.number].pool is not None]
        return job_ps(self._engine.executor, node.program, moved, self._mapped)

    def _finish(self, shapes: list[Shape] | None) -> None:
        if not self._ended:
            self._ended = True  # an execution that fails late has already notified its buffers
            self._uses.finish(shapes)

    # Inputs

    def _input_shape(self, index: int) -> Shape | None:
        if self._places.inputs[index].omitted:
            return None
        use = self._uses.inputs.get(index)
        shape = use.shape if use is not None else None
        return tuple(shape or self._resolved.inputs[index] or ())

    def _input(self, index: int) -> Value | None:
        place = self._places.inputs[index]
        if place.omitted:
            return None
        storage = self._model.plan.vocabulary.storage_of(self._main.operands[self._main.inputIndexes[index]])
        if place.pool is None:
            use = self._uses.inputs[index]
            assert use.shape is not None
            return DeviceValue(use.buffer, tuple(use.shape), storage)
        return place.load(self._resolved.inputs[index] or (), storage)

    # Outputs

    def _target(self, index: int) -> Target:
        if self._places.outputs[index].pool is not None or self._places.outputs[index].omitted:
            return on_host
        use = self._uses.outputs[index]
        return lambda shape, dtype: use.target(shape, bytes_of(shape, dtype))

    def _store(self, index: int, value: Value) -> OutputShape:
        """Write an output to its pool. Returns its shape, and whether it fitted."""
        place = self._places.outputs[index]
        # An output without a pool is already in a driver buffer, or omitted; an empty output in a buffer is on the
        # host.
        stored = not isinstance(value, np.ndarray) or place.pool is None or place.store(value)
        return OutputShape(list(value.shape), stored)
