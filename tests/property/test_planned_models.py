"""Models that decide by computed values: right for any data, compiled once per shape, and with the host in the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from npusim import Session, load_config
from npusim.errors import DeadlineError, InputError, UndecidedError, UnsupportedError, UsageError
from npusim.runtime import Result
from npusim.runtime.store import ProgramStore
from npusim.timeline import HOST
from tests.support.examples import examples
from tests.support.onnx_models.oracle import runtime_session
from tests.support.onnx_models.planned import HEADER, inputs_of, planned_model

TINY = load_config("tiny")
BRANCH = (
    HEADER
    + """g (float[5, 8] x) => (float[5, 8] y) {
  s = ReduceSum<keepdims = 0>(x)
  z = Constant<value = float {0.0}>()
  c = Greater(s, z)
  y = If (c) <then_branch = t () => (float[5, 8] a) { p = Relu(x) a = Mul(p, p) },
              else_branch = e () => (float[5, 8] b) { b = Neg(x) }>
}"""
)
ENDLESS = (
    HEADER
    + """g (float[5, 8] x) => (float[5, 8] y) {
  y = Loop ("", "", x) <body = b (int64 i, bool c, float[5, 8] v) => (bool go, float[5, 8] w) {
    w = Relu(v)
    s = ReduceSum<keepdims = 0>(w)
    z = Constant<value = float {-1.0}>()
    go = Greater(s, z)
  }>
}"""
)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every graph that is compiled."""
    found: list[object] = []
    real = ProgramStore.compile

    def compile(self: ProgramStore, key: str, make: Any, *rest: Any, **names: Any) -> Any:
        def made() -> Any:
            found.append(key)
            return make()

        return real(self, key, made, *rest, **names)

    monkeypatch.setattr(ProgramStore, "compile", compile)
    return found


def check_times(result: Result) -> None:
    """Check that the host is a unit like any other, and that every sum covers the whole run."""
    timeline, decisions = result.timeline, result.decisions
    assert decisions is not None
    assert sum(part.end_ps - part.start_ps for part in timeline.critical_path()) == timeline.time_ps
    host = sorted((span.start_ps, span.end_ps) for span in timeline.spans if span.unit == HOST)
    assert all(end <= start for (_, end), (start, _) in pairwise(host))
    assert sum(end - start for start, end in host) == decisions.time_ps + decisions.transfer_ps
    assert timeline.counters.units[HOST].busy_ps == decisions.time_ps + decisions.transfer_ps
    for unit in timeline.counters.units.values():
        assert unit.busy_ps + unit.idle_ps + sum(unit.stalls.values()) == timeline.time_ps
    assert result.total_ps >= result.time_ps
    assert sum(step[2] for step in decisions.steps) == decisions.count


def check_model(seed: int) -> None:
    model = planned_model(seed)
    other = runtime_session(model, optimise=False)
    with Session(TINY, cache_dir=False) as session:
        for number in range(5):
            inputs = inputs_of(10 * seed + number)
            result = session.run(model, inputs)
            np.testing.assert_array_equal(result.outputs["y"], other.run(["y"], inputs)[0])
            if result.decisions is not None:
                check_times(result)


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 10**6))
def test_chains_of_decisions(seed: int) -> None:
    check_model(seed)


def test_other_data_of_known_shapes_compiles_nothing(compiled: list[object]) -> None:
    counts: Counter[int] = Counter()
    with Session(TINY, cache_dir=False) as session:
        for seed in range(6):
            model = planned_model(seed)
            for number in range(3):
                session.run(model, inputs_of(number))
            before = len(compiled)
            first = [session.run(model, inputs_of(number)).outputs["y"].tolist() for number in range(3)]
            assert len(compiled) == before
            second = [session.run(model, inputs_of(number)).outputs["y"].tolist() for number in range(3)]
            assert first == second
            counts[before] += 1


def run(text: str, inputs: Mapping[str, Any], **options: Any) -> Result:
    with Session(TINY.with_(**options), cache_dir=False) as session:
        return session.run(parser.parse_model(text), inputs)


def ones(sign: float = 1.0) -> dict[str, Any]:
    return {"x": np.full((5, 8), sign, np.float32)}


def test_a_decision_takes_its_time() -> None:
    base = run(BRANCH, ones())
    later = run(BRANCH, ones(), **{"host.decision": "501 ns"})
    assert later.time_ps == base.time_ps + 1000
    assert later.total_ps == base.total_ps + 1000
    assert base.decisions is not None
    assert base.decisions.time_ps == TINY.host.decision_ps
    assert [step[:3] for step in base.decisions.steps] == [("If_3", "host If", 1)]


def test_energy_by_unit_and_by_layer_has_one_sum() -> None:
    with Session("edge", cache_dir=False) as session:
        result = session.run(parser.parse_model(BRANCH), ones())
    energy = result.energy
    assert energy.total is not None
    assert energy.total == sum(layer.energy.total or 0 for layer in energy.layers)
    assert energy.total == sum(unit.total or 0 for unit in energy.units.values())
    [waiting] = [layer for layer in energy.layers if (layer.name, layer.kind) == ("host", "transfer")]
    assert waiting.energy.total  # the device leaks and its clock runs while it waits


def test_interrupts_and_transfers_between_programs_are_time_of_the_run() -> None:
    base = run(BRANCH, ones())
    late = run(BRANCH, ones(), **{"host.irq": "9 us"})
    # The interrupt of the second program is after the end.
    assert late.time_ps == base.time_ps + 9_000_000 - TINY.host.irq_ps


def test_only_the_branch_that_is_taken_is_compiled(compiled: list[object]) -> None:
    model = parser.parse_model(BRANCH)
    with Session(TINY, cache_dir=False) as session:
        made = []
        for sign in (1.0, 1.0, -1.0, 1.0):
            before = len(compiled)
            session.run(model, ones(sign))
            made.append(len(compiled) - before)
    assert made[1] == made[3] == 0
    assert made[2] == 1


def test_an_endless_loop_ends_at_the_limit() -> None:
    with Session(TINY, cache_dir=False, decision_limit="1 ms") as session:
        with pytest.raises(DeadlineError, match="after 1000000000 ps of simulated time"):
            session.run(parser.parse_model(ENDLESS), ones())
        assert session.run(parser.parse_model(BRANCH), ones()).outputs["y"].sum() == 40
        assert session.device.connected


def test_what_a_model_with_decisions_cannot_do() -> None:
    model = parser.parse_model(BRANCH)
    with Session(TINY, cache_dir=False) as session:
        with pytest.raises(UndecidedError, match=r"If_3 \(If\)"):
            session.compile(model)
        with pytest.raises(UnsupportedError, match=r"If_3 \(If\)"):
            session.run(model, timing_only=True)
        program = session.compile(model, decisions=True)
        with pytest.raises(UsageError, match="timing_only"):
            session.run(program, timing_only=True)
        with pytest.raises(InputError, match="shape must be"):
            session.run(program, {"x": np.zeros((1, 8), np.float32)})
        assert [str(binding) for binding in program.inputs] == ["x float32[5, 8]"]


def test_a_model_without_decisions_is_one_program() -> None:
    model = parser.parse_model(HEADER + "g (float[5, 8] x) => (float[5, 8] y) { y = Relu(x) }")
    with Session(TINY, cache_dir=False) as session:
        planned, plain = session.compile(model, decisions=True), session.compile(model)
        assert planned.code == plain.code
        assert session.run(planned, ones()).decisions is None


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6))
def test_many_chains_of_decisions(seed: int) -> None:
    check_model(seed)
