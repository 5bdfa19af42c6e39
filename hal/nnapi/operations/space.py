"""PAD, PAD_V2, MIRROR_PAD, SPACE_TO_DEPTH, DEPTH_TO_SPACE, SPACE_TO_BATCH_ND, BATCH_TO_SPACE_ND, CHANNEL_SHUFFLE:
padding, and exchange of height and width with channels or batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npusim.graph import Tensor

from ..types import OperandType, OperationType
from .definition import Rule, define, stated
from .lowering import InvalidOperationError, Lowering
from .rules import axis_of, one_of, positive, rank_at_most, ranks, same_quantisation, same_rank
from .signature import F16, F32, FLOATS, I32, QUANT8, forms, rows
from .view import OpView


def _checked_pads(x: Tensor, pads: Sequence[Sequence[int]]) -> None:
    if any(len(pair) != 2 or min(pair) < 0 for pair in pads) or len(pads) != len(x.shape):
        raise InvalidOperationError(f"paddings must be {len(x.shape)} pairs >= 0, got {[list(pair) for pair in pads]}")


def _padded(op: Lowering, x: Tensor, pads: Sequence[Sequence[int]], value: float) -> Tensor:
    """The tensor with that many elements before and after each dimension."""
    _checked_pads(x, pads)
    if not any(map(any, pads)):
        return x
    before, after = zip(*pads, strict=True)
    return op.add("pad", [x], {"before": before, "after": after, "mode": "constant", "value": value})


def _zero(op: Lowering) -> int:
    """The stored value that represents 0 in input 0."""
    return op.view.inputs[0].zeroPoint


def _pad(value: Callable[[Lowering], float]) -> Callable[[Lowering], None]:
    """Padding with a value in storage form, like input 0."""
    return lambda op: op.give(_padded(op, op.tensor(0), op.value(1).tolist(), value(op)))


def _mirror_pad(op: Lowering) -> None:
    """Mirrored elements around a tensor: mode 0 (REFLECT) leaves out the edge, mode 1 (SYMMETRIC) repeats it."""
    x, pads, mode = op.tensor(0), op.value(1).tolist(), op.scalar(2)
    _checked_pads(x, pads)
    most = [size - (mode == 0) for size in x.shape]
    if mode not in _MIRROR_MODES or any(max(pair) > size for pair, size in zip(pads, most, strict=True)):
        raise InvalidOperationError(f"paddings {pads} with mode {mode} do not fit {list(x.shape)}")
    op.give(op.mirror_pad(x, pads, edge=bool(mode)))


_MIRROR_MODES = (0, 1)


def _paddings(index: int, fixed: int | None = None) -> Rule:
    """The rule for a tensor of paddings: a pair for each dimension of input 0, or a fixed number of pairs."""

    def rule(view: OpView) -> bool:
        dims, around = view.dims(index), view.dims(0)
        if dims is None:
            return True
        pairs = fixed or (len(around) if around is not None else 0)
        values = view.constant(index)
        shaped = len(dims) == 2 and dims[1] in (0, 2) and (not pairs or dims[0] in (0, pairs))
        return shaped and (values is None or not (values < 0).any())

    return stated(f"input {index} must be of shape [{fixed or 'rank of input 0'}, 2], its entries >= 0", rule)


def _image(op: Lowering, layout: int) -> tuple[Tensor, bool]:
    """Input 0 and whether it is NCHW, as scalar input ``layout`` states."""
    return op.tensor(0), bool(op.scalar(layout, False))


def _rearranged(op: Lowering, x: Tensor, split: Sequence[int], perm: Sequence[int], shape: Sequence[int]) -> None:
    """Output 0: dimensions cut into factors, permuted and joined again."""
    op.give(op.reshape(op.transpose(op.reshape(x, split), perm), shape))


def _divided(size: int, by: int, what: str) -> int:
    if by < 1 or size % by:
        raise InvalidOperationError(f"{what} {size} must be divisible by {by}, which must be >= 1")
    return size // by


def _space_to_depth(op: Lowering) -> None:
    """Blocks of height and width go into the channels, row by row."""
    (x, nchw), b = _image(op, 2), op.scalar(1)
    n, h, w, c = _sizes(x, nchw)
    h, w = _divided(h, b, "the height"), _divided(w, b, "the width")
    if nchw:
        _rearranged(op, x, (n, c, h, b, w, b), (0, 3, 5, 1, 2, 4), (n, b * b * c, h, w))
    else:
        _rearranged(op, x, (n, h, b, w, b, c), (0, 1, 3, 2, 4, 5), (n, h, w, b * b * c))


def _depth_to_space(op: Lowering) -> None:
    """The inverse of SPACE_TO_DEPTH."""
    (x, nchw), b = _image(op, 2), op.scalar(1)
    n, h, w, depth = _sizes(x, nchw)
    c = _divided(depth, b * b if b > 0 else b, "the depth")
    if nchw:
        _rearranged(op, x, (n, b, b, c, h, w), (0, 3, 4, 1, 5, 2), (n, c, h * b, w * b))
    else:
        _rearranged(op, x, (n, h, w, b, b, c), (0, 1, 3, 2, 4, 5), (n, h * b, w * b, c))


def _space_to_batch(op: Lowering) -> None:
    """Height and width are padded; then each position within a block becomes a batch."""
    (x, nchw), (bh, bw) = _image(op, 3), _block(op)
    sides = op.value(2).tolist()
    x = _padded(op, x, [[0, 0], [0, 0], *sides] if nchw else [[0, 0], *sides, [0, 0]], _zero(op))
    n, h, w, c = _sizes(x, nchw)
    h, w = _divided(h, bh, "the padded height"), _divided(w, bw, "the padded width")
    if nchw:
        _rearranged(op, x, (n, c, h, bh, w, bw), (3, 5, 0, 1, 2, 4), (bh * bw * n, c, h, w))
    else:
        _rearranged(op, x, (n, h, bh, w, bw, c), (2, 4, 0, 1, 3, 5), (bh * bw * n, h, w, c))


def _batch_to_space(op: Lowering) -> None:
    """The inverse of SPACE_TO_BATCH_ND; the padding is removed."""
    (x, nchw), (bh, bw) = _image(op, 2), _block(op)
    batches, h, w, c = _sizes(x, nchw)
    n = _divided(batches, bh * bw, "the batches")
    if nchw:
        _rearranged(op, x, (bh, bw, n, c, h, w), (2, 3, 4, 0, 5, 1), (n, c, h * bh, w * bw))
    else:
        _rearranged(op, x, (bh, bw, n, h, w, c), (2, 3, 0, 4, 1, 5), (n, h * bh, w * bw, c))


def _sizes(x: Tensor, nchw: bool) -> tuple[int, int, int, int]:
    """Batches, height, width and channels."""
    if len(x.shape) != 4:
        raise InvalidOperationError(f"input 0 must have rank 4, got {list(x.shape)}")
    n, a, b, c = x.shape
    return (n, b, c, a) if nchw else (n, a, b, c)


def _block(op: Lowering) -> tuple[int, int]:
    """Height and width of a block."""
    block = op.ints(1)
    if len(block) != 2 or min(block) < 1:
        raise InvalidOperationError(f"the block must be two sizes >= 1, got {list(block)}")
    return block[0], block[1]


def _block_sizes(view: OpView) -> bool:
    """input 1 must be two block sizes >= 1"""
    dims, values = view.dims(1), view.constant(1)
    if dims is not None and (len(dims) != 1 or dims[0] not in (0, 2)):
        return False
    return values is None or bool((values >= 1).all())


def _shuffle(op: Lowering) -> None:
    """CHANNEL_SHUFFLE along the axis of input 2, with the number of groups of input 1."""
    x, groups = op.tensor(0), op.scalar(1)
    axis = op.axis(2, len(x.shape))
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    size = _divided(x.shape[axis], groups, f"dimension {axis}")
    order = list(range(len(x.shape) + 1))
    order[axis], order[axis + 1] = axis + 1, axis
    _rearranged(op, x, (*before, groups, size, *after), order, x.shape)


_TYPES = (*FLOATS, *QUANT8)
_IMAGE = (ranks(0, 4), same_quantisation(0))
_TENSOR = (rank_at_most(0, 4), same_quantisation(0))
_PADDED_BY = {F32: OperandType.FLOAT32, F16: OperandType.FLOAT16} | dict.fromkeys(QUANT8, OperandType.INT32)

define(OperationType.PAD, forms("T I32", "T", rows("T", _TYPES)), _pad(_zero), *_TENSOR, _paddings(1))
define(
    OperationType.PAD_V2,
    forms("T I32 S", "T", [{"T": each, "S": _PADDED_BY[each]} for each in _TYPES]),
    _pad(lambda op: op.scalar(2)),
    *_TENSOR,
    _paddings(1),
)
define(
    OperationType.MIRROR_PAD,
    forms("T I32 i", "T", rows("T", (*_TYPES, I32))),
    _mirror_pad,
    same_quantisation(0),
    _paddings(1),
    one_of(2, "a mode", *_MIRROR_MODES),
    same_rank(0),
)
define(OperationType.SPACE_TO_DEPTH, forms("T i [b]", "T", rows("T", _TYPES)), _space_to_depth, *_IMAGE, positive(1))
define(OperationType.DEPTH_TO_SPACE, forms("T i [b]", "T", rows("T", _TYPES)), _depth_to_space, *_IMAGE, positive(1))
define(
    OperationType.SPACE_TO_BATCH_ND,
    forms("T I32 I32 [b]", "T", rows("T", _TYPES)),
    _space_to_batch,
    *_IMAGE,
    _block_sizes,
    _paddings(2, 2),
)
define(
    OperationType.BATCH_TO_SPACE_ND, forms("T I32 [b]", "T", rows("T", _TYPES)), _batch_to_space, *_IMAGE, _block_sizes
)
define(
    OperationType.CHANNEL_SHUFFLE, forms("T i i", "T", rows("T", _TYPES)), _shuffle, *_TENSOR, positive(1), axis_of(2)
)
