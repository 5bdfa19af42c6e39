"""Every page in several widths and in print: no word is broken, no text is cut, no label covers another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from npusim.program import OpEntry
from npusim.report.html import compare_page, front_page, run_page
from tests.support.browser import Browser
from tests.support.pages import compared, demo_run, study_rows

BROKEN = """
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  if (node.parentElement.closest('pre, script, option, svg, .skip')) continue;
  for (const word of node.data.matchAll(/[A-Za-z0-9]+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size > 1) found.push(word[0]);
  }
}
return found;
"""
"""Words on two lines."""
CUT = """
const inside = (own, frame) => own.left >= frame.left - 1 && own.right <= frame.right + 1
  && own.top >= frame.top - 1 && own.bottom <= frame.bottom + 1;
const labels = [...document.querySelectorAll('svg.picture text')].filter((each) => each.textContent.trim())
  .filter((each) => !inside(each.getBoundingClientRect(), each.closest('svg').getBoundingClientRect()));
const wide = [...document.querySelectorAll('section *')].filter((each) => !each.closest('pre, svg, select')
  && !['auto', 'scroll'].includes(getComputedStyle(each).overflowX)
  && each.clientWidth && each.scrollWidth > each.clientWidth + 1 && !each.querySelector('.scroll, pre, svg'));
return [...labels, ...wide].map((each) => each.tagName + ' ' + each.textContent.slice(0, 60));
"""
"""Labels beyond their picture, and elements narrower than their text."""
COVERED = """
const found = [];
for (const root of document.querySelectorAll('svg.picture')) {
  // The box of a rotated text says nothing of its letters.
  const own = [...root.querySelectorAll('text:not([transform])')].filter((each) => each.textContent.trim());
  const boxes = own.map((each) => each.getBoundingClientRect());
  boxes.forEach((a, n) => boxes.slice(n + 1).forEach((b, m) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 3) found.push(own[n].textContent + ' | ' + own[n + 1 + m].textContent);
  }));
  // Lines that are drawn later than a text, and cross it.
  for (const line of root.querySelectorAll('line')) {
    const a = line.getBoundingClientRect();
    own.forEach((text, n) => {
      const later = text.compareDocumentPosition(line) & Node.DOCUMENT_POSITION_FOLLOWING;
      const b = boxes[n];
      if (later && a.right > b.left + 1 && a.left < b.right - 1 && a.bottom > b.top + 3 && a.top < b.bottom - 3) {
        found.push(text.textContent + ' | line');
      }
    });
  }
}
return found;
"""
"""Labels of a picture that cover each other, or that a line crosses."""


def run_with_long_names() -> str:
    """Return the page of the demo with names as of large networks."""
    run = demo_run()
    entries = [
        OpEntry(f"features.denseblock{n}.denselayer12.conv2/Conv_quant.{entry.name}", "conv+dequantize+add+quantize")
        for n, entry in enumerate(run.program.ops)
    ]
    program = dataclasses.replace(run.program, ops=entries)
    return run_page(dataclasses.replace(run, program=program, _ops=[], _memory=None, _energy=None))


def study_with_limits(ends: str) -> str:
    """Return the page of a study of two models with limits at the ``low`` or ``high`` ends of both objectives."""
    rows = study_rows(40)
    for row in rows:
        row["figures"] |= {"latency(mobilenet_v2)": 3 * row["figures"]["latency"], "dram_bytes(mobilenet_v2)": 1234567}
        row["knobs"] |= {"dram.bandwidth": row["knobs"]["dram.bandwidth"], "matrix.accumulator_bytes": "1.5 MiB"}
        row["knobs"]["technology.sram_layout_factor"] = row["id"] % 3
    limits = {}
    for name in ("latency", "area"):
        values = sorted(row["figures"][name] for row in rows)
        limits[name] = (values[0], values[2]) if ends == "low" else (values[-3], values[-1])
    tiles = [("least latency(mobilenet_v2)", "38.8 us", "design 3: matrix.rows 16, matrix.accumulator_bytes 1.5 MiB")]
    return front_page(rows, ["latency", "area"], title="Sizes of arrays", limits=limits, tiles=tiles * 5, best=7)


PAGES = {
    "run": lambda: run_page(demo_run()),
    "long names": run_with_long_names,
    "study, low limits": lambda: study_with_limits("low"),
    "study, high limits": lambda: study_with_limits("high"),
    "comparison": lambda: compare_page(compared(), notes=[("time", "longer")]),
}


@pytest.fixture
def sized(browser: Browser) -> Iterator[Browser]:
    yield browser
    browser.driver.set_window_size(1300, 900)


@pytest.mark.parametrize("name", PAGES)
def test_no_text_is_broken_cut_or_covered(sized: Browser, name: str) -> None:
    sized.driver.set_window_size(1200, 900)
    sized.open(PAGES[name]())
    for media, width in (("", 1200), ("", 1400), ("", 420), ("print", 740)):
        sized.emulate(media=media)
        sized.driver.set_window_size(width, 900)
        sized.ask("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        for script in (BROKEN, CUT, COVERED):
            assert sized.ask(script) == [], f"{media} {width}"


def test_the_first_picture_is_seen_without_scrolling(sized: Browser) -> None:
    sized.driver.set_window_size(1200, 900)
    for name, part in (("run", "#roofline"), ("study, low limits", "#scatter")):
        sized.open(PAGES[name]())
        script = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
        assert sized.ask(script, f"{part} svg.picture") <= 900
