"""Quantities with units: text is converted once, exactly, to an integer in a base unit, or refused.

Base units: time in picoseconds, sizes in bytes, frequency in hertz, bandwidth in bytes per second, energy in
femtojoules, power in microwatts, area in square micrometres, process nodes in nanometres, supplies in millivolts.
Inside npusim there are only these integers.
"""

from __future__ import annotations

import enum
import re
from fractions import Fraction

from npusim.errors import UsageError, shown

PS_PER_S = 10**12
LONGEST = 100
"""Most characters of a quantity."""


class Dimension(enum.Enum):
    """A dimension: (description, base unit, example for messages)."""

    TIME = ("a time", "ps", "80 ns")
    SIZE = ("a size", "B", "64 KiB")
    FREQUENCY = ("a frequency", "Hz", "1 GHz")
    BANDWIDTH = ("a bandwidth", "B/s", "25.6 GB/s")
    ENERGY = ("an energy", "fJ", "0.2 pJ")
    POWER = ("a power", "uW", "50 mW")
    AREA = ("an area", "um2", "3.5 mm2")
    LENGTH = ("a length", "nm", "22 nm")
    VOLTAGE = ("a voltage", "mV", "0.8 V")

    @property
    def noun(self) -> str:
        """The quantity in words, for messages."""
        return self.value[0]

    @property
    def base(self) -> str:
        """The unit of the integers inside npusim."""
        return self.value[1]

    @property
    def example(self) -> str:
        """A quantity as text, for messages."""
        return self.value[2]

    @property
    def suffixes(self) -> dict[str, int]:
        """All accepted units, smallest first, with their size in base units."""
        return _SUFFIXES[self]


_DECIMAL_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SUFFIXES = {
    Dimension.TIME: {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": PS_PER_S},
    Dimension.SIZE: dict(sorted({**_DECIMAL_BYTES, **_BINARY_BYTES}.items(), key=lambda item: item[1])),
    Dimension.FREQUENCY: {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9},
    Dimension.BANDWIDTH: {
        f"{unit}/s": size
        for unit, size in sorted({**_DECIMAL_BYTES, **_BINARY_BYTES}.items(), key=lambda item: item[1])
    },
    Dimension.ENERGY: {"fJ": 1, "pJ": 10**3, "nJ": 10**6},
    Dimension.POWER: {"uW": 1, "mW": 10**3, "W": 10**6},
    Dimension.AREA: {"um2": 1, "mm2": 10**6},
    Dimension.LENGTH: {"nm": 1},
    Dimension.VOLTAGE: {"mV": 1, "V": 10**3},
}
# Units for printing: powers of two for sizes, powers of ten for bandwidths, as in datasheets.
_PRINTED = {
    **_SUFFIXES,
    Dimension.SIZE: _BINARY_BYTES,
    Dimension.BANDWIDTH: {f"{unit}/s": size for unit, size in _DECIMAL_BYTES.items()},
}
_QUANTITY = re.compile(r"([0-9]{1,19}(?:_[0-9]{1,15})*(?:\.[0-9]{1,15})?)\s*([A-Za-z/]+2?)", re.ASCII)


def parse(text: str, dimension: Dimension) -> int:
    """``text`` in base units of ``dimension``. Raises UsageError for another unit or a value that is not exact."""
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= LONGEST else None
    suffixes = _SUFFIXES[dimension]
    if match is None or match[2] not in suffixes:
        units = ", ".join(suffixes)
        raise UsageError(f"must be {dimension.noun} such as '{dimension.example}' (units: {units}), got {shown(text)}")
    value = Fraction(match[1].replace("_", "")) * suffixes[match[2]]
    if value.denominator != 1:
        raise UsageError(f"must be a whole number of {dimension.base}, got {shown(text)}")
    return value.numerator


def show(value: int, dimension: Dimension) -> str:
    """The shortest text of at most three decimals that :func:`parse` reads back as exactly ``value``."""
    for suffix, size in sorted(_PRINTED[dimension].items(), key=lambda item: -item[1]):
        if value >= size and (1000 * value) % size == 0:
            whole, thousandths = divmod(1000 * value // size, 1000)
            decimals = f".{thousandths:03}".rstrip("0") if thousandths else ""
            return f"{whole}{decimals} {suffix}"
    return f"{value} {dimension.base}"


def cycles_to_ps(cycles: int, hz: int) -> int:
    """The time that ``cycles`` of a clock take, rounded up to a whole picosecond once for the whole span."""
    return ceil_div(cycles * PS_PER_S, hz)


def ps_to_cycles(ps: int, hz: int) -> int:
    """How many whole cycles of a clock fit in ``ps``; the inverse of :func:`cycles_to_ps` up to 1 THz."""
    return ps * hz // PS_PER_S


def cycles_spanned(ps: int, hz: int) -> int:
    """Clock cycles that cover ``ps``: a started cycle counts, unlike in :func:`ps_to_cycles`."""
    return ceil_div(ps * hz, PS_PER_S)


def bytes_to_ps(size: int, bandwidth: int) -> int:
    """The time that ``size`` bytes take at ``bandwidth`` bytes per second, rounded up."""
    return ceil_div(size * PS_PER_S, bandwidth)


def ceil_div(dividend: int, divisor: int) -> int:
    """``dividend / divisor`` rounded up; exact for integers of any size."""
    return -(-dividend // divisor)
