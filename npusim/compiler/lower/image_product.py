"""1x1 convolutions of images whose pixels, not their channels, are contiguous: products of weights and images.

The convolution needs channels that are contiguous, so its transfers would transpose images. As the product [O, C] x
[C, pixels] of each image nothing is transposed: the output channels pass the unit as pixels do otherwise, and pixels
take the place of its output channels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Self

from npusim.compiler.buffers import View
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, fact
from npusim.compiler.lower.matmul import MatMulLowering
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.graph import Op, Tensor
from npusim.isa.functions import Binary
from npusim.isa.matrix import PIXEL_INTEGERS, WEIGHT_INTEGERS, weight_zeros


class _Product(NamedTuple):
    """A group with a product in the place of its convolution, and its tensors by those of the group."""

    group: Group
    tensors: dict[Tensor, Tensor]


class ImageProductLowering(MatMulLowering):
    """A convolution as the product of its weights and each image."""

    def __init__(self, context: Context, product: _Product, views: dict[Tensor, View]) -> None:
        self._outer = context
        # Constants are placed once, by the context of the whole program.
        super().__init__(replace(context, views=views, whole=context), product.group)

    def in_room(self) -> Self:
        self.context.room = self._outer.room
        return super().in_room()


def image_product(context: Context, group: Group, *, chosen: bool = False) -> ImageProductLowering | None:
    """The lowering as a product where there is one, and tiles of it fit. ``chosen``: whatever the image looks like; a
    product that does not fit is an error then."""
    product = fact(context, ("product", group), lambda: (_product(group),))[0]
    # Without shards cores take tiles in turns, and none is asked for its way.
    if product is None or context.config.cores > 1:
        return None
    views: dict[Tensor, View] = {}
    for old in (group.ops[0].input(0), group.outputs[0], *group.loads()):
        if old.data is None:
            new = product.tensors[old]
            view = context.view(old).reshape(new.shape)
            if view is None or (not chosen and len(views) < _ENDS and not _has_pixels_innermost(view)):
                return None
            # A dimension of one element is no broadcast one: it gets a stride.
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
"""Of the views, the operand and the result come first."""


def _product(group: Group) -> _Product | None:
    """The group with a product; None for other convolutions than 1x1 ones with plain constant weights in NCHW."""
    conv = group.anchor
    assert conv is not None
    x, w, attrs = conv.input(0), conv.input(1), conv.attrs
    groups = attrs["groups"]
    if w.data is None or attrs["layout"] != "NCHW" or w.shape[2:] != (1, 1):
        return None
    if attrs["stride"] != (1, 1) or any(attrs["pads"]) or conv.optional(3) is not None or group.sides:
        return None
    if (attrs["blocks"] or attrs["phases"]) and x.dtype.is_float:
        return None  # zeros of the weights would be multiplied
    low, high = weight_zeros(x.dtype)
    roles = x.dtype is w.dtype or (w.dtype in PIXEL_INTEGERS and x.dtype in WEIGHT_INTEGERS)
    if not roles or not low <= attrs["x_zero"] <= high:
        return None
    bias, sums = conv.optional(2), conv.output
    if bias is not None and (bias.data is None or bias.dtype is not sums.dtype or sums.dtype not in _ADDED):
        return None
    tensors: dict[Tensor, Tensor] = {}
    operands: list[Tensor | None] = [t for op in group.chain for t in (*op.inputs, *op.outputs)]
    for tensor in (x, sums, *operands):
        if tensor is not None and tensor not in tensors:
            flat = _flat(tensor, sums, groups)
            if flat is None:
                return None
            tensors[tensor] = flat
    shape = (*_split(w.shape[:1], groups), w.shape[1])
    weights = Tensor(w.name, shape, w.dtype, w.data.reshape(shape))
    zeros = {"x_zero": attrs["w_zero"], "w_zero": attrs["x_zero"], "w_bits": 0, "block": 0, "wide": attrs["wide"]}
    chain = [
        Op(op.name, op.kind, tuple([t and tensors[t] for t in op.inputs]), (tensors[op.output],), op.attrs, op.origin)
        for op in group.chain
    ]
    result = tensors[sums]
    if bias is not None and bias.data is not None:
        shape = (*_split(bias.shape, groups), 1)
        row = Tensor(bias.name, shape, bias.dtype, bias.data.reshape(shape))
        result = Tensor(f"{sums.name}.unbiased", result.shape, result.dtype)
        chain.insert(0, Op(conv.name, "binary", (result, row), (tensors[sums],), {"fn": Binary.ADD}, conv.origin))
    anchor = Op(conv.name, "matmul", (weights, tensors[x]), (result,), zeros, conv.origin)
    return _Product(Group(group.index, anchor, tuple(chain)), tensors)


_ADDED = frozenset({DType.INT32, DType.FLOAT32})
"""Types of sums to which a bias is added with one rounding, before the matrix unit or after it."""


def _split(channels: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """Channels of several groups as two dimensions: the groups of a convolution are a batch of products."""
    if groups == 1:
        return channels
    return tuple([part for dim in channels for part in ((groups, dim // groups) if dim > 1 else (1, 1))])


def _flat(tensor: Tensor, sums: Tensor, groups: int) -> Tensor | None:
    """A tensor with rows and columns as one dimension; None where it is broadcast along one of them alone."""
    shape, data = tensor.shape, tensor.data
    rows, cols = (*(1, 1), *shape)[-2:]
    if (rows, cols) not in ((1, 1), sums.shape[2:]):
        return None
    if len(shape) > 1:
        shape = (*shape[:-3], *_split(shape[-3:-2], groups), rows * cols)
    return Tensor(tensor.name, shape, tensor.dtype, None if data is None else data.reshape(shape), tensor.bound)
