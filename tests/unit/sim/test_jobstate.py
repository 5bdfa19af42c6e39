"""The state of a job in a checkpoint is complete, and an invalid value is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from npusim.device.npu import NpuDevice
from npusim.errors import CheckpointError
from npusim.sim.jobstate import timeline_of, timeline_state
from npusim.sim.saved import Saved
from npusim.timeline import Timeline
from tests.support.nested import Path, at, changed, leaves
from tests.support.programs.saved_states import JOB, TINY, WRONG, checkpoint, refusal, running
from tests.support.programs.stopped_jobs import seen

MOMENTS = range(100_000, 3_700_000, 300_000)
"""From the instruction fetch to the completion record."""
END_PS = 10**9


def ended(device: NpuDevice) -> tuple[Any, ...]:
    """Return timelines and memories at the end of the job."""
    timelines: dict[int, Timeline] = {}
    device.listener = timelines.__setitem__
    device.run_until(END_PS)
    return seen(device, timelines), device.last_job


@pytest.mark.parametrize("at_ps", MOMENTS)
def test_a_restored_job_has_the_same_state_and_ends_alike(at_ps: int) -> None:
    device, other = running(at_ps), NpuDevice(TINY)
    checkpoint = device.checkpoint()
    other.restore(checkpoint)
    assert other.checkpoint().state == checkpoint.state
    assert ended(other)[0] == ended(device)[0]


def test_a_timeline_is_that_of_its_state() -> None:
    _, timeline = ended(running(1000))
    assert timeline is not None
    assert timeline.spans
    state = timeline_state(timeline)
    assert timeline_of(Saved(state)) == dataclasses.replace(timeline, started_ps=0)  # a course begins anywhere
    for path, _ in leaves(state):
        for wrong in (["x"], 1.5, {}):
            with pytest.raises(CheckpointError):
                timeline_of(Saved(changed(state, path, wrong)))


# Refusals

PLAYER: Path = (*JOB, "player")


@pytest.mark.parametrize("at_ps", [300_000, 1_800_000])
def test_values_of_other_kinds_are_refused(at_ps: int) -> None:
    for path, leaf in leaves(at(checkpoint(at_ps).state, PLAYER)):
        for wrong in WRONG:
            if type(wrong) is not type(leaf) or isinstance(leaf, int):
                names = [str(name) for name in path if isinstance(name, str)]
                assert names[-1] in refusal(at_ps, ((*PLAYER, *path), wrong)), (path, wrong)


SEQUENCER, VECTOR, DMA = ("sequencer",), ("units", 1), ("units", 3)


def longer(queue: list[Any]) -> list[Any]:
    return [*queue, queue[-1]]


@pytest.mark.parametrize(
    ("at_ps", "changes", "named"),
    [
        # Bytes of code: no more are fetched than requested, and no more requested than there are.
        (300_000, [((*SEQUENCER, "requested"), lambda it: it + 10**4)], "requested"),
        (1_800_000, [((*SEQUENCER, "requested"), lambda it: it - 1)], "requested"),
        # The sequencer halts only after the last command.
        (300_000, [((*SEQUENCER, "halted"), True)], "halted"),
        (1_800_000, [((*SEQUENCER, "dispatched"), lambda it: it - 1)], "halted"),
        (1_800_000, [((*SEQUENCER, "dispatched"), lambda it: it + 1)], "dispatched"),
        (1_800_000, [((*SEQUENCER, "blocked"), 0)], "dispatched"),
        # A unit has begun commands if and only if one of them has its turn, and no more than it can.
        (1_800_000, [((*VECTOR, "begin"), -1)], "flight"),
        (1_800_000, [((*DMA, "begin"), 0)], "flight"),
        (1_800_000, [((*VECTOR, "flight"), longer)], "flight"),
        (1_800_000, [((*DMA, "asking"), True)], "asking"),
        # A blocked unit has a command with at least as many waits.
        (1_800_000, [((*DMA, "step"), None)], "step"),
        (1_800_000, [((*DMA, "wait_at"), 9)], "wait_at"),
        # Commands are those of the unit.
        (1_800_000, [((*DMA, "step"), 3)], "step"),
        (1_800_000, [((*VECTOR, "queue", 0, 1), 5)], "queue"),
        # A job to be preempted knows who waits for it.
        (1_800_000, [(("holding",), True)], "stops"),
        # Spans are of commands of the program and in the past.
        (1_800_000, [(("spans", 0, 0), 10**3)], "spans"),
        (1_800_000, [(("spans", 0, 1), lambda it: it + 10**9)], "spans"),
        (1_800_000, [(("spans", 0, 2), lambda it: it + 10**9)], "spans"),
        (1_800_000, [(("spans", 0, 0), -3)], "spans"),
    ],
)
def test_states_that_cannot_be_are_refused(at_ps: int, changes: list[Any], named: str) -> None:
    assert named in refusal(at_ps, *[((*PLAYER, *path), value) for path, value in changes])
