"""What a plan asks of whoever runs its programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from npusim.program import Program

from ..operations.view import Array, Shape


class Buffer(Protocol):
    """Bytes of device memory."""

    @property
    def nbytes(self) -> int:
        """Size."""

    def release(self) -> None:
        """Give the memory back."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value in device memory: dense elements at the start of the buffer."""

    buffer: Buffer
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the value; the buffer may be larger."""
        return bytes_of(self.shape, self.dtype)


def bytes_of(shape: Shape, dtype: np.dtype[Any]) -> int:
    """Bytes of dense elements."""
    return math.prod(shape) * dtype.itemsize


Value = Array | Held
Target = Callable[[Shape, "np.dtype[Any]"], Buffer | None]
"""Asked where an output of this shape and type goes: a buffer of at least its size, or None for host memory."""


class Backend(Protocol):
    """Runs programs for one execution."""

    def run(
        self, program: Program, inputs: Mapping[str, Array | Buffer], outputs: Mapping[str, Buffer]
    ) -> Mapping[str, Array]:
        """Run a program; the outputs that ``outputs`` does not bind come back as host arrays."""

    def allocate(self, nbytes: int) -> Buffer:
        """Device memory for a value between programs."""

    def read(self, buffer: Buffer, nbytes: int) -> bytes | bytearray:
        """Bytes of device memory."""

    def write(self, buffer: Buffer, data: Array) -> None:
        """Fill device memory from the host."""

    def elapsed_ps(self) -> int:
        """Simulated time that this execution has taken so far."""
