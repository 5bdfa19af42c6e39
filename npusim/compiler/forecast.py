"""How long a command stream will take: the simulator's rules in a few lines, to compare what could be done.

Commands are fetched from DRAM and go to the queues of their units in order, one a cycle; a full queue holds all of them
up. A unit takes its commands in order, each when the counts that it waits for are reached. Transfers that use the DRAM
at the same time have it by need or share it fairly, as the device says, each at its channel's rate at most; so do those
that pass from core to core, and those that use the L2. Units of a core slow each other down where they want more of
its SRAM's banks than there is. Left out is what the device does before the first fetch and after the last command, and
between two layers. In all else it is the course of a job that only times, and ``_stream.pyx`` goes through it as
through that; here is the same in Python, which says what it is.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from npusim import _stream
from npusim.hw.config import Config
from npusim.hw.cost import ahead_ps, cost_model, depths
from npusim.hw.units import dma
from npusim.hw.units.base import WHOLE
from npusim.hw.units.dma import FETCH_BYTES
from npusim.isa.base import Command, Unit, of_unit
from npusim.units import PS_PER_S, ceil_div, cycles_to_ps
from npusim.work import DmaWork, Port, Work


def forecast(commands: Sequence[Command], config: Config) -> int:
    """Picoseconds, about; the same for the same stream."""
    told = _stream.forecast(
        commands, _charges(config), cycles_to_ps(1, config.clock_hz), config.queue_depth,
        dma.latency_ps(config), dma.fetch_rate(config), FETCH_BYTES, dma.capacities(config), _by_need(config),
        functools.partial(_depth, config), config.interconnect.code_apart,
    )  # fmt: skip
    # Beyond machine integers it is as slow as it is.
    return forecast_slowly(commands, config) if told is None else told


def forecast_slowly(commands: Sequence[Command], config: Config) -> int:
    """What :func:`forecast` does, in Python: its definition."""
    return _Course(commands, config).run()


class _Way:
    """Transfers under way over one link: [left, most, unit, rate, rank, serial], by rank and most."""

    def __init__(self, number: int, capacity: int) -> None:
        self.number, self.capacity = number, capacity
        self.flows: list[list[int]] = []
        self.since = self.timer = 0


class _Banks:
    """Those of a core's SRAM, and the units that use them: [left, share, timer] by unit, in the order of beginning."""

    def __init__(self) -> None:
        self.works: dict[int, list[int]] = {}
        self.speed, self.since = WHOLE, 0

    def work(self, now: int) -> None:
        """Take off what has been done since the speed changed last."""
        for work in self.works.values():
            work[0] -= (now - self.since) * self.speed
        self.since = now

    def adapt(self) -> bool:
        """The speed that all have now; whether it is another."""
        before, demand = self.speed, sum(share for _, share, _ in self.works.values())
        self.speed = WHOLE if demand <= WHOLE else WHOLE * WHOLE // demand
        return self.speed != before


class _Charge(NamedTuple):
    """What passes before anything flows, and what then flows: bytes, and bytes a second at the most; what of the first
    may pass ahead, while a unit works on older commands, and what of that is one command's alone; over what they flow,
    by the numbers that the simulator has for it; and the part of WHOLE that it takes of the banks of its core."""

    fixed_ps: int
    nbytes: int = 0
    rate: int = 0
    ahead_ps: int = 0
    front_ps: int = 0
    way: int = Port.DRAM
    share: int = 0


class _Step(NamedTuple):
    unit: int
    waits: list[tuple[int, int]]
    charge: _Charge
    end: int
    """Where the next command begins in the stream."""
    rank: int
    """Of its transfer among others."""


_FETCH, _CODE, *_FLOWS = range(-1, -3 - len(Port), -1)
"""Numbers of what is no unit: the fetcher, what it gets by a way of its own, what is under way at each port."""


class _Course:
    """Time goes from event to event: a unit's command arrives or is over, or transfers end."""

    def __init__(self, commands: Sequence[Command], config: Config) -> None:
        numbers: dict[tuple[int, int], int] = {}
        charges: dict[Work, _Charge] = {}
        found = []
        self._total = 0
        for command in commands:
            self._total += command.size
            if command.unit != Unit.CONTROL:
                work = command.instruction.asked()
                if work not in charges:
                    charges[work] = _charge(work, config)
                unit = numbers.setdefault((command.core, command.unit), len(numbers))
                found.append((unit, command.waits, charges[work], self._total))
        steps = [
            (unit, [(numbers[core, other], count) for core, other, count in waits if count], charge, end)
            for unit, waits, charge, end in found
        ]
        by_need = _by_need(config)
        ranks = _ranks(steps, len(numbers)) if by_need else [0] * len(steps)
        self._steps = [_Step(*step, rank) for step, rank in zip(steps, ranks, strict=True)]
        self._code_rank = -1 if by_need else 0
        self._cores = [core for core, _ in numbers]
        self._banks = [_Banks() for _ in range(max(self._cores, default=0) + 1)]
        self._timers = [0] * len(numbers)
        self._ways = [_Way(*pair) for pair in zip(_FLOWS, dma.capacities(config), strict=True)]
        self._depth, self._cycle = config.queue_depth, cycles_to_ps(1, config.clock_hz)
        self._queues: list[deque[tuple[int, _Step]]] = [deque() for _ in numbers]
        self._heads: list[_Step | None] = [None] * len(numbers)
        self._flights: list[deque[tuple[_Step, int]]] = [deque() for _ in numbers]  # begun; when what is ahead is over
        self._asking = [False] * len(numbers)
        self._depths = [_depth(config, unit) for _, unit in numbers]
        self._done = [0] * len(numbers)
        self._asleep: list[list[tuple[int, int]]] = [[] for _ in numbers]  # (count, unit whose head waits for it)
        self._events: list[tuple[int, int, int, int]] = []  # (ps, serial, unit, what), see `run`
        self._serial = self._next = self._dispatched = 0
        self._full = -1
        self._latency, self._fetch_rate = dma.latency_ps(config), dma.fetch_rate(config)
        self._fetched = self._requested = 0
        self._fetching = False
        self._code_apart = config.interconnect.code_apart
        self._end = 0

    def run(self) -> int:
        self._request(0)
        while self._events:
            now, _, unit, what = heappop(self._events)
            if unit in _FLOWS:
                way = self._ways[_FLOWS.index(unit)]
                if what == way.timer:  # else the rates have changed since
                    self._end_flows(way, now)
            elif unit == _FETCH:
                self._fetch(now)
            elif unit == _CODE:
                self._fetch_over(now)
            elif what == _ARRIVED:
                self._begin(unit, now)
            elif what == _ASKED:
                self._asking[unit] = False
                self._take(unit, now)
            elif what >= _WORKED:
                self._end_work(unit, what - _WORKED, now)
            else:
                first, _ = self._flights[unit][0]
                if first.charge.nbytes:
                    self._start_flow(unit, first.charge, first.rank, now)
                else:
                    self._complete(unit, now)
        return self._end

    def _at(self, time: int, unit: int, what: int) -> None:
        self._serial += 1  # events of the same time come in the order in which they were foreseen
        heappush(self._events, (time, self._serial, unit, what))

    # the stream

    def _request(self, time: int) -> None:
        """Ask for the next half."""
        if not self._fetching and self._requested < self._total:
            self._fetching = True
            self._at(time + self._latency, _FETCH, 0)

    def _fetch(self, now: int) -> None:
        size = min(FETCH_BYTES, self._total - self._requested)
        self._requested += size
        if self._code_apart:
            self._at(now + ceil_div(size * PS_PER_S, self._fetch_rate), _CODE, 0)
            return
        self._start_flow(_FETCH, _Charge(0, size, self._fetch_rate), self._code_rank, now)

    def _fetch_over(self, now: int) -> None:
        self._fetched, self._fetching = self._requested, False
        if self._full < 0:
            self._dispatch(now)
        if not self._fetching and self._has_room():
            self._fetching = True
            self._fetch(now)

    def _has_room(self) -> bool:
        """Whether a half is free and there is something to fill it with."""
        used = self._steps[self._next - 1].end if self._next else 0
        return self._requested < self._total and self._requested - used // FETCH_BYTES * FETCH_BYTES <= FETCH_BYTES

    # commands

    def _dispatch(self, now: int) -> None:
        """Hand out what has been fetched, until a queue is full."""
        self._full = -1
        while self._next < len(self._steps) and self._steps[self._next].end <= self._fetched:
            step = self._steps[self._next]
            queue = self._queues[step.unit]
            if len(queue) >= self._depth:
                self._full = step.unit
                return
            self._dispatched = max(now, self._dispatched + self._cycle)
            self._next += 1
            queue.append((self._dispatched, step))
            self._take(step.unit, now)
            if not self._fetching and self._has_room():
                self._request(self._dispatched)

    def _take(self, unit: int, now: int) -> None:
        """The next command of a unit comes to its head, if there is one and the unit is free to look at it."""
        busy = self._heads[unit] is not None or self._asking[unit]
        if busy or len(self._flights[unit]) == self._depths[unit] or not self._queues[unit]:
            return
        arrives, self._heads[unit] = self._queues[unit].popleft()
        if self._full == unit:
            self._dispatch(now)
        if arrives > now:
            self._at(arrives, unit, _ARRIVED)
        else:
            self._begin(unit, now)

    def _begin(self, unit: int, now: int) -> None:
        """Start the head of a unit, or find out what it waits for."""
        head = self._heads[unit]
        assert head is not None
        for other, count in head.waits:
            if self._done[other] < count:
                self._asleep[other].append((count, unit))
                return
        charge, flight = head.charge, self._flights[unit]
        self._heads[unit] = None
        flight.append((head, now + charge.ahead_ps))
        if self._depths[unit] > 1 and charge.front_ps:
            self._asking[unit] = True
            self._at(now + charge.front_ps, unit, _ASKED)
        if len(flight) == 1:
            self._turn(unit, now)
        self._take(unit, now)

    def _turn(self, unit: int, now: int) -> None:
        """The first that a unit has begun has it: what is left of what may pass ahead passes, and then its own."""
        first, ready = self._flights[unit][0]
        left = max(0, ready - now) + first.charge.fixed_ps - first.charge.ahead_ps
        if first.charge.share:
            self._begin_work(unit, left, first.charge.share, now)
        else:
            self._at(now + left, unit, _PASSED)

    def _complete(self, unit: int, now: int) -> None:
        self._done[unit] += 1
        self._flights[unit].popleft()
        self._end = now
        if self._flights[unit]:
            self._turn(unit, now)
        asleep = self._asleep[unit]
        if asleep:
            self._asleep[unit] = [pair for pair in asleep if pair[0] > self._done[unit]]
            for count, other in asleep:
                if count <= self._done[unit]:
                    self._begin(other, now)
        self._take(unit, now)

    # banks

    def _begin_work(self, unit: int, duration: int, share: int, now: int) -> None:
        banks = self._banks[self._cores[unit]]
        banks.work(now)
        banks.works[unit] = [duration * WHOLE, share, 0]
        self._time_works(banks, unit, now)

    def _time_works(self, banks: _Banks, begun: int | None, now: int) -> None:
        """Where the speed has changed when all works end, else when the one does that has ``begun``."""
        for unit in banks.works if banks.adapt() else () if begun is None else (begun,):
            self._timers[unit] += 1
            work = banks.works[unit]
            work[2] = self._timers[unit]
            self._at(now + max(0, ceil_div(work[0], banks.speed)), unit, _WORKED + work[2])

    def _end_work(self, unit: int, timer: int, now: int) -> None:
        banks = self._banks[self._cores[unit]]
        if unit not in banks.works or banks.works[unit][2] != timer:
            return  # the speed has changed since, or the work is over
        banks.work(now)
        del banks.works[unit]
        self._time_works(banks, None, now)
        self._complete(unit, now)

    # transfers

    def _start_flow(self, unit: int, charge: _Charge, rank: int, now: int) -> None:
        way = self._ways[charge.way]
        self._flow(way, now)
        place = sum((flow[4], flow[1]) <= (rank, charge.rate) for flow in way.flows)
        self._serial += 1
        way.flows.insert(place, [charge.nbytes * PS_PER_S, charge.rate, unit, 0, rank, self._serial])
        self._share(way, now)

    def _flow(self, way: _Way, now: int) -> None:
        """Take off what has flowed since the rates changed last."""
        elapsed, way.since = now - way.since, now
        if elapsed:
            for flow in way.flows:
                flow[0] -= flow[3] * elapsed

    def _share(self, way: _Way, now: int) -> None:
        """New rates, by rank; of equals those who can take least first, what they leave is for the others."""
        left, count, first, rank = way.capacity, 0, -1, None
        for flow in way.flows:
            if flow[4] != rank:
                rank = flow[4]
                count = sum(other[4] == rank for other in way.flows)
            rate = flow[3] = min(flow[1], left // count)
            left -= rate
            count -= 1
            if rate or flow[0] <= 0:
                delay = ceil_div(flow[0], rate) if flow[0] > 0 else 0
                first = delay if first < 0 or delay < first else first
        way.timer += 1
        if first >= 0:
            self._at(now + first, way.number, way.timer)

    def _end_flows(self, way: _Way, now: int) -> None:
        self._flow(way, now)
        over = [flow for flow in way.flows if flow[0] <= 0]
        way.flows = [flow for flow in way.flows if flow[0] > 0]
        if way.flows:
            self._share(way, now)
        for _, _, unit, *_ in sorted(over, key=itemgetter(-1)):  # in the order in which they began
            if unit == _FETCH:
                self._fetch_over(now)
            else:
                self._complete(unit, now)


_ARRIVED, _PASSED, _ASKED, _WORKED = range(4)
"""What happens to the head of a unit: it has come from the front; to the first that it has begun: its fixed time is
over; to the last: the unit may begin another; from the last number on: its work at the banks is over, if that many
timers were set for the unit and no more."""


def _ranks(steps: Sequence[tuple[int, list[tuple[int, int]], _Charge, int]], units: int) -> list[int]:
    """For each command where the first one stands that waits for it, or for one behind it on its unit."""
    needs: list[list[int]] = [[] for _ in range(units)]
    places: list[list[int]] = [[] for _ in range(units)]
    last = len(steps)
    for number, (unit, waits, _, _) in enumerate(steps):
        for other, count in waits:
            needs[other][count - 1] = min(needs[other][count - 1], number)
        needs[unit].append(last)
        places[unit].append(number)
    ranks = [last] * len(steps)
    for wanted, queue in zip(needs, places, strict=True):
        need = last
        for at, number in zip(reversed(wanted), reversed(queue), strict=True):
            ranks[number] = need = min(need, at)
    return ranks


def _by_need(config: Config) -> bool:
    return config.interconnect.arbitration == "need"


def _depth(config: Config, unit: int) -> int:
    """How many commands a unit may have begun at once."""
    return of_unit(unit, depths(config))


@functools.lru_cache(maxsize=4)
def _charges(config: Config) -> Callable[[Work], _Charge]:
    """What :func:`_charge` answers, remembered: orders of one graph ask for the same."""
    return functools.lru_cache(maxsize=1 << 12)(lambda work: _charge(work, config))


def _charge(work: Work, config: Config) -> _Charge:
    if not isinstance(work, DmaWork):
        price = cost_model(config).cost(work)
        return _Charge(price.ps, 0, 0, *ahead_ps(config, work, price), share=price.share)
    parts = dma.transfer(config, work)
    if not parts.bus_bytes or (work.constants and config.constants is not None):
        # Constants share nothing with what passes the bus to DRAM, and are taken not to meet each other.
        return _Charge(cost_model(config).cost(work).ps, 0, 0, parts.ahead_ps, parts.start_ps)
    # What the channel writes for longer than the bytes flow is charged before: the bus is free meanwhile.
    fixed = parts.start_ps + parts.latency_ps + parts.writing_ps
    return _Charge(fixed, parts.bus_bytes, parts.rate, parts.ahead_ps, parts.start_ps, dma.port(config, work))
