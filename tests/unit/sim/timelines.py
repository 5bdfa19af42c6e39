"""The time of programs, and what the units did meanwhile; ``python -m tests.unit.sim.timelines`` writes it again.

The diff in version control then shows the effect of a change to the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from npusim.hw.config import Config
from npusim.runtime import Session
from tests.support.graphs.every_kind import CASES

PATH = Path(__file__).with_name("timelines.txt")
NAMES = (
    "conv_rows", "conv_on_two_cores", "conv_deep", "conv_depthwise", "matmul_batches", "matmul_quantised", "chain",
    "reduced_on_two_cores", "rows", "pooled", "copied_by_several", "joined_twice", "gathered", "picked_and_scattered",
    "sorted_rows", "empty", "steps_of_several_operators",
)  # fmt: skip
BANKED = {
    "dram.kind": "jedec", "dram.part": "DDR4_8Gb_x8_2400", "dram.bandwidth": "19.277 GB/s", "dram.channels": 1,
    "dram.ranks": 1,
}  # fmt: skip


def _line(name: str, config: Config) -> str:
    graph, feeds = CASES[name].graph()
    with Session(config, cache_dir=False) as session:
        program = session.compile(graph)
        # Twice: the second run finds its constants on the device, and may be played from a tape.
        first, second = session.run(program, feeds), session.run(program, feeds)
    counters = first.counters
    units = " ".join(
        f"{unit}:{c.busy_ps}+{c.idle_ps}+{sum(c.stalls.values())}/{c.instructions}"
        for unit, c in sorted(counters.units.items())
        if c.instructions
    )
    memory = f"read {counters.dram_read_bytes} write {counters.dram_write_bytes} busy {counters.dram_busy_ps}"
    digests = f"{first.timeline.digest()[:12]} {second.timeline.digest()[:12]}"
    return f"{first.cycles} cycles {first.time_ps} ps then {second.time_ps} ps; {memory}; {units}; {digests}"


def record() -> Iterator[str]:
    """Yield one line for each program on its device, and with banks in addition."""
    for name in NAMES:
        yield f"{name}: {_line(name, CASES[name].config)}"
    for name in NAMES[:4]:
        yield f"{name}, banked: {_line(name, CASES[name].config.with_(**BANKED))}"


if __name__ == "__main__":
    PATH.write_text("\n".join([*record(), ""]), encoding="utf-8")
