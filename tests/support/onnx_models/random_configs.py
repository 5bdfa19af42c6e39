"""Random legal devices, as dotted overrides of the ``tiny`` config."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KIB = 1024
DATAFLOWS = ("weight_stationary", "output_stationary", "input_stationary")


@st.composite
def config_overrides(draw: st.DrawFn) -> dict[str, Any]:
    """Keyword arguments for ``Config.with_``; shrinks to one core, a 1 x 1 array and the smallest SRAM.

    The accumulators, where there are any, hold whole rows of ``cols`` sums of 32 bits.
    """
    cols = draw(st.integers(1, 16))
    return {
        "cores": draw(st.integers(1, 3)),
        "matrix.rows": draw(st.integers(1, 16)),
        "matrix.cols": cols,
        "matrix.dataflow": draw(st.sampled_from(DATAFLOWS)),
        "matrix.accumulator_bytes": draw(st.sampled_from((0, 64, 256, 1024))) * cols * 4,
        "sram.bytes": draw(st.sampled_from((8 * KIB, 12 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB))),
        "dma.channels": draw(st.integers(1, 3)),
    }
