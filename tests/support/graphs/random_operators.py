"""One function per operator kind: draw valid operands and attributes, then add the operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.isa.functions import COMPARISONS, PREDICATES, Binary, Reduce, Unary
from npusim.ops.elementwise import BITWISE, INTEGER_UNARY, LOGICAL
from npusim.ops.routine import routine_attrs
from tests.support import sample_routines  # noqa: F401  (registers test.flip)
from tests.support.graphs.random_values import ANY, FLOATS, MOST_ELEMENTS, NUMBERS, Grower, Value

STEEP_UNARY = frozenset({
    Unary.EXP, Unary.LOG, Unary.SQRT, Unary.RSQRT, Unary.RECIPROCAL, Unary.TAN, Unary.ASIN, Unary.ACOS, Unary.SINH,
    Unary.COSH, Unary.ACOSH, Unary.ATANH, Unary.SIGN, Unary.FLOOR, Unary.CEIL, Unary.ROUND, Unary.ISNAN, Unary.ISINF,
    Unary.THRESHOLDED_RELU, Unary.SHRINK, Unary.SQUARE,
})  # fmt: skip
"""Functions that amplify small errors; they only get exact operands."""
EXACT_UNARY = frozenset({
    Unary.IDENTITY, Unary.RELU, Unary.CLIP, Unary.NEG, Unary.ABS, Unary.SIGN, Unary.FLOOR, Unary.CEIL, Unary.ROUND,
    Unary.SQUARE, Unary.NOT, Unary.BITWISE_NOT,
}) | PREDICATES  # fmt: skip
STEEP_BINARY = COMPARISONS | {Binary.DIV, Binary.POW, Binary.MOD, Binary.FMOD}
"""Likewise. Float fmod and pow are compared with a tolerance; the others are exact for exact operands."""
_MOST_PEAK = 1e30

Tile = Callable[[Grower], object]


def unary(g: Grower) -> None:
    x = g.operand()
    if x.dtype is DType.BOOL:
        fns = [Unary.NOT, Unary.IDENTITY]
    elif x.dtype.is_integer:
        fns = sorted(INTEGER_UNARY)
    else:
        fns = [f for f in Unary if f not in (Unary.NOT, Unary.BITWISE_NOT) and (x.exact or f not in STEEP_UNARY)]
    fn = g.pick(fns)
    p0, p1 = {
        Unary.CLIP: (-1.5, 2.5), Unary.LEAKY_RELU: (0.1, 0.0), Unary.ELU: (1.25, 0.0), Unary.SELU: (1.67, 1.05),
        Unary.CELU: (0.75, 0.0), Unary.HARD_SIGMOID: (0.2, 0.5), Unary.THRESHOLDED_RELU: (0.5, 0.0),
        Unary.SILU: (1.5, 0.0), Unary.ISINF: (1.0, 1.0), Unary.SHRINK: (0.25, 0.5),
    }.get(fn, (0.0, 0.0))  # fmt: skip
    exact = x.exact and (fn in EXACT_UNARY)
    g.add("unary", [x], 0.0 if exact else 2 * x.reach, fn=fn, p0=p0, p1=p1)


def _broadcastable(g: Grower, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to this one."""
    dims = [1 if dim and g.integer(0, 3) == 3 else dim for dim in shape]
    return tuple(dims[g.integer(0, len(dims)) if g.integer(0, 3) == 3 else 0 :])


def binary(g: Grower) -> None:
    a = g.operand()
    if a.dtype is DType.BOOL:
        fns = sorted({*LOGICAL, *COMPARISONS})
    else:
        fns = [f for f in Binary if f not in LOGICAL and (a.dtype.is_integer or f not in BITWISE)]
        if not a.exact:
            fns = [f for f in fns if f not in STEEP_BINARY and f is not Binary.PRELU]
    fn = g.pick(fns)
    steep = fn in STEEP_BINARY
    b = g.other(_broadcastable(g, a.shape), a.dtype, exact=steep or fn is Binary.PRELU)
    if fn in (Binary.MUL, Binary.SQUARED_DIFFERENCE) and a.reach * b.reach > _MOST_PEAK:
        fn = Binary.ADD
    operands = [b, a] if g.flag() and fn is not Binary.PRELU else [a, b]
    inexact = not (a.exact and b.exact) or (a.dtype.is_float and fn in (Binary.POW, Binary.MOD, Binary.FMOD))
    peak = (
        (a.reach + 1) * (b.reach + 1)
        if fn not in (Binary.ADD, Binary.SUB, Binary.MIN, Binary.MAX)
        else a.reach + b.reach
    )
    if fn is Binary.SQUARED_DIFFERENCE:
        peak = (a.reach + b.reach) ** 2
    g.add("binary", operands, peak if inexact else 0.0, fn=fn)


def select(g: Grower) -> None:
    a = g.operand()
    b = g.other(_broadcastable(g, a.shape), a.dtype)
    condition = g.other(_broadcastable(g, a.shape), DType.BOOL)
    g.add("select", [condition, a, b], 0.0 if a.exact and b.exact else max(a.reach, b.reach))


def cast(g: Grower) -> None:
    x = g.operand()
    to = g.pick(ANY if x.exact else FLOATS)
    g.add("cast", [x], 0.0 if x.exact else x.reach, to=to)


def _scale_zero(g: Grower, x: Value, to: DType) -> tuple[Value, Value]:
    """Draw parameters per tensor, per channel or per element, as constants or graph inputs."""
    shape = g.pick(((), (1,) * x.rank, _broadcastable(g, x.shape)))
    scale = (2.0 ** g.rng.integers(-4, 3, shape)).astype(np.float32) * np.float32(g.pick((1.0, 1.1)))
    zero = g.rng.integers(0 if to in (DType.UINT8, DType.UINT16) else -5, 12, shape).astype(np.int32)
    if g.integer(0, 3):
        return g.constant(scale), g.constant(zero)
    return g.fresh(shape, DType.FLOAT32, np.asarray(scale)), g.fresh(shape, DType.INT32, np.asarray(zero))


def quantize(g: Grower) -> None:
    x = g.operand((*FLOATS, DType.INT32), exact=True)
    to = g.pick((DType.INT8, DType.UINT8, DType.INT16, DType.UINT16))
    g.add("quantize", [x, *_scale_zero(g, x, to)], to=to)


def dequantize(g: Grower) -> None:
    x = g.operand((DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32))
    g.add("dequantize", [x, *_scale_zero(g, x, x.dtype)], to=g.pick(FLOATS))


def _image(g: Grower, x: Value, nhwc: bool) -> tuple[int, int, int]:
    """Return (channels, height, width)."""
    return (x.shape[3], x.shape[1], x.shape[2]) if nhwc else (x.shape[1], x.shape[2], x.shape[3])


def _nonempty_rank4(value: Value) -> bool:
    return value.rank == 4 and 0 not in value.shape


def _window(g: Grower, h: int, w: int) -> dict[str, tuple[int, ...]]:
    kernel = tuple(g.integer(1, min(3, size)) for size in (h, w))
    dilation = tuple(g.integer(1, 2) if (k - 1) * 2 < size else 1 for k, size in zip(kernel, (h, w), strict=True))
    pads = tuple(g.integer(0, 2) for _ in range(4))
    return {"kernel": kernel, "dilation": dilation, "pads": pads, "stride": (g.integer(1, 3), g.integer(1, 3))}


_WEIGHTS = {DType.INT8: (DType.INT8, DType.UINT8, DType.INT16), DType.UINT8: (DType.INT8, DType.UINT8, DType.INT16),
            DType.INT16: (DType.INT8, DType.UINT8, DType.INT16)}  # fmt: skip


def _x_zero(g: Grower, dtype: DType) -> int:
    if dtype not in _WEIGHTS or not g.flag():
        return 0
    info = np.iinfo(dtype.storage)
    return g.integer(max(info.min, -200), min(info.max, 200))


def _w_zero(g: Grower, dtype: DType) -> int:
    if dtype not in (DType.INT8, DType.UINT8) or not g.flag():
        return 0
    info = np.iinfo(dtype.storage)
    return g.integer(int(info.min), int(info.max))


def _bias(g: Grower, channels: int, dtype: DType) -> Value | None:
    return g.other((channels,), dtype) if g.flag() else None


def _product_peak(x: Value, w: Value, depth: int, bias: Value | None) -> float:
    if not x.dtype.is_float:
        return 0.0
    return depth * x.reach * w.reach + (bias.reach if bias else 0)


def conv(g: Grower) -> None:
    dtypes = (*FLOATS, *_WEIGHTS)
    x = g.operand(dtypes, lambda v: _nonempty_rank4(v) and v.reach < _MOST_PEAK, shape=lambda: g.shape(4, empty=False))
    nhwc = g.flag()
    channels, h, w = _image(g, x, nhwc)
    window = _window(g, h, w)
    groups = g.pick([n for n in (1, channels, 2, 3) if channels % n == 0])
    out = groups * g.integer(1, 12 if groups == 1 else 3)
    kernel = window.pop("kernel")
    wtype = g.pick(_WEIGHTS.get(x.dtype, (x.dtype,)))
    shape = (out, channels // groups, *kernel)
    weights = g.constant(g.data(shape, wtype), wtype) if g.integer(0, 2) else g.fresh(shape, wtype)
    bias = _bias(g, out, x.dtype if x.dtype.is_float else DType.INT32)
    depth = math.prod(shape[1:])
    g.add(
        "conv", [x, weights, bias], _product_peak(x, weights, depth, bias), layout="NHWC" if nhwc else "NCHW",
        groups=groups, x_zero=_x_zero(g, x.dtype), w_zero=_w_zero(g, wtype), **window,
    )  # fmt: skip


def conv_transpose(g: Grower) -> None:
    x = g.operand(
        (*FLOATS, *_WEIGHTS),
        lambda v: _nonempty_rank4(v) and v.reach < _MOST_PEAK,
        shape=lambda: g.shape(4, empty=False),
    )
    nhwc = g.flag()
    channels, h, w = _image(g, x, nhwc)
    window = _window(g, h, w)
    groups = g.pick([n for n in (1, channels, 2) if channels % n == 0])
    kernel = window.pop("kernel")
    shape = (channels, g.integer(1, 4), *kernel)
    wtype = g.pick(_WEIGHTS.get(x.dtype, (x.dtype,)))
    weights = g.constant(g.data(shape, wtype), wtype) if g.integer(0, 2) else g.fresh(shape, wtype)
    window["pads"] = tuple(
        g.integer(0, (kernel[i % 2] - 1) * window["dilation"][i % 2] // 2) for i in range(4)
    )  # fmt: skip
    least = [
        (size - 1) * window["stride"][i] + (kernel[i] - 1) * window["dilation"][i] + 1
        - window["pads"][i] - window["pads"][i + 2]
        for i, size in enumerate((h, w))
    ]  # fmt: skip
    more = [max(pair) - 1 for pair in zip(window["stride"], window["dilation"], strict=True)]
    output = tuple(
        min(max(1, size) + g.integer(0, limit), size + limit) for size, limit in zip(least, more, strict=True)
    )
    if min(output) < 1:
        return
    bias = _bias(g, shape[1] * groups, x.dtype if x.dtype.is_float else DType.INT32)
    depth = math.prod(shape) // shape[1]
    g.add(
        "conv_transpose", [x, weights, bias], _product_peak(x, weights, depth, bias),
        layout="NHWC" if nhwc else "NCHW", groups=groups, output_hw=output, x_zero=_x_zero(g, x.dtype),
        w_zero=_w_zero(g, wtype), **window,
    )  # fmt: skip


def matmul(g: Grower) -> None:
    dtypes = (*FLOATS, *_WEIGHTS, DType.INT32)
    a = g.operand(dtypes, lambda v: v.rank >= 2 and v.reach < _MOST_PEAK, shape=lambda: g.shape(least=2))
    k, n = a.shape[-1], g.pick((1, 3, 8, 17, 40))
    btype = g.pick(_WEIGHTS.get(a.dtype, (a.dtype,)))
    batch = _broadcastable(g, a.shape[:-2])
    shape = (*batch, k, n)
    if math.prod(a.shape[:-1]) * n > 4 * MOST_ELEMENTS:
        shape = (k, 1)
    b = g.constant(g.data(shape, btype), btype) if g.flag() else g.other(shape, btype)
    if b.reach > _MOST_PEAK:
        return
    bias = _bias(g, shape[-1], a.dtype if a.dtype.is_float else DType.INT32)
    zero = 0 if a.dtype is DType.INT32 else _x_zero(g, a.dtype)
    g.add("matmul", [a, b, bias], _product_peak(a, b, max(k, 1), bias), x_zero=zero, w_zero=_w_zero(g, btype))


def pool(g: Grower) -> None:
    x = g.operand(NUMBERS, _nonempty_rank4, shape=lambda: g.shape(4, empty=False))
    nhwc = g.flag()
    _, h, w = _image(g, x, nhwc)
    window = _window(g, h, w)
    kernel, stride, dilation = window["kernel"], window["stride"], window["dilation"]
    pads = window["pads"] = tuple(g.integer(0, max(0, kernel[i % 2] - 1)) for i in range(4))
    size = [
        h + pads[0] + pads[2] - (kernel[0] - 1) * dilation[0] - 1,
        w + pads[1] + pads[3] - (kernel[1] - 1) * dilation[1] - 1,
    ]
    if min(size) < 0:
        return
    output = tuple(extent // step + 1 for extent, step in zip(size, stride, strict=True))
    fns = ["max"]
    if x.dtype.is_float or (x.dtype.itemsize <= 4 and x.dtype is not DType.INT32):
        fns.append("average")
    if x.dtype.is_float and x.exact:
        fns.append("l2")
    fn = g.pick(fns)
    exact = x.exact and (fn == "max" or x.dtype.is_integer)
    g.add(
        "pool", [x], 0.0 if exact else 3 * x.reach, fn=fn, layout="NHWC" if nhwc else "NCHW", output_hw=output,
        count_include_pad=fn == "average" and g.flag(), **window,
    )  # fmt: skip


def reduce(g: Grower) -> None:
    x = g.operand()
    axes = tuple(sorted(g.draw(st.sets(st.integers(0, x.rank - 1))))) if x.rank else ()
    if x.dtype is DType.BOOL:
        fns = [Reduce.ANY, Reduce.ALL, Reduce.MAX, Reduce.MIN]
    elif x.dtype.is_integer:
        fns = [f for f in Reduce if f not in (Reduce.ANY, Reduce.ALL, Reduce.L2)]
    elif x.exact:
        fns = [f for f in Reduce if f not in (Reduce.ANY, Reduce.ALL)]
    else:
        fns = [Reduce.SUM, Reduce.MEAN, Reduce.MAX, Reduce.MIN, Reduce.L1]
    fn = g.pick(fns)
    count = max(1, math.prod(x.shape[axis] for axis in axes))
    exact = x.exact and (not x.dtype.is_float or fn in (Reduce.MAX, Reduce.MIN))
    peak = count * x.reach ** (2 if fn is Reduce.SUM_SQUARE else 1)
    g.add("reduce", [x], 0.0 if exact else peak, fn=fn, axes=axes, keepdims=g.flag())


def _along(value: Value) -> bool:
    return value.rank > 0


def arg_reduce(g: Grower) -> None:
    x = g.operand(
        NUMBERS, lambda v: v.rank > 0 and 0 not in v.shape, exact=True, shape=lambda: g.shape(least=1, empty=False)
    )
    axis = g.integer(0, x.rank - 1)
    g.add("arg_reduce", [x], fn=g.pick(("max", "min")), axis=axis, keepdims=g.flag(), select_last=g.flag())


def topk(g: Grower) -> None:
    x = g.operand(NUMBERS, _along, exact=True, shape=lambda: g.shape(least=1))
    axis = g.integer(0, x.rank - 1)
    g.add("topk", [x], axis=axis, k=g.integer(0, x.shape[axis]), largest=g.flag())


def resample(g: Grower) -> None:
    x = g.operand(NUMBERS, lambda v: v.rank > 0 and 0 not in v.shape, shape=lambda: g.shape(least=1, empty=False))
    if x.dtype in (DType.INT32, DType.INT64) or (x.dtype.is_integer and not x.exact):
        return
    axis = g.integer(0, x.rank - 1)
    count, taps = g.integer(1, 9), g.integer(1, 4)
    index = g.rng.integers(-1, x.shape[axis], (count, taps)).astype(np.int32)
    # Multiples of a quarter: sums of small integers are exact, so rounding to an integer is unambiguous.
    weight = (g.rng.integers(-4, 5, (count, taps)) / 4).astype(np.float32)
    peak = 0.0 if x.dtype.is_integer else taps * x.reach
    g.add("resample", [x, g.constant(index), g.constant(weight)], peak, axis=axis)


def softmax(g: Grower) -> None:
    x = g.operand(FLOATS, _along, shape=lambda: g.shape(least=1))
    g.add("softmax", [x], 2 * x.reach, axis=g.integer(0, x.rank - 1), log=g.flag())


def normalize(g: Grower) -> None:
    x = g.operand(FLOATS, _along, exact=True, shape=lambda: g.shape(least=1))
    g.add("normalize", [x], x.reach * 300, axis=g.integer(0, x.rank - 1), mode=g.pick(("layer", "rms")), epsilon=1e-5)


def cumsum(g: Grower) -> None:
    x = g.operand(NUMBERS, _along, shape=lambda: g.shape(least=1))
    axis = g.integer(0, x.rank - 1)
    peak = (x.shape[axis] + 1) * x.reach if x.dtype.is_float else 0.0
    g.add("cumsum", [x], peak, axis=axis, exclusive=g.flag(), reverse=g.flag())


def cumprod(g: Grower) -> None:
    x = g.operand(NUMBERS, _along, shape=lambda: g.shape(least=1))
    axis = g.integer(0, x.rank - 1)
    most = (x.shape[axis] + 1) * math.log(max(1.0, x.reach))
    peak = math.exp(min(most, 700.0)) if x.dtype.is_float else 0.0
    g.add("cumprod", [x], peak, axis=axis, exclusive=g.flag(), reverse=g.flag())


def lrn(g: Grower) -> None:
    x = g.operand(FLOATS, lambda v: v.rank > 0 and v.largest < 100, shape=lambda: g.shape(least=1))
    g.add("lrn", [x], 4 * x.reach, axis=g.integer(0, x.rank - 1), size=g.integer(1, 5), alpha=0.01, beta=0.75, bias=1.0)


def reshape(g: Grower) -> None:
    x = g.operand()
    if not x.array.size:
        shape: tuple[int, ...] = (0, *g.shape(empty=False)[:3])
    else:
        factors, rest = [], x.array.size
        for prime in (2, 3, 5, 7, 11):
            while rest % prime == 0:
                rest //= prime
                factors.append(prime)
        factors.append(rest)
        dims = [1] * g.integer(1, 6)
        for factor in factors:
            dims[g.integer(0, len(dims) - 1)] *= factor
        shape = tuple(dims)
    g.moved("reshape", [x], shape=shape)


def transpose(g: Grower) -> None:
    x = g.operand()
    g.moved("transpose", [x], perm=tuple(g.draw(st.permutations(range(x.rank)))))


def slice_(g: Grower) -> None:
    x = g.operand(fits=_along, shape=lambda: g.shape(least=1))
    starts, steps, sizes = [], [], []
    for dim in x.shape:
        step = g.pick((1, -1, 2, -2, 3, -3))
        start = g.integer(0, max(dim - 1, 0))
        room = (dim - 1 - start) // step + 1 if step > 0 else start // -step + 1
        starts.append(start)
        steps.append(step)
        sizes.append(0 if not dim else max(1, room) if g.integer(0, 3) else g.integer(0, room))
    g.moved("slice", [x], starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))


def concat(g: Grower) -> None:
    x = g.operand(fits=_along, shape=lambda: g.shape(least=1))
    axis = g.integer(0, x.rank - 1)
    parts = [x]
    for _ in range(g.integer(0, 3)):
        length = g.pick((x.shape[axis], 1, 2, 5))
        parts.append(g.other((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype))
    parts = g.draw(st.permutations(parts))
    g.moved("concat", parts, axis=axis)


def pad(g: Grower) -> None:
    x = g.operand()
    mode = g.pick(("constant", "edge", "reflect", "wrap"))
    most = [{"constant": 3, "edge": 3 if dim else 0, "reflect": max(dim - 1, 0), "wrap": dim}[mode] for dim in x.shape]
    before = tuple(g.integer(0, min(3, limit)) for limit in most)
    after = tuple(g.integer(0, min(3, limit)) for limit in most)
    value = (
        bool(g.flag()) if x.dtype is DType.BOOL else g.pick((0, 1, 7)) if x.dtype.is_integer else g.pick((0.0, -1.5))
    )
    g.moved("pad", [x], before=before, after=after, mode=mode, value=value)


def expand(g: Grower) -> None:
    x = g.operand()
    shape = [g.pick((1, 3, 4)) if dim == 1 else dim for dim in x.shape]
    if len(shape) < 6:
        shape = [g.integer(1, 3) for _ in range(g.integer(0, min(2, 6 - len(shape))))] + shape
    if math.prod(shape) > 3 * MOST_ELEMENTS:
        return
    g.moved("expand", [x], shape=tuple(shape))


def windows(g: Grower) -> None:
    x = g.operand()
    axes = [axis for axis, dim in enumerate(x.shape) if dim]
    if not axes or len(x.shape) > 5:
        return
    axis = g.pick(axes)
    size = g.integer(1, x.shape[axis])
    if math.prod(x.shape) * x.shape[axis] <= 3 * MOST_ELEMENTS:
        g.moved("windows", [x], axis=axis, size=size, step=g.integer(1, 3))


def _indices(g: Grower, shape: tuple[int, ...], dim: int) -> Value:
    dtype = g.pick((DType.INT32, DType.INT64))
    index = g.rng.integers(-dim, dim, shape).astype(dtype.storage)
    return g.constant(index) if g.flag() else g.fresh(shape, dtype, index)


def _full(value: Value) -> bool:
    return value.rank > 0 and 0 not in value.shape


def gather(g: Grower) -> None:
    x = g.operand(fits=_full, shape=lambda: g.shape(least=1, empty=False))
    axis = g.integer(0, x.rank - 1)
    shape = g.pick(((), (1,), (4,), (2, 3), (0,)))
    index = _indices(g, shape, x.shape[axis])
    g.add("gather", [x, index], 0.0 if x.exact else x.reach, axis=axis)


def _element_indices(g: Grower, x: Value, axis: int) -> Value:
    shape = tuple(g.integer(1, 5) if a == axis else g.integer(1, dim) for a, dim in enumerate(x.shape))
    return _indices(g, shape, x.shape[axis])


def gather_elements(g: Grower) -> None:
    x = g.operand(fits=_full, shape=lambda: g.shape(least=1, empty=False))
    axis = g.integer(0, x.rank - 1)
    g.add("gather_elements", [x, _element_indices(g, x, axis)], 0.0 if x.exact else x.reach, axis=axis)


def scatter_elements(g: Grower) -> None:
    x = g.operand(fits=_full, shape=lambda: g.shape(least=1, empty=False))
    axis = g.integer(0, x.rank - 1)
    index = _element_indices(g, x, axis)
    updates = g.other(index.shape, x.dtype)
    numeric = x.dtype is not DType.BOOL
    smooth = x.exact and updates.exact and x.dtype is not DType.FLOAT16 and x.dtype is not DType.BFLOAT16
    reduction = g.pick(("none", "add", "max", "min", *(("mul",) if smooth else ())) if numeric else ("none",))
    inexact = not (x.exact and updates.exact) or (x.dtype.is_float and reduction in ("add", "mul"))
    peak = x.reach + index.array.size * updates.reach
    g.add("scatter_elements", [x, index, updates], peak if inexact else 0.0, axis=axis, reduction=reduction)


def routine(g: Grower) -> None:
    x = g.operand(fits=_along, shape=lambda: g.shape(least=1))
    attrs = routine_attrs("test.flip", axis=g.integer(0, x.rank - 1), cuts=g.integer(0, 3))
    g.moved("routine", [x], **attrs)


def island(g: Grower) -> None:
    """Dequantise, multiply, perhaps activate, quantise: a quantised layer as models contain it."""
    small = (DType.INT8, DType.UINT8)
    x = g.operand(
        small, lambda v: v.rank in (2, 3) and 0 not in v.shape, shape=lambda: g.shape(g.integer(2, 3), empty=False)
    )
    wtype, to = g.pick(small), g.pick(small)
    n = g.pick((1, 4, 9))
    weights = g.constant(g.data((x.shape[-1], n), wtype), wtype)
    channels = (1,) if g.flag() else (n,)
    wscale = g.constant((2.0 ** g.rng.integers(-6, -2, channels)).astype(np.float32) * np.float32(1.25))
    wzero = g.constant(np.zeros(channels, np.int32) + g.pick((0, 3)))
    zero, scale = g.constant(np.asarray(g.integer(0, 9), np.int32)), g.constant(np.asarray(0.25, np.float32))
    left = g.add("dequantize", [x, scale, zero], to=DType.FLOAT32)[0]
    right = g.add("dequantize", [weights, wscale, wzero], to=DType.FLOAT32)[0]
    # These values are only compared with those of the prepared graph, in which all of this is integer.
    product = g.add("matmul", [left, right, None], math.inf)[0]
    if g.flag():
        product = g.add("unary", [product], math.inf, fn=Unary.RELU)[0]
    out_scale, out_zero = g.constant(np.asarray(g.pick((1.5, 4.0)), np.float32)), g.constant(np.asarray(2, np.int32))
    g.add("quantize", [product, out_scale, out_zero], math.inf, to=to)


STEPS: dict[str, Tile] = {
    "unary": unary, "binary": binary, "select": select, "cast": cast, "quantize": quantize, "dequantize": dequantize,
    "conv": conv, "conv_transpose": conv_transpose, "matmul": matmul, "pool": pool, "reduce": reduce,
    "arg_reduce": arg_reduce, "topk": topk, "resample": resample, "softmax": softmax, "normalize": normalize,
    "cumsum": cumsum, "cumprod": cumprod, "lrn": lrn, "reshape": reshape, "transpose": transpose, "slice": slice_,
    "concat": concat,
    "pad": pad, "expand": expand, "windows": windows, "gather": gather, "gather_elements": gather_elements,
    "scatter_elements": scatter_elements, "routine": routine,
}  # fmt: skip
"""Every operator kind of npusim.graph."""
