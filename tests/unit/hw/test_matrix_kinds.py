"""Cost models of specific machines compared with hand-computed numbers, and the laws of their keys."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.hw.capability import capabilities
from npusim.hw.config import load_config
from npusim.hw.cost import cost
from npusim.hw.units.matrix_direct import job
from npusim.work import DmaWork, MatrixWork, VectorWork

MESH, NVDLA, GRID = load_config("gemmini_mesh16"), load_config("nvdla_small"), load_config("intel_npu27")
SCALESIM, TPU = load_config("scalesim"), load_config("tpuv4")


def matmul(m, k, n, dtype=DType.INT8, last=True):
    return MatrixWork(dtype, 1, 1, m, n, k, 1, 1, False, True, last, 1)


def conv(oh, ow, oc, ic, k, dtype=DType.INT8, depthwise=False):
    return MatrixWork(dtype, 1, oh, ow, oc, ic, k, k, depthwise, True, True, 1)


# SCALE-Sim: a fold is R + C + T - 2 (output stationary) or 2R + C + T - 2 cycles, nothing overlaps.


@pytest.mark.parametrize(
    ("dataflow", "cycles"),
    [
        ("output_stationary", 4 * 2 * (32 + 32 + 70 - 2)),  # 100 rows of output by 40 columns, depth 70
        ("weight_stationary", 3 * 2 * (64 + 32 + 100 - 2)),
        ("input_stationary", 3 * 4 * (64 + 32 + 40 - 2)),
    ],
)
def test_scalesim_folds(dataflow, cycles):
    assert cost(SCALESIM.with_(**{"matrix.dataflow": dataflow}), matmul(100, 70, 40)).cycles == cycles


# The mesh: 16 rows of preload, 16 for each operation that preloads the next, the last one's own (4 at least), + 33.


@pytest.mark.parametrize(
    ("m", "k", "n", "rows"),
    [
        (1, 16, 16, 16 + 4),
        (10, 16, 16, 16 + 10),
        (16, 16, 16, 16 + 16),
        (17, 16, 16, 16 + 16 + 4),  # the second operation feeds one row
        (17, 32, 48, 16 + 11 * 16 + 4),
    ],
)
def test_rows_that_the_mesh_is_fed(m, k, n, rows):
    assert cost(MESH, matmul(m, k, n)).terms == (("rows", rows), ("pipeline", 33))


def test_a_stalled_mesh_feeds_a_row_every_so_many_cycles():
    stalled = MESH.with_(**{"matrix.mesh.row_stall_cycles": 2})
    assert cost(stalled, matmul(16, 16, 16)).terms == (("rows", 2 + 31 * 3), ("pipeline", 33))


def test_an_output_stationary_mesh_shifts_its_sums_out():
    out = MESH.with_(**{"matrix.dataflow": "output_stationary"})
    assert cost(out, matmul(32, 32, 16)).terms == (("rows", 16 + 4 * 16), ("pipeline", 49))


def test_a_slower_type_takes_the_mesh_longer():
    assert cost(MESH, matmul(16, 16, 16, DType.INT16)).terms == (("rows", 1 + 31 * 2), ("pipeline", 33))


# NVDLA: 8 channels by 8 kernels a cycle; 123 + 2 * 50 cycles of start.


def test_a_stripe_lasts_as_long_as_the_next_weights_take():
    one = dict(cost(NVDLA, matmul(1, 64, 16, last=False)).terms)
    assert one == {"mac": 2 * 8 * 8}  # two groups, eight atoms, 64 weight bytes at 8 a cycle
    assert dict(cost(NVDLA, matmul(20, 64, 16, last=False)).terms) == {"mac": 2 * 8 * 20}


def test_post_processing_may_decide():
    found = cost(NVDLA, matmul(16, 8, 8))  # 16 cycles of MACs; 16 atoms of 9 cycles, two gaps, after the first 8
    assert found.terms == (("output", 8 + 16 * 9 + 2 * 19),)


def test_a_job_fetches_features_and_weights_in_turn():
    terms = dict(job(NVDLA, matmul(1, 256, 8), 1).terms)
    assert terms["start"] == 123 + 2 * 50
    assert terms["fetch"] == 32 * 2 + (256 - 32)  # every other beat beside the features, then all
    assert terms["mac"] == 32 * 8
    assert terms["tail"] == 9


@pytest.mark.parametrize(
    ("pixels", "channels", "cycles"),
    [
        (70, 16, 140),  # two channel groups come at a burst a cycle
        (70, 24, 270),  # three of them at 11 in 14: 210 * 14 / 11 = 267.3, in whole cycles of the price
        (70, 3, 70),  # a burst holds one pixel, whatever of it there is
        (70, 17, 270),
    ],
)
def test_features_come_in_atoms_and_with_bubbles(pixels, channels, cycles):
    moved = pixels * channels
    found = cost(NVDLA, DmaWork(moved, pixels, channels, moved, 0, features=True))
    assert dict(found.terms)["transfer"] == pytest.approx(cycles, abs=3)
    # A memory that is slower than that has no bubbles.
    slow = NVDLA.with_(**{"dram.bandwidth": "4 GB/s"})
    atoms = pixels * -(-channels // 8)
    found = cost(slow, DmaWork(moved, pixels, channels, moved, 0, features=True))
    assert dict(found.terms)["transfer"] == 2 * atoms


def test_results_that_share_the_port_delay_weights():
    slow = NVDLA.with_(**{"dram.bandwidth": 10**9})
    work = matmul(64, 64, 512)
    assert job(slow.with_(**{"interconnect.separate_write_port": False}), work, 64).cycles > job(slow, work, 64).cycles


@pytest.mark.parametrize("groups", [1, 2, 3, 8, 64])
def test_each_group_but_the_last_two_delays_weights_by_its_results(groups):
    """A row of results is one burst of 8 cycles. It comes before the weights of the group after the next one, because
    those of the next group are already in flight when it is done."""
    slow = NVDLA.with_(**{"dram.bandwidth": 10**9})
    shared = slow.with_(**{"interconnect.separate_write_port": False})
    work = matmul(1, 64, 8 * groups)
    apart, together = (dict(job(config, work, 1).terms)["fetch"] for config in (slow, shared))
    assert together - apart == max(0, groups - 2) * 8


SIZE = st.integers(1, 80)


@given(SIZE, SIZE, SIZE, st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_a_job_is_never_faster_with_less(pixels, channels, kernels, size, divisor):
    work, inputs = conv(pixels, 3, kernels, channels, size), pixels * 9
    now = job(NVDLA, work, inputs).cycles
    assert now == sum(cycles for _, cycles in job(NVDLA, work, inputs).terms)
    assert now <= job(NVDLA.with_(**{"dram.bandwidth": 8 * 10**9 // divisor}), work, inputs).cycles
    assert now <= job(NVDLA.with_(**{"dram.latency_ps": 50_000 * divisor}), work, inputs).cycles
    assert now <= job(NVDLA.with_(**{"dma.max_outstanding": 256 // divisor}), work, inputs).cycles
    assert now <= job(NVDLA.with_(**{"matrix.direct.output_gap_cycles": 19 * divisor}), work, inputs).cycles


def test_a_job_is_one_image():
    for changes in ({"batch": 2}, {"depthwise": True}):
        with pytest.raises(ProgramError, match="a job must be one image and not depthwise, got MatrixWork"):
            job(NVDLA, dataclasses.replace(conv(4, 4, 8, 8, 1), **changes), 16)


def test_twice_the_clock_with_memory_twice_as_fast_is_half_the_time():
    work = conv(14, 14, 64, 64, 3)
    fast = NVDLA.with_(clock="2 GHz", **{"dram.bandwidth": "16 GB/s", "dram.latency": "25 ns"})
    assert 2 * job(fast, work, 256).ps == job(NVDLA, work, 256).ps


# The grid: 4 x 4 pixels, 16 channels, 2048 int8 MACs a cycle.


def test_edges_of_the_grid_are_filled_up():
    whole = cost(GRID, conv(4, 28, 96, 96, 3))
    assert whole.terms == (("start", 250), ("mac", 4 * 28 * 96 * 96 * 9 // 2048))
    assert cost(GRID, conv(1, 28, 96, 96, 3)).cycles == whole.cycles
    assert cost(GRID, conv(4, 28, 81, 96, 3)).cycles == whole.cycles
    assert cost(GRID, conv(4, 28, 96, 96, 3, DType.FLOAT16)).cycles == 250 + 2 * (whole.cycles - 250)


def test_pixels_of_a_product_fill_blocks_in_any_order():
    assert cost(GRID, matmul(64, 2048, 16)).terms == (("start", 250), ("operands", 64 * 2048 // 80 + 1))
    assert dict(cost(GRID, matmul(64, 2048, 256)).terms)["mac"] == 64 * 2048 * 256 // 2048


def test_depthwise_goes_tap_by_tap_over_32_bytes_of_channels():
    half, full, twice = (dict(cost(GRID, conv(16, 56, c, c, 3, depthwise=True)).terms)["mac"] for c in (16, 32, 64))
    assert half == full == -(-4 * 14 * 9 * 28 // 5)
    assert twice in (2 * full, 2 * full - 1)


def test_a_type_that_a_kind_does_not_compute_is_named():
    for config in (MESH, NVDLA, GRID):
        missing = config.with_(**{"matrix.throughput": {"int16": 1}})
        with pytest.raises(ProgramError, match="whose matrix unit computes with int16 only"):
            cost(missing, matmul(1, 1, 1))


# Several arrays, serial ports, and the transfers of a chip that is measured.


def test_arrays_share_folds_and_streams():
    one, eight = (TPU.with_(**{"matrix.arrays": count}) for count in (1, 8))
    single, shared = (dict(cost(config, matmul(4096, 1024, 128)).terms) for config in (one, eight))
    assert single["stream"] == 8 * 4096 * 5 // 4  # eight folds, 4/5 of the cycles take a row
    assert shared["stream"] == 4096 * 5 // 4
    assert dict(cost(eight, matmul(128, 128, 128)).terms)["stream"] == 128  # a stream is cut R rows at a time


def test_operands_pass_a_serial_port_before_and_after():
    terms = dict(cost(TPU, matmul(64, 256, 128, DType.FLOAT16)).terms)
    assert terms["port"] == -(-((64 * 256 + 256 * 128) * 2 + 64 * 128) // 640)
    assert "port" not in dict(cost(TPU.with_(**{"matrix.port_bytes_per_cycle": 0}), matmul(64, 256, 128)).terms)


def test_the_vector_unit_has_ports_of_its_own():
    work = VectorWork("simple", DType.FLOAT32, 2048, 1, 64_000)
    assert dict(cost(TPU, work).terms) == {"setup": 110, "sram": 100}
    wide = TPU.with_(**{"vector.port_bytes_per_cycle": 0})
    assert dict(cost(wide, work).terms) == {"setup": 110, "sram": 16}  # 4096 bytes a cycle


def test_copies_within_sram_have_a_width_and_a_least_duration_of_their_own():
    assert cost(GRID, DmaWork(1, 1, 1, 0, 0)).ps == 80_000  # 104 cycles of 1.3 GHz
    assert cost(GRID, DmaWork(20_800, 1, 20_800, 0, 0)).ps == 66_154 + 1000 * 1000  # 86 cycles rounded up, 1300


def test_the_first_data_are_passed_on_when_enough_are_there():
    small, large = (cost(GRID, DmaWork(size, 1, size, size, 0)) for size in (64, 64_000))
    latency = 512 * 1300 / 1000
    assert dict(small.terms)["latency"] == -(-(latency + 2) // 1)  # 64 bytes at 32 a cycle
    assert dict(large.terms)["latency"] == -(-(latency + 48) // 1)  # 1536 bytes


def test_writes_are_acknowledged_sooner_than_reads_answer():
    read, write = DmaWork(64, 1, 64, 64, 0), DmaWork(64, 1, 64, 0, 64)
    assert cost(GRID, read).ps - cost(GRID, write).ps == 512_000 - 128_000
    assert cost(GRID.with_(**{"dma.write_latency": None}), write).ps == cost(GRID, read).ps


def test_a_duplex_copy_within_dram_is_bound_by_one_way_or_by_the_pins():
    size = 1 << 20
    both = DmaWork(size, 1, size, size, size)
    channel = 32 * 1300 * 10**6
    fast = GRID.with_(**{"dram.bandwidth": 4 * channel})

    def beats(config):
        return dict(cost(config, both).terms)["transfer"] - 1  # picoseconds are rounded up

    assert beats(fast) == size // 32
    assert beats(fast.with_(**{"dma.duplex": False})) == 2 * size // 32
    assert beats(GRID.with_(**{"dram.bandwidth": channel})) == 2 * size // 32


KINDS = st.sampled_from([MESH, NVDLA, GRID, SCALESIM, TPU, load_config("intel_npu40"), load_config("tpuv6e")])
WORK = st.builds(
    lambda batch, oh, ow, oc, ic, k, depthwise, first, last, out: MatrixWork(
        DType.INT8, batch, oh, ow, ic * oc if depthwise else oc, ic, k, k, depthwise, first, last, out
    ),
    st.integers(1, 3), SIZE, SIZE, SIZE, SIZE, st.integers(1, 5), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([1, 4]),
)  # fmt: skip


@given(KINDS, WORK)
def test_a_cost_adds_up_and_does_not_pass_the_peak(config, work):
    found = cost(config, work)
    assert found.cycles == sum(cycles for _, cycles in found.terms)
    assert all(cycles > 0 for _, cycles in found.terms)
    assert work.macs * 10**12 <= capabilities(config).peak_macs["int8"] * found.ps


@given(KINDS, WORK, st.sampled_from(["oh", "ow", "oc", "ic", "batch"]))
def test_more_work_never_takes_less_and_two_batches_at_most_twice(config, work, dimension):
    more = dataclasses.replace(work, **{dimension: getattr(work, dimension) * 2})
    if work.depthwise and dimension == "ic":
        more = dataclasses.replace(more, oc=work.oc * 2)
    now, then = cost(config, work).ps, cost(config, more).ps
    assert now <= then
    if dimension == "batch":
        assert then <= 2 * now


@given(KINDS, WORK)
def test_twice_the_clock_is_half_the_time(config, work):
    fast = config.with_(clock_hz=2 * config.clock_hz)
    assert abs(2 * cost(fast, work).ps - cost(config, work).ps) <= 2
