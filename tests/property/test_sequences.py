"""Sequences and optional values: lists of tensors in one program if positions are known, else held by the host."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from npusim import Session, load_config
from npusim.errors import InputError, ModelError
from npusim.report.result import flattened
from tests.support.examples import examples
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.planned import HEADER

TINY = load_config("tiny")
WIDTH = 12


def sequence_model(seed: int, known: bool) -> onnx.ModelProto:
    """Random insertions and removals, then everything joined. Positions are constants or follow from 48 elements."""
    rng = np.random.default_rng(seed)
    lines = [
        "zero = Constant<value = float {0.0}>()",
        "positive = Greater(x, zero)",
        "ones = Cast<to = 7>(positive)",
        "many = ReduceSum<keepdims = 0>(ones)",
        "s0 = SequenceConstruct(x, x)",
        "neg = Neg(x)",
    ]
    length, values = 2, ["x", "neg"]
    for step in range(1, 7):
        kind = rng.choice(["insert", "erase", "at"]) if length > 1 else "insert"
        size = length + (kind == "insert")
        if known:
            lines.append(f"p{step} = Constant<value = int64 {{{int(rng.integers(-length, size))}}}>()")
        else:
            lines += [f"m{step} = Constant<value = int64 {{{size}}}>()", f"p{step} = Mod(many, m{step})"]
        same = f"s{step} = Identity(s{step - 1})"
        if kind == "insert":
            lines.append(f"s{step} = SequenceInsert(s{step - 1}, {rng.choice(values)}, p{step})")
        elif kind == "erase":
            lines.append(f"s{step} = SequenceErase(s{step - 1}, p{step})")
        else:
            lines += [f"t{step} = SequenceAt(s{step - 1}, p{step})", f"v{step} = Add(t{step}, x)", same]
            values.append(f"v{step}")
        length += {"insert": 1, "erase": -1, "at": 0}[str(kind)]
    axis, new = (0, 0) if rng.integers(2) else (1, 1)
    rank = ", ".join("ABC"[: 2 + new])
    lines += [f"y = ConcatFromSequence<axis = {axis}, new_axis = {new}>(s6)", "n = SequenceLength(s6)"]
    text = f"{HEADER}g (float[4, {WIDTH}] x) => (float[{rank}] y, int64 n) {{ {' '.join(lines)} }}"
    return parser.parse_model(text)


def check(seed: int, known: bool) -> None:
    model = sequence_model(seed, known)
    with Session(TINY, cache_dir=False) as session:
        for number in range(3):
            inputs = {"x": np.random.default_rng(number).integers(-4, 5, (4, WIDTH)).astype(np.float32)}
            result = session.run(model, inputs)
            for name, array in runtime_outputs(model, inputs).items():
                np.testing.assert_array_equal(result.outputs[name], array)
            assert (result.decisions is None) == known or "p1" not in str(model)


@settings(max_examples=examples(6), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_sequences(seed: int, known: bool) -> None:
    check(seed, known)


def run(text: str, **inputs: object) -> dict[str, np.ndarray]:
    model = parser.parse_model(HEADER + text)
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    with Session(TINY, cache_dir=False) as session:
        outputs = session.run(model, arrays).outputs
    for name, array in runtime_outputs(model, arrays).items():
        np.testing.assert_array_equal(outputs[name], array)
    return outputs


DATA = np.arange(48, dtype=np.float32).reshape(6, 8) - 20
COUNTED = """zero = Constant<value = float {0.0}>() c = Greater(x, zero) k = Cast<to = 7>(c)
  n = ReduceSum<keepdims = 0>(k) five = Constant<value = int64 {5}>() m = Mod(n, five) """


@pytest.mark.parametrize("keep", [0, 1])
def test_a_sequence_grows_in_a_loop_of_unknown_length(keep: int) -> None:
    text = f"""g (float[6, 8] x) => (float[N, M] y, int64 z) {{ {COUNTED}
      parts = SplitToSequence<axis = 0, keepdims = {keep}>(x)
      none = SequenceEmpty()
      s = Loop (m, "", none) <body = b (int64 i, bool go, seq(float) q) => (bool on, seq(float) r) {{
        on = Identity(go) one = SequenceAt(parts, i) two = Neg(one)
        r1 = SequenceInsert(q, one) r = SequenceInsert(r1, two) }}>
      y = ConcatFromSequence<axis = 0, new_axis = {1 - keep}>(s)
      z = SequenceLength(s)
    }}"""
    assert run(text, x=DATA)["z"] == 2 * (int((DATA > 0).sum()) % 5)


def test_a_sequence_of_a_known_loop_is_one_program() -> None:
    text = """g (float[6, 8] x) => (float[N, 8] y) {
      three = Constant<value = int64 {3}>() true = Constant<value = bool {1}>()
      none = SequenceEmpty()
      s = Loop (three, true, none) <body = b (int64 i, bool go, seq(float) q) => (bool on, seq(float) r) {
        on = Identity(go) one = Relu(x) r = SequenceInsert(q, one) }>
      y = ConcatFromSequence<axis = 0>(s)
    }"""
    model = parser.parse_model(HEADER + text)
    with Session(TINY, cache_dir=False) as session:
        result = session.run(model, {"x": DATA})
    assert result.decisions is None
    np.testing.assert_array_equal(result.outputs["y"], np.concatenate([np.maximum(DATA, 0)] * 3))


def test_optional_values() -> None:
    run(
        """g (float[6, 8] x) => (float[6, 8] y, bool h) {
          o = Optional(x) h = OptionalHasElement(o) e = OptionalGetElement(o) y = Relu(e) }""",
        x=DATA,
    )


def test_a_position_outside_the_sequence() -> None:
    text = "g (float[6, 8] x) => (float[6, 8] y) {{ {0} s = SequenceConstruct(x, x) y = SequenceAt(s, m) }}"
    known = text.format("m = Constant<value = int64 {5}>()")
    counted = text.replace("{{", "{").replace("}}", "}").replace("{0}", COUNTED.replace("{5}", "{9}"))
    for body, error in ((known, ModelError), (counted, InputError)):
        with Session(TINY, cache_dir=False) as session, pytest.raises(error, match="outside a sequence of 2 places"):
            session.run(parser.parse_model(HEADER + body), {"x": np.ones((6, 8), np.float32)})


def test_sequences_go_in_and_out() -> None:
    text = """g (seq(float) s, float[6, 8] x, optional(float[8]) o) => (seq(float) t, bool h, float[6, 8] y) {
      r = Relu(x) t = SequenceInsert(s, r) h = OptionalHasElement(o) y = Neg(r) }"""
    model = parser.parse_model(HEADER + text)
    given = [np.ones((2, 3), np.float32), np.zeros(4, np.float32)]
    with Session(TINY, cache_dir=False) as session:
        result = session.run(model, {"s": given, "x": DATA, "o": None})
        assert [array.shape for array in result.outputs["t"]] == [(2, 3), (4,), (6, 8)]
        np.testing.assert_array_equal(result.outputs["t"][2], np.maximum(DATA, 0))
        assert not result.outputs["h"]
        assert "'t' 3 tensors" in repr(result)
        assert session.run(model, {"s": [], "x": DATA, "o": DATA[0]}).outputs["h"]
        with pytest.raises(InputError, match="tensors must be float32, got float64"):
            session.run(model, {"s": [np.ones(3)], "x": DATA})
    assert list(flattened(result.outputs)) == ["t.0", "t.1", "t.2", "h", "y"]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_many_sequences(seed: int, known: bool) -> None:
    check(seed, known)
