"""The bytes of a machine that are not zero, a page at a time: what a checkpoint keeps of its memories."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from npusim.isa.base import ByteArray
from npusim.sim.memory import DeviceMemory

PAGE = 4096
"""Bytes of a page of a checkpoint, whatever the host's have."""
_LOOK = 1 << 26
"""Bytes that are looked at together; a multiple of every host's page."""
_THERE = np.uint64(0b11 << 62)
"""Bits of an entry of Linux's page map: the page is in memory, or swapped out."""

Runs = list[tuple[int, int]]
"""First page and number of pages, in order."""


def memories(memory: DeviceMemory) -> dict[str, ByteArray]:
    """Every memory of a machine by its name."""
    found = {"dram": memory.dram}
    for core, (sram, acc) in enumerate(zip(memory.sram, memory.acc, strict=True)):
        found[f"core{core}.sram"], found[f"core{core}.acc"] = sram, acc
    if memory.l2.size:
        found["l2"] = memory.l2
    return found


def written(array: ByteArray) -> Runs:
    """The pages of an array that are not all zeros; the last one may be cut short by its end."""
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
    """The bytes of these pages, as views; what is behind the array's end is left out."""
    for first, count in runs:
        yield array[first * PAGE : (first + count) * PAGE]


def bytes_of(array: ByteArray, runs: Runs) -> int:
    """How many bytes those are."""
    return sum(min((first + count) * PAGE, array.size) - first * PAGE for first, count in runs)


def _looked_at(array: ByteArray) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Offsets, and for each page from there on whether there is anything in it."""
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
    """Which of its pages the host has ever given memory to, as far as it says so: reading the others would cost page
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
