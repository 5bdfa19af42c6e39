"""The interface between a plan and the executor of its programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from npusim.program import Program

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


class PlanBuffer(Protocol):
    """Bytes of device memory."""

    @property
    def nbytes(self) -> int:
        """Size."""

    def release(self) -> None:
        """Free the memory."""


@dataclass(frozen=True, slots=True)
class DeviceValue:
    """A value in device memory: dense elements at the start of the buffer."""

    buffer: PlanBuffer
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the value; the buffer may be larger."""
        return bytes_of(self.shape, self.dtype)


def bytes_of(shape: Shape, dtype: np.dtype[Any]) -> int:
    """Bytes of dense elements."""
    return math.prod(shape) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence that the host holds: its values, which may be on the device. None: an absent optional value."""

    values: tuple[Array | DeviceValue, ...] | None

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shapes of the values, for the key of what follows."""
        return ("absent",) if self.values is None else ("sequence", *(value.shape for value in self.values))


@dataclass(frozen=True, slots=True)
class Strings:
    """A tensor of strings, which the host holds. ``array``: of objects of type str."""

    array: Array

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its shape, marked as that of strings, for the key of what follows."""
        return ("strings", *self.array.shape)


Held = Items | Strings
"""Values that only the host has."""
Value = Array | DeviceValue | Items | Strings
Target = Callable[[Shape, "np.dtype[Any]"], PlanBuffer | None]
"""Called with a shape and type: returns a buffer of at least that size for an output, or None for host memory."""


def on_host(shape: Shape, dtype: np.dtype[Any]) -> PlanBuffer | None:
    """The target of values that stay in host memory."""
    return None


class Backend(Protocol):
    """Runs programs for one execution."""

    def run(
        self, program: Program, inputs: Mapping[str, Array | PlanBuffer], outputs: Mapping[str, PlanBuffer]
    ) -> Mapping[str, Array]:
        """Run a program; outputs that ``outputs`` does not bind are returned as host arrays."""

    def allocate(self, nbytes: int) -> PlanBuffer:
        """Device memory for a value between programs."""

    def read(self, buffer: PlanBuffer, nbytes: int) -> bytes | bytearray:
        """Bytes of device memory."""

    def write(self, buffer: PlanBuffer, data: Array) -> None:
        """Fill device memory from the host."""

    def again(self, limit_ps: int) -> int:
        """Repeat iterations of a loop; returns their number, which may be 0. The effect equals that of ``run``.

        The last four runs must be two iterations of a condition, whose result was read, and a body, with the inputs of
        the next iteration at the same addresses as those of the first. No body starts unless its condition is true, and
        none after ``limit_ps``.
        """

    def limited(self) -> AbstractContextManager[None]:
        """Within the block, host computations end at their next poll if the execution must end."""

    def decide(self, name: str, kind: str, elements: int) -> None:
        """The host decides: step ``name`` of kind ``kind``, for which it reads and writes this many elements."""

    def elapsed_ps(self) -> int:
        """Simulated time that this execution has taken so far."""
