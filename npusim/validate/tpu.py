"""Replays of Google's TPUs: kernels of one operator on single units, and whole calls as compiled programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, isqrt, prod
from pathlib import Path

from npusim.dtypes import DType
from npusim.errors import InputError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.cost import cost
from npusim.ops.build import GraphBuilder
from npusim.runtime import Result, Session
from npusim.units import ceil_div
from npusim.validate.base import DataPoint, DataRow, DataSet, Excluded, machine
from npusim.work import DmaWork, MatrixWork, VectorWork

_PS = 1e6
"""Picoseconds in a microsecond."""


def copy(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """One transfer from HBM to VMEM."""
    config = machine("tpuv4")
    for record in records:
        size = record.size("raw_bytes")
        label = f"{record.text('kernel')} {size} B"
        yield DataPoint(label, record.number("copy_done_us"), cost(config, _read(size)).ps / _PS)


def _read(size: int) -> DmaWork:
    return DmaWork(size, 1, size, size, 0)


def matmul_v4(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """A compiled product, from the start of the first transfer to the end of the last: the kernel without its
    dispatch."""
    session = Session(machine("tpuv4"), cache_dir=False)
    for record in records:
        m, n, k = (record.size(column) for column in ("M", "N", "K"))
        label, dtype = f"{m}x{k}x{n} {record.text('dtype')}", _FLOATS.get(record.text("dtype"))
        if record.text("op") != "matmul" or dtype is None:
            yield Excluded(label, f"no law for {record.text('op')} {record.text('dtype')}")
            continue
        spans = _run(session, product(m, k, n, dtype)).timeline.spans
        kernel = max(span.end_ps for span in spans) - min(span.start_ps for span in spans)
        yield DataPoint(label, record.number("fusion_avg_us"), kernel / _PS, f"up to {record.text('set')}")


_FLOATS = {"f16": DType.FLOAT16, "bf16": DType.BFLOAT16, "f32": DType.FLOAT32}

_SIMPLE = (
    "add",
    "sub",
    "mul",
    "relu",
    "leaky_relu",
    "parametric_relu",
    "linear",
    "binary_step",
    "batch_norm_inference",
)
_TRANSCENDENTAL = ("elu", "selu", "sigmoid", "tanh")
_CLASSES = {**dict.fromkeys(_SIMPLE, "simple"), **dict.fromkeys(_TRANSCENDENTAL, "transcendental"), "div": "divide"}
_TWO_OPERANDS = frozenset({"add", "sub", "mul", "div"})
_NARROW = frozenset({"batch_norm_inference"})
"""Kinds measured on two-byte elements; all others on four-byte ones."""
_BLOCK = 512


def vector(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """One streamed kernel: the first block is loaded, all blocks pass the slower of DMA and unit, the last block is
    stored."""
    config = machine("tpuv4")
    for record in records:
        op, shape = record.text("op"), record.text("shape")
        label = f"{op} {shape}"
        if record.text("stable") != "1":
            yield Excluded(label, "stable = 0: the measurement varies")
        elif op not in _CLASSES:
            yield Excluded(label, f"{op} is not a single function of the vector unit")
        else:
            dtype = DType.BFLOAT16 if op in _NARROW else DType.FLOAT32
            yield DataPoint(label, record.number("avg_us"), _streamed(config, op, dtype, stored(record)) / _PS, op)


def stored(record: DataRow) -> int:
    """Elements including the padding of the TPU's tiles: one dimension fills lanes of 128, the best one for this."""
    extents = record.shape("shape")
    return min(prod(extents) // extent * ceil_div(extent, 128) * 128 for extent in extents)


def _streamed(config: Config, op: str, dtype: DType, elements: int) -> int:
    """Picoseconds of an elementwise kernel. 100 Blocks are pipelined, so set-up and latency of a transfer count once
    each, for the first and the last block."""
    writes = elements * dtype.itemsize
    reads = writes * (2 if op in _TWO_OPERANDS else 1)
    lead, tail = cost(config, _read(_BLOCK)), cost(config, DmaWork(_BLOCK, 1, _BLOCK, 0, _BLOCK))
    both = cost(config, DmaWork(reads + writes, (reads + writes) // writes, writes, reads, writes))
    # Blocks follow each other, so set-up and latency of a transfer count once, with the first and the last block.
    moving = dict(both.terms)["transfer"] * 10**12 // config.clock_hz
    work = VectorWork(_CLASSES[op], dtype, elements, 1, reads + writes)
    return lead.ps + max(moving, cost(config, work).ps) + tail.ps


_CHIPS = {"TPU_v6e": "tpuv6e", "TPU_v7": "tpuv7"}
_TYPES = {"bfloat16": DType.BFLOAT16, "float32": DType.FLOAT32, "int8": DType.INT8}


def gemm(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """A compiled product: device time if measured by a trace, with the submission by the host if measured there."""
    sessions: dict[str, Session] = {}
    known: dict[tuple[str, str, tuple[int, int, int]], int] = {}
    for record in records:
        chip, timing, dtype = record.text("hw"), record.text("timing").split("(")[0], record.text("dtype")
        m, n, k = (record.size(column) for column in ("M", "N", "K"))
        label = f"{chip} {timing} {m}x{k}x{n} {dtype}"
        if chip not in _CHIPS or dtype not in _TYPES:
            yield Excluded(label, f"no config or type for {chip} {dtype}")
            continue
        session = sessions.setdefault(chip, Session(machine(_CHIPS[chip]), cache_dir=False))
        name = (chip, dtype, (m, k, n))
        if name not in known:
            known[name] = _run(session, product(m, k, n, _TYPES[dtype])).time_ps
        # A trace starts on the device. Times measured on the host include the submission.
        hosted = 0 if timing == "trace" else session.config.host.submit_ps
        yield DataPoint(label, record.number("latency_us"), (known[name] + hosted) / _PS, f"{chip} {timing}")


def product(m: int, k: int, n: int, dtype: DType) -> Graph:
    """A network of one matrix product. int8 products have int32 results."""
    net = GraphBuilder("product")
    inputs = (net.input("a", (m, k), dtype), net.input("b", (k, n), dtype))
    return net.finish([net.add("matmul", inputs, {}, "y")])


def _run(session: Session, graph: Graph) -> Result:
    """Compile and time a network."""
    program = session.compile(graph)
    result = session.run(program, timing_only=True)
    session.unload(program)
    return result


def applications(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """TOPS of equal layers with the published number of weights, because the shapes of the layers were never published.

    A layer is a product with as many rows as there are operations per byte of weights. Its weights come from DRAM in
    whole tiles of the array during the previous layer, so the longer of the two counts.
    """
    config = machine("tpuv1")
    for record in records:
        app, rows = record.text("app"), record.size("ops_per_weight_byte")
        # A rule on the row itself, so that the choice does not depend on the prediction.
        if record.number("unused_macs_pct") > record.number("useful_macs_pct"):
            yield Excluded(app, IDLE)
            continue
        down, across = tiles(record, config)
        matrix = config.matrix
        assert matrix is not None
        work = MatrixWork(DType.INT8, 1, 1, rows, across * matrix.cols, down * matrix.rows, 1, 1, False, True, True, 1)
        fetch = _read(down * matrix.rows * across * matrix.cols)
        time = max(cost(config, fetch).ps, cost(config, work).ps)
        yield DataPoint(app, record.number("measured_tops"), 2 * rows * weights(record) / time, record.text("type"))


IDLE = "more MACs are idle because of the shapes of the layers than busy, and the shapes are not published"


def weights(record: DataRow) -> float:
    """Weights of one layer of an application, assuming equal layers."""
    return millions(record.text("weights")) / record.size("layers")


def tiles(record: DataRow, config: Config) -> tuple[int, int]:
    """Rows and columns of whole tiles of the array that hold the weights of a layer, as nearly square as possible.

    The utilisation is published: the fraction of busy MACs that have a weight.
    """
    assert config.matrix is not None
    useful, unused = record.number("useful_macs_pct"), record.number("unused_macs_pct")
    count = ceil(weights(record) * (useful + unused) / useful / config.matrix.elements)
    down = max(side for side in range(1, isqrt(count) + 1) if count % side == 0)
    return down, count // down


def millions(text: str) -> int:
    """A count such as ``20M``."""
    try:
        return int(float(text.removesuffix("M")) * 10**6)
    except (ValueError, OverflowError):
        raise InputError(f"weights: must be a count such as 20M, got {text!r}") from None


SETS = (
    DataSet("tpu_v4_hbm_to_vmem_copy", "us", ("tpuv4",), copy),
    DataSet("tpu_v4_vector_ops", "us", ("tpuv4",), vector),
    DataSet("tpu_v4_matmul", "us", ("tpuv4",), matmul_v4),
    DataSet("tpu_v1_isca17", "TOPS", ("tpuv1",), applications),
    DataSet("tpu_v6e_v7_gemm", "us", ("tpuv6e", "tpuv7"), gemm),
)
