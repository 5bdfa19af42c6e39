"""Replays of Intel's NPU: workloads of the DPU and transfers of the DMA, each on a single unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from npusim.dtypes import DType
from npusim.hw.cost import cost
from npusim.validate.base import DataPoint, DataRow, DataSet, Excluded, machine
from npusim.work import DmaWork, MatrixWork

_DEVICES = {"VPU_2_7": "intel_npu27", "VPU_4_0": "intel_npu40"}
_TYPES = {"UINT8": DType.UINT8, "INT8": DType.INT8, "FLOAT16": DType.FLOAT16, "BFLOAT16": DType.BFLOAT16}
_ONE_OPERAND, _TWO_OPERANDS = ("DW_CONVOLUTION", "MAXPOOL", "AVEPOOL"), ("ELTWISE",)

_SLOW_GEAR = "856 MHz"
"""Clock of the NPU 2.7 in tests without GEAR4 in their name. Fitted: with it the DRAM latencies in ns agree."""


def dpu(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """One workload of one tile: a convolution, or a pass over channels that are not summed."""
    for record in records:
        device, op, dtype = record.text("device"), record.text("op"), record.text("in_dtype")
        size = "x".join(record.text(column) for column in ("out_w", "out_h", "in_c", "out_c", "kw", "kh"))
        label = f"{device} {op} {size} stride {record.text('sw')} {dtype} {record.text('exec_mode')}"
        if device not in _DEVICES or dtype not in _TYPES or op not in (*_ONE_OPERAND, *_TWO_OPERANDS, "CONVOLUTION"):
            yield Excluded(label, f"no config or law for {device} {op} {dtype}")
            continue
        found = cost(machine(_DEVICES[device]), _workload(record, op, _TYPES[dtype]))
        yield DataPoint(label, record.number("gt_cycles"), found.cycles, f"{device} {op}")


def _workload(record: DataRow, op: str, dtype: DType) -> MatrixWork:
    """Pooling and elementwise workloads run as depthwise ones. Each of two operands counts as a tap."""
    oh, ow, oc, ic, kh, kw = (record.size(column) for column in ("out_h", "out_w", "out_c", "in_c", "kh", "kw"))
    if op == "CONVOLUTION":
        return MatrixWork(dtype, 1, oh, ow, oc, ic, kh, kw, False, True, True, 1)
    taps = 2 if op in _TWO_OPERANDS else kw
    return MatrixWork(dtype, 1, oh, ow, oc, oc, kh, taps, True, True, True, 1)


def dma(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """One transfer alone on the device."""
    for record in records:
        device, size = record.text("device"), record.size("bytes")
        source, target, test = record.text("src"), record.text("dst"), record.text("test")
        label = f"{test} {source} to {target} {size} B"
        if device not in _DEVICES:
            yield Excluded(label, f"no config for {device}")
            continue
        config = machine(_DEVICES[device])
        if device == "VPU_2_7" and not test.endswith("GEAR4"):
            # Latencies in ns stay the same, cycles do not: the same chip at another clock.
            config = config.with_(clock=_SLOW_GEAR)
        work = DmaWork(size, 1, size, size * (source == "DRAM"), size * (target == "DRAM"))
        yield DataPoint(label, record.number("gt_cycles_raw"), cost(config, work).cycles, f"{device} {source}-{target}")


SETS = (
    DataSet("intel_npu_dpu_gt", "cycles", ("intel_npu27", "intel_npu40"), dpu),
    DataSet("intel_npu_dma_gt", "cycles", ("intel_npu27", "intel_npu40"), dma),
)
