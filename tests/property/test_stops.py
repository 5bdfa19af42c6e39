"""Stopping a device at any moment, inspecting it, or moving it to a file changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npusim.debug import look, view_text
from npusim.device.job import JobStage
from tests.support.programs.stopped_jobs import AFTER_PS, NETWORKS, Course, seen

ROOT = Path(__file__).resolve().parents[2]


def _stopped_at(name: str, count: int) -> set[str]:
    """Stop a course at ``count`` moments; return the job stages that were seen."""
    course = Course(name)
    device, timelines = course.begin()
    begin, end = device.now_ps, device.now_ps + AFTER_PS
    device.run_until(end)
    moments = course.moments(begin, timelines, count, seed=count)
    wanted = seen(device, timelines)
    assert len(timelines) == 4
    assert timelines[1].preemptions == 1

    device, timelines = course.begin()
    stages: set[str] = set()
    for moment in moments:
        device.run_until(moment)
        view = look(device)
        json.dumps(view)
        assert view_text(view)
        assert view["now_ps"] == moment
        stages |= {job["stage"] for job in view["jobs"]}
    device.run_until(end)
    assert seen(device, timelines) == wanted
    return stages


@pytest.mark.parametrize("name", NETWORKS)
def test_who_looks_changes_nothing(name: str) -> None:
    assert {"leaving", "parked", "returning"} & _stopped_at(name, 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_who_looks_at_two_hundred_moments_of_each_network_changes_nothing(name: str) -> None:
    stages = _stopped_at(name, 200)
    assert {"running", "parked", "leaving", "returning"} <= stages <= {stage.name.lower() for stage in JobStage}


def _restored_elsewhere(name: str, count: int, each: int, folder: Path) -> None:
    """Save a course at ``count`` moments; new processes, one per ``each`` files, continue it."""
    course = Course(name)
    device, timelines = course.begin()
    begin, end = device.now_ps, device.now_ps + AFTER_PS
    device.run_until(end)
    moments = course.moments(begin, timelines, count, seed=count + 1)
    wanted = seen(device, timelines)

    device, timelines = course.begin()
    ended: dict[str, set[str]] = {}
    for number, moment in enumerate(moments):
        device.run_until(moment)
        file = str(folder / f"{number}.npuckpt")
        device.checkpoint().write(file)
        ended[file] = set(map(str, timelines))
    device.run_until(end)
    assert seen(device, timelines) == wanted, "taking checkpoints has changed something"

    files = list(ended)
    for first in range(0, len(files), each):
        found = _in_a_fresh_process(end, files[first : first + each])
        for file, got in found.items():
            left = {seqno: job for seqno, job in wanted["jobs"].items() if seqno not in ended[file]}
            assert got == {**wanted, "jobs": left}, f"{name} at {moments[files.index(file)]} ps"


def _in_a_fresh_process(end_ps: int, files: list[str]) -> dict[str, dict[str, object]]:
    command = [sys.executable, "-m", "tests.support.programs.stopped_jobs", str(end_ps), *files]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, object]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("demo", "lookups") else [pytest.mark.slow]) for name in NETWORKS]
)
def test_a_fresh_process_goes_on_where_a_checkpoint_was_taken(name: str, tmp_path: Path) -> None:
    _restored_elsewhere(name, 8, 8, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_fresh_processes_go_on_from_forty_checkpoints_of_each_network(name: str, tmp_path: Path) -> None:
    _restored_elsewhere(name, 40, 4, tmp_path)
