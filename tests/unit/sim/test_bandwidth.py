"""The shared link compared with a slow reference that steps picosecond by picosecond, and its laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from npusim.sim.bandwidth import NO_CORE, SharedLink
from npusim.sim.clock import Clock
from npusim.units import PS_PER_S

Flow = tuple[int, int, int]  # arrival in ps, bytes, cap in bytes/ps

# Rates of whole bytes per ps, so that the reference can step by one ps.
FLOWS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=6)
CAPACITY = st.integers(1, 20)


RANKS = st.lists(st.integers(-1, 2), min_size=6, max_size=6)
EQUAL = (0,) * 6
CORES = st.lists(st.integers(-1, 2), min_size=6, max_size=6)
NO_CORES = (NO_CORE,) * 6
UNIT = 60**4
"""Bytes. Shares of ports and links within three ranks are whole numbers of bytes if all sizes are multiples of it."""


def simulate(
    flows: list[Flow], capacity: int, ranks: Sequence[int] = EQUAL, cores: Sequence[int] = NO_CORES, port: int = 0
) -> tuple[list[int], SharedLink]:
    """Return the end of each flow; capacity and port in bytes/ps."""
    clock = Clock()
    link = SharedLink(clock, capacity * PS_PER_S, port * PS_PER_S)
    ends = [-1] * len(flows)

    def start(number: int) -> None:
        _, size, cap = flows[number]
        link.start(size, cap * PS_PER_S, lambda: ends.__setitem__(number, clock.now), ranks[number], cores[number])

    for number, (arrival, _, _) in enumerate(flows):
        clock.after(arrival, lambda _, number=number: start(number))  # type: ignore[misc]
    clock.advance(10_000)
    return ends, link


def fair_rates(caps: dict[int, int], capacity: int) -> dict[int, int]:
    """Return max-min fair rates in units of 1 byte/s from their definition: give one more to the poorest that can use
    it.

    Of equally poor ones the last in (cap, order) comes first. Filling is done in steps of the largest amount that all
    can use.
    """
    rates = dict.fromkeys(caps, 0)
    left = capacity
    while left:
        hungry = [flow for flow in caps if rates[flow] < caps[flow]]
        if not hungry:
            break
        step = min(*(caps[flow] - rates[flow] for flow in hungry), left // len(hungry))
        if step:
            for flow in hungry:
                rates[flow] += step
            left -= step * len(hungry)
        else:
            for flow in sorted(hungry, key=lambda flow: (caps[flow], flow))[-left:]:
                rates[flow] += 1
            left = 0
    return rates


def filled(caps: dict[int, int], capacity: int, cores: dict[int, int], ports: dict[int, int]) -> dict[int, int]:
    """Return max-min fair rates by filling: all rise together until the link, the port of their core or their own cap
    is full. ``ports``: what each core's has left."""
    rates = dict.fromkeys(caps, 0)
    left, room = capacity, dict(ports)
    while hungry := [flow for flow in caps if left and rates[flow] < caps[flow] and room.get(cores[flow], 1)]:
        crowds = Counter(cores[flow] for flow in hungry)
        limits = [room[core] // crowd for core, crowd in crowds.items() if core in room]
        step = min(*(caps[flow] - rates[flow] for flow in hungry), left // len(hungry), *limits)
        for flow in hungry:
            rates[flow] += step
            if cores[flow] in room:
                room[cores[flow]] -= step
        left -= step * len(hungry)
    return rates


def twin(
    flows: list[Flow], capacity: int, ranks: Sequence[int] = EQUAL, cores: Sequence[int] = NO_CORES, port: int = 0
) -> list[int]:
    """Return the same ends, simulated one picosecond at a time."""
    arrivals = sorted(range(len(flows)), key=lambda number: flows[number][0])
    rank = {number: position for position, number in enumerate(arrivals)}
    left = {number: flows[number][1] * PS_PER_S for number in arrivals}
    ends = [-1] * len(flows)
    now = 0
    while left:
        here = [number for number in left if flows[number][0] <= now]
        for number in [number for number in here if left[number] <= 0]:
            ends[number] = now
            del left[number]
            here.remove(number)
        rest = capacity * PS_PER_S
        ports = {core: port * PS_PER_S for core in cores if port and core != NO_CORE}
        for level in sorted({ranks[number] for number in here}):
            equals = [number for number in here if ranks[number] == level]
            caps = {rank[number]: flows[number][2] * PS_PER_S for number in equals}
            of = {rank[number]: cores[number] for number in equals}
            rates = filled(caps, rest, of, ports) if port else fair_rates(caps, rest)
            rest -= sum(rates.values())
            for flow, rate in rates.items():
                if of[flow] in ports:
                    ports[of[flow]] -= rate
            for number in equals:
                left[number] -= rates[rank[number]]
        now += 1
    return ends


@given(FLOWS, CAPACITY)
def test_every_flow_ends_when_the_twin_says(flows: list[Flow], capacity: int) -> None:
    assert simulate(flows, capacity)[0] == twin(flows, capacity)


@given(FLOWS, CAPACITY, RANKS)
def test_every_flow_of_a_rank_ends_when_the_twin_says(flows: list[Flow], capacity: int, ranks: list[int]) -> None:
    assert simulate(flows, capacity, ranks)[0] == twin(flows, capacity, ranks)


@given(FLOWS, CAPACITY, RANKS, CORES, st.integers(1, 12))
def test_every_flow_of_a_core_ends_when_the_twin_says(
    flows: list[Flow], capacity: int, ranks: list[int], cores: list[int], port: int
) -> None:
    scaled = [(arrival, size * UNIT, cap * UNIT) for arrival, size, cap in flows]
    sizes = capacity * UNIT, ranks, cores, port * UNIT
    assert simulate(scaled, *sizes)[0] == twin(scaled, *sizes)


@given(FLOWS, CAPACITY, RANKS)
def test_a_port_as_wide_as_the_link_changes_nothing(flows: list[Flow], capacity: int, ranks: list[int]) -> None:
    assert simulate(flows, capacity, ranks, EQUAL, capacity)[0] == simulate(flows, capacity, ranks)[0]


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(-1, 3)), min_size=1, max_size=8),
    st.integers(1, 300), st.integers(1, 120),
)  # fmt: skip
def test_what_ports_and_link_allow_is_given_away(transfers: list[tuple[int, int]], capacity: int, port: int) -> None:
    link = SharedLink(Clock(), capacity, port)
    started = [link.start(1000, cap, lambda: None, core=core) for cap, core in transfers]
    of_cores = [[each for each in started if each.core == core] for core in range(4)]
    assert all(sum(each.rate for each in found) <= port for found in of_cores)
    wanted = sum(min(port, sum(each.cap for each in found)) for found in of_cores)
    free = sum(each.cap for each in started if each.core == NO_CORE)
    assert sum(each.rate for each in started) == min(capacity, wanted + free)


def test_a_core_gets_no_more_than_its_port_and_the_others_get_the_rest() -> None:
    # Two flows of core 0 share its port of 4; the one of core 1 gets 4 of the 12 that the link has left.
    flows, cores = [(0, 20, 10), (0, 20, 10), (0, 20, 10)], (0, 0, 1, 0, 0, 0)
    assert simulate(flows, 16, EQUAL, cores, 4)[0] == [10, 10, 5]
    # Without a port: 16 / 3 each.
    assert simulate(flows, 16)[0] == [4, 4, 4]
    # The port is wide, so the link is shared by all three.
    assert simulate(flows, 6, EQUAL, cores, 4)[0] == [10, 10, 10]


def test_a_lower_rank_takes_the_port_of_its_own_core_alone() -> None:
    flows, cores = [(0, 16, 4), (0, 16, 4), (0, 16, 4)], (0, 0, 1, 0, 0, 0)
    assert simulate(flows, 20, (0, 1, 1, 0, 0, 0), cores, 4)[0] == [4, 8, 4]


def test_the_lower_rank_has_all_that_it_can_use() -> None:
    flows = [(0, 40, 10), (2, 16, 4)]
    # 20 bytes before it comes, then the other one has 4 of 10 bytes for 4 ps.
    assert simulate(flows, 10, (1, 0, 0))[0] == [6, 6]
    assert simulate(flows, 10, (0, 1, 0))[0] == [4, 8]


@given(FLOWS, CAPACITY, st.integers(1, 5), RANKS)
def test_more_bandwidth_never_makes_a_flow_end_later(
    flows: list[Flow], capacity: int, more: int, ranks: list[int]
) -> None:
    slow, fast = simulate(flows, capacity, ranks)[0], simulate(flows, capacity + more, ranks)[0]
    assert all(after <= before for before, after in zip(slow, fast, strict=True))


@given(FLOWS, CAPACITY, st.integers(0, 5))
def test_one_flow_less_never_makes_another_end_later(flows: list[Flow], capacity: int, which: int) -> None:
    which %= len(flows)
    with_it = simulate(flows, capacity)[0]
    without = simulate(flows[:which] + flows[which + 1 :], capacity)[0]
    assert all(after <= before for before, after in zip(with_it[:which] + with_it[which + 1 :], without, strict=True))


@given(FLOWS, CAPACITY)
def test_no_flow_beats_its_cap_and_all_together_not_the_link(flows: list[Flow], capacity: int) -> None:
    ends, link = simulate(flows, capacity)
    for (arrival, size, cap), end in zip(flows, ends, strict=True):
        assert (end - arrival) * min(cap, capacity) >= size
    assert link.settle() * capacity >= sum(size for _, size, _ in flows)
    assert link.busy_ps <= max(ends) - min(arrival for arrival, _, _ in flows)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 300))
def test_what_can_be_used_is_given_away(caps: list[int], capacity: int) -> None:
    """Work conservation, to the last byte per second, even if shares are not whole numbers."""
    link = SharedLink(Clock(), capacity)
    transfers = [link.start(1000, cap, lambda: None) for cap in caps]
    assert sum(transfer.rate for transfer in transfers) == min(capacity, sum(caps))
    assert all(transfer.rate <= transfer.cap for transfer in transfers)
    free = [transfer.rate for transfer in transfers if transfer.rate < transfer.cap]
    assert not free or max(free) - min(free) <= 1  # fair: those below their caps are alike
    assert all(transfer.rate <= min(free) + 1 for transfer in transfers if free)


def test_ready_at_the_picosecond_and_not_before() -> None:
    clock = Clock()
    link = SharedLink(clock, 3 * PS_PER_S)
    ended: list[int] = []
    link.start(10, 100 * PS_PER_S, lambda: ended.append(clock.now))
    clock.advance(3)  # 9 bytes
    assert not ended
    clock.advance(1)  # 10 bytes: a third of this picosecond was enough
    assert ended == [4]


def test_cleared_transfers_never_end() -> None:
    clock = Clock()
    link = SharedLink(clock, PS_PER_S)
    ended: list[int] = []
    link.start(10, PS_PER_S, lambda: ended.append(1))
    clock.advance(5)
    link.clear()
    link.start(3, PS_PER_S, lambda: ended.append(2))
    clock.advance(100)
    assert ended == [2]
    assert link.settle() == 8
