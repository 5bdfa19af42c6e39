"""Results compared with onnxruntime where the standard leaves them open, and cases where onnxruntime differs from the
standard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from npusim.frontends.onnx import load
from npusim.ops import reference
from tests.support.onnx_models.oracle import runtime_outputs

Arrays = Mapping[str, np.ndarray]
SMALL = st.floats(-8, 8, width=32)
VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
since_1_27 = pytest.mark.skipif(
    VERSION < (1, 27),
    reason="onnxruntime before 1.27 rounds otherwise near halves and keeps states of empty sequences",
)


def node_model(
    op: str, inputs: Arrays, names: Sequence[str], outputs: Sequence[str], constants: Arrays, *, domain: str = "",
    opset: int = 19, **attributes: Any,
) -> ModelProto:  # fmt: skip
    """Build a model of one node; ``names`` are its operands."""
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain=domain, **attributes)],
        "node",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ],
        [ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def compare(model: ModelProto, inputs: Arrays, tolerance: float = 1e-5) -> None:
    found = reference.run(load(model), inputs)
    for name, wanted in runtime_outputs(model, inputs, optimise=False).items():
        assert found[name].shape == wanted.shape, name
        np.testing.assert_allclose(found[name], wanted, tolerance, tolerance, err_msg=name)


# DynamicQuantizeLinear


def check_dynamic_range(x: np.ndarray) -> None:
    compare(node_model("DynamicQuantizeLinear", {"x": x}, ["x"], ["y", "scale", "zero"], {}), {"x": x}, 0)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, 1e-30, -3e37])
def test_a_range_of_one_value(value: float) -> None:
    check_dynamic_range(np.full(5, value, np.float32))


@given(hnp.arrays(np.float32, hnp.array_shapes(max_side=4), elements=SMALL | st.just(0.0), fill=st.just(0.0)))
def test_the_range_of_any_values(x: np.ndarray) -> None:
    assume(not 0 < np.abs(x).max() < 1e-30)  # their scale has few bits or none
    check_dynamic_range(x)


# Recurrent layers


@since_1_27
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@settings(max_examples=15)
@given(data=st.data(), direction=st.sampled_from(["forward", "reverse", "bidirectional"]), states=st.booleans())
def test_sequences_of_any_length(op: str, data: st.DataObject, direction: str, states: bool) -> None:
    """Also of length 0: their final state is zero for any initial state."""
    steps, batch, features, hidden = (data.draw(st.integers(1, 3)) for _ in range(4))
    lengths = np.array(data.draw(st.lists(st.integers(0, steps), min_size=batch, max_size=batch)), np.int32)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    directions, gates = 1 + (direction == "bidirectional"), {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    shapes = {
        "w": (directions, gates * hidden, features), "r": (directions, gates * hidden, hidden),
        "b": (directions, 2 * gates * hidden), "h0": (directions, batch, hidden), "c0": (directions, batch, hidden),
    }  # fmt: skip
    constants = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    names = ["x", "w", "r", "b", "lengths", *["h0", "c0"][: (1 + (op == "LSTM")) * states]]
    inputs = {"x": rng.standard_normal((steps, batch, features), np.float32), "lengths": lengths}
    outputs = ["y", "h", *["c"][: op == "LSTM"]]
    used = {name: array for name, array in constants.items() if name in names}
    model = node_model(op, inputs, names, outputs, used, hidden_size=hidden, direction=direction)
    compare(model, inputs)
    ended = reference.run(load(model), inputs)
    for name in outputs[1:]:
        assert not ended[name][:, lengths == 0].any()


# Resize


@st.composite
def resizes(draw: st.DrawFn) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """Draw a Resize of opset 19 by scales or to sizes; align_corners with scales is a separate test."""
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    scales = [np.float32(draw(st.integers(30, 300)) / 100) for _ in range(2)]
    by_scales = draw(st.booleans())
    coordinates = draw(
        st.sampled_from(
            ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "tf_crop_and_resize"]
            + ["align_corners"] * (not by_scales)
        )
    )
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = draw(st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    else:
        attributes["antialias"] = int(draw(st.booleans()) and draw(st.booleans()))
    if mode == "cubic":
        attributes["exclude_outside"] = int(draw(st.booleans()) and draw(st.booleans()))
    x = np.random.default_rng(draw(st.integers(0, 99))).standard_normal((1, 2, height, width), np.float32)
    constants, names = {}, ["x", "", "", ""]
    if coordinates == "tf_crop_and_resize":
        low = [draw(st.integers(-20, 50)) / 100 for _ in range(2)]
        high = [start + draw(st.integers(20, 90)) / 100 for start in low]
        constants["roi"], names[1] = np.float32([0, 0, *low, 1, 1, *high]), "roi"
        attributes["extrapolation_value"] = 1.5
    sizes = [math.floor(np.float32(size) * scale) for size, scale in zip((height, width), scales, strict=True)]
    assume(min(sizes) > 0)
    if by_scales:
        constants["scales"], names[2] = np.float32([1, 1, *scales]), "scales"
    else:
        constants["sizes"], names[3] = np.int64([1, 2, *sizes]), "sizes"
    while not names[-1]:
        names.pop()
    return node_model("Resize", {"x": x}, names, ["y"], constants, **attributes), {"x": x}


@settings(max_examples=60)
@given(resizes())
def test_resize(case: tuple[ModelProto, dict[str, np.ndarray]]) -> None:
    compare(*case, tolerance=3e-5)


@pytest.mark.slow
@settings(max_examples=5000)
@given(resizes())
def test_resize_often(case: tuple[ModelProto, dict[str, np.ndarray]]) -> None:
    compare(*case, tolerance=3e-5)


@since_1_27
@pytest.mark.parametrize(("size", "out"), [(7, 8), (7, 38), (13, 14), (14, 1), (14, 31), (28, 19)])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
@pytest.mark.parametrize("nearest", ["round_prefer_ceil", "round_prefer_floor"])
def test_halves_that_single_precision_misses(size: int, out: int, coordinates: str, nearest: str) -> None:
    x = np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)
    model = node_model(
        "Resize", {"x": x}, ["x", "", "", "sizes"], ["y"], {"sizes": np.int64([1, 1, 1, out])},
        mode="nearest", coordinate_transformation_mode=coordinates, nearest_mode=nearest,
    )  # fmt: skip
    compare(model, {"x": x}, 0)


@settings(max_examples=30)
@given(st.integers(2, 9), st.integers(30, 300), st.sampled_from(["linear", "cubic"]), st.integers(0, 99))
def test_align_corners_by_scales_is_the_standard_s(size: int, hundredths: int, mode: str, seed: int) -> None:
    """Not onnxruntime's, as the page of operators says."""
    x = np.random.default_rng(seed).standard_normal((1, 1, 1, size), np.float32)
    scale = np.float32(hundredths / 100)
    # Shape inference multiplies in single precision, the reference in double.
    assume(math.floor(np.float32(size) * scale) == math.floor(size * float(scale)) >= 2)
    model = node_model(
        "Resize", {"x": x}, ["x", "", "scales"], ["y"], {"scales": np.float32([1, 1, 1, scale])},
        mode=mode, coordinate_transformation_mode="align_corners",
    )  # fmt: skip
    [wanted] = ReferenceEvaluator(model).run(None, {"x": x})
    found = reference.run(load(model), {"x": x})["y"]
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


@settings(max_examples=40)
@given(
    st.sampled_from([("Resize", 10), ("Upsample", 9)]), st.sampled_from(["nearest", "linear"]),
    st.lists(st.tuples(st.integers(1, 9), st.integers(30, 300)), min_size=2, max_size=2),
)  # fmt: skip
def test_resize_before_it_had_modes(op: tuple[str, int], mode: str, axes: list[tuple[int, int]]) -> None:
    """For a smaller image, the neighbour above is used."""
    scales = np.float32([1, 1, *(max(hundredths, 100 * (op[0] == "Upsample")) / 100 for _, hundredths in axes)])
    shape = (1, 2, axes[0][0], axes[1][0])
    assume(min(math.floor(np.float32(size) * scale) for size, scale in zip(shape, scales, strict=True)) > 0)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    model = node_model(op[0], {"x": x}, ["x", "scales"], ["y"], {"scales": scales}, opset=op[1], mode=mode)
    compare(model, {"x": x})


# Pools


@settings(max_examples=60)
@given(st.data(), st.integers(1, 3))
def test_quantised_average_pool(data: st.DataObject, rank: int) -> None:
    """Windows that extend beyond the padding divide by all their pixels if padding counts."""

    def each(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(rank)]

    kernel, strides = each(1, 3), each(1, 3)
    pads = [data.draw(st.integers(0, size - 1)) for size in (*kernel, *kernel)]
    sizes = [data.draw(st.integers(size, 8)) for size in kernel]
    kind = np.dtype(data.draw(st.sampled_from([np.uint8, np.int8])))
    limits = np.iinfo(kind)
    x = np.random.default_rng(data.draw(st.integers(0, 99))).integers(limits.min, limits.max + 1, (1, 2, *sizes), kind)
    constants = {
        "s": np.float32(0.1), "z": kind.type(data.draw(st.integers(0, 100))),
        "ys": np.float32(0.11), "yz": kind.type(data.draw(st.integers(0, 100))),
    }  # fmt: skip
    model = node_model(
        "QLinearAveragePool", {"x": x}, ["x", "s", "z", "ys", "yz"], ["y"], constants, domain="com.microsoft",
        kernel_shape=kernel, strides=strides, pads=pads, ceil_mode=data.draw(st.integers(0, 1)),
        count_include_pad=data.draw(st.integers(0, 1)),
    )  # fmt: skip
    found, wanted = reference.run(load(model), {"x": x})["y"], runtime_outputs(model, {"x": x}, optimise=False)["y"]
    assert found.shape == wanted.shape
    # A step: the sums of onnxruntime are rounded in another order, and a half may go either way.
    assert np.abs(found.astype(np.int32) - wanted).max() <= 1
