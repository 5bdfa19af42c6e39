"""Small graphs with their inputs that together contain every operator kind and every way to lower it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config, load_config
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.build import GraphBuilder
from npusim.ops.emit import Emitter
from npusim.ops.iterations import Scanned, iterate
from npusim.ops.routine import routine_attrs

Array = npt.NDArray[Any]
KIB = 1024

# Small devices, so that small tensors need several tiles. SMALL has one unit of each kind, TWIN has two.
SMALL = load_config("tiny").with_(**{"dram.bytes": 4 * KIB * KIB, "sram.bytes": 4 * KIB})
TWIN = SMALL.with_(
    **{
        "sram.bytes": 8 * KIB, "cores": 2, "dma.channels": 3, "matrix.accumulator_bytes": KIB,
        "matrix.dataflow": "output_stationary", "matrix.cols": 4,
    }
)  # fmt: skip
ROOMY = SMALL.with_(**{"sram.bytes": 128 * KIB, "dma.channels": 2})


@dataclass
class Maker:
    """A builder with input values: small integers, whose float sums are exact."""

    build: GraphBuilder = field(default_factory=lambda: GraphBuilder("case"))
    feeds: dict[str, Array] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def values(self, shape: Sequence[int], dtype: DType, low: int = -8, high: int = 9) -> Array:
        low = max(low, 0) if dtype in (DType.UINT8, DType.UINT16, DType.BOOL) else low
        return np.asarray(self.rng.integers(low, 2 if dtype is DType.BOOL else high, shape)).astype(dtype.storage)

    def x(self, *shape: int, dtype: DType = DType.FLOAT32, low: int = -8, high: int = 9) -> Tensor:
        """Add an input."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.values(shape, dtype, low, high)
        return self.build.input(name, shape, dtype)

    def c(self, *shape: int, dtype: DType = DType.FLOAT32, low: int = -8, high: int = 9) -> Tensor:
        """Add a constant."""
        return self.build.const(self.values(shape, dtype, low, high), dtype=dtype)

    def add(self, kind: str, *operands: Tensor | None, **attrs: Any) -> Tensor:
        return self.build.add(kind, operands, attrs)

    def un(self, fn: Unary, x: Tensor, p0: float = 0.0, p1: float = 0.0) -> Tensor:
        return self.add("unary", x, fn=fn, p0=p0, p1=p1)

    def bi(self, fn: Binary, a: Tensor, b: Tensor) -> Tensor:
        return self.add("binary", a, b, fn=fn)

    def quantised(self, value: Tensor, scale: Any, zero: Any) -> Tensor:
        """Dequantise a tensor."""
        return self.add("dequantize", value, *self.parameters(scale, zero), to=DType.FLOAT32)

    def quantise(self, value: Tensor, scale: Any, zero: Any, to: DType) -> Tensor:
        return self.add("quantize", value, *self.parameters(scale, zero), to=to)

    def parameters(self, scale: Any, zero: Any) -> tuple[Tensor, Tensor]:
        return self.build.const(np.asarray(scale, np.float32)), self.build.const(np.asarray(zero, np.int32))


@dataclass(frozen=True)
class Case:
    """How to build a graph, and the device to compile it for."""

    make: Callable[[Maker], Tensor | Sequence[Tensor]]
    config: Config
    exact: bool

    def graph(self) -> tuple[Graph, dict[str, Array]]:
        """Return the graph and its input values."""
        maker = Maker()
        outputs = self.make(maker)
        return maker.build.finish([outputs] if isinstance(outputs, Tensor) else outputs), maker.feeds


CASES: dict[str, Case] = {}


def case(config: Config = SMALL, *, exact: bool = True) -> Callable[[Any], Any]:
    def register(make: Any) -> Any:
        CASES[make.__name__] = Case(make, config, exact)
        return make

    return register


WINDOW = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
I8, U8, I16, I32, I64, F16, F32, BF16 = (
    DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64, DType.FLOAT16, DType.FLOAT32, DType.BFLOAT16,
)  # fmt: skip


# Convolutions and products


@case()
def conv_rows(m: Maker) -> Tensor:
    """Tiled by output rows."""
    return m.add("conv", m.x(1, 4, 10, 6), m.c(6, 4, 3, 3), m.c(6), **WINDOW | {"pads": (1, 1, 1, 1)})


@case(TWIN)
def conv_on_two_cores(m: Maker) -> Tensor:
    """Each core has accumulators. The drain applies bounds, and a residual follows."""
    x = m.x(2, 4, 7, 5)
    total = m.add("conv", x, m.c(4, 4, 3, 2), None, **WINDOW | {"pads": (2, 1, 0, 0)})
    return m.un(Unary.RELU, m.bi(Binary.ADD, m.un(Unary.CLIP, total, -20.0, 30.0), x))


@case()
def conv_columns(m: Maker) -> Tensor:
    """A single row, tiled by columns with a remainder."""
    return m.add("conv", m.x(1, 9, 1, 47), m.c(7, 9, 1, 3), m.c(7), **WINDOW | {"pads": (0, 2, 0, 1)})


@case()
def conv_deep(m: Maker) -> Tensor:
    """More input channels than one block: sums carry over from one part to the next."""
    return m.add("conv", m.x(1, 2, 3, 150, dtype=I8), m.c(9, 150, 1, 2, dtype=I8), None, **WINDOW | {"layout": "NHWC"})


@case()
def conv_deep_with_weights_that_are_computed(m: Maker) -> Tensor:
    weights = m.x(5, 140, 1, 2, dtype=I8)
    return m.add("conv", m.x(1, 2, 3, 140, dtype=I8), weights, None, **WINDOW | {"layout": "NHWC", "stride": (2, 1)})


@case()
def conv_grouped(m: Maker) -> Tensor:
    window = WINDOW | {"groups": 3, "stride": (2, 1), "dilation": (1, 2), "pads": (0, 2, 1, 1)}
    return m.add("conv", m.x(2, 6, 5, 6, dtype=U8), m.c(6, 2, 2, 2, dtype=I8), m.c(6, dtype=I32), **window, x_zero=3)


@case(TWIN)
def conv_grouped_with_weights_that_are_computed(m: Maker) -> Tensor:
    window = WINDOW | {"groups": 2, "layout": "NHWC"}
    return m.add("conv", m.x(1, 4, 4, 4), m.x(6, 2, 2, 3), m.x(6), **window)


@case()
def conv_depthwise(m: Maker) -> Tensor:
    """Two outputs per channel; tiled by channels."""
    window = WINDOW | {"groups": 12, "pads": (1, 1, 1, 1)}
    return m.add("conv", m.x(1, 12, 6, 7), m.c(24, 1, 3, 3), m.c(24), **window)


@case()
def conv_depthwise_with_weights_that_are_computed(m: Maker) -> Tensor:
    window = WINDOW | {"groups": 8, "layout": "NHWC", "pads": (0, 1, 1, 0), "stride": (1, 2)}
    return m.add("conv", m.x(2, 5, 6, 8, dtype=I8), m.x(8, 1, 3, 2, dtype=I8), None, **window, w_zero=-3)


@case()
def conv_transposed(m: Maker) -> Tensor:
    window = WINDOW | {"stride": (2, 3), "pads": (0, 1, 1, 0), "groups": 2, "dilation": (1, 2)}
    return m.add("conv_transpose", m.x(1, 4, 3, 4), m.c(4, 3, 2, 3), m.x(6), **window, output_hw=(5, 13))


@case()
def conv_transposed_backwards(m: Maker) -> Tensor:
    """The padding exceeds the kernel's reach, so rows are cropped. Channels last."""
    window = WINDOW | {"layout": "NHWC", "stride": (2, 1), "pads": (1, 1, 2, 1)}
    x, w = m.x(1, 5, 6, 2, dtype=U8), m.c(2, 3, 1, 2, dtype=I8)
    return m.add("conv_transpose", x, w, m.c(3, dtype=I32), **window, output_hw=(6, 5), x_zero=2, w_zero=1)


@case()
def conv_quantised(m: Maker) -> Tensor:
    """A layer of a quantised model; nothing is left for the vector unit."""
    x, w = m.quantised(m.x(1, 3, 6, 6, dtype=U8), 0.5, 4), m.quantised(m.c(5, 3, 3, 3, dtype=I8), 0.25, 0)
    bias = m.quantised(m.c(5, dtype=I32, low=-90, high=90), 0.125, 0)
    total = m.un(Unary.RELU, m.add("conv", x, w, bias, **WINDOW))
    return m.quantise(total, 2.0, 7, U8)


@case(ROOMY)
def conv_scaled_and_shifted(m: Maker) -> Tensor:
    """As after batch normalisation: a per-channel product and difference are folded into the weights."""
    total = m.add("conv", m.x(1, 3, 5, 5), m.c(4, 3, 2, 2), m.c(4), **WINDOW)
    scaled = m.bi(Binary.MUL, total, m.build.const(np.array([1, 2, 4, 0.5], np.float32).reshape(1, 4, 1, 1)))
    return m.bi(Binary.SUB, scaled, m.c(4, 1, 1))


@case()
def matmul_cut(m: Maker) -> Tensor:
    """Tiled by rows, columns and depth; int8 sums are stored as they are."""
    return m.add("matmul", m.x(10, 200, dtype=I8), m.c(200, 24, dtype=I8), m.c(24, dtype=I32))


@case(TWIN)
def matmul_batches(m: Maker) -> Tensor:
    """One right operand per batch entry, repeated along one dimension, and a computed bias."""
    return m.add("matmul", m.x(2, 3, 5, 12), m.x(3, 12, 6), m.x(6))


@case()
def matmul_folded(m: Maker) -> Tensor:
    """One right operand for the whole batch, so its rows form one long matrix; a chain follows."""
    x = m.x(2, 3, 4, 8)
    return m.bi(Binary.MUL, m.un(Unary.ABS, m.add("matmul", x, m.c(8, 8))), x)


@case()
def matmul_turned(m: Maker) -> Tensor:
    """A batch that cannot be folded: the rows of the left operand are not a view of a matrix."""
    return m.add("matmul", m.add("transpose", m.x(4, 2, 3), perm=(1, 0, 2)), m.x(3, 5), None)


@case()
def matmul_quantised(m: Maker) -> Tensor:
    """Per-column scales, a float bias in between, and another output type."""
    scales = [0.25, 0.5, 1.0, 0.125]
    left = m.quantised(m.x(6, 10, dtype=I8), 0.5, -3)
    right = m.quantised(m.c(10, 4, dtype=U8), scales, [3, 3, 3, 3])
    return m.quantise(m.add("matmul", left, right, m.build.const(np.array([0.3, 1, 2, 3], np.float32))), 4.0, -1, I16)


@case(SMALL.with_(**{"matrix.throughput": {"int8": 1, "float32": 1}}))
def matmul_of_nine_bits(m: Maker) -> Tensor:
    """Per-column zero points: 9-bit weights are split into two of 8 bits."""
    left = m.quantised(m.x(3, 6, dtype=U8), 1.0, 2)
    right = m.quantised(m.c(6, 3, dtype=U8, low=0, high=256), [1.0, 1.0, 1.0], [10, 100, 240])
    return m.add("matmul", left, right)


@case()
def matmul_of_nothing(m: Maker) -> Tensor:
    return m.add("matmul", m.x(3, 0), m.x(0, 4), m.x(4))


# Elementwise


@case()
def chain(m: Maker) -> Tensor:
    """Several operands, one broadcast along either side; results reuse the memory of operands."""
    a, b = m.x(6, 40), m.x(6, 40)
    left = m.bi(Binary.SUB, m.bi(Binary.MUL, a, m.x(40)), m.un(Unary.NEG, b))
    return m.bi(Binary.MAX, left, m.bi(Binary.ADD, m.x(6, 1), b))


@case()
def bits_of_floats(m: Maker) -> Tensor:
    """The sign of each float, as an integer."""
    bits = m.add("bitcast", m.x(4, 6), to=I32)
    return m.bi(Binary.LT, bits, m.c(1, dtype=I32))


@case(TWIN)
def chain_of_types(m: Maker) -> Tensor:
    """Intermediate results of one, two and four bytes: none fits in another's memory."""
    x = m.x(4, 3, 50, dtype=U8)
    wide = m.add("cast", m.bi(Binary.ADD, m.add("cast", x, to=I16), m.c(50, dtype=I16)), to=F32)
    picked = m.add("select", m.bi(Binary.LT, wide, m.c(3, 1)), wide, m.un(Unary.SQUARE, wide))
    return m.add("cast", picked, to=I8)


@case()
def quantised_by_channel(m: Maker) -> Tensor:
    """Conversions of the vector unit with parameters along an axis."""
    real = m.quantised(m.x(5, 3, 7, dtype=I8), [[0.5], [1.0], [2.0]], [[1], [0], [-2]])
    return m.quantise(m.un(Unary.ABS, real), [[1.0], [0.5], [2.0]], [[0], [3], [1]], U8)


@case()
def of_five_dimensions(m: Maker) -> Tensor:
    """More dimensions than an instruction has, in an order that cannot be merged."""
    turned = m.add("transpose", m.x(2, 3, 2, 3, 3), perm=(4, 2, 0, 3, 1))
    return m.bi(Binary.ADD, turned, m.x(3, 1, 2, 1, 3))


@case()
def scalars(m: Maker) -> Tensor:
    return m.bi(Binary.ADD, m.un(Unary.SQUARE, m.x()), m.c())


# Rows, reductions, windows


@case()
def reduced(m: Maker) -> list[Tensor]:
    """Over the first axis, the last one, and all of them; in several chunks."""
    x = m.x(9, 4, 40)
    return [
        m.add("reduce", x, fn=Reduce.SUM, axes=(0,), keepdims=False),
        m.add("reduce", x, fn=Reduce.MAX, axes=(2,), keepdims=True),
        m.add("reduce", x, fn=Reduce.SUM_SQUARE, axes=(0, 1, 2), keepdims=False),
    ]


@case(TWIN)
def reduced_on_two_cores(m: Maker) -> list[Tensor]:
    """An integer mean over a middle axis."""
    x = m.x(6, 30, 8, dtype=I16)
    return [
        m.add("reduce", x, fn=Reduce.MEAN, axes=(1,), keepdims=False),
        m.add("reduce", x, fn=Reduce.MIN, axes=(0, 2), keepdims=True),
    ]


@case()
def best(m: Maker) -> list[Tensor]:
    x = m.x(3, 5, 4)
    first = m.add("arg_reduce", x, fn="max", axis=1, keepdims=True, select_last=False)
    last = m.add("arg_reduce", x, fn="min", axis=2, keepdims=False, select_last=True)
    return [first, last]


@case(exact=False)
def rows(m: Maker) -> list[Tensor]:
    """Whole rows in SRAM, over the last axis and over a middle one."""
    x = m.x(5, 4, 30)
    return [
        m.add("softmax", x, axis=2, log=False),
        m.add("softmax", x, axis=1, log=True),
        m.add("normalize", x, axis=2, mode="layer", epsilon=1e-3),
    ]


@case(TWIN, exact=False)
def rows_on_two_cores(m: Maker) -> list[Tensor]:
    x = m.x(4, 6, 10)
    return [
        m.add("cumsum", x, axis=1, exclusive=True, reverse=True),
        m.add("lrn", x, axis=1, size=3, alpha=0.5, beta=0.5, bias=2.0),
        m.add("normalize", x, axis=1, mode="rms", epsilon=1e-3),
    ]


@case()
def pooled(m: Maker) -> list[Tensor]:
    """Windows across the border, in both memory orders."""
    window = {"layout": "NCHW", "kernel": (3, 2), "stride": (2, 1), "dilation": (1, 2), "pads": (1, 1, 1, 0)}
    x = m.x(2, 5, 7, 6)
    return [
        m.add("pool", x, fn="max", output_hw=(4, 5), **window),
        m.add("pool", x, fn="average", output_hw=(4, 5), count_include_pad=True, **window),
    ]


@case(TWIN)
def pooled_by_rows(m: Maker) -> Tensor:
    """An image too wide for SRAM, channels last."""
    window = {"layout": "NHWC", "kernel": (2, 2), "stride": (2, 2), "dilation": (1, 1), "pads": (0, 0, 0, 0)}
    return m.add("pool", m.x(1, 8, 12, 24, dtype=I8), fn="average", output_hw=(4, 6), **window)


@case()
def resampled(m: Maker) -> Tensor:
    index = m.build.const(np.array([[0, 1], [1, 2], [2, -1], [4, 4], [3, 0]], np.int32))
    weight = m.build.const(np.array([[1, 3], [2, 2], [4, 0], [1, 1], [0.5, 0.25]], np.float32))
    return m.add("resample", m.x(3, 5, 70), index, weight, axis=1)


# Movement


@case()
def copied(m: Maker) -> list[Tensor]:
    x = m.x(5, 6, 7, dtype=I16)
    back = m.add("slice", x, starts=(4, 0, 5), steps=(-2, 3, -1), sizes=(3, 2, 6))
    return [
        back,
        m.add("transpose", x, perm=(2, 0, 1)),
        m.add("expand", m.x(3, 1, dtype=U8), shape=(2, 3, 4)),
        m.add("windows", x, axis=1, size=3, step=2),
    ]


@case()
def loop(m: Maker) -> list[Tensor]:
    """A state, rows that are read and added to the results, and 20 iterations."""
    rows, weights, start = m.x(20, 3, 8), m.c(8, 8, low=-1, high=2), m.c(3, 8)

    def body(states: Sequence[Tensor], parts: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        product = m.add("matmul", states[0], weights, None)
        total = m.bi(Binary.ADD, product, m.add("reshape", parts[0], shape=(3, 8)))
        state = m.un(Unary.CLIP, total, -8.0, 8.0)
        return [state], [m.add("reshape", state, shape=(1, 3, 8))]

    states, results = iterate(Emitter(m.build, "loop"), 20, [start], [Scanned(rows)], body)
    return [*states, *results]


@case(TWIN)
def copied_by_several(m: Maker) -> Tensor:
    """Large enough that every core and channel takes a part."""
    return m.add("transpose", m.x(40, 5, 60), perm=(1, 0, 2))


@case()
def reshaped_after_turning(m: Maker) -> Tensor:
    turned = m.add("transpose", m.un(Unary.NEG, m.x(4, 6)), perm=(1, 0))
    return m.un(Unary.ABS, m.add("reshape", turned, shape=(3, 8)))


@case()
def joined(m: Maker) -> list[Tensor]:
    """Results computed in place, and an input and a repeated part that are copied."""
    x = m.x(3, 4)
    own = m.un(Unary.ABS, x)
    twice = m.un(Unary.NEG, x)
    wide = m.add("concat", own, x, twice, twice, axis=1)
    return [m.un(Unary.SQUARE, wide), own]


@case()
def joined_twice(m: Maker) -> Tensor:
    """One concatenation inside another."""
    x = m.x(2, 3)
    inner = m.add("concat", m.un(Unary.ABS, x), m.un(Unary.NEG, x), axis=0)
    outer = m.add("concat", m.un(Unary.SQUARE, m.x(4, 2)), inner, axis=1)
    return m.add("cumsum", outer, axis=1, exclusive=False, reverse=False)


@case()
def padded(m: Maker) -> list[Tensor]:
    x = m.x(3, 4, dtype=I16)
    return [
        m.add("pad", x, before=(1, 0), after=(2, 3), mode="constant", value=-7),
        m.add("pad", x, before=(2, 1), after=(0, 3), mode="reflect", value=0),
        m.add("pad", x, before=(0, 2), after=(2, 0), mode="edge", value=0),
    ]


@case()
def padded_in_five_dimensions(m: Maker) -> Tensor:
    return m.add("pad", m.x(1, 2, 2, 1, 2), before=(1, 0, 1, 1, 0), after=(0, 1, 0, 1, 1), mode="constant", value=2.0)


@case()
def padded_bfloat16(m: Maker) -> Tensor:
    x = m.build.input("x", (2, 3), BF16)
    m.feeds["x"] = np.array([[0x3F80, 0x4000, 0], [0xC000, 0x3F80, 0x4040]], np.uint16)
    return m.add("pad", x, before=(0, 1), after=(1, 0), mode="constant", value=-1.5)


@case(TWIN)
def gathered(m: Maker) -> Tensor:
    index = m.build.const(np.array([[3, -1, 0], [2, 2, -4]], np.int64))
    return m.add("gather", m.x(3, 4, 5), index, axis=1)


@case()
def gathered_by_what_is_computed(m: Maker) -> Tensor:
    """More rows than the index list in SRAM has room for."""
    return m.add("gather", m.x(6, 3, dtype=I8), m.x(300, dtype=I32, low=-6, high=6), axis=0)


@case()
def picked_and_scattered(m: Maker) -> list[Tensor]:
    """Indices that cover only a part of the data, and operands whose rows are not dense."""
    x = m.add("transpose", m.un(Unary.NEG, m.x(4, 5)), perm=(1, 0))
    index = m.build.const(np.array([[0, -1, 2], [1, 0, 0]], np.int32))
    return [
        m.add("gather_elements", x, m.x(3, 4, dtype=I64, low=-5, high=5), axis=0),
        m.add("scatter_elements", x, index, m.x(2, 3), axis=1, reduction="none"),
        m.add("scatter_elements", x, index, m.c(2, 3), axis=0, reduction="add"),
    ]


@case(TWIN)
def sorted_rows(m: Maker) -> list[Tensor]:
    return m.build.add_all("topk", [m.x(8, 7, 6)], {"axis": 1, "k": 3, "largest": False})


@case(TWIN)
def firmware(m: Maker) -> list[Tensor]:
    """A routine of the scalar unit, tiled along its parallel axis."""
    keys = m.build.const(np.arange(-6, 9, 2, np.int32))
    return m.build.add_all("routine", [m.x(700, dtype=I32), keys], routine_attrs("npusim.search_keys"))


@case()
def firmware_cut_twice(m: Maker) -> list[Tensor]:
    """Tiled by boxes and by the points of each box; the boxes themselves stay whole."""
    boxes = m.build.const(np.array([[0, 0, 8, 8], [2, 2, 12, 6], [1, 1, 2, 2]], np.float32))
    return m.build.add_all("routine", [m.x(3, 4, 4, 30), boxes], routine_attrs("npusim.heatmap_peaks"))


@case(TWIN)
def row_of_operators(m: Maker) -> Tensor:
    """A group that ends in another operator than its anchor; some weight tiles stay while others change."""
    value = m.add("matmul", m.x(31, 40, dtype=I8), m.c(40, 60, dtype=I8), m.c(60, dtype=I32))
    return m.add("cast", m.bi(Binary.MAX, value, m.x(31, 1, dtype=I32)), to=I16)


@case()
def empty(m: Maker) -> list[Tensor]:
    """An operator without elements, next to one with elements."""
    x = m.x(0, 4)
    return [m.un(Unary.NEG, x), m.add("concat", x, m.x(2, 4), axis=0)]


# Orders and lifetimes


@case(ROOMY)
def image_between_layouts(m: Maker) -> Tensor:
    """Channels stay innermost from the first convolution to the last operator that accepts any layout."""
    value = m.add("conv", m.x(1, 3, 6, 6), m.c(4, 3, 3, 3), None, **WINDOW)
    value = m.add("softmax", m.un(Unary.HARD_SWISH, value), axis=3, log=False)
    return m.add("reshape", value, shape=(4, 16))


CASES["image_between_layouts"] = Case(image_between_layouts, ROOMY, exact=False)


@case()
def looked_up(m: Maker) -> Tensor:
    """Functions of bytes, computed with tables."""
    table = np.arange(-128, 128, dtype=np.int8)[::-1].tobytes()
    return m.add("lookup", m.x(3, 700, dtype=I8), to=I8, table=table)


@case()
def quantised_windows(m: Maker) -> list[Tensor]:
    """Pools, sums and interpolation that convert on reading and writing."""
    real = m.quantised(m.x(1, 4, 8, 8, dtype=I8), 0.25, 0)
    window = {"layout": "NCHW", "kernel": (2, 2), "stride": (2, 2), "dilation": (1, 1), "pads": (0, 0, 0, 0)}
    pooled = m.add("pool", real, fn="average", output_hw=(4, 4), count_include_pad=False, **window)
    summed = m.add("reduce", real, fn=Reduce.SUM, axes=(1,), keepdims=True)
    index, weight = m.build.const(np.array([[0, 1], [3, 4]], np.int32)), m.build.const(np.full((2, 2), 0.5, np.float32))
    between = m.add("resample", real, index, weight, axis=3)
    return [m.quantise(each, 0.5, 0, I8) for each in (pooled, summed, between)]


@case(TWIN)
def steps_of_several_operators(m: Maker) -> Tensor:
    """Loads run ahead across operators; scratch memory is reused."""
    value = m.x(8, 40)
    for number in range(4):
        value = m.add("reduce", m.bi(Binary.ADD, value, m.c(8, 40)), fn=Reduce.MAX, axes=(1,), keepdims=True)
        value = m.bi(Binary.MUL, m.add("expand", value, shape=(8, 40)), m.c(8, 40 if number % 2 else 1))
    return m.add("cumsum", value, axis=1, exclusive=False, reverse=False)
