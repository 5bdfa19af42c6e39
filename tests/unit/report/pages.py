"""Reports that together contain every kind of line, as one text; ``python -m tests.unit.report.pages`` writes it again.

The diff in version control then shows what readers will see. ``test_pages.py`` compares the reports of all other
devices and programs with their figures in JSON.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from npusim.hw.config import load_config
from npusim.program import OpEntry
from npusim.report import device, explain, perfetto, program, run
from npusim.runtime import Session
from npusim.timeline import Timeline
from tests.support.graphs.every_kind import CASES
from tests.support.sample_run import sample
from tests.support.traces import packets

PATH = Path(__file__).with_name("pages.txt")
DEVICES: dict[str, dict[str, Any]] = {
    "nvdla_small": {},
    "ethos_u55_128": {},
    "server": {"l2.bytes": "8 MiB", "l2.bytes_per_cycle": 64, "l2.latency_cycles": 20, "matrix.clock": "700 MHz"},
}
EXPLAINED = {"image_between_layouts": 1, "picked_and_scattered": 4, "matmul_quantised": 0}
"""Programs, and the operator of each that is explained."""
PRICES = {
    "energy.mac": dict.fromkeys(("int8", "int16", "int32", "float16", "bfloat16", "float32"), "0.3 pJ"),
    "energy.vector": "1 pJ", "energy.sram_byte": "2 pJ", "energy.dram_byte": "30 pJ", "energy.leakage": "5 mW",
}  # fmt: skip


def record() -> Iterator[str]:
    """Yield the lines of all pages."""
    yield "== by hand"
    yield from run.text(sample(), load_config("tiny"), "x float32[4]", top=2).splitlines()
    yield f"trace {_trace(sample().timeline)}"
    for name, overrides in DEVICES.items():
        yield f"== {name}"
        yield from device.text(load_config(name).with_(**overrides)).splitlines()
    for name, op in EXPLAINED.items():
        case = CASES[name]
        graph, feeds = case.graph()
        config = case.config.with_(**PRICES)
        with Session(config, cache_dir=False) as session:
            made = session.compile(graph)
            result = session.run(made, feeds)
        yield f"== {name}"
        yield from program.text(made, "case.npu").splitlines()
        yield from run.text(result, config, "inputs").splitlines()
        yield f"trace {_trace(result.timeline, made.ops)}"
        found = explain.explain(made, result, config, op)
        yield from explain.text(found, config).splitlines()


def _trace(timeline: Timeline, ops: Sequence[OpEntry] = ()) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        perfetto.write_trace(path, timeline, ops, 10**9)
        raw = path.read_bytes()
    plain = packets(raw)
    return f"{len(plain)} bytes {zlib.crc32(plain):08x}"


if __name__ == "__main__":
    PATH.write_text("\n".join([*record(), ""]), encoding="utf-8")
