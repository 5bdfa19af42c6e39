"""Device and driver continue from a file: the new driver returns the outputs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.debug import Bench, JobRequest, PendingRequest
from npusim.device.checkpoint import Checkpoint
from npusim.driver import Priority
from npusim.errors import CheckpointError
from npusim.hw.config import load_config
from npusim.program import Program
from tests.support.programs.planted_bugs import SIZE, answer, planted
from tests.support.programs.streams import QUICK_HOST

TINY = load_config("tiny").with_(**QUICK_HOST)
X0, X1 = np.arange(SIZE).astype(np.uint8), np.arange(100, 100 + SIZE).astype(np.uint8)


def _submitted(program: Program) -> Bench:
    bench = Bench(TINY)
    for priority, inputs in ((Priority.LOW, (X0, X1)), (Priority.LOW, (X1, X0)), (Priority.HIGH, (X1, X1))):
        bench.submit(JobRequest(program, None, {"x0": inputs[0], "x1": inputs[1]}, priority))
        bench.device.run_until(bench.device.now_ps + 700_000)
    return bench


def _seen(arrivals: list[PendingRequest]) -> list[tuple[Any, ...]]:
    return [(each.outputs["y0"].tobytes(), each.timeline and each.timeline.digest()) for each in arrivals]


@pytest.mark.parametrize("after_ps", [0, 5_000_000, 12_000_000, 22_000_000, 60_000_000])
def test_a_driver_goes_on_with_its_device(after_ps: int, tmp_path: Path) -> None:
    program = planted(None)
    bench = _submitted(program)
    bench.device.run_until(bench.device.now_ps + after_ps)
    bench.checkpoint().write(tmp_path / "file")
    left = [each for each in bench.arrivals if not each.ended]
    other = Bench.resumed(Checkpoint.read(tmp_path / "file"), planted(None))
    bench.finish()
    assert len(other.finish()) == len(left)
    assert _seen(other.arrivals) == _seen(left)
    assert other.device.now_ps == bench.device.now_ps
    assert other.driver.counters == bench.driver.counters
    assert other.driver.free_bytes == bench.driver.free_bytes
    # It is a normal driver: the next job is right and distinguished from earlier ones.
    results = []
    for each in (bench, other):
        arrival = each.submit(JobRequest(each.debugger.programs[0], None, {"x0": X0, "x1": X1}))
        each.finish()
        np.testing.assert_array_equal(arrival.outputs["y0"], answer(X0, X1))
        results.append((arrival.job.seqno, arrival.timeline.digest(), each.device.now_ps))  # type: ignore[union-attr]
    assert results[0] == results[1]


def test_what_is_refused() -> None:
    bench = _submitted(planted(None))
    with pytest.raises(CheckpointError, match="has a device, but no driver"):
        Bench.resumed(bench.device.checkpoint(), planted(None))
    checkpoint = bench.checkpoint()
    with pytest.raises(CheckpointError, match="program 'test' is in the checkpoint, but was not given"):
        Bench.resumed(checkpoint)


@pytest.mark.parametrize(
    "path",
    [("memory",), ("memory", "free"), ("rings", "tails"), ("rings", "inside"), ("programs", 0), ("programs", 0, "idle"),
     ("jobs", 0, "slot"), ("jobs", 0, "program"), ("seqno",), ("counters",)],
)  # fmt: skip
@pytest.mark.parametrize("nonsense", ["x", 17, [[]], [["a"]]])
def test_nonsense_is_refused(path: tuple[Any, ...], nonsense: object) -> None:
    checkpoint = _submitted(planted(None)).checkpoint()
    state: Any = copy.deepcopy(json.loads(json.dumps(checkpoint.state)))
    inside = state["software"]
    for step in path[:-1]:
        inside = inside[step]
    if type(inside[path[-1]]) is int and nonsense == 17 and path != ("jobs", 0, "program"):
        return  # a number where one belongs
    inside[path[-1]] = nonsense
    with pytest.raises(CheckpointError):
        Bench.resumed(Checkpoint(state, checkpoint.pages), planted(None))
