"""Replays of layers as compiled programs on the whole device.

Direct replays measure one piece of work on one unit. Here the compiler tiles the layer, and the time is from the first
to the last instruction, including transfers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session
from npusim.validate import tpu
from npusim.validate.arrays import bench
from npusim.validate.base import DataPoint, DataRow, DataSet, Excluded, machine
from npusim.validate.networks.small import perceptron

_PS = 1e6
"""Picoseconds in a microsecond."""


def kernel_ps(config: Config, graph: Graph) -> int:
    """Picoseconds from the start of the first instruction to the end of the last: a kernel without its dispatch."""
    session = Session(config, cache_dir=False)
    spans = session.run(session.compile(graph), timing_only=True).timeline.spans
    return max(span.end_ps for span in spans) - min(span.start_ps for span in spans)


def nvdla(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """One convolution from DRAM to DRAM, with latency and bandwidth of the testbench, including start and end of the
    job."""
    for record in records:
        label, config = bench(record)
        if config is None:
            yield Excluded(label, "match = 0: the outputs of the RTL were wrong")
            continue
        columns = ("W", "H", "C", "K", "R", "S", "P", "Q", "sx", "sy")
        w, h, c, k, kh, kw, oh, ow, sx, sy = (record.size(column) for column in columns)
        down, right = max(0, (oh - 1) * sy + kh - h), max(0, (ow - 1) * sx + kw - w)
        net = GraphBuilder("layer")
        x = net.input("x", (1, h, w, c), DType.INT8)
        weights = net.const(np.broadcast_to(np.int8(1), (k, c, kh, kw)))
        attrs = {
            "layout": "NHWC",
            "stride": (sy, sx),
            "dilation": (1, 1),
            "groups": 1,
            "pads": (down // 2, right // 2, down - down // 2, right - right // 2),
        }
        y = net.add("conv", (x, weights), attrs)
        one, zero = net.const(np.float32(1)), net.const(np.int32(0))
        real = net.add("dequantize", (y, one, zero), {"to": DType.FLOAT32})
        graph = net.finish([net.add("quantize", (real, one, zero), {"to": DType.INT8})])
        matrix = config.matrix
        assert matrix is not None
        assert matrix.direct is not None
        # The registers of the job are written before the compiled commands, and its interrupt arrives after them.
        start = matrix.direct.start_cycles * 10**12 // config.clock_hz
        taken = (kernel_ps(config, graph) + start) * config.clock_hz / 10**12
        yield DataPoint(label, record.integer("cycles"), taken, record.text("set"))


_FUNCTIONS: dict[str, Unary | Binary] = {
    "add": Binary.ADD,
    "sub": Binary.SUB,
    "mul": Binary.MUL,
    "div": Binary.DIV,
    "relu": Unary.RELU,
    "leaky_relu": Unary.LEAKY_RELU,
    "elu": Unary.ELU,
    "selu": Unary.SELU,
    "sigmoid": Unary.SIGMOID,
    "tanh": Unary.TANH,
}


def elementwise(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """One operator from HBM to HBM, on elements padded as the chip stores them."""
    session = Session(machine("tpuv4"), cache_dir=False)
    known: dict[tuple[str, int], int] = {}
    for record in records:
        op, label = record.text("op"), f"{record.text('op')} {record.text('shape')}"
        if record.text("stable") != "1":
            yield Excluded(label, "stable = 0: the measurement varies")
            continue
        if op not in _FUNCTIONS:
            yield Excluded(label, f"{op} is not an operator of a single function")
            continue
        stored = tpu.stored(record)
        if (op, stored) not in known:
            fn = _FUNCTIONS[op]
            net = GraphBuilder(op)
            inputs = [net.input(name, (stored,), DType.FLOAT32) for name in "ab"[: 2 if isinstance(fn, Binary) else 1]]
            graph = net.finish([net.add("binary" if isinstance(fn, Binary) else "unary", inputs, {"fn": fn})])
            program = session.compile(graph)
            spans = session.run(program, timing_only=True).timeline.spans
            known[op, stored] = max(span.end_ps for span in spans) - min(span.start_ps for span in spans)
            session.unload(program)
        yield DataPoint(label, record.number("avg_us"), known[op, stored] / _PS, op)


def applications(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """TOPS of equal layers of whole tiles, as one network. Rows and tiles are as in the direct replay.

    The published figure is a rate: transfers of one batch overlap computation of others. The time is therefore that of
    twice the layers minus that of the layers.
    """
    config = machine("tpuv1")
    assert config.matrix is not None
    for record in records:
        app, rows, layers = record.text("app"), record.size("ops_per_weight_byte"), record.size("layers")
        if record.number("unused_macs_pct") > record.number("useful_macs_pct"):
            yield Excluded(app, tpu.IDLE)
            continue
        down, across = tpu.tiles(record, config)
        sides = (down * config.matrix.rows, across * config.matrix.cols)
        once, twice = (kernel_ps(config, perceptron(rows, sides, times * layers)) for times in (1, 2))
        operations = 2 * rows * layers * tpu.weights(record)
        yield DataPoint(app, record.number("measured_tops"), operations / (twice - once), record.text("type"))


SETS = (
    *(
        DataSet(
            f"nvdla_nv_small_rtl_{name}, compiled", "cycles", ("nvdla_small",), nvdla, f"nvdla_nv_small_rtl_{name}.csv"
        )
        for name in ("gemm", "conv", "mem")
    ),
    DataSet("tpu_v4_vector_ops, compiled", "us", ("tpuv4",), elementwise, "tpu_v4_vector_ops.csv"),
    DataSet("tpu_v1_isca17, compiled", "TOPS", ("tpuv1",), applications, "tpu_v1_isca17.csv"),
)
