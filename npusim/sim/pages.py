"""The non-zero pages of the memories of a machine, for checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from npusim.isa.base import ByteArray
from npusim.sim.memory import DeviceMemory

PAGE = 4096
"""Page size of checkpoints in bytes, on all hosts."""
_LOOK = 1 << 26
"""Bytes that are scanned together; a multiple of the page size of every host."""
_THERE = np.uint64(0b11 << 62)
"""Bits in an entry of Linux's page map: the page is in memory or swapped out."""

Runs = list[tuple[int, int]]
"""(first page, number of pages) in order."""


def memories(memory: DeviceMemory) -> dict[str, ByteArray]:
    """All memories of a machine by name."""
    found = {"dram": memory.dram}
    for core, (sram, acc) in enumerate(zip(memory.sram, memory.acc, strict=True)):
        found[f"core{core}.sram"], found[f"core{core}.acc"] = sram, acc
    if memory.l2.size:
        found["l2"] = memory.l2
    return found


def written(array: ByteArray) -> Runs:
    """The pages of an array that are not all zeros. The last page may be shorter."""
    runs: Runs = []
    for start, there in _looked_at(array):
        for first in np.flatnonzero(there).tolist():
            page = start // PAGE + first
            if runs and sum(runs[-1]) == page:
                runs[-1] = runs[-1][0], runs[-1][1] + 1
            else:
                runs.append((page, 1))
    return runs


def pages_of(array: ByteArray, runs: Runs) -> Iterator[ByteArray]:
    """The bytes of these pages, as views."""
    for first, count in runs:
        yield array[first * PAGE : (first + count) * PAGE]


def bytes_of(array: ByteArray, runs: Runs) -> int:
    """The number of bytes of these pages."""
    return sum(min((first + count) * PAGE, array.size) - first * PAGE for first, count in runs)


def _looked_at(array: ByteArray) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """For each scanned part: its offset, and whether each of its pages has a non-zero byte."""
    for start in range(0, array.size, _LOOK):
        part = array[start : start + _LOOK]
        touched = _touched(part)
        if touched is not None and not touched.any():
            continue
        found = np.zeros(-(-part.size // PAGE), np.bool_)
        candidates = range(found.size) if touched is None else np.flatnonzero(touched).tolist()
        for page in candidates:
            found[page] = part[page * PAGE : (page + 1) * PAGE].any()
        yield start, found


def _touched(part: ByteArray) -> npt.NDArray[np.bool_] | None:
    """The pages of a part to which the host has given memory, if it can tell. Reading the others would allocate page
    tables for terabytes that nobody wrote."""
    host, begin = os.sysconf("SC_PAGE_SIZE"), part.ctypes.data
    if begin % host or host % PAGE:
        return None
    with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as file:
        count = -(-part.size // host)
        raw = os.pread(file.fileno(), 8 * count, begin // host * 8)
        if len(raw) == 8 * count:
            there = (np.frombuffer(raw, np.uint64) & _THERE) != 0
            return np.repeat(there, host // PAGE)[: -(-part.size // PAGE)]
    return None
