"""Random valid devices: overrides of the ``tiny`` config, small enough that ordinary tensors need several tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from npusim.hw.config import Config, load_config
from npusim.hw.sections import FUSIONS

KIB = 1024
MEMORIES: tuple[dict[str, Any], ...] = (
    {},
    {"l2.bytes": 2 * KIB, "l2.bytes_per_cycle": 32},
    {"l2.bytes": 32 * KIB, "l2.bytes_per_cycle": 16, "l2.latency_cycles": 4, "l2.line_bytes": 16},
    {"constants.bytes": 64 * KIB * KIB, "constants.bandwidth": 10**9, "constants.latency": "200 ns"},
    {
        "l2.bytes": 8 * KIB, "l2.latency_cycles": 1,
        "constants.bytes": 64 * KIB * KIB, "constants.bandwidth": 2 * 10**9, "constants.latency": "50 ns",
    },
)  # fmt: skip
"""Optional memories beside the DRAM."""
TINY = load_config("tiny").with_(**{"dram.bytes": 64 * KIB * KIB})
DATAFLOWS = ("weight_stationary", "output_stationary", "input_stationary")
ROOMY = 128 * KIB
"""With this much SRAM every operator of the random graphs must compile."""


class Device:
    """A config whose repr is its overrides."""

    def __init__(self, overrides: dict[str, Any]) -> None:
        self.overrides = overrides
        self.config: Config = TINY.with_(**overrides)

    def __repr__(self) -> str:
        return f"TINY.with_(**{self.overrides})"


def _overrides(draw: st.DrawFn, sram: Sequence[int], accumulators: Sequence[int]) -> dict[str, Any]:
    """Draw keyword arguments for ``Config.with_``.

    Accumulators, if any, hold whole rows of ``cols`` 32-bit sums, with a number of rows from ``accumulators``.
    """
    cols = draw(st.integers(1, 16))
    return {
        "sram.bytes": draw(st.sampled_from(sram)),
        "cores": draw(st.integers(1, 3)),
        "matrix.rows": draw(st.integers(1, 16)),
        "matrix.cols": cols,
        "matrix.dataflow": draw(st.sampled_from(DATAFLOWS)),
        "matrix.accumulator_bytes": draw(st.sampled_from(accumulators)) * cols * 4,
        "dma.channels": draw(st.integers(1, 3)),
        "interconnect.multicast": draw(st.booleans()),
        **draw(st.sampled_from(MEMORIES)),
        "dma.decoder_weights_per_cycle": draw(st.sampled_from([0, 4, 256])),
        "compiler.keeps_values": draw(st.booleans()),
        "compiler.pools_outputs": draw(st.booleans()),
        "compiler.cascades": draw(st.sampled_from([True, True, False])),
        "compiler.fuses": draw(st.sampled_from(["all", *FUSIONS])),
        **draw(st.sampled_from([{}, {}, {"compiler.layer_by_layer": True, "compiler.layer_time": "700 ns"}])),
    }


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """Draw a device; shrinks to one core with a 1 x 1 array and roomy SRAM."""
    sram = (ROOMY, 4 * KIB, 6 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 256 * KIB)
    overrides = _overrides(draw, sram, (0, 16, 64, 256))
    return Device({**overrides, "queue_depth": draw(st.integers(1, 16))})


@st.composite
def config_overrides(draw: st.DrawFn) -> dict[str, Any]:
    """Draw overrides with which every random ONNX model must compile; shrinks to one core, a 1 x 1 array and the
    smallest SRAM."""
    sram = (8 * KIB, 12 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB)
    return _overrides(draw, sram, (0, 64, 256, 1024))
