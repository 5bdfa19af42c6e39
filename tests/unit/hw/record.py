"""Costs of every kind of work on every shipped device, as text; ``python -m tests.unit.hw.record`` writes it again.

The diff in version control then shows the effect of a change to a cost model or a config, by device.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.hw.config import Config, load_config
from npusim.hw.cost import cost
from npusim.work import DmaWork, MatrixWork, ScalarWork, VectorWork, Work

PATH = Path(__file__).with_name("costs.txt")
I8, I16, I64, F16, F32 = DType.INT8, DType.INT16, DType.INT64, DType.FLOAT16, DType.FLOAT32

# Odd sizes: nothing divides evenly, so rounding is visible.
WORKS: dict[str, Work] = {
    "matmul": MatrixWork(I8, 1, 1, 37, 70, 150, 1, 1, False, True, True, 1),
    "matmul, a row": MatrixWork(I8, 1, 1, 1, 19, 5, 1, 1, False, True, True, 4),
    "matmuls in float16, sums that stay": MatrixWork(F16, 3, 1, 260, 33, 65, 1, 1, False, True, False, 2),
    "convolution, sums from before": MatrixWork(I8, 1, 13, 11, 50, 24, 3, 5, False, False, True, 1),
    "convolution of int16": MatrixWork(I16, 2, 7, 9, 130, 3, 7, 7, False, True, True, 2),
    "depthwise": MatrixWork(I8, 1, 14, 15, 72, 36, 3, 3, True, True, True, 1),
    "depthwise of one pixel": MatrixWork(I8, 1, 1, 1, 300, 300, 5, 5, True, True, False, 4),
    "depthwise of float16, two each": MatrixWork(F16, 2, 9, 10, 50, 25, 3, 2, True, True, True, 2),
    "few results, many outputs": MatrixWork(I8, 1, 40, 50, 9, 1, 1, 1, False, True, True, 4),
    "vector": VectorWork("simple", F32, 1001, 1, 12012),
    "vector, bytes": VectorWork("divide", I8, 3003, 1, 6006),
    "vector, 64 bits": VectorWork("reduce", I64, 77, 2, 99_000),
    "vector, three passes": VectorWork("transcendental", F16, 515, 3, 3090),
    "scalar": ScalarWork(123, 456),
    "scalar, much memory": ScalarWork(3, 45_678),
    "load": DmaWork(5000, 1, 5000, 5000, 0),
    "load of pieces": DmaWork(5000, 50, 100, 5000, 0, 3000, 36),
    "load of crumbs": DmaWork(900, 300, 3, 900, 0, 8, 1),
    "store": DmaWork(7777, 7, 1111, 0, 7777, 2222, 2),
    "store of crumbs": DmaWork(640, 160, 4, 0, 640, 4096, 60),
    "copy in DRAM": DmaWork(70_000, 10, 7000, 70_000, 70_000, 9000, 8),
    "copy in SRAM": DmaWork(500, 5, 100, 0, 0),
    "little in SRAM": DmaWork(1, 1, 1, 0, 0),
    "gathered": DmaWork(3000, 750, 4, 3000, 0),
    "nothing": DmaWork(0, 1, 0, 0, 0),
}


DEVICES: dict[str, tuple[str, dict[str, Any]]] = {
    "edge": ("edge", {}),
    "gemmini_mesh16": ("gemmini_mesh16", {}),
    "nvdla_small": ("nvdla_small", {}),
    "intel_npu27, slow output": ("intel_npu27", {"matrix.output_elements_per_cycle": 1}),
    "tiny, narrow SRAM": ("tiny", {"sram.bytes_per_cycle": 1, "sram.banks": 1}),
    "tiny, both ways at once": ("tiny", {"dma.duplex": True, "dma.gather_bytes": 256, "dma.local_least_cycles": 40}),
}
"""One device for each model of a matrix unit, and some on which another term dominates."""


def _line(config: Config, work: Work) -> str:
    try:
        found = cost(config, work)
    except ProgramError as error:
        return f"refused: {error}"
    terms = " ".join(f"{name}:{cycles}" for name, cycles in found.terms)
    return f"{found.ps} ps, SRAM {found.sram_ps} ps, {found.bound} ({terms})"


def record() -> Iterator[str]:
    """Yield one line for each work on each device."""
    for title, (name, overrides) in DEVICES.items():
        config = load_config(name).with_(**overrides)
        yield f"== {title}"
        yield from (f"{what}: {_line(config, work)}" for what, work in WORKS.items())


if __name__ == "__main__":
    PATH.write_text("\n".join([*record(), ""]), encoding="utf-8")
