"""Program: what the compiler makes, a cache file holds, and a driver loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType

CONSTANTS = 0
"""Region of the constants: read only, written once when the program is loaded."""
SCRATCH = 1
"""Region of the values between operators."""
FIRST_IO = 2
"""Regions from here on: one for each input, then one for each output."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A program input or output: dense row-major elements at the start of its region."""

    name: str
    region: int
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        count = self.dtype.itemsize
        for dim in self.shape:
            count *= dim
        return count


@dataclass(frozen=True, slots=True)
class OpEntry:
    """A row of the operator table: what the operator index in a command means."""

    name: str
    kind: str


@dataclass(slots=True, eq=False)
class Program:
    """A compiled model. ``region_bytes[r]`` is the size that region r must have at least.

    ``code``: the instruction stream (see npusim.isa); ``constants``: uint8, the contents of region CONSTANTS;
    ``macs``: multiply-accumulates of the matrix unit by element type; ``from_cache``: read from a file, not compiled
    now.
    """

    name: str
    config_name: str
    config_fingerprint: str
    key: str
    code: bytes
    constants: npt.NDArray[np.uint8]
    region_bytes: tuple[int, ...]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    ops: tuple[OpEntry, ...]
    commands: int
    macs: tuple[tuple[DType, int], ...]
    from_cache: bool = False

    def describe(self) -> dict[str, Any]:
        """Sizes for reports, in bytes."""
        return {
            "name": self.name,
            "config": self.config_name,
            "commands": self.commands,
            "code_bytes": len(self.code),
            "constant_bytes": int(self.constants.nbytes),
            "scratch_bytes": self.region_bytes[SCRATCH],
        }
