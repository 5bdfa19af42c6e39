"""The page of two runs in a browser: sums, links, keys, and hostile names."""

from __future__ import annotations

import pytest

from npusim.explore.compare import compare
from npusim.report.html import compare_page
from tests.support.browser import Browser
from tests.support.pages import HOSTILE, compared, demo_run

FOUND = compared()
PANEL = "#layer h3"


@pytest.fixture
def page(browser: Browser) -> Browser:
    browser.open(compare_page(FOUND, notes=[("time", "longer")]))
    return browser


def test_every_part_is_drawn(page: Browser) -> None:
    assert page.texts("#shares figcaption") == ["time by unit: +4 us in all", "time by cause: +4 us in all"]
    assert set(FOUND["units"]) < set(page.texts("#shares figure:first-of-type text"))
    assert page.texts("#table tbody th") == ["conv", "pool", "head", "gone"]  # by the size of the difference
    assert page.requests[1:] == []


def test_energy_and_traffic_add_up_to_their_differences(browser: Browser) -> None:
    run = demo_run()
    other = run.to_json_dict()
    other["dram_read_bytes"] += 1000
    other["energy"]["parts"][0]["value"] += 5_120_000_000
    other["energy"]["total"] += 5_120_000_000
    found = compare(run.to_json_dict(), other)
    browser.open(compare_page(found.to_json_dict()))
    (action,) = found.energy
    assert browser.texts("#shares figcaption")[2:] == [
        "energy by action: +5.12 uJ in all", "DRAM traffic by direction: +1 kB in all"
    ]  # fmt: skip
    assert browser.texts("#shares figure:nth-child(3) text") == [action, "+5.12 uJ"]


def test_bars_and_rows_are_linked(page: Browser) -> None:
    page.click("#table tbody tr:nth-child(2)")
    assert page.texts(PANEL) == ["pool"]
    assert page.count("#bars .outlined") == 1
    page.press("#bars svg.picture", "HOME")
    assert page.texts(PANEL) == ["conv"]
    assert page.texts("#layer dt")[-2:] == ["+6 us", "\u22121 us"]
    page.press("#bars svg.picture", "ARROW_RIGHT")
    assert page.texts("#table tr[aria-selected=true] th") == ["pool"]


def test_a_comparison_of_equal_runs_is_empty(browser: Browser) -> None:
    same = {**FOUND, "layers": [], "units": {}, "causes": {}, "delta_ps": 0}
    browser.open(compare_page(same))
    browser.press("#bars svg.picture", "ARROW_RIGHT")
    assert browser.texts("#table [role=status]") == ["0 of 0 shown"]


def test_names_are_shown_and_not_obeyed(browser: Browser) -> None:
    layers = [{**layer, "name": f"{HOSTILE[0]}{n}", "kind": HOSTILE[1]} for n, layer in enumerate(FOUND["layers"])]
    units = {HOSTILE[2]: 5}
    browser.open(compare_page({**FOUND, "labels": HOSTILE[:2], "layers": layers, "units": units}))
    browser.press("#bars svg.picture", "HOME")
    assert browser.ask("return window.hit") is None
    assert browser.count("img") == 0
    assert browser.texts(PANEL) == [f"{HOSTILE[0]}0"]
