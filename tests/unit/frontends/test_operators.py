"""Importers compared with onnxruntime for more combinations of attributes than the standard's node tests have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from npusim.errors import ModelError, UnsupportedError
from npusim.frontends.onnx import load
from npusim.graph import Graph
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.small import Array, evaluate, node_model, ramp, run_node, text_model


def same_as_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Array], rtol: float = 1e-4) -> Graph:
    """Assert equal outputs, and return the graph."""
    expected = runtime_outputs(model, inputs, optimise=False)
    for actual, wanted in zip(evaluate(model, inputs), expected.values(), strict=True):
        assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=1e-5)
    return load(model)


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@st.composite
def window_attributes(draw: st.DrawFn, rank: int) -> dict[str, Any]:
    """Draw kernel_shape, strides and either pads or auto_pad."""
    sizes = st.lists(st.integers(1, 3), min_size=rank, max_size=rank)
    attributes: dict[str, Any] = {"kernel_shape": draw(sizes), "strides": draw(sizes)}
    auto = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto == "NOTSET":
        least = min(attributes["kernel_shape"]) - 1
        attributes["pads"] = draw(st.lists(st.integers(0, least), min_size=2 * rank, max_size=2 * rank))
        attributes["dilations"] = draw(sizes)
    else:
        attributes["auto_pad"] = auto
    return attributes


@given(st.data(), st.sampled_from([1, 2]), st.sampled_from([(1, 2, 3), (2, 1, 2), (4, 1, 1)]))
def test_conv(data: st.DataObject, rank: int, channels: tuple[int, int, int]) -> None:
    attributes = data.draw(window_attributes(rank))
    groups, per, out = channels
    x, w = noise(0, 2, groups * per, *(7, 8)[:rank]), noise(1, groups * out, per, *attributes["kernel_shape"])
    inputs = {"x": x, "w": w, "b": noise(2, groups * out)}
    same_as_onnxruntime(node_model("Conv", inputs, ["w", "b"], group=groups, **attributes), {"x": x})


@given(st.data(), st.sampled_from([1, 2]), st.sampled_from([(1, 2, 3), (2, 1, 2)]), st.booleans())
def test_conv_transpose(data: st.DataObject, rank: int, channels: tuple[int, int, int], shaped: bool) -> None:
    attributes = data.draw(window_attributes(rank))
    groups, per, out = channels
    x, w = noise(0, 1, groups * per, *(4, 5)[:rank]), noise(1, groups * per, out, *attributes["kernel_shape"])
    strides = attributes["strides"]
    if shaped:
        attributes.pop("pads", None)
        attributes["output_shape"] = [size * stride for size, stride in zip((4, 5), strides, strict=False)]
    else:
        attributes["output_padding"] = [data.draw(st.integers(0, stride - 1)) for stride in strides]
        assume("auto_pad" not in attributes)
    model = node_model("ConvTranspose", {"x": x, "w": w}, ["w"], group=groups, **attributes)
    try:
        load(model)
    except ModelError as error:
        # More padding than there is output, or an output_shape that the window cannot reach.
        assume("output_hw" not in str(error))
        raise
    same_as_onnxruntime(model, {"x": x})


@given(st.data(), st.sampled_from(["MaxPool", "AveragePool", "LpPool"]), st.sampled_from([1, 2]), st.booleans())
def test_pools(data: st.DataObject, op_type: str, rank: int, ceil: bool) -> None:
    attributes = data.draw(window_attributes(rank))
    # onnxruntime pads by less than nothing where a stride is longer than the window.
    assume(all(k >= s for k, s in zip(attributes["kernel_shape"], attributes["strides"], strict=True)))
    attributes["ceil_mode"] = int(ceil)
    if op_type == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    if op_type == "LpPool":
        attributes["p"] = data.draw(st.sampled_from([1, 2, 3])) if not ceil else 2
    # onnxruntime 1.x counts a window's part beyond the padding differently with ceil_mode: the node tests cover that.
    assume(not (ceil and op_type != "MaxPool"))
    x = noise(3, 1, 2, *(9, 10)[:rank])
    same_as_onnxruntime(node_model(op_type, {"x": x}, opset=19, **attributes), {"x": x})


@given(
    st.sampled_from(["nearest", "linear", "cubic"]),
    st.sampled_from(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]),
    st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.booleans(),
)
def test_resize_to_sizes(mode: str, coordinates: str, nearest: str, sizes: tuple[int, int], exclude: bool) -> None:
    x = noise(4, 1, 2, 5, 6)
    inputs = {"x": x, "roi": ramp(0), "scales": ramp(0), "sizes": np.int64([1, 2, *sizes])}
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = nearest
        assume(coordinates != "align_corners" or all(size % 2 for size in sizes))  # ties depend on float rounding
    if mode == "cubic" and exclude:
        attributes["exclude_outside"] = 1
    model = node_model("Resize", inputs, ["roi", "scales", "sizes"], opset=19, **attributes)
    if mode == "nearest":
        # Positions halfway between two pixels depend on the last bit of a float32, which need not match.
        ratio = [size / before for size, before in zip(sizes, (5, 6), strict=True)]
        assume(all(float(r).is_integer() for r in ratio))
    same_as_onnxruntime(model, {"x": x}, rtol=1e-3)


@pytest.mark.parametrize(("op_type", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_old_resizes(op_type: str, opset: int, mode: str) -> None:
    x, scales = noise(5, 1, 1, 4, 3), [1.0, 1.0, 2.0, 3.0]
    if opset == 7:
        model = node_model(op_type, {"x": x}, opset=opset, mode=mode, scales=scales)
    else:
        model = node_model(op_type, {"x": x, "s": np.float32(scales)}, ["s"], opset=opset, mode=mode)
    model.ir_version = 4
    same_as_onnxruntime(model, {"x": x})


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("beta", [1.0, 0.0, 2.0])
@pytest.mark.parametrize(("ta", "tb"), [(0, 0), (1, 1)])
@pytest.mark.parametrize("c", [None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)])
@pytest.mark.parametrize("constant", [True, False])
def test_gemm(alpha: float, beta: float, ta: int, tb: int, c: tuple[int, ...] | None, constant: bool) -> None:
    inputs = {"a": noise(1, *((4, 3) if ta else (3, 4))), "b": noise(2, *((5, 4) if tb else (4, 5)))}
    if c is not None:
        inputs["c"] = noise(3, *c)
    constants = [name for name in inputs if name != "a"] if constant else []
    model = node_model("Gemm", inputs, constants, alpha=alpha, beta=beta, transA=ta, transB=tb)
    fed = {name: array for name, array in inputs.items() if name not in constants}
    graph = same_as_onnxruntime(model, fed)
    if constant and not ta and c in (None, (), (1,), (5,), (1, 5)):
        assert kinds(graph) == ["matmul"]


def test_batch_normalisation_of_known_statistics_is_one_multiplication_and_one_addition() -> None:
    inputs = {"x": noise(1, 2, 3, 4, 4), "s": noise(2, 3), "b": noise(3, 3), "m": noise(4, 3), "v": noise(5, 3) ** 2}
    graph = same_as_onnxruntime(node_model("BatchNormalization", inputs, ["s", "b", "m", "v"]), {"x": inputs["x"]})
    assert kinds(graph) == ["binary", "binary"]


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_softmax_of_both_eras(op_type: str, opset: int, axis: int | None) -> None:
    x = noise(1, 2, 3, 4)
    same_as_onnxruntime(
        node_model(op_type, {"x": x}, opset=opset, **({} if axis is None else {"axis": axis})), {"x": x}
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("bounds", [(None, None), (-2, 5), (3, None), (None, 3)])
def test_clip_of_every_type(dtype: str, bounds: tuple[int | None, int | None]) -> None:
    x = np.arange(0 if dtype == "uint8" else -6, 9).astype(dtype)
    inputs: dict[str, Any] = {"x": x}
    for name, bound in zip(("low", "high"), bounds, strict=True):
        inputs[name] = None if bound is None else np.array(max(bound, 0) if dtype == "uint8" else bound).astype(dtype)
    constants = [name for name in ("low", "high") if inputs[name] is not None]
    for fixed in (constants, []):
        fed = {name: array for name, array in inputs.items() if array is not None and name not in fixed}
        (y,) = evaluate(node_model("Clip", inputs, fixed), fed)
        low, high = inputs["low"], inputs["high"]
        np.testing.assert_array_equal(y, np.clip(x, low, high) if constants else x)


@given(
    st.lists(
        st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.integers(-3, 3).filter(bool)), min_size=1, max_size=3
    ),
    st.booleans(),
)
def test_slices(parts: list[tuple[int, int, int]], named: bool) -> None:
    x = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    axes = [2, -3, 1][: len(parts)] if named else list(range(len(parts)))
    inputs = {"x": x}
    for name, index in (("starts", 0), ("ends", 1)):
        inputs[name] = np.int64([part[index] for part in parts])
    inputs["axes"], inputs["steps"] = np.int64(axes), np.int64([part[2] for part in parts])
    (y,) = run_node("Slice", inputs, ["starts", "ends", "axes", "steps"])
    index = [slice(None)] * 3
    for axis, part in zip(axes, parts, strict=True):
        index[axis] = slice(*part)
    # numpy counts a negative end from the end as ONNX does; an end that is still negative then means "through 0".
    for axis, (start, end, step) in zip(axes, parts, strict=True):
        dim = x.shape[axis]
        if step < 0 and end < -dim:
            index[axis] = slice(start, None, step)
    np.testing.assert_array_equal(y, x[tuple(index)])


@pytest.mark.parametrize(
    "equation",
    ["ij,jk->ik", "bij,bkj->bik", "i,j->ij", "ij->ji", "ijk->", "ij,ij->", "bhqd,bhkd->bhqk", "...ij,...jk->...ik",
     "ij,jk,kl->il", "ij,jk", "i,i", "bi,bi->b", "ij,kj,k->i"],
)  # fmt: skip
def test_einsum(equation: str) -> None:
    sizes = {letter: 2 + index for index, letter in enumerate("bhijklqd")}
    shapes = [[3] * part.count("...") + [sizes[c] for c in part if c != "."]
              for part in equation.partition("->")[0].split(",")]  # fmt: skip
    inputs = {f"x{index}": noise(index, *shape) for index, shape in enumerate(shapes)}
    (y,) = run_node("Einsum", inputs, equation=equation)
    np.testing.assert_allclose(y, np.einsum(equation, *inputs.values()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "message"),
    [("ij->ii", "must come from an operand"), ("ij,jk->iz", "must come from an operand"), ("ij->ij", "has 1 operands")],
)
def test_einsum_says_what_it_does_not_do(equation: str, message: str) -> None:
    inputs = {"a": ramp(3, 3), "b": ramp(3, 3)} if "," in equation or equation == "ij->ij" else {"a": ramp(3, 3)}
    with pytest.raises((UnsupportedError, ModelError), match=message):
        run_node("Einsum", inputs, equation=equation)


@pytest.mark.parametrize("block", [0, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_quantisation_per_axis_and_per_block(block: int, axis: int) -> None:
    x = noise(1, 4, 6) * 9
    shape = list(x.shape)
    shape[axis] //= block or 1
    scale = np.abs(noise(2, *(shape if block else [x.shape[axis]]))) + 0.1
    zero = np.random.default_rng(3).integers(-9, 9, scale.shape).astype(np.int8)
    inputs = {"x": x, "s": scale, "z": zero}
    attributes = {"axis": axis} | ({"block_size": block} if block else {})
    same_as_onnxruntime(node_model("QuantizeLinear", inputs, ["s", "z"], **attributes), {"x": x})
    inputs["x"] = np.random.default_rng(4).integers(-128, 127, x.shape).astype(np.int8)
    same_as_onnxruntime(node_model("DequantizeLinear", inputs, ["s", "z"], **attributes), {"x": inputs["x"]})


def test_quantised_weights_keep_their_integers() -> None:
    model = text_model("""g (float[1, 4] x) => (float[1, 2] y)
        <int8[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float s = {0.5}, int8 z = {0}> {
        d = DequantizeLinear(w, s, z) y = MatMul(x, d) }""")
    assert kinds(load(model)) == ["dequantize", "matmul"]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("x_type", ["uint8", "int8"])
def test_integer_convolution_with_zero_points(fixed: bool, x_type: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 127, (1, 2, 5, 5)).astype(x_type)
    inputs = {"x": x, "w": rng.integers(0, 255, (3, 2, 3, 3)).astype(np.uint8), "xz": np.array(7).astype(x_type),
              "wz": np.uint8(100)}  # fmt: skip
    constants = ["w", "xz", "wz"] if fixed else []
    model = node_model("ConvInteger", inputs, constants, pads=[1, 0, 1, 2])
    (y,) = evaluate(model, {name: array for name, array in inputs.items() if name not in constants})
    shifted = x.astype(np.int64) - 7
    padded = np.pad(shifted, ((0, 0), (0, 0), (1, 1), (0, 2)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_array_equal(y, np.einsum("ncijrq,ocrq->noij", view, inputs["w"].astype(np.int64) - 100))
    assert [kind for kind in kinds(load(model)) if kind == "conv"] == ["conv"]
    if fixed:
        assert kinds(load(model)) == ["conv"]


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_contributed_quantised_arithmetic(op_type: str) -> None:
    rng = np.random.default_rng(2)
    inputs: dict[str, Any] = {}
    for name, scale, zero in (("a", 0.05, 120), ("b", 0.02, 7)):
        inputs[name] = rng.integers(0, 255, (3, 4)).astype(np.uint8)
        inputs[f"{name}s"], inputs[f"{name}z"] = np.float32(scale), np.uint8(zero)
    inputs["ys"], inputs["yz"] = np.float32(0.1), np.uint8(90)
    constants = [name for name in inputs if name not in ("a", "b")]
    model = node_model(op_type, inputs, constants, domain="com.microsoft")
    fed = {"a": inputs["a"], "b": inputs["b"]}
    expected = runtime_outputs(model, fed)["y0"].astype(int)
    assert np.abs(evaluate(model, fed)[0].astype(int) - expected).max() <= 1


def test_contributed_quantised_choice() -> None:
    """Two scales and zero points; the result has a third."""
    rng = np.random.default_rng(2)
    inputs: dict[str, Any] = {"c": rng.random((3, 1)) < 0.5}
    for name, scale, zero in (("x", 0.05, 120), ("y", 0.02, 7)):
        inputs[name] = rng.integers(0, 255, (3, 40)).astype(np.uint8)
        inputs[f"{name}s"], inputs[f"{name}z"] = np.float32(scale), np.uint8(zero)
    inputs["zs"], inputs["zz"] = np.float32(0.03), np.uint8(90)
    fed = {name: inputs[name] for name in ("c", "x", "y")}
    model = node_model("QLinearWhere", inputs, [name for name in inputs if name not in fed], domain="com.microsoft")
    np.testing.assert_array_equal(evaluate(model, fed)[0], runtime_outputs(model, fed)["y0"])


@pytest.mark.parametrize("op_type", ["QLinearAveragePool", "QLinearGlobalAveragePool"])
def test_contributed_pools_with_channels_last(op_type: str) -> None:
    x = np.random.default_rng(2).integers(0, 255, (2, 6, 5, 3)).astype(np.uint8)
    parameters = {"xs": np.float32(0.05), "xz": np.uint8(7), "ys": np.float32(0.04), "yz": np.uint8(3)}
    window: dict[str, Any] = {"kernel_shape": [2, 3]} if op_type == "QLinearAveragePool" else {}
    results = []
    for last, image in ((1, x), (0, x.transpose(0, 3, 1, 2))):
        operands = {"x": image, **parameters}
        model = node_model(op_type, operands, list(parameters), domain="com.microsoft", channels_last=last, **window)
        results.append(evaluate(model, {"x": image})[0])
    np.testing.assert_array_equal(results[0].transpose(0, 3, 1, 2), results[1])


@pytest.mark.parametrize("op_type", ["Gelu", "FastGelu", "QuickGelu"])
def test_contributed_activations(op_type: str) -> None:
    x = noise(1, 3, 8)
    same_as_onnxruntime(node_model(op_type, {"x": x}, domain="com.microsoft"), {"x": x})


@pytest.mark.parametrize("simplified", [True, False])
def test_contributed_skip_normalisation(simplified: bool) -> None:
    inputs = {"x": noise(1, 2, 3, 8), "skip": noise(2, 2, 3, 8), "gamma": noise(3, 8)}
    if not simplified:
        inputs["beta"] = noise(4, 8)
    name = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    fed = {"x": inputs["x"], "skip": inputs["skip"]}
    weights = [key for key in inputs if key not in fed]
    same_as_onnxruntime(node_model(name, inputs, weights, domain="com.microsoft", epsilon=1e-5), fed)


@pytest.mark.parametrize(("ta", "tb", "alpha"), [(0, 0, 1.0), (1, 0, 0.5), (0, 1, 2.0)])
def test_contributed_matmul(ta: int, tb: int, alpha: float) -> None:
    inputs = {"a": noise(1, 2, *((4, 3) if ta else (3, 4))), "b": noise(2, 2, *((5, 4) if tb else (4, 5)))}
    same_as_onnxruntime(
        node_model("FusedMatMul", inputs, domain="com.microsoft", transA=ta, transB=tb, alpha=alpha), inputs
    )


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_of_more_than_three_dimensions_are_refused_by_shape(op_type: str) -> None:
    with pytest.raises(UnsupportedError, match=r"one to three spatial dimensions .* \[1, 1, 4, 4, 4, 4\]"):
        run_node(op_type, {"x": ramp(1, 1, 4, 4, 4, 4)}, kernel_shape=[2, 2, 2, 2])


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("include", [0, 1])
def test_windows_over_volumes(op_type: str, include: int) -> None:
    """Each dimension with a different kernel, stride and padding."""
    options = {} if op_type == "MaxPool" else {"count_include_pad": include}
    same_as_onnxruntime(
        node_model(
            op_type, {"x": noise(3, 2, 3, 7, 6, 8)}, kernel_shape=[3, 2, 4], strides=[2, 1, 3],
            pads=[1, 0, 2, 1, 1, 3], ceil_mode=include, **options,
        ),
        {"x": noise(3, 2, 3, 7, 6, 8)},
    )  # fmt: skip


@pytest.mark.parametrize("depth", [1, 3])
def test_convolutions_over_volumes(depth: int) -> None:
    """Each dimension with a different kernel, stride, dilation and padding; groups."""
    inputs = {"x": noise(4, 2, 4, 7, 6, 8), "w": noise(5, 6, 2, depth, 2, 3), "b": noise(6, 6)}
    options = {"strides": [2, 1, 3], "dilations": [2, 1, 2], "pads": [1, 0, 2, 2, 1, 3], "group": 2}
    same_as_onnxruntime(node_model("Conv", inputs, ["w", "b"], **options), {"x": inputs["x"]})


def test_a_volume_is_padded_with_its_zero_point() -> None:
    rng = np.random.default_rng(7)
    inputs: dict[str, Any] = {
        "x": rng.integers(0, 255, (1, 2, 4, 4, 4), np.uint8),
        "w": rng.integers(-9, 9, (3, 2, 2, 2, 2), np.int8),
        "zero": np.uint8(100),
    }
    model = node_model("ConvInteger", inputs, ["w", "zero"], pads=[1, 1, 1, 0, 0, 0])
    (y,) = evaluate(model, {"x": inputs["x"]})
    centred = np.pad(inputs["x"].astype(np.int64) - 100, [(0, 0), (0, 0), (1, 0), (1, 0), (1, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(centred, (2, 2, 2), axis=(2, 3, 4))
    np.testing.assert_array_equal(y, np.einsum("ncdhwijk,ocijk->nodhw", windows, inputs["w"].astype(np.int64)))


def test_indices_of_maxima_are_computed_only_when_used() -> None:
    model = node_model("MaxPool", {"x": ramp(1, 1, 4)}, outputs=2, kernel_shape=[2])
    assert "select" in kinds(load(model))
    del model.graph.output[1]
    assert kinds(load(model)) == ["reshape", "pool", "reshape"]


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("options", ["plain", "lengths", "everything"])
def test_recurrent_layers(op_type: str, direction: str, options: str) -> None:
    steps, batch, features, hidden = 4, 3, 2, 5
    directions, gates = 1 + (direction == "bidirectional"), {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    inputs: dict[str, Any] = {
        "x": noise(1, steps, batch, features),
        "w": noise(2, directions, gates * hidden, features),
        "r": noise(3, directions, gates * hidden, hidden),
        "b": noise(4, directions, 2 * gates * hidden),
        "lengths": np.int32([4, 2, 1]) if options != "plain" else None,
    }
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if options == "everything":
        inputs["h"] = noise(5, directions, batch, hidden)
        attributes["clip"] = 0.5
        if op_type == "GRU":
            attributes["linear_before_reset"] = 1
        if op_type == "LSTM":
            inputs["c"], inputs["p"] = noise(6, directions, batch, hidden), noise(7, directions, 3 * hidden)
    outputs = 3 if op_type == "LSTM" else 2
    model = node_model(op_type, inputs, ["w", "r", "b"], outputs=outputs, **attributes)
    fed = {name: inputs[name] for name in ("x", "lengths", "h", "c", "p") if inputs.get(name) is not None}
    same_as_onnxruntime(model, fed)


def test_recurrent_layers_refuse_what_they_do_not_know() -> None:
    inputs = {"x": ramp(2, 1, 3), "w": ramp(1, 4, 3), "r": ramp(1, 4, 4)}
    with pytest.raises(UnsupportedError, match=r"activations \['Affine'\] are not supported; supported: Elu, "):
        run_node("RNN", inputs, hidden_size=4, activations=["Affine"])
    with pytest.raises(ModelError, match=r"weights \[1, 4, 3\] and \[1, 4, 4\] do not fit 1 gates of 5"):
        run_node("RNN", inputs, hidden_size=5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_samples_inside_and_outside(mode: str, padding: str, align: int) -> None:
    inputs = {"x": noise(1, 2, 3, 4, 5), "grid": noise(2, 2, 6, 3, 2) * 1.5}
    model = node_model("GridSample", inputs, opset=20, mode=mode, padding_mode=padding, align_corners=align)
    same_as_onnxruntime(model, inputs)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_caches_are_written_from_each_samples_place(mode: str) -> None:
    cache, update = np.zeros((2, 1, 4, 2), np.float32), ramp(2, 1, 2, 2)
    starts = np.int64([1, 3 if mode == "circular" else 2])
    (y,) = run_node("TensorScatter", {"c": cache, "u": update, "s": starts}, opset=24, mode=mode)
    expected = cache.copy()
    for sample, start in enumerate(starts):
        for row in range(2):
            expected[sample, :, (start + row) % 4] = update[sample, :, row]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("length", [None, 4, 5, 8, 9])
@pytest.mark.parametrize(("inverse", "onesided", "parts"), [(0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 2), (1, 1, 2)])
def test_fourier_transforms(length: int | None, inverse: int, onesided: int, parts: int) -> None:
    """Compared with numpy: longer than the signal, shorter, even and odd."""
    x = noise(8, 3, 6, 2, parts).astype(np.float64)
    numbers = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    transform = {(0, 0): np.fft.fft, (0, 1): np.fft.rfft, (1, 0): np.fft.ifft, (1, 1): np.fft.irfft}[inverse, onesided]
    wanted = transform(numbers.real if onesided and not inverse else numbers, length, axis=1)
    pairs = np.stack([wanted.real, wanted.imag], -1)[..., : 1 if inverse and onesided else 2]
    n = None if length is None else np.int64(length)
    inputs: dict[str, Any] = {"x": np.float32(x), "n": n, "axis": np.int64(-3)}
    given = [name for name in ("n", "axis") if inputs[name] is not None]
    (y,) = run_node("DFT", inputs, given, opset=20, inverse=inverse, onesided=onesided)
    np.testing.assert_allclose(y, pairs, atol=1e-5)


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time_fourier_transforms(onesided: int) -> None:
    x, window = noise(9, 2, 20, 1), np.hanning(6).astype(np.float32)
    inputs = {"x": x, "step": np.int64(3), "window": window, "length": np.int64(6)}
    (y,) = run_node("STFT", inputs, ["step", "window", "length"], opset=17, onesided=onesided)
    frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], 6, axis=1)[:, ::3] * window
    wanted = (np.fft.rfft if onesided else np.fft.fft)(frames)
    np.testing.assert_allclose(y, np.stack([wanted.real, wanted.imag], -1), atol=1e-5)
