"""No instruction runs forever: its elements are counted before it starts, for any strides."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from npusim.cache import read_program
from npusim.dtypes import DType
from npusim.errors import DeviceFaultError, NpusimError, ProgramError
from npusim.hw.config import load_config
from npusim.isa.base import (
    INSTRUCTIONS,
    MAX_ELEMENTS,
    MAX_ITEMS,
    MAX_PRODUCTS,
    MAX_ROUTINE_STEPS,
    Command,
    Instruction,
    Unit,
    instruction,
    region,
)
from npusim.isa.control import Halt
from npusim.isa.dma import Copy, Exchange, Expand, Fetch, Fill, Gather, Multicast, MulticastExpand
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.isa.matrix import Conv, Depthwise
from npusim.isa.matrix_extras import NOTHING
from npusim.isa.quantised import QuantisedPool, QuantisedReduce, QuantisedResample
from npusim.isa.reduction import ArgReduce, CumProd, CumSum, Lrn, Normalize, Pool, ReduceTile, Resample, Softmax
from npusim.isa.routine import Call, Operand, ScalarRoutine, VectorRoutine
from npusim.isa.row_parts import Part, RowPart
from npusim.isa.scalar import GatherElements, Scatter, TopK
from npusim.isa.vector import BinaryOp, Cast, Dequantize, Lookup, Quantize, Select, UnaryOp
from npusim.isa.verify import Limits, verify
from npusim.runtime import Session
from tests.support.programs.streams import Stream

HOSTILE = Path(__file__).resolve().parents[4] / "shared" / "hostile"
TINY = load_config("tiny")
LIMITS = Limits((1024, 1024, 1024), 4096, 4096, 1, 1, ("matrix", "vector", "scalar"))
I8, I32, F32 = DType.INT8, DType.INT32, DType.FLOAT32
N = 1 << 30
Z3, Z4 = (0, 0, 0), (0, 0, 0, 0)
LONG3, LONG4 = (N, 1, N), (N, N, N, N)
ROW = (0, 1, 0)


def _conv(**fields: int) -> Conv:
    sizes = {"batch": 1, "oh": 1, "ow": 1, "oc": 1, "ic": 1, "kh": 1, "kw": 1} | fields
    return Conv(
        I8, I8, I32, 0, Z3, 0, 0, 0, Z3, *sizes.values(), 1, 1, 1, 1, 1, 1, True, False, 0, Z3, NOTHING, NOTHING, 0,
        1.0, 0, 0.0, 0.0,
    )  # fmt: skip


def _regions() -> VectorRoutine:
    """Return parts of one row of pixels; each part contains all of them."""
    image, rois = Operand(0, F32, (1, 64, 1, 1)), Operand(256, F32, (16, 4))
    batches, out = Operand(512, I32, (16,)), Operand(0, F32, (16, 1, 1 << 28, 1))
    params = (("height", 1), ("stride_h", 1.0), ("stride_w", 1.0), ("width", 1 << 28))
    return VectorRoutine(Call("npusim.roi_pool", 1, params, (image, rois, batches), (out,)))


def _search() -> ScalarRoutine:
    lookups, keys = Operand(0, I32, (1 << 31,)), Operand(0, I32, (64,))
    outs = Operand(0, I32, (1 << 31,)), Operand(0, DType.UINT8, (1 << 31,))
    return ScalarRoutine(Call("npusim.search_keys", 1, (), (lookups, keys), outs))


ENDLESS: list[Instruction] = [
    Copy(0, Z4, 0, Z4, LONG4, 1, Z4, Z4, 0),
    Copy(0, Z4, 0, Z4, (1, 1, 1, 1), 1, LONG4, Z4, 0),
    Multicast(0, Z4, region(0), Z4, (1, 1, 1, MAX_ITEMS), 1, Z4, Z4, 0, 3),
    Exchange(0, Z4, 0, Z4, (1, 1, 1, MAX_ITEMS), 1, Z4, Z4, 0, 0, 6),
    Fetch(0, Z4, region(0), Z4, (1, 1, 1, MAX_ITEMS), 1, Z4, (0, 0, 1, 0), 0),
    Expand(0, region(0), 1 << 63, 4, 2),
    MulticastExpand(0, region(0), MAX_ITEMS, 4, 8, 3),
    Fill(0, Z4, LONG4, 1, 0),
    Fill(0, Z4, (N, N, N, 0), 1, 0),
    Gather(0, Z3, 0, Z3, 0, 0, I32, LONG3, 1, 1),
    _conv(oh=N, ow=N),
    _conv(oh=1 << 28),
    _conv(ic=1 << 28),
    Depthwise(
        I8, I8, I32, 0, 0, 0, 0, 0, 0, 0, N, N, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, True, False, 0, 0, 0, NOTHING, NOTHING,
        0, 1.0, 0, 0.0, 0.0,
    ),
    UnaryOp(Unary.RELU, F32, 0, Z4, 0, Z4, LONG4, 0.0, 0.0),
    BinaryOp(Binary.ADD, F32, 0, Z4, 0, Z4, 0, Z4, LONG4),
    Select(F32, 0, Z4, 0, Z4, 0, Z4, 0, Z4, LONG4),
    Cast(F32, 0, Z4, I32, 0, Z4, LONG4),
    Quantize(I8, 0, Z4, F32, 0, Z4, 0, Z4, 0, Z4, LONG4),
    Dequantize(F32, 0, Z4, I8, 0, Z4, 0, Z4, 0, Z4, LONG4),
    ReduceTile(Reduce.SUM, F32, 0, Z4, 0, Z4, LONG4, True, False, 0, Z4, 1),
    ArgReduce(F32, 0, Z3, 0, Z3, LONG3, 0, False),
    Softmax(F32, 0, Z3, 0, Z3, LONG3, False, False),
    Normalize(F32, 0, Z3, 0, Z3, LONG3, False, 0.0),
    CumSum(F32, 0, Z3, 0, Z3, LONG3, False, False),
    CumProd(F32, 0, Z3, 0, Z3, LONG3, False, False),
    RowPart(F32, 0, Z3, 0, Z3, LONG3, Part.SUM, True, False, 0, N, 0, 0.0, False, False, False),
    Lrn(F32, 0, Z3, 0, Z3, LONG3, 1, 1.0, 1.0, 1.0),
    Lrn(I8, 0, ROW, 0, ROW, (1 << 8, 1 << 10, 1 << 8), 1 << 10, 1.0, 1.0, 1.0),
    Pool(0, F32, 0, Z3, 0, Z3, 1, 1, N, N, N, 1, 1, 1, 1, 1, 1, Z4, False),
    Pool(0, F32, 0, Z3, 0, Z3, N, N, 1, 1, 1, 65535, 65535, 1, 1, 1, 1, Z4, False),
    Resample(F32, 0, Z3, 0, Z3, LONG3, 1, 0, 0, 1),
    Lookup(I8, 0, Z4, I8, 0, Z4, 0, LONG4),
    QuantisedReduce(Reduce.SUM, I8, 0, Z4, 0, Z4, LONG4, True, False, 0, Z4, 1, 1.0, 0, 1.0, 0, F32),
    QuantisedPool(1, I8, 0, Z3, 0, Z3, 1, 1, N, N, N, 1, 1, 1, 1, 1, 1, Z4, False, 1.0, 0, 1.0, 0, F32),
    QuantisedResample(I8, 0, Z3, 0, Z3, LONG3, 1, 0, 0, 1, 1.0, 0, 1.0, 0, F32),
    GatherElements(1, 0, Z3, 0, Z3, I32, 0, Z3, LONG3, 1),
    Scatter(F32, 0, Z3, 0, Z3, I32, 0, Z3, LONG3, 1, 0),
    TopK(F32, 0, Z3, 0, Z3, 0, Z3, LONG3, 1, True),
    TopK(I8, 0, Z3, 0, Z3, 0, ROW, (1 << 16, 1 << 10, 1), 1, True),
    _search(),
    _regions(),
]  # fmt: skip


@pytest.mark.parametrize("endless", ENDLESS, ids=lambda made: made.mnemonic)
def test_zero_strides_do_not_hide_huge_counts(endless: Instruction) -> None:
    """Checked before the start with exact integers, even if one of the dimensions is empty."""
    with pytest.raises(ProgramError, match=r"goes through \d+ elements, at most \d+ are possible$"):
        verify([Command(0, endless.unit, 0, (), endless), Command(0, Unit.CONTROL, 0, (), Halt())], LIMITS)


def test_every_instruction_is_counted() -> None:
    units = {cls for cls in INSTRUCTIONS.values() if cls.unit is not Unit.CONTROL}
    assert {type(endless) for endless in ENDLESS} == units
    limits = {MAX_ELEMENTS, MAX_ITEMS, MAX_PRODUCTS, MAX_ROUTINE_STEPS}
    assert {cls.limit for cls in INSTRUCTIONS.values()} == limits


def test_an_instruction_that_does_not_count_is_refused() -> None:
    class Careless(Halt):
        elements = Instruction.elements

    with pytest.raises(TypeError, match=r"^careless does not say its elements$"):
        instruction(0xEE, "careless", Unit.CONTROL)(Careless)
    assert 0xEE not in INSTRUCTIONS


@pytest.mark.parametrize(
    "wide",
    [Softmax(F32, 0, ROW, 0, Z3, (1, 9, 1), False, False), TopK(F32, 0, Z3, 0, Z3, 0, Z3, (1, 9, 1), 1, True)],
    ids=lambda made: made.mnemonic,
)
def test_rows_that_kernels_copy_are_no_larger_than_memory(wide: Instruction) -> None:
    with pytest.raises(ProgramError, match=r"the 9 elements of a row must not share an address$"):
        wide.check()


def test_the_largest_is_allowed_and_ends() -> None:
    largest = Copy(0, Z4, 0, Z4, (1, 1, 1, MAX_ITEMS), 1, Z4, Z4, 0)
    verify([Command(0, Unit.DMA, 0, (), largest), Command(0, Unit.CONTROL, 0, (), Halt())], LIMITS)
    assert largest.elements() == largest.limit


def test_the_device_reports_a_program_that_would_not_end() -> None:
    stream = Stream()
    stream.dma(Copy(0, Z4, region(2), Z4, LONG4, 1, Z4, Z4, 0))
    program = dataclasses.replace(stream.program([16], [16]), config_fingerprint=TINY.fingerprint())
    began = time.process_time()
    with Session(TINY, cache_dir=False) as session, pytest.raises(DeviceFaultError, match=r"PROGRAM.*goes through"):
        session.run(program, {"x0": np.zeros(16, np.uint8)})
    assert time.process_time() - began < 5


@pytest.mark.skipif(not HOSTILE.is_dir(), reason="the files are not here")
@pytest.mark.parametrize("path", sorted(HOSTILE.glob("npu_hang_*.npu")), ids=lambda path: getattr(path, "stem", "none"))
def test_files_that_did_not_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # They are of an earlier instruction set and description of the device, but their instructions mean the same.
    monkeypatch.setattr("npusim.cache.ISA_VERSION", 2)
    program = dataclasses.replace(read_program(path), config_fingerprint=TINY.fingerprint())
    began = time.process_time()
    with Session(TINY, cache_dir=False) as session, pytest.raises(NpusimError, match="goes through"):
        session.run(program, {x.name: np.zeros(x.shape, x.dtype.storage) for x in program.inputs})
    assert time.process_time() - began < 5
