"""Move data between quantised layers as integers: dequantisations move behind the movement, quantisations before it.

Both are exact, because an operator that only moves or compares elements commutes with a monotonic function of single
elements. At most a requantisation of each operand remains between two layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.compiler.grouping.groups import ELEMENTWISE, form_groups
from npusim.compiler.passes.rewrite import Rewriter
from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor, consumers
from npusim.isa.functions import Binary, Reduce
from npusim.ops.base import REGISTRY
from npusim.ops.quant import QUANTIZED

Array = npt.NDArray[Any]


def _one(op: Op) -> tuple[int, ...]:
    return (0,)


def _every(op: Op) -> tuple[int, ...]:
    return tuple(range(len(op.inputs)))


@dataclass(frozen=True)
class Movement:
    """A kind whose results are elements of its operands.

    ``inputs``: the operands that they come from. ``applies``: whether a given operator of the kind qualifies.
    ``ordered``: it compares elements, so their order must be kept.
    """

    inputs: Callable[[Op], tuple[int, ...]] = _one
    applies: Callable[[Op], bool] = lambda op: True
    ordered: bool = False


def _picks(op: Op) -> bool:
    """Whether a resampling copies one neighbour for each result."""
    index, weight = op.input(1).data, op.input(2).data
    return index is not None and weight is not None and index.shape[1] == 1 and bool((weight == 1).all()) and (
        bool((index >= 0).all())
    )  # fmt: skip


MOVEMENT = {
    "reshape": Movement(),
    "transpose": Movement(),
    "slice": Movement(),
    "expand": Movement(),
    "windows": Movement(),
    "gather": Movement(),
    "gather_elements": Movement(),
    "pad": Movement(),
    "resample": Movement(applies=_picks),
    "concat": Movement(_every),
    "scatter_elements": Movement(lambda op: (0, 2), lambda op: op.attrs["reduction"] == "none"),
    "select": Movement(lambda op: (1, 2)),
    "pool": Movement(applies=lambda op: op.attrs["fn"] == "max", ordered=True),
    "reduce": Movement(applies=lambda op: op.attrs["fn"] in (Reduce.MAX, Reduce.MIN), ordered=True),
    "binary": Movement(_every, lambda op: op.attrs["fn"] in (Binary.MAX, Binary.MIN), ordered=True),
}


def movement(op: Op | None) -> Movement | None:
    """The entry of an operator that only moves or compares elements; else None."""
    row = None if op is None else MOVEMENT.get(op.kind)
    return row if row is not None and op is not None and row.applies(op) else None


def sink_dequantize(rewriter: Rewriter, op: Op) -> bool:
    """Move equal dequantisations of all operands behind an operator that only moves elements.

    Also cancels a quantisation after a dequantisation.
    """
    if op.kind == "quantize":
        return _cancel_pair(rewriter, op)
    row = movement(op)
    if row is None or not op.output.dtype.is_float:
        return False
    sources = [rewriter.made_by(op.input(index), "dequantize") for index in row.inputs(op)]
    first = sources[0]
    if first is None or any(each is None or not _alike(first, each) for each in sources):
        return False
    if not per_tensor(first):
        return op.kind in ("transpose", "reshape") and _sink_channels(rewriter, op, first)
    if row.ordered and not _rising(first):
        return False  # a negative scale reverses the order: the maximum of the values is the minimum of the integers
    attrs = _moved_attrs(op, first)
    if attrs is None:
        return False
    inputs = list(op.inputs)
    for index, source in zip(row.inputs(op), sources, strict=True):
        assert source is not None
        inputs[index] = source.input(0)
    moved = rewriter.add(f"{op.name}.quantised", op.kind, inputs, attrs)
    # Weights that are moved before every product are moved once, here.
    known = rewriter.value_of(moved)
    if known is not None:
        moved = rewriter.const(moved.name, np.ascontiguousarray(known), moved.dtype)
    parameters = (_scalar(rewriter, tensor, len(op.output.shape)) for tensor in (first.input(1), first.input(2)))
    rewriter.substitute(op.output, rewriter.add(op.name, "dequantize", (moved, *parameters), first.attrs))
    return True


def raise_quantize(rewriter: Rewriter, op: Op) -> bool:
    """Move a quantisation in front of operators that only move elements, and into the operator that computes them."""
    if op.kind != "quantize" or not per_tensor(op):
        return False
    source = rewriter.producer.get(op.input(0))
    if movement(source) is None:
        found = _quantised_result(rewriter, op)
        if found is None:
            return False
    elif _narrows(rewriter, op.input(0)) and _commutes(rewriter, op.input(0), op):
        found = _quantised(rewriter, op.input(0), op)
    else:
        return False
    rewriter.substitute(op.output, found)
    return True


MOST_MOVES = 64
"""Maximum number of operators that a quantisation moves across. The walk is recursive."""


def _narrows(rewriter: Rewriter, tensor: Tensor, depth: int = 0) -> bool:
    """Whether moving the quantisation forward duplicates nothing except movement of integers."""
    source = rewriter.producer.get(tensor)
    row = movement(source)
    if source is None or row is None:
        return tensor.data is not None or (source is not None and source.kind == "dequantize")
    operands = [source.input(index) for index in row.inputs(source)]
    if depth == MOST_MOVES:
        return False
    if rewriter.uses.get(tensor) == 1:
        return all(movement(rewriter.producer.get(each)) is None or _narrows(rewriter, each, depth + 1)
                   for each in operands)  # fmt: skip
    return all(_narrows(rewriter, each, depth + 1) for each in operands)


def _commutes(rewriter: Rewriter, tensor: Tensor, op: Op) -> bool:
    """Whether the quantisation keeps the order wherever elements are compared."""
    source = rewriter.producer.get(tensor)
    row = movement(source)
    if source is None or row is None:
        return True
    if row.ordered and not _rising(op):
        return False
    return all(_commutes(rewriter, source.input(index), op) for index in row.inputs(source))


def _quantised(rewriter: Rewriter, tensor: Tensor, op: Op, made: dict[Tensor, Tensor] | None = None) -> Tensor:
    """A tensor whose elements are quantised before they are moved. ``made``: those computed so far."""
    made = {} if made is None else made
    if tensor not in made:
        made[tensor] = _quantised_anew(rewriter, tensor, op, made)
    return made[tensor]


def _quantised_anew(rewriter: Rewriter, tensor: Tensor, op: Op, made: dict[Tensor, Tensor]) -> Tensor:
    source = rewriter.producer.get(tensor)
    row = movement(source)
    if source is None or row is None:
        parameters = (_scalar(rewriter, each, 0) for each in op.inputs[1:] if each is not None)
        trial = Op(op.name, "quantize", (tensor, *parameters), op.outputs, op.attrs)
        if tensor.data is not None:
            (value,) = REGISTRY["quantize"].reference(trial, [each.data for each in trial.inputs if each is not None])
            return rewriter.const(f"{tensor.name}.quantised", value, op.output.dtype)
        found = _uncancelled(rewriter, trial) or _quantised_result(rewriter, trial)
        return found or rewriter.add(f"{op.name}.early", "quantize", trial.inputs, op.attrs)
    inputs = list(source.inputs)
    for index in row.inputs(source):
        inputs[index] = _quantised(rewriter, source.input(index), op, made)
    attrs = dict(source.attrs)
    if source.kind == "pad":
        attrs["value"] = int(_of(op, np.float32(attrs["value"])))
    return rewriter.add(f"{source.name}.quantised", source.kind, inputs, attrs)


def convert_on_the_way(rewriter: Rewriter, op: Op) -> bool:
    """Let an arithmetic operator read the quantised integers of its operand directly."""
    if not _computes(op) or op.attrs["source"] is not None:
        return False
    source = rewriter.made_by(op.input(0), "dequantize")
    if source is None or not per_tensor(source) or source.output.dtype not in _REALS:
        return False
    if source.input(0).dtype not in QUANTIZED or not _rising(source):
        return False
    attrs = {**op.attrs, "source": _numbers(source), "real": source.output.dtype}
    layout = _whole_image(op)
    if layout is None:
        value = rewriter.add(op.name, op.kind, (source.input(0), *op.inputs[1:]), attrs)
    else:
        rows, cols = (2, 3) if layout == "NCHW" else (1, 2)
        size = op.input(0).shape[rows], op.input(0).shape[cols]
        window = {"kernel": size, "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "output_hw": (1, 1)}
        levels = {name: attrs[name] for name in ("source", "real")}
        attrs = {"fn": "average", "layout": layout, **levels, **window}
        value = rewriter.add(op.name, "pool", (source.input(0),), attrs)
        if not op.attrs["keepdims"]:
            value = rewriter.add(f"{op.name}.flat", "reshape", (value,), {"shape": op.output.shape})
    rewriter.substitute(op.output, value)
    return True


def _whole_image(op: Op) -> str | None:
    """The layout of an image whose mean is computed in the order in which a pool computes it; None for anything
    else."""
    if op.kind != "reduce" or op.attrs["fn"] != Reduce.MEAN or len(op.input(0).shape) != 4 or not op.input(0).size:
        return None
    # The window of an instruction has 16-bit sizes.
    if max(op.input(0).shape[axis] for axis in op.attrs["axes"]) > _MOST_TAPS:
        return None
    return {(2, 3): "NCHW", (1, 2): "NHWC"}.get(tuple(op.attrs["axes"]))


_MOST_TAPS = (1 << 16) - 1


def _quantised_result(rewriter: Rewriter, op: Op) -> Tensor | None:
    """The quantised result of an operator that can quantise it itself and that no other operator reads; None
    otherwise."""
    source = rewriter.producer.get(op.input(0))
    if source is None or not _computes(source) or rewriter.uses.get(op.input(0), 1) != 1:
        return None
    dtype = op.output.dtype if source.attrs["source"] is None else source.input(0).dtype
    if source.attrs["target"] is not None or not _rising(op) or dtype is not op.output.dtype:
        return None
    real = source.output.dtype if source.attrs["source"] is None else source.attrs["real"]
    attrs = {**source.attrs, "target": (*_numbers(op), dtype), "real": real}
    return rewriter.add(source.name, source.kind, source.inputs, attrs)


_COMPUTING = frozenset({"pool", "reduce", "resample"})
_REALS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})


def _computes(op: Op) -> bool:
    if op.kind not in _COMPUTING or movement(op) is not None:
        return False
    return op.output.dtype in _REALS or op.attrs["target"] is not None


def _numbers(op: Op) -> tuple[float, int]:
    scale, zero = (tensor.data for tensor in (op.input(1), op.input(2)))
    assert scale is not None
    assert zero is not None
    return float(scale.item()), int(zero.item())


def gather_neighbours(rewriter: Rewriter, op: Op) -> bool:
    """Replace a nearest-neighbour resampling of integers by a gather, which DMA does without the vector unit."""
    index = op.input(1).data if op.kind == "resample" and op.output.dtype in QUANTIZED else None
    if index is None or not _picks(op):
        return False
    places = rewriter.const(f"{op.name}.places", np.ascontiguousarray(index[:, 0]))
    x, axis = op.input(0), op.attrs["axis"]
    # For images with channels last, as convolutions write them: then a pixel is one run.
    image = len(x.shape) == 4 and axis >= 2
    if image:
        x = rewriter.add(f"{op.name}.last", "transpose", (x,), {"perm": (0, 2, 3, 1)})
    value = rewriter.add(op.name, "gather", (x, places), {"axis": axis - image})
    if image:
        value = rewriter.add(f"{op.name}.first", "transpose", (value,), {"perm": (0, 3, 1, 2)})
    rewriter.substitute(op.output, value)
    return True


def resample_together(graph: Graph) -> Graph:
    """Resample along two axes in one operator: the values between them stay in SRAM."""
    return Rewriter(graph).run(_resample_together) if any(op.kind == "resample" for op in graph.ops) else graph


def _resample_together(rewriter: Rewriter, op: Op) -> bool:
    first = rewriter.made_by(op.input(0), "resample") if op.kind == "resample" else None
    if first is None or rewriter.uses.get(first.output) != 1 or {first.attrs["second"], op.attrs["second"]} != {None}:
        return False
    if first.attrs["axis"] == op.attrs["axis"] or first.attrs["target"] is not None or op.attrs["source"] is not None:
        return False
    real = op.attrs["real"] if first.attrs["source"] is None else first.attrs["real"]
    attrs = {**first.attrs, "second": op.attrs["axis"], "target": op.attrs["target"], "real": real}
    rewriter.substitute(op.output, rewriter.add(op.name, "resample", (*first.inputs, *op.inputs[1:]), attrs))
    return True


def dequantize_in_each(graph: Graph) -> Graph:
    """Give each elementwise group that reads a shared dequantised value its own dequantisation.

    Then the integers are loaded, and no group writes floats for others.
    """
    shared = {op.output for op in graph.ops if op.kind == "dequantize" and op.input(0).dtype in QUANTIZED}
    readers = consumers(graph.ops)
    shared = {tensor for tensor in shared if len(readers.get(tensor, ())) > 1}
    if not shared:
        return graph
    groups = form_groups(graph.ops, graph.outputs)
    place = {tensor: group.index for group in groups for op in group.ops for tensor in op.outputs}
    own: dict[tuple[Tensor, int], Tensor] = {}

    def separate(rewriter: Rewriter, op: Op) -> bool:
        if op.kind not in ELEMENTWISE:
            return False
        inputs = list(op.inputs)
        for index, tensor in enumerate(inputs):
            if tensor is None or tensor not in shared or place[tensor] == place[op.output]:
                continue
            key = tensor, place[op.output]
            if key not in own:
                source = rewriter.producer[tensor]
                own[key] = rewriter.add(source.name, source.kind, source.inputs, source.attrs)
            inputs[index] = own[key]
        if inputs == list(op.inputs):
            return False
        rewriter.keep(Op(op.name, op.kind, tuple(inputs), op.outputs, op.attrs, op.origin))
        return True

    return Rewriter(graph).run(separate)


def _moved_attrs(op: Op, source: Op) -> dict[str, Any] | None:
    """The attributes of an operator on the integers; None if no integer represents its padding."""
    attrs = dict(op.attrs)
    if op.kind == "pad" and op.attrs["mode"] == "constant":
        levels = _levels(source.input(0).dtype)
        (found,) = np.nonzero(_of(source, levels) == np.float32(attrs["value"]))
        if not found.size:
            return None
        attrs["value"] = int(levels[found[0]])
    return attrs


def _sink_channels(rewriter: Rewriter, op: Op, source: Op) -> bool:
    """Move scale and zero point along with the tensor: transpose them, or reshape them if the dimensions up to the
    channels stay as they are."""
    parameters, rank = [source.input(1), source.input(2)], len(source.output.shape)
    turned = []
    for tensor in parameters:
        if tensor.data is None:
            return False
        full = tensor.data.reshape((1,) * (rank - len(tensor.shape)) + tensor.shape)
        if op.kind == "transpose":
            values = full.transpose(op.attrs["perm"])
        else:
            kept = max((axis + 1 for axis, dim in enumerate(full.shape) if dim > 1), default=0)
            if source.output.shape[:kept] != op.output.shape[:kept]:
                return False
            values = full.reshape(full.shape[:kept] + (1,) * (len(op.output.shape) - kept))
        turned.append(rewriter.const(f"{tensor.name}.turned", values, tensor.dtype))
    moved = rewriter.add(f"{op.name}.quantised", op.kind, (source.inputs[0],), op.attrs)
    known = rewriter.value_of(moved)
    if known is not None:
        moved = rewriter.const(moved.name, np.ascontiguousarray(known), moved.dtype)
    rewriter.substitute(op.output, rewriter.add(op.name, "dequantize", (moved, *turned), source.attrs))
    return True


def _cancel_pair(rewriter: Rewriter, op: Op) -> bool:
    found = _uncancelled(rewriter, op) if per_tensor(op) else None
    if found is None:
        return False
    rewriter.substitute(op.output, found)
    return True


def _uncancelled(rewriter: Rewriter, op: Op) -> Tensor | None:
    """The integers before a dequantisation, if quantising it again gives every one of them back; else None."""
    source = rewriter.made_by(op.input(0), "dequantize")
    if source is None or not per_tensor(source) or source.input(0).dtype is not op.output.dtype:
        return None
    if op.output.dtype not in QUANTIZED:
        return None
    levels = _levels(op.output.dtype)
    return source.input(0) if np.array_equal(_of(op, _of(source, levels)), levels) else None


def _levels(dtype: DType) -> Array:
    """All values of a quantised type."""
    info = np.iinfo(dtype.storage)
    return np.arange(info.min, info.max + 1).astype(dtype.storage) if dtype in QUANTIZED else np.zeros(0, np.int32)


def _of(op: Op, values: Array | np.float32) -> Array:
    """Apply a per-tensor quantisation or dequantisation to values."""
    parameters = [tensor.data.reshape(()) for tensor in op.inputs[1:] if tensor is not None and tensor.data is not None]
    (found,) = REGISTRY[op.kind].reference(op, [np.asarray(values), *parameters])
    return found


def per_tensor(op: Op) -> bool:
    """Whether a quantisation or dequantisation has one known scale and zero point for all elements."""
    return all(tensor is not None and tensor.data is not None and tensor.size == 1 for tensor in op.inputs[1:])


def _rising(op: Op) -> bool:
    scale = op.input(1).data
    return scale is not None and bool(np.isfinite(scale).all() and (scale > 0).all())


def _alike(a: Op, b: Op) -> bool:
    """Whether two dequantisations are the same function."""
    if a.input(0).dtype is not b.input(0).dtype or a.output.dtype is not b.output.dtype:
        return False
    pairs = zip((a.input(1), a.input(2)), (b.input(1), b.input(2)), strict=True)
    return all(x is y for x, y in pairs) or (per_tensor(a) and per_tensor(b) and _numbers(a) == _numbers(b))


def _scalar(rewriter: Rewriter, tensor: Tensor, rank: int) -> Tensor:
    """A parameter with one element, without dimensions that a tensor of ``rank`` lacks."""
    if len(tensor.shape) <= rank or tensor.data is None:
        return tensor
    return rewriter.const(f"{tensor.name}.scalar", tensor.data.reshape(()), tensor.dtype)
