"""The recommendation of a study, its limits, unused area, and the errors of estimates."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from npusim.explore import Study, make_space
from npusim.explore.page import page
from npusim.explore.recommend import estimate_errors, recommendation
from npusim.explore.report import estimates_text, headline, recommended, text, to_json_dict, write_csv
from tests.support.explore_designs import Synthetic, small_model, space, synthetic_area

VARY = {"matrix.rows": [4, 8, 16, 32], "dram.bandwidth": ["4 GB/s", "8 GB/s", "16 GB/s"]}
CONSTRAINTS = ["area <= 5 mm2", "latency <= 1 ms"]


@pytest.fixture(scope="module")
def study() -> Study:
    plain = {
        "base": "edge", "vary": VARY, "objectives": ["latency", "area"], "constraints": CONSTRAINTS,
        "search": {"method": "halving", "budget": 8, "seed": 1},
    }  # fmt: skip
    return Study(make_space({**plain}, given=[small_model(), small_model("two", 2, 32)])).run(workers=0)


def test_the_smallest_product_of_objectives_is_recommended(study: Study) -> None:
    found = recommendation(study)
    assert found is not None
    assert found.next_best is not None
    products = {row.number: study.objectives.of(row)[0] * study.objectives.of(row)[1] for row in study.front_rows()}
    assert [found.row.number, found.next_best.number] == sorted(products, key=products.__getitem__)[:2]
    one, two = (study.objectives.of(row) for row in (found.row, found.next_best))
    assert list(found.changes.values()) == pytest.approx([b / a - 1 for a, b in zip(one, two, strict=True)])
    said = recommended(study)
    assert f"design {found.row.number} (" in said
    assert f"The limit area <= 5 mm2 excludes {study.reasons()['breaks area <= 5 mm2']} designs." in said
    assert "The limit latency <= 1 ms excludes 0 designs." in said
    assert " ".join(said.split()) in " ".join(text(study, 5).split())
    assert to_json_dict(study)["recommendation"]["design"] == found.row.number


def test_the_headline_agrees_with_the_text(study: Study) -> None:
    told = {name: (figure, detail) for name, figure, detail in headline(study)}
    shown = text(study, 0)
    assert f"{told['designs simulated'][0]} simulated" in shown
    for objective in ("latency", "area"):
        figure, detail = told[f"least {objective}"]
        (line,) = [line for line in shown.splitlines() if line.startswith(f"least {objective}")]
        assert figure in line
        assert f"design {study.best_row(objective).number}: " in detail
    found = recommendation(study)
    assert found is not None
    resource, detail = told["bound by"]
    sums = Counter[str]()
    for each in found.row.figures:
        sums.update(each.resources)
    assert sums[resource] == max(sums.values())
    assert f"design {found.row.number}," in detail
    assert f'<dd class="figure">{resource}</dd>' in page(study)


def test_area_of_units_that_no_model_uses_is_reported(study: Study) -> None:
    found = recommendation(study)
    assert found is not None
    used = {kind for each in found.row.figures for kind, share in each.busy.items() if share}
    assert {"matrix", "dma"} <= used
    assert set(found.idle) == {"vector", "scalar"} - used
    assert "Area that no model uses: " in recommended(study)


def test_estimates_are_stored_with_their_errors(study: Study, tmp_path: Path) -> None:
    median, most, count = estimate_errors(study)["dram_bytes"]
    assert 0 <= median <= most < 0.1
    assert count == 2 * len(study.rows)
    assert "dram_bytes" in estimates_text(study)
    write_csv(study, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as opened:
        row = next(csv.DictReader(opened))
    known = study.rows[int(row["design"])].figures[0]
    assert float(row["estimate.latency(mlp)"]) == known.estimates["latency"]
    assert row["bound(mlp)"] == next(iter(known.resources))


def test_a_store_keeps_estimates_and_resources(tmp_path: Path) -> None:
    plain = {"base": "edge", "vary": {"matrix.rows": [4, 8]}, "search": {"method": "halving", "budget": 2}}
    found = make_space(plain, given=[small_model()])
    with Study(found, store=tmp_path / "a.study") as first:
        first.run(workers=0)
        rows = first.rows
    assert all(each.estimates and each.resources for row in rows.values() for each in row.figures)
    with Study(found, store=tmp_path / "a.study") as again:
        assert again.rows == rows
        assert [row.figures[0].estimates for row in again.rows.values()] == [
            row.figures[0].estimates for row in rows.values()
        ]


def test_the_page_has_limits_reasons_recommendation_and_figures_of_each_model(study: Study) -> None:
    html = page(study)
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    limits = {each["name"]: each["limits"] for each in data["metrics"]}
    assert limits["area"] == [None, pytest.approx(5e6)]
    assert limits["latency"] == [None, pytest.approx(1e9)]
    assert limits["energy"] == [None, None]
    assert {"latency(mlp)", "latency(two)"} <= limits.keys()
    assert recommended(study)[:40] in html.replace("<wbr>", "")
    assert "breaks area" in html
    assert any(text.startswith("mlp: ") for text in data["bound"]["texts"])


def test_without_a_feasible_design_nothing_is_recommended() -> None:
    study = Study(
        space({"matrix.rows": [4, 8]}, constraints=["latency <= 1 ps"]), evaluate=Synthetic(), area=synthetic_area
    ).run(workers=0)
    assert recommendation(study) is None
    assert recommended(study) == ""
    assert to_json_dict(study)["recommendation"] is None
