"""Replays of single matrix units: arrays of SCALE-Sim, the mesh of Gemmini, the convolution core of NVDLA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from npusim.dtypes import DType
from npusim.hw.config import Config
from npusim.hw.cost import cost
from npusim.hw.units import matrix_direct
from npusim.validate.base import DataPoint, DataRow, DataSet, Excluded, machine, read
from npusim.work import MatrixWork

_DATAFLOWS = {"OS": "output_stationary", "WS": "weight_stationary", "IS": "input_stationary"}
_LAYERS = "scalesim_layers.csv"


def matmul(dtype: DType, m: int, k: int, n: int, out_bytes: int = 1) -> MatrixWork:
    """A matrix product as one piece of work."""
    return MatrixWork(dtype, 1, 1, m, n, k, 1, 1, False, True, True, out_bytes)


def scalesim(records: Sequence[DataRow], folder: Path) -> Iterator[DataPoint | Excluded]:
    """Layers, and ``*`` for whole networks. The tool reports one cycle less per layer than its schedule has."""
    layers: dict[str, list[tuple[str, int, MatrixWork]]] = {}
    for layer in read(folder / _LAYERS):
        work = matmul(DType.INT8, layer.size("M"), layer.size("K"), layer.size("N"))
        layers.setdefault(layer.text("network"), []).append((layer.text("layer"), layer.size("count"), work))
    base = machine("scalesim")
    for record in records:
        wanted, dataflow, size = record.text("layer"), record.text("dataflow"), record.size("size")
        keys = {"matrix.rows": size, "matrix.cols": size, "matrix.dataflow": record.one_of("dataflow", _DATAFLOWS)}
        config, network = base.with_(**keys), record.one_of("network", layers)
        if wanted == "*":
            cycles = sum(count * (cost(config, work).cycles - 1) for _, count, work in network)
        else:
            cycles = cost(config, record.one_of("layer", {name: work for name, _, work in network})).cycles - 1
        label = f"{record.text('network')} {wanted} {dataflow} {size}x{size}"
        yield DataPoint(label, record.integer("cycles"), cycles, dataflow)


def gemmini(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """One product on the mesh, from the first request to the last response."""
    base = machine("gemmini_mesh16")
    for record in records:
        dataflow, stall = record.text("df"), record.integer("stall")
        m, k, n = (record.size(column) for column in ("M", "K", "N"))
        label = f"{dataflow} {m}x{k}x{n} stall {stall}"
        if record.integer("ok") != 1:
            yield Excluded(label, "ok = 0: the outputs of the RTL were wrong")
            continue
        config = base.with_(
            **{"matrix.dataflow": record.one_of("df", _DATAFLOWS), "matrix.mesh.row_stall_cycles": stall}
        )
        found = cost(config, matmul(DType.INT8, m, k, n))
        yield DataPoint(label, record.integer("cycles"), found.cycles, dataflow)


def bench(record: DataRow) -> tuple[str, Config | None]:
    """The label of a row, and the core with the memory of the testbench."""
    base = machine("nvdla_small")
    label = f"{record.text('name')} latency {record.text('lat')} beat {record.text('rd_cyc_per_beat')}"
    if record.integer("match") != 1:
        return label, None
    # The memory of the testbench is a condition of the experiment, not a part of the machine.
    bandwidth = base.dma.burst_bytes * base.matrix_hz // record.size("rd_cyc_per_beat")
    latency, apart = record.integer("lat") * 10**12 // base.matrix_hz, not record.integer("shared")
    keys = {"dram.latency_ps": latency, "dram.bandwidth": bandwidth, "interconnect.separate_write_port": apart}
    return label, base.with_(**keys)


def nvdla(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """One job of the convolution core, from its start to its interrupt."""
    for record in records:
        label, config = bench(record)
        if config is None:
            yield Excluded(label, "match = 0: the outputs of the RTL were wrong")
            continue
        pixels = record.size("W") * record.size("H")
        oh, ow, oc, ic, kh, kw = (record.size(column) for column in ("P", "Q", "K", "C", "R", "S"))
        work = MatrixWork(DType.INT8, 1, oh, ow, oc, ic, kh, kw, False, True, True, 1)
        found = matrix_direct.job(config, work, pixels)
        yield DataPoint(label, record.integer("cycles"), found.cycles, record.text("set"))


SETS = (
    DataSet("scalesim_cycles", "cycles", ("scalesim",), scalesim, carried=True),
    DataSet("gemmini_mesh16_rtl", "cycles", ("gemmini_mesh16",), gemmini),
    DataSet("nvdla_nv_small_rtl_gemm", "cycles", ("nvdla_small",), nvdla),
    DataSet("nvdla_nv_small_rtl_conv", "cycles", ("nvdla_small",), nvdla),
    DataSet("nvdla_nv_small_rtl_mem", "cycles", ("nvdla_small",), nvdla),
)
