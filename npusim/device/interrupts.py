"""The interrupt controller: status and mask, vectors by source, moderation.

Later stages, such as the masks of MSI-X, belong to the transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from npusim.device.bus import Transport
from npusim.device.registers import BY_NAME, COPY, RINGS, SOURCES, RegisterFile
from npusim.sim.adversary import Adversary
from npusim.sim.clock import Clock, Event
from npusim.sim.owner import EventOwner
from npusim.sim.saved import Saved
from npusim.sim.watch import Watcher

DONE, FAULT, COPIED = (field.mask for field in BY_NAME["INT_STATUS"].fields)
FROM_FAULT, FROM_COPY = SOURCES.index("FAULT"), SOURCES.index(COPY)
"""Sources in addition to the rings, which are 0, 1 and 2."""
_BIT_OF = tuple(DONE if name in RINGS else FAULT if name == "FAULT" else COPIED for name in SOURCES)
_ROUTE = {source: BY_NAME["INT_ROUTE"].fields[source] for source in range(len(SOURCES))}
_INTERVAL, _COUNT = BY_NAME["INT_MODERATION"].fields
_PS_PER_NS = 1000


class InterruptFaults(Protocol):
    """Faults that affect interrupt messages."""

    def deliver(self, vector: int) -> None:
        """The vectors to send for a message that is about to be sent."""


class InterruptController(EventOwner):
    """Raises, routes and moderates interrupts."""

    EVENTS = ("_due",)

    def __init__(
        self,
        registers: RegisterFile,
        clock: Clock,
        vectors: int,
        watchers: Sequence[Watcher],
        transport: Transport,
        adversary: Adversary | None = None,
    ) -> None:
        self._adversary = adversary
        self._registers = registers
        self._values = registers.values
        self._clock = clock
        self._vectors = vectors
        self._routed = "vectors" in registers.parts  # otherwise there is one vector and no moderation
        self._watchers = watchers
        self.transport = transport
        self.connected = True
        self.breaks: InterruptFaults | None = None
        """Consulted for each message, while there are such faults."""
        self._epoch = 0
        self.reset()

    @property
    def transport(self) -> Transport:
        """Destination of messages."""
        return self._transport

    @transport.setter
    def transport(self, transport: Transport) -> None:
        self._transport = transport
        self._pinned = transport.pinned

    def reset(self) -> None:
        """Clear all pending and delayed messages."""
        self._epoch += 1
        self._under_way: set[int] = set()  # vectors whose message is delayed by an adversary
        self._routes = [0] * len(SOURCES)
        self._came: set[int] = set()  # sources with a set status bit, to be sent when the mask opens
        self._interval_ps = self._most_held = 0
        self._next_ps = [0] * self._vectors  # earliest time of the next message of a vector
        self._held = [0] * self._vectors  # number of delayed messages of a vector

    @property
    def pending(self) -> bool:
        """The level of the interrupt line: whether INT_STATUS has a bit that is enabled in INT_MASK."""
        return bool(self._values["INT_STATUS"] & self._values["INT_MASK"])

    def raise_(self, bits: int, *sources: int) -> None:
        """Set bits of INT_STATUS. Enabled bits send a message for each of the sources."""
        self._registers.set("INT_STATUS", self._values["INT_STATUS"] | bits)
        mask = self._values["INT_MASK"]
        if self._routed:
            self._came.update(sources)
            self._tell([source for source in sources if _BIT_OF[source] & mask], at_once=not self._interval_ps)
        elif bits & mask:
            self._leave(0)
        if self._pinned:
            self._transport.level()

    def mask_written(self, mask: int) -> None:
        """Send messages for bits that were set while masked. Otherwise a driver that masks interrupts while it
        processes jobs would miss them."""
        if self._routed:
            self._tell([source for source in sorted(self._came) if _BIT_OF[source] & mask], at_once=True)
        elif mask & self._values["INT_STATUS"]:
            self._leave(0)
        if self._pinned:
            self._transport.level()

    def status_written(self, left: int) -> None:
        """Software has cleared bits of INT_STATUS."""
        if self._came:
            self._came = {source for source in self._came if _BIT_OF[source] & left}
        if self._pinned:
            self._transport.level()

    def route_written(self, value: int) -> None:
        """Set the vector of each source. A vector that the device does not have is refused, and the source keeps its
        vector."""
        for source, field in _ROUTE.items():
            vector = field.of(value)
            if vector < self._vectors:
                self._routes[source] = vector
            else:
                allowed = f"{field.name} must be a vector below {self._vectors}, got {vector}"
                self._registers.complain(f"write of {value:#x} to INT_ROUTE: {allowed}")
        kept = sum(vector << field.low for vector, field in zip(self._routes, _ROUTE.values(), strict=True))
        self._registers.set("INT_ROUTE", kept)

    def moderation_written(self, value: int) -> None:
        """Set or clear moderation. Delayed messages are sent."""
        self._interval_ps, self._most_held = _INTERVAL.of(value) * _PS_PER_NS, _COUNT.of(value)
        for vector, held in enumerate(self._held):
            if held:
                self._send(vector)

    def _tell(self, sources: Sequence[int], *, at_once: bool) -> None:
        # Sources that share a vector share its message. The order is that of the source numbers.
        vectors = dict.fromkeys(self._routes[source] for source in sources)
        for vector in vectors:
            urgent = at_once or any(source == FROM_FAULT and self._routes[source] == vector for source in sources)
            if urgent:
                self._send(vector)
            else:
                self._hold(vector)

    def _hold(self, vector: int) -> None:
        """Send a message, but not before the interval after the last one has passed, unless the count of delayed
        messages is reached."""
        now = self._clock.now
        if now >= self._next_ps[vector]:
            self._send(vector)
            return
        self._held[vector] += 1
        if self._held[vector] == self._most_held:
            self._send(vector)
        elif self._held[vector] == 1:
            due = self._next_ps[vector]
            self._clock.after(due - now, self._due, (self._epoch, vector, due))

    def _due(self, event: Event) -> None:
        if not self.is_void(event.value):
            self._send(cast("tuple[int, int, int]", event.value)[1])

    def _send(self, vector: int) -> None:
        self._held[vector] = 0
        self._next_ps[vector] = self._clock.now + self._interval_ps
        self._leave(vector)

    def _leave(self, vector: int) -> None:
        if self.breaks is not None:
            self.breaks.deliver(vector)
        else:
            self.send(vector)

    def send(self, vector: int) -> None:
        """Send a message, if the device is on its bus."""
        if self.connected:
            for watcher in self._watchers[:]:
                watcher.interrupt(vector)
            delay = self._adversary.interrupt_ps() if self._adversary is not None else 0
            if not delay:
                self._transport.irq(vector)
            elif vector not in self._under_way:  # otherwise the delayed message serves for both causes
                self._under_way.add(vector)
                self._clock.after(delay, self._arrive, (self._epoch, vector))

    def _arrive(self, event: Event) -> None:
        value: Any = event.value
        epoch, vector = value
        if epoch == self._epoch:
            self._under_way.discard(vector)
            if self.connected:
                self._transport.irq(vector)

    # Its state

    def is_void(self, value: Any) -> bool:
        epoch, vector, due = cast("tuple[int, int, int]", value)
        # The delayed messages may have been sent meanwhile by another message.
        return epoch != self._epoch or not self._held[vector] or self._next_ps[vector] != due

    def which(self, value: Any) -> str:
        return f" {self.value_state(value)}"

    def awaits(self) -> list[list[str]]:
        """The events that may be pending: one message per vector."""
        return [[f"_due {vector}"] for vector, held in enumerate(self._held) if held]

    def value_state(self, value: Any) -> int:
        return cast("tuple[int, int, int]", value)[1]

    def value_of(self, method: str, saved: Saved) -> tuple[int, int, int]:
        vector = saved.index(self._vectors)
        return self._epoch, vector, self._next_ps[vector]

    def state(self) -> dict[str, Any]:
        """The state as plain data."""
        return {
            "routes": list(self._routes),
            "came": sorted(self._came),
            "interval_ps": self._interval_ps,
            "most_held": self._most_held,
            "next_ps": list(self._next_ps),
            "held": list(self._held),
        }

    def restore(self, saved: Saved) -> None:
        """Restore the state after a reset. Raises CheckpointError."""
        self._routes = saved["routes"].integers(len(SOURCES), 0, self._vectors - 1)
        self._came = {item.index(len(SOURCES)) for item in saved["came"]}
        self._interval_ps, self._most_held = saved["interval_ps"].integer(), saved["most_held"].integer()
        self._next_ps = saved["next_ps"].integers(self._vectors)
        self._held = saved["held"].integers(self._vectors)
