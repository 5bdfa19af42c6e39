"""Random legal devices: overrides of the ``tiny`` config, small enough that ordinary tensors need several tiles."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from npusim.hw.config import Config, load_config

KIB = 1024
TINY = load_config("tiny").with_(**{"dram.bytes": 64 * KIB * KIB})
DATAFLOWS = ("weight_stationary", "output_stationary", "input_stationary")
ROOMY = 128 * KIB
"""With this much SRAM every operator of the random graphs must compile."""


class Device:
    """A config that shows as its overrides."""

    def __init__(self, overrides: dict[str, Any]) -> None:
        self.overrides = overrides
        self.config: Config = TINY.with_(**overrides)

    def __repr__(self) -> str:
        return f"TINY.with_(**{self.overrides})"


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """Shrinks to one core with a 1 x 1 array and roomy SRAM."""
    cols = draw(st.integers(1, 16))
    overrides: dict[str, Any] = {
        "sram.bytes": draw(st.sampled_from((ROOMY, 4 * KIB, 6 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 256 * KIB))),
        "cores": draw(st.integers(1, 3)),
        "matrix.rows": draw(st.integers(1, 16)),
        "matrix.cols": cols,
        "matrix.dataflow": draw(st.sampled_from(DATAFLOWS)),
        "matrix.accumulator_bytes": draw(st.sampled_from((0, 16, 64, 256))) * cols * 4,
        "dma.channels": draw(st.integers(1, 3)),
        "queue_depth": draw(st.integers(1, 16)),
    }
    return Device(overrides)
