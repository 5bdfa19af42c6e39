"""Requests for models: queueing theory, the device's rings compared with events, priorities."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from npusim.demo import as_onnx
from npusim.driver import Priority
from npusim.explore.serving import arrivals
from npusim.explore.serving.models import Ask, Asked, by_events, merged, on_rings
from npusim.explore.serving.scenario import ArrivalLoad
from npusim.explore.serving.served import LatencySpread, Served, classed, most_waiting
from npusim.explore.serving.times import Timed, Timer
from npusim.hw.config import load_config
from npusim.hw.energy import action_costs
from npusim.runtime import Session

EDGE = load_config("edge")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Timed:
    file = tmp_path_factory.mktemp("serving") / "demo.onnx"
    file.write_bytes(as_onnx())
    with Session(EDGE, cache_dir=False) as session:
        return Timer(session).time("demo", "", file, {}, {}, {})


def poisson(load: float, service_ps: int, count: int, seed: int) -> list[int]:
    """Return arrival times of requests that keep a server busy for this fraction of the time."""
    rate = Fraction(round(load * 10**12), service_ps)
    source = ArrivalLoad(name="m", file="m.onnx", rate=rate)
    return arrivals.times(source, int(count / rate * 10**12), seed, "m", Path())


@pytest.mark.parametrize("load", [*(pytest.param(load, marks=pytest.mark.slow) for load in (0.3, 0.5)), 0.7])
def test_random_requests_of_one_length_wait_as_long_as_theory_says(timed: Timed, load: float) -> None:
    """M/D/1, Pollaczek and Khinchine: the mean wait is load / (2 (1 - load)) times the service time."""
    asked = {"m": Asked(timed, Priority.MEDIUM)}
    served = by_events(asked, merged({"m": poisson(load, timed.total_ps, 100_000, seed=1)}))
    assert 98_000 < len(served) < 102_000
    wanted = load / (2 * (1 - load)) * timed.total_ps
    mean = sum(each.waited_ps for each in served) / len(served)
    assert mean == pytest.approx(wanted, rel=0.03)
    # Little's law: the mean number of waiting requests is the rate times the wait.
    elapsed = max(each.ended_ps for each in served)
    figures = classed("m", served, elapsed)
    assert figures.queued[0] == pytest.approx(figures.rate * wanted / 10**12, rel=0.03)


def test_one_class_in_the_rings_takes_what_the_events_say(timed: Timed) -> None:
    asked = {"m": Asked(timed, Priority.MEDIUM)}
    asks = merged({"m": poisson(0.8, timed.total_ps, 150, seed=2)})
    rings, events = on_rings(EDGE, asked, asks), by_events(asked, asks)
    assert [(each.arrived_ps, each.ended_ps) for each in rings] == [(each.arrived_ps, each.ended_ps) for each in events]
    assert [each.began_ps for each in rings] == [each.began_ps for each in events]
    assert all(each.device_ps == timed.time_ps for each in rings)
    assert any(each.waited_ps for each in rings)
    assert not any(each.preemptions for each in rings)


def test_who_is_more_urgent_preempts(timed: Timed) -> None:
    asked = {"low": Asked(timed, Priority.LOW), "high": Asked(timed, Priority.HIGH)}
    asks = merged({"low": [0, 0], "high": [20_000_000]})
    served = {(each.name, each.arrived_ps): each for each in on_rings(EDGE, asked, asks)}
    high = served["high", 20_000_000]
    assert (high.device_ps, high.waited_ps) == (timed.time_ps, 0)
    first = min(each.ended_ps for (name, _), each in served.items() if name == "low")
    assert high.ended_ps < first
    lows = [each for each in on_rings(EDGE, asked, asks) if each.name == "low"]
    assert sum(each.preemptions for each in lows) == 1
    (kept,) = [each for each in lows if not each.preemptions]
    assert (kept.device_ps, kept.energy_fj) == (timed.time_ps, timed.energy_fj)
    # Save and restore: SRAM and accumulator contents pass the pins twice, which takes at least this time.
    (parked,) = [each for each in lows if each.preemptions]
    assert EDGE.matrix is not None
    moved = 2 * (EDGE.sram.bytes + EDGE.matrix.accumulator_bytes)
    assert parked.device_ps > timed.time_ps + moved * 10**12 // EDGE.dram.bandwidth
    assert timed.energy_fj is not None
    assert parked.energy_fj is not None
    assert parked.energy_fj > timed.energy_fj + moved * (
        action_costs(EDGE)["dram"].fj or pytest.fail("edge has no price of DRAM")
    )


def test_events_serve_the_more_urgent_first_and_stop_nobody(timed: Timed) -> None:
    asked = {"low": Asked(timed, Priority.LOW), "high": Asked(timed, Priority.HIGH)}
    total = timed.total_ps
    served = by_events(asked, merged({"low": [0, 1, 2], "high": [total // 2]}))
    assert [(each.name, each.began_ps) for each in served] == [
        ("low", 0), ("high", total), ("low", 2 * total), ("low", 3 * total)
    ]  # fmt: skip


def test_rings_are_the_same_again(timed: Timed) -> None:
    asked = {"low": Asked(timed, Priority.LOW), "high": Asked(timed, Priority.HIGH)}
    asks = merged({"low": poisson(0.5, timed.total_ps, 30, 1), "high": poisson(0.3, timed.total_ps, 20, 2)})
    assert on_rings(EDGE, asked, asks) == on_rings(EDGE, asked, asks)


def test_requests_of_one_moment_come_in_the_order_of_models() -> None:
    assert merged({"b": [5, 7], "a": [5]}) == [Ask(5, 0, "b"), Ask(5, 1, "a"), Ask(7, 2, "b")]


def test_percentiles_are_by_nearest_rank() -> None:
    assert LatencySpread.of(range(1, 101)) == LatencySpread(50, 50, 90, 99, 100)
    assert LatencySpread.of([7]) == LatencySpread(7, 7, 7, 7, 7)
    assert LatencySpread.of([1, 2]) == LatencySpread(1, 1, 2, 2, 2)
    assert LatencySpread.of([]) is None


def test_a_queue_is_who_has_come_and_is_not_begun() -> None:
    served = [Served("m", 0, 0, 10), Served("m", 1, 10, 20), Served("m", 2, 20, 30), Served("m", 20, 30, 40)]
    assert most_waiting(served) == 2
    assert classed("m", served, 40).queued == ((9 + 18 + 10) / 40, 2)
