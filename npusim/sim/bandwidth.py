"""A link whose bandwidth is shared by concurrent transfers: by rank, and max-min fair within a rank. Exact in integers,
with one event per change.

Cores may have a port of limited bandwidth to the link. Then the transfers of a core first share its port, which bounds
the rate of each, and all transfers of a rank share the link within these bounds: this is max-min fair under all limits.

Transfers of a lower rank get all that they can use, the others what is left. A transfer is a fluid with its own rate
cap. Rates are constant between two changes of the set of transfers, so only the changes are simulated: the next one is
the earliest end of a transfer.

Rates are whole bytes per second. The rest of a transfer is kept in bytes * 10**12, which a rate of r bytes/s lowers by
r for each picosecond. So there is no rounding, except that a transfer ends at a whole picosecond (the first at which
nothing is left). For given arrivals, more capacity of the link never delays the end of a transfer.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from simpy.events import Event

from npusim.sim.clock import Clock
from npusim.sim.owner import EventOwner, Owners
from npusim.sim.saved import LONGEST_PS, Saved
from npusim.units import PS_PER_S, ceil_div

_ORDER = attrgetter("rank", "cap", "serial")
_RANK = attrgetter("rank")
_BOUND = attrgetter("bound")

NO_CORE = -1
"""Of transfers that pass no port of a core."""


@dataclass(slots=True, eq=False)
class LinkTransfer:
    """A transfer in flight on a link. ``bound``: bytes/s that its own limit and the port of its core allow."""

    left: int
    cap: int
    done: Callable[[], None]
    serial: int
    rank: int = 0
    core: int = NO_CORE
    rate: int = 0
    bound: int = 0


class SharedLink(EventOwner):
    """A link of ``capacity`` bytes/s, shared by all transfers in flight. ``port``: bytes/s of the transfers of one core
    together; 0 = no limit. ``busy_ps``: time with at least one transfer."""

    EVENTS = ("_ended",)

    def __init__(self, clock: Clock, capacity: int, port: int = 0) -> None:
        self.capacity = capacity
        self.port = port
        self.busy_ps = 0
        self._clock = clock
        self._transfers: list[LinkTransfer] = []  # sorted by (rank, cap, serial)
        self._updated = self._serial = self._timer = 0

    def start(self, size: int, cap: int, done: Callable[[], None], rank: int = 0, core: int = NO_CORE) -> LinkTransfer:
        """Start a transfer of ``size`` bytes at no more than ``cap`` bytes/s; ``done()`` is called at its end."""
        self._flow()
        self._serial += 1
        transfer = LinkTransfer(size * PS_PER_S, cap, done, self._serial, rank, core, bound=cap)
        insort(self._transfers, transfer, key=_ORDER)
        self._share()
        return transfer

    def clear(self) -> None:
        """Drop every transfer without calling ``done``."""
        self._flow()
        self._transfers.clear()
        self._timer += 1

    def settle(self) -> int:
        """Update the busy time to now."""
        self._flow()
        return self.busy_ps

    def _flow(self) -> None:
        """Subtract the bytes transferred since the last change."""
        now = self._clock.now
        elapsed = now - self._updated
        if elapsed and self._transfers:
            self.busy_ps += elapsed
            for transfer in self._transfers:
                transfer.left -= transfer.rate * elapsed
        self._updated = now

    def _share(self) -> None:
        """Compute new rates, and start a timer for the first transfer that ends."""
        left = self.capacity
        ports: dict[int, int] = {}
        first: int | None = None
        for _, equals in groupby(self._transfers, _RANK):
            transfers = list(equals)
            if self.port:
                self._bound(transfers, ports)
                transfers.sort(key=_BOUND)
            count = len(transfers)
            for transfer in transfers:  # lowest bounds first: what they cannot use is shared by the others
                rate = min(transfer.bound, left // count)
                left -= rate
                count -= 1
                transfer.rate = rate
                if transfer.core in ports:
                    ports[transfer.core] -= rate
                if rate or transfer.left <= 0:  # otherwise no bandwidth is left for it until another one ends
                    delay = ceil_div(transfer.left, rate) if transfer.left > 0 else 0
                    if first is None or delay < first:
                        first = delay
        # SimPy cannot cancel a timeout. A superseded one still fires and is recognised by its old number.
        self._timer += 1
        if first is not None:
            self._clock.after(first, self._ended, self._timer)

    def _bound(self, transfers: list[LinkTransfer], ports: dict[int, int]) -> None:
        """Share the port of each core among its transfers of one rank, lowest caps first. ``ports``: what lower ranks
        have left."""
        for core in dict.fromkeys(transfer.core for transfer in transfers if transfer.core != NO_CORE):
            of_core = [transfer for transfer in transfers if transfer.core == core]
            left = ports.setdefault(core, self.port)
            for others, transfer in zip(range(len(of_core), 0, -1), of_core, strict=True):
                transfer.bound = min(transfer.cap, left // others)
                left -= transfer.bound

    def _ended(self, event: Event) -> None:
        if event.value != self._timer:
            return  # the rates have changed since, and another timer is running
        self._flow()
        over = [transfer for transfer in self._transfers if transfer.left <= 0]
        self._transfers = [transfer for transfer in self._transfers if transfer.left > 0]
        # By age, not by rate: the order of simultaneous ends must not depend on the internal order.
        over.sort(key=attrgetter("serial"))
        # New rates come first, because a callback may start a transfer at once.
        if self._transfers:
            self._share()
        for transfer in over:
            transfer.done()

    def transfers(self) -> list[dict[str, Any]]:
        """The transfers in flight, for inspection. ``of``: the object notified at its end."""
        self._flow()
        found = []
        for each in self._transfers:
            owner = getattr(each.done, "__self__", None)
            of = getattr(owner, "name", None) or type(owner).__name__.lower()
            left = ceil_div(max(0, each.left), PS_PER_S)
            found.append({"of": of, "bytes_left": left, "bytes_per_s": each.rate, "rank": each.rank})
        return found

    # Its state

    def awaited(self) -> list[Callable[[], None]]:
        """The objects notified at the ends of transfers."""
        return [each.done for each in self._transfers]

    @property
    def runs(self) -> bool:
        """Whether a timer is running for the first end."""
        return any(each.rate or each.left <= 0 for each in self._transfers)

    def is_void(self, value: Any) -> bool:
        return bool(value != self._timer)

    def value_state(self, value: Any) -> None:
        """Nothing: only the last timer is not void."""

    def value_of(self, method: str, saved: Saved) -> int:
        super().value_of(method, saved)
        return self._timer

    def state(self, owners: Owners) -> dict[str, Any]:
        """The state as plain data."""
        self._flow()
        transfers = [[t.left, t.cap, owners.name(t.done), t.serial, t.rank, t.core, t.rate] for t in self._transfers]
        return {"busy_ps": self.busy_ps, "serial": self._serial, "timer": self._timer, "transfers": transfers}

    def restore(self, saved: Saved, owners: Owners) -> None:
        """Restore the state at the current time. Raises CheckpointError."""
        self._transfers = []
        for item in saved["transfers"]:
            left, cap, done, serial, rank, core, rate = item.items(7)
            # May be negative: by less than a picosecond too much was transferred, and the end is due.
            most = cap.integer(1)
            made = LinkTransfer(
                left.integer(-PS_PER_S * self.capacity, most * LONGEST_PS),
                most,
                owners.callback(done),
                serial.integer(),
                rank.integer(-1),
                core.integer(NO_CORE),
                rate.integer(0, min(most, self.capacity)),
                bound=most,
            )
            self._transfers.append(made)
        if sum(each.rate for each in self._transfers) > self.capacity:
            raise saved["transfers"].refuse(f"at most {self.capacity} bytes a second together")
        if sorted(self._transfers, key=_ORDER) != self._transfers:
            raise saved["transfers"].refuse("by rank, rate and age")
        self.busy_ps, self._updated = saved["busy_ps"].integer(), self._clock.now
        self._serial, self._timer = saved["serial"].integer(), saved["timer"].integer()
