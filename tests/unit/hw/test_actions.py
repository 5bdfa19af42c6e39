"""What single instructions do that takes energy, counted by hand."""

from __future__ import annotations

import pytest

from npusim.dtypes import DType
from npusim.hw.actions import actions
from npusim.hw.config import load_config
from npusim.work import ControlWork, DmaWork, MatrixWork, ScalarWork, VectorWork

EDGE = load_config("edge")  # weight stationary, 32 x 32, dedicated accumulators


def product(**changes: object) -> MatrixWork:
    """4 x 64 by 64 x 48: two folds of rows, two of columns."""
    given = {
        "dtype": DType.UINT8, "batch": 1, "oh": 1, "ow": 4, "oc": 48, "ic": 64, "kh": 1, "kw": 1, "depthwise": False,
        "first": True, "last": True, "out_bytes": 1,
    }  # fmt: skip
    return MatrixWork(**{**given, **changes})


def test_a_product_where_weights_stay() -> None:
    found = actions(EDGE, product())
    assert found == {
        "mac.int8": 4 * 64 * 48,
        "operands": 4 * 64 * 48 * 5,
        "accumulators": 4 * 48 * 4 * 3,  # made by one fold of rows, added to by the other
        "sram": 64 * 48 + 4 * 64 * 2 + 4 * 48,  # weights once, inputs for each fold of columns, results
    }


def test_sums_that_go_on_are_read_and_do_not_leave() -> None:
    found = actions(EDGE, product(first=False, last=False))
    assert found["accumulators"] == 4 * 48 * 4 * 4
    assert found["sram"] == 64 * 48 + 4 * 64 * 2


def test_without_accumulators_sums_are_in_sram() -> None:
    found = actions(EDGE.with_(**{"matrix.accumulator_bytes": 0}), product())
    assert "accumulators" not in found
    assert found["sram"] == 64 * 48 + 4 * 64 * 2 + 4 * 48 + 4 * 48 * 4 * 3


def test_where_sums_stay_both_operands_stream() -> None:
    found = actions(EDGE.with_(**{"matrix.dataflow": "output_stationary"}), product())
    assert found["operands"] == 4 * 64 * 48 * 6
    assert found["accumulators"] == 4 * 48 * 4
    assert found["sram"] == 4 * 64 * 2 + 64 * 48 + 4 * 48


def test_where_inputs_stay_weights_stream() -> None:
    found = actions(EDGE.with_(**{"matrix.dataflow": "input_stationary"}), product())
    assert found["sram"] == 4 * 64 + 64 * 48 + 4 * 48


def test_packed_weights_are_read_packed() -> None:
    assert actions(EDGE, product(w_bits=4))["sram"] == 64 * 48 // 2 + 4 * 64 * 2 + 4 * 48


def test_a_core_of_direct_convolution_reads_whole_atoms() -> None:
    config = load_config("nvdla_512")  # 32 channels by 16 kernels
    found = actions(config, product(ow=4, oh=2, ic=40, oc=20, kh=3, kw=3))
    atoms = 9 * 2
    assert found["sram"] == 8 * atoms * 32 * 2 + 9 * 40 * 20 + 8 * 20
    assert found["accumulators"] == 8 * 20 * 4 * (2 * atoms - 1)
    image = actions(config, product(ow=4, oh=2, ic=3, oc=16, kh=7, kw=7))
    assert image["sram"] == 8 * 7 * 32 + 49 * 3 * 16 + 8 * 16  # a row of the kernel is 21 channels wide
    channels = actions(config, product(ow=4, oh=2, ic=8, oc=8, kh=3, kw=3, depthwise=True))
    assert channels["sram"] == 8 * 9 * 8 + 9 * 8 + 8 * 8


def test_a_grid_reads_windows_and_weights_by_blocks() -> None:
    config = load_config("intel_npu27")
    grid = config.matrix.grid
    found = actions(config, product(oh=8, ow=8, ic=32, oc=64, kh=3, kw=3))
    blocks = (8 // grid.pixel_rows) * (8 // grid.pixel_cols)
    taps = 1 if grid.windows_buffered else 9
    inputs = 64 * taps * 32 * -(-64 // grid.output_channels)
    assert found["sram"] == inputs + blocks * 64 * 32 * 9 + 64 * 64


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (VectorWork("simple", DType.INT8, 100, 3, 600), {"vector": 300, "sram": 600}),
        (ScalarWork(10, 80), {"scalar": 10, "sram": 80}),
        (DmaWork(64, 1, 64, 64, 0), {"dma": 64, "sram": 64, "dram": 64}),
        (DmaWork(64, 1, 64, 0, 0), {"dma": 64, "sram": 128, "dram": 0}),
        (DmaWork(64, 1, 64, 64, 64), {"dma": 64, "sram": 0, "dram": 128}),
        (DmaWork(64, 1, 64, 0, 0, l2_writes=64), {"dma": 64, "sram": 64, "dram": 0, "l2": 64}),
        (DmaWork(64, 1, 64, 64, 0, l2_writes=64), {"dma": 64, "sram": 0, "dram": 64, "l2": 64}),
        (DmaWork(64, 1, 64, 0, 0, l2_reads=64, l2_writes=64), {"dma": 64, "sram": 0, "dram": 0, "l2": 128}),
        (ControlWork(), {}),
    ],
)
def test_other_instructions(work: object, expected: dict[str, int]) -> None:
    assert actions(EDGE, work) == expected


def test_constants_of_their_own_memory_are_not_drams() -> None:
    config = load_config("ethos_u55_128")
    assert config.constants is not None
    assert actions(config, DmaWork(64, 1, 64, 64, 0, constants=True)) == {"dma": 64, "sram": 64, "constants": 64}
