"""Models with decisions on data: the chosen parts run on the device, and the host's decision work is reported with its
time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from npusim import Session, load_config
from npusim.runtime import Result
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.run_time_decisions import Decided, branching_mlp, decided_model, two_products
from tests.support.onnx_models.small import text_model

TINY = load_config("tiny")


def check(case: Decided, session: Session) -> Result:
    """Check the result, and that the device takes no longer than for the model without decisions."""
    result, straight = session.run(case.model, case.inputs), session.run(case.straight, case.straight_inputs)
    expected = runtime_outputs(case.model, case.inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(result.outputs[name], array, err_msg=name)
    assert result.macs == straight.macs
    assert result.cycles >= straight.cycles
    floats = [name for name, array in case.inputs.items() if array.dtype == np.float32]
    assert {binding.name for binding in result.program.inputs} >= set(floats)
    assert not any(name in dict(result.program.bound) for name in floats)
    # A truth value that comes in needs no computing.
    assert result.program.host.work or "if on an input" in case.features
    check_host_work(result)
    return result


def check_host_work(result: Result) -> None:
    """Check that decisions cost the host time, which is part of the total time."""
    work = result.program.host.work
    assert result.host_work_ps == sum(each.operations for each in work) * TINY.host.operation_ps
    assert result.host_ps > result.host_work_ps
    if work:
        told = result.to_json_dict()
        assert sum(each["time_ps"] for each in told["host_work"]) == told["host_work_ps"] == result.host_work_ps


def check_bound(case: Decided, session: Session) -> None:
    """Check that a model bound on request is folded, and that every product is on the device or the host."""
    program = session.compile(case.model, bind=case.inputs)
    result, straight = session.run(program), session.run(case.straight, case.straight_inputs)
    for name, array in runtime_outputs(case.model, case.inputs).items():
        np.testing.assert_array_equal(result.outputs[name], array, err_msg=name)
    assert result.macs + program.host.macs >= straight.macs
    check_host_work(result)


@pytest.mark.parametrize("seed", range(12))
def test_decisions(seed: int) -> None:
    with Session(TINY, cache_dir=False) as session:
        check(decided_model(seed), session)
        check_bound(decided_model(seed), session)


@pytest.mark.slow
def test_many_decisions() -> None:
    features: Counter[str] = Counter()
    for seed in range(12, 300):
        case = decided_model(seed)
        with Session(TINY, cache_dir=False) as session:
            check(case, session)
            check_bound(case, session)
        features.update(case.features)
    assert min(features.values()) > 20
    assert len(features) == 7


@pytest.mark.parametrize("hidden", [(32, 32), pytest.param((256, 256), marks=pytest.mark.slow)])
def test_networks_with_a_branch_keep_their_products(hidden: tuple[int, int]) -> None:
    x = np.random.default_rng(1).integers(-3, 4, (1, 32)).astype(np.float32)
    with Session(TINY, cache_dir=False) as session:
        result = check(branching_mlp((32, *hidden, 10), x), session)
    assert result.macs == 32 * hidden[0] + hidden[0] * hidden[1] + hidden[1] * 10
    assert result.program.host.macs == 32 * hidden[0] + hidden[0] * hidden[1]


def test_each_branch_is_a_program_and_is_found_again() -> None:
    """Inputs with the same decisions share a program; a program refuses inputs with other decisions."""
    rng = np.random.default_rng(2)
    with Session(TINY, cache_dir=False) as session:
        results = [
            check(two_products(rng.integers(-3, 4, (2, 8)).astype(np.float32)), session).program for _ in range(8)
        ]
    assert len({id(program) for program in results}) == 2


def test_what_is_bound_scales_on_the_device() -> None:
    """A factor per column would be folded into constant weights if it were not the value of an input."""
    weights = "{" + ", ".join(["1"] * 32) + "}"
    body = f"<float[8, 4] w = {weights}> {{ p = MatMul(x, w) y = Mul(p, s) }}"
    x, s = np.ones((2, 8), np.float32), np.float32([1, 2, 3, 4])
    with Session(TINY, cache_dir=False) as session:
        free = session.compile(text_model(f"g (float[2, 8] x, float[4] s) => (float y) {body}"))
        program = session.compile(text_model(f"g (float[2, 8] x, float[4] s) => (float y) {body}"), bind={"s": s})
        np.testing.assert_array_equal(session.run(program, {"x": x}).outputs["y"], 8 * np.tile(s, (2, 1)))
    assert [work[1:] for work in program.host.work] == [("constant", 0, 4)]
    members = {name for op in program.ops for name in (op.name, *op.members)}
    assert members == {name for op in free.ops for name in (op.name, *op.members)}
