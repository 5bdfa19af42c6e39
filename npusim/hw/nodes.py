"""Published energies, areas, delays and leakage by process node, and their scaling to other nodes.

Between two published nodes a value is interpolated as a power of the node. Above 45 nm energies are scaled by the
simulations of Stillmaker and Baas, below 7 nm by the ratios that TSMC publishes. Energies are those at the nominal
supply of the node; :func:`supply_mv` and :func:`fastest_hz` relate supply and clock.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

TPU4I = "Jouppi et al., Ten Lessons From Three Generations, ISCA 2021, table 2: 45 and 7 nm"
STILLMAKER = "Stillmaker and Baas, Scaling equations, Integration 58, 2017"
ALADDIN = "Shao et al., Aladdin, ISCA 2014: 40 nm library at 1 ns"
KHAN = "Khan and Mann, AI Chips: What They Are and Why They Matter, CSET 2020: transistors by node"
CACTI = "CACTI 7, itrs-lstp, 128-bit port: 45 and 22 nm"
TSMC = "TSMC, as compiled by AnandTech (May 2024) for N3E to N5 and N2 to N3E; its symposia for N6 and N5 to N7"
CHINNERY = (
    "Chinnery and Keutzer, Closing the Gap Between ASIC and Custom, DAC 2000, as quoted in Celio et al., BOOM, "
    "UCB/EECS-2015-167: 44 FO4 a cycle, Xtensa"
)
KECKLER = "Keckler et al., GPUs and the Future of Parallel Computing, IEEE Micro 31(5), 2011: 310 pJ at 40 nm and 0.9 V"
ASAP7 = "ASAP7 library, RVT, typical, 0.7 V, 25 C: a flip-flop"

NEWEST_NM, OLDEST_NM = 2, 130

OPERATIONS = {
    "add_int8": (0.03, 0.007), "add_int32": (0.1, 0.03), "add_float16": (0.4, 0.16), "add_float32": (0.9, 0.38),
    "mul_int8": (0.2, 0.07), "mul_int32": (3.1, 1.48), "mul_float16": (1.1, 0.34), "mul_float32": (3.7, 1.31),
}  # fmt: skip
"""TPU4I: picojoules of one operation at 45 and at 7 nm."""
BFLOAT16_PRODUCT = 0.21 / 0.34
"""TPU4I at 7 nm: a product of bfloat16 by one of float16; at 45 nm it has none."""

_N7 = 7
_SINCE_N7 = {
    # node: logic area, energy at the same speed, speed; a bit of SRAM (Princeton's LLMCompass, cost_model.py; TSMC)
    6: (1 / 1.18, 1.0, 1.0, 0.14 / 0.17),
    5: (1 / 1.8, 0.7, 1.15, 0.125 / 0.17),
    3: (1 / 1.8 / 1.6, 0.7 * 0.66, 1.15 * 1.18, 0.125 / 0.17),
    2: (1 / 1.8 / 1.6 / 1.15, 0.7 * 0.66 * 0.725, 1.15 * 1.18 * 1.125, 0.125 / 0.17 * 0.0175 / 0.021),
}
"""TSMC: relative to 7 nm. N2 by its 25 to 30 % less energy and 10 to 15 % more speed, the middle."""

_AREA = (
    (130, 6.4), (90, 2.8), (65, 1.5), (45, 1.0), (32, 0.46), (28, 0.19 * 0.85 / 0.51 * 0.925), (20, 0.21), (16, 0.19),
    (14, 0.17), (10, 0.1), (7, 0.059), *((nm, 0.059 * row[0]) for nm, row in _SINCE_N7.items()),
)  # fmt: skip
"""STILLMAKER: area of the same logic, by that at 45 nm. It has no 28 nm: NVDLA's primer gives the design of 32 MACs as
0.85 mm2 there and 0.51 mm2 at 16 nm, at the same clock of 1 GHz, for which gates are 7.5 % larger at 28 nm (see
``tightness``)."""
_TRANSISTORS = (
    (130, 0.92), (90, 1.6), (65, 3.3), (40, 7.7), (28, 15.3), (20, 22.1), (16, 28.9), (10, 52.5), (7, 96.3),
    *((nm, 96.3 / row[0]) for nm, row in _SINCE_N7.items()),
)  # fmt: skip
"""KHAN: transistors of logic on a square micrometre; below 7 nm as the area of logic."""
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
SRAM_LAYOUT = 2.1
"""Area of a memory divided by that of CACTI: 544 000 um2 for 256 KiB at 22 nm (Gemmini, DAC 2021, figure 6a), where
CACTI has 255 400."""
FLOORPLAN = 1.9
"""Area of a block on a die divided by that of the placed block, with its share of channels, power grid, repeaters and
test logic: buffers and compute of TPU v1, 37 and 30 % of 331 mm2 at 28 nm (ISCA 2017, figure 2), divided by the areas
of this model."""
_SRAM_N7 = 112e6 / SRAM_LAYOUT / FLOORPLAN / (128 << 20)
"""Square micrometres of a byte of SRAM at 7 nm as CACTI would have it: TPUv4i's 128 MiB on 112 mm2 (ISCA 2021, figure
6)."""
_PERIPHERY = 1 << 10
"""Bytes that have the area of decoders and sense amplifiers of a small memory: OpenRAM's macros for SkyWater 130 nm
have 190 713 um2 for 1 KiB and 284 538 um2 for 2 KiB (VLSIDA/sky130_sram_macros)."""
_LARGEST_MACRO = 1 << 20
"""Larger memories consist of several: beyond it, CACTI's areas are proportional to the size."""

_NOMINAL = (
    (130, 1.3), (90, 1.2), (65, 1.1), (45, 1.0), (20, 0.9), (16, 0.85), (14, 0.8), (10, 0.75), (7, 0.7), (3, 0.7),
    (2, 0.65),
)  # fmt: skip
"""Nominal supply in volts: that of the models in STILLMAKER (PTM); IRDS 2022 below 7 nm; 45 nm as ITRS 2010."""
_LOWEST, _HIGHEST = 0.6, 1.1
"""Chosen: limits of the supply, relative to nominal; below, SRAM cells are not stable, above, transistors age."""
_DELAY = {
    130: (-76.65, 334.9, -493.4, 275.8),
    90: (-60.34, 262.5, -384.2, 210.9),
    65: (-53.3, 230.4, -333.9, 178.6),
    20: (-160.5, 514.1, -558.6, 217.5),
    16: (-114.6, 366.7, -397.4, 153.6),
    14: (-85.37, 271.6, -292.2, 111.4),
    10: (-71.76, 228.6, -246.3, 93.91),
    7: (-61.79, 196.1, -210.3, 79.55),
}
"""STILLMAKER, table 4: picoseconds of an inverter with a fan-out of 4, as a polynomial of the supply; the low power
models from 20 nm on. Its 45 and 32 nm, 12 and 43 ps by model, are left out: interpolation gives 17 and 16 ps."""
_FO4_A_CYCLE = 44
"""CHINNERY: the length of a cycle of automatically placed and routed logic, in delays of such inverters."""

_TIGHTNESS = ((1, 6351.0), (3, 4974.0), (4, 4620.0), (5, 4595.0))
"""ALADDIN: um2 of a 32-bit multiplier at 40 nm by the cycle in ns that it is synthesised for; the same beyond 5 ns."""

_LEAKAGE_40 = 2.25 / 278
"""ALADDIN: microwatts of 1 um2 of cells at 40 nm, an adder's."""
_LEAKAGE_7 = 288.6e-6 / 0.379
"""ASAP7: the same at 7 nm, DFFASRHQNx1 of asap7sc7p5t_SEQ_RVT_TT (OpenROAD-flow-scripts)."""
_LEAKAGE_SINCE_N7 = {6: 1.0, 5: 0.93, 3: 1.01, 2: 0.545}
"""Leakage of a transistor relative to 7 nm: off-current, width and supply of IRDS 2017 to 2022 (NeuroSim V1.4,
Technology.cpp)."""
_WIRE_FJ = 149
"""KECKLER: femtojoules of a random bit on 1 mm of wire with its repeaters, at 1 V: 310 pJ for 256 bits over 10 mm."""


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
def _since_n7(node: int, column: int) -> float:
    """A ratio of ``_SINCE_N7`` at a node below 7 nm."""
    return between(((_N7, 1.0), *((nm, row[column]) for nm, row in _SINCE_N7.items())), node)


@functools.cache
def operation_pj(name: str, node: int) -> float:
    """Picojoules of one arithmetic operation."""
    old, new = OPERATIONS[name]
    if node > 45:
        return old * _energy_above(node)
    if node < _N7:
        return new * _since_n7(node, 1)
    return between(((45, old), (_N7, new)), node)


@functools.cache
def nominal_mv(node: int) -> int:
    """Millivolts of the nominal supply."""
    return round(1000 * between(_NOMINAL, node))


@functools.cache
def fo4_ps(node: int, relative: float) -> float:
    """Picoseconds of an inverter with a fan-out of 4 at a supply relative to the nominal one."""
    delays = []
    for nm, (a, b, c, d) in _DELAY.items():
        volts = relative * between(_NOMINAL, nm)
        delays.append((nm, ((a * volts + b) * volts + c) * volts + d))
    if node < _N7:
        return delays[-1][1] / _since_n7(node, 2)
    return between(delays, node)


@functools.cache
def _supplies(node: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Supplies of a node in millivolts, and the highest clock in Hz at each."""
    nominal = nominal_mv(node)
    steps = range(round(_LOWEST * nominal), round(_HIGHEST * nominal) + 1)
    return tuple(steps), tuple([fastest_hz(node, supply) for supply in steps])


@functools.cache
def fastest_hz(node: int, supply: int | None = None) -> int:
    """The highest clock of synthesised logic at a supply in millivolts; None: at the highest supply of the node."""
    if supply is None:
        return _supplies(node)[1][-1]
    return round(1e12 / (_FO4_A_CYCLE * fo4_ps(node, supply / nominal_mv(node))))


def supply_mv(node: int, hz: int) -> int:
    """The lowest supply in millivolts at which a clock runs; the highest supply for clocks that run at none."""
    steps, clocks = _supplies(node)
    return steps[min(bisect_left(clocks, hz), len(steps) - 1)]


@functools.cache
def tightness(node: int, supply: int, hz: int) -> float:
    """Area of arithmetic for a clock at a supply in millivolts, relative to 1 ns at 40 nm and the nominal supply."""
    cycle = 1e12 / hz / fo4_ps(node, supply / nominal_mv(node))
    points = [(1000 * ns / fo4_ps(40, 1.0), area / _TIGHTNESS[0][1]) for ns, area in _TIGHTNESS]
    return between(points, min(cycle, points[-1][0]))


def supply_range_mv(node: int) -> tuple[int, int]:
    """The lowest and the highest supply of a node in millivolts."""
    steps = _supplies(node)[0]
    return steps[0], steps[-1]


def wire_fj(supply: float) -> float:
    """Femtojoules of a byte of random data on 1 mm of wire at a supply in volts."""
    return 8 * _WIRE_FJ * supply**2


@functools.cache
def cell_leakage_uw(node: int) -> float:
    """Leakage in microwatts, at the nominal supply of the node, of the logic that has 1 um2 of cells at 40 nm."""
    if node > 40:
        # The same off-current for the same width of transistor, as in the models of PTM.
        return _LEAKAGE_40 * (node / 40) * (nominal_mv(node) / nominal_mv(40))
    newest = _LEAKAGE_7 * area_factor(_N7) / area_factor(40)
    if node < _N7:
        return newest * between(((_N7, 1.0), *_LEAKAGE_SINCE_N7.items()), node)
    return between(((40, _LEAKAGE_40), (_N7, newest)), node)


def logic_factor(node: int, since: int) -> float:
    """Energy of simple logic relative to another node, as for a 32-bit adder."""
    return operation_pj("add_int32", node) / operation_pj("add_int32", since)


@functools.cache
def sram_pj(node: int, size: int, port_bytes: int) -> float:
    """Picojoules of one read or write of a memory of ``size`` bytes with a port of ``port_bytes``."""
    at45, at22 = (between([(row[0], row[1][which] / 2) for row in _SRAM], size) for which in (0, 1))
    access = _carried(node, at45, at22, logic_factor(node, 22) if node < 22 else 1)
    if node > 45:
        access *= _energy_above(node)
    return access * (1 - _PER_BIT + _PER_BIT * port_bytes / _PORT_BYTES)


@functools.cache
def sram_um2(node: int, size: int) -> float:
    """Area in um2 of a memory of ``size`` bytes with one port, without its surroundings."""
    if size > _LARGEST_MACRO:
        return sram_um2(node, _LARGEST_MACRO) * size / _LARGEST_MACRO
    least = _SRAM[0][0]
    if size < least:
        return sram_um2(node, least) * (size + _PERIPHERY) / (least + _PERIPHERY)
    at45, at22 = (between([(row[0], row[2][which] * 1e6) for row in _SRAM], size) for which in (0, 1))
    if node < 22:
        # Cells of SRAM shrink less than logic.
        a_mib = next(row[2][1] * 1e6 / row[0] for row in _SRAM if row[0] == 1 << 20)
        shrunk = _SRAM_N7 / a_mib * (_since_n7(node, 3) if node < _N7 else 1)
        return at22 * (shrunk if node <= _N7 else between(((22, 1.0), (_N7, shrunk)), node))
    return _carried(node, at45, at22, area_factor(node) / area_factor(45))


@functools.cache
def sram_leakage_uw(node: int, size: int) -> float:
    """Leakage power in microwatts of a memory at the nominal supply of the node."""
    at45, at22 = (between([(row[0], row[3][which] * 1e3) for row in _SRAM], size) for which in (0, 1))
    # The same off-current: for the same width of transistor above 45 nm (ITRS, LSTP), for a cell below 22 nm (ASAP7).
    near = 45 if node > 45 else 22
    return _carried(node, at45, at22, nominal_mv(node) / nominal_mv(near) * (node / 45 if node > 45 else 1))


def _carried(node: int, at45: float, at22: float, factor: float) -> float:
    """A CACTI value at a node: interpolated between its two nodes, or the nearer value times ``factor``."""
    if node < 22:
        return at22 * factor
    return at45 * factor if node > 45 else between(((45, at45), (22, at22)), node)
