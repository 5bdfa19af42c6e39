"""The content of the page of a study: the front, columns, effects, and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import UsageError
from npusim.report.html import front_page
from npusim.report.html.columns import coded, config_table, figure, levels
from npusim.report.html.pareto import undominated
from tests.support.pages import study_rows


def data(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    return found


def row(number: int, **figures: float | None) -> dict[str, Any]:
    return {"id": number, "knobs": {"k": number}, "figures": figures}


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), max_size=60))
def test_the_front_is_what_no_point_beats(points: list[tuple[int, int, int]]) -> None:
    def beats(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    expected = [n for n, point in enumerate(points) if not any(beats(other, point) for other in points)]
    assert undominated(points) == expected


def test_more_can_be_better() -> None:
    rows = [row(0, latency=1, rate=5), row(1, latency=2, rate=9), row(2, latency=3, rate=8)]
    assert data(front_page(rows, {"latency": "min", "rate": "max"}))["front"] == [0, 1]
    assert data(front_page(rows, {"latency": "max", "rate": "max"}))["front"] == [2, 1]


def test_what_is_not_feasible_or_not_known_is_not_on_the_front() -> None:
    rows = [row(0, latency=1, area=1), row(1, latency=2, area=2), row(2, latency=0, area=None)]
    rows[0] |= {"feasible": False, "reason": "too hot"}
    told = data(front_page(rows, ["latency", "area"]))
    assert told["front"] == [1]
    assert told["feasible"] == [0, 1, 1]
    assert [told["reasons"]["texts"][n] for n in told["reasons"]["rows"]] == ["too hot", "", ""]


def test_a_study_may_know_its_front_better() -> None:
    rows = [row(0, latency=1), row(1, latency=2)]
    rows[1]["front"] = True
    assert data(front_page(rows, ["latency"]))["front"] == [1]


def test_the_same_rows_give_the_same_bytes() -> None:
    assert front_page(study_rows(50), ["latency", "area"]) == front_page(study_rows(50), ["latency", "area"])


def test_descriptions_that_differ_in_a_few_lines_take_little_room() -> None:
    text = "\n".join(f"section.key{n} = {n * 31}  # what it means and where the number is from" for n in range(100))
    rows = [{**each, "config": text.replace("key7 = 217", f"key7 = {n}")} for n, each in enumerate(study_rows(10_000))]
    plain = len(front_page([{**each, "config": None} for each in rows], ["latency", "area"]))
    assert len(front_page(rows, ["latency", "area"])) - plain < len(rows) * len(text) // 50


@given(
    st.lists(st.one_of(st.none(), st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("\n".join)), max_size=20)
)
def test_descriptions_come_back_from_their_lines(configs: list[str | None]) -> None:
    found = config_table(configs)

    def text(own: dict[str, list[int]] | None) -> str | None:
        if own is None:
            return None
        numbers = list(own.get("n", found["base"]))
        changes = own.get("d", [])
        for at, line in zip(changes[::2], changes[1::2], strict=True):
            numbers[at] = line
        return "\n".join(found["lines"][n] for n in numbers)

    assert [text(own) for own in found["rows"]] == configs


def test_levels_are_in_the_order_of_their_sizes() -> None:
    assert levels(["16 GB/s", "900 MB/s", None, "8 GB/s"]) == (["900 MB/s", "8 GB/s", "16 GB/s"], [2, 0, -1, 1])
    assert levels([64, 8, 16]).shown == levels(["64", "8", "16"]).shown == ["8", "16", "64"]
    assert levels(["weight", "output", True, 2]).shown == ["true", "2", "output", "weight"]
    assert levels(["1 MiB", "512 KiB"]).shown == ["512 KiB", "1 MiB"]


def test_figures_are_exact_where_they_are_integers() -> None:
    assert figure(12_345_678_901_234) == 12_345_678_901_234
    assert figure(0.1234567891234) == 0.123456789
    assert figure(float("nan")) is None
    assert figure(float("inf")) is None
    assert figure(None) is None


def test_a_column_of_one_text_is_that_text() -> None:
    assert coded(["a", "a"]) == {"texts": ["a"], "rows": 0}
    assert coded(["a", "b", "a"]) == {"texts": ["a", "b"], "rows": [0, 1, 0]}


def test_limits_and_units_reach_the_page() -> None:
    rows = [
        {**row(0, latency=5, noise=2), "units": {"noise": "dB"}, "tier": {"latency": "simulated", "noise": "estimated"}}
    ]
    metrics = data(front_page(rows, ["latency"], limits={"noise": (None, 3)}))["metrics"]
    assert [(each["name"], each["unit"], each["goal"], each["limits"]) for each in metrics] == [
        ("latency", "ps", "min", [None, None]),
        ("noise", "dB", "", [None, 3]),
    ]
    assert [each["tiers"]["texts"] for each in metrics] == [["simulated"], ["estimated"]]


@pytest.mark.parametrize(
    ("rows", "objectives", "message"),
    [
        ([row(0, latency=1)], [], "objectives: at least one metric is needed"),
        ([row(0, latency=1)], {"latency": "less"}, "objective 'latency': must be 'min' or 'max', not 'less'"),
        ([row(0, latency=1)], ["speed"], "objective 'speed': no row has this figure; there are latency"),
        ([row(0, latency=1), {"knobs": {}, "figures": {}}], ["latency"], "row 1: has no 'id'"),
        ([{"id": 1, "knobs": [], "figures": {}}], ["latency"], "row 0: 'knobs' must be a mapping, not list"),
        ([row(0, latency="fast")], ["latency"], "row 0: figure 'latency' must be a number or None, not 'fast'"),
    ],
)
def test_what_is_no_study_is_refused(rows: list[dict[str, Any]], objectives: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        front_page(rows, objectives)
    assert str(error.value) == message
