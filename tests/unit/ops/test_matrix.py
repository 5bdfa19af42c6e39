"""conv, conv_transpose, matmul and pool compared with loops over every index."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import ModelError, UnsupportedError
from tests.support.graphs.single_operator import Array, run


@st.composite
def windows(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a valid geometry of a small convolution or pool."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, dilation = draw(pair), draw(pair), draw(pair)
    pads = draw(st.tuples(*[st.integers(0, 2)] * 4))
    size = [draw(st.integers(max((k - 1) * d + 1 - pads[i] - pads[i + 2], 1), 7))
            for i, (k, d) in enumerate(zip(kernel, dilation, strict=True))]  # fmt: skip
    return {"kernel": kernel, "stride": stride, "dilation": dilation, "pads": pads, "size": tuple(size),
            "layout": draw(st.sampled_from(["NCHW", "NHWC"])), "seed": draw(st.integers(0, 99))}  # fmt: skip


def slow_conv(x: Array, w: Array, stride: Any, dilation: Any, pads: Any, groups: int, zero: int) -> Array:
    """Return an NCHW convolution, one product at a time, in Python numbers; padding does not count."""
    (n, _, h, wd), (oc, per, kh, kw) = x.shape, w.shape
    oh = (h + pads[0] + pads[2] - (kh - 1) * dilation[0] - 1) // stride[0] + 1
    ow = (wd + pads[1] + pads[3] - (kw - 1) * dilation[1] - 1) // stride[1] + 1
    y = np.zeros((n, oc, oh, ow))
    for b, o, i, j, c, r, q in itertools.product(*map(range, (n, oc, oh, ow, per, kh, kw))):
        row, column = i * stride[0] + r * dilation[0] - pads[0], j * stride[1] + q * dilation[1] - pads[1]
        if 0 <= row < h and 0 <= column < wd:
            pixel = float(x[b, o // (oc // groups) * per + c, row, column])
            y[b, o, i, j] += (pixel - zero) * float(w[o, c, r, q])
    return y


def to_layout(x: Array, layout: str) -> Array:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "NHWC" else x


@given(windows(), st.sampled_from([(1, 1, 2), (2, 1, 1), (2, 2, 3)]), st.booleans())
def test_conv_is_the_sum_over_its_window(window: dict[str, Any], channels: tuple[int, int, int], integer: bool) -> None:
    groups, per, out = channels
    rng = np.random.default_rng(window["seed"])
    shape, zero = (2, groups * per, *window["size"]), 3 if integer else 0
    draw = (lambda s: rng.integers(-128, 128, s).astype(np.int8)) if integer else (
        lambda s: rng.integers(-8, 8, s).astype(np.float32))  # fmt: skip
    x, w = draw(shape), draw((groups * out, per, *window["kernel"]))
    bias = rng.integers(-9, 9, groups * out).astype(np.int32 if integer else np.float32)
    geometry = {name: window[name] for name in ("stride", "dilation", "pads")}
    y = run(
        "conv", to_layout(x, window["layout"]), w, bias, layout=window["layout"], groups=groups, x_zero=zero, **geometry
    )
    assert y.dtype == bias.dtype
    expected = slow_conv(x, w, **geometry, groups=groups, zero=zero) + bias[:, None, None]
    np.testing.assert_array_equal(y, to_layout(expected, window["layout"]))


@pytest.mark.parametrize("groups", [1, 2])
def test_blocks_are_the_groups_within_a_group_and_must_tile_it(groups: int) -> None:
    """All channels of a group times all sizes of blocks. Weights beside the blocks have no effect."""
    rng = np.random.default_rng(0)
    geometry = {"stride": (1, 1), "dilation": (1, 1), "pads": (1, 0, 0, 1), "layout": "NCHW"}
    for ic, oc, per, out in itertools.product((1, 2, 4, 6), (1, 2, 4, 6), range(-1, 8), range(-1, 8)):
        x = rng.integers(-4, 5, (1, groups * ic, 3, 3)).astype(np.float32)
        w = rng.integers(1, 5, (groups * oc, ic, 2, 2)).astype(np.float32)
        tiled = per > 0 and out > 0 and ic % per == oc % out == 0 and ic // per == oc // out
        if not tiled:
            with pytest.raises(ModelError, match=r"blocks .* do not tile the \[\d+, \d+\] channels of a group"):
                run("conv", x, w, **geometry, groups=groups, blocks=(per, out))
            continue
        count = ic // per
        blocks = np.stack(
            [w[at * out : (at + 1) * out, at % count * per : (at % count + 1) * per] for at in range(groups * count)]
        )
        wanted = run("conv", x, blocks.reshape(-1, per, 2, 2), **geometry, groups=groups * count)
        np.testing.assert_array_equal(run("conv", x, w, **geometry, groups=groups, blocks=(per, out)), wanted)


@given(windows(), st.sampled_from([(1, 2, 2), (2, 1, 2)]), st.tuples(st.integers(0, 2), st.integers(0, 2)))
def test_conv_transpose_is_the_adjoint_of_conv(
    window: dict[str, Any], channels: tuple[int, int, int], extra: tuple[int, int]
) -> None:
    """<conv(u), v> == <u, conv_transpose(v)> for every u and v, exactly, in small integers."""
    groups, per, out = channels
    rng = np.random.default_rng(window["seed"])
    geometry = {name: window[name] for name in ("stride", "dilation", "pads")}
    u = rng.integers(-4, 5, (1, groups * out, *window["size"])).astype(np.float32)
    w = rng.integers(-4, 5, (groups * per, out, *window["kernel"])).astype(np.float32)
    forward = run("conv", u, w, layout="NCHW", groups=groups, **geometry)
    v = rng.integers(-4, 5, forward.shape).astype(np.float32)
    back = run(
        "conv_transpose", to_layout(v, window["layout"]), w, layout=window["layout"], groups=groups,
        output_hw=window["size"], **geometry,
    )  # fmt: skip
    assert (forward * v).sum() == (to_layout(u, window["layout"]) * back).sum()


@given(windows(), st.booleans())
def test_integer_conv_transpose_is_the_one_of_what_the_integers_stand_for(window: dict[str, Any], nhwc: bool) -> None:
    rng = np.random.default_rng(window["seed"])
    geometry = {"stride": window["stride"], "dilation": window["dilation"], "pads": (0, 0, 0, 0), "groups": 2}
    x = rng.integers(0, 256, (2, 4, 3, 2)).astype(np.uint8)
    w = rng.integers(-128, 128, (4, 3, *window["kernel"])).astype(np.int8)
    bias = rng.integers(-999, 999, 6).astype(np.int32)
    geometry["output_hw"] = tuple(
        (size - 1) * stride + (k - 1) * dilation + 1
        for size, stride, k, dilation in zip(
            x.shape[2:], window["stride"], window["kernel"], window["dilation"], strict=True
        )
    )
    layout = "NHWC" if nhwc else "NCHW"
    whole = run("conv_transpose", to_layout(x, layout), w, bias, layout=layout, x_zero=113, **geometry)
    real = to_layout(x.astype(np.float64) - 113, layout)
    expected = run("conv_transpose", real, w.astype(np.float64), bias.astype(np.float64), layout=layout, **geometry)
    assert whole.dtype == np.int32
    np.testing.assert_array_equal(whole, expected)


def test_small_integers_accumulate_in_int32_and_int32_wraps() -> None:
    x = np.full((1, 1024), 255, np.uint8)
    w = np.full((1024, 1), -32768, np.int16)
    assert run("matmul", x, w)[0, 0] == np.int64(255 * -32768 * 1024).astype(np.int32)
    big = np.full((1, 3), 2**30, np.int32)
    assert run("matmul", big, np.full((3, 1), 2, np.int32))[0, 0] == np.int64(3 * 2**31).astype(np.int32)


def test_matmul_broadcasts_batches_and_adds_a_bias() -> None:
    a, b = np.ones((2, 1, 3, 4), np.float32), np.ones((5, 4, 2), np.float32)
    y = run("matmul", a, b, np.float32([1, 2]))
    assert y.shape == (2, 5, 3, 2)
    assert y[0, 0, 0].tolist() == [5.0, 6.0]


@pytest.mark.parametrize(
    ("x", "w", "attrs", "error", "message"),
    [
        ((1, 3, 4, 4), (2, 2, 3, 3), {}, ModelError, r"weights \[2, 2, 3, 3\] do not fit 3 channels in 1 groups"),
        ((1, 2, 2, 2), (2, 2, 3, 3), {}, ModelError, r"a window of \[3, 3\] does not fit into 2 x 2"),
        ((1, 2, 4, 4), (2, 2, 3, 3), {"stride": (0, 1)}, ModelError, "stride must be 2 integers >= 1"),
        ((1, 2, 4, 4), (2, 2, 3, 3), {"layout": "CHWN"}, ModelError, "layout must be NCHW or NHWC, got 'CHWN'"),
        ((1, 2, 4, 4), (2, 2, 3, 3), {"x_zero": 1}, UnsupportedError, "x_zero is 0 for floats"),
    ],
)
def test_illegal_convolutions_say_why(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], error: type[Exception], message: str
) -> None:
    legal = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    with pytest.raises(error, match=message):
        run("conv", np.zeros(x, np.float32), np.zeros(w, np.float32), **{**legal, **attrs})


def slow_pool(x: Array, fn: str, window: dict[str, Any], out: tuple[int, int], include: bool) -> Array:
    """Return NCHW pooling, one window at a time."""
    n, c, h, wd = x.shape
    top, left, bottom, right = window["pads"]
    y = np.zeros((n, c, *out), np.float64)
    for b, ch, i, j in itertools.product(*map(range, (n, c, *out))):
        seen, counted = [], 0
        for r, q in itertools.product(*map(range, window["kernel"])):
            row = i * window["stride"][0] + r * window["dilation"][0] - top
            column = j * window["stride"][1] + q * window["dilation"][1] - left
            inside = 0 <= row < h and 0 <= column < wd
            if inside:
                seen.append(float(x[b, ch, row, column]))
            counted += inside or (include and row < h + bottom and column < wd + right)
        if fn == "max":
            y[b, ch, i, j] = max(seen, default=-np.inf)
        else:
            y[b, ch, i, j] = sum(seen) / max(counted, 1) if fn == "average" else sum(v * v for v in seen) ** 0.5
    return y


@given(windows(), st.sampled_from(["max", "average", "l2"]), st.booleans(), st.booleans())
def test_pool_is_what_its_windows_see(window: dict[str, Any], fn: str, include: bool, ceil: bool) -> None:
    rng = np.random.default_rng(window["seed"])
    x = rng.standard_normal((1, 2, *window["size"])).astype(np.float32)
    out = []
    for i, size in enumerate(window["size"]):
        extent = (window["kernel"][i] - 1) * window["dilation"][i] + 1
        room = size + window["pads"][i] + window["pads"][i + 2] - extent
        count = (-(-room // window["stride"][i]) if ceil else room // window["stride"][i]) + 1
        starts_inside = (count - 1) * window["stride"][i] < size + window["pads"][i]
        out.append(count if starts_inside or count == 1 else count - 1)
    geometry = {name: window[name] for name in ("kernel", "stride", "dilation", "pads", "layout")}
    y = run("pool", to_layout(x, window["layout"]), fn=fn, output_hw=tuple(out), count_include_pad=include, **geometry)
    expected = slow_pool(x, fn, window, (out[0], out[1]), include)
    np.testing.assert_allclose(y, to_layout(expected, window["layout"]), rtol=1e-6, atol=1e-7)


def test_integer_averages_round_half_to_even() -> None:
    x = np.int8([[[[1, 2], [3, 4]]]])
    window = {"layout": "NCHW", "kernel": (2, 2), "stride": (1, 1), "dilation": (1, 1), "pads": (0,) * 4}
    assert run("pool", x, fn="average", output_hw=(1, 1), **window).item() == 2
    with pytest.raises(UnsupportedError, match="l2 pooling floats"):
        run("pool", x, fn="l2", output_hw=(1, 1), **window)
