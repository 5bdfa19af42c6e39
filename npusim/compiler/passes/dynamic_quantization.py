"""Dynamic quantisation: integer products whose scale and zero point are computed at run time.

In models, the pixels minus their zero point are int16, and three vector operators follow the product: cast, scale,
bias. Here the unit multiplies the bytes themselves. The zero point then adds a number to each channel's sum, which
becomes a bias, and the epilogue applies the scale. The result is bit-identical.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.compiler.grouping.groups import ANCHORS, VIEWS
from npusim.compiler.passes.rewrite import Rewriter
from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.base import REGISTRY

_BYTES = frozenset({DType.INT8, DType.UINT8})
_ARITHMETIC = frozenset({"unary", "binary", "cast"})
_NEVER_NEGATIVE = frozenset({Unary.RELU, Unary.SIGMOID, Unary.HARD_SIGMOID, Unary.ABS, Unary.EXP})


def dynamic_quantization(graph: Graph) -> Graph:
    """Rewrite dynamically quantised products. Returns the same graph if there are none."""
    if not any(op.kind == "quantize" and op.input(1).data is None for op in graph.ops):
        return graph
    # Ranges first: a zero point that turns out to be constant needs no bias.
    seen: dict[object, Tensor] = {}
    for rule in (lambda rewriter, op: _range(rewriter, op) or _merge(rewriter, op, seen), _product, _scale):
        graph = Rewriter(graph).run(rule)
    return graph


def _merge(rewriter: Rewriter, op: Op, seen: dict[object, Tensor]) -> bool:
    """Share equal computations of scales and zero points, and evaluate constant ones."""
    if not (op.kind in VIEWS or _is_parameter(op) or (op.kind == "quantize" and op.input(1).data is None)):
        return False
    known = [tensor for tensor in op.inputs if tensor is not None and tensor.data is not None and not tensor.bound]
    if _is_parameter(op) and len(known) == len(op.inputs):
        (value,) = REGISTRY[op.kind].reference(op, [tensor.data for tensor in known])
        rewriter.substitute(op.output, rewriter.const(f"{op.name}.value", np.asarray(value), op.output.dtype))
        return True
    # Small constants are compared by value, because each node has its own 0 and 255.
    inputs = tuple(
        (t.dtype, t.shape, t.data.tobytes()) if t is not None and t.data is not None and t.nbytes <= _SMALL else t
        for t in op.inputs
    )
    key = (op.kind, inputs, tuple(sorted((name, repr(value)) for name, value in op.attrs.items())))
    if key not in seen:
        seen[key] = op.output
        return False
    rewriter.substitute(op.output, seen[key])
    return True


_SMALL = 256
"""Maximum bytes of a constant that is compared by value."""


def _is_parameter(op: Op) -> bool:
    """Whether it computes a single number: the range of a whole tensor, or arithmetic on numbers."""
    if op.output.size != 1:
        return False
    return op.kind == "reduce" or (op.kind in _ARITHMETIC and all(t is None or t.size == 1 for t in op.inputs))


def _range(rewriter: Rewriter, op: Op) -> bool:
    """Replace the minimum of 0 and non-negative values by 0, and the zero point of a range that starts at 0 by 0."""
    if op.kind == "binary" and op.attrs["fn"] == Binary.MIN and op.output.size == 1:
        for value, other in ((op.input(0), op.input(1)), (op.input(1), op.input(0))):
            least = rewriter.made_by(value, "reduce")
            if least is None or least.attrs["fn"] != Reduce.MIN or not _is_zero(other):
                continue
            if _never_negative(rewriter, least.input(0)):
                zero = np.zeros(op.output.shape, op.output.dtype.storage)
                rewriter.substitute(op.output, rewriter.const(f"{op.name}.least", zero, op.output.dtype))
                return True
    if op.kind == "cast" and op.attrs["to"] is DType.UINT8 and op.output.size == 1:
        rounded = _unary(rewriter, op.input(0), Unary.ROUND)
        clipped = None if rounded is None else _unary(rewriter, rounded.input(0), Unary.CLIP)
        less = None if clipped is None else rewriter.made_by(clipped.input(0), "binary")
        if less is None or less.attrs["fn"] != Binary.SUB or not _is_zero(less.input(0)):
            return False
        share = rewriter.made_by(less.input(1), "binary")
        # For an empty range this is 0 / 0 = NaN, which a cast also converts to 0.
        if share is not None and share.attrs["fn"] == Binary.DIV and _is_zero(share.input(0)):
            none = np.zeros(op.output.shape, np.uint8)
            rewriter.substitute(op.output, rewriter.const(f"{op.name}.none", none))
            return True
    return False


def _unary(rewriter: Rewriter, tensor: Tensor, fn: Unary) -> Op | None:
    op = rewriter.made_by(tensor, "unary")
    return op if op is not None and op.attrs["fn"] == fn else None


def _is_zero(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.data is not None and tensor.size == 1 and not tensor.data.any()


def _never_negative(rewriter: Rewriter, tensor: Tensor) -> bool:
    op = rewriter.producer.get(tensor)
    while op is not None and (op.kind in VIEWS or op.kind == "pool"):
        op = rewriter.producer.get(op.input(0))
    if op is None:
        return False
    if op.kind == "unary":
        fn = op.attrs["fn"]
        return fn in _NEVER_NEGATIVE or (fn == Unary.CLIP and op.attrs["p0"] >= 0)
    return op.kind == "softmax"


def _product(rewriter: Rewriter, op: Op) -> bool:
    """Replace (x - zero) * w by x * w minus zero times the sum of each channel's weights."""
    if op.kind not in ANCHORS or op.attrs["x_zero"] or op.optional(2) is not None or op.output.dtype is not DType.INT32:
        return False
    found = _less_zero_point(rewriter, op)
    if found is None or op.input(1).data is None:
        return False
    x, zero = found
    if zero.data is not None:
        attrs = {**op.attrs, "x_zero": int(zero.data.item())}
        rewriter.substitute(op.output, rewriter.add(op.name, op.kind, (x, *op.inputs[1:]), attrs))
        return True
    sums = _weight_sums(op)
    if sums is None or zero.dtype not in _BYTES:
        return False
    total = rewriter.add(op.name, op.kind, (x, *op.inputs[1:]), op.attrs)
    rank = len(total.shape)
    axis = 1 if op.kind == "conv" and op.attrs["layout"] == "NCHW" else rank - 1
    shape = tuple(sums.size if index == axis else 1 for index in range(rank))
    row = rewriter.const(f"{op.name}.sums", (-sums).reshape(shape))
    wide = rewriter.add(f"{op.name}.zero", "cast", (zero,), {"to": DType.INT32})
    flat = rewriter.add(f"{op.name}.number", "reshape", (wide,), {"shape": (1,) * rank})
    bias = rewriter.add(f"{op.name}.bias", "binary", (row, flat), {"fn": Binary.MUL})
    rewriter.substitute(op.output, rewriter.add(f"{op.name}.less", "binary", (total, bias), {"fn": Binary.ADD}))
    return True


def _less_zero_point(rewriter: Rewriter, op: Op) -> tuple[Tensor, Tensor] | None:
    """The bytes x and the zero point, if a product's input is cast(x) - zero; else None."""
    less = rewriter.made_by(op.inputs[0], "binary")
    if less is None or less.attrs["fn"] != Binary.SUB:
        return None
    x, zero = (rewriter.made_by(tensor, "cast") for tensor in less.inputs)
    if x is None or x.input(0).dtype not in _BYTES or x.output.dtype is not DType.INT16:
        return None
    number = less.input(1) if zero is None else zero.input(0)
    return (x.input(0), number) if number.size == 1 and x.output.shape == op.input(0).shape else None


def _weight_sums(op: Op) -> npt.NDArray[np.int32] | None:
    """The sum of the weights of each output channel, modulo 2^32 like the products; None if pixels use different
    weights."""
    w = op.input(1)
    assert w.data is not None
    # Padding would have to be the zero point, which is not known yet. Weights may differ along a batch.
    if any(op.attrs.get("pads", ())) or (op.kind == "matmul" and any(dim > 1 for dim in w.shape[:-2])):
        return None
    weights = w.data.astype(np.int64) - op.attrs["w_zero"]
    sums = weights.sum(axis=(1, 2, 3) if op.kind == "conv" else tuple(range(len(w.shape) - 1)))
    return np.asarray(sums).astype(np.int32)


def _scale(rewriter: Rewriter, op: Op) -> bool:
    """Replace the float32 value of an integer sum, times a scale, by its dequantisation."""
    if op.kind != "binary" or op.attrs["fn"] != Binary.MUL or op.output.dtype is not DType.FLOAT32:
        return False
    for value, scale in ((op.input(0), op.input(1)), (op.input(1), op.input(0))):
        cast = rewriter.made_by(value, "cast")
        if cast is None or cast.input(0).dtype is not DType.INT32 or rewriter.uses.get(value) != 1:
            continue
        total = cast.input(0)
        if not _is_sum(rewriter, total) or op.output.shape != total.shape:
            continue
        zero = rewriter.const(f"{op.name}.zero", np.zeros((), np.int32))
        attrs = {"to": DType.FLOAT32}
        rewriter.substitute(op.output, rewriter.add(op.name, "dequantize", (total, scale, zero), attrs))
        return True
    return False


def _is_sum(rewriter: Rewriter, tensor: Tensor) -> bool:
    """Whether it is an integer product, with or without its bias."""
    op = rewriter.producer.get(tensor)
    if op is not None and op.kind == "binary" and op.attrs["fn"] == Binary.ADD:
        op = rewriter.producer.get(op.input(0))
    return op is not None and op.kind in ANCHORS
