"""1x1 convolutions of images with contiguous pixels instead of channels: products of weights and images.

The convolution needs contiguous channels, so its transfers would transpose images. As the product [O, C] x [C, pixels]
of each image nothing is transposed: output channels take the role of pixels in the unit, and pixels that of output
channels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Self

from npusim.compiler.buffers import View
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, fact
from npusim.compiler.lower.matmul import MatMulLowering
from npusim.compiler.lower.matrix_tiling import OutputTile
from npusim.compiler.lower.matrix_weights import Part
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.graph import Op, Tensor
from npusim.isa.functions import Binary
from npusim.isa.matrix_extras import NO_EXTRAS, Extras
from npusim.isa.matrix_types import are_interchangeable
from npusim.ops.matrix import Blocks


class _Product(NamedTuple):
    """A group with a product instead of its convolution, and the new tensors by those of the original group.

    ``blocks``: of block-diagonal weights.
    """

    group: Group
    tensors: dict[Tensor, Tensor]
    blocks: Blocks | None


class ImageProductLowering(MatMulLowering):
    """A convolution as the product of its weights and each image."""

    def __init__(self, context: Context, product: _Product, views: dict[Tensor, View]) -> None:
        self._outer, self._blocks = context, product.blocks
        # The context of the whole program places constants once.
        super().__init__(replace(context, views=views, whole=context), product.group)

    def skipped(self, task: OutputTile, part: Part) -> Extras | None:
        if self._blocks is None:
            return None
        (ic, rows, _), starts = self._blocks, (part.channel, task.col)
        # Whole blocks before the tile have no effect: without them, tiles share instructions.
        before = min(starts[0] // ic, starts[1] // rows)
        first_ic, first_row = starts[0] - before * ic, starts[1] - before * rows
        return replace(NO_EXTRAS, pixel_blocks=True, block_ic=ic, block_oc=rows, first_ic=first_ic, first_oc=first_row)

    def in_room(self) -> Self:
        self.context.room = self._outer.room
        return super().in_room()


def image_product(context: Context, group: Group, *, chosen: bool = False) -> ImageProductLowering | None:
    """The lowering as a product; None if there is none or its tiles do not fit.

    ``chosen``: use a product whatever the layout of the image, and raise CompileError if it does not fit.
    """
    product = fact(context, ("product", group), lambda: (_product(group),))[0]
    # Without shards, cores share the tiles of one lowering. Products are for shards and single cores only.
    if product is None or context.config.cores > 1:
        return None
    views: dict[Tensor, View] = {}
    for old in (group.ops[0].input(0), group.outputs[0], *group.loads()):
        if old.data is None:
            new = product.tensors[old]
            view = context.view(old).reshape(new.shape)
            if view is None or (not chosen and len(views) < _ENDS and not _has_pixels_innermost(view)):
                return None
            # A dimension of size one is not a broadcast one: it gets a stride.
            views[new] = view.broadcast(new.shape)
    try:
        return ImageProductLowering(context, product, views)
    except CompileError:
        if chosen:
            raise
        return None


def _has_pixels_innermost(view: View) -> bool:
    if view.buffer.on_chip or view.shape[-2] == 1 or view.shape[-1] == 1:
        return False
    return view.strides[-1] == view.dtype.itemsize and view.strides[-2] != view.dtype.itemsize


_ENDS = 2
"""The first two views are the operand and the result."""


def _product(group: Group) -> _Product | None:
    """The group as a product; None unless it is a 1x1 convolution in NCHW with plain constant weights."""
    conv = group.anchor
    assert conv is not None
    if not _is_plain(conv) or group.sides:
        return None
    w, bias, sums, groups = conv.input(1), conv.optional(2), conv.output, conv.attrs["groups"]
    tensors = _flat_tensors(group, groups)
    if tensors is None:
        return None
    weights = _grouped(w, groups)
    result = tensors[sums]
    chain = [
        Op(op.name, op.kind, tuple([t and tensors[t] for t in op.inputs]), (tensors[op.output],), op.attrs, op.origin)
        for op in group.chain
    ]
    if bias is not None:
        # The rows of the product are the output channels, but a product adds its bias along columns.
        result = Tensor(f"{sums.name}.unbiased", result.shape, result.dtype)
        inputs = (result, _grouped(bias, groups))
        chain.insert(0, Op(conv.name, "binary", inputs, (tensors[sums],), {"fn": Binary.ADD}, conv.origin))
    attrs = conv.attrs
    zeros = {"x_zero": attrs["w_zero"], "w_zero": attrs["x_zero"], "w_bits": 0, "block": 0, "wide": attrs["wide"]}
    anchor = Op(conv.name, "matmul", (weights, tensors[conv.input(0)]), (result,), zeros, conv.origin)
    blocks = Blocks(*attrs["blocks"]) if attrs["blocks"] else None
    return _Product(Group(group.index, anchor, tuple(chain)), tensors, blocks)


def _is_plain(conv: Op) -> bool:
    """Whether a convolution is a product of constant weights and images that the unit can compute."""
    attrs, w = conv.attrs, conv.input(1)
    if w.data is None or attrs["layout"] != "NCHW" or w.shape[2:] != (1, 1):
        return False
    if attrs["stride"] != (1, 1) or any(attrs["pads"]) or conv.optional(3) is not None:
        return False
    return _may_swap_roles(conv) and _has_plain_bias(conv)


def _may_swap_roles(conv: Op) -> bool:
    """Whether weights may take the role of pixels and the image that of weights."""
    x, w, attrs = conv.input(0), conv.input(1), conv.attrs
    if attrs["phases"] and x.dtype.is_float:
        return False  # zeros of the weights would be multiplied
    return are_interchangeable(x.dtype, w.dtype, attrs["x_zero"])


def _has_plain_bias(conv: Op) -> bool:
    bias, sums = conv.optional(2), conv.output
    return bias is None or (bias.data is not None and bias.dtype is sums.dtype and sums.dtype in _ADDED)


def _flat_tensors(group: Group, groups: int) -> dict[Tensor, Tensor] | None:
    """The image, the sums and the tensors of the chain, with pixels as one dimension; None if one cannot be
    flattened."""
    assert group.anchor is not None
    sums = group.anchor.output
    operands = [t for op in group.chain for t in (*op.inputs, *op.outputs) if t is not None]
    tensors: dict[Tensor, Tensor] = {}
    for tensor in dict.fromkeys((group.anchor.input(0), sums, *operands)):
        flat = _flat(tensor, sums, groups)
        if flat is None:
            return None
        tensors[tensor] = flat
    return tensors


def _grouped(constant: Tensor, groups: int) -> Tensor:
    """Weights [O, C, 1, 1] as [O, C], or a bias [O] as [O, 1], with the groups as a batch."""
    assert constant.data is not None
    shape = (*_split(constant.shape[:1], groups), *(constant.shape[1:2] or (1,)))
    return Tensor(constant.name, shape, constant.dtype, constant.data.reshape(shape))


_ADDED = frozenset({DType.INT32, DType.FLOAT32})
"""Types of sums to which a bias is added with one rounding, inside or after the matrix unit."""


def _split(channels: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """Channels of several groups as two dimensions: the groups of a convolution are a batch of products."""
    if groups == 1:
        return channels
    return tuple([part for dim in channels for part in ((groups, dim // groups) if dim > 1 else (1, 1))])


def _flat(tensor: Tensor, sums: Tensor, groups: int) -> Tensor | None:
    """A tensor with rows and columns as one dimension; None if it is broadcast along only one of them."""
    shape, data = tensor.shape, tensor.data
    rows, cols = (*(1, 1), *shape)[-2:]
    if (rows, cols) not in ((1, 1), sums.shape[2:]):
        return None
    if len(shape) > 1:
        shape = (*shape[:-3], *_split(shape[-3:-2], groups), rows * cols)
    return Tensor(tensor.name, shape, tensor.dtype, None if data is None else data.reshape(shape), tensor.bound)
