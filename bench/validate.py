"""The time of the validation, and whether its fitted constants hold on rows that they were not fitted to.

``python -m bench.validate --data DIR``: seconds of processor time for each data set; exit code 1 if all together take
more than a minute. With ``--hold-out`` the fitted keys of each machine are changed by 30 % and fitted again to the half
of the rows whose label has an even hash. The errors on both halves are printed, with those of the shipped values. The
search varies one key after the other in decreasing steps; it takes minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from npusim.errors import NpusimError
from npusim.hw.config import load_config
from npusim.validate.base import DataPoint, changed
from npusim.validate.replay import carried_folder, find, replay
from npusim.validate.stats import summary

MOST_SECONDS = 60
STEPS = (Fraction(1, 4), Fraction(1, 10), Fraction(1, 25))
ROUNDS = 4
Number = int | Fraction


@dataclass(frozen=True)
class Machine:
    """A config, the data sets that it is fitted to (prefixes of kinds of rows), and the keys."""

    config: str
    sets: tuple[str, ...]
    kind: str
    keys: tuple[str, ...]


_NVDLA = tuple(
    f"matrix.direct.{key}"
    for key in (
        "start_cycles", "start_latencies", "weight_port_bytes", "feature_beats_per_cycle", "output_cycles_per_atom",
        "output_gap_cycles",
    )
)  # fmt: skip
_DPU = tuple(f"matrix.grid.{key}" for key in ("start_cycles", "operand_bytes_per_cycle", "depthwise_cycles"))
_DMA = ("dma.setup_cycles", "dma.gather_bytes", "dram.latency_ps", "dram.bandwidth")
MACHINES = (
    Machine("nvdla_small", tuple(f"nvdla_nv_small_rtl_{name}" for name in ("gemm", "conv", "mem")), "", _NVDLA),
    Machine("intel_npu27", ("intel_npu_dpu_gt",), "VPU_2_7", _DPU),
    Machine("intel_npu40", ("intel_npu_dpu_gt",), "VPU_4_0", _DPU),
    Machine("intel_npu27", ("intel_npu_dma_gt",), "VPU_2_7", (*_DMA, "dma.write_latency_ps", "dma.local_least_cycles")),
    Machine("intel_npu40", ("intel_npu_dma_gt",), "VPU_4_0", (*_DMA, "dma.bytes_per_cycle")),
    Machine(
        "tpuv4",
        ("tpu_v4_hbm_to_vmem_copy", "tpu_v4_vector_ops"),
        "",
        (
            "vector.setup_cycles",
            "vector.port_bytes_per_cycle",
            "dma.setup_cycles",
            "dram.efficiency",
            "dram.latency_ps",
        ),
    ),
)


def value(machine: Machine, key: str) -> Number:
    """The shipped value of a key."""
    found: Any = load_config(machine.config)
    for name in key.split("."):
        found = getattr(found, name)
    if not isinstance(found, int | Fraction):
        raise TypeError(f"{machine.config}: {key}: must be a number, got {found!r}")
    return found


def points(machine: Machine, folder: Path, values: dict[str, Number]) -> list[DataPoint]:
    """The rows of a machine, predicted with other values of its keys."""
    keys = {key: str(number) if isinstance(number, Fraction) else number for key, number in values.items()}
    found = [pair for pair in find(folder)[0] if pair[0].name in machine.sets]
    with changed(machine.config, keys):
        return [p for outcome in replay(found) for p in outcome.points if p.group.startswith(machine.kind)]


def half(rows: Sequence[DataPoint], parity: int) -> float:
    """MAPE of the rows whose label has an even (0) or odd (1) hash."""
    found = summary([row for row in rows if hashlib.sha256(row.label.encode()).digest()[0] % 2 == parity])
    return found.mape if found else float("nan")


def moved(number: Number, factor: Fraction) -> Number:
    """A value times a factor, rounded to a value that a key can have."""
    if isinstance(number, Fraction):
        return (number * factor).limit_denominator(60)
    return max(0, round(number * factor))


def search(machine: Machine, folder: Path) -> dict[str, Number]:
    """Values fitted to the even half of the rows, from starting values that are off by 30 %."""
    values = {key: moved(value(machine, key), Fraction(13, 10)) for key in machine.keys}
    values |= {key: min(number, Fraction(1)) for key, number in values.items() if key.endswith(("efficiency", "cycle"))
               and isinstance(number, Fraction)}  # fmt: skip
    best = half(points(machine, folder, values), 0)
    for step in STEPS:
        for _ in range(ROUNDS):
            before = best
            for key in machine.keys:
                for factor in (1 + step, 1 - step):
                    trial = {**values, key: moved(values[key], factor)}
                    try:
                        found = half(points(machine, folder, trial), 0)
                    except NpusimError:
                        continue  # out of the range of the key
                    if found < best:
                        best, values = found, trial
                        break
            if best == before:
                break
    return values


def hold_out(folder: Path) -> None:
    """Print the constants of each machine fitted to half of the rows, and the errors on the other half."""
    names = {data.name for data, _ in find(folder)[0]}
    for machine in MACHINES:
        if not set(machine.sets) <= names:
            continue
        shipped, values = points(machine, folder, {}), search(machine, folder)
        fitted = points(machine, folder, values)
        print(f"{machine.config} {', '.join(machine.sets)}")
        print(f"  fitted half {half(fitted, 0):.2f} %, held-out half {half(fitted, 1):.2f} %")
        print(f"  shipped     {half(shipped, 0):.2f} %,               {half(shipped, 1):.2f} %")
        print("  " + ", ".join(f"{key} {number} ({value(machine, key)})" for key, number in values.items()), flush=True)


def main() -> int:
    """Returns 0, or 1 if the validation takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=carried_folder(), help="folder with the data sets")
    parser.add_argument("--hold-out", action="store_true", help="fit on half of the rows, show the other half's errors")
    options = parser.parse_args()
    if options.hold_out:
        hold_out(options.data)
        return 0
    total = 0.0
    for pair in find(options.data)[0]:
        begin = time.process_time()
        [outcome] = replay([pair])
        taken = time.process_time() - begin
        total += taken
        print(f"{outcome.data.name:28} {len(outcome.points):6} points {taken:8.2f} s")
    print(f"{'all':28} {'':13} {total:8.2f} s, at most {MOST_SECONDS} s")
    return 0 if total <= MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
