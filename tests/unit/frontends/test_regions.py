"""Operators that become gathers, scatters and shifted sums, against the onnx package's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from npusim.errors import ModelError, UndecidedError, UnsupportedError
from npusim.frontends.onnx import load
from tests.support.examples import examples
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.small import evaluate, node_model, normal, run_node

SIZE = st.integers(1, 3)


def as_defined(op_type: str, inputs: Mapping[str, Any], constants: tuple[str, ...] = (), **options: Any) -> None:
    """Compare a node with the evaluator."""
    model = node_model(op_type, inputs, constants, **options)
    fed = {name: array for name, array in inputs.items() if name not in constants and array is not None}
    wanted = ReferenceEvaluator(model).run(None, fed)
    for found, expected in zip(evaluate(model, fed), wanted, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@given(st.integers(1, 3), st.data())
@settings(max_examples=examples(12), deadline=None)
def test_col2im(rank: int, data: st.DataObject) -> None:
    draw = data.draw
    block, stride, dilation, begin, end = (
        draw(st.lists(st.integers(least, 3), min_size=rank, max_size=rank)) for least in (1, 1, 1, 0, 0)
    )
    extra = draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    image = [
        max(1, (k - 1) * d + 1 - b - e + x) for k, d, b, e, x in zip(block, dilation, begin, end, extra, strict=True)
    ]
    counts = [
        (size + b + e - (k - 1) * d - 1) // s + 1
        for size, b, e, k, d, s in zip(image, begin, end, block, dilation, stride, strict=True)
    ]
    x = normal(1, 2, 2 * int(np.prod(block)), int(np.prod(counts)))
    inputs = {"x": x, "image": np.array(image), "block": np.array(block)}
    window = {"strides": stride, "dilations": dilation, "pads": [*begin, *end]}
    as_defined("Col2Im", inputs, ("image", "block"), **window)


@given(st.data())
@settings(max_examples=examples(10), deadline=None)
def test_transposed_volume(data: st.DataObject) -> None:
    draw = data.draw
    sizes, kernel, stride, dilation = (draw(st.lists(SIZE, min_size=3, max_size=3)) for _ in range(4))
    whole = [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    begin = [draw(st.integers(0, min(2, (size - 1) // 2))) for size in whole]
    extra = [draw(st.integers(0, step - 1)) for step in stride]
    groups = draw(st.integers(1, 2))
    inputs = {
        "x": normal(1, 2, 2 * groups, *sizes), "w": normal(2, 2 * groups, 3, *kernel),
        "b": normal(3, 3 * groups) if draw(st.booleans()) else None,
    }  # fmt: skip
    window = {"strides": stride, "dilations": dilation, "pads": begin * 2, "output_padding": extra, "group": groups}
    model = node_model("ConvTranspose", inputs, **window)
    fed = {name: array for name, array in inputs.items() if array is not None}
    (wanted,) = runtime_outputs(model, fed).values()
    np.testing.assert_allclose(evaluate(model, fed)[0], wanted, rtol=1e-4, atol=1e-5)


@given(st.integers(1, 2), st.integers(1, 2), st.booleans(), st.booleans(), st.integers(0, 99))
@settings(max_examples=examples(8), deadline=None)
def test_deformed_convolution(groups: int, fields: int, masked: bool, biased: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel, stride, dilation, begin, end = (rng.integers(least, 3, 2).tolist() for least in (1, 1, 1, 0, 0))
    sizes = [5, 4]
    out = [
        (n + b + e - (k - 1) * d - 1) // s + 1
        for n, b, e, k, d, s in zip(sizes, begin, end, kernel, dilation, stride, strict=True)
    ]
    taps = int(np.prod(kernel))
    inputs = {
        "x": normal(1, 2, 4, *sizes), "w": normal(2, 2 * groups, 4 // groups, *kernel),
        "offset": 2 * normal(3, 2, fields * taps * 2, *out), "b": normal(4, 2 * groups) if biased else None,
        "mask": normal(5, 2, fields * taps, *out) if masked else None,
    }  # fmt: skip
    window = {"strides": stride, "dilations": dilation, "pads": [*begin, *end], "group": groups, "offset_group": fields}
    as_defined("DeformConv", inputs, opset=19, **window)


@given(
    st.sampled_from(["avg", "max"]), st.sampled_from(["half_pixel", "output_half_pixel"]), st.integers(0, 3),
    st.sampled_from([0.5, 1.0]), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=examples(10), deadline=None)
def test_aligned_regions(mode: str, transformation: str, ratio: int, scale: float, seed: int) -> None:
    """Also regions outside the image, without area, and with corners in the wrong order."""
    rng = np.random.default_rng(seed)
    inputs = {
        "x": normal(seed, 2, 3, 6, 5), "rois": rng.uniform(-4, 14, (4, 4)).astype(np.float32),
        "images": rng.integers(0, 2, 4),
    }  # fmt: skip
    if not ratio:  # without samples, the evaluator returns what is in memory
        inputs["rois"][:, 2:] = inputs["rois"][:, :2] + rng.uniform(1, 9, (4, 2)).astype(np.float32)
    attributes = {"coordinate_transformation_mode": transformation, "output_height": 2, "output_width": 3}
    constants = () if ratio else ("rois",)
    as_defined("RoiAlign", inputs, constants, mode=mode, sampling_ratio=ratio, spatial_scale=scale, **attributes)


def test_regions_that_decide_the_samples() -> None:
    fed = {"x": normal(1, 1, 1, 4, 4), "rois": np.zeros((20, 4), np.float32), "images": np.zeros(20, np.int64)}
    with pytest.raises(UndecidedError, match="without sampling_ratio"):
        load(node_model("RoiAlign", fed, sampling_ratio=0))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_determinants(rows: int) -> None:
    """Also of a singular matrix, and of permutations, whose pivots are not on the diagonal."""
    x = normal(rows, 4, rows, rows)
    x[1, -1] = x[1, 0] if rows > 1 else 0
    x[2] = np.eye(rows, dtype=np.float32)[np.random.default_rng(rows).permutation(rows)]
    (found,) = run_node("Det", {"x": x})
    np.testing.assert_allclose(found, np.linalg.det(x.astype(np.float64)), rtol=1e-4, atol=1e-5)
    assert found[1] == 0 or rows > 1


def test_large_determinants_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="at most 64"):
        load(node_model("Det", {"x": normal(1, 65, 65)}))


@given(st.integers(1, 3), st.sampled_from([np.float32, np.int8, np.uint8]), st.data())
@settings(max_examples=examples(12), deadline=None)
def test_places_of_maxima(rank: int, dtype: Any, data: st.DataObject) -> None:
    """Of equal maxima, the first. MaxUnpool puts them back."""
    draw = data.draw
    kernel, stride, dilation = (draw(st.lists(SIZE, min_size=rank, max_size=rank)) for _ in range(3))
    begin = [draw(st.integers(0, k - 1)) for k in kernel]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = [draw(st.integers(max(1, n), n + 4)) for n in reach]
    x = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 4, (2, 2, *sizes)).astype(dtype)
    window = {"kernel_shape": kernel, "strides": stride, "dilations": dilation, "pads": [*begin, *begin]}
    window |= {"ceil_mode": draw(st.integers(0, 1)), "storage_order": draw(st.integers(0, 1))}
    model = node_model("MaxPool", {"x": x}, outputs=2, opset=12, **window)
    found = evaluate(model, {"x": x})
    wanted = list(runtime_outputs(model, {"x": x}).values())
    assert all(map(np.array_equal, found, wanted))
    flat = x.transpose(0, 1, *reversed(range(2, rank + 2))) if window["storage_order"] else x
    assert np.array_equal(flat.reshape(-1)[found[1]], found[0])


@given(st.integers(1, 3), st.booleans(), st.integers(0, 99))
@settings(max_examples=examples(6), deadline=None)
def test_pools_are_undone(rank: int, larger: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel, stride = rng.integers(1, 4, rank).tolist(), rng.integers(1, 4, rank).tolist()
    shape = (2, 1, *rng.integers(1, 4, rank).tolist())
    whole = [(n - 1) * s + k for n, s, k in zip(shape[2:], stride, kernel, strict=True)]
    assume(np.prod(whole) * 2 >= np.prod(shape))
    places = rng.permutation(2 * int(np.prod(whole)))[: int(np.prod(shape))].reshape(shape)
    inputs = {"x": normal(1, *shape), "places": places}
    if larger:
        inputs["shape"] = np.array([2, 1, *(size + 1 for size in whole)])
    as_defined("MaxUnpool", inputs, ("shape",) * larger, kernel_shape=kernel, strides=stride)


@pytest.mark.parametrize("equation", ["ii->i", "ii", "...ii->...i", "iji,jk->ik", "iii->i", "bii,bi->b"])
def test_letters_twice(equation: str) -> None:
    left, *others = equation.partition("->")[0].split(",")
    shapes = [
        [{"b": 2, "j": 4, "k": 5}.get(letter, 3) for letter in part.replace("...", "b")] for part in (left, *others)
    ]
    inputs = {f"x{index}": normal(index, *shape) for index, shape in enumerate(shapes)}
    (found,) = run_node("Einsum", inputs, equation=equation)
    np.testing.assert_allclose(found, np.einsum(equation, *inputs.values()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Col2Im", {"x": normal(1, 1, 4, 9), "i": np.array([4, 4]), "b": np.array([2, 2, 1])}, {}),
        ("Col2Im", {"x": normal(1, 1, 4, 8), "i": np.array([4, 4]), "b": np.array([2, 2])}, {}),
        ("Col2Im", {"x": normal(1, 1, 4, 9), "i": np.array([-4, 4]), "b": np.array([2, 2])}, {}),
        ("DeformConv", {"x": normal(1, 1, 2, 4, 4), "w": normal(1, 1, 2, 2, 2), "o": normal(1, 1, 8, 4, 3)}, {}),
        ("DeformConv", {"x": normal(1, 1, 2, 4, 4), "w": normal(1, 1, 2, 2, 2), "o": normal(1, 1, 8, 3, 3)},
         {"offset_group": 0}),
        ("RoiAlign", {"x": normal(1, 1, 2, 4), "r": normal(1, 3, 4), "i": np.zeros(3, np.int64)}, {}),
        ("RoiAlign", {"x": normal(1, 1, 2, 4, 4), "r": normal(1, 3, 4), "i": np.zeros(3, np.int64)},
         {"sampling_ratio": -1}),
        ("MaxUnpool", {"x": normal(1, 1, 1, 2), "i": np.zeros((1, 1, 3), np.int64)}, {"kernel_shape": [2]}),
        ("MaxUnpool", {"x": normal(1, 1, 1, 2), "i": np.zeros((1, 1, 2), np.int64), "s": np.array([1, 1, 1])},
         {"kernel_shape": [2]}),
        ("Det", {"x": normal(1, 2, 3)}, {}),
        ("ConvTranspose", {"x": normal(1, 1, 2, 3, 3, 3), "w": normal(1, 2, 1, 2, 2)}, {}),
        ("Einsum", {"x": normal(1, 2, 3)}, {"equation": "ii->i"}),
    ],
)  # fmt: skip
def test_what_does_not_fit(op_type: str, inputs: dict[str, Any], attributes: dict[str, Any]) -> None:
    constants = [name for name in inputs if inputs[name].ndim == 1 and op_type != "RoiAlign"]
    with pytest.raises(ModelError):
        load(node_model(op_type, inputs, constants, **attributes))
