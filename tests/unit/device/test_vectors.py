"""A vector per source, and interrupt moderation, to the picosecond."""

from __future__ import annotations

import pytest

from npusim.device.registers import SOURCES
from tests.support.bare_device import QUICK, SECOND, BareDevice
from tests.support.pci_slots import PCI, on_host
from tests.support.programs.streams import round_trip

JOB = round_trip(64)
APART = sum(vector << 4 * vector for vector in range(len(SOURCES)))
"""Each source has the vector of its number."""
MICROSECOND = 1_000_000


def routed(config=PCI) -> BareDevice:
    bare = BareDevice(config)
    bare["INT_ROUTE"] = APART
    return bare


def send_times(bare: BareDevice, moderation: int, rings: list[str]) -> tuple[list[int], list[int]]:
    """Return when consecutive jobs ended, and when their messages were sent."""
    bare["INT_MODERATION"] = moderation
    ends: list[int] = []
    sent: list[int] = []
    bare.device.listener = lambda *_: ends.append(bare.now_ps)
    transport = bare.bus.irq
    bare.bus.irq = lambda vector: (sent.append(bare.now_ps), transport(vector))  # type: ignore[attr-defined]
    for ring in rings:
        bare.submit(ring, JOB)
    bare.advance(SECOND)
    return ends, sent


def test_a_device_of_before_has_one_vector_and_none_of_these_registers() -> None:
    bare = BareDevice(QUICK)
    assert bare["CAP_HOST"] == 0
    bare["INT_ROUTE"] = APART
    bare["INT_MODERATION"] = 5
    assert (bare["INT_ROUTE"], bare["INT_MODERATION"]) == (0, 0)
    assert len(bare.device.misuse) == 4
    bare.submit("HIGH", JOB)
    assert bare.bus.wait_irq(SECOND) == 1


def test_what_a_device_says_of_itself() -> None:
    assert BareDevice(PCI)["CAP_HOST"] == 48 | 5 << 8 | 1 << 16
    lean = PCI.with_(**{"pci.vectors": 1, "pci.moderation": False, "pci.address_bits": 0})
    assert BareDevice(lean)["CAP_HOST"] == 1 << 8


@pytest.mark.parametrize(("ring", "vector"), [("LOW", 0), ("MEDIUM", 1), ("HIGH", 2)])
def test_each_ring_has_its_vector(ring: str, vector: int) -> None:
    bare = routed()
    bare.submit(ring, JOB)
    assert bare.bus.wait_irq(SECOND) == 1 << vector
    assert bare["INT_STATUS"] == 1


def test_a_fault_tells_its_ring_and_the_vector_for_faults() -> None:
    bare = routed()
    bare.submit("MEDIUM", JOB, magic=0)
    assert bare.bus.wait_irq(SECOND) == 1 << 1 | 1 << 3


def test_until_software_says_otherwise_there_is_one_vector() -> None:
    bare = BareDevice(PCI)
    for ring in ("LOW", "HIGH"):
        bare.submit(ring, JOB)
        assert bare.bus.wait_irq(SECOND) == 1


def test_a_vector_that_is_not_there_is_refused_and_the_rest_holds() -> None:
    bare = BareDevice(PCI)
    bare["INT_ROUTE"] = 0x05241
    assert bare["INT_ROUTE"] == 0x00241
    assert bare.device.misuse == ["write of 0x5241 to INT_ROUTE: FAULT must be a vector below 5, got 5"]


def test_opening_the_mask_tells_the_sources_that_came() -> None:
    bare = routed()
    bare["INT_MASK"] = 0
    for ring in ("LOW", "HIGH"):
        bare.submit(ring, JOB)
    bare.advance(SECOND)
    assert bare.bus.wait_irq(0) == 0
    bare["INT_MASK"] = 3
    assert bare.bus.wait_irq(0) == 0b101
    bare["INT_STATUS"] = 1
    bare.submit("MEDIUM", JOB)
    bare.advance(SECOND)
    bare["INT_MASK"] = 3
    assert bare.bus.wait_irq(0) == 0b010, "what was cleared came again"


def test_vectors_pass_through_msix() -> None:
    bare, host = on_host()
    bare["INT_ROUTE"] = APART
    for ring in ("LOW", "HIGH"):
        bare.submit(ring, JOB)
    bare.advance(SECOND)
    assert host.wait_irq(0) == 0b101


def test_without_an_interval_each_end_sends_at_once() -> None:
    ends, sent = send_times(BareDevice(PCI), 3 << 24, ["LOW"] * 3)
    assert sent == ends


def test_the_second_message_comes_an_interval_after_the_first_and_not_before() -> None:
    ends, _ = send_times(BareDevice(PCI), 0, ["LOW"] * 2)
    bare = BareDevice(PCI)
    bare["INT_MODERATION"] = 10_000
    for _ in range(2):
        bare.submit("LOW", JOB)
    bare.advance(ends[0] - bare.now_ps)
    assert bare.bus.wait_irq(0) == 1
    due = ends[0] + 10 * MICROSECOND
    assert ends[1] < due
    assert bare.bus.wait_irq(due - 1 - bare.now_ps) == 0
    assert bare["LOW_HEAD"] == 2  # ended long ago
    assert bare.bus.wait_irq(1) == 1
    assert bare.bus.wait_irq(SECOND) == 0


def test_ends_that_are_held_make_one_message() -> None:
    ends, sent = send_times(BareDevice(PCI), 10_000, ["LOW"] * 5)
    assert len(ends) == 5
    assert ends[4] < ends[0] + 10 * MICROSECOND
    assert sent == [ends[0], ends[0] + 10 * MICROSECOND]


def test_enough_ends_send_before_the_interval_is_over() -> None:
    ends, sent = send_times(BareDevice(PCI), 2 << 24 | 10_000, ["LOW"] * 6)
    # The first at once; then each second one. The last is alone, an interval after the message before it.
    assert sent == [ends[0], ends[2], ends[4], ends[4] + 10 * MICROSECOND]


def test_an_end_after_the_interval_sends_at_once() -> None:
    ends, _ = send_times(BareDevice(PCI), 0, ["LOW"] * 2)
    gap = (ends[1] - ends[0]) // 1000
    for interval, times in ((gap, [ends[0], ends[1]]), (gap + 1, [ends[0], ends[0] + 1000 * (gap + 1)])):
        assert send_times(BareDevice(PCI), interval, ["LOW"] * 2)[1] == times


def test_vectors_are_held_back_each_for_itself() -> None:
    ends, sent = send_times(routed(), 10_000, ["LOW", "HIGH", "MEDIUM"])
    assert sent == ends
    ends, sent = send_times(BareDevice(PCI), 10_000, ["LOW", "HIGH", "MEDIUM"])
    assert sent == [ends[0], ends[0] + 10 * MICROSECOND]


def test_a_fault_is_never_held_back() -> None:
    bare = BareDevice(PCI)
    bare["INT_MODERATION"] = 10_000
    bare.submit("LOW", JOB)
    bare.submit("LOW", JOB, magic=0)
    assert bare.bus.wait_irq(SECOND) == 1
    before = bare.now_ps
    assert bare.bus.wait_irq(SECOND) == 1
    assert bare.now_ps - before < MICROSECOND
    assert bare["STATUS"] == 4


def test_switching_it_off_lets_go_what_is_held() -> None:
    bare = BareDevice(PCI)
    bare["INT_MODERATION"] = 0xFF_FFFF  # 16.8 ms
    for _ in range(2):
        bare.submit("LOW", JOB)
    bare.advance(5 * MICROSECOND)
    assert bare["LOW_HEAD"] == 2
    assert bare.bus.wait_irq(0) == 1
    assert bare.bus.wait_irq(MICROSECOND) == 0
    bare["INT_MODERATION"] = 0
    assert bare.bus.wait_irq(0) == 1


def test_a_reset_forgets_what_is_held() -> None:
    bare = BareDevice(PCI)
    bare["INT_MODERATION"] = 10_000
    for _ in range(2):
        bare.submit("LOW", JOB)
    bare.advance(5 * MICROSECOND)
    assert bare.bus.wait_irq(0) == 1
    bare["CONTROL"] = 1
    assert bare.bus.wait_irq(SECOND) == 0
    assert (bare["INT_MODERATION"], bare["INT_ROUTE"]) == (0, 0)
