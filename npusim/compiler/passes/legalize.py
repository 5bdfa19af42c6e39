"""Bring a graph into the forms that lowerings support, and find what the device cannot execute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npusim.compiler.passes.rewrite import Rewriter
from npusim.dtypes import DEVICE_DTYPES, DType
from npusim.errors import ProgramError
from npusim.graph import Graph, Op, Tensor
from npusim.hw.config import Config
from npusim.isa.base import Unit
from npusim.isa.functions import Binary
from npusim.isa.matrix_types import accumulator_type, rate_type
from npusim.ops.base import REGISTRY
from npusim.ops.budget import Budget


def legalize(graph: Graph, budget: Budget) -> Graph:
    """Rewrite operators without a lowering in terms of others. Raises CompileError beyond the budget."""
    return Rewriter(graph, budget).run(_legalize_op)


def unsupported(graph: Graph, config: Config) -> list[tuple[Op, str]]:
    """Every operator that this device cannot execute, and why."""
    return [(op, reason) for op in graph.ops for reason in _missing(op, config)]


def _missing(op: Op, config: Config) -> list[str]:
    strange = {t.dtype for t in (*op.inputs, *op.outputs) if t is not None and t.dtype not in DEVICE_DTYPES}
    if strange:
        return [f"{config.name} does not compute with {', '.join(sorted(dtype.label for dtype in strange))}"]
    unit = REGISTRY[op.kind].unit_of(op.attrs)
    if unit is not Unit.DMA and unit.name.lower() not in config.units:
        return [f"{config.name} has no {unit.name.lower()} unit"]
    if unit is not Unit.MATRIX or config.matrix is None:
        return []
    x, w = op.input(0).dtype, op.input(1).dtype
    try:
        accumulator_type(x, w, wide=op.attrs.get("wide", False), scaled=op.optional(3) is not None)
    except ProgramError as error:
        return [str(error)]
    wide = rate_type(x, w)
    if not config.matrix.rate(wide.label):
        known = ", ".join(sorted(name for name, rate in config.matrix.throughput.items() if rate))
        return [f"the matrix unit of {config.name} does not compute with {wide.label}; it does with {known}"]
    return []


def _legalize_op(rewriter: Rewriter, op: Op) -> bool:
    for rule in RULES.get(op.kind, ()):
        tensor = rule(rewriter, op)
        if tensor is not None:
            rewriter.substitute(op.output, tensor)
            return True
    return False


def _separate_bias(rewriter: Rewriter, op: Op) -> Tensor | None:
    """A computed bias is added afterwards, because the matrix unit only supports constant ones."""
    bias = op.optional(2)
    if bias is None or bias.data is not None:
        return None
    plain = rewriter.add(op.name, op.kind, op.inputs[:2], op.attrs)
    return _add_bias(rewriter, op, plain, bias)


def _add_bias(rewriter: Rewriter, op: Op, value: Tensor, bias: Tensor) -> Tensor:
    axis = 1 if op.attrs.get("layout") == "NCHW" else len(value.shape) - 1
    shape = tuple(bias.size if index == axis else 1 for index in range(len(value.shape)))
    row = rewriter.add(f"{op.name}.bias", "reshape", (bias,), {"shape": shape})
    return rewriter.add(f"{op.name}.add", "binary", (value, row), {"fn": Binary.ADD})


_PADDED_DIMENSIONS = 4
"""The number of dimensions that one transfer can pad."""


def _pad_in_turns(rewriter: Rewriter, op: Op) -> Tensor | None:
    """Constant padding of many dimensions, a few at a time."""
    if op.attrs["mode"] != "constant":
        return None
    value = op.input(0)
    axes = [axis for axis, ends in enumerate(zip(op.attrs["before"], op.attrs["after"], strict=True)) if any(ends)]
    if len(axes) <= _PADDED_DIMENSIONS:
        return None
    for turn in range(0, len(axes), _PADDED_DIMENSIONS):
        chosen = axes[turn : turn + _PADDED_DIMENSIONS]
        ends = {
            side: tuple(size if axis in chosen else 0 for axis, size in enumerate(op.attrs[side]))
            for side in ("before", "after")
        }
        value = rewriter.add(f"{op.name}.turn{turn}", "pad", (value,), {**op.attrs, **ends})
    return value


def _sum_of_nothing(rewriter: Rewriter, op: Op) -> Tensor | None:
    """The result for operands without elements is a constant, to which the bias of a matmul is added."""
    if op.input(0).size or not op.output.size:
        return None
    plain = Op(op.name, op.kind, op.inputs[:2], op.outputs, op.attrs)
    # There are no elements to compute with, so the reference gives the value here, once.
    arrays = [None if t is None else np.zeros(t.shape, t.dtype.storage) for t in plain.inputs]
    (value,) = REGISTRY[op.kind].reference(plain, arrays)
    nothing = rewriter.const(f"{op.name}.empty", np.asarray(value, order="C"), op.output.dtype)
    bias = op.optional(2)
    return nothing if bias is None else rewriter.add(f"{op.name}.add", "binary", (nothing, bias), {"fn": Binary.ADD})


def _beyond(op: Op) -> list[int]:
    """Per dimension, the number of data elements that the indices of a scatter do not cover; 0 along its axis."""
    x, index, axis = op.input(0).shape, op.input(1).shape, op.attrs["axis"]
    return [0 if number == axis else dim - index[number] for number, dim in enumerate(x)]


def _scatter_from(rewriter: Rewriter, op: Op, x: Tensor, axis: int) -> Tensor:
    """Scatter into the part that the indices cover, and concatenate the rest, one axis after another."""
    rest = _beyond(op)
    axis = next((number for number in range(axis, len(rest)) if rest[number]), len(rest))
    if axis == len(rest):
        return rewriter.add(f"{op.name}.part", op.kind, (x, *op.inputs[1:]), op.attrs)
    span = x.shape[axis] - rest[axis]
    low, high = (
        _part(rewriter, f"{op.name}.{side}{axis}", x, axis, start, size)
        for side, start, size in (("low", 0, span), ("high", span, rest[axis]))
    )
    inner = _scatter_from(rewriter, op, low, axis + 1)
    return rewriter.add(f"{op.name}.joined{axis}", "concat", (inner, high), {"axis": axis})


def _part(rewriter: Rewriter, name: str, x: Tensor, axis: int, start: int, size: int, step: int = 1) -> Tensor:
    """``size`` elements along one axis, from ``start`` on."""
    starts = tuple(start if index == axis else 0 for index in range(len(x.shape)))
    sizes = tuple(size if index == axis else dim for index, dim in enumerate(x.shape))
    steps = tuple(step if index == axis else 1 for index in range(len(x.shape)))
    return rewriter.add(name, "slice", (x,), {"starts": starts, "steps": steps, "sizes": sizes})


def _cheaper(rewriter: Rewriter, op: Op) -> Tensor | None:
    """Replace a square by a product, and a division by powers of two by a product with their reciprocals.

    The results are bit-identical: elements are computed in double precision and rounded once. There the square of a
    narrower float is exact either way, and so is a reciprocal that is a power of two.
    """
    x, constant = op.input(0), op.input(1).data
    if constant is None or not constant.size or x.dtype not in (DType.FLOAT32, DType.FLOAT16):
        return None
    if op.attrs["fn"] == Binary.POW and op.output.shape == x.shape and np.all(constant == 2):
        return rewriter.add(op.name, "binary", (x, x), {"fn": Binary.MUL})
    if op.attrs["fn"] == Binary.DIV and np.all(np.abs(np.frexp(constant)[0]) == 0.5):
        with np.errstate(over="ignore"):
            inverse = (1 / constant.astype(np.float64)).astype(constant.dtype)
        if np.all(np.abs(np.frexp(inverse)[0]) == 0.5):
            factor = rewriter.const(f"{op.name}.reciprocal", inverse, x.dtype)
            return rewriter.add(op.name, "binary", (x, factor), {"fn": Binary.MUL})
    return None


def _conv_transpose(rewriter: Rewriter, op: Op) -> Tensor:
    """Spread the input by the stride, and convolve it with the rotated kernel."""
    attrs, name = op.attrs, op.name
    x, w = op.input(0), op.input(1)
    nchw = attrs["layout"] == "NCHW"
    axes = (2, 3) if nchw else (1, 2)
    kernel, dilation, pads = w.shape[2:], attrs["dilation"], attrs["pads"]
    output = op.output.shape[axes[0]], op.output.shape[axes[1]]
    value = x
    around = []
    for number, axis in enumerate(axes):
        # The inserted elements are x_zero, which the unit subtracts, so they add nothing to any sum.
        value = _spread(rewriter, name, value, axis, attrs["stride"][number], attrs["x_zero"])
        # The reverse of the forward direction: padded by the kernel's reach on both sides, minus the forward padding.
        reach = (kernel[number] - 1) * dilation[number]
        low = reach - pads[number]
        high = output[number] + reach - value.shape[axis] - low
        value, low, high = _crop(rewriter, name, value, axis, low, high)
        around.append((low, high))
    weights = _turned(rewriter, name, w, attrs["groups"])
    (top, bottom), (left, right) = around
    conv = {name: attrs[name] for name in ("layout", "groups", "x_zero", "w_zero")}
    conv |= {"stride": (1, 1), "dilation": dilation, "pads": (top, left, bottom, right)}
    bias = op.optional(2)
    constant = bias is not None and bias.is_constant
    result = rewriter.add(name, "conv", (value, weights, bias) if constant else (value, weights), conv)
    return result if bias is None or constant else _add_bias(rewriter, op, result, bias)


def _spread(rewriter: Rewriter, name: str, x: Tensor, axis: int, stride: int, zero: int) -> Tensor:
    """Insert stride - 1 elements that represent 0 after every element of an axis."""
    if stride == 1:
        return x
    apart = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
    split = rewriter.add(f"{name}.split{axis}", "reshape", (x,), {"shape": apart})
    after = tuple(stride - 1 if index == axis + 1 else 0 for index in range(len(apart)))
    attrs = {"before": (0,) * len(apart), "after": after, "mode": "constant", "value": zero}
    padded = rewriter.add(f"{name}.spread{axis}", "pad", (split,), attrs)
    joined = tuple(dim * stride if index == axis else dim for index, dim in enumerate(x.shape))
    return rewriter.add(f"{name}.join{axis}", "reshape", (padded,), {"shape": joined})


def _crop(rewriter: Rewriter, name: str, x: Tensor, axis: int, low: int, high: int) -> tuple[Tensor, int, int]:
    """Turn negative padding into a slice. Returns (tensor, padding before, padding after)."""
    start, stop = max(0, -low), x.shape[axis] - max(0, -high)
    if (start, stop) == (0, x.shape[axis]):
        return x, low, high
    return _part(rewriter, f"{name}.crop{axis}", x, axis, start, stop - start), max(low, 0), max(high, 0)


def _turned(rewriter: Rewriter, name: str, w: Tensor, groups: int) -> Tensor:
    """Convert [I, O/g, KH, KW] to [O, I/g, KH, KW] with the kernel rotated by 180 degrees."""
    rows, cols, kh, kw = w.shape
    if w.data is not None:
        turned = w.data[:, :, ::-1, ::-1].reshape(groups, rows // groups, cols, kh, kw).transpose(0, 2, 1, 3, 4)
        return rewriter.const(
            f"{name}.turned", np.ascontiguousarray(turned).reshape(groups * cols, rows // groups, kh, kw), w.dtype
        )
    flip = {"starts": (0, 0, kh - 1, kw - 1), "steps": (1, 1, -1, -1), "sizes": w.shape}
    value = rewriter.add(f"{name}.flip", "slice", (w,), flip)
    value = rewriter.add(f"{name}.groups", "reshape", (value,), {"shape": (groups, rows // groups, cols, kh, kw)})
    value = rewriter.add(f"{name}.swap", "transpose", (value,), {"perm": (0, 2, 1, 3, 4)})
    return rewriter.add(f"{name}.turned", "reshape", (value,), {"shape": (groups * cols, rows // groups, kh, kw)})


def _turned_constant(rewriter: Rewriter, op: Op) -> Tensor | None:
    """Transpose a constant at compile time. Otherwise each of its elements would be a separate run of a transfer in
    every inference."""
    x = op.input(0)
    return None if x.data is None else rewriter.const(f"{op.name}.turned", x.data.transpose(op.attrs["perm"]), x.dtype)


RULES: dict[str, tuple[Callable[[Rewriter, Op], Tensor | None], ...]] = {
    "binary": (_cheaper,),
    "conv": (_separate_bias,),
    "conv_transpose": (_conv_transpose,),
    "matmul": (_sum_of_nothing, _separate_bias),
    "pad": (_pad_in_turns,),
    "reduce": (_sum_of_nothing,),
    "transpose": (_turned_constant,),
    "scatter_elements": (
        lambda rewriter, op: _scatter_from(rewriter, op, op.input(0), 0) if any(_beyond(op)) else None,
    ),
}
"""For each kind that may need rewriting: rules in the order in which they are tried; a rule returns None if it does not
apply. A kind of the form REWRITTEN has one that always applies."""


def separate_outputs(graph: Graph) -> Graph:
    """Give every output its own tensor: constants, inputs, repeated outputs and states of loops are copied."""
    names: Sequence[Tensor] = graph.inputs
    taken = set(names)
    for op in graph.ops:
        if op.kind == "repeat":  # a state has one place in all iterations
            states = op.attrs["states"]
            taken.update(tensor for tensor in (*op.inputs[:states], *op.outputs[:states]) if tensor is not None)
    ops = list(graph.ops)
    outputs: list[Tensor] = []
    for tensor in graph.outputs:
        # An output is a separate region that the program writes. Constants and inputs are in regions that it never
        # writes, and one tensor cannot be in two regions.
        if tensor.is_constant or tensor in taken:
            copy = Tensor(f"{tensor.name}~output{len(outputs)}", tensor.shape, tensor.dtype)
            ops.append(Op(copy.name, "reshape", (tensor,), (copy,), {"shape": tensor.shape}))
            tensor = copy
        taken.add(tensor)
        outputs.append(tensor)
    return Graph(graph.name, graph.inputs, tuple(outputs), tuple(ops))
