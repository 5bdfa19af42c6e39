"""The budget of a compilation: what it allows, what is taken from it, and its error."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.dtypes import DType
from npusim.errors import CompileError, UnsupportedError
from npusim.hw.config import load_config
from npusim.isa.functions import Reduce
from npusim.ops.budget import MOST_BYTES, OPERATOR_STEPS, OWN_BYTES, OWN_OPERATORS, SHARE, STEP_BYTES, Budget
from npusim.ops.build import MAX_RANK, GraphBuilder

TINY = load_config("tiny")


def test_a_devices_memory_decides_unless_its_description_does() -> None:
    assert Budget.of(TINY).allowed == TINY.dram.bytes // SHARE
    assert Budget.of(TINY.with_(**{"dram.bytes": 1 << 40})).allowed == MOST_BYTES
    assert Budget.of(TINY.with_(**{"host.compile_bytes": 12345})).allowed == 12345


def test_the_last_byte_and_step_may_be_taken() -> None:
    budget = Budget(10 * STEP_BYTES)
    budget.take_bytes(10 * STEP_BYTES, "a")
    budget.take_steps(10, "a")
    with pytest.raises(
        CompileError,
        match=rf"^b: wants 1 bytes for values while .*; 0 bytes are left of a budget of {10 * STEP_BYTES} bytes, "
        rf"where a step counts as {STEP_BYTES} \(host.compile_bytes allows more\)$",
    ):
        budget.take_bytes(1, "b")
    with pytest.raises(CompileError, match=r"^b: wants 1 steps while .*; 0 steps are left"):
        budget.take_steps(1, "b")


def test_what_a_model_brings_is_granted() -> None:
    budget = Budget(0)
    budget.grant(nbytes=3, operators=2)
    budget.take_bytes(3 * OWN_BYTES, "a")
    budget.expect_steps(2 * OWN_OPERATORS * OPERATOR_STEPS, "a")
    budget.take_steps(2 * OWN_OPERATORS * OPERATOR_STEPS, "a")
    with pytest.raises(CompileError):
        budget.take_steps(1, "a")


def test_a_long_name_is_shown_by_its_ends() -> None:
    with pytest.raises(CompileError, match=r"^first/x{54}\.\.\.x{55}/last: wants"):
        Budget(0).take_steps(1, f"first/{'x' * 1000}/last")


def test_a_builder_takes_what_it_computes_and_reads() -> None:
    build = GraphBuilder("g", fold=True, budget=Budget(1 << 20))
    value = build.const(np.ones(1 << 16, np.float32))
    build.add("concat", [value, value], {"axis": 0}, "first")
    with pytest.raises(CompileError, match=r"^second \(concat\): wants 786432 bytes .*; 262144 bytes are left"):
        build.add("concat", [value, value], {"axis": 0}, "second")
    wide = build.add("expand", [build.const(np.ones((), np.float32))], {"shape": (1 << 25,)})
    assert wide.data is not None, "a view takes nothing"
    total = build.add("reduce", [wide], {"fn": Reduce.SUM, "axes": (0,), "keepdims": False}, "total")
    with pytest.raises(CompileError, match=r"^total \(reduce\): wants 134217732 bytes"):
        build.value_of(total)


def test_sums_of_many_terms_count_by_their_terms() -> None:
    build = GraphBuilder("g", fold=True, budget=Budget(1 << 20))
    square = build.const(np.ones((128, 128), np.float32))
    with pytest.raises(CompileError, match=rf"^product \(matmul\): wants {128**3 + 2 * 4 * 128**2} bytes"):
        build.add("matmul", [square, square], name="product")
    image, filters = build.const(np.ones((1, 1, 64, 64), np.int8)), build.const(np.ones((1, 1, 32, 32), np.int8))
    window = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    with pytest.raises(CompileError, match=rf"^filter \(conv\): wants {64**2 + 32**2 + 33**2 * (4 + 32**2)} bytes"):
        build.add("conv", [image, filters], window, "filter")


def test_tensors_have_as_many_dimensions_as_numpy() -> None:
    build = GraphBuilder("g")
    x = build.input("x", (1,), DType.FLOAT32)
    assert build.add("reshape", [x], {"shape": (1,) * MAX_RANK}).shape == (1,) * MAX_RANK
    with pytest.raises(UnsupportedError, match="tensors of up to 64 dimensions are supported"):
        build.add("reshape", [x], {"shape": (1,) * (MAX_RANK + 1)})
