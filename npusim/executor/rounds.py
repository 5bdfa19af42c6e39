"""Rounds of jobs that come again and again, such as the iterations of a loop, without the way through rings and events.

How long a job takes does not depend on its data. So rounds that took the same time twice, with nobody else on the
device, take it as long as that stays so: all that is left to be done is to compute, and to let the time pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npusim.driver import LoadedProgram
from npusim.executor.dispatch import Dispatcher, bound_blocks
from npusim.executor.requests import Array, DeviceBuffer, JobDone, JobRequest
from npusim.sim.run import Job

Past = tuple[JobRequest, JobDone]
"""A job that has been done."""
Round = Sequence[Past]


@dataclass(frozen=True, slots=True)
class _Again:
    """A job that can be done without events. ``compute`` says whether it was no fault; ``verdicts``: what came back."""

    loaded: LoadedProgram
    regions: Sequence[tuple[int, int]]
    compute: Callable[[], bool]
    verdicts: Sequence[Array]

    def play(self) -> bool:
        """Compute; whether the round goes on."""
        return self.compute() and all(verdict.any() for verdict in self.verdicts)


def repeat(dispatcher: Dispatcher, rounds: Sequence[Round], most: int) -> int:
    """See :meth:`Executor.repeat`."""
    if dispatcher.busy or not alike(rounds):
        return 0
    jobs = [[job for request, _ in each if (job := _again(dispatcher, request))] for each in rounds]
    if any(len(ready) < len(each) for ready, each in zip(jobs, rounds, strict=True)):
        return 0
    count = 0
    while count < most and all(job.play() for job in jobs[count % len(rounds)]):
        count += 1
    for number, each in enumerate(rounds):
        times = len(range(number, count, len(rounds)))
        for _, done in each:
            dispatcher.counters.add(done.host, times)
            dispatcher.device.machine.clock.advance(times * done.total_ps)
    if count % len(rounds):
        _forget_tables(dispatcher, jobs)
    return count


def alike(rounds: Sequence[Round]) -> bool:
    """Whether rounds took the same times, and nobody disturbed them."""
    times = {tuple((done.run_ps, done.total_ps) for _, done in each) for each in rounds}
    return len(times) == 1 and not any(done.queued_ps or done.suspended_ps for each in rounds for _, done in each)


def _again(dispatcher: Dispatcher, request: JobRequest) -> _Again | None:
    """None for a job whose program has left the device, or whose course is not known."""
    program, machine = request.program, dispatcher.device.machine
    loaded = dispatcher.memory.resident(program)
    if loaded is None:
        return None
    bound = {region: block.address for region, block in bound_blocks(program, request).items()}
    regions = dispatcher.driver.regions(loaded, bound)
    compute = regions and machine.arithmetic(Job(loaded.code, len(program.code), regions, machine.clock.now))
    if not regions or not compute:
        return None
    for binding in program.inputs:
        given = request.inputs[binding.name]
        if not isinstance(given, DeviceBuffer):
            machine.memory.store(regions[binding.region][0], given.tobytes())
    back = [binding for binding in program.outputs if binding.name not in request.outputs]
    verdicts = [machine.memory.slice(regions[binding.region][0], binding.nbytes) for binding in back]
    return _Again(loaded, regions, compute, verdicts)


def _forget_tables(dispatcher: Dispatcher, jobs: Sequence[Sequence[_Again]]) -> None:
    """The device has been told other regions than those of the round that was the last: a next job tells it anew."""
    for turns in zip(*jobs, strict=True):
        if any(job.regions != turns[0].regions for job in turns):
            dispatcher.driver.forget_table(turns[0].loaded)
