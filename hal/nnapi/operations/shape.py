"""RESHAPE, SQUEEZE, EXPAND_DIMS, TRANSPOSE, SLICE, STRIDED_SLICE, SPLIT, CONCATENATION, PACK, REVERSE, TILE, GATHER,
FILL, RANK: operations that move, select or repeat elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from npusim.graph import Tensor
from npusim.isa.functions import Binary

from ..types import OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering, normal_axis
from .rules import axis_of, input_types, one_each, rank_at_most, ranks, same_quantisation, same_rank
from .signature import BOOL8, F16, F32, FLOATS, I32, Q8C, Q8SYMM, Q16, Q16S, QUANT8, SCALAR_OF, forms, rows
from .versions import AIDL_2
from .view import QUANTISED, OpView


def _reshape(op: Lowering) -> None:
    """Input 1 is the new shape; one dimension may be -1, which is computed from the others."""
    x, shape = op.tensor(0), list(op.ints(1))
    if shape.count(-1) == 1:
        known = math.prod(dim for dim in shape if dim != -1)
        if known == 0 or x.size % known:
            raise InvalidOperationError(f"{x.size} elements do not fill the shape {shape}")
        shape[shape.index(-1)] = x.size // known
    if min(shape, default=0) < 0 or math.prod(shape) != x.size:
        raise InvalidOperationError(f"the shape must have {x.size} elements and at most one -1, got {list(op.ints(1))}")
    op.give(op.reshape(x, shape))


def _squeeze(op: Lowering) -> None:
    """Without the dimensions of size 1 that input 1 lists; without any if it is omitted or empty."""
    x = op.tensor(0)
    listed = () if op.omitted(1) else op.ints(1)
    axes = {normal_axis(axis, len(x.shape)) for axis in listed}
    axes = axes or {axis for axis, dim in enumerate(x.shape) if dim == 1}
    if any(x.shape[axis] != 1 for axis in axes):
        raise InvalidOperationError(f"dimensions {sorted(axes)} of {list(x.shape)} must be 1")
    op.give(op.reshape(x, _without(x.shape, axes)))


def _without(shape: Sequence[int], axes: set[int]) -> tuple[int, ...]:
    """The shape without these dimensions; at least one dimension remains."""
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes) or (1,)


def _expand_dims(op: Lowering) -> None:
    shape = list(op.shape(0))
    shape.insert(op.axis(1, len(shape) + 1), 1)
    op.give(op.reshape(op.tensor(0), shape))


def _transpose(op: Lowering) -> None:
    """By the permutation of input 1; the dimensions in reverse if it is omitted."""
    rank = len(op.shape(0))
    perm = tuple(reversed(range(rank))) if op.omitted(1) else op.ints(1)
    op.give(op.transpose(op.tensor(0), perm))


def slice_of(op: Lowering, x: Tensor, ranges: Sequence[range]) -> Tensor:
    """The elements of a tensor at these positions of each dimension."""
    if all(each == range(dim) for each, dim in zip(ranges, x.shape, strict=True)):
        return x
    starts = tuple(each.start if each else 0 for each in ranges)
    steps, sizes = tuple(each.step for each in ranges), tuple(len(each) for each in ranges)
    return op.add("slice", [x], {"starts": starts, "steps": steps, "sizes": sizes})


def _slice(op: Lowering) -> None:
    """Input 1: the first element; input 2: the number, -1 for all that follow."""
    x, begins, sizes = op.tensor(0), op.ints(1), op.ints(2)
    if not len(begins) == len(sizes) == len(x.shape):
        raise InvalidOperationError(f"begin and size must have {len(x.shape)} entries each")
    ranges = []
    for axis, (begin, size, dim) in enumerate(zip(begins, sizes, x.shape, strict=True)):
        count = dim - begin if size == -1 else size
        if begin < 0 or count < 0 or begin + count > dim:
            raise InvalidOperationError(f"axis {axis}: {size} elements from {begin} are not within {dim}")
        ranges.append(range(begin, begin + count))
    op.give(slice_of(op, x, ranges))


def _strided_slice(op: Lowering) -> None:
    """begin, end and strides count as Python's slices do; masks leave a begin or an end open, or drop a dimension."""
    x, (begins, ends, strides) = op.tensor(0), (op.ints(index) for index in (1, 2, 3))
    open_begin, open_end, shrink = (op.scalar(index) for index in (4, 5, 6))
    if not len(begins) == len(ends) == len(strides) == len(x.shape):
        raise InvalidOperationError(f"begin, end and strides must have {len(x.shape)} entries each")
    ranges, dropped = [], set()
    for axis, dim in enumerate(x.shape):
        if strides[axis] == 0:
            raise InvalidOperationError(f"axis {axis}: the stride must not be 0")
        begin = None if open_begin >> axis & 1 else begins[axis]
        end = None if open_end >> axis & 1 else ends[axis]
        places = range(*slice(begin, end, strides[axis]).indices(dim))
        if shrink >> axis & 1:
            dropped.add(axis)
            if len(places) != 1 or strides[axis] < 0:
                raise InvalidOperationError(f"axis {axis}: what is dropped must be one element, with a stride > 0")
        ranges.append(places)
    part = slice_of(op, x, ranges)
    op.give(op.reshape(part, _without(part.shape, dropped)))


def _split(op: Lowering) -> None:
    """Into as many equal parts as there are outputs, along the axis of input 1."""
    x = op.tensor(0)
    axis, count = op.axis(1, len(x.shape)), op.scalar(2)
    if count != op.output_count or x.shape[axis] % count:
        raise InvalidOperationError(f"{x.shape[axis]} cannot be split into {count} parts for {op.output_count} outputs")
    size = x.shape[axis] // count
    for index in range(count):
        op.give(op.slice(x, axis, index * size, size), index)


def _split_types(view: OpView) -> bool:
    """takes a tensor of FLOAT32, FLOAT16, INT32 or QUANT8_ASYMM(_SIGNED) and two INT32; outputs are of the same type"""
    inputs, outputs = tuple(each.type for each in view.inputs), {each.type for each in view.outputs}
    return inputs in _SPLITS and outputs == {inputs[0]}


def _split_outputs(view: OpView) -> bool:
    """input 2 must be the number of outputs"""
    return view.scalar(2) in (None, len(view.outputs))


def _split_quantisation(view: OpView) -> bool:
    """every output must have the scale and zero point of input 0"""
    x = view.inputs[0]
    return x.type not in QUANTISED or all(
        (each.scale, each.zeroPoint) == (x.scale, x.zeroPoint) for each in view.outputs
    )


def _concatenate(op: Lowering) -> None:
    """All inputs but the last, along the axis that it names; inputs with another quantisation are requantised."""
    last = op.input_count - 1
    attrs = {"axis": op.axis(last, len(op.shape(0)))}
    if op.alike(*range(last)):
        op.give(op.add("concat", [op.tensor(index) for index in range(last)], attrs))
        return
    target = op.view.outputs[0]
    parts = [op.tensor(i) if op.alike(i) else op.from_real(op.real(i), target) for i in range(last)]
    op.give(op.add("concat", parts, attrs))


def _concatenation_types(view: OpView) -> bool:
    """takes one or more tensors of one type, FLOAT32, FLOAT16 or QUANT8_ASYMM(_SIGNED), then an INT32; the output is of
    that type"""
    *tensors, axis = [each.type for each in view.inputs] or [-1]
    kinds = {*tensors, *(each.type for each in view.outputs)}
    return bool(tensors) and len(view.outputs) == 1 and len(kinds) == 1 and (tensors[0], axis) in _CONCATENATIONS


def _concatenation_axis(view: OpView) -> bool:
    """the axis must be in [0, n), n being the rank of the inputs"""
    axis, dims = view.scalar(len(view.inputs) - 1), view.dims(0)
    return axis is None or (axis >= 0 and (dims is None or axis < len(dims)))


def _pack(op: Lowering) -> None:
    """Inputs 1 on, joined along a new dimension whose place input 0 names."""
    parts = [op.tensor(index) for index in range(1, op.input_count)]
    axis, shape = op.scalar(0), parts[0].shape
    if not 0 <= axis <= len(shape):
        raise InvalidOperationError(f"the axis must be in [0, {len(shape)}], got {axis}")
    if any(part.shape != shape for part in parts):
        raise InvalidOperationError(f"tensors must all have the shape {list(shape)}")
    op.give(op.stack(parts, axis))


def _pack_types(view: OpView) -> bool:
    """takes an INT32, then one or more tensors of one type, FLOAT32, FLOAT16, INT32 or QUANT8_ASYMM(_SIGNED); the
    output is of that type"""
    axis, *tensors = [each.type for each in view.inputs] or [-1]
    kinds = {*tensors, *(each.type for each in view.outputs)}
    return axis == _INT32 and bool(tensors) and len(view.outputs) == len(kinds) == 1 and tensors[0] in _ALSO_INTEGERS


def _pack_ranks(view: OpView) -> bool:
    """all tensors must have one rank >= 1, the output one more, and the axis must be in [0, n), n being its rank"""
    ranks = {len(dims) + 1 for index in range(1, len(view.inputs)) if (dims := view.dims(index)) is not None}
    made, axis = view.out_dims(), view.scalar(0)
    if made is not None:
        ranks.add(len(made))
    return len(ranks) <= 1 and 1 not in ranks and (axis is None or 0 <= axis < min(ranks, default=axis + 1))


def _pack_quantisation(view: OpView) -> bool:
    """every tensor must have the scale and zero point of the output"""
    target = view.outputs[0]
    return all((each.scale, each.zeroPoint) == (target.scale, target.zeroPoint) for each in view.inputs[1:])


def _reverse(op: Lowering) -> None:
    """The dimension that input 1 names in reverse order."""
    x, [axis] = op.tensor(0), op.ints(1)
    if not 0 <= axis < len(x.shape):
        raise InvalidOperationError(f"the axis must be in [0, {len(x.shape)}), got {axis}")
    op.give(op.reverse(x, [axis]))


_MOST_RANKS = 8
"""The largest rank of a tensor that REVERSE takes."""


def _one_axis(view: OpView) -> bool:
    """input 1 must be one dimension of input 0, counted from the front, as a tensor of one element"""
    shape, values, dims = view.dims(1), view.constant(1), view.dims(0)
    if shape is not None and (len(shape) != 1 or shape[0] > 1):
        return False
    return values is None or (values.size == 1 and 0 <= values[0] < (_MOST_RANKS if dims is None else len(dims)))


def _tile(op: Lowering) -> None:
    """The tensor repeated along each dimension, as often as input 1 says."""
    x, multiples = op.tensor(0), op.ints(1)
    if len(multiples) != len(x.shape) or min(multiples, default=0) < 0:
        raise InvalidOperationError(f"multiples must be {len(x.shape)} numbers >= 0, got {list(multiples)}")
    for axis, times in enumerate(multiples):
        if times != 1:
            before, after = x.shape[:axis], x.shape[axis:]
            outer, inner = math.prod(before), math.prod(after)
            # A repetition is a view with a stride of 0; the reshape behind it copies.
            spread = op.expand(op.reshape(x, (outer, 1, inner)), (outer, times, inner))
            x = op.reshape(spread, (*before, times * after[0], *after[1:]))
    op.give(x)


def entries(op: Lowering, x: Tensor, axis: int, index: int) -> Tensor:
    """The entries of a dimension that input ``index`` lists. The device would count negative numbers from the end, so
    they are moved out of range unless there are none."""
    places, known = op.tensor(index), op.known(index)
    if known is None or (known < 0).any():
        negative = op.binary(Binary.LT, places, op.i32(0))
        places = op.add("select", [negative, op.i32(x.shape[axis]), places])
    return op.add("gather", [x, places], {"axis": axis})


def _gather_indices(view: OpView) -> bool:
    """indices must be within the dimension that they index"""
    index, axis, dims = view.constant(2), view.scalar(1), view.dims(0)
    if index is None or not index.size:
        return True
    most = dims[axis] if dims and axis is not None and -len(dims) <= axis < len(dims) else 0
    return bool(index.min() >= 0 and (not most or index.max() < most))


def _fill(op: Lowering) -> None:
    """One value, in the shape of input 0."""
    shape = op.ints(0)
    op.give(op.expand(op.reshape(op.tensor(1), (1,) * len(shape)), shape))


_MOVED = (*FLOATS, *QUANT8)
_ALSO_INTEGERS = (F32, F16, I32, *QUANT8)
_INT32 = SCALAR_OF[I32]
_SPLITS = frozenset(form[0] for form in forms("T i i", "T", rows("T", _ALSO_INTEGERS)))
_CONCATENATIONS = frozenset(form[0] for form in forms("T i", "T", rows("T", _MOVED)))
_SAME = same_quantisation(0)
_UP_TO_4 = rank_at_most(0, 4)

define(
    OperationType.RESHAPE,
    forms("T I32", "T", rows("T", _ALSO_INTEGERS)),
    _reshape,
    _UP_TO_4,
    ranks(1, 1),
    _SAME,
    later=[input_types(0, AIDL_2, I32)],
)
define(
    OperationType.SQUEEZE, forms("T I32", "T", rows("T", _MOVED)), _squeeze, _UP_TO_4, ranks(1, 1), _SAME, optional=(1,)
)
define(
    OperationType.TRANSPOSE,
    forms("T I32", "T", rows("T", _MOVED)),
    _transpose,
    _UP_TO_4,
    one_each(1),
    _SAME,
    optional=(1,),
)
define(OperationType.EXPAND_DIMS, forms("T i", "T", rows("T", _ALSO_INTEGERS)), _expand_dims, _SAME)
define(OperationType.SLICE, forms("T I32 I32", "T", rows("T", _ALSO_INTEGERS)), _slice, one_each(1), one_each(2), _SAME)
define(
    OperationType.STRIDED_SLICE,
    forms("T I32*3 i*3", "T", rows("T", _MOVED)),
    _strided_slice,
    _UP_TO_4,
    one_each(1),
    one_each(2),
    one_each(3),
    _SAME,
)
define(OperationType.SPLIT, _split_types, _split, axis_of(1), _split_outputs, _split_quantisation)
define(OperationType.CONCATENATION, _concatenation_types, _concatenate, _UP_TO_4, _concatenation_axis)
define(OperationType.PACK, _pack_types, _pack, _pack_ranks, _pack_quantisation)
define(
    OperationType.REVERSE,
    forms("T I32", "T", rows("T", _ALSO_INTEGERS)),
    _reverse,
    rank_at_most(0, _MOST_RANKS),
    same_rank(0),
    _one_axis,
    _SAME,
)
define(OperationType.TILE, forms("T I32", "T", rows("T", _ALSO_INTEGERS)), _tile, one_each(1), _SAME)
define(
    OperationType.GATHER,
    forms("T i I32", "T", rows("T", _ALSO_INTEGERS)),
    lambda op: op.give(entries(op, op.tensor(0), op.axis(1, len(op.shape(0))), 2)),
    axis_of(1),
    _gather_indices,
    _SAME,
)
define(
    OperationType.FILL,
    forms("I32 S", "T", [{"S": SCALAR_OF[each], "T": each} for each in (F32, F16, I32)]),
    _fill,
    ranks(0, 1),
)
define(
    OperationType.RANK,
    forms("T", "i", rows("T", (*_ALSO_INTEGERS, BOOL8, Q8C, Q8SYMM, Q16, Q16S))),
    lambda op: op.give(op.i32(len(op.shape(0)))),
)
