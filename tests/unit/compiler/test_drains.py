"""What the matrix unit applies while it drains its sums, and what is left to the vector unit."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from npusim.compiler.grouping.groups import form_groups
from npusim.compiler.lower.epilogue import Epilogue, absorb
from npusim.dtypes import DType
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder

F32, F16, I8, I32, U8 = DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.INT32, DType.UINT8
Chain = Callable[[GraphBuilder, Tensor], Tensor]


def drained(chain: Chain, dtype: DType = F32, conv: str = "") -> Epilogue:
    """Return the drain for a chain after a product of 3 x 5 and 5 x 4, or after a 4-channel convolution in layout
    ``conv``."""
    build = GraphBuilder("g")
    if conv:
        shape = (1, 5, 3, 3) if conv == "NCHW" else (1, 3, 3, 5)
        window = {"layout": conv, "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
        weights = build.const(np.ones((4, 5, 1, 1), dtype.storage), dtype=dtype)
        value = build.add("conv", [build.input("x", shape, dtype), weights], window)
    else:
        value = build.add(
            "matmul", [build.input("x", (3, 5), dtype), build.const(np.ones((5, 4), dtype.storage), dtype=dtype)]
        )
    graph = build.finish([chain(build, value)])
    (group,) = (group for group in form_groups(graph.ops, graph.outputs) if group.anchor is not None)
    return absorb(group)


def left(chain: Chain, dtype: DType = F32, conv: str = "") -> list[str]:
    return [op.kind for op in drained(chain, dtype, conv).rest]


def unary(fn: Unary, p0: float = 0.0, p1: float = 0.0) -> Chain:
    return lambda build, x: build.add("unary", [x], {"fn": fn, "p0": p0, "p1": p1})


def plus(values: Any, fn: Binary = Binary.ADD, *, swapped: bool = False) -> Chain:
    def add(build: GraphBuilder, x: Tensor) -> Tensor:
        other = build.const(np.asarray(values, x.dtype.storage))
        return build.add("binary", [other, x] if swapped else [x, other], {"fn": fn})

    return add


def quantize(scale: Any, zero: Any = 3, to: DType = U8) -> Chain:
    def add(build: GraphBuilder, x: Tensor) -> Tensor:
        parameters = [build.const(np.asarray(scale, np.float32)), build.const(np.asarray(zero, np.int32))]
        return build.add("quantize", [x, *parameters], {"to": to})

    return add


def dequantize(scale: Any, zero: Any = 0, to: DType = F32) -> Chain:
    def add(build: GraphBuilder, x: Tensor) -> Tensor:
        parameters = [build.const(np.asarray(scale, np.float32)), build.const(np.asarray(zero, np.int32))]
        return build.add("dequantize", [x, *parameters], {"to": to})

    return add


def then(*chains: Chain) -> Chain:
    def all_of_them(build: GraphBuilder, x: Tensor) -> Tensor:
        for chain in chains:
            x = chain(build, x)
        return x

    return all_of_them


# Bounds


@pytest.mark.parametrize(
    ("chain", "low", "high"),
    [
        (unary(Unary.RELU), 0, inf),
        (unary(Unary.CLIP, -2, 7), -2, 7),
        (then(unary(Unary.CLIP, -2, 7), unary(Unary.RELU)), 0, 7),
        (then(unary(Unary.RELU), unary(Unary.CLIP, -2, 7)), 0, 7),
        (then(unary(Unary.CLIP, -2, 7), unary(Unary.CLIP, -5, 3)), -2, 3),
        (then(unary(Unary.CLIP, -2, 7), unary(Unary.CLIP, 9, 12)), 9, 9),  # every element is 9
        (then(unary(Unary.CLIP, 2, 7), unary(Unary.CLIP, -5, -3)), -3, -3),
        (unary(Unary.CLIP, 4, 4), 4, 4),
    ],
)
def test_bounds_join(chain: Chain, low: float, high: float) -> None:
    drain = drained(chain)
    assert (drain.low, drain.high, drain.rest) == (low, high, ())


@pytest.mark.parametrize("chain", [unary(Unary.CLIP, 3, 2), unary(Unary.CLIP, nan, 2), unary(Unary.CLIP, 0, nan)])
def test_bounds_that_are_none_stay(chain: Chain) -> None:
    assert left(chain) == ["unary"]


def test_other_functions_stay_and_bounds_of_integers_do() -> None:
    assert left(unary(Unary.TANH)) == ["unary"]
    assert left(unary(Unary.RELU), I8) == ["unary"], "integer sums leave as they are"
    assert left(unary(Unary.RELU), F16) == []


# Biases


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("values", [[1, 2, 3, 4], [[1, 2, 3, 4]], 5, [5], [[5]]])
def test_a_row_of_channels_is_a_bias(values: Any, swapped: bool) -> None:
    drain = drained(plus(values, swapped=swapped))
    assert drain.rest == ()
    assert drain.bias is not None
    np.testing.assert_array_equal(drain.bias, np.broadcast_to(np.ravel(values), (4,)))
    assert drain.bias.dtype == np.float32


def test_the_axis_of_channels_is_that_of_the_layout() -> None:
    row, column = np.arange(4).reshape(4, 1, 1), np.arange(4)
    assert left(plus(row), conv="NCHW") == []
    assert left(plus(column), conv="NHWC") == []
    assert left(plus(np.arange(3)), conv="NCHW") == ["binary"]
    assert left(plus(np.arange(3).reshape(3, 1, 1)), conv="NHWC") == ["binary"]


def test_what_is_no_bias_stays() -> None:
    assert left(plus([[1], [2], [3]])) == ["binary"]
    assert left(plus(np.ones((3, 4)))) == ["binary"]
    assert left(plus([1, 2, 3, 4], Binary.MUL)) == ["binary"]
    assert left(plus([1, 2, 3, 4], Binary.SUB)) == ["binary"]
    assert left(lambda build, x: build.add("binary", [x, x], {"fn": Binary.ADD})) == ["binary"]
    assert left(lambda build, x: build.add("binary", [x, build.input("b", (4,), F32)], {"fn": Binary.ADD})) == [
        "binary"
    ]
    assert left(plus([1, 2, 3, 4]), F16) == ["binary"], "float16 results round before the bias is added"


def test_order_counts() -> None:
    """The drain applies at most one bias, and it comes before the bounds."""
    assert left(then(plus([1, 2, 3, 4]), unary(Unary.RELU))) == []
    assert left(then(unary(Unary.RELU), plus([1, 2, 3, 4]))) == ["binary"]
    assert left(then(unary(Unary.CLIP, -inf, 3), plus(1))) == ["binary"]
    assert left(then(plus([1, 2, 3, 4]), plus([1, 2, 3, 4]))) == ["binary"]


# Integers


@pytest.mark.parametrize("scale", [0.5, [0.5], [1, 2, 3, 4], [[1, 2, 3, 4]]])
def test_sums_are_scaled(scale: Any) -> None:
    drain = drained(dequantize(scale), I8)
    assert drain.rest == ()
    assert drain.scale is not None
    np.testing.assert_array_equal(drain.scale, np.broadcast_to(np.ravel(scale), (4,)))
    assert drain.out_type is F32


def test_what_is_no_scale_of_sums_stays() -> None:
    assert left(dequantize([[1], [2], [3]], [[0], [0], [0]]), I8) == ["dequantize"]
    assert left(dequantize(0.5, 1), I8) == ["dequantize"]
    assert left(dequantize([1, 2, 3, 4], [0, 0, 0, 1]), I8) == ["dequantize"]
    assert left(dequantize(0.5, to=F16), I8) == ["dequantize"]


def test_what_is_added_behind_a_scale_is_a_shift() -> None:
    drain = drained(then(dequantize(0.5), plus([1, 2, 3, 4])), I8)
    assert (drain.rest, drain.bias) == ((), None)
    assert drain.shift is not None
    assert drain.shift.tolist() == [1, 2, 3, 4]
    assert left(then(dequantize(0.5), plus([1, 2, 3, 4]), plus([1, 2, 3, 4])), I8) == ["binary"]
    assert left(then(dequantize(0.5), unary(Unary.RELU), plus([1, 2, 3, 4])), I8) == ["binary"]


def test_scales_and_biases_that_others_compute_are_read() -> None:
    """They have one value for all channels or one per channel; a bias is only accepted for integer sums."""

    def scaled(shape: tuple[int, ...]) -> Callable[[GraphBuilder, Tensor], Tensor]:
        def step(build: GraphBuilder, x: Tensor) -> Tensor:
            parameters = [build.input("s", shape, F32), build.const(np.int32(0))]
            return build.add("dequantize", [x, *parameters], {"to": F32})

        return step

    def shifted(build: GraphBuilder, x: Tensor) -> Tensor:
        return build.add("binary", [x, build.input("b", (4,), I32)], {"fn": Binary.ADD})

    drain = drained(then(shifted, scaled(())), I8)
    assert drain.rest == ()
    assert [(name, tensor.name) for name, tensor in drain.computed()] == [("b", "b"), ("s", "s")]
    assert left(scaled((4,)), I8) == []
    assert left(scaled((3, 1)), I8) == ["dequantize"]


@pytest.mark.parametrize(
    ("to", "low", "high"), [(U8, 0, 255), (I8, -128, 127), (DType.INT16, -32768, 32767), (DType.UINT16, 0, 65535)]
)
def test_results_are_quantised(to: DType, low: int, high: int) -> None:
    drain = drained(then(dequantize(0.5), quantize(0.25, 3, to)), I8)
    assert (drain.rest, drain.out_type, drain.out_scale, drain.out_zero) == ((), to, 0.25, 3)
    assert (drain.low, drain.high) == (-inf, inf), f"the type itself clamps to {low}..{high}"


def test_bounds_are_those_of_integers() -> None:
    """In steps of 0.5 with rounding half to even, 2.3 is level 5 above the zero point and -1.25 is level -2."""
    drain = drained(then(dequantize(0.5), unary(Unary.CLIP, -1.25, 2.3), quantize(0.5, 10)), I8)
    assert (drain.rest, drain.low, drain.high) == ((), 8, 15)


@pytest.mark.parametrize("scale", [0.0, -1.0, inf, nan, [1, 2, 3, 4]])
def test_steps_that_are_none_stay(scale: Any) -> None:
    assert left(then(dequantize(0.5), quantize(scale)), I8) == ["quantize"]


def test_zero_points_of_channels_and_halves_stay() -> None:
    assert left(then(dequantize(0.5), quantize(1.0, [1, 2, 3, 4])), I8) == ["quantize"]
    assert left(quantize(1.0), F16) == ["quantize"]
    assert left(quantize(1.0)) == []


def test_parameters_that_are_computed_stay() -> None:
    def computed(build: GraphBuilder, x: Tensor) -> Tensor:
        return build.add("quantize", [x, build.input("s", (), F32), build.const(np.int32(0))], {"to": U8})

    def zero(build: GraphBuilder, x: Tensor) -> Tensor:
        return build.add("quantize", [x, build.const(np.float32(1)), build.input("z", (), I32)], {"to": U8})

    assert left(computed) == left(zero) == ["quantize"]


def test_nothing_follows_what_is_quantised() -> None:
    assert left(then(quantize(1.0), unary(Unary.RELU))) == ["unary"]
