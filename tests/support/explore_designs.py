"""Design spaces, and evaluations without simulation, importable by worker processes.

The synthetic device has a roofline, an area, and steps like real ones: where tiles no longer fit, or rows are idle.
"""

from __future__ import annotations

import math
import os
import signal
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.explore import Space, make_space
from npusim.explore.evaluate import EvaluationTask
from npusim.explore.figures import SIMULATED, ModelFigures, StudyRow
from npusim.explore.workloads import Workload
from npusim.hw.config import Config
from npusim.units import Dimension, parse
from npusim.validate.networks.small import perceptron

Floats = npt.NDArray[np.float64]


def small_model(name: str = "mlp", weight: int = 1, side: int = 48) -> Workload:
    """Return two square layers, simulated in a few milliseconds."""
    from fractions import Fraction

    return Workload(name, Fraction(weight), graph=perceptron(8, (side, side), 2))


def space(vary: Mapping[str, Any], models: Sequence[Workload] = (), **more: Any) -> Space:
    """Return variants of ``edge``. Without models it has one that is never simulated."""
    plain = {"base": "edge", "vary": dict(vary), **more}
    return make_space(plain, given=models or [Workload("none")])


def large_space(values: int = 10, **more: Any) -> Space:
    """Return ``values`` ** 4 designs: 10 000 by default, or fewer over the same range."""
    vary = {
        "matrix.rows": [4, 8, 16, 24, 32, 48, 64, 96, 128, 192],
        "matrix.cols": [4, 8, 16, 24, 32, 48, 64, 96, 128, 192],
        "sram.bytes": [f"{64 << i} KiB" for i in range(10)],
        "dram.bandwidth": [f"{2 * i} GB/s" for i in range(1, 11)],
    }
    places = [round(i * 9 / (values - 1)) for i in range(values)]
    return space({key: [column[place] for place in places] for key, column in vary.items()}, **more)


def synthetic_area(config: Config) -> int:
    """Return the area in square micrometres: PEs, SRAM, and pins for the bandwidth."""
    assert config.matrix is not None
    return config.matrix.elements * 600 + config.sram.bytes * 2 + config.dram.bandwidth // 20_000


def synthetic_ps(rows: int, cols: int, sram: int, bandwidth: int) -> int:
    """Return the roofline time in ps of three layers, with idle edges in the array and more traffic for small tiles."""
    total = 0.0
    for m, n, k in ((784, 96, 64), (196, 512, 256), (1, 1000, 2048)):
        compute = math.ceil(n / cols) * math.ceil(k / rows) * (m + rows) * 1000
        tiles = max(1.0, (m * k + n * k) / sram * 8)
        moved = (n * k + m * k * math.sqrt(tiles)) * 1e12 / bandwidth
        total += max(compute, moved) + 0.2 * min(compute, moved)
    return round(total)


@dataclass(frozen=True)
class Synthetic:
    """Evaluates with a formula. ``log``: file that gets one line per design; ``slow_s``: seconds per design."""

    log: Path | None = None
    slow_s: float = 0.0
    work: int = 0

    def __call__(self, design: EvaluationTask, /) -> StudyRow:
        config = design.config
        assert config.matrix is not None
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{design.number} {os.getpid()}\n")
        time.sleep(self.slow_s)
        sum(range(self.work))
        ps = synthetic_ps(config.matrix.rows, config.matrix.cols, config.sram.bytes, config.dram.bandwidth)
        figures = ModelFigures(
            "none", ps, ps // 1000, config.sram.bytes, None, None, f"{design.number:x}", {"matrix": 0.5}
        )
        fingerprint = config.fingerprint()
        return StudyRow(
            design.number, design.base, design.settings, fingerprint, SIMULATED, "", synthetic_area(config), (figures,)
        )


@dataclass(frozen=True)
class Deadly:
    """Evaluates like :class:`Synthetic`, but some designs kill the process.

    ``once``: designs that kill it the first time (a file in ``folder`` remembers); ``always``: every time; ``raises``:
    designs that raise, like a defect would.
    """

    folder: Path
    once: tuple[int, ...] = ()
    always: tuple[int, ...] = ()
    raises: tuple[int, ...] = ()

    def __call__(self, design: EvaluationTask, /) -> StudyRow:
        with (self.folder / "asked").open("a") as file:
            file.write(f"{design.number}\n")
        mark = self.folder / f"died{design.number}"
        if design.number in self.always or (design.number in self.once and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if design.number in self.raises:
            raise IndexError("list index out of range")
        return Synthetic()(design)


@dataclass(frozen=True)
class Estimated:
    """The result of an estimator."""

    time_ps: Floats
    dram_bytes: Floats
    energy_fj: Floats


@dataclass
class SyntheticEstimate:
    """An estimator of the synthetic time with an error of up to ``off``. It refuses columns named in ``refuses``."""

    off: float = 0.3
    refuses: tuple[str, ...] = ()
    calls: int = 0

    def __call__(self, model: str, base: Config, columns: Mapping[str, Sequence[object]], /) -> Estimated:
        from npusim.errors import UsageError

        self.calls += 1
        assert base.matrix is not None
        for key in self.refuses:
            if key in columns:
                raise UsageError(f"{key}: designs of one estimate must agree in it")
        count = len(next(iter(columns.values()))) if columns else 1

        def column(key: str, own: int, dimension: Dimension | None = None) -> list[int]:
            values = columns.get(key, [own] * count)
            return [parse(str(v), dimension) if dimension and isinstance(v, str) else int(str(v)) for v in values]

        rows = zip(
            column("matrix.rows", base.matrix.rows),
            column("matrix.cols", base.matrix.cols),
            column("sram.bytes", base.sram.bytes, Dimension.SIZE),
            column("dram.bandwidth", base.dram.bandwidth, Dimension.BANDWIDTH),
            strict=True,
        )
        # Errors like those of real estimates: similar for designs with the same array, plus a small part per design.
        times = [
            synthetic_ps(*row) * (1 + self.off * (_hash(row[:2]) - 0.5) + 0.1 * (_hash(row) - 0.5)) for row in rows
        ]
        unknown = np.full(count, np.nan)
        return Estimated(np.array(times), unknown, unknown)


def _hash(values: tuple[int, ...]) -> float:
    return zlib.crc32(repr(values).encode()) / 2**32


def hypervolume(points: Floats, reference: Floats) -> float:
    """Return the area dominated by points of two objectives, up to a reference. Computed from its definition."""
    inside = sorted(tuple(point) for point in points if (point <= reference).all())
    total, low = 0.0, float(reference[1])
    for x, y in inside:
        if y < low:
            total += (float(reference[0]) - x) * (low - y)
            low = y
    return total
