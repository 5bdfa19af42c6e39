"""Each kind by hand: output shapes and types, contradictions, refused types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from npusim.dtypes import DType
from npusim.errors import InputError, ModelError, UnsupportedError
from npusim.graph import Tensor
from npusim.isa.base import Unit
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.base import REGISTRY
from npusim.ops.build import GraphBuilder
from tests.support.graphs.single_operator import run

BOOL, I8, U8, I16, U16, I32, I64, F16, BF16, F32, F64 = (
    DType.BOOL, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.INT64, DType.FLOAT16,
    DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64,
)  # fmt: skip
Operands = Sequence[tuple[tuple[int, ...], DType] | None]


def made(kind: str, operands: Operands, **attrs: Any) -> list[tuple[tuple[int, ...], DType]]:
    """Return shapes and types of the outputs."""
    build = GraphBuilder("g")
    tensors: list[Tensor | None] = []
    for index, entry in enumerate(operands):
        if entry is None:
            tensors.append(None)
        elif kind == "resample" and index:
            tensors.append(build.const(np.zeros(entry[0], entry[1].storage), dtype=entry[1]))
        else:
            tensors.append(build.input(f"x{index}", *entry))
    return [(tensor.shape, tensor.dtype) for tensor in build.add_all(kind, tensors, attrs)]


WINDOW = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0)}
CONV = {**WINDOW, "groups": 1}
POOL = {**WINDOW, "fn": "max", "kernel": (2, 3), "output_hw": (4, 4)}
IMAGE, NHWC = ((2, 6, 5, 6), F32), ((2, 5, 6, 6), F32)
PAD = {"mode": "constant", "value": 0}

SHAPES: list[tuple[str, Operands, dict[str, Any], list[tuple[tuple[int, ...], DType]]]] = [
    ("unary", [((2, 3), I8)], {"fn": Unary.NEG}, [((2, 3), I8)]),
    ("unary", [((2, 3), F16)], {"fn": Unary.ISINF}, [((2, 3), BOOL)]),
    ("binary", [((2, 1), I8), ((3, 1, 4), I8)], {"fn": Binary.ADD}, [((3, 2, 4), I8)]),
    ("binary", [((2,), F16), ((), F16)], {"fn": Binary.GE}, [((2,), BOOL)]),
    ("select", [((2, 1), BOOL), ((3,), I64), ((), I64)], {}, [((2, 3), I64)]),
    ("cast", [((4,), I64)], {"to": BF16}, [((4,), BF16)]),
    ("quantize", [((4, 2), F16), ((2,), F32), ((4, 1), I32)], {"to": U16}, [((4, 2), U16)]),
    ("dequantize", [((4, 2), I8), ((), F32), ((), I32)], {"to": F16}, [((4, 2), F16)]),
    # (5 + 1 + 2 - 5) / 2 + 1 and (6 + 0 + 3 - 3) / 3 + 1
    (
        "conv", [IMAGE, ((4, 3, 3, 3), F32), ((4,), F32)],
        {**CONV, "groups": 2, "stride": (2, 3), "dilation": (2, 1), "pads": (1, 0, 2, 3)}, [((2, 4, 2, 3), F32)],
    ),
    ("conv", [((2, 5, 6, 6), U8), ((4, 6, 5, 6), I16)], {**CONV, "layout": "NHWC"}, [((2, 1, 1, 4), I32)]),
    ("conv", [((1, 1, 1, 1), I8), ((1, 1, 1, 1), I8), ((1,), I32)], CONV, [((1, 1, 1, 1), I32)]),
    # (5 - 1) * 2 + 3 - 1 - 1 and (6 - 1) * 3 + 3, one more of which is possible
    (
        "conv_transpose", [IMAGE, ((6, 2, 3, 2), F32), ((4,), F32)],
        {**CONV, "groups": 2, "stride": (2, 3), "dilation": (1, 2), "pads": (1, 0, 1, 0), "output_hw": (9, 19)},
        [((2, 4, 9, 19), F32)],
    ),
    (
        "conv_transpose", [NHWC, ((6, 2, 1, 1), F32)], {**CONV, "layout": "NHWC", "output_hw": (5, 6)},
        [((2, 5, 6, 2), F32)],
    ),
    ("matmul", [((3, 1, 4, 5), I8), ((2, 5, 6), U8), ((6,), I32)], {}, [((3, 2, 4, 6), I32)]),
    ("matmul", [((4, 5), F16), ((5, 6), F16)], {}, [((4, 6), F16)]),
    ("pool", [IMAGE], POOL, [((2, 6, 4, 4), F32)]),
    ("pool", [NHWC], {**POOL, "layout": "NHWC", "output_hw": (5, 6)}, [((2, 5, 6, 6), F32)]),
    ("reduce", [((2, 3, 4), I16)], {"fn": Reduce.SUM, "axes": (0, 2), "keepdims": True}, [((1, 3, 1), I16)]),
    ("reduce", [((2, 3, 4), I16)], {"fn": Reduce.SUM, "axes": (0, 2), "keepdims": False}, [((3,), I16)]),
    (
        "arg_reduce", [((2, 3, 4), I16)], {"fn": "max", "axis": 1, "keepdims": False, "select_last": False},
        [((2, 4), I64)],
    ),
    ("topk", [((2, 3), F16)], {"axis": 1, "k": 3, "largest": True}, [((2, 3), F16), ((2, 3), I64)]),
    ("topk", [((2, 3), F16)], {"axis": 0, "k": 0, "largest": True}, [((0, 3), F16), ((0, 3), I64)]),
    ("resample", [((2, 3), I8), ((5, 2), I32), ((5, 2), F32)], {"axis": 1}, [((2, 5), I8)]),
    ("softmax", [((2, 3), F16)], {"axis": 1, "log": False}, [((2, 3), F16)]),
    ("normalize", [((2, 3), F16)], {"axis": 1, "mode": "rms", "epsilon": 0.0}, [((2, 3), F16)]),
    ("cumsum", [((2, 3), I8)], {"axis": 0, "exclusive": False, "reverse": False}, [((2, 3), I8)]),
    ("lrn", [((2, 3), F16)], {"axis": 1, "size": 1, "alpha": 1.0, "beta": 1.0, "bias": 1.0}, [((2, 3), F16)]),
    ("reshape", [((2, 6), I8)], {"shape": (3, 1, 4)}, [((3, 1, 4), I8)]),
    ("transpose", [((2, 3, 4), I8)], {"perm": (2, 0, 1)}, [((4, 2, 3), I8)]),
    ("slice", [((5, 6), I8)], {"starts": (4, 1), "steps": (-2, 2), "sizes": (3, 3)}, [((3, 3), I8)]),
    ("slice", [((5, 6), I8)], {"starts": (9, 0), "steps": (1, 5), "sizes": (0, 2)}, [((0, 2), I8)]),
    ("concat", [((2, 3), I8), ((2, 0), I8), ((2, 1), I8)], {"axis": 1}, [((2, 4), I8)]),
    ("pad", [((2, 3), I8)], {**PAD, "before": (1, 0), "after": (0, 2)}, [((3, 5), I8)]),
    ("pad", [((2, 3), I8)], {**PAD, "before": (1, 2), "after": (1, 0), "mode": "reflect"}, [((4, 5), I8)]),
    ("pad", [((2, 3), I8)], {**PAD, "before": (2, 3), "after": (0, 0), "mode": "wrap"}, [((4, 6), I8)]),
    ("pad", [((1, 0), I8)], {**PAD, "before": (9, 0), "after": (0, 0), "mode": "edge"}, [((10, 0), I8)]),
    ("expand", [((2, 1), I8)], {"shape": (3, 2, 4)}, [((3, 2, 4), I8)]),
    ("windows", [((2, 9, 3), I8)], {"axis": 1, "size": 4, "step": 2}, [((3, 2, 4, 3), I8)]),
    ("gather", [((2, 3, 4), I8), ((5, 6), I32)], {"axis": 1}, [((2, 5, 6, 4), I8)]),
    ("gather_elements", [((2, 3), I8), ((1, 7), I64)], {"axis": 1}, [((1, 7), I8)]),
    ("scatter_elements", [((2, 3), I8), ((1, 7), I64), ((1, 7), I8)], {"axis": 1, "reduction": "min"}, [((2, 3), I8)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "operands", "attrs", "wanted"), SHAPES)
def test_shapes_and_types(
    kind: str, operands: Operands, attrs: dict[str, Any], wanted: list[tuple[tuple[int, ...], DType]]
) -> None:
    assert made(kind, operands, **attrs) == wanted


REFUSED: list[tuple[str, Operands, dict[str, Any], str]] = [
    ("binary", [((2,), I8), ((3,), I8)], {"fn": Binary.ADD}, r"shapes \[2\] and \[3\] do not broadcast"),
    ("binary", [((2,), I8), ((2,), U8)], {"fn": Binary.ADD}, "operands must have the same type, got int8, uint8"),
    ("binary", [((2,), I8)], {"fn": Binary.ADD}, "takes 2 inputs, got 1"),
    ("binary", [((2,), I8)] * 3, {"fn": Binary.ADD}, "takes 2 inputs, got 3"),
    ("binary", [((2,), I8), None], {"fn": Binary.ADD}, "input 1 is required"),
    ("binary", [((2,), I8)] * 2, {}, "attribute 'fn' is required"),
    ("binary", [((2,), I8)] * 2, {"fn": Binary.ADD, "more": 1}, "unknown attribute 'more'; binary has fn"),
    ("concat", [], {"axis": 0}, "takes 1 to"),
    ("concat", [((2,), I8), None], {"axis": 0}, "input 1 is required"),
    ("concat", [((2, 3), I8), ((3, 3), I8)], {"axis": 1}, "differ outside axis 1"),
    ("concat", [((2, 3), I8), ((2, 3, 1), I8)], {"axis": 1}, "differ outside axis 1"),
    ("concat", [((2, 3), I8), ((2, 4), I8)], {"axis": 0}, "differ outside axis 0"),
    ("concat", [((2, 3), I8)], {"axis": 2}, r"axis must be in \[0, 2\), got 2"),
    ("concat", [((2, 3), I8)], {"axis": -1}, r"axis must be in \[0, 2\), got -1"),
    ("concat", [((2, 3), I8), ((2, 3), U8)], {"axis": 0}, "the same type"),
    ("select", [((2,), I8)] * 3, {}, "the condition must be bool, got int8"),
    ("select", [((2,), BOOL), ((2,), I8), ((2,), U8)], {}, "the same type"),
    ("quantize", [((2,), F32), ((2,), F16), ((2,), I32)], {"to": U8}, "scale must be float32 and zero int32"),
    ("quantize", [((2,), F32), ((2,), F32), ((2,), I8)], {"to": U8}, "scale must be float32 and zero int32"),
    ("quantize", [((2,), F32), ((3, 2), F32), ((), I32)], {"to": U8}, r"must broadcast to x \[2\]"),
    ("conv", [IMAGE, ((4, 3, 3, 3), F32)], CONV, "do not fit 6 channels in 1 groups"),
    ("conv", [IMAGE, ((3, 3, 3, 3), F32)], {**CONV, "groups": 2}, "do not fit 6 channels in 2 groups"),
    ("conv", [IMAGE, ((3, 3, 3, 3), F32)], {**CONV, "groups": 0}, "do not fit 6 channels in 0 groups"),
    ("conv", [IMAGE, ((3, 6, 3), F32)], CONV, "weights must be"),
    ("conv", [IMAGE, ((3, 6, 0, 3), F32)], CONV, "weights must be"),
    ("conv", [IMAGE, ((3, 6, 6, 3), F32)], CONV, "a window of .* does not fit into 5 x 6"),
    ("conv", [IMAGE, ((3, 6, 1, 4), F32)], {**CONV, "dilation": (1, 2)}, "a window of .* does not fit into 5 x 6"),
    ("conv", [((6, 5, 6), F32), ((3, 6, 1, 1), F32)], CONV, "an image must have 4 dimensions"),
    ("conv", [IMAGE, ((3, 6, 1, 1), F32)], {**CONV, "layout": "CHWN"}, "layout must be NCHW or NHWC, got 'CHWN'"),
    ("conv", [IMAGE, ((3, 6, 1, 1), F32)], {**CONV, "stride": (1, 0)}, "stride must be 2 integers >= 1"),
    ("conv", [IMAGE, ((3, 6, 1, 1), F32)], {**CONV, "dilation": (0, 1)}, "dilation must be 2 integers >= 1"),
    ("conv", [IMAGE, ((3, 6, 1, 1), F32)], {**CONV, "stride": (1,)}, "stride must be 2 integers >= 1"),
    ("conv", [IMAGE, ((3, 6, 1, 1), F32)], {**CONV, "pads": (0, 0, 0, -1)}, "pads must be 4 integers >= 0"),
    ("conv", [IMAGE, ((3, 6, 1, 1), F32), ((4,), F32)], CONV, r"bias must be float32\[3\], got float32\[4\]"),
    ("conv", [IMAGE, ((3, 6, 1, 1), F32), ((3,), F16)], CONV, r"bias must be float32\[3\], got float16\[3\]"),
    ("conv_transpose", [IMAGE, ((5, 2, 1, 1), F32)], {**CONV, "output_hw": (5, 6)}, r"weights must be \[6, O/1"),
    ("conv_transpose", [IMAGE, ((6, 2, 1), F32)], {**CONV, "output_hw": (5, 6)}, r"weights must be \[6, O/1"),
    ("conv_transpose", [IMAGE, ((6, 0, 1, 1), F32)], {**CONV, "output_hw": (5, 6)}, r"weights must be \[6, O/1"),
    (
        "conv_transpose", [IMAGE, ((6, 2, 1, 1), F32)], {**CONV, "groups": 4, "output_hw": (5, 6)},
        r"weights must be \[6, O/4",
    ),
    ("conv_transpose", [IMAGE, ((6, 2, 1, 1), F32)], {**CONV, "output_hw": (4, 6)}, "from 5 to 5, got 4"),
    ("conv_transpose", [IMAGE, ((6, 2, 1, 1), F32)], {**CONV, "output_hw": (5, 7)}, "from 6 to 6, got 7"),
    (
        "conv_transpose", [IMAGE, ((6, 2, 1, 1), F32)],
        {**CONV, "pads": (3, 0, 2, 0), "stride": (1, 3), "output_hw": (0, 16)}, ">= 1 and from 0 to 0, got 0",
    ),
    (
        "conv_transpose", [IMAGE, ((6, 2, 1, 1), F32), ((1,), F32)], {**CONV, "output_hw": (5, 6)},
        r"bias must be float32\[2\]",
    ),
    ("matmul", [((4,), F32), ((4, 5), F32)], {}, "at least 2 dimensions"),
    ("matmul", [((4, 5), F32), ((5,), F32)], {}, "at least 2 dimensions"),
    ("matmul", [((4, 5), F32), ((4, 5), F32)], {}, r"inner dimensions differ: \[4, 5\] x \[4, 5\]"),
    ("matmul", [((2, 4, 5), F32), ((3, 5, 4), F32)], {}, "do not broadcast"),
    ("matmul", [((4, 5), F32), ((5, 6), F32), ((5,), F32)], {}, r"bias must be float32\[6\]"),
    ("pool", [IMAGE], {**POOL, "fn": "min"}, "fn must be one of max, average, l2, got 'min'"),
    ("pool", [IMAGE], {**POOL, "kernel": (2,)}, "kernel must be 2 integers >= 1"),
    ("pool", [IMAGE], {**POOL, "kernel": (2, 0)}, "kernel must be 2 integers >= 1"),
    ("pool", [IMAGE], {**POOL, "output_hw": (6, 4)}, "does not fit an image of 5 x 6"),
    ("pool", [IMAGE], {**POOL, "output_hw": (4, 7)}, "does not fit an image of 5 x 6"),
    ("pool", [IMAGE], {**POOL, "output_hw": (4, 0)}, "does not fit an image of 5 x 6"),
    ("reduce", [((2, 3), I8)], {"fn": Reduce.SUM, "axes": (2,), "keepdims": True}, r"axis must be in \[0, 2\)"),
    ("reduce", [((2, 3), I8)], {"fn": Reduce.SUM, "axes": (1, 0), "keepdims": True}, "must be sorted and distinct"),
    ("reduce", [((2, 3), I8)], {"fn": Reduce.SUM, "axes": (1, 1), "keepdims": True}, "must be sorted and distinct"),
    (
        "arg_reduce", [((2, 0), I8)], {"fn": "max", "axis": 1, "keepdims": True, "select_last": False},
        r"axis 1 of \[2, 0\] is empty",
    ),
    ("topk", [((2, 3), I8)], {"axis": 1, "k": 4, "largest": True}, r"k must be in \[0, 3\], got 4"),
    ("topk", [((2, 3), I8)], {"axis": 1, "k": -1, "largest": True}, r"k must be in \[0, 3\], got -1"),
    ("resample", [((2, 3), I8), ((5,), I32), ((5,), F32)], {"axis": 1}, r"must be \[n, taps\]"),
    ("resample", [((2, 3), I8), ((5, 2), I32), ((5, 1), F32)], {"axis": 1}, r"must be \[n, taps\]"),
    ("resample", [((2, 3), I8), ((5, 2), I64), ((5, 2), F32)], {"axis": 1}, "index must be int32 and weight float32"),
    ("resample", [((2, 3), I8), ((5, 2), I32), ((5, 2), F16)], {"axis": 1}, "index must be int32 and weight float32"),
    ("resample", [((2, 0), I8), ((5, 2), I32), ((5, 2), F32)], {"axis": 1}, "index 0 is outside axis 1"),
    ("normalize", [((2, 3), F16)], {"axis": 1, "mode": "mean", "epsilon": 0.0}, "mode must be layer or rms"),
    ("lrn", [((2, 3), F16)], {"axis": 1, "size": 0, "alpha": 1.0, "beta": 1.0, "bias": 1.0}, "size must be >= 1"),
    ("reshape", [((2, 6), I8)], {"shape": (3, 5)}, r"cannot reshape \[2, 6\] \(12 elements\) to \[3, 5\]"),
    ("reshape", [((2, 6), I8)], {"shape": (-3, -4)}, "dimensions must be >= 0"),
    ("transpose", [((2, 3), I8)], {"perm": (0, 0)}, "perm must be a permutation of 2 dimensions"),
    ("slice", [((5,), I8)], {"starts": (0, 0), "steps": (1,), "sizes": (1,)}, "must have 1 entries each"),
    ("slice", [((5,), I8)], {"starts": (0,), "steps": (1,), "sizes": (1, 1)}, "must have 1 entries each"),
    ("slice", [((5,), I8)], {"starts": (3,), "steps": (1,), "sizes": (3,)}, "do not fit into a dimension of 5"),
    ("slice", [((5,), I8)], {"starts": (5,), "steps": (-1,), "sizes": (2,)}, "do not fit into a dimension of 5"),
    ("slice", [((5,), I8)], {"starts": (1,), "steps": (-1,), "sizes": (3,)}, "do not fit into a dimension of 5"),
    ("slice", [((5,), I8)], {"starts": (-1,), "steps": (1,), "sizes": (2,)}, "do not fit into a dimension of 5"),
    ("slice", [((5,), I8)], {"starts": (1,), "steps": (0,), "sizes": (1,)}, "in steps of 0 do not fit"),
    ("slice", [((5,), I8)], {"starts": (1,), "steps": (1,), "sizes": (-1,)}, "do not fit into a dimension of 5"),
    ("pad", [((2, 3), I8)], {**PAD, "before": (1,), "after": (0, 2)}, "before and after must have 2 entries >= 0"),
    ("pad", [((2, 3), I8)], {**PAD, "before": (1, 0), "after": (0, -2)}, "before and after must have 2 entries >= 0"),
    ("pad", [((2, 3), I8)], {**PAD, "before": (0, 0), "after": (0, 0), "mode": "x"}, "mode must be one of"),
    ("pad", [((2, 3), I8)], {**PAD, "before": (2, 0), "after": (0, 0), "mode": "reflect"}, "is at most 1 on a side"),
    ("pad", [((2, 3), I8)], {**PAD, "before": (0, 0), "after": (3, 0), "mode": "wrap"}, "is at most 2 on a side"),
    ("pad", [((2, 0), I8)], {**PAD, "before": (0, 1), "after": (0, 0), "mode": "edge"}, "is at most 0 on a side"),
    ("windows", [((2, 3), I8)], {"axis": 1, "size": 4, "step": 1}, r"windows of 4 .* do not fit into \[2, 3\]"),
    ("windows", [((2, 3), I8)], {"axis": 2, "size": 1, "step": 1}, "along axis 2 do not fit"),
    ("windows", [((2, 3), I8)], {"axis": 0, "size": 1, "step": 0}, "in steps of 0"),
    ("expand", [((2, 3), I8)], {"shape": (2, 1)}, r"cannot expand \[2, 3\] to \[2, 1\]"),
    ("expand", [((2, 3), I8)], {"shape": (-2, 3)}, "dimensions must be >= 0"),
    ("gather", [((2, 3), I8), ((5,), I16)], {"axis": 1}, "indices must be int32 or int64, got int16"),
    ("gather", [((2, 3), I8), ((5,), I32)], {"axis": 2}, "axis must be in"),
    ("gather_elements", [((2, 3), I8), ((3, 3), I32)], {"axis": 1}, "are larger than .* outside axis 1"),
    ("gather_elements", [((2, 3), I8), ((3,), I32)], {"axis": 1}, "indices must have 2 dimensions"),
    (
        "scatter_elements", [((2, 3), I8), ((1, 3), I32), ((1, 2), I8)], {"axis": 1, "reduction": "none"},
        "must have the indices' shape",
    ),
    (
        "scatter_elements", [((2, 3), I8), ((1, 3), I32), ((1, 3), U8)], {"axis": 1, "reduction": "none"}, "same type",
    ),
    (
        "scatter_elements", [((2, 3), I8), ((1, 3), I32), ((1, 3), I8)], {"axis": 1, "reduction": "sub"},
        "reduction must be one of none, add, mul, max, min, got 'sub'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "operands", "attrs", "message"), REFUSED)
def test_contradictions_are_refused(kind: str, operands: Operands, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        made(kind, operands, **attrs)


# Types that a kind takes, of all that there are

INTEGERS, FLOATS = {I8, U8, I16, U16, I32, DType.UINT32, I64, DType.UINT64} & set(DType), {F16, BF16, F32, F64}
SMALL = {I8, U8, I16}
ROW = {"axis": 0}
TAKEN: list[tuple[str, int, dict[str, Any], set[DType]]] = [
    ("unary", 1, {"fn": Unary.SQUARE}, INTEGERS | FLOATS),
    ("unary", 1, {"fn": Unary.IDENTITY}, set(DType)),
    ("unary", 1, {"fn": Unary.EXP}, FLOATS),
    ("unary", 1, {"fn": Unary.NOT}, {BOOL}),
    ("unary", 1, {"fn": Unary.BITWISE_NOT}, INTEGERS),
    ("binary", 2, {"fn": Binary.ADD}, INTEGERS | FLOATS),
    ("binary", 2, {"fn": Binary.SQUARED_DIFFERENCE}, INTEGERS | FLOATS),
    ("binary", 2, {"fn": Binary.EQ}, set(DType)),
    ("binary", 2, {"fn": Binary.XOR}, {BOOL}),
    ("binary", 2, {"fn": Binary.BIT_XOR}, INTEGERS),
    ("binary", 2, {"fn": Binary.SHR}, INTEGERS),
    ("reduce", 1, {"fn": Reduce.SUM, "axes": (0,), "keepdims": True}, INTEGERS | FLOATS),
    ("reduce", 1, {"fn": Reduce.MIN, "axes": (0,), "keepdims": True}, set(DType)),
    ("reduce", 1, {"fn": Reduce.ALL, "axes": (0,), "keepdims": True}, {BOOL}),
    ("reduce", 1, {"fn": Reduce.L2, "axes": (0,), "keepdims": True}, FLOATS),
    ("reduce", 1, {"fn": Reduce.L1, "axes": (0,), "keepdims": True}, INTEGERS | FLOATS),
    ("arg_reduce", 1, {**ROW, "fn": "max", "keepdims": True, "select_last": False}, INTEGERS | FLOATS),
    ("topk", 1, {**ROW, "k": 1, "largest": True}, INTEGERS | FLOATS),
    ("softmax", 1, {**ROW, "log": False}, FLOATS),
    ("normalize", 1, {**ROW, "mode": "rms", "epsilon": 0.0}, FLOATS),
    ("cumsum", 1, {**ROW, "exclusive": False, "reverse": False}, INTEGERS | FLOATS),
    ("lrn", 1, {**ROW, "size": 1, "alpha": 1.0, "beta": 1.0, "bias": 1.0}, FLOATS),
    ("concat", 2, ROW, set(DType)),
]


@pytest.mark.parametrize(("kind", "count", "attrs", "wanted"), TAKEN)
def test_types(kind: str, count: int, attrs: dict[str, Any], wanted: set[DType]) -> None:
    taken = set()
    for dtype in DType:
        try:
            made(kind, [((2, 2), dtype)] * count, **attrs)
        except UnsupportedError:
            continue
        taken.add(dtype)
    assert taken == wanted


def accepts(kind: str, operands: Operands, **attrs: Any) -> bool:
    try:
        made(kind, operands, **attrs)
    except UnsupportedError:
        return False
    return True


def test_types_of_products() -> None:
    """A ModelError is raised for operands whose sum has no type."""
    for x in DType:
        floats, integers = x.is_float, x in SMALL
        assert accepts("matmul", [((2, 2), x)] * 2) == (floats or integers or x is I32), x
        assert accepts("conv", [((1, 1, 1, 1), x)] * 2, **CONV) == (floats or integers), x
        assert accepts("pool", [((1, 1, 5, 6), x)], **POOL) == (x is not BOOL), x
        assert accepts("pool", [((1, 1, 5, 6), x)], **{**POOL, "fn": "l2"}) == floats, x
        small = x in INTEGERS and x.itemsize <= 4
        assert accepts("pool", [((1, 1, 5, 6), x)], **{**POOL, "fn": "average"}) == (floats or small), x
        elements = [((2,), x), ((2,), I32), ((2,), x)]
        assert accepts("scatter_elements", elements, axis=0, reduction="none"), x
        assert accepts("scatter_elements", elements, axis=0, reduction="add") == (x is not BOOL), x
        tables = [((2, 2), x), ((1, 1), I32), ((1, 1), F32)]
        assert accepts("resample", tables, axis=0) == (x is not BOOL), x
        parameters = [((), F32), ((), I32)]
        assert accepts("quantize", [((2,), x), *parameters], to=U8) == (floats or x is I32), x
        assert accepts("quantize", [((2,), F32), *parameters], to=x) == (x in {I8, U8, I16, U16}), x
        assert accepts("dequantize", [((2,), x), *parameters], to=F16) == (x in {I8, U8, I16, U16, I32, I64}), x
        assert accepts("dequantize", [((2,), I8), *parameters], to=x) == floats, x
    assert accepts("matmul", [((2, 2), I8), ((2, 2), I16)])


def test_zero_points_fit_their_types() -> None:
    pairs = [((2, 2), I8), ((2, 2), U8)]
    for x_zero, w_zero, wanted in (
        (-128, 0, True), (-129, 0, False), (127, 255, True), (128, 0, False), (0, 256, False), (0, -1, False),
    ):  # fmt: skip
        assert accepts("matmul", pairs, x_zero=x_zero, w_zero=w_zero) == wanted
    assert not accepts("matmul", [((2, 2), F32)] * 2, x_zero=1)
    assert not accepts("matmul", [((2, 2), F32)] * 2, w_zero=1)
    assert not accepts("matmul", [((2, 2), I8), ((2, 2), I16)], w_zero=1)


def test_tables_that_are_computed_are_refused() -> None:
    build = GraphBuilder("g")
    x, index = build.input("x", (2,), F32), build.input("i", (1, 1), I32)
    table = build.const(np.ones((1, 1), np.float32))
    with pytest.raises(UnsupportedError, match="the index and weight tables are constants"):
        build.add("resample", [x, index, table], {"axis": 0})


def test_units() -> None:
    """The unit that computes a kind; if it depends on attributes, they are given."""
    units = {name: kind.unit for name, kind in REGISTRY.items() if isinstance(kind.unit, Unit)}
    assert {name for name, unit in units.items() if unit is Unit.MATRIX} == {"conv", "conv_transpose", "matmul"}
    assert {name for name, unit in units.items() if unit is Unit.SCALAR} == {
        "gather_elements", "scatter_elements", "topk",
    }  # fmt: skip
    assert {name for name, unit in units.items() if unit is Unit.DMA} == {
        "reshape", "transpose", "slice", "expand", "concat", "pad", "gather", "windows", "repeat",
    }  # fmt: skip
    routine = REGISTRY["routine"]
    assert routine.unit_of({"name": "npusim.roi_align", "version": 1}) is Unit.VECTOR
    assert routine.unit_of({"name": "npusim.box_nms", "version": 1}) is Unit.SCALAR


# Values where rules have an edge


def test_integers_divide_as_c_does() -> None:
    a, b = np.array([7, -7, 7, -7, 5, -128], np.int8), np.array([2, 2, -2, -2, 0, 3], np.int8)
    np.testing.assert_array_equal(run("binary", a, b, fn=Binary.DIV), [3, -3, -3, 3, 0, -42])
    np.testing.assert_array_equal(run("binary", a, b, fn=Binary.MOD), [1, 1, -1, -1, 0, 1])
    np.testing.assert_array_equal(run("binary", a, b, fn=Binary.FMOD), [1, -1, 1, -1, 0, -2])


def test_integer_powers() -> None:
    a, b = np.array([2, -3, 2, 1, -1, -1, 0, 9], np.int32), np.array([5, 3, -1, -4, -3, -2, 0, 0], np.int32)
    np.testing.assert_array_equal(run("binary", a, b, fn=Binary.POW), [32, -27, 0, 1, -1, 1, 1, 1])


def test_shifts_of_too_many_bits() -> None:
    a, b = np.array([-5, -5, 5, 5, -128], np.int8), np.array([1, 8, -1, 7, 7], np.int8)
    np.testing.assert_array_equal(run("binary", a, b, fn=Binary.SHR), [-3, -1, 0, 0, -1])
    np.testing.assert_array_equal(run("binary", a, b, fn=Binary.SHL), [-10, 0, 0, -128, 0])


def test_clip_of_integers_does_not_wrap() -> None:
    x = np.array([-100, 0, 100], np.int8)
    np.testing.assert_array_equal(run("unary", x, fn=Unary.CLIP, p0=-1000.0, p1=5.7), [-100, 0, 5])
    np.testing.assert_array_equal(run("unary", x, fn=Unary.CLIP, p0=-3.5, p1=1000.0), [-3, 0, 100])


def test_casts_saturate_truncate_and_wrap() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 2.9, -2.9, 300, -300, 127, -128], np.float32)
    np.testing.assert_array_equal(run("cast", x, to=I8), [0, 127, -128, 2, -2, 127, -128, 127, -128])
    np.testing.assert_array_equal(run("cast", x, to=BOOL), [True] * 9)
    np.testing.assert_array_equal(run("cast", np.array([300, -1, 0], np.int32), to=U8), [44, 255, 0])
    np.testing.assert_array_equal(run("cast", np.array([2.0**63, -(2.0**70), 7.0]), to=I64), [2**63 - 1, -(2**63), 7])


def test_indices_out_of_range_are_named() -> None:
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(run("gather", x, np.array([-3, 2], np.int32), axis=0), [0, 2])
    for index in (-4, 3):
        with pytest.raises(InputError, match=rf"an index is outside \[-3, 3\): the indices span {index} to {index}"):
            run("gather", x, np.array([index], np.int32), axis=0)
    assert run("gather", x, np.zeros(0, np.int32), axis=0).shape == (0,)
