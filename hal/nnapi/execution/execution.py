"""One execution of a prepared model: everything is checked when it is made, ``run`` does the work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.program import Program
from npusim.runtime import Priority as QueuePriority

from ..border import status_of
from ..buffers.tracker import BufferTracker
from ..memory.pools import PoolMappings
from ..operations.view import Array, Shape
from ..plan import Held, Plan, Target, Value
from ..plan.backend import bytes_of
from ..types import ErrorStatus, MeasureTiming, Model, OutputShape, Priority, Request
from ..validation import validate_request
from .arguments import checked_measure, place_of
from .backend import DeviceBackend
from .deadline import Deadline, Duration, TimePoint, deadline_of, loop_timeout_ps
from .duration import job_ps, operand_bytes
from .engine import Engine
from .outcome import Outcome


class Executable:
    """What a prepared model is to its executions: the driver's own copy of the model, its plan, where it runs and in
    which queue. Any number of executions may run at once."""

    def __init__(self, engine: Engine, model: Model, plan: Plan, priority: Priority) -> None:
        self.engine = engine
        self.model = model
        self.plan = plan
        self.queue = QueuePriority(int(priority))
        self._pinned: list[list[Program]] = []

    @property
    def buffers(self) -> BufferTracker:
        """The buffers that it may use: those of its device."""
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
        """Raise what executions of a request would fail with from the start."""
        checked_measure(measure)
        loop_timeout_ps(loop_timeout)
        validate_request(request, self.model, token=self.buffers.check_token)

    # Residence on the device, for bursts

    def pin(self) -> None:
        """Keep the programs on the device until as many ``unpin`` have followed."""
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
        """Undo one ``pin``. Takes no lock: finalizers may call it anywhere."""
        self._unpin(self._pinned.pop())

    def _unpin(self, programs: Sequence[Program]) -> None:
        for program in programs:
            self.engine.executor.unpin(program)


class Execution:
    """One execution. Making it raises what is wrong with it: StatusError, InvalidRequestError.

    ``mappings``: keeps pools mapped over several executions; without it each pool is mapped for this one.
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
        self._shapes = validate_request(request, model.model, fenced=fenced, token=engine.buffers.check_token)
        request = self._shapes.request
        self._uses = engine.buffers.uses(model, request)
        mappings = PoolMappings() if mappings is None else mappings
        before = mappings.fresh  # mappings may have been used before: this execution pays for its own alone
        self._inputs = [place_of(argument, request.pools, mappings) for argument in request.inputs]
        self._outputs = [place_of(argument, request.pools, mappings, written=True) for argument in request.outputs]
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
            return Outcome(ErrorStatus.DEVICE_UNAVAILABLE if self._engine.closed else status)

    def abandon(self) -> None:
        """The execution will not run: outputs in buffers of the driver become uninitialised."""
        self._finish(None)

    def _run(self, deadline: Deadline | None) -> Outcome:
        executor, plan = self._engine.executor, self._model.plan
        if deadline is not None:
            needed = self._least_ps()
            deadline.check_fit(needed, executor.backlog_ps(self._model.queue))
        for place in (*self._inputs, *self._outputs):
            if place.raw is not None:
                place.raw.check()  # the file may have been cut since the launch
        plan.constants.check()  # weights are read when they go to the device
        self._uses.start()
        backend = DeviceBackend(executor, self._model.queue, deadline, self._mapped)
        inputs = [self._input(index) for index in range(len(self._inputs))]
        targets = [self._target(index) for index in range(len(self._outputs))]
        try:
            values = plan.execute(backend, inputs, targets, self._loop_timeout_ps)
        finally:
            self._confirm()
        stored = [self._store(index, value) for index, value in enumerate(values)]
        if not all(output.isSufficient for output in stored):
            self._finish(None)
            if self._fenced:  # whose client has no way to learn how much room the outputs need
                return Outcome(ErrorStatus.GENERAL_FAILURE)
            return Outcome(ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, stored)
        self._finish([tuple(output.dimensions) for output in stored])
        times = (backend.device_ps, backend.driver_ps) if self._measure else (None, None)
        return Outcome(ErrorStatus.NONE, stored, *times)

    def _confirm(self) -> None:
        """Whatever came of it counts for nothing if a file was cut while it was read."""
        self._model.plan.constants.confirm()
        for place in self._inputs:
            if place.raw is not None:
                place.raw.confirm()

    def _least_ps(self) -> int:
        """What the execution takes at the least: its first program, the only one of most models. 0 if that is not
        known yet, because no execution has had inputs of these shapes."""
        program = self._model.plan.first_program([self._input_shape(i) for i in range(len(self._inputs))])
        if program is None:
            return 0
        numbers = (*self._main.inputIndexes, *self._main.outputIndexes)
        places = dict(zip(numbers, (*self._inputs, *self._outputs), strict=True))
        known = [(number, nbytes) for number, nbytes in operand_bytes(program) if number in places]
        moved = [nbytes for number, nbytes in known if places[number].raw is not None]
        return job_ps(self._engine.executor, program, moved, self._mapped)

    def _finish(self, shapes: list[Shape] | None) -> None:
        if not self._ended:
            self._ended = True  # an execution that fails late has told its buffers already
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
        storage = self._model.plan.vocabulary.storage_of(self._main.operands[self._main.inputIndexes[index]])
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
