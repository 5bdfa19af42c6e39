"""A study on a Dask cluster: a real scheduler and two real workers, one of which is killed during the study."""

from __future__ import annotations

import collections
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from npusim.errors import UsageError
from npusim.explore import Study
from tests.support.explore_designs import Synthetic, small_model, space, synthetic_area

pytest.importorskip("distributed")
ROOT = Path(__file__).resolve().parents[3]
VARY = {"matrix.rows": [4, 8, 16, 32], "matrix.cols": [4, 8, 16], "dram.bandwidth": ["4 GB/s", "8 GB/s"]}
QUIET = ["--no-dashboard"]


def _python(*arguments: str, path: Path = ROOT) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Yield the address of a scheduler, and its workers."""
    tmp_path = tmp_path_factory.mktemp("cluster")
    address = tmp_path / "scheduler.json"
    scheduler = _python(
        "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *QUIET, "--scheduler-file", str(address)
    )
    workers = [
        _python(
            "distributed.cli.dask_worker", "--scheduler-file", str(address), *QUIET, "--no-nanny", "--nthreads", "1",
            "--local-directory", str(tmp_path),
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        import json

        from distributed import Client

        while not address.exists():
            assert scheduler.poll() is None
            time.sleep(0.05)
        where = json.loads(address.read_text())["address"]
        with Client(where, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=120)
        yield where, workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def test_a_cluster_gives_the_same_rows(cluster: tuple[str, list[subprocess.Popen[bytes]]]) -> None:
    found = space({"matrix.rows": [8, 16], "dram.bandwidth": ["4 GB/s", "8 GB/s"]}, [small_model()])
    assert Study(found).run(cluster=cluster[0]).rows == Study(found).run(workers=0).rows


def test_a_worker_that_is_killed_loses_nothing(
    cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    address, workers = cluster
    log = tmp_path / "log"

    def kill_one(done: int, total: int) -> None:
        if done == 6:
            workers[0].send_signal(signal.SIGKILL)

    evaluate = Synthetic(log, slow_s=0.1)
    study = Study(space(VARY), evaluate=evaluate, area=synthetic_area).run(cluster=address, progress=kill_one)
    assert study.rows == Study(space(VARY), evaluate=Synthetic(), area=synthetic_area).run(workers=0).rows
    lines = [line.split() for line in log.read_text().splitlines()]
    pids = {pid for _, pid in lines}
    assert len(pids) == 2
    repeated = [number for number, count in collections.Counter(number for number, _ in lines).items() if count > 1]
    of_the_dead = {number for number, pid in lines if int(pid) == workers[0].pid}
    assert set(repeated) <= of_the_dead


def test_a_result_that_is_lost_before_it_is_fetched_is_computed_again(
    cluster: tuple[str, list[subprocess.Popen[bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Future

    monkeypatch.setattr(Future, "status", property(lambda future: "lost"))  # as it is until the other result is there
    found = space({"matrix.rows": [8, 16]})
    study = Study(found, evaluate=Synthetic(), area=synthetic_area).run(cluster=cluster[0])
    assert study.rows == Study(found, evaluate=Synthetic(), area=synthetic_area).run(workers=0).rows


@pytest.mark.parametrize(("present", "reason"), [(True, "has another build .source"), (False, "cannot import npusim")])
def test_a_worker_with_another_npusim_is_refused(
    cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path, present: bool, reason: str
) -> None:
    """It is named. No row of the study is its own."""
    from distributed import Client

    package = tmp_path / "path" / "npusim"
    if present:
        shutil.copytree(ROOT / "npusim", package, copy_function=os.symlink)
        (package / "added.py").write_text("", "utf-8")
    else:
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise ImportError('there is none')", "utf-8")
    study = Study(space({"matrix.rows": [8, 16]}), evaluate=Synthetic(), area=synthetic_area)
    with Client(cluster[0], set_as_default=False) as client:
        before = len(client.scheduler_info()["workers"])
        other = _python(
            "distributed.cli.dask_worker", cluster[0], *QUIET, "--no-nanny", "--nthreads", "1",
            "--local-directory", str(tmp_path), path=package.parent,
        )  # fmt: skip
        try:
            client.wait_for_workers(before + 1, timeout=120)
            with pytest.raises(UsageError, match=f"the worker tcp://.* {reason}.*install the same build"):
                study.run(cluster=cluster[0])
        finally:
            other.kill()
            other.wait()
        while len(client.scheduler_info()["workers"]) > before:
            time.sleep(0.05)
    assert study.rows == {}


def test_an_address_where_nobody_answers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.explore.cluster.PATIENCE", "200ms")
    study = Study(space(VARY), evaluate=Synthetic(), area=synthetic_area)
    with pytest.raises(UsageError, match="no Dask scheduler answers there"):
        study.run(cluster="tcp://127.0.0.1:1")
