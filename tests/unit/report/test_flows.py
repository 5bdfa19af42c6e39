"""What a command waited for, and what waited for a unit, compared with the program's waits and with a watched
device."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from npusim.driver import Priority
from npusim.hw.config import load_config
from npusim.isa.base import region
from npusim.report.arrivals import Arrivals
from npusim.report.flows import flows, queues
from npusim.runtime import Session
from npusim.sim.watch import Watcher
from npusim.timeline import Timeline
from tests.support.graphs.samples import residual_net
from tests.support.programs.streams import Stream, add, copy
from tests.support.programs.timed_jobs import Bench


@pytest.fixture(scope="module")
def watched() -> Any:
    with Session("tiny", cache_dir=False) as session:
        program = session.compile(residual_net())
        arrivals, heads = Arrivals(), Heads(session)
        session.device.watch(arrivals)
        session.device.watch(heads)
        result = session.run(program, timing_only=True)
        yield program, result.timeline, arrivals, heads


class Heads(Watcher):
    """Counts the most commands in a queue from notifications."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.most: dict[str, int] = defaultdict(int)

    def step_ends(self, unit: str, step: Any) -> None:
        player: Any = self.session.device.machine.current
        for engine in player.engines:
            self.most[engine.name] = max(self.most[engine.name], len(engine.queue))


def test_an_arrow_ends_where_the_command_could_begin(watched: Any) -> None:
    program, timeline, _, _ = watched
    found = flows(program, timeline)
    assert found
    consumers = [consumer for _, consumer in found]
    assert len(set(consumers)) == len(consumers)
    for producer, consumer in found:
        assert timeline.spans[producer].end_ps <= timeline.spans[consumer].start_ps
        assert timeline.spans[producer].unit != timeline.spans[consumer].unit
    # The commands that began at the very moment at which the one before the arrow ended are those it held back.
    held = sum(timeline.spans[a].end_ps == timeline.spans[b].start_ps for a, b in found)
    assert held > len(found) // 4


def test_of_several_waits_the_last_that_held_counts() -> None:
    stream = Stream()
    short = stream.dma(copy(0, region(1), 64))
    long = stream.dma(copy(256, region(1), 4096), channel=1)
    stream.vector(add(8192, 0, 256, 16), short, long)
    program = stream.program(scratch=4096)
    bench = Bench(load_config("edge"), preempt=False)
    (timeline,) = bench.finish(bench.submit(program, Priority.MEDIUM))
    ((producer, consumer),) = flows(program, timeline)
    assert (timeline.spans[producer].unit, timeline.spans[consumer].kind) == ("core0.dma1", "vector.binary")
    assert not flows(program, Timeline())


def test_queues_hold_what_a_device_has_in_its_own(watched: Any) -> None:
    _, timeline, arrivals, heads = watched
    assert {unit: len(times) for unit, times in arrivals.of_units.items()} == {
        unit: sum(span.unit == unit for span in timeline.spans) for unit in arrivals.of_units
    }
    found = queues(timeline, arrivals.of_units)
    depth = 8
    for unit, steps in found.items():
        most = max(waiting for _, waiting in steps)
        assert heads.most[unit] - 1 <= most <= depth
        assert steps[0] == (0, 0)
        assert steps[-1][1] == 0
    assert max(heads.most.values()) == depth
