"""Replays of DRAM simulators: access patterns on one memory, with the bank model of ``dram.kind = "jedec"``.

Both simulators were driven by this project. The behaviour of the drivers is stated here, and nothing is fitted per row.
Random choices (addresses, writes among the requests) come from a fixed sequence, because those of the originals are
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from npusim.hw.dram._memory import DramMemory
from npusim.hw.dram_parts import PARTS
from npusim.units import ceil_div
from npusim.validate.base import DataPoint, DataRow, DataSet, Excluded

Addresses = npt.NDArray[np.int64]

ADDRESSES, KINDS = 1, 2
"""Seeds of addresses and of kinds of requests."""
UNLIMITED = 1 << 20
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class AccessPattern:
    """One row of a table of patterns, in bytes: ``count`` requests of ``size`` in a memory of ``capacity``."""

    pattern: str
    parameter: int
    count: int
    size: int
    capacity: int


# DRAMsim3: at most ``outstanding`` requests; the next one is offered in the clock after a slot is free. Memories as in
# its shipped files: 32 transactions per channel, 8 entries per bank. DDR4 and LPDDR4 have two ranks.
DRAMSIM3 = {
    "DDR4_8Gb_x8_2400": 2,
    "DDR4_8Gb_x8_3200": 2,
    "DDR4_8Gb_x16_3200": 2,
    "LPDDR3_8Gb_x32_1866": 1,
    "LPDDR4_8Gb_x16_2400": 2,
    "HBM1_4Gb_x128": 1,
    "HBM2_8Gb_x128": 1,
    "GDDR6_8Gb_x16": 1,
}
"""Ranks of each memory."""
REQUESTS = 16_000
"""Requests to replay, for each of up to four channels: several refresh intervals."""
OFFSET = 8192
"""Bytes by which ``streamsoff`` shifts each stream relative to the previous one."""

WIDTH = 1024
"""Bytes of a line of ``tile2d``; the other patterns have no such parameter."""


def patterns(load: AccessPattern) -> Addresses:
    """Byte addresses of the requests of a pattern. Raises KeyError for an unknown pattern."""
    return _PATTERNS[load.pattern](load) % load.capacity


def _draws(count: int, below: int, seed: int) -> Addresses:
    """Random numbers below ``below`` by Steele's SplitMix64, the same with every version of numpy."""
    # Not numpy's generators, which may change and would then change results.
    z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(below)).astype(np.int64)


def _random(load: AccessPattern) -> Addresses:
    return _draws(load.count, load.capacity // load.size, ADDRESSES) * load.size


def _blocks(load: AccessPattern) -> Addresses:
    """Blocks of ``parameter`` bytes at random positions, each read sequentially."""
    each = max(1, load.parameter // load.size)
    count = ceil_div(load.count, each)
    starts = _draws(count, load.capacity // load.parameter, ADDRESSES) * load.parameter
    return (starts[:, None] + np.arange(each, dtype=np.int64) * load.size).ravel()[: load.count]


def _tile(load: AccessPattern) -> Addresses:
    """Lines of ``WIDTH`` bytes, whose starts are ``parameter`` bytes apart."""
    each = WIDTH // load.size
    turn = np.arange(load.count, dtype=np.int64)
    return turn // each * load.parameter + turn % each * load.size


def _streams(load: AccessPattern, offset: int = 0) -> Addresses:
    """``parameter`` interleaved sequential streams, each in its own part of the memory."""
    turn = np.arange(load.count, dtype=np.int64)
    apart = load.capacity // load.parameter // load.size * load.size + offset
    return turn % load.parameter * apart + turn // load.parameter * load.size


_PATTERNS: dict[str, Callable[[AccessPattern], Addresses]] = {
    "seq": lambda load: np.arange(load.count, dtype=np.int64) * load.size,
    "rand": _random,
    "rblk": _blocks,
    "stride": lambda load: np.arange(load.count, dtype=np.int64) * load.parameter,
    "streams": _streams,
    "streamsoff": lambda load: _streams(load, OFFSET),
    "tile2d": _tile,
}


def _requests(addresses: Addresses, read_pct: int) -> Addresses:
    """The requests of the model: address * 2 + write; writes are random."""
    return addresses * 2 + (_draws(len(addresses), 100, KINDS) >= read_pct)


def dramsim3(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Achieved bandwidth of a pattern."""
    for record in records:
        name, mapping = (record.text("cfg") + "__").split("__")[:2]
        pattern, parameter = record.text("pattern"), record.integer("param", 0)
        percent, outstanding = record.integer("read_pct", 0), record.integer("outstanding")
        label = f"{name} {mapping} {pattern} {parameter}, {percent} % reads, {outstanding} outstanding"
        if name not in DRAMSIM3:
            yield Excluded(label, f"no timings of {name}")
            continue
        if pattern not in _PATTERNS:
            yield Excluded(label, f"how {pattern} walks is not documented")
            continue
        part = PARTS[name]
        memory = DramMemory(part, record.integer("channels"), DRAMSIM3[name], mapping, turn=1)
        # Enough for several refreshes. More channels would give the same result as four.
        count = REQUESTS * min(4, memory.channels)
        load = AccessPattern(pattern, parameter, count, part.burst_bytes, memory.bytes)
        result = memory.serve(_requests(patterns(load), percent), outstanding)
        kind = pattern if percent in {0, 100} else f"{pattern}, mixed"
        yield DataPoint(label, record.number("achieved_gbs"), memory.bandwidth_of(result) / GIGA, kind)


@dataclass(frozen=True, slots=True)
class Preset:
    """A memory of Ramulator 2. ``ticks``: clocks of its driver per clock of the memory. Banks are the lowest address
    bits."""

    part: str
    mapping: str
    ticks: int
    rfc: int = 0


# The pseudo channels of HBM share one controller with 32 + 32 entries each. The small HBM2 refreshes in 160 ns.
RAMULATOR2 = {
    "DDR4_3200AA": Preset("DDR4_3200AA", "rocorachbabg", 8),
    "DDR4_3200W": Preset("DDR4_3200W", "rocorachbabg", 8),
    "LPDDR5_6400": Preset("LPDDR5_6400", "rocorachbabg", 8),
    "DDR5_6400AN": Preset("DDR5_6400AN", "rocorachbabg", 8),
    "HBM2_2000Mbps": Preset("HBM2_2000Mbps", "rocochbabgra", 16, 160),
    "HBM2_2400Mbps": Preset("HBM2_2400Mbps", "rocochbabgra", 16, 193),
    "HBM3_6400Mbps": Preset("HBM3_6400Mbps", "rocochbabgra", 16),
}
STREAM = 50_000
"""Requests per row in mode ``stream``. The original has 50 000."""
PROBES = 3_000
"""Reads of a row with probes, one after the other, from clock WARMUP on, as in the original."""
WARMUP = 10_000
BESIDE = 480_000
"""Limit of the other requests during the probes."""


def ramulator2(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Achieved bandwidth of a sequential stream, alone or in parallel with a chain of random reads."""
    for record in records:
        name, mode = record.text("timing_preset"), record.text("mode")
        percent, nops = record.integer("read_pct", 0), record.integer("nop")
        label = f"{name} {mode}, {percent} % reads, nop {nops}, refresh {record.text('refresh')}"
        if name not in RAMULATOR2:
            yield Excluded(label, f"no timings of {name}")
            continue
        preset = RAMULATOR2[name]
        memory = _memory(preset, record.integer("refresh", 0) == 1)
        if mode == "stream":
            load = AccessPattern("seq", 0, STREAM, memory.part.burst_bytes, memory.bytes)
            predicted = memory.bandwidth_of(memory.serve(_requests(patterns(load), percent), UNLIMITED))
        else:
            predicted = _beside(memory, percent, 32 * nops // preset.ticks)
        group = mode if percent in {0, 100} else f"{mode}, mixed"
        yield DataPoint(label, record.number("achieved_gbs"), predicted / GIGA, group)


def _memory(preset: Preset, refresh: bool) -> DramMemory:
    part = PARTS[preset.part]
    if preset.rfc:
        part = replace(part, rfc=preset.rfc)
    queue = 32 * part.pseudo
    return DramMemory(
        part, 1, 1, preset.mapping, read_queue=queue, write_queue=queue, bank_queue=0, refresh=refresh, shared=True
    )


def _beside(memory: DramMemory, percent: int, pace: int) -> int:
    """Number of requests of the stream during the probes, at its rate."""
    size = memory.part.burst_bytes
    stream = AccessPattern("seq", 0, BESIDE, size, memory.bytes)
    probes = _random(AccessPattern("rand", 0, PROBES, size, memory.bytes)) * 2
    return memory.bandwidth_of(memory.serve(_requests(patterns(stream), percent), UNLIMITED, pace, probes, WARMUP))


SETS: tuple[DataSet, ...] = (
    DataSet("ramulator2_bw", "GB/s", (), ramulator2),
    DataSet("dramsim3_bw", "GB/s", (), dramsim3),
)
