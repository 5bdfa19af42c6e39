"""The equations behind an operator's time."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from npusim.dtypes import DType
from npusim.errors import UsageError
from npusim.graph import Graph
from npusim.hw.kinds import unit_kinds
from npusim.isa.functions import Unary
from npusim.ops.build import GraphBuilder
from npusim.program import Program
from npusim.report.explain import as_json, explain, find_operators, slowest_first, text
from npusim.runtime import Result, Session


def _graph() -> Graph:
    build = GraphBuilder("net")
    x = build.input("x", (40, 96), DType.FLOAT32)
    w = build.const(np.ones((96, 24), np.float32), "w")
    first = build.add("unary", [build.add("matmul", [x, w], name="dense")], {"fn": Unary.GELU}, name="gelu")
    values, _ = build.add_all("topk", [first], {"axis": 1, "k": 2, "largest": True}, name="dense.top")
    return build.finish([first, values])


@pytest.fixture(scope="module")
def ran() -> tuple[Program, Result, Session]:
    session = Session("tiny", cache_dir=False)
    program = session.compile(_graph())
    return program, session.run(program, timing_only=True), session


def test_terms_add_up_to_the_cycles_and_busy_times_to_the_spans(ran: tuple[Program, Result, Session]) -> None:
    program, result, session = ran
    for op in range(len(program.ops)):
        found = explain(program, result, session.config, op)
        for unit, charges in found.charges.items():
            for charge in charges:
                assert sum(cycles for _, cycles in charge.cost.terms) == charge.cost.cycles
            spans = [s for s in result.timeline.spans if s.op == op and unit in s.unit]
            assert found.busy_ps[unit] == sum(s.end_ps - s.start_ps for s in spans)
            assert sum(charge.count for charge in charges) == len(spans)


def test_units_that_work_side_by_side_are_busy_once() -> None:
    with Session("server", cache_dir=False) as session:
        program = session.compile(_graph())
        result = session.run(program, timing_only=True)
    found = explain(program, result, session.config, 0)
    spans = [span for span in result.timeline.spans if span.op == 0 and ".dma" in span.unit]
    assert found.busy_ps["dma"] <= found.timing.end_ps - found.timing.start_ps
    assert found.busy_ps["dma"] < sum(span.end_ps - span.start_ps for span in spans)


def test_the_text_has_the_equation_its_terms_and_the_one_that_binds(ran: tuple[Program, Result, Session]) -> None:
    program, result, session = ran
    said = text(explain(program, result, session.config, *find_operators(program, "dense")), session.config)
    assert "dense (matmul+gelu) on tiny" in said
    assert "folds   = batch * ceil(rows / R) * ceil(columns / C)" in said
    assert "a partial fold costs as much as a full one; several ``arrays`` share folds" in said, "continued"
    assert "stream " in said
    assert "compute" in said


def test_json_carries_the_terms(ran: tuple[Program, Result, Session]) -> None:
    program, result, session = ran
    found = as_json(explain(program, result, session.config, *find_operators(program, "top")))
    (charge,) = found["units"]["scalar"]["instructions"]
    assert charge["mnemonic"] == "scalar.topk"
    assert sum(charge["terms"].values()) == charge["cycles"]


def test_operators_are_found_by_a_part_of_their_names(ran: tuple[Program, Result, Session]) -> None:
    program = ran[0]
    assert find_operators(program, "dense") == [0]
    assert find_operators(program, "top") == [1]
    assert find_operators(program, "DEN") == [0, 1]
    assert find_operators(program, "matmul") == [0], "its kind"
    with pytest.raises(UsageError, match=r"operator 'conv9' is not an operator of this program: "):
        find_operators(program, "conv9")


def test_of_several_the_slowest_is_explained_and_the_others_are_named(ran: tuple[Program, Result, Session]) -> None:
    program, result, session = ran
    first, second = slowest_first(program, result, [0, 1])
    assert [first, second] == slowest_first(program, result, [1, 0])
    times = [as_json(explain(program, result, session.config, op))["time_ps"] for op in (first, second)]
    assert times[0] >= times[1]
    names = [program.ops[second].name]
    found = explain(program, result, session.config, first)
    line, _, title, *_ = text(found, session.config, names).splitlines()
    assert line == f"the slowest of 2 such operators; the others: {names[0]}"
    assert title.startswith(program.ops[first].name)
    assert text(found, session.config, ["a"] * 99).splitlines()[0].endswith(", ".join("a" * 12) + ", ...")


@pytest.mark.parametrize("name", ["dma", "vector", *(f"matrix_{kind}" for kind in unit_kinds("matrix"))])
def test_every_cost_model_states_its_equations(name: str) -> None:
    manual = importlib.import_module(f"npusim.hw.units.{name}").__doc__ or ""
    assert any(line.startswith("    ") and " = " in line for line in manual.splitlines())
