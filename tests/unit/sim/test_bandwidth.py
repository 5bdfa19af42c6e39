"""The shared link compared with a slow reference that steps picosecond by picosecond, and its laws."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from npusim.sim.bandwidth import SharedLink
from npusim.sim.clock import Clock
from npusim.units import PS_PER_S

Flow = tuple[int, int, int]  # arrival in ps, bytes, cap in bytes/ps

# Rates of whole bytes per ps, so that the reference can step by one ps.
FLOWS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=6)
CAPACITY = st.integers(1, 20)


RANKS = st.lists(st.integers(-1, 2), min_size=6, max_size=6)
EQUAL = (0,) * 6


def simulate(flows: list[Flow], capacity: int, ranks: Sequence[int] = EQUAL) -> tuple[list[int], SharedLink]:
    """Return the end of each flow; capacity in bytes/ps."""
    clock = Clock()
    link = SharedLink(clock, capacity * PS_PER_S)
    ends = [-1] * len(flows)

    def start(number: int) -> None:
        _, size, cap = flows[number]
        link.start(size, cap * PS_PER_S, lambda: ends.__setitem__(number, clock.now), ranks[number])

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


def twin(flows: list[Flow], capacity: int, ranks: Sequence[int] = EQUAL) -> list[int]:
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
        for level in sorted({ranks[number] for number in here}):
            equals = [number for number in here if ranks[number] == level]
            rates = fair_rates({rank[number]: flows[number][2] * PS_PER_S for number in equals}, rest)
            rest -= sum(rates.values())
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
