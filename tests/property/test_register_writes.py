"""Any register writes in any order: each access returns, the device behaves the same with and without the driver
sanitizer, and it works after a reset."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device import job_checks
from npusim.device.flights import Flight, take_off
from npusim.device.npu import NpuDevice
from npusim.device.registers import BY_NAME, RINGS
from npusim.driver import Driver
from tests.support.bare_device import QUICK, BareDevice
from tests.support.driven_jobs import drive
from tests.support.programs.streams import round_trip

US = 10**6
MOST_ENTRIES = 1 << 16
"""Size of the largest ring: no access reads more entries than that."""
JOB = round_trip(64)

COUNTS = st.one_of(
    st.integers(0, 12),
    st.integers(0, 40).map(lambda number: 0xFFFF_FFFF - number),
    st.sampled_from([MOST_ENTRIES, MOST_ENTRIES + 1, 1 << 31, (1 << 31) + 1]),
    st.integers(0, 0xFFFF_FFFF),
)
REGISTERS = st.one_of(
    st.sampled_from([f"{ring}_{word}" for ring in RINGS for word in ("TAIL", "TAIL", "DOORBELL", "DOORBELL", "SIZE")]),
    st.sampled_from(sorted(BY_NAME)),
)
VALUES = st.one_of(COUNTS, st.sampled_from([0, 1, 2, 3, 8, 64, MOST_ENTRIES]))
ACTIONS = st.one_of(
    st.tuples(st.just("write"), REGISTERS, VALUES),
    st.tuples(st.just("write"), REGISTERS, VALUES),
    st.tuples(st.just("ring"), st.sampled_from(RINGS), COUNTS),
    st.tuples(st.just("ring"), st.sampled_from(RINGS), COUNTS),
    st.tuples(st.just("read"), st.sampled_from(sorted(BY_NAME)), st.just(0)),
    st.tuples(st.just("put"), st.sampled_from(RINGS), st.just(0)),
    st.tuples(st.just("wait"), st.just(""), st.sampled_from([0, 1, US, 100 * US])),
)


class Looks:
    """Counts the entries that the sanitizer reads in one access."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *entry: Any) -> Flight:
        self.count += 1
        assert self.count <= MOST_ENTRIES, f"one access looks at more than {MOST_ENTRIES} entries"
        return take_off(*entry)


def play(actions: list[Any], *, check: bool) -> tuple[list[int], list[str]]:
    """Return what software read and when, and the findings."""
    device = NpuDevice(QUICK, check=check)
    bare = BareDevice(device=device)
    seen: list[int] = []
    looks = Looks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_checks, "take_off", looks)
        for verb, name, value in actions:
            looks.count = 0
            if verb == "write":
                bare[name] = value
            elif verb == "ring":
                bare[f"{name}_TAIL"] = value
                bare[f"{name}_DOORBELL"] = 1
            elif verb == "read":
                seen.append(bare[name])
            elif verb == "put":
                bare.put(name, JOB)
            else:
                seen.append(bare.bus.wait_irq(value))
            seen.append(device.now_ps)
    drive(Driver(device.bus))  # raises if the device does not work any more
    findings = [each.kind for each in device.checker.findings] if device.checker else []
    device.close()
    return seen, findings


def hold(actions: list[Any]) -> list[str]:
    (seen, _), (same, findings) = play(actions, check=False), play(actions, check=True)
    assert seen == same
    return findings


@given(st.lists(ACTIONS, min_size=4, max_size=30))
@settings(max_examples=40)
def test_every_access_returns(actions: list[Any]) -> None:
    hold(actions)


@pytest.mark.slow
@given(st.lists(ACTIONS, min_size=4, max_size=60))
@settings(max_examples=1000)
def test_every_access_of_many_returns(actions: list[Any]) -> None:
    hold(actions)


@given(st.integers(0, 0xFFFF_FFFF), st.integers(1, (1 << 31) - 1), st.sampled_from(RINGS))
def test_a_tail_that_goes_back_is_found(tail: int, back: int, ring: str) -> None:
    low = (tail - back) & 0xFFFF_FFFF
    assert "tail-back" in hold([("ring", ring, tail), ("ring", ring, low), ("wait", "", US)])
