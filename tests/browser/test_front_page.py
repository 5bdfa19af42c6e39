"""The page of a study in a browser: Pareto front, filters, effects, descriptions, and hostile names."""

from __future__ import annotations

import json

import pytest

from npusim.report.html import front_page
from tests.support.browser import Browser
from tests.support.pages import HOSTILE, hostile_rows, study_rows

ROWS = study_rows(300)
PAGE = front_page(ROWS, ["latency", "area"], title="Sizes of arrays", limits={"area": (None, 1_200_000)})
DATA = json.loads(PAGE.partition('id="data">')[2].partition("</script>")[0])
PANEL = "#design h3"


@pytest.fixture
def page(browser: Browser) -> Browser:
    browser.open(PAGE)
    return browser


def test_every_part_is_drawn(page: Browser) -> None:
    assert page.count("#scatter path[data-index]") == len(DATA["front"])
    assert page.texts("#scatter .limit-text") == ["at most 1.20 mm2"]
    knobs = list(ROWS[0]["knobs"])
    names = [text.rstrip(" \u2191\u2193") for text in page.texts("#parallel [data-axis] .title")]
    assert names == [*knobs, "latency", "area", "energy"]
    assert set(page.texts("#effects figcaption b")) == set(knobs)
    assert page.texts("#table [role=status]") == ["300 of 300 shown"]
    assert [url for url in page.requests if not url.startswith("file:")] == []


def test_figures_far_below_one_are_numbers(browser: Browser) -> None:
    rows = [
        {**row, "figures": {**row["figures"], "joules": row["id"] * 1e-6 + 1e-6}, "units": {"joules": ""}}
        for row in study_rows(3)
    ]
    browser.open(front_page(rows, ["joules", "area"], title="Products"))
    heads = browser.texts("#table thead th")
    cells = browser.texts(f"#table tbody td:nth-child({heads.index('joules') + 1})")
    assert [cell.split()[0] for cell in cells] == ["1e-6", "2e-6", "3e-6"]
    assert "0.00" not in " ".join(browser.texts("#scatter svg.picture text"))


def test_the_front_is_walked_with_keys(page: Browser) -> None:
    seen = []
    page.press("#scatter svg.picture", "HOME")
    for _ in DATA["front"]:
        seen += page.texts(PANEL)
        page.press("#scatter svg.picture", "ARROW_RIGHT")
    assert seen == [f"Design {DATA['ids'][number]}" for number in DATA["front"]]
    assert page.texts("#table tr[aria-selected=true] th") == DATA["ids"][DATA["front"][-1] :][:1]


def test_a_point_opens_its_description_and_figures(page: Browser) -> None:
    page.click("#scatter path[data-index]")
    number = int(page.texts(PANEL)[0].removeprefix("Design "))  # of points on one spot the last one
    assert number in DATA["front"]
    assert page.texts("#table tr[aria-selected=true] th") == [str(number)]
    assert page.texts("#design pre") == [ROWS[number]["config"]]
    tier = ROWS[number]["tier"]
    assert page.texts("#design dd")[0].endswith(tier)
    page.ask("document.querySelector('#design details').open = true")
    page.click("#design .controls button")
    assert page.ask("return document.querySelector('#design [role=status]').textContent") in ("copied", "")
    page.ask("return new Promise((done) => setTimeout(done, 200))")
    assert page.texts("#design [role=status]") == ["copied"]


def test_every_description_comes_back_whole(page: Browser) -> None:
    rows = "#table tbody tr"
    for number in (0, 7, 90):
        page.ask("document.querySelector(arguments[0]).click()", f"{rows}[data-index='{number}']")
        assert page.texts("#design pre") == [ROWS[number]["config"]]


def test_a_filter_keeps_the_designs_that_pass_it(page: Browser) -> None:
    axis = "#parallel [data-axis='0']"
    page.press(axis, "ARROW_UP")
    kept = [row for row in ROWS if row["knobs"]["matrix.rows"] in (32, 64)]
    assert page.texts("#table [role=status]") == [f"{len(kept)} of 300 shown"]
    assert f"{len(kept)} of 300 designs pass the filters" in page.texts("#parallel [role=status]")
    assert page.ask("return document.activeElement.dataset.axis") == "0"
    assert page.attribute(axis, "aria-valuetext") == "kept from 50 to 100 percent of the axis"
    assert page.count("#scatter path[data-index]") == sum(ROWS[n] in kept for n in DATA["front"])
    page.press(axis, "ESCAPE")
    assert page.texts("#table [role=status]") == ["300 of 300 shown"]


def test_a_filter_is_dragged(page: Browser) -> None:
    drag = """
    const hit = document.querySelector("[data-axis='0'] .hit"); const box = hit.getBoundingClientRect();
    const say = (name, part) => hit.dispatchEvent(new PointerEvent(name, {bubbles: true, buttons: 1,
        clientX: box.x + box.width / 2, clientY: box.y + box.height * part}));
    say("pointerdown", 0.02); say("pointermove", 0.2); say("pointermove", 0.3); say("pointerup", 0.3);
    """
    page.ask(drag)
    kept = [row for row in ROWS if row["knobs"]["matrix.rows"] == 64]
    assert page.texts("#table [role=status]") == [f"{len(kept)} of 300 shown"]


def test_any_two_figures_are_set_against_each_other(page: Browser) -> None:
    page.ask(
        "const [, up] = document.querySelectorAll('#scatter select');"
        "up.value = 'energy'; up.dispatchEvent(new Event('change'))"
    )
    known = sum(ROWS[number]["figures"]["energy"] is not None for number in DATA["front"])
    assert page.count("#scatter path[data-index]") == known
    assert "energy" in str(page.attribute("#scatter svg.picture", "aria-label"))


def test_effects_are_of_the_metric_that_is_chosen(page: Browser) -> None:
    page.ask(
        "const own = document.querySelector('#effects select');"
        "own.value = 'area'; own.dispatchEvent(new Event('change'))"
    )
    known = sum(row["tier"] == "estimated" and row["figures"].get("area") is not None for row in ROWS)
    (said,) = page.texts("#effects [role=status]")
    assert said.startswith("Changes of area between designs that differ in one knob alone")
    assert f"of {known} designs, estimated" in said
    assert page.texts("#effects figcaption b")[0] == "matrix.rows"


def test_ten_thousand_designs_are_few_elements(browser: Browser) -> None:
    browser.open(front_page(study_rows(10_000), {"latency": "min", "area": "min"}))
    assert browser.texts("#table [role=status]") == ["10000 of 10000 shown"]
    assert browser.count("*") < 12_000
    browser.click("#table .more")
    assert browser.count("#table tbody tr") == 10_000


def test_names_are_shown_and_not_obeyed(browser: Browser) -> None:
    browser.open(front_page(hostile_rows(), ["latency"], title=HOSTILE[0], notes=[(HOSTILE[1], HOSTILE[2])]))
    browser.press("#scatter svg.picture", "HOME")
    browser.ask("document.querySelector('#table tbody tr:last-child').click()")
    assert browser.ask("return window.hit") is None
    assert browser.count("img") == 0
    assert browser.texts("h1") == [HOSTILE[0]]
    assert HOSTILE[1] in browser.texts("#summary dt")
    assert HOSTILE[0] in browser.texts("#design pre")[0]


def test_a_study_without_designs_says_so(browser: Browser) -> None:
    browser.open(front_page([], ["latency"]))
    assert browser.texts("#scatter .note")[-1] == "The study has no designs."
