"""Requests for several models on one device: through its rings, or as events with the times of programs."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from npusim.driver import Priority
from npusim.explore.serving.served import Served
from npusim.explore.serving.times import Timed
from npusim.hw.config import Config
from npusim.runtime.dispatcher import Dispatcher
from npusim.runtime.job import Job
from npusim.runtime.request import Request


@dataclass(frozen=True, slots=True, order=True)
class Ask:
    """A request for a model at a time. Of simultaneous requests, the one with the lower number is first."""

    time_ps: int
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A model that can be requested: the run of its program, and the priority of its jobs."""

    timed: Timed
    priority: Priority


def merged(times: Mapping[str, Sequence[int]]) -> list[Ask]:
    """The requests of all models in order of arrival; simultaneous ones in the order of the models."""
    names = list(times)
    pairs = sorted((time, place) for place, name in enumerate(names) for time in times[name])
    return [Ask(time, number, names[place]) for number, (time, place) in enumerate(pairs)]


def on_rings(config: Config, asked: Mapping[str, Asked], asks: Sequence[Ask]) -> list[Served]:
    """Every request as a job. Host, rings, preemption and transfers of programs are those of the device.

    The clock starts after every program has been on the device once. While the host handles one request, it does not
    receive others. Those that arrive meanwhile are submitted afterwards; their latency counts from their arrival.
    """
    dispatcher = Dispatcher(config, preemption=len({each.priority for each in asked.values()}) > 1)
    with closing(dispatcher):
        for each in asked.values():
            dispatcher.run(Request(each.timed.program, timing_only=True))
        zero = dispatcher.now_ps
        jobs: dict[Job, Ask] = {}
        found: list[Served] = []

        def ended(job: Job) -> None:
            ask = jobs.pop(job)
            found.append(_served(job, ask, asked[ask.name].timed, zero))

        coming = list(reversed(asks))
        while coming or dispatcher.busy:
            while coming and zero + coming[-1].time_ps <= dispatcher.now_ps:
                ask = coming.pop()
                each = asked[ask.name]
                job = Job(Request(each.timed.program, timing_only=True, priority=each.priority), dispatcher)
                jobs[job] = ask
                job.add_done_callback(ended)
                dispatcher.admit(job)
            if dispatcher.busy:
                left = zero + coming[-1].time_ps - dispatcher.now_ps if coming else 0
                dispatcher.step(left) if left else dispatcher.step()
            else:
                dispatcher.idle(zero + coming[-1].time_ps - dispatcher.now_ps)
            dispatcher.deliver()
    return found


def _served(job: Job, ask: Ask, timed: Timed, zero: int) -> Served:
    result = job.wait()
    ended = job.arrived_ps - zero + result.total_ps
    assert job.began_ps is not None
    began, preemptions = job.began_ps - zero, result.timeline.preemptions
    # A job without preemption has the energy of the timed run of its program.
    energy = result.energy.total if preemptions else timed.energy_fj
    return Served(ask.name, ask.time_ps, began, ended, result.counters.duration_ps, energy, preemptions)


def by_events(asked: Mapping[str, Asked], asks: Sequence[Ask]) -> list[Served]:
    """The same as events: one server that takes ``total_ps`` of its program per request, in order of priority, without
    preemption."""
    waiting: list[tuple[int, Ask]] = []
    coming = list(reversed(asks))
    found: list[Served] = []
    now = 0
    while coming or waiting:
        if not waiting:
            now = max(now, coming[-1].time_ps)
        while coming and coming[-1].time_ps <= now:
            ask = coming.pop()
            heapq.heappush(waiting, (-asked[ask.name].priority, ask))
        _, ask = heapq.heappop(waiting)
        timed = asked[ask.name].timed
        found.append(Served(ask.name, ask.time_ps, now, now + timed.total_ps, timed.time_ps, timed.energy_fj))
        now += timed.total_ps
    return found
