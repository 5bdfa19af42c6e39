"""Models of one TFLite operator with inputs for it: floats, int8, uint8, int16 and floats with int8 weights."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.tflite_models import Given, Operator, Subgraph, const, model, single

Array = npt.NDArray[Any]
INTEGERS = ("int8", "uint8", "int16")
KINDS = ("float32", *INTEGERS)


@dataclass
class Case:
    """``data``: a model of one operator. ``arrays``: its inputs by name. ``hybrid``: floats with integer weights."""

    data: bytes
    arrays: Mapping[str, Array]
    hybrid: bool = False


class Maker:
    """Makes tensors of one element type; ``rng`` depends on the name of the case alone."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.rng = np.random.default_rng(zlib.crc32(f"{name} {kind}".encode()))
        self.arrays: dict[str, Array] = {}

    def quantised(self, scale: float, zero: int) -> dict[str, Any]:
        """Scale and zero point; ``scale`` is that of int8."""
        if self.kind == "float32":
            return {}
        if self.kind == "int16":
            return {"scale": scale / 256, "zero": 0}
        return {"scale": scale, "zero": zero + 128 * (self.kind == "uint8")}

    def values(self, shape: Sequence[int], low: float = -3.0, high: float = 3.0) -> Array:
        if self.kind == "float32":
            return self.rng.uniform(low, high, shape).astype(np.float32)
        info = np.iinfo(self.kind)
        return self.rng.integers(info.min, info.max, shape, np.dtype(self.kind), endpoint=True)

    def input(self, name: str, shape: Sequence[int], scale: float = 0.03, zero: int = 5, **range_: float) -> Given:
        self.arrays[name] = self.values(shape, **range_)
        return Given(name, shape, self.kind, **self.quantised(scale, zero))

    def constant(self, name: str, shape: Sequence[int], scale: float = 0.02, zero: int = -3, **range_: float) -> Given:
        return Given(name, shape, self.kind, data=self.values(shape, **range_), **self.quantised(scale, zero))

    def output(self, shape: Sequence[int], scale: float = 0.05, zero: int = -7) -> Given:
        return Given("y", shape, self.kind, **self.quantised(scale, zero))

    def weights(self, shape: Sequence[int], axis: int, per_channel: bool = True, fan: int = 0) -> Given:
        """Weights: floats, or int8 with a scale for each channel; those of uint8 have one and a zero point."""
        size = fan or math.prod(shape) // shape[axis]
        if self.kind == "float32":
            return Given("w", shape, data=(self.rng.normal(0, 1, shape) / math.sqrt(size)).astype(np.float32))
        if self.kind == "uint8":
            data = self.rng.integers(0, 255, shape, np.uint8, endpoint=True)
            return Given("w", shape, "uint8", 0.02 / math.sqrt(size), 120, data=data)
        data = self.rng.integers(-127, 127, shape, np.int8, endpoint=True)
        scale = self.rng.uniform(0.005, 0.02, shape[axis]) if per_channel else np.float32([0.01])
        return Given("w", shape, "int8", scale / math.sqrt(size), 0, axis, data=data)

    def bias(self, x: Given, w: Given, count: int) -> Given:
        if self.kind == "float32":
            return const("b", self.rng.normal(0, 0.3, count).astype(np.float32))
        kind = np.int64 if self.kind == "int16" else np.int32
        scale = np.float32(x.scale) * np.atleast_1d(np.float32(w.scale))
        data = np.rint(self.rng.normal(0, 0.5, count) / scale).astype(kind)
        return Given("b", (count,), np.dtype(kind).name, scale, 0, 0, data=data)


Make = Callable[[Maker], bytes]
_MAKERS: dict[str, tuple[Make, tuple[str, ...]]] = {}


def made(name: str, *kinds: str) -> Callable[[Make], Make]:
    """Register a case for these element types."""

    def decorate(make: Make) -> Make:
        _MAKERS[name] = make, kinds
        return make

    return decorate


def cases() -> Iterator[tuple[str, Case]]:
    """Every case by name."""
    for name, (make, kinds) in _MAKERS.items():
        for kind in kinds:
            maker = Maker(kind, name)
            data = make(maker)
            yield f"{name} {kind}", Case(data, maker.arrays, name.endswith("hybrid"))


# -- elements ---------------------------------------------------------------------------------------------------------


def _binary(name: str, kinds: Sequence[str], options: str = "", **values: int) -> None:
    @made(name + (" relu6" if values else ""), *kinds)
    def make(m: Maker) -> bytes:
        a, b = m.input("a", (2, 5, 7, 8)), m.input("b", (5, 1, 8), 0.02, -9)
        if name == "DIV":
            m.arrays["b"] = np.where(np.abs(m.arrays["b"]) < 0.2, 1, m.arrays["b"]).astype(m.arrays["b"].dtype)
        if name == "POW":
            m.arrays["a"] = np.abs(m.arrays["a"])
        scale = {"MUL": 0.06, "SQUARED_DIFFERENCE": 0.1}.get(name, 0.05)
        if name in ("MAXIMUM", "MINIMUM"):
            b.scale, b.zero, y = a.scale, a.zero, Given("y", (2, 5, 7, 8), m.kind, a.scale, a.zero)
            return single(name, [a, b, y], options)
        return single(name, [a, b, m.output((2, 5, 7, 8), scale)], options, **values)


for _name, _kinds in {
    "ADD": KINDS, "SUB": KINDS, "MUL": KINDS, "DIV": ("float32",), "POW": ("float32",),
    "SQUARED_DIFFERENCE": ("float32", "int8"), "MAXIMUM": KINDS, "MINIMUM": KINDS, "FLOOR_DIV": ("float32",),
    "FLOOR_MOD": ("float32",), "ATAN2": ("float32",),
}.items():  # fmt: skip
    _kind = f"{_name.title()}Options" if _name in ("ADD", "SUB", "MUL", "DIV") else ""
    _binary(_name, _kinds, _kind)
    if _name in ("ADD", "SUB", "MUL"):
        _binary(_name, ("float32", "int8", "uint8"), _kind, FusedActivationFunction=3)


def _unary(name: str, kinds: Sequence[str], scale: float = 0.03, zero: int = 0, options: str = "", **more: Any) -> None:
    @made(name + (" variant" if more else ""), *kinds)
    def make(m: Maker) -> bytes:
        positive = name in ("LOG", "SQRT", "RSQRT")
        x = m.input("x", (3, 17, 9), **({"low": 0.1} if positive else {}))
        if positive and m.kind != "float32":
            x.zero = np.iinfo(m.kind).min
            m.arrays["x"] = np.maximum(m.arrays["x"], x.zero + 4).astype(m.arrays["x"].dtype)
        return single(name, [x, m.output((3, 17, 9), scale, zero)], options, **more)


for _name, _kinds, *_rest in (
    ("ABS", ("float32", "int8"), 0.03, -128), ("CEIL", ("float32",)), ("COS", ("float32",)),
    ("EXP", ("float32", "int8"), 0.2, -128), ("FLOOR", ("float32",)),
    ("HARD_SWISH", ("float32", "int8", "uint8"), 0.02),
    ("LOG", ("float32",)), ("LOGISTIC", ("float32", "int8"), 1 / 256, -128), ("NEG", ("float32",)),
    ("ROUND", ("float32",)), ("RSQRT", ("float32",)), ("SIN", ("float32",)), ("SQRT", ("float32",)),
    ("SQUARE", ("float32",)), ("TANH", ("float32", "int8", "uint8"), 1 / 128), ("RELU", KINDS[:3], 0.02, -100),
    ("RELU6", KINDS[:3], 0.03, -100), ("RELU_N1_TO_1", ("float32",)), ("RELU_0_TO_1", ("float32",)),
    ("ELU", ("float32", "int8"), 0.03, -60), ("SIGN", ("float32",)),
):  # fmt: skip
    _unary(_name, _kinds, *_rest)
_unary("LEAKY_RELU", KINDS, 0.025, -30, "LeakyReluOptions", Alpha=0.3)
_unary("GELU", ("float32", "int8"), 0.03, -100, "GeluOptions", Approximate=False)
_unary("GELU", ("float32",), 0.03, -100, "GeluOptions", Approximate=True)


@made("PRELU", "float32", "int8", "uint8")
def _prelu(m: Maker) -> bytes:
    return single("PRELU", [m.input("x", (1, 6, 5, 8)), m.constant("a", (1, 1, 8)), m.output((1, 6, 5, 8), 0.06)])


@made("QUANTIZE", *INTEGERS)
def _quantize(m: Maker) -> bytes:
    m.arrays["x"] = m.rng.normal(0, 2, (4, 33)).astype(np.float32)
    return single("QUANTIZE", [Given("x", (4, 33)), m.output((4, 33))])


@made("REQUANTIZE", *INTEGERS)
def _requantize(m: Maker) -> bytes:
    return single("QUANTIZE", [m.input("x", (4, 33)), m.output((4, 33), 0.041)])


@made("DEQUANTIZE", *INTEGERS)
def _dequantize(m: Maker) -> bytes:
    return single("DEQUANTIZE", [m.input("x", (4, 33)), Given("y", (4, 33))])


for _name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):

    @made(_name, "float32", "int8")
    def _compare(m: Maker, name: str = _name) -> bytes:
        a, b = m.input("a", (4, 9)), m.input("b", (4, 9))
        m.arrays["b"][:, ::2] = m.arrays["a"][:, ::2]
        return single(name, [a, b, Given("y", (4, 9), "bool")])


for _name in ("LOGICAL_AND", "LOGICAL_OR"):

    @made(_name, "float32")
    def _logical(m: Maker, name: str = _name) -> bytes:
        m.arrays |= {side: m.rng.random((4, 9)) < 0.5 for side in "ab"}
        return single(name, [Given(side, (4, 9), "bool") for side in "aby"])


@made("SELECT_V2", "float32", "int8")
def _select(m: Maker) -> bytes:
    m.arrays["c"] = m.rng.random((4, 1)) < 0.5
    a, b = m.input("a", (4, 9)), m.input("b", (9,))
    return single("SELECT_V2", [Given("c", (4, 1), "bool"), a, b, Given("y", (4, 9), m.kind, a.scale, a.zero)])


@made("CAST", "float32")
def _cast(m: Maker) -> bytes:
    return single("CAST", [m.input("x", (4, 9)), Given("y", (4, 9), "int32")], "CastOptions")


# -- products ---------------------------------------------------------------------------------------------------------


def _conv_case(name: str, kinds: Sequence[str], image: Sequence[int], filters: Sequence[int], **options: int) -> None:
    @made(name, *kinds)
    def make(m: Maker) -> bytes:
        depthwise = name.startswith("DEPTHWISE")
        x, hybrid = m.input("x", image, 0.03, 5), name.endswith("hybrid")
        weights = m
        if hybrid:
            weights = Maker("int8", name)
        w = weights.weights(filters, 3 if depthwise else 0)
        values = {"Padding": 1, "StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, **options}
        kernel = [
            (taps - 1) * values[f"Dilation{side}Factor"] + 1 for taps, side in zip(filters[1:3], "HW", strict=True)
        ]
        steps = values["StrideH"], values["StrideW"]
        size = [
            -(-s // step) if values["Padding"] == 0 else (s - taps) // step + 1
            for s, step, taps in zip(image[1:3], steps, kernel, strict=True)
        ]
        channels = filters[3] if depthwise else filters[0]
        kind = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
        if depthwise:
            values["DepthMultiplier"] = channels // image[3]
        y = m.output((image[0], *size, channels), 0.04, -7)
        bias = m.bias(x, w, channels)
        return single(name.partition(" ")[0], [x, w, bias, y], kind, **values)


_conv_case("CONV_2D", KINDS, (2, 12, 9, 8), (16, 3, 3, 8), FusedActivationFunction=1)
_conv_case("CONV_2D same stride 2", KINDS, (1, 12, 9, 8), (16, 3, 2, 8), Padding=0, StrideH=2, StrideW=2)
_conv_case("CONV_2D dilated", ("float32", "int8"), (1, 12, 12, 4), (8, 3, 3, 4), DilationHFactor=2, DilationWFactor=3)
_conv_case("CONV_2D 1x1", KINDS, (1, 6, 6, 32), (24, 1, 1, 32), FusedActivationFunction=3)
_conv_case("CONV_2D grouped", ("float32",), (1, 6, 6, 8), (12, 3, 3, 4))
_conv_case("CONV_2D hybrid", ("float32",), (1, 8, 8, 16), (24, 3, 3, 16))
_conv_case("DEPTHWISE_CONV_2D", KINDS, (1, 12, 9, 16), (1, 3, 3, 16), Padding=0)
_conv_case("DEPTHWISE_CONV_2D multiplier", KINDS[:3], (1, 12, 9, 4), (1, 5, 3, 12), StrideH=2, StrideW=2)
_conv_case("DEPTHWISE_CONV_2D hybrid", ("float32",), (1, 8, 8, 16), (1, 3, 3, 16))


def _connected_case(name: str, kinds: Sequence[str], per_channel: bool, keep: bool = False) -> None:
    @made(name, *kinds)
    def make(m: Maker) -> bytes:
        hybrid = name.endswith("hybrid")
        x = m.input("x", (3, 4, 40) if keep else (12, 40))
        w = (Maker("int8", name) if hybrid else m).weights((24, 40), 0, per_channel)
        y = m.output((3, 4, 24) if keep else (12, 24), 0.04)
        kind, values = "FullyConnectedOptions", {"FusedActivationFunction": 1, "KeepNumDims": keep}
        return single("FULLY_CONNECTED", [x, w, m.bias(x, w, 24), y], kind, **values)


_connected_case("FULLY_CONNECTED", KINDS, False)
_connected_case("FULLY_CONNECTED per channel", ("int8",), True)
_connected_case("FULLY_CONNECTED keep", ("float32", "int8"), False, keep=True)
_connected_case("FULLY_CONNECTED hybrid", ("float32",), False)
_connected_case("FULLY_CONNECTED per channel hybrid", ("float32",), True)


@made("BATCH_MATMUL", "float32", "int8")
def _batch_matmul(m: Maker) -> bytes:
    a, b = m.input("a", (2, 3, 7, 16)), m.input("b", (3, 16, 9), 0.02, -4)
    return single("BATCH_MATMUL", [a, b, m.output((2, 3, 7, 9), 0.2)], "BatchMatMulOptions")


@made("BATCH_MATMUL transposed", "float32", "int8")
def _batch_matmul_transposed(m: Maker) -> bytes:
    a, b = m.input("a", (2, 16, 7)), m.input("b", (2, 9, 16), 0.02, -4)
    return single("BATCH_MATMUL", [a, b, m.output((2, 7, 9), 0.2)], "BatchMatMulOptions", AdjX=True, AdjY=True)


def _transpose_case(name: str, kinds: Sequence[str], out: Sequence[int], image: Sequence[int], padding: int) -> None:
    @made(name, *kinds)
    def make(m: Maker) -> bytes:
        x, w = m.input("x", image), m.weights((6, 3, 3, 8), 0)
        tensors = [const("s", np.int32(out)), w, x, m.bias(x, w, 6), m.output(out, 0.04)]
        return single("TRANSPOSE_CONV", tensors, "TransposeConvOptions", Padding=padding, StrideH=2, StrideW=2)


_transpose_case("TRANSPOSE_CONV", ("float32", "int8", "int16"), (1, 10, 8, 6), (1, 5, 4, 8), 0)
_transpose_case("TRANSPOSE_CONV valid", ("float32", "int8"), (1, 11, 9, 6), (1, 5, 4, 8), 1)


# -- images -----------------------------------------------------------------------------------------------------------

for _name in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):

    @made(_name, *KINDS)
    def _pool(m: Maker, name: str = _name) -> bytes:
        x = m.input("x", (1, 9, 8, 16))
        y = Given("y", (1, 5, 4, 16), m.kind, x.scale, x.zero)
        values = {"Padding": 0, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2}
        return single(name, [x, y], "Pool2DOptions", **values)


@made("L2_POOL_2D", "float32")
def _l2_pool(m: Maker) -> bytes:
    values = {"Padding": 1, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2}
    return single("L2_POOL_2D", [m.input("x", (1, 9, 8, 4)), m.output((1, 4, 4, 4))], "Pool2DOptions", **values)


for _name, _options in (
    ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
    ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
):
    for _align, _half in ((False, False), (True, False), (False, True)):

        @made(f"{_name}{' corners' * _align}{' half' * _half}", "float32", "int8")
        def _resize(m: Maker, name: str = _name, kind: str = _options, a: bool = _align, h: bool = _half) -> bytes:
            x = m.input("x", (1, 6, 5, 8))
            y = Given("y", (1, 13, 8, 8), m.kind, x.scale, x.zero)
            return single(name, [x, const("s", np.int32([13, 8])), y], kind, AlignCorners=a, HalfPixelCenters=h)


@made("DEPTH_TO_SPACE", "float32", "int8")
def _depth_to_space(m: Maker) -> bytes:
    x = m.input("x", (1, 3, 4, 8))
    y = Given("y", (1, 6, 8, 2), m.kind, x.scale, x.zero)
    return single("DEPTH_TO_SPACE", [x, y], "DepthToSpaceOptions", BlockSize=2)


@made("SPACE_TO_DEPTH", "float32", "int8")
def _space_to_depth(m: Maker) -> bytes:
    x = m.input("x", (1, 6, 8, 2))
    y = Given("y", (1, 3, 4, 8), m.kind, x.scale, x.zero)
    return single("SPACE_TO_DEPTH", [x, y], "SpaceToDepthOptions", BlockSize=2)


@made("SPACE_TO_BATCH_ND", "float32", "int8")
def _space_to_batch(m: Maker) -> bytes:
    x = m.input("x", (1, 5, 7, 3))
    y = Given("y", (6, 3, 3, 3), m.kind, x.scale, x.zero)
    block, pads = const("k", np.int32([2, 3])), const("p", np.int32([[0, 1], [1, 1]]))
    return single("SPACE_TO_BATCH_ND", [x, block, pads, y], "SpaceToBatchNDOptions")


@made("BATCH_TO_SPACE_ND", "float32", "int8")
def _batch_to_space(m: Maker) -> bytes:
    x = m.input("x", (6, 3, 3, 3))
    y = Given("y", (1, 5, 7, 3), m.kind, x.scale, x.zero)
    block, crops = const("k", np.int32([2, 3])), const("p", np.int32([[0, 1], [1, 1]]))
    return single("BATCH_TO_SPACE_ND", [x, block, crops, y], "BatchToSpaceNDOptions")


# -- movement ---------------------------------------------------------------------------------------------------------


def _moving(
    name: str, shape: Sequence[int], out: Sequence[int], *operands: Given, kind: str = "", title: str = "", **more: Any
) -> None:
    @made(title or name, "float32", "int8")
    def make(m: Maker) -> bytes:
        x = m.input("x", shape)
        return single(name, [x, *operands, Given("y", out, m.kind, x.scale, x.zero)], kind, **more)


def _i32(name: str, *numbers: Any) -> Given:
    return const(name, np.int32(numbers))


_moving("RESHAPE", (2, 3, 4), (6, 4), _i32("s", 6, -1))
_moving("RESHAPE", (2, 3, 4), (6, 4), kind="ReshapeOptions", title="RESHAPE option", NewShape=[-1, 4])
_moving("SQUEEZE", (1, 3, 1, 4), (3, 1, 4), kind="SqueezeOptions", SqueezeDims=[0])
_moving("EXPAND_DIMS", (3, 4), (3, 1, 4), const("a", np.int32(-2)))
_moving("TRANSPOSE", (2, 3, 4), (4, 2, 3), _i32("p", 2, 0, 1))
_moving("SLICE", (4, 5, 6), (2, 5, 3), _i32("b", 1, 0, 2), _i32("e", 2, -1, 3), kind="SliceOptions")
_moving("STRIDED_SLICE", (4, 5, 6), (2, 6), _i32("b", 3, 1, 0), _i32("e", 0, 2, 0), _i32("k", -2, 1, 1),
        kind="StridedSliceOptions", BeginMask=4, EndMask=4, ShrinkAxisMask=2)  # fmt: skip
_moving("STRIDED_SLICE", (4, 5, 6), (4, 1, 5, 2), _i32("b", 0, 0, 0, 1), _i32("e", 0, 0, 0, 5), _i32("k", 1, 1, 1, 2),
        kind="StridedSliceOptions", title="STRIDED_SLICE new axis", BeginMask=5, EndMask=5, NewAxisMask=2)  # fmt: skip
_moving("REVERSE_V2", (4, 5, 6), (4, 5, 6), _i32("a", 1))
_moving("PAD", (2, 3, 4), (3, 3, 7), _i32("p", [1, 0], [0, 0], [1, 2]))
_moving("MIRROR_PAD", (3, 4), (6, 6), _i32("p", [1, 2], [2, 0]), kind="MirrorPadOptions", Mode=0)
_moving(
    "MIRROR_PAD",
    (3, 4),
    (6, 6),
    _i32("p", [1, 2], [2, 0]),
    kind="MirrorPadOptions",
    title="MIRROR_PAD symmetric",
    Mode=1,
)
_moving("TILE", (2, 3), (4, 9), _i32("r", 2, 3))
_moving("BROADCAST_TO", (2, 1, 3), (2, 4, 3), _i32("s", 2, 4, 3))
_moving("GATHER", (5, 6, 3), (5, 2, 2, 3), _i32("i", [0, 5], [3, 3]), kind="GatherOptions", Axis=1)
_moving("GATHER", (2, 3, 6), (2, 3, 4), _i32("i", [0, 5, 2, 2], [3, 3, 1, 0]), kind="GatherOptions",
        title="GATHER batch", Axis=2, BatchDims=1)  # fmt: skip
_moving("GATHER_ND", (4, 5, 6), (3, 6), _i32("i", [0, 4], [3, 3], [1, 2]))
_moving(
    "REVERSE_SEQUENCE", (3, 5, 2), (3, 5, 2), _i32("n", 2, 5, 0), kind="ReverseSequenceOptions", SeqDim=1, BatchDim=0
)
_moving("ZEROS_LIKE", (3, 4), (3, 4))


@made("CONCATENATION", *KINDS[:3])
def _concatenation(m: Maker) -> bytes:
    a, b = m.input("a", (2, 3, 4)), m.input("b", (2, 5, 4), 0.02, 9)
    if m.kind != "float32":  # the kernels take other scales than the output's from uint8 alone
        b.scale, b.zero = a.scale, a.zero
    y = Given("y", (2, 8, 4), m.kind, a.scale, a.zero)
    return single("CONCATENATION", [a, b, y], "ConcatenationOptions", Axis=1)


@made("PACK", "float32", "int8")
def _pack(m: Maker) -> bytes:
    a, b = m.input("a", (2, 4)), m.input("b", (2, 4))
    return single("PACK", [a, b, Given("y", (2, 2, 4), m.kind, a.scale, a.zero)], "PackOptions", Axis=1, ValuesCount=2)


@made("UNPACK", "float32", "int8")
def _unpack(m: Maker) -> bytes:
    x = m.input("x", (2, 3, 4))
    outputs = [Given(f"y{n}", (2, 4), m.kind, x.scale, x.zero) for n in range(3)]
    return single("UNPACK", [x, *outputs], "UnpackOptions", 3, Axis=1, Num=3)


@made("SPLIT", "float32", "int8")
def _split(m: Maker) -> bytes:
    x = m.input("x", (2, 6))
    outputs = [Given(f"y{n}", (2, 2), m.kind, x.scale, x.zero) for n in range(3)]
    return single("SPLIT", [const("a", np.int32(1)), x, *outputs], "SplitOptions", 3, NumSplits=3)


@made("SPLIT_V", "float32", "int8")
def _split_v(m: Maker) -> bytes:
    x = m.input("x", (2, 6))
    outputs = [Given(f"y{n}", (2, n + 1), m.kind, x.scale, x.zero) for n in range(3)]
    tensors = [x, const("s", np.int32([1, 2, -1])), const("a", np.int32(1)), *outputs]
    return single("SPLIT_V", tensors, "SplitVOptions", 3, NumSplits=3)


@made("PADV2", "float32", "int8")
def _pad_v2(m: Maker) -> bytes:
    x = m.input("x", (2, 3))
    value = Given("v", (1,), m.kind, x.scale, x.zero, data=m.values((1,)))
    return single(
        "PADV2", [x, const("p", np.int32([[1, 0], [2, 1]])), value, Given("y", (3, 6), m.kind, x.scale, x.zero)]
    )


@made("EMBEDDING_LOOKUP", "float32")
def _embedding(m: Maker) -> bytes:
    ids, table = _i32("i", 3, 0, 3), m.input("t", (5, 6))
    return single("EMBEDDING_LOOKUP", [ids, table, m.output((3, 6))])


@made("SCATTER_ND", "float32")
def _scatter_nd(m: Maker) -> bytes:
    places = _i32("i", [0, 1], [2, 3], [0, 1])
    return single("SCATTER_ND", [places, m.input("u", (3, 2)), _i32("s", 3, 4, 2), m.output((3, 4, 2))])


@made("ONE_HOT", "float32")
def _one_hot(m: Maker) -> bytes:
    m.arrays["i"] = np.int32([[0, 3], [5, -1]])
    tensors = [
        Given("i", (2, 2), "int32"),
        const("d", np.int32(5)),
        const("on", np.float32(2)),
        const("off", np.float32(-1)),
    ]
    return single("ONE_HOT", [*tensors, m.output((2, 5, 2))], "OneHotOptions", Axis=1)


@made("DYNAMIC_UPDATE_SLICE", "float32")
def _update_slice(m: Maker) -> bytes:
    m.arrays["s"] = np.int32([0, 9])
    tensors = [m.input("x", (3, 8)), m.input("u", (3, 2)), Given("s", (2,), "int32"), m.output((3, 8))]
    return single("DYNAMIC_UPDATE_SLICE", tensors)


@made("FILL", "float32")
def _fill(m: Maker) -> bytes:
    return single("FILL", [_i32("s", 2, 3), m.input("v", ()), m.output((2, 3))])


# -- reductions -------------------------------------------------------------------------------------------------------


def _reduction(name: str, kinds: Sequence[str], keep: bool, axes: Sequence[int], out: Sequence[int]) -> None:
    @made(f"{name}{' keep' * keep}", *kinds)
    def make(m: Maker) -> bytes:
        x = m.input("x", (2, 6, 5, 8), **({"low": 0.5, "high": 1.5} if name == "REDUCE_PROD" else {}))
        y = m.output(out, {"MEAN": 0.01, "SUM": 0.2}.get(name, 0.03), 4)
        if name in ("REDUCE_MAX", "REDUCE_MIN"):
            y.scale, y.zero = x.scale, x.zero
        return single(name, [x, const("a", np.int32(axes)), y], "ReducerOptions", KeepDims=keep)


for _name, _kinds in (("MEAN", KINDS), ("SUM", ("float32", "int8")), ("REDUCE_MAX", KINDS[:3]),
                      ("REDUCE_MIN", KINDS[:3]), ("REDUCE_PROD", ("float32",))):  # fmt: skip
    _reduction(_name, _kinds, True, [1, 2], (2, 1, 1, 8))
    _reduction(_name, _kinds, False, [-1], (2, 6, 5))


for _name, _options in (("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")):

    @made(_name, "float32", "int8")
    def _arg(m: Maker, name: str = _name, kind: str = _options) -> bytes:
        tensors = [m.input("x", (3, 7, 9)), const("a", np.int32(1)), Given("y", (3, 9), "int32")]
        return single(name, tensors, kind, OutputType=2)


@made("TOPK_V2", "float32", "int8")
def _topk(m: Maker) -> bytes:
    x = m.input("x", (3, 11))
    m.arrays["x"] = np.stack([m.rng.permutation(11) for _ in range(3)]).astype(m.arrays["x"].dtype)
    outputs = [Given("v", (3, 4), m.kind, x.scale, x.zero), Given("i", (3, 4), "int32")]
    return single("TOPK_V2", [x, const("k", np.int32(4)), *outputs], outputs=2)


@made("CUMSUM", "float32")
def _cumsum(m: Maker) -> bytes:
    return single("CUMSUM", [m.input("x", (3, 11)), const("a", np.int32(1)), m.output((3, 11))], "CumsumOptions",
                  Exclusive=True, Reverse=True)  # fmt: skip


@made("SOFTMAX", *KINDS[:3])
def _softmax(m: Maker) -> bytes:
    return single("SOFTMAX", [m.input("x", (6, 17), 0.1), m.output((6, 17), 1 / 256, -128)], "SoftmaxOptions", Beta=1.0)


@made("LOG_SOFTMAX", "float32", "int8")
def _log_softmax(m: Maker) -> bytes:
    return single("LOG_SOFTMAX", [m.input("x", (6, 17)), m.output((6, 17), 16 / 256, 127)], "LogSoftmaxOptions")


@made("L2_NORMALIZATION", "float32", "int8")
def _l2_norm(m: Maker) -> bytes:
    return single("L2_NORMALIZATION", [m.input("x", (6, 17)), m.output((6, 17), 1 / 128, 0)], "L2NormOptions")


@made("LOCAL_RESPONSE_NORMALIZATION", "float32")
def _lrn(m: Maker) -> bytes:
    values = {"Radius": 2, "Bias": 1.0, "Alpha": 0.1, "Beta": 0.75}
    tensors = [m.input("x", (1, 3, 4, 9)), m.output((1, 3, 4, 9))]
    return single("LOCAL_RESPONSE_NORMALIZATION", tensors, "LocalResponseNormalizationOptions", **values)


# -- recurrent ---------------------------------------------------------------------------------------------------------


def _lstm_case(name: str, *, hybrid: bool = False, coupled: bool = False, peephole: bool = False, project: bool = False,
               major: bool = False, steps: int = 5) -> None:  # fmt: skip
    @made(name, "float32")
    def make(m: Maker) -> bytes:
        batches, size, units = 2, 6, 8
        outputs = 4 if project else units
        weights = Maker("int8", name) if hybrid else m
        shape = (steps, batches, size) if major else (batches, steps, size)
        tensors: list[Given] = [m.input("x", shape)]
        places: list[int] = [0]

        def add(tensor: Given | None) -> None:
            places.append(-1 if tensor is None else len(tensors))
            tensors.extend([] if tensor is None else [tensor])

        def named(tensor: Given) -> Given:
            tensor.name = f"w{len(tensors)}"
            return tensor

        def vector(count: int) -> Given:
            return named(const("v", m.rng.normal(0, 0.3, count).astype(np.float32)))

        for width in (size, outputs):
            for gate in range(4):
                add(None if coupled and gate == 0 else named(weights.weights((units, width), 0, per_channel=False)))
        for gate in range(3):
            add(vector(units) if peephole and not (coupled and gate == 0) else None)
        for gate in range(4):
            add(None if coupled and gate == 0 else vector(units))
        add(named(weights.weights((outputs, units), 0, per_channel=False)) if project else None)
        add(vector(outputs) if project else None)
        add(Given("h", (batches, outputs), variable=True))
        add(Given("c", (batches, units), variable=True))
        for _ in range(4):
            add(None)
        tensors.append(Given("y", (*shape[:2], outputs)))
        options = {"FusedActivationFunction": 4, "CellClip": 0.7 if peephole else 0.0, "TimeMajor": major}
        kind = "UnidirectionalSequenceLSTMOptions"
        operator = Operator("UNIDIRECTIONAL_SEQUENCE_LSTM", places, [len(tensors) - 1], kind, options)
        return model([Subgraph(tensors, [operator], [0], [len(tensors) - 1])])


def _integer_lstm_case(name: str, *, coupled: bool = False, peephole: bool = False, project: bool = False) -> None:
    @made(name, "int8")
    def make(m: Maker) -> bytes:
        """int8 with a state of int16."""
        batches, steps, size, units = 2, 6, 5, 8
        outputs = 4 if project else units
        tensors: list[Given] = [Given("x", (batches, steps, size), "int8", 0.02, 3)]
        m.arrays["x"] = m.rng.integers(-128, 127, tensors[0].shape, np.int8, endpoint=True)
        places: list[int] = [0]
        hidden = (1 / 128, -5) if project else (0.007, 2)
        state = (0.01, 4) if project else hidden

        def add(shape: Sequence[int] | None, kind: str, scale: float, most: float = 127.0) -> None:
            places.append(-1 if shape is None else len(tensors))
            if shape is not None:
                data = np.clip(np.rint(m.rng.normal(0, most / 3, shape)), -most, most).astype(kind)
                tensors.append(Given(f"w{len(tensors)}", shape, kind, scale, data=data))

        scales = [0.008, 0.012, 0.01, 0.009]
        for width, factor in ((size, 1.1), (outputs, 0.9)):
            for gate in range(4):
                add(None if coupled and gate == 0 else (units, width), "int8", scales[gate] * factor)
        for gate in range(3):
            add((units,) if peephole and not (coupled and gate == 0) else None, "int16", 1e-4, 9000.0)
        for gate in range(4):
            add(None if coupled and gate == 0 else (units,), "int32", 0.02 * scales[gate] * 1.1, 3000.0)
        add((outputs, units) if project else None, "int8", 0.006)
        add((outputs,) if project else None, "int32", 0.006 * hidden[0], 3000.0)
        places += [len(tensors), len(tensors) + 1]
        tensors.append(Given("h", (batches, outputs), "int8", *state, variable=True))
        tensors.append(Given("c", (batches, units), "int16", 2.0**-11, variable=True))
        places += [-1] * 4
        between = len(tensors)
        tensors += [Given(f"i{place}", (), "int16", 2.0**-12) for place in range(4)]
        tensors.append(Given("i4", (), "int8", *hidden))
        tensors.append(Given("y", (batches, steps, outputs), "int8", *state))
        options = {"FusedActivationFunction": 4, "CellClip": 0.0}
        kind = "UnidirectionalSequenceLSTMOptions"
        operator = Operator(
            "UNIDIRECTIONAL_SEQUENCE_LSTM", places, [len(tensors) - 1], kind, options,
            intermediates=range(between, between + 5),
        )  # fmt: skip
        return model([Subgraph(tensors, [operator], [0], [len(tensors) - 1])])


_integer_lstm_case("UNIDIRECTIONAL_SEQUENCE_LSTM integer")
_integer_lstm_case("UNIDIRECTIONAL_SEQUENCE_LSTM integer coupled", coupled=True)
_integer_lstm_case("UNIDIRECTIONAL_SEQUENCE_LSTM integer projection", project=True)
_integer_lstm_case("UNIDIRECTIONAL_SEQUENCE_LSTM integer peephole", peephole=True)
_lstm_case("UNIDIRECTIONAL_SEQUENCE_LSTM")
_lstm_case("UNIDIRECTIONAL_SEQUENCE_LSTM major coupled", major=True, coupled=True)
_lstm_case("UNIDIRECTIONAL_SEQUENCE_LSTM peephole projection", peephole=True, project=True)
_lstm_case("UNIDIRECTIONAL_SEQUENCE_LSTM hybrid", hybrid=True)
_lstm_case("UNIDIRECTIONAL_SEQUENCE_LSTM in a loop", steps=20, project=True)


@made("UNIDIRECTIONAL_SEQUENCE_RNN", "float32")
def _rnn(m: Maker) -> bytes:
    tensors = [m.input("x", (2, 5, 6)), m.weights((8, 6), 0), m.weights((8, 8), 0), m.constant("b", (8,)),
               Given("h", (2, 8), variable=True), m.output((2, 5, 8))]  # fmt: skip
    return single("UNIDIRECTIONAL_SEQUENCE_RNN", tensors, "SequenceRNNOptions", FusedActivationFunction=4)


@made("SVDF", "float32")
def _svdf(m: Maker) -> bytes:
    tensors = [m.input("x", (2, 6)), m.weights((8, 6), 0), m.constant("t", (8, 5)), m.constant("b", (4,)),
               Given("s", (2, 40), variable=True), m.output((2, 4))]  # fmt: skip
    return single("SVDF", tensors, "SVDFOptions", Rank=2, FusedActivationFunction=1)


@made("MATRIX_DIAG", "float32")
def _matrix_diag(m: Maker) -> bytes:
    return single("MATRIX_DIAG", [m.input("x", (3, 4)), m.output((3, 4, 4))], "MatrixDiagOptions")


for _shape in ((2, 3, 5), (2, 5, 3), (2, 4, 4)):

    @made(f"MATRIX_SET_DIAG {_shape[1]} {_shape[2]}", "float32")
    def _matrix_set_diag(m: Maker, shape: tuple[int, ...] = _shape) -> bytes:
        tensors = [m.input("x", shape), m.input("d", (2, min(shape[1:]))), m.output(shape)]
        return single("MATRIX_SET_DIAG", tensors, "MatrixSetDiagOptions")


CUSTOM = struct.pack("<3i", 1, 2, 2)
"""Options of Convolution2DTransposeBias: SAME, strides of 2."""


def transposed_bias(m: Maker, name: str) -> bytes:
    """MediaPipe's transposed convolution, or the builtin operator with the same meaning."""
    x, w = m.input("x", (1, 5, 4, 8)), m.weights((6, 3, 3, 8), 0)
    b, y = m.bias(x, w, 6), m.output((1, 10, 8, 6))
    if name == "TRANSPOSE_CONV":
        tensors = [const("s", np.int32([1, 10, 8, 6])), w, x, b, y]
        return single(name, tensors, "TransposeConvOptions", Padding=0, StrideH=2, StrideW=2)
    operator = Operator("CUSTOM:Convolution2DTransposeBias", [0, 1, 2], [3], custom=CUSTOM)
    return model([Subgraph([x, w, b, y], [operator], [0], [3])])
