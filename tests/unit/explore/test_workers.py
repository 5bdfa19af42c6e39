"""Results do not depend on the evaluation: processes, a cluster, crashes, kills and resumption."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from npusim.errors import UsageError
from npusim.explore import Study
from npusim.explore.figures import FAILED, SIMULATED
from npusim.explore.store import StudyStore
from npusim.explore.workers import MOST_DEATHS, Processes, default_count
from tests.support.explore_designs import Deadly, Synthetic, small_model, space, synthetic_area

ROOT = Path(__file__).resolve().parents[3]
VARY = {"matrix.rows": [4, 8, 16, 32], "matrix.cols": [4, 8, 16], "dram.bandwidth": ["4 GB/s", "8 GB/s"]}
DESIGNS = 24


def rows_with(evaluate: Synthetic | Deadly, workers: int) -> Study:
    return Study(space(VARY), evaluate=evaluate, area=synthetic_area).run(workers=workers)


@pytest.mark.slow
def test_rows_are_the_same_with_any_number_of_workers(tmp_path: Path) -> None:
    stores = []
    for workers in (0, 1, 3):
        path = tmp_path / f"{workers}.study"
        with Study(space(VARY), store=path, evaluate=Synthetic(), area=synthetic_area) as study:
            study.run(workers=workers)
        with StudyStore(path, reading=True) as store:
            stores.append((store.facts(), store.rows()))
    assert stores[0] == stores[1] == stores[2]
    assert len(stores[0][1]) == DESIGNS


def test_simulated_rows_are_the_same_in_other_processes() -> None:
    found = space({"matrix.rows": [8, 16], "dram.bandwidth": ["4 GB/s", "8 GB/s"]}, [small_model()])
    here, there = Study(found).run(workers=0), Study(found).run(workers=2)
    assert here.rows == there.rows
    assert all(row.figures[0].digest for row in here.rows.values())


def test_each_design_is_evaluated_once_and_by_several(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rows_with(Synthetic(log, slow_s=0.05), 2)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(int(number) for number, _ in lines) == list(range(DESIGNS))
    assert len({pid for _, pid in lines}) == 2


def test_workers_go_through_stretches_of_their_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rows_with(Synthetic(log, slow_s=0.05), 2)
    by_worker: dict[str, list[int]] = {}
    for number, pid in map(str.split, log.read_text().splitlines()):
        by_worker.setdefault(pid, []).append(int(number))
    neighbours = sum(after == before + 1 for numbers in by_worker.values() for before, after in pairwise(numbers))
    # Each starts a new range at most as often as the rest can be halved.
    assert neighbours >= DESIGNS - 2 * DESIGNS.bit_length()


def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    study = rows_with(Deadly(tmp_path, once=(3, 11)), 2)
    assert study.rows == rows_with(Synthetic(), 0).rows
    asked = collections.Counter(map(int, (tmp_path / "asked").read_text().split()))
    assert asked == {number: 2 if number in (3, 11) else 1 for number in range(DESIGNS)}


def test_a_design_that_ends_workers_is_given_up_with_its_reason(tmp_path: Path) -> None:
    study = rows_with(Deadly(tmp_path, always=(5,), raises=(7,)), 2)
    reasons = {number: row.reason for number, row in study.rows.items() if row.status == FAILED}
    assert reasons == {
        5: f"{MOST_DEATHS} processes that evaluated it ended (SIGKILL)",
        7: "a defect of npusim: IndexError: list index out of range",
    }
    assert sum(row.status == SIMULATED for row in study.rows.values()) == DESIGNS - 2
    assert set(study.reasons()) == set(reasons.values())


def test_workers_that_cannot_start_are_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UsageError, match=r"end during their start \(exit code 1\)"):
        rows_with(Synthetic(), 2)


@pytest.mark.parametrize(("processors", "count"), [(None, 1), (1, 1), (6, 6)])
def test_there_are_as_many_workers_as_processors(
    monkeypatch: pytest.MonkeyPatch, processors: int | None, count: int
) -> None:
    """Those that this process may use, or all, or one where their number is unknown."""
    assert default_count() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert default_count() == count


def test_workers_end_with_the_pool() -> None:
    pool = Processes(Synthetic(), 2)
    found = space(VARY)
    rows = pool.rows([found.design(number) for number in range(8)])
    next(rows)
    pids = pool.pids
    assert len(pids) == 2
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


_RUN = """
import sys
from pathlib import Path
from npusim.explore import Study
from tests.support.explore_designs import Synthetic, space, synthetic_area
vary = {"matrix.rows": [4, 8, 16, 32], "matrix.cols": [4, 8, 16], "dram.bandwidth": ["4 GB/s", "8 GB/s"]}
search = {"method": "halving", "budget": 22}
evaluate = Synthetic(slow_s=float(sys.argv[2]))
study = Study(space(vary, search=search), store=sys.argv[1], evaluate=evaluate, area=synthetic_area)
study.run(workers=2)
"""


def _begin(store: Path, slow_s: float = 0.0) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, str(store), str(slow_s)], env=environment, stderr=subprocess.DEVNULL
    )


def _count(path: Path) -> int:
    if not path.exists() or not path.stat().st_size:
        return 0
    try:
        with StudyStore(path, reading=True) as store:
            return len(store.rows())
    except UsageError:  # between two of its writes
        return 0


def test_a_study_that_is_killed_twice_equals_one_that_ran_through(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed.study", tmp_path / "whole.study"
    deaths = 0
    for wanted in range(1, 5, 2):
        process = _begin(killed, 0.4)  # so that it is not done while this test waits for a processor
        while process.poll() is None and _count(killed) < wanted:
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            deaths += 1
        process.wait()
    assert deaths == 2
    assert _begin(killed).wait() == 0
    assert _begin(whole).wait() == 0
    with StudyStore(killed, reading=True) as one, StudyStore(whole, reading=True) as other:
        assert one.rows() == other.rows()
        assert one.facts() == other.facts()
        assert 9 <= len(one.rows()) <= 22


def test_another_study_may_not_write_to_the_same_store(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with (
        Study(space(VARY), store=path, evaluate=Synthetic(), area=synthetic_area),
        pytest.raises(UsageError, match="another study is writing to this store"),
    ):
        Study(space(VARY), store=path, evaluate=Synthetic(), area=synthetic_area)
    Study(space(VARY), store=path, evaluate=Synthetic(), area=synthetic_area).close()


@pytest.mark.slow
def test_two_workers_share_the_work() -> None:
    """The parent's CPU time delays two workers, so it must be small compared with theirs, for designs of real cost."""
    found = space({"matrix.rows": [4, 8, 16, 32], "matrix.cols": [4, 8, 16]}, [small_model(side=512)])
    begin, children = time.process_time(), os.times().children_user
    Study(found).run(workers=2)
    parent, workers = time.process_time() - begin, os.times().children_user - children
    assert parent < workers / 5
