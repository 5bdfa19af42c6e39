"""Every report of a few runs and devices, as one text; ``python -m tests.unit.report.pages`` writes it anew.

The difference in version control then shows what readers will see.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from npusim.hw.config import list_configs, load_config
from npusim.program import OpEntry
from npusim.report import device, explain, perfetto, program, run
from npusim.runtime import Session
from npusim.timeline import Timeline
from tests.support.graphs.every_kind import CASES
from tests.support.sample_run import sample
from tests.support.traces import packets

PATH = Path(__file__).with_name("pages.txt")
NAMES = ("conv_on_two_cores", "matmul_quantised", "picked_and_scattered", "rows")
PRICES = {
    "energy.mac": dict.fromkeys(("int8", "int16", "int32", "float16", "bfloat16", "float32"), "0.3 pJ"),
    "energy.vector": "1 pJ", "energy.sram_byte": "2 pJ", "energy.dram_byte": "30 pJ", "energy.leakage": "5 mW",
}  # fmt: skip


def record() -> Iterator[str]:
    """The lines of all pages."""
    yield "== by hand"
    yield from run.text(sample(), load_config("tiny"), "x float32[4]", top=2).splitlines()
    yield f"trace {_trace(sample().timeline)}"
    for name in list_configs():
        yield f"== {name}"
        yield from device.text(load_config(name)).splitlines()
        yield json.dumps(device.as_json(load_config(name)), sort_keys=True)
    for name in NAMES:
        case = CASES[name]
        graph, feeds = case.graph()
        config = case.config.with_(**PRICES)
        with Session(config, cache_dir=False) as session:
            made = session.compile(graph)
            result = session.run(made, feeds)
        yield f"== {name}"
        yield from program.text(made, "case.npu").splitlines()
        yield json.dumps(program.as_json(made), sort_keys=True)
        yield from run.text(result, config, "inputs").splitlines()
        yield f"energy {json.dumps(result.energy.to_json_dict(), sort_keys=True)} fJ"
        yield f"trace {_trace(result.timeline, made.ops)}"
        for op in range(len(made.ops)):
            found = explain.explain(made, result, config, op)
            yield from explain.text(found, config).splitlines()
            yield json.dumps(explain.as_json(found), sort_keys=True)


def _trace(timeline: Timeline, ops: Sequence[OpEntry] = ()) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        perfetto.write_trace(path, timeline, ops, 10**9)
        raw = path.read_bytes()
    plain = packets(raw)
    return f"{len(plain)} bytes {zlib.crc32(plain):08x}"


if __name__ == "__main__":
    PATH.write_text("\n".join([*record(), ""]), encoding="utf-8")
