"""Kinds of DRAM: energy per byte, and area and power of the interface on the chip by pins and data rate."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from npusim.hw.nodes import KHAN, TPU4I, known, transistors_per_um2
from npusim.units import ceil_div

CACTI_IO = "CACTI-IO (Jouppi et al., ICCAD 2012), extio_technology.cc"
LLMCOMPASS = "PrincetonUniversity/LLMCompass, cost_model.py, at 7 nm"


@dataclass(frozen=True, slots=True)
class Signalling:
    """How pins are driven. ``area``: mm2 of a pin are a + (b + k1 f + k2 f^2 + k3 f^3) / c, with f in MHz (CACTI_IO).
    ``static_mw``: of a bus of ``bus_pins``. ``clocked_mw``: mW per Gbit/s and pin of clock tree, phase rotator and PLL,
    which run while the interface is awake."""

    area: tuple[float, float, float, float, float, float]
    static_mw: float
    bus_pins: int
    clocked_mw: float

    def pin_area(self, mhz: float) -> float:
        a, b, c, k1, k2, k3 = self.area
        return a + (b + ((k3 * mhz + k2) * mhz + k1) * mhz) / c


_DDR = Signalling((0.01, 0.35, 34, 8e-5, 3.5e-8, 1e-11), 30, 64, 0.56)
_DDR3 = Signalling((0.01, 0.5, 34, 1.5e-4, 4.5e-8, 1.5e-11), 30, 64, 0.56)
_LPDDR = Signalling((0.01, 0.5, 50, 8e-5, 3e-8, 8e-12), 10, 32, 0.46)
_STACK = Signalling((0.003, 0.2, 75, 4e-5, 2e-8, 4e-12), 1, 128, 0.21)


@dataclass(frozen=True, slots=True)
class DramKind:
    """One kind. ``rate``, ``fastest``: Mbit/s of a pin, usual and highest. ``pins``: data pins of a channel.
    ``data_a_clock``: bits of a pin per period of the fastest clock."""

    byte_fj: int
    source: str
    rate: int
    fastest: int
    pins: int
    signalling: Signalling
    data_a_clock: int = 2


_SAMSUNG = "as Samsung announced it"
_DDR4 = 162_500
_LPDDR4, _GDDR6, _HBM2 = 112_000, 51_875, 43_750
KINDS = {
    "ddr3": DramKind(_DDR4, f"1300 pJ for 64 bits of DDR3 or DDR4: {TPU4I}", 2133, 2133, 32, _DDR3),
    "ddr4": DramKind(_DDR4, f"1300 pJ for 64 bits of DDR3 or DDR4: {TPU4I}", 3200, 3200, 32, _DDR),
    "ddr5": DramKind(
        round(_DDR4 * (1.1 / 1.2) ** 2), "DDR4 by the square of the supply, 1.1 and 1.2 V (JESD79-5, JESD79-4)",
        4800, 8800, 32, _DDR,
    ),
    "lpddr4": DramKind(
        _LPDDR4, "14 pJ/bit of 32 Gb LPDDR4: H. Kim, thesis, Stanford, simulated with DramDSE", 4266, 4266, 16, _LPDDR
    ),
    "lpddr5": DramKind(
        round(_LPDDR4 * 0.7), f"30 % less than LPDDR4X, {_SAMSUNG} on 18 July 2019; LPDDR4X as LPDDR4", 6400, 6400, 16,
        _LPDDR,
    ),
    "lpddr5x": DramKind(
        round(_LPDDR4 * 0.7 * 0.8), f"20 % less than LPDDR5, {_SAMSUNG} on 9 November 2021", 8533, 10667, 16, _LPDDR
    ),
    "gddr6": DramKind(_GDDR6, f"350 to 480 pJ for 64 bits of GDDR6, the middle: {TPU4I}", 16000, 20000, 32, _DDR, 4),
    "gddr7": DramKind(round(_GDDR6 * 0.8), f"20 % less than GDDR6, {_SAMSUNG} in 2023", 32000, 36000, 32, _DDR, 4),
    "hbm2": DramKind(
        _HBM2, f"250 to 450 pJ for 64 bits of HBM2, the middle: {TPU4I}", 2430, 3600, 1024, _STACK
    ),
    "hbm3": DramKind(
        round(_HBM2 * (1.1 / 1.2) ** 2), "HBM2 by the square of the supply, 1.1 and 1.2 V (JESD238, JESD235)",
        6400, 6400, 1024, _STACK,
    ),
    "hbm3e": DramKind(
        round(_HBM2 * (1.1 / 1.2) ** 2), "HBM2 by the square of the supply, 1.1 and 1.2 V (JESD238, JESD235)",
        9200, 9800, 1024, _STACK,
    ),
    "hbm4": DramKind(
        round(_HBM2 * (1.05 / 1.2) ** 2), "HBM2 by the square of the supply, 1.05 and 1.2 V (JESD270-4, JESD235)",
        8000, 11000, 2048, _STACK,
    ),
}  # fmt: skip
"""Femtojoules per byte do not depend on the node of the chip. Rates are those of the JEDEC standards, except: HBM2 as
in the A100 (1555 GB/s over 5120 pins) and HBM2E; the highest of LPDDR5X, GDDR6, HBM3E and HBM4 are announced products.
"""
DRAMS = tuple(KINDS)

_PHY_UM2 = {"hbm2": (10_450_000, 552_743_000), "ddr5": (1_450_000, 90_446_400)}
"""LLMCOMPASS: um2 at 7 nm and transistors of the controller of one channel at the usual rate: HBM2e, DDR5."""
_SHRINKS = 0.36
"""Exponent of the node in the area of a PHY. Chosen: no source states it, and that of logic is 1.5. 72 pins of
DDR3-2133 and their controller then take 10 mm2 at 28 nm, 3 % of TPU v1, whose I/O of all kinds has 10 % (ISCA 2017,
figure 2)."""


@dataclass(frozen=True, slots=True)
class Interface:
    """The interface of a chip to its DRAM. ``rate``: Mbit/s of a pin. ``um2`` None: not known at the node.
    ``idle_uw``: power of the PHY while no data pass."""

    kind: str
    pins: int
    rate: float
    um2: int | None
    idle_uw: int
    source: str


@functools.lru_cache(1024)
def interface(kind: str, bandwidth: int, pins: int, node: int) -> Interface:
    """An interface for a bandwidth in bytes/s; ``pins`` 0: as many channels as the usual data rate needs."""
    row = KINDS[kind]
    channels = ceil_div(8 * bandwidth, row.rate * 10**6 * row.pins)
    width = pins or channels * row.pins
    rate = 8 * bandwidth / width / 1e6
    signalling = row.signalling
    idle = signalling.static_mw * width / signalling.bus_pins + signalling.clocked_mw * width * rate / 1000
    um2 = None
    if known(node):
        # The PHY is built for the data rate, of which the row for 7 nm has that of its kind of signalling.
        like = "hbm2" if signalling is _STACK else "ddr5"
        base, (area, transistors) = KINDS[like], _PHY_UM2[like]
        mhz = rate / row.data_a_clock, base.rate / base.data_a_clock
        per_pin = area / base.pins * signalling.pin_area(mhz[0]) / base.signalling.pin_area(mhz[1])
        controller = transistors * 8 * bandwidth / (base.rate * 1e6 * base.pins) / transistors_per_um2(node)
        um2 = round(width * per_pin * (node / 7) ** _SHRINKS + controller)
    return Interface(kind, width, rate, um2, round(1000 * idle), f"{LLMCOMPASS}; {CACTI_IO}; {KHAN}")
