"""Each instruction by hand: its code, the bytes it accesses, its hardware work, and its result."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim._core import Strided
from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.base import INSTRUCTIONS, Access, Instruction, is_dram, region, space_of, sram
from npusim.isa.control import Halt
from npusim.isa.dma import Copy, Fetch, Fill, Gather
from npusim.isa.functions import Binary, Reduce, Unary, binary_cost, unary_cost
from npusim.isa.matrix import Conv, Depthwise
from npusim.isa.matrix_extras import NOTHING
from npusim.isa.matrix_types import accumulator_type, rate_type, weight_zeros
from npusim.isa.reduction import ArgReduce, CumProd, CumSum, Lrn, Normalize, Pool, ReduceTile, Resample, Softmax
from npusim.isa.scalar import GatherElements, Scatter, TopK
from npusim.isa.vector import BinaryOp, Cast, Dequantize, Quantize, Select, UnaryOp
from npusim.work import ControlWork, DmaWork, MatrixWork, ScalarWork, VectorWork, Work, walked_runs

F32, F16, I8, U8, I16, I32, I64, BOOL = (
    DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64, DType.BOOL,
)  # fmt: skip
INF = float("inf")
Array = npt.NDArray[Any]

# Codes: cached streams depend on them. A change needs another ISA_VERSION.

CODES = """
01 halt <
10 dma.copy <Q4qQ4q4IB4I4IQ
11 dma.fill <Q4q4IBQ
12 dma.gather <Q3qQ3qQqB3IIB
13 dma.multicast <Q4qQ4q4IB4I4IQQ
14 dma.expand <QQQQB
15 dma.expand_multicast <QQQQBQ
16 dma.exchange <Q4qQ4q4IB4I4IQBQ
17 dma.fetch <Q4qQ4q4IB4I4IQ
20 matrix.conv <BBBQ3qQqQ3qIIIIIHHHHHHhh??Q3qQQIfidd
21 matrix.depthwise <BBBQqqQQqqIIIIHHHHHHhh??QqqQQIfidd
30 vector.unary <BBQ4qQ4q4Idd
31 vector.binary <BBQ4qQ4qQ4q4I
33 vector.select <BQ4qQ4qQ4qQ4q4I
34 vector.cast <BQ4qBQ4q4I
35 vector.quantize <BQ4qBQ4qQ4qQ4q4I
36 vector.dequantize <BQ4qBQ4qQ4qQ4q4I
37 vector.lookup <BQ4qBQ4qQ4I
40 vector.reduce <BBQ4qQ4q4I??Q4qI
41 vector.arg_reduce <BQ3qQ3q3IB?
42 vector.softmax <BQ3qQ3q3I??
43 vector.normalize <BQ3qQ3q3I?d
44 vector.cumsum <BQ3qQ3q3I??
45 vector.lrn <BQ3qQ3q3IIddd
46 vector.pool <BBQ3qQ3qIIIIIHHHHHH4I?
47 vector.resample <BQ3qQ3q3IIQQI
48 vector.routine <
49 vector.cumprod <BQ3qQ3q3I??
4b vector.pool_quantised <BBQ3qQ3qIIIIIHHHHHH4I?fifiB
4c vector.reduce_quantised <BBQ4qQ4q4I??Q4qIfifiB
4d vector.resample_quantised <BQ3qQ3q3IIQQIfifiB
50 scalar.gather_elements <BQ3qQ3qBQ3q3II
51 scalar.scatter <BQ3qQ3qBQ3q3IIB
52 scalar.topk <BQ3qQ3qQ3q3II?
53 scalar.routine <
"""
UNARY = (
    "IDENTITY RELU CLIP LEAKY_RELU ELU SELU CELU SOFTPLUS SOFTSIGN SIGMOID HARD_SIGMOID HARD_SWISH TANH GELU GELU_TANH "
    "MISH THRESHOLDED_RELU SILU EXP LOG SQRT RSQRT RECIPROCAL NEG ABS SIGN FLOOR CEIL ROUND ERF SIN COS TAN ASIN ACOS "
    "ATAN SINH COSH ASINH ACOSH ATANH NOT BITWISE_NOT ISNAN ISINF SHRINK SQUARE"
)
BINARY = (
    "ADD SUB MUL DIV POW MIN MAX MOD FMOD EQ NE LT LE GT GE AND OR XOR BIT_AND BIT_OR BIT_XOR SHL SHR PRELU "
    "SQUARED_DIFFERENCE"
)
SIMPLE = [
    "IDENTITY",
    "RELU",
    "CLIP",
    "LEAKY_RELU",
    "HARD_SIGMOID",
    "HARD_SWISH",
    "THRESHOLDED_RELU",
    "NEG",
    "ABS",
    "SIGN",
    "FLOOR",
    "CEIL",
    "ROUND",
    "NOT",
    "BITWISE_NOT",
    "ISNAN",
    "ISINF",
    "SHRINK",
    "SQUARE",
]


def test_codes_stay_what_they_are() -> None:
    lines = [f"{op:02x} {cls.mnemonic} {cls.layout.format}" for op, cls in sorted(INSTRUCTIONS.items())]
    recorded = CODES.split("\n")[1:-1]
    assert [line for line in lines if line in recorded] == recorded  # new ones may come
    assert [(fn.name, fn.value) for fn in Unary] == [(name, i) for i, name in enumerate(UNARY.split())]
    assert [(fn.name, fn.value) for fn in Binary] == [(name, i) for i, name in enumerate(BINARY.split())]
    reduce = ["SUM", "MEAN", "MAX", "MIN", "PROD", "L1", "L2", "SUM_SQUARE", "ANY", "ALL"]
    assert [(fn.name, fn.value) for fn in Reduce] == [(name, i) for i, name in enumerate(reduce)]


def test_cost_classes_of_functions() -> None:
    assert sorted(fn.name for fn in Unary if unary_cost(fn) == "simple") == sorted(SIMPLE)
    assert {fn.name for fn in Unary if unary_cost(fn) == "divide"} == {"SOFTSIGN", "RECIPROCAL"}
    assert {fn.name for fn in Unary if unary_cost(fn) == "sqrt"} == {"SQRT", "RSQRT"}
    assert {unary_cost(fn) for fn in Unary} == {"simple", "divide", "sqrt", "transcendental"}
    assert {fn.name for fn in Binary if binary_cost(fn) == "divide"} == {"DIV", "MOD", "FMOD"}
    assert [fn.name for fn in Binary if binary_cost(fn) == "transcendental"] == ["POW"]
    assert {binary_cost(fn) for fn in Binary} == {"simple", "divide", "transcendental"}


def test_addresses_name_their_memories() -> None:
    assert (space_of(region(0)), space_of(region(3)), space_of(sram(5))) == (16, 19, 0)
    assert [is_dram(at) for at in (sram(9), 1 << 48, 15 << 48, region(0), region(7))] == [False] * 3 + [True] * 2


def test_types_that_are_multiplied() -> None:
    assert [accumulator_type(t, t) for t in (F32, F16, DType.BFLOAT16, I8, U8, I16, I32)] == [F32] * 3 + [I32] * 4
    assert accumulator_type(U8, I16) is I32
    for pair in ((F32, F16), (I32, I8), (I8, I32), (F32, I32), (I64, I64), (BOOL, BOOL)):
        with pytest.raises(ProgramError, match="matrix unit cannot multiply"):
            accumulator_type(*pair)
    assert (rate_type(I8, I16), rate_type(I16, I8), rate_type(I8, U8)) == (I16, I16, I8)
    assert (weight_zeros(I8), weight_zeros(U8), weight_zeros(I16)) == ((-128, 127), (0, 255), (0, 0))


# Contiguous pieces


@pytest.mark.parametrize(
    ("dims", "strides", "wanted"),
    [
        ((2, 3), (12, 4), (1, 24, 0)),  # dense
        ((2, 3), (16, 4), (2, 12, 16)),  # rows apart
        ((2, 3), (4, 8), (6, 4, 8)),  # dense, but walked across its rows
        ((3, 2), (-8, 4), (3, 8, 8)),  # rows backwards
        ((3, 2), (8, -4), (6, 4, 4)),  # elements backwards
        ((5, 3), (0, 4), (1, 12, 0)),  # read again
        ((4, 3), (100, 20), (12, 4, 20)),  # every element alone
        ((2, 2, 2), (64, 8, 4), (2, 16, 64)),
        ((1, 3), (999, 4), (1, 12, 0)),
        ((2, 4, 3), (48, 6, 12), (24, 4, 12)),
        ((2, 3, 4), (12, 4, 0), (1, 24, 0)),  # each element again
    ],
)
def test_walked_runs(dims: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, int, int]) -> None:
    assert walked_runs(dims, strides, 4) == wanted


# Accesses and work of instructions that are as different in every dimension as can be

Q = [0x100 * number for number in range(1, 8)]
CONV = Conv(
    U8, I8, I16, Q[0], (500, 40, 4), Q[1], 99, Q[2], (1000, 200, 40), 2, 3, 5, 7, 4, 2, 3, 2, 1, 1, 2, 5, -6, True,
    True, Q[3], (600, 140, 28), Q[4], Q[5], 4, 0.5, 1, -INF, INF,
)  # fmt: skip
DEPTHWISE = Depthwise(
    F16, F16, F32, Q[0], 50, 8, Q[1], Q[2], 200, 40, 3, 5, 4, 2, 2, 3, 2, 1, 1, 2, 0, 0, False, True, Q[3], 160, 32,
    Q[4], Q[5], 0, 1.0, 0, 0.0, 6.0,
)  # fmt: skip
W4, V4 = (0, 24, 8, 4), (0, -24, 8, 4)
UNARY_OP = UnaryOp(Unary.ISNAN, F32, Q[0], (0, 6, 2, 1), Q[1], V4, (1, 3, 3, 2), 0.0, 0.0)
BINARY_OP = BinaryOp(Binary.LT, I16, Q[0], (0, 0, 4, 1), Q[1], (0, 0, 0, 2), Q[2], (0, 0, 8, 2), (1, 1, 3, 4))
SELECT = Select(F32, Q[0], W4, Q[1], (0, 0, 2, 1), Q[2], (0, 24, 0, 4), Q[3], W4, (1, 2, 3, 2))
CAST = Cast(F16, Q[0], (0, 0, 0, 2), I64, Q[1], (0, 0, 0, 8), (1, 1, 1, 7))
QUANTIZE = Quantize(
    U8, Q[0], (0, 0, 5, 1), F32, Q[1], (0, 0, 20, 4), Q[2], (0, 0, 4, 0), Q[3], (0, 0, 0, 0), (1, 1, 3, 5)
)
REDUCE = ReduceTile(
    Reduce.MEAN, F16, Q[0], (0, 16, 0, 8), Q[1], (0, 20, 10, 2), (1, 3, 4, 2), False, True, Q[2], (0, 4, 0, 2), 8
)
ARG = ArgReduce(F32, Q[0], (16, 16, 8), Q[1], (40, 8, 4), (3, 5, 2), 1, True)
SOFTMAX = Softmax(F16, Q[0], (20, 4, 2), Q[1], (24, 4, 2), (3, 5, 2), False, False)
POOL = Pool(1, I8, Q[0], (24, 8, 1), Q[1], (30, 6, 1), 7, 5, 3, 2, 6, 4, 3, 2, 1, 1, 2, (1, 1, 0, 0), True)
RESAMPLE = Resample(F32, Q[0], (40, 8, 4), Q[1], (32, 8, 4), (3, 5, 2), 4, Q[2], Q[3], 2)
ELEMENTS = GatherElements(2, Q[0], (20, 4, 2), Q[1], (28, 4, 2), I64, Q[2], (80, 16, 8), (3, 5, 2), 7)
SCATTER = Scatter(F32, Q[0], (56, 8, 4), Q[1], (40, 8, 4), I32, Q[2], (44, 8, 4), (3, 5, 2), 7, 1)
TOPK = TopK(F16, Q[0], (12, 4, 2), Q[1], (48, 16, 8), Q[2], (28, 4, 2), (3, 7, 2), 3, True)
COPY = Copy(region(2, 70), (0, 100, 20, 4), sram(0x40), (0, -24, 8, 4), (1, 2, 3, 2), 4, (0, 0, 1, 0), (0, 1, 0, 2), 0)
LOAD = Copy(sram(0), (0, 24, 8, 4), region(1, 200), (0, -48, 12, 4), (1, 3, 3, 2), 4, (0,) * 4, (0,) * 4, 0)
WITHIN = Copy(sram(0), (0, 0, 8, 4), sram(64), (0, 0, 16, 4), (1, 1, 3, 2), 4, (0,) * 4, (0,) * 4, 0)
FETCH = Fetch(sram(0), (0, 32, 8, 4), region(1, 200), (0, 24, 8, 4), (1, 3, 3, 2), 4, (0, 0, 0, 0), (0, 0, 1, 0), 0)
FILL = Fill(region(0, 130), (0, 0, 16, 2), (1, 1, 5, 4), 2, 0)
GATHER = Gather(region(3), (40, 8, 4), region(2), (60, 12, 4), Q[0], 8, I64, (2, 5, 2), 6, 4)

ACCESSES: list[tuple[Instruction, list[tuple[int, int, int, bool]]]] = [
    (Halt(), []),
    # rows of input (3 - 1) * 2 + (2 - 1) * 1, columns (5 - 1) * 1 + (3 - 1) * 2; 24 weights of each channel
    (CONV, [
        (Q[0], 0, 500 + 5 * 40 + 8 * 4 + 4, False), (Q[1], 0, 99 + 24 * 7, False),
        (Q[2], 0, 1000 + 400 + 160 + 28, True), (Q[4], 0, 56, False), (Q[5], 0, 56, False),
        (Q[3], 0, 600 + 280 + 112 + 14, True),
    ]),
    (DEPTHWISE, [
        (Q[0], 0, 5 * 50 + 8 * 8 + 8, False), (Q[1], 0, 6 * 8 * 2, False), (Q[2], 0, 400 + 160 + 32, True),
        (Q[4], 0, 32, False), (Q[5], 0, 4, False), (Q[3], 0, 320 + 128 + 32, True),
    ]),
    (UNARY_OP, [(Q[1], -48, 16 + 4 + 4, False), (Q[0], 0, 18, True)]),
    (BINARY_OP, [(Q[1], 0, 8, False), (Q[2], 0, 24, False), (Q[0], 0, 12, True)]),
    (SELECT, [(Q[1], 0, 6, False), (Q[2], 0, 32, False), (Q[3], 0, 48, False), (Q[0], 0, 48, True)]),
    (CAST, [(Q[1], 0, 56, False), (Q[0], 0, 14, True)]),
    (QUANTIZE, [(Q[1], 0, 60, False), (Q[2], 0, 12, False), (Q[3], 0, 4, False), (Q[0], 0, 15, True)]),
    (REDUCE, [(Q[1], 0, 40 + 30 + 2 + 2, False), (Q[0], 0, 48, True), (Q[2], 0, 8 + 2 + 2, True)]),
    (ARG, [(Q[1], 0, 80 + 32 + 8, False), (Q[0], 0, 32 + 8 + 8, True)]),
    (SOFTMAX, [(Q[1], 0, 48 + 16 + 4, False), (Q[0], 0, 40 + 16 + 4, True)]),
    (POOL, [(Q[1], 0, 6 * 30 + 4 * 6 + 6, False), (Q[0], 0, 2 * 24 + 8 + 6, True)]),
    (RESAMPLE, [
        (Q[1], 0, 64 + 24 + 8, False), (Q[2], 0, 40, False), (Q[3], 0, 40, False), (Q[0], 0, 80 + 32 + 8, True),
    ]),
    (ELEMENTS, [(Q[1], 0, 56 + 24 + 4, False), (Q[2], 0, 160 + 64 + 16, False), (Q[0], 0, 40 + 16 + 4, True)]),
    (SCATTER, [(Q[1], 0, 120, False), (Q[2], 0, 88 + 32 + 8, False), (Q[0], 0, 112 + 48 + 8, True)]),
    (TOPK, [(Q[2], 0, 56 + 24 + 4, False), (Q[0], 0, 24 + 8 + 4, True), (Q[1], 0, 96 + 32 + 16, True)]),
    # with padding the destination is 3 x 4 x 4
    (COPY, [(sram(0x40), -24, 16 + 4 + 4, False), (region(2, 70), 0, 200 + 60 + 12 + 4, True)]),
    (FILL, [(region(0, 130), 0, 64 + 6 + 2, True)]),
    (GATHER, [(region(2), 0, 60 + 60 + 8, False), (Q[0], 0, 40, False), (region(3), 0, 40 + 32 + 8, True)]),
]  # fmt: skip

WORK: list[tuple[Instruction, Work]] = [
    (Halt(), ControlWork()),
    (CONV, MatrixWork(U8, 2, 3, 5, 7, 4, 2, 3, False, True, True, 2)),
    (DEPTHWISE, MatrixWork(F16, 1, 3, 5, 8, 4, 2, 3, True, False, True, 4)),
    (UNARY_OP, VectorWork("simple", F32, 18, 1, 18 * 4 + 18)),
    (BINARY_OP, VectorWork("simple", I16, 12, 1, 4 * 2 + 12 * 2 + 12)),
    (SELECT, VectorWork("simple", F32, 12, 1, 6 + 4 * 4 + 12 * 4 + 12 * 4)),
    (CAST, VectorWork("convert", I64, 7, 1, 7 * 8 + 7 * 2)),
    (QUANTIZE, VectorWork("convert", F32, 15, 1, 15 * 4 + 15 + 3 * 4 + 4)),
    (REDUCE, VectorWork("reduce", F16, 24 + 6, 1, (24 + 6) * 2)),
    (ARG, VectorWork("reduce", F32, 30, 1, 30 * 4 + 6 * 8)),
    (SOFTMAX, VectorWork("transcendental", F16, 30, 3, 4 * 60)),
    (Normalize(F16, 0, (0,) * 3, 0, (0,) * 3, (3, 5, 2), False, 0.0), VectorWork("simple", F16, 30, 3, 4 * 60)),
    (Normalize(F16, 0, (0,) * 3, 0, (0,) * 3, (3, 5, 2), True, 0.0), VectorWork("simple", F16, 30, 2, 3 * 60)),
    (CumSum(F16, 0, (0,) * 3, 0, (0,) * 3, (3, 5, 2), False, False), VectorWork("reduce", F16, 30, 1, 2 * 60)),
    (CumProd(F16, 0, (0,) * 3, 0, (0,) * 3, (3, 5, 2), False, False), VectorWork("reduce", F16, 30, 1, 2 * 60)),
    (Lrn(F32, 0, (0,) * 3, 0, (0,) * 3, (3, 5, 2), 3, 1, 1, 1), VectorWork("transcendental", F32, 30, 2, 3 * 120)),
    # of four rows 3, 4 and 4 are on the image, of three columns 2 and 3
    (POOL, VectorWork("reduce", I8, 6 * 11 * 5, 1, 7 * 5 * 6 + 36)),
    (RESAMPLE, VectorWork("simple", F32, 60, 1, (24 + 30) * 4 + 10 * 8)),
    (ELEMENTS, ScalarWork(30, 30 * (2 + 2 + 8))),
    (SCATTER, ScalarWork(30, 30 * (4 + 4 + 4))),
    # a heap of three: two comparisons an element
    (TOPK, ScalarWork(42 * 2, 42 * 2 + 18 * (8 + 2))),
    (TopK(F16, 0, (0,) * 3, 0, (0,) * 3, 0, (0,) * 3, (3, 7, 2), 1, True), ScalarWork(42, 84 + 6 * 10)),
    (TopK(F16, 0, (0,) * 3, 0, (0,) * 3, 0, (0,) * 3, (3, 7, 2), 4, True), ScalarWork(84, 84 + 24 * 10)),
    # 12 rows of 16 bytes, 20 apart; 70 is 6 after a multiple of 64
    (COPY, DmaWork(192, 12, 16, 0, 192, 20, 6, pieces=2, piece_bytes=24)),
    # 9 pieces of 8 bytes, 12 apart; backwards from 200, so from 104, which is 40 after a multiple of 64
    (LOAD, DmaWork(72, 9, 8, 72, 0, 12, 40)),
    (WITHIN, DmaWork(24, 3, 8, 0, 0)),
    # Nine pixels, each of them a run, without the pixel of padding.
    (FETCH, DmaWork(72, 9, 8, 72, 0, features=True)),
    (FILL, DmaWork(40, 5, 8, 0, 40, 16, 2)),
    (Fill(sram(3), (0, 0, 16, 2), (1, 1, 5, 4), 2, 0), DmaWork(40, 1, 40, 0, 0)),
    (GATHER, DmaWork(80, 10, 8, 80, 80)),
    (Gather(Q[1], (40, 8, 4), Q[2], (60, 12, 6), Q[0], 8, I64, (2, 5, 2), 6, 4), DmaWork(80, 20, 4, 0, 0)),
]


@pytest.mark.parametrize(("instruction", "wanted"), ACCESSES, ids=lambda v: getattr(v, "mnemonic", ""))
def test_accesses(instruction: Instruction, wanted: list[tuple[int, int, int, bool]]) -> None:
    assert [*instruction.accesses()] == [Access(*access) for access in wanted]


@pytest.mark.parametrize(("instruction", "wanted"), WORK, ids=lambda v: getattr(v, "mnemonic", ""))
def test_work(instruction: Instruction, wanted: Work) -> None:
    assert instruction.work() == wanted


def test_macs() -> None:
    assert CONV.work().macs == 2 * 3 * 5 * 7 * 4 * 2 * 3  # type: ignore[union-attr]
    assert DEPTHWISE.work().macs == 3 * 5 * 8 * 2 * 3  # type: ignore[union-attr]


def test_of_two_sides_in_dram_the_one_with_more_pieces_counts() -> None:
    both = Copy(region(1), (0, 0, 32, 4), region(2), (0, 0, 8, 4), (1, 1, 3, 2), 4, (0,) * 4, (0,) * 4, 0)
    assert both.work() == DmaWork(24, 3, 8, 24, 24, 32, 0)
    repeated = Copy(region(1), (0, 0, 8, 4), region(2, 8), (0, 0, 0, 4), (1, 1, 3, 2), 4, (0,) * 4, (0,) * 4, 0)
    assert repeated.work() == DmaWork(24, 1, 24, 8, 24, 0, 0)
    nothing = Copy(region(1), (0, 0, 8, 4), region(2, 8), (0, 0, 0, 4), (1, 1, 0, 2), 4, (0,) * 4, (0,) * 4, 0)
    assert nothing.work() == DmaWork(0, 1, 0, 0, 0)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), st.integers(0, 7), st.integers(1, 8))
def test_a_window_is_charged_for_its_taps_on_the_image(
    windows: int, stride: int, taps: int, dilation: int, before: int, size: int
) -> None:
    inside = sum(0 <= i * stride + t * dilation - before < size for i in range(windows) for t in range(taps))
    pool = Pool(
        0, I8, Q[0], (1, 1, 1), Q[1], (1, 1, 1), size, 1, windows, 1, 3, taps, 1, stride, 1, dilation, 1,
        (before, 0, 0, 0), False,
    )  # fmt: skip
    assert pool.work() == VectorWork("reduce", I8, 3 * max(windows, inside), 1, 3 * (size + windows))


def test_sums_that_stay_leave_nothing_and_results_take_no_parameters() -> None:
    middle = Conv(
        U8, I8, I16, Q[0], (0, 0, 4), Q[1], 0, Q[2], (0, 0, 4), 1, 1, 1, 1, 4, 1, 1, 1, 1, 1, 1, 0, 0, False, False,
        Q[3], (0, 0, 2), Q[4], Q[5], 4, 1.0, 0, -INF, INF,
    )  # fmt: skip
    assert [a.address for a in middle.accesses() if a] == [Q[0], Q[1], Q[2]]
    middle.last, middle.bias, middle.scale = True, NOTHING, NOTHING
    assert [a.address for a in middle.accesses() if a] == [Q[0], Q[1], Q[2], Q[3]]
    partial = ReduceTile(
        Reduce.SUM, F16, Q[0], (0, 16, 0, 8), Q[1], (0, 20, 10, 2), (1, 3, 4, 2), True, False, Q[2], (0,) * 4, 8
    )
    assert len([*partial.accesses()]) == 2
    assert partial.work() == VectorWork("reduce", F16, 24, 1, 48)


# Checks


def checked(instruction: Instruction, **changes: Any) -> Instruction:
    made = dataclasses.replace(instruction, **changes)
    made.check()
    return made


def test_fields_that_no_hardware_could_mean() -> None:
    for name in ("batch", "oh", "ow", "oc", "ic", "kh", "kw", "sh", "sw", "dh", "dw"):
        with pytest.raises(ProgramError, match="every dimension, stride and dilation must be >= 1"):
            checked(CONV, **{name: 0})
        checked(CONV, **{name: 1})
    for name in ("oh", "ow", "channels", "mult", "kh", "kw", "sh", "sw", "dh", "dw"):
        with pytest.raises(ProgramError, match="every dimension, stride and dilation must be >= 1"):
            checked(DEPTHWISE, **{name: 0})
        checked(DEPTHWISE, **{name: 1})
    for name in ("kh", "kw", "sh", "sw", "dh", "dw"):
        with pytest.raises(ProgramError, match="kernel, stride and dilation must be >= 1"):
            checked(POOL, **{name: 0})
        with pytest.raises(ProgramError, match="kernel, stride and dilation must be >= 1"):
            dataclasses.replace(POOL, **{name: 0}).work()  # reports ask unverified programs
        checked(POOL, **{name: 1})
    for zero in (-129, 128):
        with pytest.raises(ProgramError, match="w_zero of int8 weights must be from -128 to 127"):
            checked(CONV, w_zero=zero)
    checked(CONV, w_zero=-128)
    checked(CONV, w_type=U8, w_zero=255)
    with pytest.raises(ProgramError, match="w_zero of float16 weights must be 0, got 1"):
        checked(DEPTHWISE, w_zero=1)
    with pytest.raises(ProgramError, match="cannot multiply"):
        checked(DEPTHWISE, x_type=F32)
    with pytest.raises(ProgramError, match="function must be below 3, got 3"):
        checked(POOL, fn=3)
    checked(POOL, fn=2)
    with pytest.raises(ProgramError, match="reduction must be below 5, got 5"):
        checked(SCATTER, reduction=5)
    checked(SCATTER, reduction=4)
    for instruction in (COPY, FILL, GATHER, ELEMENTS):
        for size in (0, 3, 5, 16):
            with pytest.raises(ProgramError, match="item size must be one of"):
                checked(instruction, itemsize=size)
        for size in (1, 2, 4, 8):
            checked(instruction, itemsize=size)
    with pytest.raises(ProgramError, match="index type must be an integer, got float32"):
        checked(GATHER, index_type=F32)


# Results. Operands are 256 bytes apart in one array.


class Bytes:
    """A memory that is one array; DRAM addresses refer to its bytes, too."""

    def __init__(self) -> None:
        self.array = np.full(4096, 0xAA, np.uint8)

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        return Strided(self.array, address & 0xFFFF, strides)

    def put(self, address: int, values: npt.ArrayLike, dtype: npt.DTypeLike) -> None:
        raw = np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)
        self.array[address : address + raw.size] = raw

    def get(self, address: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.array[address : address + size].view(dtype).reshape(shape)


def test_convolution_with_a_drain() -> None:
    """Two groups of one pixel, two channels: (sum + bias) * scale / out_scale, plus a zero point, within bounds."""
    memory = Bytes()
    memory.put(Q[0], [[1, 2], [3, 4]], np.uint8)
    memory.put(Q[1], [[[1, -1], [2, 0]], [[1, 1], [0, 5]]], np.int8)
    memory.put(Q[2], [[100, 200], [0, 0]], np.int32)
    memory.put(Q[4], [1, 2, 3, 4], np.int32)
    memory.put(Q[5], [1, 2, 1, 0.5], np.float32)
    conv = Conv(
        U8, I8, I16, Q[0], (2, 2, 2), Q[1], 4, Q[2], (8, 8, 8), 2, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 0, False, True,
        Q[3], (4, 4, 4), Q[4], Q[5], 4, 0.5, 10, -100.0, 221.0,
    )  # fmt: skip
    conv.execute(memory, 0)
    # x less 1 is (0, 1) and (2, 3): sums 2, 0 onto 100, 200, and 2, 17 onto nothing
    np.testing.assert_array_equal(memory.get(Q[2], (2, 2), np.int32), [[102, 200], [2, 17]])
    np.testing.assert_array_equal(memory.get(Q[3], (2, 2), np.int16), [[216, 221], [20, 31]])
    # apart from each other in memory, and one scale for all
    conv.out_strides, conv.scale_stride, conv.first = (8, 4, 4), 0, True
    conv.execute(memory, 0)
    # (2 + 1, 0 + 2) and (2 + 3, 17 + 4), doubled, plus 10
    np.testing.assert_array_equal(memory.get(Q[3], (2,), np.int16), [16, 14])
    np.testing.assert_array_equal(memory.get(Q[3] + 8, (2,), np.int16), [20, 52])
    conv.bias = conv.scale = NOTHING
    conv.execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[3], (2,), np.int16), [14, 10])
    np.testing.assert_array_equal(memory.get(Q[3] + 8, (2,), np.int16), [14, 44])
    conv.last = False
    memory.put(Q[3], [7, 7], np.int16)
    conv.execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[3], (2,), np.int16), [7, 7])


def test_depthwise_with_a_drain() -> None:
    """Two pixels of two channels with two filters of two columns each."""
    memory = Bytes()
    memory.put(Q[0], [[1, 2], [3, 4], [5, 6]], np.float32)
    memory.put(Q[1], [[1, 2, 3, 4], [10, 20, 30, 40]], np.float32)
    memory.put(Q[4], [1, 0, 0, 0], np.float32)
    memory.put(Q[5], [1, 1, 1, 2], np.float32)
    depthwise = Depthwise(
        F32, F32, F32, Q[0], 999, 8, Q[1], Q[2], 999, 16, 1, 2, 2, 2, 1, 2, 1, 1, 1, 1, 0, 0, True, True, Q[3], 999, 16,
        Q[4], Q[5], 4, 1.0, 0, -INF, 400.0,
    )  # fmt: skip
    depthwise.execute(memory, 0)
    sums = [[31, 62, 126, 168], [53, 106, 192, 256]]
    np.testing.assert_array_equal(memory.get(Q[2], (2, 4), np.float32), sums)
    np.testing.assert_array_equal(memory.get(Q[3], (2, 4), np.float32), [[32, 62, 126, 336], [54, 106, 192, 400]])
    depthwise.first = depthwise.last = False
    depthwise.execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[2], (2, 4), np.float32), np.array(sums) * 2)
    assert memory.get(Q[3], (1,), np.float32)[0] == 32


def test_elementwise() -> None:
    memory = Bytes()
    a, b = np.array([[-1, 2], [3, -4]], np.float32), np.array([10, 20], np.float32)
    memory.put(Q[1], a, np.float32)
    memory.put(Q[2], b, np.float32)
    dense, row, dims = (0, 0, 8, 4), (0, 0, 0, 4), (1, 1, 2, 2)
    UnaryOp(Unary.CLIP, F32, Q[0], dense, Q[1], dense, dims, -2.0, 2.5).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 2), np.float32), np.clip(a, -2, 2.5))
    BinaryOp(Binary.SUB, F32, Q[0], dense, Q[1], dense, Q[2], row, dims).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 2), np.float32), a - b)
    BinaryOp(Binary.LT, F32, Q[0], (0, 0, 2, 1), Q[2], row, Q[1], dense, dims).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 2), np.bool_), b < a)
    memory.put(Q[3], [[1, 0], [0, 1]], np.uint8)
    Select(F32, Q[0], dense, Q[3], (0, 0, 2, 1), Q[1], dense, Q[2], row, dims).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 2), np.float32), [[-1, 20], [10, -4]])
    Cast(I16, Q[0], (0, 0, 2, 4), F32, Q[1], dense, dims).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 2), np.int16), a.T)


def test_conversions() -> None:
    memory = Bytes()
    memory.put(Q[1], [[1, -2, 3], [4, 5, 400]], np.float32)
    memory.put(Q[2], [0.5, 2], np.float32)
    memory.put(Q[3], [1, 2, 3], np.int32)
    by_row, by_column, dims = (0, 0, 4, 0), (0, 0, 0, 4), (1, 1, 2, 3)
    Quantize(U8, Q[0], (0, 0, 3, 1), F32, Q[1], (0, 0, 12, 4), Q[2], by_row, Q[3], by_column, dims).execute(memory, 0)
    wanted = [[3, 0, 9], [3, 4, 203]]  # 5 / 2 rounds to the even 2
    np.testing.assert_array_equal(memory.get(Q[0], (2, 3), np.uint8), wanted)
    Dequantize(F32, Q[4], (0, 0, 12, 4), U8, Q[0], (0, 0, 3, 1), Q[2], by_row, Q[3], by_column, dims).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[4], (2, 3), np.float32), [[1, -1, 3], [4, 4, 400]])


def test_reductions_and_rows() -> None:
    memory = Bytes()
    x = np.array([[[1, 5], [4, 2], [4, 9]]], np.float32)
    memory.put(Q[1], x, np.float32)
    tile = ReduceTile(
        Reduce.MEAN, F32, Q[0], (0, 0, 0, 8), Q[1], (0, 24, 8, 4), (1, 1, 3, 2), True, False, Q[2], (0, 0, 0, 4), 6
    )
    tile.execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2,), np.float64), [9, 16])
    tile.first, tile.last = False, True
    tile.execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[2], (2,), np.float32), np.float32([3, 32 / 6]))
    strides, dims = (24, 8, 4), (1, 3, 2)
    ArgReduce(F32, Q[0], (16, 16, 8), Q[1], strides, dims, 0, True).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2,), np.int64), [2, 2])
    ArgReduce(F32, Q[0], (16, 16, 8), Q[1], strides, dims, 1, False).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2,), np.int64), [0, 1])
    CumSum(F32, Q[0], strides, Q[1], strides, dims, True, False).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (3, 2), np.float32), [[0, 0], [1, 5], [5, 7]])
    CumSum(F32, Q[0], strides, Q[1], strides, dims, False, True).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (3, 2), np.float32), [[9, 16], [8, 11], [4, 9]])
    CumProd(F32, Q[0], strides, Q[1], strides, dims, True, False).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (3, 2), np.float32), [[1, 1], [1, 5], [4, 10]])
    CumProd(F32, Q[0], strides, Q[1], strides, dims, False, True).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (3, 2), np.float32), [[16, 90], [16, 18], [4, 9]])
    for log in (False, True):
        Softmax(F32, Q[0], strides, Q[1], strides, dims, log, False).execute(memory, 0)
        softmax = np.exp(x[0] - x[0].max(0)) / np.exp(x[0] - x[0].max(0)).sum(0)
        wanted = np.log(softmax) if log else softmax
        np.testing.assert_allclose(memory.get(Q[0], (3, 2), np.float32), wanted, rtol=1e-5)
    for rms, middle in ((False, x[0].mean(0)), (True, 0)):
        Normalize(F32, Q[0], strides, Q[1], strides, dims, rms, 0.5).execute(memory, 0)
        wanted = (x[0] - middle) / np.sqrt(((x[0] - middle) ** 2).mean(0) + 0.5)
        np.testing.assert_allclose(memory.get(Q[0], (3, 2), np.float32), wanted, rtol=1e-5)
    Lrn(F32, Q[0], strides, Q[1], strides, dims, 3, 6.0, 1.0, 2.0).execute(memory, 0)
    squares = x[0] ** 2
    windows = np.array([squares[:2].sum(0), squares.sum(0), squares[1:].sum(0)])
    np.testing.assert_allclose(memory.get(Q[0], (3, 2), np.float32), x[0] / (2 + 6 / 3 * windows), rtol=1e-5)


def test_windows_and_interpolation() -> None:
    """An image of 2 x 3 with one row of padding above and two columns on the right."""
    memory = Bytes()
    memory.put(Q[1], [[1, 2, 3], [4, 5, 6]], np.float32)
    shared = (F32, Q[0], (12, 4, 4), Q[1], (12, 4, 4), 2, 3, 2, 2, 1, 2, 2, 1, 2, 1, 1, (1, 0, 0, 2))
    for fn, include, wanted in (
        (0, False, [[2, 3], [5, 6]]),
        (1, False, [[1.5, 3], [3, 4.5]]),
        (1, True, [[0.75, 0.75], [3, 2.25]]),
        (2, False, [[5**0.5, 3], [46**0.5, 45**0.5]]),
    ):
        Pool(fn, *shared, include).execute(memory, 0)
        got = [memory.get(Q[0] + 12 * row, (2,), np.float32) for row in range(2)]
        np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=f"{fn} {include}")
    memory.put(Q[2], [[0, 2], [1, -1]], np.int32)
    memory.put(Q[3], [[0.5, 2], [3, 9]], np.float32)
    resample = Resample(F32, Q[0], (8, 4, 4), Q[1], (12, 4, 4), (2, 2, 1), 3, Q[2], Q[3], 2)
    resample.execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 2), np.float32), [[6.5, 6], [14, 15]])
    memory.put(Q[2], [3], np.int32)
    with pytest.raises(ProgramError, match="is outside the 3 source elements"):
        resample.execute(memory, 0)


def test_indices() -> None:
    memory = Bytes()
    data = np.array([[10, 11], [20, 21], [30, 31]], np.int16)
    memory.put(Q[1], data, np.int16)
    memory.put(Q[2], [[2, 0], [-1, -3]], np.int64)
    elements = GatherElements(2, Q[0], (8, 4, 2), Q[1], (12, 4, 2), I64, Q[2], (32, 16, 8), (1, 2, 2), 3)
    elements.execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 2), np.int16), [[30, 11], [30, 11]])
    memory.put(Q[0], data, np.int16)
    memory.put(Q[3], [[1, 2], [3, 4]], np.int16)
    scatter = Scatter(I16, Q[0], (12, 4, 2), Q[3], (8, 4, 2), I64, Q[2], (32, 16, 8), (1, 2, 2), 3, 1)
    scatter.execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (3, 2), np.int16), [[10, 17], [20, 21], [34, 31]])
    Gather(Q[0], (12, 6, 2), Q[1], (12, 2, 2), Q[2], 8, I64, (1, 2, 3), 4, 2).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 3), np.int16), [[20, 21, 30], [10, 11, 20]])
    memory.put(Q[2], [3], np.int64)
    for instruction in (elements, scatter):
        with pytest.raises(
            ProgramError, match=r"operand 'index' holds 3 at \[0, 0, 0\], which is outside the axis of 3"
        ):
            instruction.execute(memory, 0)
    memory.put(Q[2], [2, -4], np.int64)
    with pytest.raises(ProgramError, match=r"operand 'index' holds -4 at \[0, 1, 0\], which is outside the axis of 3"):
        Gather(Q[0], (12, 6, 2), Q[1], (12, 2, 2), Q[2], 8, I64, (1, 2, 3), 3, 2).execute(memory, 0)
    TopK(I16, Q[0], (8, 4, 2), Q[3], (32, 16, 8), Q[1], (12, 4, 2), (1, 3, 2), 2, False).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 2), np.int16), data[:2])
    np.testing.assert_array_equal(memory.get(Q[3], (2, 2), np.int64), [[0, 0], [1, 1]])


def test_transfers() -> None:
    memory = Bytes()
    memory.put(Q[1], [[1, 2], [3, 4]], np.int16)
    Copy(
        Q[0], (0, 0, 8, 2), Q[1], (0, 0, 2, 4), (1, 1, 2, 2), 2, (0, 0, 1, 0), (0, 0, 0, 2), 0xFFFF
    ).execute(memory, 0)  # fmt: skip
    wanted = [[-1, -1, -1, -1], [1, 3, -1, -1], [2, 4, -1, -1]]
    np.testing.assert_array_equal(memory.get(Q[0], (3, 4), np.int16), wanted)
    Copy(Q[0], (0, 0, 8, 2), Q[1], (0, 0, 2, 4), (1, 1, 0, 2), 2, (0, 0, 1, 0), (0,) * 4, 7).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 2), np.int16), [[7, 7], [-1, -1]])
    Fill(Q[0] + 2, (0, 0, 8, 2), (1, 1, 2, 1), 2, 0x10005).execute(memory, 0)
    np.testing.assert_array_equal(memory.get(Q[0], (2, 4), np.int16)[:, :2], [[7, 5], [1, 5]])
