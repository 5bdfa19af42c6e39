"""Tiles chosen for many problems on some devices, as text; ``python -m tests.unit.timing.tilings`` writes it again.

The diff in version control then shows the effect of a change to the estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from npusim.dtypes import DType
from npusim.hw.config import load_config
from npusim.timing.tile import choose
from npusim.timing.tile_problem import EpilogueCosts, MatrixProblem, Tiling

PATH = Path(__file__).with_name("tilings.txt")
TINY = load_config("tiny")
CONFIGS = {
    "tiny": TINY,
    "two cores, accumulators": TINY.with_(
        **{
            "cores": 2, "dma.channels": 3, "matrix.accumulator_bytes": 2048, "matrix.dataflow": "output_stationary",
            "matrix.cols": 4,
        }
    ),
    "slow memory": TINY.with_(**{"dram.bandwidth": "500 MB/s", "dma.channels": 2, "matrix.cols": 16}),
    "edge": load_config("edge"),
}  # fmt: skip
CONV = MatrixProblem(
    images=1, oh=30, ow=34, groups=1, oc=40, ic=24, kh=3, kw=3, sh=1, sw=1, dh=1, dw=1, depthwise=False,
    shared_weights=True, x_type=DType.INT8, w_type=DType.INT8, out_type=DType.INT8, epilogue=EpilogueCosts(),
    in_place=False,
)  # fmt: skip
MATMUL = CONV._replace(oh=1, ow=300, oc=200, ic=500, kh=1, kw=1)
PROBLEMS = {
    "convolution": CONV,
    "convolution, float32 in place": CONV._replace(
        x_type=DType.FLOAT32, w_type=DType.FLOAT32, out_type=DType.FLOAT32, in_place=True
    ),
    "convolution, a chain behind": CONV._replace(epilogue=EpilogueCosts(9)),
    "convolution of many channels": CONV._replace(oh=5, ow=6, oc=300, ic=500),
    "convolution of few": CONV._replace(oh=100, ow=110, oc=4, ic=3),
    "convolution, strides": CONV._replace(sh=2, sw=3, dh=2, dw=1, kh=5, kw=2, images=3),
    "pointwise": CONV._replace(kh=1, kw=1, oc=100, ic=70),
    "groups": CONV._replace(groups=7, oc=9, ic=10, images=2),
    "depthwise": CONV._replace(groups=75, oc=1, ic=1, depthwise=True),
    "depthwise, two each": CONV._replace(groups=33, oc=2, ic=1, depthwise=True, x_type=DType.FLOAT16),
    "matmul": MATMUL,
    "matmul of a row": MATMUL._replace(ow=1, oc=1000),
    "matmul of a column": MATMUL._replace(ow=2000, oc=1),
    "matmul in float16": MATMUL._replace(x_type=DType.FLOAT16, w_type=DType.FLOAT16, out_type=DType.FLOAT16),
    "matmuls with their own operands": MATMUL._replace(images=5, ow=40, oc=50, ic=60, shared_weights=False),
    "matmuls with one operand": MATMUL._replace(images=5, ow=40, oc=50, ic=60),
}


def record() -> Iterator[str]:
    """Yield one line for each problem, device and budget."""
    for device, config in CONFIGS.items():
        for what, problem in PROBLEMS.items():
            found = (choose(problem, config, kib << 10) for kib in (4, 16, 100))
            yield f"{device}: {what}: " + " ".join("none" if tile is None else _text(tile) for tile in found)


def _text(tile: Tiling) -> str:
    text = "x".join(map(str, (tile.groups, tile.oh, tile.ow, tile.oc, tile.ic)))
    kernel = f"@{tile.kh}x{tile.kw}" if tile.kh or tile.kw else ""
    return text + "w" * tile.weights_outer + "p" * tile.in_pieces + kernel


if __name__ == "__main__":
    PATH.write_text("\n".join([*record(), ""]), encoding="utf-8")
