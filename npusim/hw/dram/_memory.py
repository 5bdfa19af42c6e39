"""A memory of JEDEC parts behind a controller: parameters for the compiled model of its banks and queues.

The controller has separate queues for reads and writes. With ``bank_queue`` entries per bank, transactions move on into
the queue of their bank, and banks are served round-robin. A row with pending hits stays open for up to ``HIT_CAP`` of
them. With ``bank_queue`` 0 the whole window is searched: rows that are being opened first, then the oldest entry whose
command can be issued. Writes wait until there are many of them or no reads are left. Pages stay open.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npusim.hw.dram import _dram
from npusim.hw.dram_parts import MAPPING, DramPart
from npusim.units import PS_PER_S, ceil_div

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

HIT_CAP = 4
BUBBLE = 2
"""Clocks between read data and following write data (JEDEC: the strobes change direction)."""
SET_REFRESHES = 8
"""Refreshes of sets of banks in tREFI."""
RANK_SWITCH = 1
"""Clocks between the data of two ranks."""
READS, WRITES, COPY = 0, 1, 2
"""Modes of a transfer."""


@dataclass(frozen=True, slots=True)
class DramResult:
    """The result of a simulation.

    ``cycles``: until the last datum. Latencies are sums over all reads, in clocks. ``hits``, ``misses``, ``conflicts``:
    bursts whose row was open, with no row open, with another row open. ``skipped``: bursts that were extrapolated
    because the stream is periodic.
    """

    cycles: int
    reads: int
    writes: int
    hits: int
    misses: int
    conflicts: int
    latency: int
    refreshes: int
    probes: int
    probe_latency: int
    skipped: int


@dataclass(frozen=True, slots=True)
class DramMemory:
    """``channels`` of a part with ``ranks`` each. ``mapping``: the fields of an address, highest bits first.

    ``turn``: clocks from a datum at the pins until its requester may send the next request. ``shared``: all ranks are
    refreshed at the same time, as pseudo channels always are; otherwise one after the other. ``by_bank``: sets of banks
    are refreshed one after another, while the others serve.
    """

    part: DramPart
    channels: int = 1
    ranks: int = 1
    mapping: str = MAPPING
    read_queue: int = 32
    write_queue: int = 32
    bank_queue: int = 8
    refresh: bool = True
    by_bank: bool = False
    turn: int = 0
    shared: bool = False

    @property
    def unit(self) -> int:
        """log2 of the bytes of one burst."""
        return self.part.burst_bytes.bit_length() - 1

    @property
    def bandwidth(self) -> int:
        """Peak of all channels in bytes/s."""
        return self.channels * self.part.bandwidth

    @property
    def sustained(self) -> int:
        """Peak less refresh in bytes/s, with bursts at a distance of at least tCCD_S."""
        part, lost = self.part, self.refresh_clocks if self.refresh else 0
        every = max(part.burst_clocks, part.ccd_s)
        return self.bandwidth * part.burst_clocks * (part.refi - lost) // (every * part.refi)

    @property
    def refresh_clocks(self) -> int:
        """Clocks without data in each refresh interval; for sets of banks as simulated with a long stream."""
        return _lost(self) if self.by_bank else self.part.rp + self.part.rfc + self.part.rcd_rd

    @property
    def bytes(self) -> int:
        """Capacity."""
        return self.channels * self.levels["ra"] * self.part.rank_bytes

    @property
    def levels(self) -> dict[str, int]:
        """Number of each: channels, ranks (or pseudo channels), bank groups, banks per group, columns."""
        part = self.part
        return {
            "ch": self.channels,
            "ra": part.pseudo if part.pseudo > 1 else self.ranks,
            "bg": part.groups,
            "ba": part.banks,
            "co": part.row_bytes // part.burst_bytes,
        }

    def parameters(self) -> dict[str, int]:
        """The parameters of ``_dram.serve`` by name."""
        part, levels, window = self.part, self.levels, not self.bank_queue
        same = (
            "cl",
            "cwl",
            "rcd_rd",
            "rcd_wr",
            "rp",
            "ras",
            "rc",
            "rtp",
            "wr",
            "rrd_s",
            "rrd_l",
            "faw",
            "ccd_s",
            "ccd_l",
            "wtr_s",
            "wtr_l",
            "act_slots",
        )
        sets = part.refresh_sets if self.by_bank else 1
        values = {
            **{name: getattr(part, name) for name in same},
            "rfc": part.rfc_set if self.by_bank else part.rfc,
            "burst": part.burst_clocks,
            # Write data follow their command by CWL, read data by CL, and both take one burst: they must not overlap on
            # the bus.
            "rtw": max(1, part.cl + part.burst_clocks + BUBBLE - part.cwl),
            "rtrs": RANK_SWITCH,
            "refi": part.refi // (SET_REFRESHES if self.by_bank else 1) if self.refresh else 0,
            "sets": sets,
            "dual": int(part.dual),
            "pseudo": int(part.pseudo > 1),
            "turn": self.turn,
            "read_queue": self.read_queue,
            "write_queue": self.write_queue,
            "bank_queue": self.bank_queue,
            # Bank queues: a full write queue is emptied. Window: from 80 % full to below 20 %.
            "write_high": self.write_queue * 8 // 10 + 1 if window else self.write_queue,
            "write_low": self.write_queue * 2 // 10 + 1 if window else 0,
            "write_idle": 1 if window else min(9, self.write_queue),
            "hit_cap": HIT_CAP,
            "stagger": int(not self.shared and part.pseudo == 1),
            "channels": levels["ch"],
            "ranks": levels["ra"],
            "groups": levels["bg"],
            "banks": levels["ba"],
        }
        at = 0
        for name in reversed([self.mapping[i : i + 2] for i in range(0, len(self.mapping), 2)]):
            values[f"{name}_shift"] = at
            # The row is the highest field and takes all remaining bits.
            if name != "ro":
                values[f"{name}_bits"] = levels[name].bit_length() - 1
                at += values[f"{name}_bits"]
        return values

    def serve(
        self,
        requests: npt.NDArray[np.int64],
        outstanding: int,
        pace: int = 0,
        probes: npt.NDArray[np.int64] | None = None,
        warmup: int = 0,
    ) -> DramResult:
        """Serve bursts one by one; see ``_dram.serve``."""
        asked = requests[:0] if probes is None else probes
        return DramResult(**_dram.serve(self.parameters(), requests, self.unit, outstanding, pace, asked, warmup))

    def transfer(self, runs: int, run: int, stride: int, mode: int, outstanding: int, fast: bool = True) -> DramResult:
        """Serve ``runs`` runs of ``run`` bursts, ``stride`` bursts apart; a copy writes to the other half of the rows.

        The time of refresh is added in proportion, wherever in its interval the transfer begins: rows are closed,
        refreshed, and one of them is opened again.
        """
        # Half of the memory, in bursts: a copy reads and writes different rows, so each change of direction may cost an
        # activation.
        other = self.bytes >> self.unit + 1
        # Without refresh the pattern is periodic, so most of a long stream can be skipped.
        quiet = replace(self, refresh=False).parameters()
        found = DramResult(**_dram.serve_runs(quiet, 0, other, runs, run, stride, mode, outstanding, fast))
        if not self.refresh:
            return found
        between = self.part.refi - self.refresh_clocks
        whole = ceil_div(found.cycles * self.part.refi, between)
        return replace(found, cycles=whole, refreshes=found.cycles // between)

    def ps(self, clocks: int) -> int:
        """Picoseconds of ``clocks``."""
        return clocks * self.part.tck_ps

    def clocks(self, ps: int) -> int:
        """The number of clocks that cover ``ps``."""
        return ceil_div(ps, self.part.tck_ps)

    def bandwidth_of(self, result: DramResult) -> int:
        """Bandwidth of a simulation in bytes/s."""
        moved = (result.reads + result.writes) << self.unit
        return moved * PS_PER_S // max(1, self.ps(result.cycles))


_INTERVALS = 8
"""Refresh intervals of the stream that shows how much time refresh takes."""


@functools.lru_cache(64)
def _lost(memory: DramMemory) -> int:
    """Clocks that a stream of reads loses in each refresh interval, at the pins."""
    part = memory.part
    bursts = memory.channels * max(part.pseudo, 1) * _INTERVALS * part.refi // part.burst_clocks

    def taken(refresh: bool) -> int:
        parameters = replace(memory, refresh=refresh, turn=0).parameters()
        return int(_dram.serve_runs(parameters, 0, 0, bursts, 1, 1, READS, bursts, not refresh)["cycles"])

    whole = taken(refresh=True)
    # An interruption may also improve the order of a stream.
    return max(0, ceil_div((whole - taken(refresh=False)) * part.refi, whole))
