"""Which interrupts leave the device, and when: status and mask, vectors by source, moderation.

What a message goes through behind that, such as the masks of MSI-X, is its transport's.
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
"""Sources besides the rings, which are 0, 1 and 2."""
_BIT_OF = tuple(DONE if name in RINGS else FAULT if name == "FAULT" else COPIED for name in SOURCES)
_ROUTE = {source: BY_NAME["INT_ROUTE"].fields[source] for source in range(len(SOURCES))}
_INTERVAL, _COUNT = BY_NAME["INT_MODERATION"].fields
_PS_PER_NS = 1000


class InterruptFaults(Protocol):
    """What may be wrong with messages."""

    def deliver(self, vector: int) -> None:
        """One is about to leave."""


class InterruptController(EventOwner):
    """Raises, routes and holds back."""

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
        self._routed = "vectors" in registers.parts  # else there is one vector, and nothing is held back
        self._watchers = watchers
        self.transport = transport
        self.connected = True
        self.breaks: InterruptFaults | None = None
        """What is asked about each message, while there is any."""
        self._epoch = 0
        self.reset()

    @property
    def transport(self) -> Transport:
        """Where messages go."""
        return self._transport

    @transport.setter
    def transport(self, transport: Transport) -> None:
        self._transport = transport
        self._pinned = transport.pinned

    def reset(self) -> None:
        """Nothing has come and nothing is held back."""
        self._epoch += 1
        self._under_way: set[int] = set()  # vectors whose message an adversary holds back
        self._routes = [0] * len(SOURCES)
        self._came: set[int] = set()  # sources whose bit is set and of which a mask that opens tells
        self._interval_ps = self._most_held = 0
        self._next_ps = [0] * self._vectors  # the earliest time of a vector's next message
        self._held = [0] * self._vectors  # ends that a vector has not told of

    @property
    def pending(self) -> bool:
        """The level of an interrupt line: whether INT_STATUS has a bit that INT_MASK lets through."""
        return bool(self._values["INT_STATUS"] & self._values["INT_MASK"])

    def raise_(self, bits: int, *sources: int) -> None:
        """Set bits of INT_STATUS; those that the mask lets through send a message for each of the sources."""
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
        """What came while the mask was closed has sent nothing: without this a driver that masks while it looks at its
        jobs would never hear of it."""
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
        """Each source has a vector from here on; one that the device lacks is refused, and the source keeps its own."""
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
        """Messages are held back from here on, or no longer; what is held leaves."""
        self._interval_ps, self._most_held = _INTERVAL.of(value) * _PS_PER_NS, _COUNT.of(value)
        for vector, held in enumerate(self._held):
            if held:
                self._send(vector)

    def _tell(self, sources: Sequence[int], *, at_once: bool) -> None:
        # Sources that share a vector share its message, in the order of their numbers.
        vectors = dict.fromkeys(self._routes[source] for source in sources)
        for vector in vectors:
            urgent = at_once or any(source == FROM_FAULT and self._routes[source] == vector for source in sources)
            if urgent:
                self._send(vector)
            else:
                self._hold(vector)

    def _hold(self, vector: int) -> None:
        """Send a message no sooner than the interval after the last one, unless enough have gathered."""
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
        """A message leaves the device, if it is on its bus."""
        if self.connected:
            for watcher in self._watchers[:]:
                watcher.interrupt(vector)
            delay = self._adversary.interrupt_ps() if self._adversary is not None else 0
            if not delay:
                self._transport.irq(vector)
            elif vector not in self._under_way:  # else that one is for both: it arrives after what both are about
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
        # Another message may have gone meanwhile, and taken with it what was held.
        return epoch != self._epoch or not self._held[vector] or self._next_ps[vector] != due

    def which(self, value: Any) -> str:
        return f" {self.value_state(value)}"

    def awaits(self) -> list[list[str]]:
        """A message of each vector that has something to tell."""
        return [[f"_due {vector}"] for vector, held in enumerate(self._held) if held]

    def value_state(self, value: Any) -> int:
        return cast("tuple[int, int, int]", value)[1]

    def value_of(self, method: str, saved: Saved) -> tuple[int, int, int]:
        vector = saved.index(self._vectors)
        return self._epoch, vector, self._next_ps[vector]

    def state(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "routes": list(self._routes),
            "came": sorted(self._came),
            "interval_ps": self._interval_ps,
            "most_held": self._most_held,
            "next_ps": list(self._next_ps),
            "held": list(self._held),
        }

    def restore(self, saved: Saved) -> None:
        """Be as it was, after a reset. Raises CheckpointError."""
        self._routes = saved["routes"].integers(len(SOURCES), 0, self._vectors - 1)
        self._came = {item.index(len(SOURCES)) for item in saved["came"]}
        self._interval_ps, self._most_held = saved["interval_ps"].integer(), saved["most_held"].integer()
        self._next_ps = saved["next_ps"].integers(self._vectors)
        self._held = saved["held"].integers(self._vectors)
