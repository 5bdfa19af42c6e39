"""Cost formulas compared with hand-computed numbers, and laws that hold on every device."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.hw.capability import capabilities
from npusim.hw.config import list_configs, load_config
from npusim.hw.cost import cost, cost_model
from npusim.hw.dram.fixed import FixedDram
from npusim.hw.memory import dram_model
from npusim.hw.sections import FUNCTIONS
from npusim.hw.units.dma import channel_bandwidth, transfer
from npusim.units import cycles_to_ps
from npusim.work import ControlWork, DmaWork, MatrixWork, ScalarWork, VectorWork

TINY, EDGE = load_config("tiny"), load_config("edge")


def matmul(m, k, n, dtype=DType.INT8, **changes):
    work = MatrixWork(dtype, 1, 1, m, n, k, 1, 1, False, True, True, 1)
    return dataclasses.replace(work, **changes)


def terms(config, work):
    found = cost(config, work)
    assert sum(cycles for _, cycles in found.terms) == found.cycles
    return dict(found.terms)


# tiny: R = C = 8, nothing hidden: a fold is stream + 8 (swap) + 14 (skew); 4 cycles set-up, 1 SRAM latency.


def test_one_fold_is_the_published_runtime():
    found = cost(TINY, matmul(16, 8, 8))
    assert found.terms == (("setup", 4), ("sram_latency", 1), ("stream", 16), ("swap", 8), ("skew", 14))
    assert found.cycles - 5 == 2 * 8 + 8 + 16 - 2
    assert (found.ps, found.bound) == (43_000, "latency")


@pytest.mark.parametrize(
    ("dataflow", "m", "k", "n", "folds", "stream"),
    [
        ("weight_stationary", 16, 8, 8, 1, 16),
        ("weight_stationary", 16, 9, 17, 4, 16),  # ceil(9/8) * ceil(17/16): an edge fold costs a full one
        ("weight_stationary", 100, 64, 8, 8, 100),
        ("output_stationary", 16, 8, 8, 2, 8),
        ("output_stationary", 9, 100, 17, 4, 100),
        ("input_stationary", 16, 8, 8, 1, 8),
        ("input_stationary", 17, 9, 100, 4, 100),
    ],
)
def test_folds_of_each_dataflow(dataflow, m, k, n, folds, stream):
    config = TINY.with_(**{"matrix.cols": 16, "matrix.dataflow": dataflow, "sram.bytes_per_cycle": 4096})
    expected = {"setup": 4, "sram_latency": 1, "stream": folds * stream, "swap": folds * 8, "skew": folds * 22}
    assert terms(config, matmul(m, k, n, last=False)) == expected


def test_a_convolution_is_a_matmul_of_its_pixels_and_its_window():
    conv = MatrixWork(DType.INT8, 1, 5, 7, 24, 4, 3, 3, False, True, True, 1)
    assert cost(TINY, conv) == cost(TINY, matmul(35, 36, 24))


def test_items_of_a_batch_share_nothing():
    one, three = terms(TINY, matmul(16, 8, 8)), terms(TINY, matmul(16, 8, 8, batch=3))
    assert [three[name] for name in ("stream", "swap", "skew")] == [
        3 * one[name] for name in ("stream", "swap", "skew")
    ]


def test_a_hidden_preload_shows_once_and_one_skew_is_paid():
    # edge: R = C = 32: 16 * 16 folds of 512 cycles, one swap of 32, one skew of 62
    assert terms(EDGE, matmul(512, 512, 512)) == {
        "setup": 16,
        "sram_latency": 2,
        "stream": 131_072,
        "swap": 32,
        "skew": 62,
    }


def test_a_preload_hides_no_more_than_the_stream_lasts():
    # 4 folds of 1 cycle: each waits 31 more for its weights, the first for all 32
    assert terms(EDGE, matmul(1, 64, 64))["swap"] == 4 * 31 + 32
    assert terms(EDGE.with_(**{"matrix.weight_buffers": 3}), matmul(1, 64, 64))["swap"] == 4 * 31
    assert terms(EDGE.with_(**{"matrix.preload_hidden": False}), matmul(1, 64, 64))["swap"] == 4 * 32
    assert terms(EDGE.with_(**{"matrix.fill_drain": "per_fold"}), matmul(1, 64, 64))["skew"] == 4 * 62


@pytest.mark.parametrize(("dtype", "stream"), [("INT8", 512), ("UINT8", 512), ("FLOAT16", 1024), ("FLOAT32", 2048)])
def test_a_wider_type_streams_longer(dtype, stream):
    assert terms(EDGE, matmul(512, 32, 32, DType[dtype]))["stream"] == stream


def test_a_rate_above_one_streams_shorter_and_rounds_up():
    fast = EDGE.with_(**{"matrix.throughput.int8": "3/2"})
    assert terms(fast, matmul(512, 32, 32, last=False))["stream"] == 342


def test_depthwise_channels_lie_on_the_diagonal():
    depthwise = MatrixWork(DType.INT8, 1, 28, 28, 64, 64, 3, 3, True, True, True, 1)
    # 32 // 9 = 3 channels in a fold, ceil(64 / 3) = 22 folds of 784 pixels
    assert terms(EDGE, depthwise)["stream"] == 22 * 784
    # two filters a channel: 2 columns each, 9 rows each, still 3 channels
    assert terms(EDGE, dataclasses.replace(depthwise, oc=128))["stream"] == 22 * 784
    # 5 x 5: 32 // 25 = 1 channel in a fold
    assert terms(EDGE, dataclasses.replace(depthwise, kh=5, kw=5))["stream"] == 64 * 784
    # 1 x 1 with two filters: 32 channels fit in the rows, 16 in the columns
    assert terms(EDGE, dataclasses.replace(depthwise, kh=1, kw=1, oc=128))["stream"] == 4 * 784
    # tiny has 8 rows for 9 weights: 2 folds a channel
    assert terms(TINY, depthwise)["stream"] == 64 * 2 * 784


def test_post_processing_is_beside_the_array_and_may_decide():
    slow = EDGE.with_(**{"matrix.output_elements_per_cycle": 4})
    found = cost(slow, matmul(512, 32, 32))
    assert found.terms == (("setup", 16), ("sram_latency", 2), ("output", 512 * 32 // 4))
    assert found.bound == "compute"
    assert "output" not in terms(slow, matmul(512, 32, 32, last=False))


def test_sram_traffic_is_beside_the_array_and_may_decide():
    # weights 8*8, inputs 16*8, outputs 16*8: 320 bytes; on 8 bytes a cycle 40 cycles against 38
    narrow = TINY.with_(**{"sram.bytes_per_cycle": 1})
    found = cost(narrow, matmul(16, 8, 8))
    assert found.terms == (("setup", 4), ("sram_latency", 1), ("sram", 40))
    assert found.bound == "memory"
    # two blocks of columns: weights 8*16, inputs 16*8 for each block, outputs 16*16 of 4 bytes
    assert terms(narrow, matmul(16, 8, 16, out_bytes=4))["sram"] == (128 + 256 + 1024) // 8


@pytest.mark.parametrize(
    ("first", "last", "moved"),
    [
        # weights 2*64 and inputs 16*16 each time; 128 sums of 4 bytes: 2 folds of K write, read and write again;
        # the outputs leave instead of the last write
        (True, True, 384 + 128 * 4 * 2 + 128),
        (True, False, 384 + 128 * 4 * 3),
        (False, True, 384 + 128 * 4 * 3 + 128),
        (False, False, 384 + 128 * 4 * 4),
    ],
)
def test_partial_sums_without_accumulators_are_sram_traffic(first, last, moved):
    narrow = TINY.with_(**{"sram.banks": 1, "sram.bytes_per_cycle": 1})
    assert terms(narrow, matmul(16, 16, 8, first=first, last=last))["sram"] == moved
    own = narrow.with_(**{"matrix.accumulator_bytes": 4096})
    assert terms(own, matmul(16, 16, 8, first=first, last=last))["sram"] == 384 + 128 * last


def test_sums_stay_in_the_array_when_outputs_are_stationary():
    narrow = TINY.with_(**{"sram.banks": 1, "sram.bytes_per_cycle": 1, "matrix.dataflow": "output_stationary"})
    # both operands stream: inputs 16*16 once for the one block of columns, weights 8*16 for each of two blocks of rows
    assert terms(narrow, matmul(16, 16, 8))["sram"] == 256 + 256 + 128
    assert terms(narrow, matmul(16, 16, 8, first=False, last=False))["sram"] == 256 + 256 + 128 * 4 * 2


def test_a_unit_with_its_own_clock_waits_for_the_sram_in_its_own_cycles():
    fast = TINY.with_(**{"matrix.clock": "2 GHz", "sram.bytes_per_cycle": 1})
    found = cost(fast, matmul(16, 8, 8))
    assert found.terms == (("setup", 4), ("sram_latency", 2), ("sram", 80))
    assert found.ps == 86 * 500


def test_vector_work_goes_in_groups_of_lanes():
    assert terms(TINY, VectorWork("simple", DType.FLOAT32, 1001, 1, 8)) == {
        "setup": 4,
        "sram_latency": 1,
        "compute": 126,
    }
    assert terms(TINY, VectorWork("transcendental", DType.FLOAT32, 1000, 3, 8))["compute"] == 125 * 8 * 3
    assert terms(TINY, VectorWork("simple", DType.INT8, 1000, 1, 8))["compute"] == 125  # not packed
    assert terms(TINY, VectorWork("simple", DType.INT64, 1000, 1, 8))["compute"] == 250  # two words each
    packed = TINY.with_(**{"vector.packed": True})
    assert terms(packed, VectorWork("simple", DType.INT8, 1000, 1, 8))["compute"] == 32
    assert terms(packed, VectorWork("simple", DType.INT64, 1000, 1, 8))["compute"] == 250


def test_vector_work_may_wait_for_the_sram():
    found = cost(TINY, VectorWork("simple", DType.FLOAT32, 8, 1, 12_800))
    assert found.terms == (("setup", 4), ("sram_latency", 1), ("sram", 100))
    assert (found.bound, cost(TINY, VectorWork("simple", DType.FLOAT32, 8, 1, 8)).bound) == ("memory", "latency")


def test_scalar_work_takes_element_after_element():
    assert terms(TINY, ScalarWork(10, 80)) == {"setup": 4, "sram_latency": 1, "compute": 40}
    assert terms(TINY, ScalarWork(1, 1600))["sram"] == 100  # one bank's port of 16 bytes


# tiny: 10 cycles set-up + 1 SRAM latency, 100 ns DRAM latency, 8 bytes a nanosecond, bursts of 64 bytes.


def test_a_long_transfer_runs_at_the_pins_bandwidth():
    found = cost(TINY, DmaWork(65_536, 1, 65_536, 65_536, 0))
    assert found.terms == (("setup", 11), ("latency", 100), ("transfer", 8192))
    assert (found.ps, found.bound) == (8_303_000, "memory")


def test_short_runs_waste_the_rest_of_their_bursts():
    assert terms(TINY, DmaWork(1000, 1000, 1, 0, 1000))["transfer"] == 1000 * 64 // 8
    assert terms(TINY, DmaWork(6500, 100, 65, 6500, 0))["transfer"] == 100 * 128 // 8
    assert FixedDram(TINY).transfer_bytes(DmaWork(6500, 100, 65, 6500, 0)) == 12_800


def test_a_copy_within_dram_passes_the_pins_twice():
    assert dram_model(TINY).transfer_bytes(DmaWork(4096, 1, 4096, 4096, 4096)) == 8192


def test_a_transfer_within_sram_touches_no_dram():
    work = DmaWork(4000, 4, 1000, 0, 0)
    assert dram_model(TINY).transfer_bytes(work) == 0
    found = cost(TINY, work)
    assert found.terms == (("setup", 11), ("transfer", 500))
    assert transfer(TINY, work) == (11_000, 0, 0, 500_000, 0, 0, 11_000)


def test_what_is_written_beside_what_is_read_takes_its_time_at_the_channel():
    """Padding, or an element read once: 8 bytes per cycle of tiny's channel, minus the time of the bus."""
    padded = cost(TINY, DmaWork(4 << 20, 1, 16, 16, 0))
    assert padded.terms == (("setup", 11), ("latency", 100), ("transfer", 8), ("writing", (4 << 20) // 8 - 8))
    assert (padded.ps, padded.bound) == ((111 + (4 << 20) // 8) * 1000, "memory")
    slow = TINY.with_(**{"dram.efficiency": "1/2"})  # 64 bytes in 16 cycles, in which 128 are written
    assert "writing" not in terms(slow, DmaWork(128, 1, 64, 64, 0))
    assert terms(slow, DmaWork(129, 1, 64, 64, 0))["writing"] == 1


def test_a_duplex_copy_that_writes_more_than_it_reads_takes_the_larger_way():
    duplex = TINY.with_(**{"dma.duplex": True, "dram.bandwidth": "16 GB/s"})
    assert terms(duplex, DmaWork(8000, 1, 64, 64, 8000))["transfer"] == 1000


def test_an_empty_transfer_costs_its_start():
    assert terms(TINY, DmaWork(0, 0, 0, 0, 0)) == {"setup": 11}


def test_outstanding_bursts_limit_a_channel():
    assert channel_bandwidth(TINY) == 8 * 10**9  # its width; 16 bursts would allow 10.24 GB/s
    one = TINY.with_(**{"dma.max_outstanding": 1})
    assert channel_bandwidth(one) == 640_000_000  # 64 bytes every 100 ns
    assert terms(one, DmaWork(6400, 1, 6400, 6400, 0))["transfer"] == 10_000
    slow = one.with_(**{"interconnect.latency_cycles": 100})
    assert channel_bandwidth(slow) == 320_000_000
    assert terms(slow, DmaWork(64, 1, 64, 64, 0))["latency"] == 200


def test_the_interconnect_and_the_efficiency_limit_a_transfer():
    work = DmaWork(8000, 1, 8000, 8000, 0)
    assert terms(TINY.with_(**{"interconnect.bytes_per_cycle": 2}), work)["transfer"] == 4000
    assert terms(TINY.with_(**{"dram.efficiency": "1/2"}), work)["transfer"] == 2000
    assert FixedDram(TINY.with_(**{"dram.efficiency": "0.3"})).bandwidth == 2_400_000_000


def test_control_is_free():
    assert cost(TINY, ControlWork()).ps == 0


def test_costs_are_computed_once_for_equal_work():
    model = cost_model(TINY)
    assert cost_model(load_config("tiny")) is model
    assert model.cost(matmul(3, 5, 7)) is model.cost(matmul(3, 5, 7))


def test_work_for_a_unit_that_is_not_there_is_named():
    bare = TINY.with_(matrix=None, vector=None)
    with pytest.raises(ProgramError) as caught:
        cost(bare, matmul(1, 1, 1))
    assert str(caught.value) == "matrix work on tiny, which has no matrix unit"
    with pytest.raises(ProgramError) as caught:
        cost(bare, VectorWork("simple", DType.INT8, 1, 1, 1))
    assert str(caught.value) == "vector work on tiny, which has no vector unit"
    with pytest.raises(ProgramError) as caught:
        cost(TINY.with_(scalar=None), ScalarWork(1, 1))
    assert str(caught.value) == "scalar work on tiny, which has no scalar unit"


def test_a_type_or_function_that_is_not_computed_is_named():
    with pytest.raises(ProgramError) as caught:
        cost(load_config("tpuv1"), matmul(1, 1, 1, DType.FLOAT32))
    assert str(caught.value) == "matrix work in float32 on tpuv1, whose matrix unit computes with int8, int16 only"
    with pytest.raises(ProgramError) as caught:
        cost(TINY, VectorWork("exp", DType.INT8, 1, 1, 1))
    assert str(caught.value) == (
        "vector function class must be one of simple, divide, sqrt, transcendental, convert, reduce, got 'exp'"
    )
    with pytest.raises(ProgramError) as caught:
        cost(TINY, 7)
    assert str(caught.value) == "no cost model for int"


SIZE = st.integers(1, 70)
MATRIX = st.builds(
    lambda dtype, batch, oh, ow, oc, ic, kh, kw, depthwise, first, last, out: MatrixWork(
        dtype, batch, oh, ow, ic * oc if depthwise else oc, ic, kh, kw, depthwise, first, last, out
    ),
    st.sampled_from([DType.INT8, DType.UINT8, DType.INT16]),
    st.integers(1, 3),
    SIZE,
    SIZE,
    SIZE,
    SIZE,
    st.integers(1, 7),
    st.integers(1, 7),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
)
VECTOR = st.builds(
    VectorWork,
    st.sampled_from(FUNCTIONS),
    st.sampled_from([DType.INT8, DType.FLOAT16, DType.FLOAT32, DType.INT64]),
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(0, 100_000),
)
SCALAR = st.builds(ScalarWork, st.integers(0, 1000), st.integers(0, 10_000))


@st.composite
def dma_work(draw):
    runs, run_bytes = draw(st.integers(1, 300)), draw(st.integers(1, 5000))
    total = runs * run_bytes
    reads, writes = draw(st.sampled_from([(total, 0), (0, total), (total, total), (0, 0)]))
    return DmaWork(total, runs, run_bytes, reads, writes)


WORK = st.one_of(MATRIX, VECTOR, SCALAR, dma_work())
DEVICE = st.sampled_from(
    [
        config
        for config in map(load_config, list_configs())
        if config.matrix.model == "systolic" and config.matrix.rate("int16") and config.matrix.rate("int8")
    ]
)
DATAFLOW = st.sampled_from(["weight_stationary", "output_stationary", "input_stationary"])


def clock_of(config, work):
    if isinstance(work, MatrixWork):
        return config.matrix_hz
    return config.vector_hz if isinstance(work, VectorWork) else config.clock_hz


@given(DEVICE, DATAFLOW, WORK)
def test_a_cost_adds_up_and_is_positive(config, dataflow, work):
    config = config.with_(**{"matrix.dataflow": dataflow})
    found = cost(config, work)
    assert found.cycles == sum(cycles for _, cycles in found.terms)
    assert all(cycles > 0 for _, cycles in found.terms)
    assert found.ps > 0
    exact = cycles_to_ps(found.cycles, clock_of(config, work))
    if isinstance(work, DmaWork):  # bytes at a bandwidth: exact in ps, each part rounded up to a cycle
        assert exact - 3 * cycles_to_ps(1, config.clock_hz) <= found.ps <= exact
    else:
        assert found.ps == exact


@given(DEVICE, DATAFLOW, WORK)
def test_no_work_passes_the_peak(config, dataflow, work):
    config = config.with_(**{"matrix.dataflow": dataflow})
    peaks, found = capabilities(config), cost(config, work)
    if isinstance(work, MatrixWork):
        dtype = {DType.UINT8: "int8"}.get(work.dtype, work.dtype.label)
        assert work.macs * 10**12 * config.cores <= peaks.peak_macs[dtype] * found.ps
    elif isinstance(work, VectorWork):
        shared = 4 // min(4, work.dtype.itemsize) if config.vector.packed else 1
        operations = work.elements * work.passes
        assert operations * 10**12 * config.cores <= shared * peaks.vector_ops[work.function] * found.ps + 10**12
        assert work.bytes * 10**12 * config.cores <= peaks.sram_bandwidth * found.ps
    elif isinstance(work, DmaWork):
        assert (work.reads + work.writes) * 10**12 <= peaks.dram_bandwidth * found.ps
    else:
        assert work.elements * 10**12 * config.cores <= peaks.scalar_elements * found.ps + 10**12


DOUBLED = (
    "clock", "dram.bandwidth", "sram.bytes_per_cycle", "dma.bytes_per_cycle", "dma.max_outstanding", "vector.lanes",
    "matrix.output_elements_per_cycle", "interconnect.bytes_per_cycle",
)  # fmt: skip
HALVED = (
    "dram.latency", "sram.latency_cycles", "interconnect.latency_cycles", "dma.setup_cycles", "matrix.setup_cycles",
    "vector.setup_cycles", "scalar.setup_cycles",
)  # fmt: skip


@given(DEVICE, DATAFLOW, WORK, st.sampled_from(DOUBLED + HALVED))
def test_a_better_device_is_never_slower(config, dataflow, work, key):
    config = config.with_(**{"matrix.dataflow": dataflow})
    place = config.to_table()
    *above, last = key.split(".")
    for name in above:
        place = place[name]
    value = place[last] * 2 if key in DOUBLED else place[last] // 2
    if config.technology is not None:
        config = config.with_(**{"technology.any_clock": True})
    assert cost(config.with_(**{key: value}), work).ps <= cost(config, work).ps


@given(DEVICE, DATAFLOW, MATRIX)
def test_a_faster_or_better_hidden_array_is_never_slower(config, dataflow, work):
    config = config.with_(**{"matrix.dataflow": dataflow})
    now = cost(config, work).ps
    rate = config.matrix.rate(work.dtype.label)
    faster = {"matrix.throughput.int8": str(rate * 2), "matrix.throughput.int16": str(rate * 2)}
    assert cost(config.with_(**faster), work).ps <= now
    hidden = {"matrix.preload_hidden": True, "matrix.fill_drain": "per_tile", "matrix.weight_buffers": 4}
    assert cost(config.with_(**hidden), work).ps <= now
    assert cost(config.with_(**{"matrix.accumulator_bytes": 2**20}), work).ps <= now


@given(DEVICE, DATAFLOW, MATRIX, st.sampled_from(["oh", "ow", "oc", "ic", "batch"]))
def test_more_work_never_takes_less(config, dataflow, work, dimension):
    config = config.with_(**{"matrix.dataflow": dataflow})
    more = dataclasses.replace(work, **{dimension: getattr(work, dimension) * 2})
    if work.depthwise:
        more = dataclasses.replace(work, batch=work.batch * 2)
    assert cost(config, more).ps >= cost(config, work).ps
