"""Points of what-if that are kept: what a second call reuses, and what it measures again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from npusim.demo import as_onnx
from npusim.explore.measure import Measurer
from npusim.explore.store import clear_whatif
from npusim.explore.whatif import WhatIfPoint
from npusim.explore.whatif_store import KeptMeasurer
from npusim.hw.config import Config, load_config

EDGE = load_config("edge")
DEVICES = [EDGE, *(EDGE.with_(**{"dram.bandwidth": f"{rate} GB/s"}) for rate in (1, 2, 3))]


@dataclass(frozen=True, slots=True)
class Counting(Measurer):
    """Measures nothing: a point is the bandwidth; a device with 3 GB/s has none, one with 2 GB/s ends the call."""

    measured: list[int] = field(default_factory=list)
    ends: bool = False

    def points(self, devices: Sequence[Config]) -> Iterator[WhatIfPoint | str]:
        for device in devices:
            rate = device.dram.bandwidth
            if self.ends and rate == 2 * 10**9:
                raise KeyboardInterrupt
            self.measured.append(rate)
            binds = ((("dma", "dram"), rate), (("matrix", "compute"), 1))
            yield "too slow" if rate == 3 * 10**9 else WhatIfPoint(rate, 2, 3, None, binds, (("dram", 5),))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whatif") / "demo.onnx"
    path.write_bytes(as_onnx())
    return path


def measured(model: Path, folder: Path | None, devices: Sequence[Config] = DEVICES) -> list[int]:
    """Return what a call measures, after a check of its results."""
    measurer, shown = Counting(model), list[tuple[int, int]]()
    measure = KeptMeasurer(measurer, folder)
    measure.progress = lambda done, total: shown.append((done, total))
    points = measure(devices)
    assert points == Counting(model)(devices)
    assert shown == [(done, len(devices)) for done in range(len(devices) - len(measurer.measured), len(devices) + 1)]
    return measurer.measured


def test_only_what_is_not_kept_is_measured(model: Path, tmp_path: Path) -> None:
    rates = [each.dram.bandwidth for each in DEVICES]
    assert measured(model, tmp_path / "new", DEVICES[:2]) == rates[:2]
    assert measured(model, tmp_path / "new") == rates[2:]
    assert measured(model, tmp_path / "new") == rates[3:]  # a reason may depend on the machine
    assert measured(model, None) == rates


def test_an_interrupted_call_keeps_what_it_has_measured(model: Path, tmp_path: Path) -> None:
    measure = KeptMeasurer(Counting(model, ends=True), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        measure(DEVICES)
    assert measure.kept == 2
    assert measured(model, tmp_path) == [each.dram.bandwidth for each in DEVICES[2:]]


def test_points_of_another_model_or_build_are_not_used(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = [each.dram.bandwidth for each in DEVICES]
    measured(model, tmp_path)
    (store,) = tmp_path.iterdir()
    KeptMeasurer(Counting(model, {"image": (1, 3, 64, 64)}), tmp_path)(DEVICES)
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr("npusim.explore.whatif_store.versions", lambda: {"source": "another"})
    assert measured(model, tmp_path) == rates
    assert measured(model, tmp_path) == rates[3:]
    assert len(list(tmp_path.iterdir())) == 2
    assert store.is_file()


def test_a_store_that_cannot_be_used_is_a_warning(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rates = [each.dram.bandwidth for each in DEVICES]
    measured(model, tmp_path)
    (store,) = tmp_path.iterdir()
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("NPUSIM_STATE_DIR", str(tmp_path / "state"))
        assert measured(model, tmp_path) == rates
    assert "was not written by npusim of this user" in caplog.text
    store.write_text("no database of anything, but longer than the header of one " * 10)
    assert measured(model, tmp_path) == rates
    assert "is not a store of npusim explore" in caplog.text
    assert caplog.text.count("results are not kept") == 2


def test_kept_points_of_a_simulation_are_equal(model: Path, tmp_path: Path) -> None:
    first = KeptMeasurer(Measurer(model), tmp_path)(DEVICES[:2])
    again = KeptMeasurer(Counting(model, ends=True), tmp_path)(DEVICES[:2])
    assert again == first == Measurer(model)(DEVICES[:2])


def test_clearing_removes_stores_of_the_user_only(model: Path, tmp_path: Path) -> None:
    measured(model, tmp_path)
    (store,) = tmp_path.iterdir()
    for name, data in (("whatif-notes.study", b"notes" * 30), ("other.study", store.read_bytes())):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "whatif-link.study").symlink_to(tmp_path / "other.study")
    size = store.stat().st_size
    assert clear_whatif(tmp_path) == [size]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["other.study", "whatif-link.study", "whatif-notes.study"]
