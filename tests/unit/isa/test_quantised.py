"""Instructions that convert their operands, compared with separate dequantise, compute and quantise steps; lookups."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim._core import Strided
from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.base import Instruction
from npusim.isa.functions import Reduce
from npusim.isa.quantised import QuantisedPool, QuantisedReduce, QuantisedResample
from npusim.isa.reduction import Pool, ReduceTile
from npusim.isa.vector import Lookup
from npusim.work import VectorWork

Array = npt.NDArray[Any]
RNG = np.random.default_rng(3)
F32 = DType.FLOAT32
OUT, ACC, INDEX, WEIGHT = 4096, 8192, 12288, 14336


class Flat:
    """One memory for all operands."""

    def __init__(self) -> None:
        self.bytes = bytearray(1 << 14)

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        return Strided(self.bytes, address, strides)

    def put(self, address: int, array: Array) -> None:
        self.bytes[address : address + array.nbytes] = array.tobytes()

    def get(self, address: int, dtype: npt.DTypeLike, *shape: int) -> Array:
        return np.ndarray(shape, dtype, self.bytes, address).copy()


def ran(instruction: Instruction, operands: dict[int, Array]) -> Flat:
    memory = Flat()
    for address, array in operands.items():
        memory.put(address, array)
    instruction.check()
    instruction.execute(memory, 0)
    return memory


def real(x: Array, scale: float, zero: int) -> Array:
    return ((x.astype(np.int32) - zero).astype(np.float32) * np.float32(scale)).astype(np.float32)


def quantised(y: Array, scale: float, zero: int) -> Array:
    return np.clip(np.rint(y / np.float32(scale)) + zero, -128, 127).astype(np.int8)


def test_a_mean_of_windows() -> None:
    x = RNG.integers(-128, 128, (6, 5, 3), np.int8)
    fields = (1, DType.INT8, OUT, (9, 3, 1), 0, (15, 3, 1), 6, 5, 5, 3, 3, 2, 3, 1, 1, 1, 1, (0, 0, 0, 0), False)
    pool = QuantisedPool(*fields, 0.05, 3, 0.04, -7, F32)
    windows = np.lib.stride_tricks.sliding_window_view(real(x, 0.05, 3), (2, 3), (0, 1)).astype(np.float64)
    wanted = quantised(windows.mean((-2, -1)).astype(np.float32), 0.04, -7)
    np.testing.assert_array_equal(ran(pool, {0: x}).get(OUT, np.int8, 5, 3, 3), wanted)
    plain, work = Pool(*fields).work(), pool.work()
    assert isinstance(plain, VectorWork)
    assert work == VectorWork("reduce", DType.FLOAT32, plain.elements + 90 + 45, 1, 90 + 45)
    assert [access and access.high for access in pool.accesses()] == [90, 45]


def test_numbers_may_have_half_precision() -> None:
    x = RNG.integers(-128, 128, (6, 5, 3), np.int8)
    fields = (1, DType.INT8, OUT, (9, 3, 1), 0, (15, 3, 1), 6, 5, 5, 3, 3, 2, 3, 1, 1, 1, 1, (0, 0, 0, 0), False)
    pool = QuantisedPool(*fields, 0.05, 3, 0.04, -7, DType.FLOAT16)
    halves = real(x, 0.05, 3).astype(np.float16).astype(np.float64)
    means = np.lib.stride_tricks.sliding_window_view(halves, (2, 3), (0, 1)).mean((-2, -1))
    wanted = quantised(means.astype(np.float32).astype(np.float16).astype(np.float32), 0.04, -7)
    np.testing.assert_array_equal(ran(pool, {0: x}).get(OUT, np.int8, 5, 3, 3), wanted)
    assert pool.work().dtype is DType.FLOAT16
    one_side = QuantisedPool(*fields, 0.0, 0, 0.04, -7, DType.FLOAT16)
    assert [access.high for access in one_side.accesses() if access] == [5 * 15 + 4 * 3 + 2 + 2, 45]
    with pytest.raises(ProgramError, match=r"real must be float32, float16 or bfloat16, got int32"):
        QuantisedPool(*fields, 0.05, 3, 0.04, -7, DType.INT32).check()


def test_one_side_may_hold_floats() -> None:
    x = RNG.standard_normal((4, 4, 1)).astype(np.float32)
    fields = (1, DType.INT8, OUT, (1, 1, 1), 0, (16, 4, 4), 4, 4, 1, 1, 1, 4, 4, 1, 1, 1, 1, (0, 0, 0, 0), False)
    pool = QuantisedPool(*fields, 0.0, 0, 0.01, 5, F32)
    wanted = quantised(x.astype(np.float64).mean().astype(np.float32), 0.01, 5)
    assert ran(pool, {0: x}).get(OUT, np.int8, 1) == wanted
    assert [access and access.high for access in pool.accesses()] == [64, 1]


@pytest.mark.parametrize("parts", [1, 2])
def test_a_sum_in_parts(parts: int) -> None:
    x = RNG.integers(-128, 128, (4, 8), np.int8)
    memory = Flat()
    memory.put(0, x)
    rows = 4 // parts
    for part in range(parts):
        fields: Any = (
            Reduce.MEAN, DType.INT8, ACC, (0, 0, 0, 8), part * rows * 8, (0, 0, 8, 1), (1, 1, rows, 8),
            part == 0, part == parts - 1, OUT, (0, 0, 0, 1), 4,
        )  # fmt: skip
        tile = QuantisedReduce(*fields, 0.03, -2, 0.02, 1, F32)
        tile.execute(memory, 0)
        plain, last = ReduceTile(*fields).work(), 8 * (part == parts - 1)
        assert isinstance(plain, VectorWork)
        work = VectorWork("reduce", DType.FLOAT32, plain.elements + rows * 8 + last, 1, rows * 8 + last)
        assert tile.work() == work
    mean = real(x, 0.03, -2).astype(np.float64).mean(0).astype(np.float32)
    np.testing.assert_array_equal(memory.get(OUT, np.int8, 8), quantised(mean, 0.02, 1))


def test_weighted_neighbours() -> None:
    x = RNG.integers(-128, 128, (2, 4, 3), np.int8)
    index, weight = np.int32([[0, 1], [2, 3]]), np.float32([[0.25, 0.75], [0.5, 0.5]])
    resample = QuantisedResample(
        DType.INT8, OUT, (6, 3, 1), 0, (12, 3, 1), (2, 2, 3), 4, INDEX, WEIGHT, 2, 0.1, 4, 0.05, 0, F32
    )
    number = real(x, 0.1, 4)
    y = sum(weight[:, tap, None] * number[:, index[:, tap]] for tap in (0, 1))
    memory = ran(resample, {0: x, INDEX: index, WEIGHT: weight})
    np.testing.assert_array_equal(memory.get(OUT, np.int8, 2, 2, 3), quantised(np.asarray(y), 0.05, 0))
    assert resample.work() == VectorWork("simple", DType.FLOAT32, 24 + 24 + 12, 1, 24 + 32 + 12)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
def test_lookups_in_place(dtype: DType) -> None:
    x, table = np.arange(256).astype(np.uint8).view(dtype.storage), RNG.integers(0, 256, 256, np.uint8)
    strides = (0, 0, 0, 1)
    lookup = Lookup(DType.UINT8, 0, strides, dtype, 0, strides, OUT, (1, 1, 1, 256))
    low = np.iinfo(dtype.storage).min
    wanted = table[x.astype(int) - low]
    np.testing.assert_array_equal(ran(lookup, {0: x, OUT: table}).get(0, np.uint8, 256), wanted)
    assert lookup.work() == VectorWork("transcendental", DType.FLOAT32, 256, 1, 512)
    assert (OUT, 0, 256, False) in list(lookup.accesses())


def test_types_and_scales_are_checked() -> None:
    strides = (0, 0, 0, 1)
    with pytest.raises(ProgramError, match=r"vector\.lookup: type must be int8 or uint8, got int16"):
        Lookup(DType.INT8, 0, strides, DType.INT16, 0, strides, OUT, (1, 1, 1, 1)).check()
    fields: Any = (1, DType.FLOAT32, OUT, (1, 1, 1), 0, (1, 1, 1), *[1] * 11, (0, 0, 0, 0), False)
    with pytest.raises(ProgramError, match=r"vector\.pool_quantised: type must be int8, uint8, int16 or uint16"):
        QuantisedPool(*fields, 1.0, 0, 1.0, 0, F32).check()
    fields = (1, DType.INT8, *fields[2:])
    with pytest.raises(ProgramError, match=r"scales must be finite, got inf, 1\.0"):
        QuantisedPool(*fields, np.inf, 0, 1.0, 0, F32).check()
