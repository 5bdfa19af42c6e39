"""The page of a run in a browser: drawing, links, keys, an empty console, and hostile names."""

from __future__ import annotations

import pytest

from npusim.report.format import duration, quantity
from npusim.report.html import run_page
from npusim.report.layers import layers, why
from tests.support.browser import Browser
from tests.support.pages import HOSTILE, demo_run, hostile_run

PAGE = run_page(demo_run())
LAYERS = len(demo_run().ops)
ROW = "#layers tbody tr[aria-selected=true] th"
PANEL = "#layer h3"


@pytest.fixture
def page(browser: Browser) -> Browser:
    browser.open(PAGE)
    return browser


def test_every_part_is_drawn(page: Browser) -> None:
    with_macs = sum(row.macs > 0 for row in demo_run().ops)
    assert page.count("#roofline svg.picture path[data-index]") == with_macs
    units = sorted({span.unit for span in demo_run().timeline.spans})
    drawn = page.texts("#lanes svg.picture:first-of-type > text")
    assert [text for text in drawn if "." in text and ":" not in text] == [unit for unit in units if "." in unit]
    titles = [text for text in page.texts("#lanes svg.picture > text") if ": peak " in text]
    assert [title.partition(":")[0] for title in titles] == [each.memory for each in demo_run().memory]
    assert page.count("#layers tbody tr") == LAYERS
    assert page.count("#units tbody tr") == len(demo_run().counters.units)
    assert duration(demo_run().time_ps) in " ".join(page.texts("#summary dd"))


def test_nothing_but_the_file_is_loaded(page: Browser) -> None:
    assert [url for url in page.requests if not url.startswith("file:")] == []
    assert len(page.requests) == 1


def test_a_row_selects_its_layer_everywhere(page: Browser) -> None:
    name = page.texts("#layers tbody th")[3]
    page.click("#layers tbody tr:nth-child(4)")
    assert page.texts(PANEL) == [name]
    assert page.texts(ROW) == [name]
    assert page.count("#lanes .span") == 1 + len(demo_run().memory)
    assert page.count("#bars .outlined") >= 2
    assert name in str(page.attribute("#lanes svg.picture", "aria-label"))


def test_a_point_selects_its_layer_everywhere(page: Browser) -> None:
    index = int(page.attribute("#roofline path[data-index]", "data-index") or -1)
    page.click("#roofline path[data-index]")
    assert page.texts(PANEL) == [page.texts("#layers tbody th")[index]]
    assert page.count("#roofline .ring") == 1


def test_the_roofline_is_walked_with_keys(page: Browser) -> None:
    seen = []
    page.press("#roofline svg.picture", "HOME")
    for _ in range(page.count("#roofline path[data-index]")):
        seen += page.texts(PANEL)
        page.press("#roofline svg.picture", "ARROW_RIGHT")
    assert len(set(seen)) == len(seen) == page.count("#roofline path[data-index]")
    page.press("#roofline svg.picture", "END")
    assert page.texts(PANEL) == seen[-1:]


def test_time_is_zoomed_and_moved_with_keys(page: Browser) -> None:
    lanes = "#lanes svg.picture"

    def stretch() -> str:
        return str(page.attribute(lanes, "aria-label"))

    everything = stretch()
    whole = demo_run().timeline.time_ps
    assert f"from 0 s to {duration(whole)}" in everything
    page.press(lanes, "+")
    assert f"from {duration(whole // 4)} to {duration(whole * 3 // 4)}" in stretch()
    page.press(lanes, "ARROW_RIGHT")
    assert f"from {duration(whole * 7 // 20)} to {duration(whole * 17 // 20)}" in stretch()
    page.press(lanes, "ARROW_LEFT", "-")
    assert stretch() == everything
    page.press(lanes, "+", "+", "0")
    assert stretch() == everything
    page.press(lanes, "ARROW_DOWN", "ENTER")
    assert stretch() != everything
    assert len(page.texts(PANEL)) == 1


def test_moments_are_told_apart_however_closely_one_looks(page: Browser) -> None:
    lanes = "#lanes svg.picture"
    for _ in range(4):
        page.press(lanes, *"+++++")
        ticks = page.texts("#lanes svg.picture:first-of-type .axis text")[:-1]
        assert len(ticks) >= 2
        assert len(set(ticks)) == len(ticks)


def test_time_is_zoomed_with_the_wheel_only_with_the_focus(page: Browser) -> None:
    lanes = "#lanes svg.picture"
    wheel = (
        "const [at] = [document.querySelector(arguments[0])]; const box = at.getBoundingClientRect();"
        "at.dispatchEvent(new WheelEvent('wheel', {deltaY: -100, clientX: box.x + box.width / 2, clientY: box.y + 40,"
        "bubbles: true, cancelable: true}))"
    )
    before = page.attribute(lanes, "aria-label")
    page.ask(wheel, lanes)
    assert page.attribute(lanes, "aria-label") == before
    page.ask("document.querySelector(arguments[0]).focus()", lanes)
    page.ask(wheel, lanes)
    assert page.attribute(lanes, "aria-label") != before


def test_the_table_sorts_both_ways(page: Browser) -> None:
    heads = page.texts("#layers thead th")
    column = heads.index("DRAM") + 1
    shown = {op.name: op.dram_bytes for op in demo_run().ops}
    page.click(f"#layers thead th:nth-child({column}) button")
    assert page.attribute(f"#layers thead th:nth-child({column})", "aria-sort") == "descending"
    falling = [shown[name] for name in page.texts("#layers tbody th")]
    assert falling == sorted(shown.values(), reverse=True)
    page.click(f"#layers thead th:nth-child({column}) button")
    assert [shown[name] for name in page.texts("#layers tbody th")] == sorted(shown.values())


def test_numbers_are_written_as_in_the_report(page: Browser) -> None:
    """The page's scripts and ``npusim.report.format`` implement the formats separately."""
    heads = page.texts("#layers thead th")
    found = layers(demo_run())

    def column(head: str) -> list[str]:
        return page.texts(f"#layers tbody td:nth-child({heads.index(head) + 1})")

    assert column("adds") == [duration(layer.added_ps) for layer in found]
    assert column("MACs") == [quantity(layer.timing.macs, "").strip() for layer in found]
    assert column("DRAM") == [quantity(layer.timing.dram_bytes, "B") for layer in found]
    assert column("why") == [why(layer, demo_run().device) for layer in found]


def test_the_last_row_is_the_total_of_the_rows_shown(page: Browser) -> None:
    heads = page.texts("#layers thead th")

    def totals() -> dict[str, str]:
        return dict(zip(heads, page.texts("#layers tfoot td"), strict=True))

    found = layers(demo_run())
    assert totals()["layer"] == "total"
    assert totals()["adds"] == duration(sum(layer.added_ps for layer in found))
    assert totals()["DRAM"] == quantity(sum(layer.timing.dram_bytes for layer in found), "B")
    assert totals()["MACs"] == quantity(sum(layer.timing.macs for layer in found), "").strip()
    assert totals()["why"] == ""
    page.find("#layers input").send_keys(found[0].timing.name)
    assert totals()["adds"] == duration(found[0].added_ps)


def test_the_table_filters_by_words_and_by_choice(page: Browser) -> None:
    page.find("#layers input").send_keys("conv relu")
    kinds = {op.name: op.kind for op in demo_run().ops}
    wanted = {name for name, kind in kinds.items() if "conv" in kind and "relu" in kind}
    assert set(page.texts("#layers tbody th")) == wanted
    assert page.texts("#layers [role=status]") == [f"{len(wanted)} of {LAYERS} shown"]
    page.find("#layers input").clear()
    page.find("#layers input").send_keys("no such layer")
    assert page.count("#layers tbody tr") == 0
    page.ask(
        "const box = document.querySelector('#layers input'); box.value = ''; box.dispatchEvent(new Event('input'))"
    )
    page.ask(
        "const box = document.querySelectorAll('#layers select')[1];"
        "box.value = 'memory'; box.dispatchEvent(new Event('change'))"
    )
    bound = {layer.timing.name for layer in layers(demo_run()) if layer.bound == "memory"}
    assert set(page.texts("#layers tbody th")) == bound


def test_rows_are_walked_with_keys(page: Browser) -> None:
    names = page.texts("#layers tbody th")
    page.press("#layers tbody tr[tabindex='0']", "HOME", "ARROW_DOWN")
    assert page.texts(PANEL) == names[1:2]
    page.press("#layers tbody tr[tabindex='0']", "END")
    assert page.texts(PANEL) == names[-1:]
    assert page.ask("return document.activeElement.querySelector('th').textContent") == names[-1]


def test_all_of_it_is_reached_with_the_tab_key(page: Browser) -> None:
    script = "return document.activeElement.closest('section')?.id + ' ' + document.activeElement.tagName.toLowerCase()"
    reached = set()
    for _ in range(60):
        page.press_tab()
        reached.add(page.ask(script))
    pictures = {f"{part} svg" for part in ("roofline", "lanes", "bars")}
    assert reached >= pictures | {"layers button", "layers input", "layers select", "layers tr", "summary summary"}
    unnamed = (
        "return [...document.querySelectorAll('svg.picture')].filter((each) => !each.getAttribute('aria-label')).length"
    )
    assert page.ask(unnamed) == 0


def test_colours_follow_the_system_and_the_button(page: Browser) -> None:
    light = page.style("body", "backgroundColor")
    page.emulate(colours="dark")
    dark = page.style("body", "backgroundColor")
    assert light == "rgb(255, 255, 255)" != dark
    page.find("#theme").click()
    assert page.style("body", "backgroundColor") == light
    page.find("#theme").click()
    page.emulate(colours="light")
    assert page.style("body", "backgroundColor") == dark
    assert page.texts("#theme") == ["Colours: dark"]
    page.emulate(media="print")
    assert page.style("body", "backgroundColor") == light
    assert page.style("#theme", "display") == "inline-block"
    assert page.style(".tools", "display") == "none"
    assert page.style("#layers .scroll", "overflow") == "visible"


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_text_has_contrast(page: Browser, colours: str) -> None:
    """4.5 to 1, as WCAG 2 requires for text: headings, notes, cells, and labels of pictures."""
    page.emulate(colours=colours)
    paper = _luminance(page.style("body", "backgroundColor"))
    for selector, name in (("h2", "color"), (".note", "color"), ("#layers td", "color"), (".axis text", "fill")):
        ink = _luminance(page.style(selector, name))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, selector


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_names_are_shown_and_not_obeyed(browser: Browser) -> None:
    browser.open(run_page(hostile_run(), notes=[(HOSTILE[2], HOSTILE[0])]))
    browser.press("#layers tbody tr[tabindex='0']", "ARROW_DOWN")
    browser.press("#lanes svg.picture", "ARROW_DOWN", "ENTER")
    assert browser.ask("return window.hit") is None
    assert browser.count("img") == 0
    assert browser.count("script") == 2
    names = browser.texts("#layers tbody th")
    assert any(name.startswith(HOSTILE[0]) for name in names)
    assert any("\\u202e" in name and "\\x00" in name for name in names)
    assert HOSTILE[0] in browser.texts("h1")[0]
    assert [url for url in browser.requests if not url.startswith("file:")] == []


def test_the_policy_stops_what_would_slip_in(page: Browser) -> None:
    page.ask(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://127.0.0.1:9/x\" onerror=\"window.hit=1\">');"
        "const own = document.createElement('script'); own.textContent = 'window.hit=2'; document.body.append(own)"
    )
    assert page.ask("return window.hit") is None
    refused = page.console()
    assert refused
    assert all("Content Security Policy" in line for line in refused)
