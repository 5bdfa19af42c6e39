"""Programs for given decisions of inputs: what they refuse, and the host cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from npusim import Session, load_config
from npusim.cache import read_program, write_program
from npusim.errors import InputError, NeedsValueError, UndecidedError
from npusim.explore.rerun import rerun
from npusim.graph import HostWork
from npusim.runtime import Executor, Request, Result
from tests.support.onnx_models.small import text_model

TINY = load_config("tiny")
BRANCH = """g (float[n] x, float limit) => (float y) {
    sum = ReduceSum<keepdims = 0>(x) c = Greater(sum, limit)
    y = If (c) <then_branch = t () => (float[n] a) { a = Neg(x) },
                else_branch = e () => (float[n] b) { b = Relu(x) }> }"""
LESS, MORE = np.float32([-1, 2, -3]), np.float32([-1, 2, 3])
LIMIT = {"limit": np.float32(1)}


@pytest.fixture
def session() -> Session:
    return Session(TINY, cache_dir=False)


def run(session: Session, x: np.ndarray, **options: object) -> Result:
    return session.run(text_model(BRANCH), {"x": x, **LIMIT}, **options)


def test_floats_stay_inputs_and_the_host_is_charged_for_the_decision(session: Session) -> None:
    result = run(session, MORE)
    assert result.outputs["y"].tolist() == [1, -2, -3]
    assert [binding.name for binding in result.program.inputs] == ["x", "limit"]
    assert result.program.bound == ()
    assert result.program.host.decided == (("If_2 (If): input 0", "True"),)
    assert result.program.host.work == (
        HostWork("ReduceSum_0", "reduce", 0, 4), HostWork("Greater_1", "binary", 0, 3),
    )  # fmt: skip
    assert result.host_work_ps == 7 * TINY.host.operation_ps


def test_the_host_s_time_is_a_part_of_the_whole_and_not_of_the_device_s(session: Session) -> None:
    """To the picosecond."""
    slow = Session(TINY.with_(**{"host.operation": "1 us"}), cache_dir=False)
    quick, late = run(session, MORE), run(slow, MORE)
    assert (quick.cycles, quick.time_ps) == (late.cycles, late.time_ps)
    assert late.total_ps - quick.total_ps == 7 * (1_000_000 - TINY.host.operation_ps)
    again = run(slow, MORE)
    assert again.host_ps > 7_000_000  # each run decides anew


def test_a_program_refuses_inputs_that_decide_otherwise(session: Session) -> None:
    program = session.compile(text_model(BRANCH), inputs={"x": MORE, **LIMIT})
    for x in (MORE, MORE + 1, MORE):
        assert session.run(program, {"x": x, **LIMIT}).outputs["y"].tolist() == (-x).tolist()
    with pytest.raises(InputError, match=r"If_2 \(If\): input 0 is True in this program, and False with these values"):
        session.run(program, {"x": LESS, **LIMIT})
    with pytest.raises(InputError, match="and False with these values of 'x', 'limit'"):
        session.run(program, {"x": MORE, "limit": np.float32(100)})
    assert session.run(program, timing_only=True).cycles == run(session, MORE).cycles


def test_executors_refuse_them_too(session: Session) -> None:
    program = session.compile(text_model(BRANCH), inputs={"x": MORE, **LIMIT})
    with Executor(TINY) as executor:
        done = executor.submit(Request(program, {"x": MORE, **LIMIT})).wait()
        assert done.outputs["y"].tolist() == [1, -2, -3]
        with pytest.raises(InputError, match="is True in this program, and False"):
            executor.submit(Request(program, {"x": LESS, **LIMIT}))
        with (
            executor.buffer(12) as buffer,
            pytest.raises(InputError, match=r"'x' determines .* must be given as an array"),
        ):
            executor.submit(Request(program, {"x": buffer, **LIMIT}))


def test_a_program_in_a_file_cannot_tell_and_refuses(session: Session, tmp_path: Path) -> None:
    program = session.compile(text_model(BRANCH), inputs={"x": MORE, **LIMIT})
    write_program(program, tmp_path / "p.npu")
    found = read_program(tmp_path / "p.npu")
    assert found.host == program.host
    with pytest.raises(InputError, match=r"If_2 \(If\): input 0 is True, which only the model can check"):
        session.run(found, {"x": MORE, **LIMIT})
    assert session.run(found, timing_only=True).host_work_ps == 7 * TINY.host.operation_ps


def test_models_find_their_programs_again(tmp_path: Path) -> None:
    """One per outcome, also in files; a new session checks inputs like the first one."""
    found = []
    for x in (MORE, LESS, MORE + 1, LESS - 1):
        with Session(TINY, cache_dir=tmp_path) as session:
            result = run(session, x)
            found.append((result.compile_from_cache, result.outputs["y"].tolist()))
            with pytest.raises(InputError, match="in this program"):
                session.run(result.program, {"x": MORE if x.sum() < 1 else LESS, **LIMIT})
    assert [cached for cached, _ in found] == [False, False, True, True]
    assert [y for _, y in found] == [[1, -2, -3], [0, 2, 0], [-0.0, -3, -4], [0, 1, 0]]


def test_values_that_were_seen_are_not_read_for_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(session, MORE).program
    monkeypatch.delattr("npusim.frontends.onnx.importer.Importer.run")
    assert run(session, MORE).program is first


def test_a_run_for_decided_inputs_can_be_done_again(tmp_path: Path) -> None:
    onnx.save(text_model(BRANCH), tmp_path / "m.onnx")
    with Session(TINY, cache_dir=False) as session:
        told = session.run(tmp_path / "m.onnx", {"x": LESS, **LIMIT}).to_json_dict()
    again = rerun(json.loads(json.dumps(told)), str(tmp_path / "run.json"))
    assert (again.same, again.changed) == (True, ())
    assert again.result.program.host.decided == (("If_2 (If): input 0", "False"),)


def test_values_of_larger_inputs_decide_nothing(session: Session) -> None:
    for size, error in ((32, None), (33, "input 0 must be a constant; it follows from input 'x', 'limit'")):
        x = np.ones(size, np.float32)
        if error is None:
            assert run(session, x).outputs["y"].tolist() == [-1] * 32
        else:
            with pytest.raises(UndecidedError, match=error) as caught:
                session.compile(text_model(BRANCH), inputs={"x": x, **LIMIT})
            assert not isinstance(caught.value, NeedsValueError)
            result = run(session, x)
            assert result.decisions is not None
            assert result.outputs["y"].tolist() == [-1] * 33
