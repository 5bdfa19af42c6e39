"""The limits of a device for a job."""

from __future__ import annotations

from dataclasses import fields

import pytest

from npusim.hw.config import load_config
from npusim.isa.verify import Limits
from npusim.limits import limits_of

PLAIN = load_config("edge")
CHANGED: dict[str, dict[str, object]] = {
    "sram_bytes": {"sram.bytes": "64 KiB"},
    "acc_bytes": {"matrix.accumulator_bytes": PLAIN.matrix.accumulator_bytes + 64 if PLAIN.matrix else 0},
    "cores": {"cores": PLAIN.cores + 1},
    "dma_channels": {"dma.channels": PLAIN.dma.channels + 1},
    "multicast": {"interconnect.multicast": not PLAIN.interconnect.multicast},
    "decoder": {"dma.decoder_weights_per_cycle": 8},
    "exchange": {"exchange.bytes_per_cycle": 16},
    "l2_bytes": {"l2.bytes": "1 MiB"},
}


@pytest.mark.parametrize("name", CHANGED)
def test_each_follows_from_its_key(name: str) -> None:
    """And from no other key that determines a limit."""
    plain, changed = limits_of(PLAIN, (0, 64)), limits_of(PLAIN.with_(**CHANGED[name]), (0, 64))
    differing = [field.name for field in fields(Limits) if getattr(plain, field.name) != getattr(changed, field.name)]
    assert differing == [name]


def test_units_and_regions_are_what_is_given() -> None:
    limits = limits_of(PLAIN, (0, 64))
    assert (limits.units, limits.region_bytes) == (PLAIN.units, (0, 64))
    assert {field.name for field in fields(Limits)} == {*CHANGED, "units", "region_bytes"}
