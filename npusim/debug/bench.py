"""A device with a driver whose clock is controlled by a test: jobs arrive at given times, and nothing blocks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.debug.debugger import Debugger
from npusim.debug.stops import Stop
from npusim.device.checkpoint import Checkpoint
from npusim.device.npu import NpuDevice
from npusim.device.stepping import HOUR_PS
from npusim.driver import Driver, DriverJob, LoadedProgram, Priority
from npusim.driver.state import driver_state, resume_driver
from npusim.dtypes import from_storage, to_storage
from npusim.errors import CheckpointError, NpusimError, UsageError, shown
from npusim.hw.config import Config, load_config
from npusim.program import Program
from npusim.timeline import Timeline
from npusim.units import Dimension, parse
from npusim.untrusted import FileKind

REQUESTS = FileKind("requests of a bench", 1 << 24)


@dataclass(frozen=True, slots=True, eq=False)
class JobRequest:
    """One run of a program. ``at_ps``: start of its submission in simulated time since power-on; None: now. ``inputs``:
    an array for each input; not needed with ``timing_only``."""

    program: Program
    at_ps: int | None = None
    inputs: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    priority: Priority = Priority.MEDIUM
    timing_only: bool = False


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A submitted request. ``arrived_ps``: time of submission. ``timeline`` and ``outputs``, or ``error``, are set once
    it has ended; there is no timeline if it ended before the checkpoint of this bench."""

    request: JobRequest
    at_ps: int
    arrived_ps: int | None = None
    job: DriverJob | None = None
    timeline: Timeline | None = None
    outputs: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    error: NpusimError | None = None

    @property
    def ended(self) -> bool:
        """Whether its outputs or its error are set."""
        return self.job is not None and self.job.loaded is None


class Bench:
    """``device``, its ``driver``, and a ``debugger``. ``preemption``: whether jobs of a higher priority preempt others.
    ``history``: whether the debugger supports reverse execution."""

    def __init__(
        self, config: Config | str | os.PathLike[str], *, preemption: bool = True, history: bool = True
    ) -> None:
        self.device = NpuDevice(load_config(config))
        self.driver = Driver(self.device.bus)
        if preemption:
            self.driver.enable_preemption()
        self.debugger = Debugger(self.device, history=history)
        self.arrivals: list[PendingRequest] = []
        """All requests in the order of creation."""
        self._timelines: dict[int, Timeline] = {}
        self.device.listener = self._timelines.__setitem__
        self._loaded: dict[Program, LoadedProgram] = {}

    def checkpoint(self) -> Checkpoint:
        """The state of device and driver, without requests that have not arrived. Raises CheckpointError."""
        self._collect()
        under_way = [each.job for each in self.arrivals if each.job is not None and each.job.loaded is not None]
        device = self.device.checkpoint()
        software = driver_state(self.driver, list(self._loaded.values()), under_way)
        return Checkpoint({**device.state, "software": software}, device.pages)

    @classmethod
    def resumed(cls, checkpoint: Checkpoint, *programs: Program, history: bool = True) -> Bench:
        """A bench restored from a checkpoint, possibly of another process, and the requests of its jobs.

        ``programs``: at least those that were loaded. Raises CheckpointError.
        """
        if "software" not in checkpoint.state:
            raise CheckpointError("the checkpoint has a device, but no driver")
        # A new driver resets and configures its device, so the checkpoint is restored afterwards.
        bench = cls(checkpoint.config(), preemption=False, history=history)
        loaded, jobs = resume_driver(bench.driver, checkpoint.state["software"], programs)
        bench.device.restore(checkpoint)
        for each in loaded:
            bench._loaded[each.program] = each
            bench.debugger.programs.append(each.program)
        for job in jobs:
            request = JobRequest(job.program, None, {}, Priority(job.priority), job.timing_only)
            bench.arrivals.append(PendingRequest(request, checkpoint.now_ps, checkpoint.now_ps, job))
        return bench

    def load(self, program: Program) -> LoadedProgram:
        """Load a program, unless it is loaded."""
        if program not in self._loaded:
            self._loaded[program] = self.driver.load(program)
            self.debugger.programs.append(program)
        return self._loaded[program]

    def submit(self, request: JobRequest) -> PendingRequest:
        """Schedule a job for its time, or submit it now, without waiting. Raises UsageError for a time in the past, and
        errors of the driver."""
        now = self.device.now_ps
        at = now if request.at_ps is None else request.at_ps
        if at < now:
            raise UsageError(f"at_ps must be >= {now}, which is now, got {at}")
        self.load(request.program)
        arrival = PendingRequest(request, max(at, self.device.now_ps) if request.at_ps is None else at)
        self.arrivals.append(arrival)
        if request.at_ps is None:
            self._arrive(arrival)
        return arrival

    def _arrive(self, arrival: PendingRequest) -> None:
        request = arrival.request
        inputs = {name: to_storage(np.asarray(array)) for name, array in request.inputs.items()}
        arrival.arrived_ps = self.device.now_ps
        arrival.job = self.driver.submit(
            self._loaded[request.program], inputs, priority=request.priority, timing_only=request.timing_only
        )

    def run_until(self, time_ps: int | None = None) -> Stop:
        """Advance to a breakpoint, the end of a job, or a time in ps; None: as long as events are pending. Jobs arrive
        meanwhile. The driver submits and finishes jobs, which takes host time: the clock may end after ``time_ps``.

        Raises UsageError for a time in the past.
        """
        if time_ps is not None and time_ps < self.device.now_ps:
            raise UsageError(f"time_ps must be >= {self.device.now_ps}, which is now, got {time_ps}")
        while True:
            self._collect()
            waiting = [each for each in self.arrivals if each.arrived_ps is None]
            first = min(waiting, key=lambda each: each.at_ps, default=None)
            if first is not None and first.at_ps <= self.device.now_ps:
                self._arrive(first)  # late if software was busy
                continue
            if first is None or (time_ps is not None and time_ps < first.at_ps):
                stop = self.debugger.run_until(time_ps if time_ps is None else max(time_ps, self.device.now_ps))
            else:
                stop = self.debugger.run_until(first.at_ps)
                if stop.kind == "time":
                    continue
            return stop

    def finish(self) -> list[PendingRequest]:
        """Run until all requests have ended, ignoring breakpoints; returns all requests."""
        limit = self.device.now_ps + HOUR_PS
        while not all(each.ended for each in self.arrivals) and self.device.now_ps < limit:
            if self.run_until().text == "no events are pending":
                self._collect()
                break
        return self.arrivals

    def _collect(self) -> None:
        """Finish ended jobs if there was an interrupt."""
        under_way = [each for each in self.arrivals if each.job is not None and not each.ended]
        if not under_way or not self.device.messages:
            return
        self.driver.poll(0)
        for arrival in under_way:
            job = arrival.job
            if job is not None and job.ended:
                arrival.timeline = self._timelines.pop(job.seqno, None)
                try:
                    self.driver.finish(job)
                except NpusimError as error:
                    arrival.error = error
                kinds = {binding.name: binding.dtype for binding in arrival.request.program.outputs}
                arrival.outputs = {name: from_storage(array, kinds[name]) for name, array in job.outputs.items()}

    def close(self) -> None:
        """Power the device off."""
        self.device.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_trace(path: str | os.PathLike[str], programs: Mapping[str, Program], origin_ps: int = 0) -> list[JobRequest]:
    """Requests from a file with one JSON object per line: ``at`` such as ``"2.5 ms"`` or a number of picoseconds
    relative to ``origin_ps``, ``program`` by its key here, and ``priority`` (low, medium, high). They are timing-only.
    Raises UsageError."""
    requests = []
    for number, line in enumerate(REQUESTS.text(path).splitlines(), 1):
        if not line.strip():
            continue
        row = REQUESTS.parse_json(line.encode(), f"{path}:{number}")
        try:
            requests.append(_request(row, programs, origin_ps))
        except UsageError as error:
            raise UsageError(f"{path}:{number}: {error}") from None
    return requests


def _request(row: Any, programs: Mapping[str, Program], origin_ps: int) -> JobRequest:
    if not isinstance(row, dict) or not {"at", "program"} <= row.keys() <= {"at", "program", "priority"}:
        raise UsageError(f"must be an object with at, program and optionally priority, got {shown(row)}")
    at, name, priority = row["at"], row["program"], row.get("priority", "medium")
    time = parse(at, Dimension.TIME) if isinstance(at, str) else at
    if type(time) is not int or time < 0:
        raise UsageError(f"at must be a time such as '2.5 ms' or whole picoseconds >= 0, got {shown(at)}")
    if not isinstance(name, str) or name not in programs:
        raise UsageError(f"program must be one of {', '.join(programs)}, got {shown(name)}")
    if not isinstance(priority, str) or priority.upper() not in Priority.__members__:
        raise UsageError(f"priority must be low, medium or high, got {shown(priority)}")
    return JobRequest(programs[name], origin_ps + time, priority=Priority[priority.upper()], timing_only=True)
