"""Units of one core at its SRAM: on time when alone, and together no faster than the banks, to the picosecond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.hw.units.base import WHOLE
from npusim.isa.functions import Binary
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session
from npusim.sim.banks import Banks
from npusim.sim.clock import Clock


def ends(works: list[tuple[int, int, int]]) -> list[int]:
    """Return when works of (start, duration, share) end."""
    clock = Clock()
    banks = Banks(clock)
    found = [0] * len(works)

    def begin(number: int, duration: int, share: int) -> None:
        banks.start(duration, share, lambda: found.__setitem__(number, clock.now))

    for number, (start, duration, share) in enumerate(works):
        clock.after(start, lambda _, args=(number, duration, share): begin(*args))
    clock.run_until(lambda: all(found), 10**15)
    return found


def test_alone_a_work_takes_its_time() -> None:
    assert ends([(5, 100, WHOLE)]) == [105]


def test_works_whose_shares_fit_do_not_wait() -> None:
    assert ends([(5, 100, WHOLE // 2), (30, 1000, WHOLE // 2)]) == [105, 1030]


def test_where_they_do_not_fit_all_slow_down_by_the_same_factor() -> None:
    assert ends([(1, 100, WHOLE), (51, 100, WHOLE)]) == [151, 201]
    # two thirds of the speed, rounded down: 75 ps for the 50 that are left, and the beginning of one more
    assert ends([(1, 100, WHOLE), (51, 1000, WHOLE // 2)]) == [127, 1077]


def test_ready_at_the_picosecond_and_not_before() -> None:
    clock = Clock()
    banks = Banks(clock)
    ready: list[int] = []
    for _ in range(2):
        banks.start(75, WHOLE, lambda: ready.append(clock.now))
    clock.advance(149)
    assert not ready
    clock.advance(1)
    assert ready == [150, 150]


WORKS = st.lists(
    st.tuples(st.integers(1, 500), st.integers(1, 500), st.integers(1, WHOLE)), min_size=1, max_size=6
)  # fmt: skip


@given(WORKS)
def test_nobody_is_faster_than_alone_and_the_banks_give_no_more_than_they_have(
    works: list[tuple[int, int, int]],
) -> None:
    found = ends(works)
    for (start, duration, _), end in zip(works, found, strict=True):
        assert end >= start + duration
    passed = sum(duration * share for _, duration, share in works)
    span = max(found) - min(start for start, _, _ in works)
    assert passed <= WHOLE * span
    assert found == ends(works)


@given(WORKS, st.integers(1, 500), st.integers(1, WHOLE))
def test_one_more_work_makes_no_other_end_earlier(works: list[tuple[int, int, int]], duration: int, share: int) -> None:
    more = ends([*works, (1, duration, share)])
    assert all(later >= earlier for earlier, later in zip(ends(works), more, strict=False))


def _busy_core() -> Graph:
    """Build a product whose tiles are added to something at once, so vector unit and matrix unit overlap."""
    build = GraphBuilder("busy")
    a, b, c = (build.input(name, (256, 256), DType.FLOAT32) for name in "abc")
    return build.finish([build.add("binary", [build.add("matmul", [a, b]), c], {"fn": Binary.ADD})])


def test_units_that_meet_at_the_banks_are_stalled_on_sram() -> None:
    narrow = load_config("edge").with_(**{"sram.banks": 2, "dram.bandwidth": "1 TB/s", "dma.bytes_per_cycle": 1024})
    with Session(narrow, cache_dir=False) as session:
        units = session.run(session.compile(_busy_core()), timing_only=True).counters.units
    assert units["core0.vector"].stalls["sram"] > 0
    assert units["core0.matrix"].stalls["sram"] > 0
    totals = {unit.busy_ps + unit.idle_ps + sum(unit.stalls.values()) for unit in units.values()}
    assert len(totals) == 1
