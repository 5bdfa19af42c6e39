"""Display of objects at a prompt or in a notebook: short, informative, and with escaped names."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import notebook
from npusim.dtypes import DType
from npusim.explore import Study, compare_text, make_space, report
from npusim.explore.compare import compare
from npusim.graph import Graph
from npusim.isa.functions import Unary
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session
from tests.support.graphs.samples import residual_net

HOSTILE = '<script>&"\x1b[2J\u202e'


def named(name: str, outputs: int = 1) -> Graph:
    """Return networks, inputs and outputs of that name."""
    build = GraphBuilder(name)
    x = build.input(name, (4,), DType.FLOAT32)
    return build.finish([build.add("unary", [x], {"fn": Unary.NEG}, f"{name}{i}") for i in range(outputs)])


def things(graph: Graph) -> list[Any]:
    session = Session("tiny", cache_dir=False)
    program = session.compile(graph)
    inputs = {binding.name: np.ones(binding.shape, np.float32) for binding in program.inputs}
    return [program, session.run(program, inputs), session.run(program, timing_only=True)]


def cells(thing: Any) -> list[str]:
    """Return the texts of the only table. Fails if it is not well-formed."""
    shown = ET.fromstring(thing._repr_html_())
    (table,) = [shown] if shown.tag == "table" else shown.findall("table")
    return [element.text or "" for element in table.iter() if element.tag in ("caption", "th", "td")]


def test_programs_and_results() -> None:
    program, result, timing = things(residual_net(8, 8, 1))
    end = program.outputs[0].name
    counts = f"instructions {program.commands}, operators {len(program.ops)}"
    assert repr(program) == f"<Program 'residual' for 'tiny': {counts}, x float32[1, 3, 8, 8] -> {program.outputs[0]}>"
    time = f"{result.cycles} cycles, {result.time_ps / 10**6:.6g} us"
    assert repr(result) == f"<Result of 'residual' on 'tiny': {time}, outputs: {end!r} float32[1, 8, 8, 8]>"
    assert repr(timing) == f"<Result of 'residual' on 'tiny': {time}, outputs: none>"
    assert cells(program)[:3] == ["Program 'residual'", "device", "'tiny'"]
    assert cells(result)[:3] == ["Result of 'residual' on 'tiny'", "time", time]
    assert cells(result)[-2:] == [repr(end), "float32[1, 8, 8, 8]"]
    pictures = [each for each in ET.fromstring(result._repr_html_()) if each.tag.endswith("svg")]
    assert [each.get("aria-label") for each in pictures] == ["units of tiny over time", "roofline of 3 layers"]


@pytest.mark.parametrize("name", npusim.list_configs())
def test_devices(name: str) -> None:
    config = npusim.load_config(name)
    assert repr(config).startswith(f"<Config {name!r}: cores {config.cores} at ")
    assert len(repr(config)) < 160
    assert cells(config)[:3] == [f"Config {name!r}", "description", config.description]


@pytest.mark.parametrize("name", [HOSTILE, "long" * 1000])
def test_names_are_shown_and_nothing_more(name: str) -> None:
    for thing in things(named(name, 100)):
        assert repr(thing).isprintable()
        assert len(repr(thing)) < 1500
        assert all(text.isprintable() for text in cells(thing))


def test_a_table_is_text() -> None:
    wanted = "<table><caption>a&lt;b</caption><tr><th>&amp;</th><td>&quot;</td></tr></table>"
    assert notebook.table("a<b", [("&", '"')]) == wanted


def test_the_packages_own_names_are_listed() -> None:
    assert {*npusim._HOMES, "explore"} == set(npusim.__all__) <= set(dir(npusim))
    assert all(getattr(npusim, name) is not None for name in dir(npusim))


def test_comparisons_and_studies_show_the_terminals_text() -> None:
    """Escaped: a model's name may be HTML."""
    session = Session("tiny", cache_dir=False)
    runs = [session.run(session.compile(named(HOSTILE, 1)), timing_only=True).to_json_dict() for _ in range(2)]
    compared = compare(runs[0], runs[1], (HOSTILE, "second"))
    assert ET.fromstring(compared._repr_html_()).text == compare_text.text(compared)
    space = make_space(
        {"base": "tiny", "vary": {"matrix.rows": [4, 8]}, "model": [{"network": "squeezenet", "shape": [1, 64, 64, 3]}]}
    )
    study = Study(space, evaluate=lambda *_: pytest.fail("nothing is simulated"))
    assert ET.fromstring(study._repr_html_()).text == report.text(study)
