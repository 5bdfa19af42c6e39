"""Every page on a phone: nothing is wider than the window, except elements that scroll by themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from npusim.program import OpEntry
from npusim.report.html import compare_page, front_page, run_page
from tests.support.browser import Browser
from tests.support.pages import compared, demo_run, study_rows

WIDTH = 420
BEYOND = """
const wide = (each) => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest('.scroll, pre');
return [...document.querySelectorAll('body *')].filter(wide).map((each) => each.tagName + each.textContent.slice(0, 9));
"""


@pytest.fixture
def narrow(browser: Browser) -> Iterator[Browser]:
    browser.driver.set_window_size(WIDTH, 900)
    yield browser
    browser.driver.set_window_size(1300, 900)


def long_names() -> str:
    """Return the demo with kinds as long as those of quantised networks."""
    run = demo_run()
    kind = "+".join(["conv", *["dequantize", "sigmoid", "quantize"] * 3])
    entries = [OpEntry(f"model.{n}/convolution/QuantizeLinear", kind) for n in range(len(run.program.ops))]
    program = dataclasses.replace(run.program, ops=entries)
    return run_page(dataclasses.replace(run, program=program, _ops=[], _memory=None, _energy=None))


@pytest.mark.parametrize("kind", ["run", "study", "comparison"])
def test_nothing_is_wider_than_the_window(narrow: Browser, kind: str) -> None:
    match kind:
        case "run":
            narrow.open(long_names())
        case "study":
            narrow.open(front_page(study_rows(40), ["latency", "area"], title="Sizes of arrays"))
        case _:
            narrow.open(compare_page(compared(), notes=[("time", "longer")]))
    assert narrow.ask("return innerWidth") == WIDTH
    assert narrow.ask(BEYOND) == []
    assert narrow.ask("return document.documentElement.scrollWidth") == WIDTH
