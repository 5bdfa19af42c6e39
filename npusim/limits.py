"""The limits of a job on a device, used by both the compiler and verification."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.hw.config import Config
from npusim.isa.verify import Limits


def limits_of(config: Config, region_bytes: Sequence[int]) -> Limits:
    """``region_bytes``: size of each region of the job."""
    return Limits(
        region_bytes,
        sram_bytes=config.sram.bytes,
        acc_bytes=config.matrix.accumulator_bytes if config.matrix else 0,
        cores=config.cores,
        dma_channels=config.dma.channels,
        units=config.units,
        multicast=config.interconnect.multicast,
        decoder=config.dma.decoder_weights_per_cycle > 0,
        exchange=config.exchange is not None,
        l2_bytes=config.l2.bytes if config.l2 else 0,
    )
