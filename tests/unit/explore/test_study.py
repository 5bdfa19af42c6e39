"""A study from space file to front: rows are those of single runs, and what may differ between two of them."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import npusim
from npusim.demo import as_onnx
from npusim.errors import UsageError
from npusim.explore import Study, make_space
from npusim.explore.figures import REFUSED, StudyRow
from npusim.explore.report import bound_by, text, to_json_dict, write_csv, write_parquet
from npusim.explore.store import StudyStore
from npusim.explore.study import versions
from tests.support.explore_designs import Synthetic, small_model, space, synthetic_area

SPACE = """
base = "tiny"
objectives = ["latency", "area"]
constraints = ["area <= 2.5 mm2"]
set = { technology.node = "22 nm", area.phy = "0.5 mm2" }
[vary]
matrix.rows = [4, 8]
dram.bandwidth = ["1 GB/s", "2 GB/s"]
[[model]]
name = "demo"
file = "demo.onnx"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "demo.onnx").write_bytes(as_onnx())
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return path


def synthetic(store: Path | None = None, vary: dict[str, Any] | None = None, trust: bool = False, **more: Any) -> Study:
    found = space(vary or {"matrix.rows": [4, 8, 16], "matrix.cols": [4, 8]}, **more)
    return Study(found, store=store, evaluate=Synthetic(), area=synthetic_area, trust=trust)


def test_a_design_written_out_and_run_alone_is_the_same(file: Path, tmp_path: Path) -> None:
    with Study(file) as study:
        study.run(workers=0)
        assert len(study.rows) == 4
        for number, row in study.rows.items():
            (tmp_path / "design.toml").write_text(study.config(number).to_toml())
            session = npusim.Session(tmp_path / "design.toml", cache_dir=False)
            result = session.run(session.compile(tmp_path / "demo.onnx"), timing_only=True)
            (figures,) = row.figures
            assert figures.digest == result.timeline.digest()
            assert (figures.latency, figures.cycles) == (result.time_ps, result.cycles)
            assert figures.dram_bytes == result.dram_read_bytes + result.dram_write_bytes
            assert figures.energy == result.energy.total
            assert row.area == result.area.total
            assert row.area is not None
            assert 0 < max(figures.busy.values()) <= 1


def test_a_space_file_has_its_store_beside_it_and_goes_on(file: Path) -> None:
    with Study(file) as study:
        study.run(workers=0, budget=2)
        assert len(study.rows) == 2
    assert file.with_suffix(".study").is_file()
    asked = []
    with Study(file) as study:
        study.run(workers=0, progress=lambda done, total: asked.append((done, total)))
        assert asked == [(0, 4), (3, 4), (4, 4)]


def test_an_interrupted_run_knows_what_its_store_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = StudyStore.add

    def interrupted(store: StudyStore, rows: list[StudyRow]) -> None:
        add(store, rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(StudyStore, "add", interrupted)
    with synthetic(tmp_path / "s.study") as study:
        for known in range(1, 4):
            with pytest.raises(KeyboardInterrupt):
                study.run(workers=0)
            assert len(study.rows) == known


def test_what_decides_figures_may_not_change(file: Path) -> None:
    Study(file).close()
    file.write_text(SPACE.replace("[4, 8]", "[4, 16]"))
    with pytest.raises(UsageError, match=r"space: vary: matrix.rows was \[4, 8\] and is \[4, 16\]") as error:
        Study(file)
    assert "--store FILE" in str(error.value)
    file.write_text(SPACE.replace("22 nm", "16 nm"))
    with pytest.raises(UsageError, match="space: devices: tiny was"):
        Study(file)
    file.write_text(SPACE)
    model = bytearray(as_onnx())
    model[-200] ^= 1
    (file.parent / "demo.onnx").write_bytes(as_onnx().replace(b"block.add", b"block.sum"))
    with pytest.raises(UsageError, match="models: demo was"):
        Study(file)


def test_what_is_asked_of_figures_may_change(file: Path) -> None:
    with Study(file) as study:
        rows = study.run(workers=0).rows
    file.write_text(SPACE.replace('["latency", "area"]', '["cycles"]').replace("2.5 mm2", "9 mm2") + "weight = 2\n")
    with Study(file) as study:
        assert study.rows == rows
        assert len(study.front()) == 1


def test_another_version_of_npusim_is_another_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic(tmp_path / "a.study").close()
    monkeypatch.setattr("npusim.compiler.version.COMPILER_VERSION", 10**6)
    with pytest.raises(UsageError, match="versions: compiler was"):
        synthetic(tmp_path / "a.study")


def test_models_count_by_their_weights() -> None:
    found = space({"matrix.rows": [8, 16]}, [small_model("a", 3), small_model("b", 1, side=96)])
    study = Study(found).run(workers=0)
    for row in study.rows.values():
        values, (a, b) = study.values(row), row.figures
        assert a.latency != b.latency
        assert values["latency(a)"] == a.latency
        assert values["latency"] == pytest.approx((3 * a.latency + b.latency) / 4)
    assert study.best("latency(b)")["latency(b)"] == min(row.figures[1].latency for row in study.rows.values())


def test_a_device_that_cannot_run_a_model_is_a_row_with_its_reason() -> None:
    study = Study(space({"vector": [False], "matrix": [False, {}][:1]}, [small_model()])).run(workers=0)
    (row,) = study.rows.values()
    assert row.status == REFUSED
    assert row.reason.startswith("mlp: ")
    assert study.front() == []
    assert list(study.reasons()) == [row.reason]
    assert "No simulated design is feasible" in text(study, 5)


def test_a_device_that_contradicts_itself_is_left_out_with_the_rule() -> None:
    study = synthetic(vary={"sram.banks": [16, 3, 7], "matrix.rows": [4, 8]}).run(workers=0)
    assert len(study.rows) == 2
    assert study.reasons() == {"sram.bytes: must be a multiple of banks * bytes_per_cycle": 4}


def test_an_area_that_nobody_knows_is_said() -> None:
    study = Study(
        space({"matrix.rows": [8]}, [small_model()], constraints=["area <= 2 mm2"], set={"technology": False})
    ).run(workers=0)
    (reason,) = study.reasons()
    assert reason.startswith("area <= 2 mm2: area is not known; technology.node says it")


@pytest.mark.parametrize("objective", ["area", "energy"])
def test_an_objective_that_nobody_knows_is_said(objective: str) -> None:
    nothing = {"technology": False, "energy": False}
    study = Study(space({"matrix.rows": [8]}, [small_model()], objectives=[objective], set=nothing))
    study.run(workers=0)
    (reason,) = study.reasons()
    assert reason.startswith(f"{objective} is not known, and is an objective")
    assert study.front() == []


def test_which_of_several_devices() -> None:
    found = make_space({"base": ["tiny", "edge"], "objectives": ["latency"]}, given=[small_model()])
    study = Study(found).run(workers=0)
    assert [row["base"] for row in study.front()] == ["edge"]


def test_figures_have_tiers_and_frames_have_all_rows(tmp_path: Path) -> None:
    study = synthetic(constraints=["latency <= 1 ms"]).run(workers=0)
    frame = study.frame()
    assert list(frame.index) == list(range(6))
    assert set(frame["tier"]) == {"simulated"}
    assert set(frame["status"]) == {"feasible", "infeasible"}
    assert list(frame["matrix.rows"]) == [4, 4, 8, 8, 16, 16]
    write_csv(study, tmp_path / "a.csv")
    write_parquet(study, tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [int(row["latency"]) for row in rows] == list(frame["latency"])
    import pandas as pd

    assert list(pd.read_parquet(tmp_path / "a.parquet")["latency"]) == list(frame["latency"])


def test_records_have_all_that_varies_and_columns_one_type(tmp_path: Path) -> None:
    parts = [False, {"bytes": "256 KiB"}]
    study = synthetic(vary={"width": [1, 2], "l2": parts}, derive={"matrix.rows": "8 * width"}).run(workers=0)
    assert [(row["width"], row["l2"], row["matrix.rows"]) for row in study.records()] == [
        (1, False, 8), (1, {"bytes": "256 KiB"}, 8), (2, False, 16), (2, {"bytes": "256 KiB"}, 16),
    ]  # fmt: skip
    write_csv(study, tmp_path / "a.csv")
    write_parquet(study, tmp_path / "a.parquet")
    import pandas as pd

    shown = ["false", "{bytes = 256 KiB}"] * 2
    assert list(pd.read_csv(tmp_path / "a.csv", dtype={"l2": str})["l2"]) == shown
    assert list(pd.read_parquet(tmp_path / "a.parquet")["l2"]) == shown


def test_a_large_space_may_ask_for_texts_and_for_what_devices_lack() -> None:
    study = synthetic(
        vary={
            "matrix.rows": [4, 8, 16, 32], "matrix.dataflow": ["weight_stationary", "output_stationary"],
            "l2": [False, {"bytes": "256 KiB"}],
        },
        objectives=["latency"],
        constraints=["matrix.dataflow == 'output_stationary' or latency <= 1 ps", "l2.bytes <= 1 MiB or latency > 0 s"],
        search={"budget": 8},
    ).run(workers=0)  # fmt: skip
    assert len(study.rows) == 8
    assert {row["matrix.dataflow"] for row in study.front()} == {"output_stationary"}


def test_a_model_that_cannot_be_read_is_named(file: Path) -> None:
    file.write_text(SPACE + "input_shapes = { image = [2, 2] }\n")
    with pytest.raises(UsageError, match=r"^model 'demo': input 'image' is \[1, 3, 32, 32\] in the model"):
        Study(file)


def test_the_front_in_words_and_json() -> None:
    study = synthetic(objectives=["latency", "area"]).run(workers=0)
    shown = text(study, 2)
    assert "6 designs of edge, 6 simulated, 6 feasible" in shown
    for row in study.front_rows()[:2]:
        assert f"{row.number}  " in shown
    assert "mm2" in shown
    assert "simulated" in shown
    found = to_json_dict(study)
    json.dumps(found, allow_nan=False)
    assert found["best"]["area"] == study.best("area")["design"]


def test_effects_of_knobs_are_those_of_matched_pairs() -> None:
    vary = {"matrix.rows": [16, 4, 8], "sram.bytes": ["1 MiB", "128 KiB"], "dram.bandwidth": ["8 GB/s"]}
    study = synthetic(vary=vary, base=["edge", "mobile"]).run(workers=0)
    found = to_json_dict(study)["effects"]
    assert list(found) == ["latency", "area"]
    points = {row.number: study.objectives.of(row) for row in study.rows.values()}
    for place, name in enumerate(found):
        effects = {each["knob"]: each for each in found[name]}
        assert effects.keys() == {"matrix.rows", "sram.bytes", "base"}
        assert [each["importance"] for each in found[name]] == sorted(
            (each["importance"] for each in found[name]), reverse=True
        )
        for knob, axis, steps in (
            ("matrix.rows", 1, [("4", 1, "8", 2), ("8", 2, "16", 0)]),
            ("sram.bytes", 2, [("128 KiB", 1, "1 MiB", 0)]),
            ("base", 0, [("edge", 0, "mobile", 1)]),
        ):
            assert [(step["before"], step["after"]) for step in effects[knob]["steps"]] == [
                (before, after) for before, _, after, _ in steps
            ]
            for told, (_, low, _, high) in zip(effects[knob]["steps"], steps, strict=True):
                ratios = []
                for number, point in points.items():
                    at = study.space.places(number)
                    if at[axis] == low:
                        other = study.space.number((*at[:axis], high, *at[axis + 1 :]))
                        ratios.append(points[other][place] / point[place] - 1)
                assert told["pairs"] == len(ratios) == len(points) // len(set(vary.get(knob, ("a", "b"))))
                assert (told["low"], told["high"]) == pytest.approx((min(ratios), max(ratios)))
                assert min(ratios) - 1e-12 <= told["mean"] <= max(ratios) + 1e-12
    said = text(study)
    assert "pairs of designs that differ in this knob alone" in said
    (line,) = [line for line in said.splitlines() if "128 KiB to 1 MiB" in line]
    (of,) = [each for each in found["area"] if each["knob"] == "sram.bytes"]
    assert line.split()[-3:] == [f"{100 * of['steps'][0]['mean']:+.1f}", "%", str(of["pairs"])]


def test_no_effects_without_pairs() -> None:
    study = synthetic(vary={"matrix.rows": [8]}).run(workers=0)
    assert to_json_dict(study)["effects"] == {"latency": [], "area": []}
    assert "pairs of designs" not in text(study)
    assert to_json_dict(synthetic())["effects"] == {}


def test_the_json_of_a_study_says_where_it_comes_from(file: Path) -> None:
    with Study(file) as study:
        told = json.loads(json.dumps(to_json_dict(study.run(workers=0)), allow_nan=False))["provenance"]
        assert told["versions"] == versions()
        assert told["bases"]["tiny"] == json.loads(json.dumps(study.space.bases[0].to_table()))
        assert told["models"] == study.facts["models"] != {"demo": ""}
        assert told["space"]["vary"] == {"matrix.rows": [4, 8], "dram.bandwidth": [10**9, 2 * 10**9]}
        assert (told["search"]["seed"], told["constraints"]) == (0, ["area <= 2.5 mm2"])


def test_an_exhaustive_search_that_the_budget_ends_says_so() -> None:
    whole = synthetic(search={"method": "exhaustive"}).run(workers=0)
    assert (len(whole.rows), whole.notes) == (6, [])
    part = synthetic(search={"method": "exhaustive", "budget": 4}).run(workers=0)
    assert list(part.rows) == [0, 1, 2, 3]
    assert "note: an exhaustive search goes through designs by their numbers, and a budget of 4" in text(part, 2)


def test_figures_that_there_are_not() -> None:
    study = synthetic().run(workers=0)
    with pytest.raises(UsageError, match="no figure 'speed'; there are latency, area, cycles"):
        study.best("speed")
    with pytest.raises(UsageError, match="no feasible design has a figure 'energy'"):
        study.best("energy")


def test_npusim_has_explore() -> None:
    assert npusim.explore.Study is Study


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE designs SET number = 77 WHERE number = 0; UPDATE figures SET number = 77 WHERE number = 0",
        "UPDATE designs SET base = 'tiny'",
        "UPDATE designs SET settings = '{\"matrix.rows\": 9}'",
        "UPDATE designs SET settings = '{}'",
        "UPDATE designs SET fingerprint = ''",
        "UPDATE figures SET model = 'other'",
        "UPDATE designs SET reason = char(27) || '[2J', status = 'refused'; DELETE FROM figures",
    ],
)
def test_a_trusted_store_has_designs_of_its_space_only(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.study"
    with synthetic(path) as study:
        study.run(workers=0)
    with closing(sqlite3.connect(path)) as other:
        other.executescript(change)
    for trust in (False, True):
        with pytest.raises(UsageError) as error:
            synthetic(path, trust=trust)
        assert str(error.value).startswith(f"{path}: ")
        assert "\x1b" not in str(error.value)


def test_a_store_from_elsewhere_is_used_when_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.study"
    with synthetic(path) as study:
        study.run(workers=0)
        rows = study.rows
    monkeypatch.setenv("NPUSIM_STATE_DIR", str(tmp_path / "state"))
    with pytest.raises(UsageError, match="--trust-store"):
        synthetic(path)
    with synthetic(path, trust=True) as study:
        assert study.rows == rows
    with synthetic(path) as study:
        assert study.rows == rows


@pytest.mark.parametrize(
    ("waited", "told"),
    [
        ([{"array": 60, "dram": 36, "host": 4}], "array 60.0 %, dram 36.0 %"),
        ([{"vector": 1}], "vector 100.0 %"),
        ([{"array": 40, "dram": 30, "host": 20, "sram": 10}], "array 40.0 %, dram 30.0 %"),
        ([{"dram": 1}, {"macs": 3, "dram": 1}], "m0: dram 100.0 %; m1: macs 75.0 %, dram 25.0 %"),
        ([{}, {"macs": 1}], "m1: macs 100.0 %"),
        ([], ""),
    ],
)
def test_each_model_is_bound_by_what_it_waits_for(waited: list[dict[str, int]], told: str) -> None:
    row: Any = SimpleNamespace(
        figures=[SimpleNamespace(model=f"m{n}", resources=each) for n, each in enumerate(waited)]
    )
    assert bound_by(row) == told
