"""Peaks follow from the description."""

from fractions import Fraction

import pytest

from npusim.dtypes import DType
from npusim.hw.capability import capabilities
from npusim.hw.config import list_configs, load_config
from npusim.hw.cost import cost
from npusim.work import DmaWork, MatrixWork


def test_peaks_of_tiny_by_hand():
    peaks = capabilities(load_config("tiny"))
    assert dict(peaks.peak_macs) == dict.fromkeys(
        ("int8", "int16", "int32", "float16", "bfloat16", "float32"), 64 * 10**9
    )
    assert peaks.peak_ops["int8"] == 128 * 10**9
    assert peaks.vector_ops == {
        "simple": 8 * 10**9,
        "divide": 2 * 10**9,
        "sqrt": 2 * 10**9,
        "transcendental": 10**9,
        "convert": 8 * 10**9,
        "reduce": 8 * 10**9,
    }
    assert peaks.scalar_elements == 250_000_000
    assert (peaks.dram_peak, peaks.dram_bandwidth, peaks.sram_bandwidth) == (8 * 10**9, 8 * 10**9, 128 * 10**9)
    assert (peaks.sram_bytes, peaks.dram_bytes) == (128 * 2**10, 2**30)
    assert peaks.ridge == Fraction(128, 8)


def test_published_peaks():
    assert capabilities(load_config("tpuv1")).peak_ops["int8"] == 91_750_400_000_000  # "92 TOPS"
    assert capabilities(load_config("tpuv1")).dtypes == ("int8", "int16")
    assert capabilities(load_config("edge")).peak_ops["int8"] == 2_048_000_000_000
    assert capabilities(load_config("server")).peak_ops["int8"] == 131_072_000_000_000


def test_what_dma_reaches_is_the_narrowest_place():
    tiny = load_config("tiny")
    for narrow in ({"dram.efficiency": "1/4"}, {"interconnect.bytes_per_cycle": 2}, {"dma.bytes_per_cycle": 2}):
        assert capabilities(tiny.with_(**narrow)).dram_bandwidth == 2 * 10**9
    assert capabilities(tiny.with_(**{"dma.bytes_per_cycle": 2, "dma.channels": 3})).dram_bandwidth == 6 * 10**9
    two = tiny.with_(**{"dma.bytes_per_cycle": 2, "cores": 2})
    assert capabilities(two).dram_bandwidth == 4 * 10**9


def test_cores_add_up():
    one, four = (capabilities(load_config("edge").with_(cores=cores)) for cores in (1, 4))
    for name in ("scalar_elements", "sram_bandwidth", "sram_bytes"):
        assert getattr(four, name) == 4 * getattr(one, name)
    assert four.peak_macs["int8"] == 4 * one.peak_macs["int8"]
    assert four.vector_ops["divide"] == 4 * one.vector_ops["divide"]
    assert (four.dram_bandwidth, four.dram_bytes) == (one.dram_bandwidth, one.dram_bytes)


def test_a_device_without_units_has_no_peaks():
    peaks = capabilities(load_config("tiny").with_(matrix=None, scalar=None))
    assert (peaks.dtypes, peaks.ridge, peaks.scalar_elements) == ((), None, 0)
    assert not capabilities(load_config("tiny").with_(vector=None)).vector_ops


@pytest.mark.parametrize("name", list_configs())
def test_large_work_comes_close_to_the_peak(name):
    config = load_config(name)
    peaks = capabilities(config)
    for dtype in peaks.dtypes:
        work = MatrixWork(DType[dtype.upper()], 1, 1, 16_384, 1024, 1024, 1, 1, False, True, True, 1)
        reached = Fraction(work.macs * 10**12 * config.cores, cost(config, work).ps * peaks.peak_macs[dtype])
        # Operands and results, or weights, pass before and after: no overlap.
        grid = config.matrix.grid
        serial = config.matrix.port_bytes_per_cycle or (grid and grid.weight_bytes_per_cycle)
        assert Fraction(60 if serial else 95, 100) < reached <= 1
    copy = DmaWork(2**24, 1, 2**24, 2**24, 0)
    channels = config.cores * config.dma.channels
    reached = Fraction(copy.bytes * 10**12, cost(config, copy).ps * peaks.dram_bandwidth)
    assert Fraction(9, 10) / channels < reached <= 1
