"""The benchmark's verdicts; the measurements themselves are run manually."""

from __future__ import annotations

import pytest

from bench import run_models
from bench.run_models import Row


def test_a_figure_is_ok_up_to_its_limit() -> None:
    assert Row("a", 3.0, "s", 3.0).ok
    assert not Row("a", 3.001, "s", 3.0).ok
    assert Row("a", 1e9, "s").ok


def test_a_missed_limit_shows_in_table_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row("fast enough", 1.0, "s", 3.0), Row("too slow", 9.5, "x", 8.0), Row("told", 5.0, "ms")]
    monkeypatch.setattr(run_models, "measure", lambda options: rows)
    monkeypatch.setattr(run_models, "_resnet50", lambda directory: directory / "none.onnx")
    assert run_models.main([]) == 1
    fast, slow, told = capsys.readouterr().out.splitlines()
    assert fast.split() == ["fast", "enough", "1", "s", "limit", "3", "s", "ok"]
    assert slow.split() == ["too", "slow", "9.5", "x", "limit", "8", "x", "MISSED"]
    assert told.split() == ["told", "5", "ms"]
    del rows[1]
    assert run_models.main([]) == 0


def test_children_run_on_one_thread_of_one_cpu() -> None:
    assert set(run_models.ONE_THREAD.values()) == {"1"}
    assert "OMP_NUM_THREADS" in run_models.ONE_THREAD
