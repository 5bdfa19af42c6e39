"""Conv, ConvTranspose, Gemm and MatMul."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary
from npusim.ops.geometry import same_pads


@dataclass(frozen=True)
class SpatialWindow:
    """The geometry of convolutions and pools, with one entry per spatial dimension."""

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    auto_pad: str
    begin: list[int]
    end: list[int]

    def extent(self, axis: int) -> int:
        """Input positions from the first to the last tap."""
        return (self.kernel[axis] - 1) * self.dilation[axis] + 1

    @property
    def plane(self) -> SpatialWindow:
        """The window over all spatial dimensions except the first."""
        lists = (self.kernel, self.stride, self.dilation, self.begin, self.end)
        kernel, stride, dilation, begin, end = (values[1:] for values in lists)
        return SpatialWindow(kernel, stride, dilation, self.auto_pad, begin, end)

    def turned(self, order: Sequence[int]) -> SpatialWindow:
        """The window with its dimensions in another order."""
        lists = (self.kernel, self.stride, self.dilation, self.begin, self.end)
        kernel, stride, dilation, begin, end = ([values[axis] for axis in order] for values in lists)
        return SpatialWindow(kernel, stride, dilation, self.auto_pad, begin, end)

    @property
    def column(self) -> SpatialWindow:
        """The window over the first spatial dimension, and one of width 1."""
        kernel, stride, dilation = ([values[0], 1] for values in (self.kernel, self.stride, self.dilation))
        return SpatialWindow(kernel, stride, dilation, self.auto_pad, [self.begin[0], 0], [self.end[0], 0])


AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def read_window(node: Node, rank: int, kernel: Sequence[int] | None) -> SpatialWindow:
    """The window attributes of a node with ``rank`` spatial dimensions. ``kernel``: given if the weights determine
    it."""
    shape = node.ints_attr("kernel_shape", kernel)
    if shape is None:
        node.damaged("attribute kernel_shape is required")
    if kernel is not None and list(kernel) != shape:
        node.damaged(f"kernel_shape {shape} differs from the weights' {list(kernel)}")
    stride = node.ints_attr("strides", [1] * rank) or []
    dilation = node.ints_attr("dilations", [1] * rank) or []
    pads = node.ints_attr("pads", [0] * (2 * rank)) or []
    auto_pad = node.text_attr("auto_pad", "NOTSET") or "NOTSET"
    if auto_pad not in AUTO_PADS:
        node.damaged(f"attribute auto_pad must be one of {', '.join(AUTO_PADS)}, is {auto_pad!r}")
    if not len(shape) == len(stride) == len(dilation) == rank or len(pads) != 2 * rank:
        node.damaged(f"kernel_shape, strides, dilations and pads must describe {rank} dimensions")
    if min((*shape, *stride, *dilation), default=1) < 1 or max((*shape, *stride, *dilation), default=1) > 1 << 31:
        node.damaged("kernel_shape, strides and dilations must be >= 1")
    if min(pads, default=0) < 0:
        node.refuse(f"negative padding {pads} is not supported")
    if auto_pad != "NOTSET":
        pads = [0] * (2 * rank)
    return SpatialWindow(shape, stride, dilation, auto_pad, pads[:rank], pads[rank:])


def padded(window: SpatialWindow, sizes: Sequence[int]) -> SpatialWindow:
    """The window with the padding of auto_pad for an image of these sizes."""
    if not window.auto_pad.startswith("SAME"):
        return window
    begin, end = [], []
    for axis, size in enumerate(sizes):
        small, large = same_pads(size, window.stride[axis], window.extent(axis))
        begin.append(small if window.auto_pad == "SAME_UPPER" else large)
        end.append(large if window.auto_pad == "SAME_UPPER" else small)
    return SpatialWindow(window.kernel, window.stride, window.dilation, "NOTSET", begin, end)


def two_d(values: Sequence[int], fill: int) -> tuple[int, ...]:
    """Attributes of one or two spatial dimensions, as two."""
    return (fill, *values) if len(values) == 1 else tuple(values)


def image_of(node: Node, x: Tensor) -> Tensor:
    """A tensor with one spatial dimension as an image one pixel high; other tensors unchanged."""
    if len(x.shape) == 3:
        return node.reshape(x, (*x.shape[:2], 1, x.shape[2]))
    if len(x.shape) != 4:
        node.refuse(f"one to three spatial dimensions are supported, the operand is {list(x.shape)}")
    return x


def window_attrs(window: SpatialWindow) -> dict[str, tuple[int, ...]]:
    """stride, dilation and pads as attributes of graph operators."""
    top_left, bottom_right = two_d(window.begin, 0), two_d(window.end, 0)
    return {
        "stride": two_d(window.stride, 1),
        "dilation": two_d(window.dilation, 1),
        "pads": (*top_left, *bottom_right),
    }


def convolve(node: Node, x: Tensor, w: Tensor, bias: Tensor | None, x_zero: int = 0, w_zero: int = 0) -> Tensor:
    """The convolution of x and weights [O, I/groups, K...] with the attributes of the node."""
    rank = len(x.shape) - 2
    if len(w.shape) != len(x.shape):
        node.damaged(f"weights {list(w.shape)} and input {list(x.shape)} must have the same rank")
    window, attrs = padded(read_window(node, rank, w.shape[2:]), x.shape[2:]), {"x_zero": x_zero, "w_zero": w_zero}
    if rank == 3:
        return _convolve_volume(node, x, w, bias, window, attrs)
    y = _convolve_image(node, image_of(node, x), image_of(node, w), bias, window, attrs)
    return node.reshape(y, (*y.shape[:2], y.shape[3])) if rank == 1 else y


def _convolve_image(
    node: Node, x: Tensor, w: Tensor, bias: Tensor | None, window: SpatialWindow, attrs: Mapping[str, int]
) -> Tensor:
    groups = node.int_attr("group", 1)
    return node.add("conv", x, w, bias, layout="NCHW", groups=groups, **attrs, **window_attrs(window))


def _convolve_volume(
    node: Node, x: Tensor, w: Tensor, bias: Tensor | None, window: SpatialWindow, attrs: Mapping[str, int]
) -> Tensor:
    """A volume convolution as a convolution of images: the slices within the kernel depth become channels."""
    around = {"before": (0, 0, window.begin[0], 0, 0), "after": (0, 0, window.end[0], 0, 0)}
    padded_sizes = [size + sum(ends) for size, *ends in zip(x.shape[2:], window.begin, window.end, strict=True)]
    extents = [window.extent(axis) for axis in range(3)]
    if any(extent > size for extent, size in zip(extents, padded_sizes, strict=True)):
        node.damaged(f"a window of {extents} does not fit into a volume of {padded_sizes} with its padding")
    if 1 in window.dilation and node.int_attr("group", 1) == 1:
        return _along_fewest(node, x, w, bias, window, attrs)
    (batch, channels, depth, height, width), taps = x.shape, window.kernel[0]
    if any(window.begin[:1] + window.end[:1]):
        x = node.add("pad", x, mode="constant", value=float(attrs["x_zero"]), **around)
    count = (depth + window.begin[0] + window.end[0] - window.extent(0)) // window.stride[0] + 1
    slices = [
        node.add(
            "slice",
            x,
            starts=(0, 0, tap * window.dilation[0], 0, 0),
            steps=(1, 1, window.stride[0], 1, 1),
            sizes=(batch, channels, count, height, width),
        )
        for tap in range(taps)
    ]
    stacked = [node.reshape(part, (batch, channels, 1, count, height, width)) for part in slices]
    spans = node.add("concat", *stacked, axis=2) if taps > 1 else stacked[0]
    images = node.reshape(node.transpose(spans, (0, 3, 1, 2, 4, 5)), (batch * count, channels * taps, height, width))
    weights = node.reshape(w, (w.shape[0], w.shape[1] * taps, *w.shape[3:]))
    y = _convolve_image(node, images, weights, bias, window.plane, attrs)
    return node.transpose(node.reshape(y, (batch, count, *y.shape[1:])), (0, 2, 1, 3, 4))


def _along_fewest(
    node: Node, x: Tensor, w: Tensor, bias: Tensor | None, window: SpatialWindow, attrs: Mapping[str, int]
) -> Tensor:
    """A volume convolution by slices along the dimension of fewest outputs, for few images that are large."""
    ends = zip(x.shape[2:], window.begin, window.end, strict=True)
    counts = [(sum(each) - window.extent(axis)) // window.stride[axis] for axis, each in enumerate(ends)]
    first = min(range(3), key=lambda axis: (window.dilation[axis] > 1, counts[axis]))
    order = [first, *(axis for axis in range(3) if axis != first)]
    front = (0, 1, *(2 + axis for axis in order))
    y = _convolve_slices(node, node.transpose(x, front), node.transpose(w, front), bias, window.turned(order), attrs)
    return node.transpose(y, (0, 1, *(2 + order.index(axis) for axis in range(3))))


def _convolve_slices(
    node: Node, x: Tensor, w: Tensor, bias: Tensor | None, window: SpatialWindow, attrs: Mapping[str, int]
) -> Tensor:
    """A volume convolution as a convolution of images whose pixels have the channels of all slices: those within the
    kernel depth are windows of these channels, which overlap, and none of them is copied."""
    (batch, channels, depth, *plane), taps = x.shape, window.kernel[0]
    x = node.reshape(node.transpose(x, (0, 3, 4, 2, 1)), (batch, *plane, depth * channels))
    # Padding comes last: transfers that transpose take each element of it as long as one of the volume.
    before, after = ((0, *ends[1:], ends[0] * channels) for ends in (window.begin, window.end))
    if any(before + after):
        x = node.add("pad", x, mode="constant", value=float(attrs["x_zero"]), before=before, after=after)
    weights = node.reshape(node.transpose(w, (0, 2, 1, 3, 4)), (w.shape[0], taps * channels, *w.shape[3:]))
    image = {"layout": "NHWC", "groups": 1, "stride": tuple(window.stride[1:]), "dilation": tuple(window.dilation[1:])}
    sizes, done = x.shape[1:], []
    for index in range(batch):
        if batch > 1:
            volume = node.add("slice", x, starts=(index, 0, 0, 0), sizes=(1, *sizes), steps=(1,) * 4)
        pixels = node.reshape(volume if batch > 1 else x, sizes)
        images = node.add("windows", pixels, axis=2, size=taps * channels, step=window.stride[0] * channels)
        y = node.add("conv", images, weights, bias, pads=(0, 0, 0, 0), **image, **attrs)
        done.append(node.reshape(node.transpose(y, (3, 0, 1, 2)), (1, y.shape[3], *y.shape[:3])))
    return node.add("concat", *done, axis=0) if batch > 1 else done[0]


_IMAGES = ["one to three spatial dimensions"]


@handles("Conv", limits=_IMAGES)
def conv(node: Node) -> Tensor:
    """Import Conv with one to three spatial dimensions."""
    return convolve(node, node.input(0), node.input(1), node.optional(2))


def _transposed_sizes(node: Node, window: SpatialWindow, sizes: Sequence[int]) -> tuple[list[int], SpatialWindow]:
    """(output sizes, window with its padding) of a transposed convolution."""
    rank = len(sizes)
    extra = node.ints_attr("output_padding", [0] * rank) or []
    wanted = node.ints_attr("output_shape")
    if len(extra) != rank or min(extra, default=0) < 0 or (wanted is not None and len(wanted) not in (rank, rank + 2)):
        node.damaged(f"output_padding and output_shape must describe {rank} dimensions")
    full = [(s - 1) * window.stride[i] + window.extent(i) + extra[i] for i, s in enumerate(sizes)]
    if wanted is None and window.auto_pad.startswith("SAME"):
        wanted = [size * window.stride[i] for i, size in enumerate(sizes)]
    if wanted is None:
        return [size - window.begin[i] - window.end[i] for i, size in enumerate(full)], window
    wanted = wanted[-rank:]
    totals = [max(size - want, 0) for size, want in zip(full, wanted, strict=True)]
    # As for a forward convolution: SAME_UPPER has the odd element of padding at the end, SAME_LOWER at the beginning.
    halves, rests = [t // 2 for t in totals], [t - t // 2 for t in totals]
    begin, end = (halves, rests) if window.auto_pad == "SAME_UPPER" else (rests, halves)
    return wanted, SpatialWindow(window.kernel, window.stride, window.dilation, "NOTSET", begin, end)


@handles("ConvTranspose", limits=_IMAGES)
def conv_transpose(node: Node) -> Tensor:
    """Import ConvTranspose with one to three spatial dimensions."""
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    rank = len(x.shape) - 2
    if len(w.shape) != len(x.shape) or rank < 1:
        node.damaged(f"weights {list(w.shape)} and input {list(x.shape)} must have the same rank")
    sizes, window = _transposed_sizes(node, read_window(node, rank, w.shape[2:]), x.shape[2:])
    if rank == 3:
        return _transpose_volume(node, x, w, bias, sizes, window)
    y = _transpose_image(node, image_of(node, x), image_of(node, w), bias, sizes, window)
    return node.reshape(y, (*y.shape[:2], y.shape[3])) if rank == 1 else y


def _transpose_image(
    node: Node, x: Tensor, w: Tensor, bias: Tensor | None, sizes: Sequence[int], window: SpatialWindow
) -> Tensor:
    groups = node.int_attr("group", 1)
    attrs = {"groups": groups, "output_hw": two_d(sizes, 1), **window_attrs(window)}
    return node.add("conv_transpose", x, w, bias, layout="NCHW", **attrs)


def _transpose_volume(
    node: Node, x: Tensor, w: Tensor, bias: Tensor | None, sizes: Sequence[int], window: SpatialWindow
) -> Tensor:
    """A transposed convolution of slices, whose channels are those of all slices that each of them adds to."""
    batch, channels, depth, *plane = x.shape
    images = node.reshape(node.transpose(x, (0, 2, 1, 3, 4)), (batch * depth, channels, *plane))
    weights = node.reshape(w, (w.shape[0], w.shape[1] * w.shape[2], *w.shape[3:]))
    y = _transpose_image(node, images, weights, None, sizes[1:], window.plane)
    taps = window.kernel[0]
    y = node.reshape(y, (batch, depth, y.shape[1] // taps, taps, *y.shape[2:]))
    y = overlapped(node, y, 3, 1, window.stride[0], window.dilation[0], window.begin[0], sizes[0])
    y = node.transpose(y, (0, 2, 1, 3, 4))
    return y if bias is None else node.binary(Binary.ADD, y, node.along(bias, 1, 5))


def overlapped(
    node: Node, x: Tensor, taps: int, axis: int, stride: int, dilation: int, begin: int, size: int
) -> Tensor:
    """The sum over dimension ``taps``, which is removed: entry t of it adds element i of dimension ``axis`` to element
    ``i * stride + t * dilation - begin`` of ``size``. ``taps`` must be behind ``axis``."""
    count, number = x.shape[axis], x.shape[taps]
    if stride > 1:
        apart = node.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
        after = tuple((stride - 1) * (each == axis + 1) for each in range(len(apart.shape)))
        apart = node.add("pad", apart, mode="constant", value=0.0, before=(0,) * len(after), after=after)
        x = node.reshape(apart, (*x.shape[:axis], count * stride, *x.shape[axis + 1 :]))
    reach = count * stride
    whole = max(reach + (number - 1) * dilation, begin + size)
    total: Tensor | None = None
    for tap in range(number):
        part = node.slice(x, taps, tap, 1)
        part = node.reshape(part, (*part.shape[:taps], *part.shape[taps + 1 :]))
        ends = ([0] * len(part.shape), [0] * len(part.shape))
        ends[0][axis], ends[1][axis] = tap * dilation, whole - reach - tap * dilation
        if ends[0][axis] or ends[1][axis]:
            part = node.add("pad", part, mode="constant", value=0.0, before=tuple(ends[0]), after=tuple(ends[1]))
        part = node.slice(part, axis, begin, size)
        total = part if total is None else node.binary(Binary.ADD, total, part)
    if total is None:
        node.damaged("the kernel is empty")
    return total


@handles("Col2Im")
def col2im(node: Node) -> Tensor:
    """Import Col2Im: the columns of each dimension of the image are added where they overlap."""
    x, image, block = node.input(0), node.int_values(1), node.int_values(2)
    rank = len(image)
    window = read_window(node, rank, block)
    extents = [window.extent(axis) for axis in range(rank)]
    ends = zip(image, window.begin, window.end, strict=True)
    counts = [(sum(each) - extents[axis]) // window.stride[axis] + 1 for axis, each in enumerate(ends)]
    kernel = math.prod(block)
    if len(block) != rank or len(x.shape) != 3 or min((*counts, *image), default=0) < 1 or not x.size:
        node.damaged(f"input {list(x.shape)}, image {image} and block {block} do not fit each other")
    if x.shape[1] % kernel or x.shape[2] != math.prod(counts):
        node.damaged(f"input {list(x.shape)} must be [n, {kernel} * channels, {math.prod(counts)}]")
    batch, channels = x.shape[0], x.shape[1] // kernel
    y = node.reshape(x, (batch * channels, *block, *counts))
    y = node.transpose(y, (0, *range(rank + 1, 2 * rank + 1), *range(1, rank + 1)))
    for axis in range(rank):
        # The taps of the next dimension are always the first ones behind the positions.
        stride, dilation, begin = window.stride[axis], window.dilation[axis], window.begin[axis]
        y = overlapped(node, y, rank + 1, axis + 1, stride, dilation, begin, image[axis])
    return node.reshape(y, (batch, channels, *image))


def scaled(node: Node, x: Tensor, factor: float) -> Tensor:
    """x times a number."""
    if factor == 1.0:
        return x
    if not x.dtype.is_float:
        node.refuse(f"a factor of {factor} on {x.dtype.label} is not supported")
    return node.binary(Binary.MUL, x, node.like(factor, x))


@handles("Gemm")
def gemm(node: Node) -> Tensor:
    """Import Gemm as a product, with alpha, beta and C as elementwise operators."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    alpha, beta = node.float_attr("alpha", 1.0), node.float_attr("beta", 1.0)
    if len(a.shape) != 2 or len(b.shape) != 2:
        node.damaged(f"operands must be matrices, are {list(a.shape)} and {list(b.shape)}")
    a = node.transpose(a, (1, 0)) if node.int_attr("transA", 0) else a
    b = node.transpose(b, (1, 0)) if node.int_attr("transB", 0) else b
    # Fold the factor into constant weights, which costs nothing at run time.
    scale_weights = alpha != 1.0 and b.is_constant
    b = scaled(node, b, alpha) if scale_weights else b
    rest = 1.0 if scale_weights else alpha
    columns = b.shape[1]
    if c is None or beta == 0.0:
        return scaled(node, node.add("matmul", a, b), rest)
    c = scaled(node, c, beta)
    if rest == 1.0 and (not c.shape or c.shape[-1] in (1, columns)) and c.size in (1, columns):
        if c.size == columns and c.shape[-1:] == (columns,):
            return node.add("matmul", a, b, node.reshape(c, (columns,)))
        if c.size == 1:
            return node.add("matmul", a, b, node.expand(node.reshape(c, (1,)), (columns,)))
    return node.binary(Binary.ADD, scaled(node, node.add("matmul", a, b), rest), c)


def multiply(node: Node, a: Tensor, b: Tensor, x_zero: int = 0, w_zero: int = 0) -> Tensor:
    """numpy's matmul, including vectors."""
    if not a.shape or not b.shape:
        node.damaged("operands must have at least one dimension")
    left = node.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = node.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    y = node.add("matmul", left, right, x_zero=x_zero, w_zero=w_zero)
    shape = list(y.shape)
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[len(y.shape) - 2]
    return node.reshape(y, shape)


@handles("MatMul")
def matmul(node: Node) -> Tensor:
    """Import MatMul, with broadcasting of batch dimensions."""
    return multiply(node, node.input(0), node.input(1))
