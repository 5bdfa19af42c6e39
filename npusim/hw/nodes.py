"""Published energies and areas by process node, and their scaling to other nodes.

Between two published nodes a value is interpolated as a power of the node. Above 45 nm all values are scaled by the
measurements of Stillmaker and Baas. There are no values below 7 nm.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from itertools import pairwise

TPU4I = "Jouppi et al., Ten Lessons From Three Generations, ISCA 2021, table 2: 45 and 7 nm"
STILLMAKER = "Stillmaker and Baas, Scaling equations, Integration 58, 2017"
ALADDIN = "Shao et al., Aladdin, ISCA 2014: 40 nm library at 1 ns"
KHAN = "Khan and Mann, AI Chips: What They Are and Why They Matter, CSET 2020: transistors by node"
CACTI = "CACTI 7, itrs-lstp, 128-bit port: 45 and 22 nm"

NEWEST_NM, OLDEST_NM = 7, 130

OPERATIONS = {
    "add_int8": (0.03, 0.007), "add_int32": (0.1, 0.03), "add_float16": (0.4, 0.16), "add_float32": (0.9, 0.38),
    "mul_int8": (0.2, 0.07), "mul_int32": (3.1, 1.48), "mul_float16": (1.1, 0.34), "mul_float32": (3.7, 1.31),
}  # fmt: skip
"""TPU4I: picojoules of one operation at 45 and at 7 nm."""
BFLOAT16_PRODUCT = 0.21 / 0.34
"""TPU4I at 7 nm: a product of bfloat16 by one of float16; at 45 nm it has none."""
DRAMS = {
    "ddr3": (162_500, f"1300 pJ for 64 bits of DDR3 or DDR4: {TPU4I}"),
    "ddr4": (162_500, f"1300 pJ for 64 bits of DDR3 or DDR4: {TPU4I}"),
    "lpddr4": (112_000, "14 pJ/bit of 32 Gb LPDDR4: H. Kim, thesis, Stanford, simulated with DramDSE"),
    "gddr6": (51_875, f"350 to 480 pJ for 64 bits of GDDR6, the middle: {TPU4I}"),
    "hbm2": (43_750, f"250 to 450 pJ for 64 bits of HBM2, the middle: {TPU4I}"),
}
"""DRAM types: femtojoules per byte and the source. Independent of the node of the chip."""
PIN_BITS = {"hbm2": 2_430_000_000, "ddr4": 3_200_000_000}
"""Bits/s per pin: HBM2 as in the A100 (1555 GB/s over 5120 pins), DDR4-3200 (JEDEC JESD79-4)."""

_AREA = (
    (130, 6.4), (90, 2.8), (65, 1.5), (45, 1.0), (32, 0.46), (28, 0.19 * 0.85 / 0.51), (20, 0.21), (16, 0.19),
    (14, 0.17), (10, 0.1), (7, 0.059),
)  # fmt: skip
"""STILLMAKER: area of the same logic, by that at 45 nm. It has no 28 nm: NVDLA's primer gives the design of 32 MACs as
0.85 mm2 there and 0.51 mm2 at 16 nm."""
_TRANSISTORS = (
    (130, 0.92), (90, 1.6), (65, 3.3), (40, 7.7), (28, 15.3), (20, 22.1), (16, 28.9), (10, 52.5), (7, 96.3),
)  # fmt: skip
"""KHAN: transistors of logic on a square micrometre."""
_ENERGY_ABOVE = {
    130: (7.171, -6.709, 2.904),
    90: (4.762, -4.781, 2.092),
    65: (3.755, -4.398, 1.975),
    45: (1.103, -0.362, 0.2767),
}
"""STILLMAKER: a V^2 + b V + c; the ratio of two nodes is that of their energies, here at 1 V."""
_SRAM = (
    # bytes, (pJ of a read and a write at 45, at 22 nm), (mm2 at 45, at 22 nm), (mW of leakage at 45, at 22 nm)
    (8 << 10, (7.92 + 14.05, 2.01 + 3.24), (0.0277, 0.0066), (0.000171919, 0.000148994)),
    (32 << 10, (20.31 + 27.53, 5.24 + 5.6), (0.0975, 0.0303), (0.000636714, 0.000541807)),
    (64 << 10, (39.33 + 36.04, 8.97 + 7.6), (0.188, 0.0543), (0.00115877, 0.000990408)),
    (256 << 10, (76.12 + 63.68, 17.77 + 15.28), (0.8876, 0.2554), (0.00442916, 0.00380988)),
    (512 << 10, (100.19 + 87.75, 25.05 + 20.23), (1.7976, 0.429), (0.00885832, 0.00754921)),
    (1 << 20, (153.43 + 129.13, 36.34 + 31.45), (3.2473, 0.8563), (0.0176214, 0.0150839)),
    (2 << 20, (205.04 + 170.37, 51.12 + 46.23), (6.8021, 1.6912), (0.0344325, 0.0301677)),
    (4 << 20, (299.93 + 275.29, 75.02 + 65.46), (12.7788, 3.0516), (0.0704483, 0.0600445)),
)  # fmt: skip
_PORT_BYTES = 16
_PER_BIT = 0.324
"""Fraction of the energy of an access that scales with the width of the port; the rest belongs to the row. It scales
the 128 bits and 2 MB of CACTI to the 2048 bits of ZigZag's tpu_like.yaml (416 pJ at 28 nm)."""


def known(node: int) -> bool:
    """Whether there are values for a node."""
    return NEWEST_NM <= node <= OLDEST_NM


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Interpolation or extrapolation as a power of the position.

    ``points``: (position, value), sorted by position in either direction.
    """
    upwards = points[0][0] < points[-1][0]
    pairs = list(pairwise(points))
    beyond = (pair for pair in pairs if ((at <= pair[1][0]) if upwards else (at >= pair[1][0])))
    (x0, y0), (x1, y1) = next(beyond, pairs[-1])
    return float(y0 * (y1 / y0) ** (math.log(at / x0) / math.log(x1 / x0)))


@functools.cache
def area_factor(node: int) -> float:
    """Area of logic relative to 45 nm."""
    return between(_AREA, node)


@functools.cache
def transistors_per_um2(node: int) -> float:
    """Transistors per um2 of logic after layout."""
    return between(_TRANSISTORS, node)


@functools.cache
def _energy_above(node: int) -> float:
    """Energy at a node above 45 nm relative to 45 nm."""
    energies = [(nm, a + b + c) for nm, (a, b, c) in _ENERGY_ABOVE.items()]
    return between(energies, node) / energies[-1][1]


@functools.cache
def operation_pj(name: str, node: int) -> float:
    """Picojoules of one arithmetic operation."""
    old, new = OPERATIONS[name]
    if node > 45:
        return old * _energy_above(node)
    return between(((45, old), (7, new)), node)


def logic_factor(node: int, since: int) -> float:
    """Energy of simple logic relative to another node, as for a 32-bit adder."""
    return operation_pj("add_int32", node) / operation_pj("add_int32", since)


@functools.cache
def sram_pj(node: int, size: int, port_bytes: int) -> float:
    """Picojoules of one read or write of a memory of ``size`` bytes with a port of ``port_bytes``."""
    at45, at22 = (between([(row[0], row[1][which] / 2) for row in _SRAM], size) for which in (0, 1))
    access = _carried(node, at45, at22, logic_factor(max(node, NEWEST_NM), 22) if node < 22 else 1)
    if node > 45:
        access *= _energy_above(node)
    return access * (1 - _PER_BIT + _PER_BIT * port_bytes / _PORT_BYTES)


@functools.cache
def sram_um2(node: int, size: int) -> float:
    """Area in um2 of a memory of ``size`` bytes with one port, without its surroundings."""
    at45, at22 = (between([(row[0], row[2][which] * 1e6) for row in _SRAM], size) for which in (0, 1))
    return _carried(node, at45, at22, area_factor(node) / area_factor(45 if node > 45 else 22))


@functools.cache
def sram_leakage_uw(node: int, size: int) -> float:
    """Leakage power in microwatts of a memory."""
    at45, at22 = (between([(row[0], row[3][which] * 1e3) for row in _SRAM], size) for which in (0, 1))
    return _carried(node, at45, at22, 1)


def _carried(node: int, at45: float, at22: float, factor: float) -> float:
    """A CACTI value at a node: interpolated between its two nodes, or the nearer value times ``factor``."""
    if node < 22:
        return at22 * factor
    return at45 * factor if node > 45 else between(((45, at45), (22, at22)), node)
