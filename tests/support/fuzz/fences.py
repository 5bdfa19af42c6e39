"""Fences around the operands of each instruction. The device memories are large, so a stray access inside them would
otherwise go unnoticed."""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from npusim.isa.base import INSTRUCTIONS, Call, Instruction
from npusim.sim.memory import DeviceMemory, JobMemory

_ASAN = ctypes.CDLL(None) if hasattr(ctypes.CDLL(None), "__asan_poison_memory_region") else None
SANITIZED = _ASAN is not None
"""Whether the kernels were built with AddressSanitizer, which ends the process at the first access beside an
operand."""


class Fences:
    """Guards every operand from its creation on.

    Memory beside the operands may not be read (checked with AddressSanitizer) or written (checked with ``compare``,
    which copies the memories for each instruction).
    """

    def __init__(self) -> None:
        self.memory: DeviceMemory | None = None
        self.compare = False
        self.problems: list[str] = []
        self._inside = False
        for cls in INSTRUCTIONS.values():
            # Unwrap a method inherited from another class: nested fences would forbid access to the rest.
            cls.execute = self._fenced(inspect.unwrap(cls.execute))  # type: ignore[method-assign]
            cls.calls = self._whole(inspect.unwrap(cls.calls))  # type: ignore[method-assign]

    def _whole(self, calls: Callable[[Any, Any, int], Sequence[Call]]) -> Callable[[Any, Any, int], Sequence[Call]]:
        """Replayed jobs keep the calls of an instruction. Outside of a fence these are the fenced instruction."""

        @functools.wraps(calls)
        def whole(instruction: Instruction, memory: JobMemory, core: int) -> Sequence[Call]:
            return calls(instruction, memory, core) if self._inside else ((instruction.execute, (memory, core)),)

        return whole

    def _fenced(self, execute: Callable[[Any, Any, int], None]) -> Callable[[Any, Any, int], None]:
        @functools.wraps(execute)
        def fenced(instruction: Instruction, memory: JobMemory, core: int) -> None:
            assert self.memory is not None
            areas = [self.memory.dram, *self.memory.sram, *self.memory.acc]
            operands = list(_operands(instruction, memory, core)) if self.compare or _ASAN else []
            before = [area.copy() for area in areas] if self.compare else []
            try:
                _poison(areas, operands)
                self._inside = True
                execute(instruction, memory, core)
            finally:
                self._inside = False
                _poison([], [(area.ctypes.data, area.size, True) for area in areas])
            for area, old in zip(areas, before, strict=bool(before)):
                for address, size, write in operands:
                    low = address - area.ctypes.data
                    if write and 0 <= low < area.size:
                        old[low : low + size] = area[low : low + size]
                if not np.array_equal(area, old):
                    at = int(np.flatnonzero(area != old)[0])
                    self.problems.append(f"{instruction} writes byte {at} of a memory of {area.size}")

        return fenced


def _operands(instruction: Instruction, memory: JobMemory, core: int) -> Iterator[tuple[int, int, bool]]:
    """Yield host address, size and whether it is written, for each operand."""
    for access in filter(None, instruction.accesses()):
        for owner in instruction.targets(core) if access.write else (instruction.reads_of(core),):
            at = memory.at(owner, access.address)
            base = np.asarray(at.memory).ctypes.data + at.offset
            yield base + access.low, access.high - access.low, access.write


def _poison(areas: list[Any], operands: list[tuple[int, int, bool]]) -> None:
    """Forbid the areas and allow the operands. AddressSanitizer does so in units of eight bytes."""
    if _ASAN is None:
        return
    for area in areas:
        _ASAN.__asan_poison_memory_region(ctypes.c_void_p(area.ctypes.data), ctypes.c_size_t(area.size))
    for address, size, _ in operands:
        _ASAN.__asan_unpoison_memory_region(ctypes.c_void_p(address), ctypes.c_size_t(size))
