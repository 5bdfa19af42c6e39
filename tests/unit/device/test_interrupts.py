"""Interrupts are messages: what sends one, and what withdraws one."""

from __future__ import annotations

from tests.support.bare_device import QUICK, SECOND, TINY, BareDevice
from tests.support.programs.streams import round_trip

DONE, FAULT = 1, 2
JOB = round_trip(64)


def ended(mask: int = DONE) -> BareDevice:
    """Return a device on which a job has ended and whose interrupts were not checked yet."""
    bare = BareDevice()
    bare["INT_MASK"] = mask
    bare.submit("LOW", JOB)
    bare.advance(SECOND)
    assert bare["INT_STATUS"] == DONE
    return bare


def test_a_message_that_was_sent_comes_though_its_cause_is_cleared_and_masked() -> None:
    bare = ended()
    bare["INT_STATUS"] = DONE
    bare["INT_MASK"] = 0
    assert bare.bus.wait_irq(0) == 1
    assert bare["INT_STATUS"] == 0
    assert bare.bus.wait_irq(SECOND) == 0


def test_messages_that_nobody_has_taken_are_one() -> None:
    bare = ended()
    for _ in range(3):
        bare.submit("LOW", JOB)
        bare.advance(SECOND)
    assert bare.bus.wait_irq(0) == 1
    assert bare.bus.wait_irq(SECOND) == 0


def test_each_end_of_a_job_sends_a_message_whether_or_not_the_bit_was_set() -> None:
    bare = ended()
    assert bare.bus.wait_irq(0) == 1
    bare.submit("LOW", JOB)
    assert bare.bus.wait_irq(SECOND) == 1


def test_a_bit_that_is_masked_sends_nothing() -> None:
    bare = ended(mask=FAULT)
    assert bare.bus.wait_irq(SECOND) == 0
    bare.submit("LOW", JOB, magic=0)  # a fault sets both bits
    assert bare.bus.wait_irq(SECOND) == 1
    assert bare["INT_STATUS"] == DONE | FAULT


def test_opening_the_mask_over_a_bit_that_is_set_sends() -> None:
    bare = ended(mask=0)
    bare["INT_MASK"] = FAULT
    assert bare.bus.wait_irq(SECOND) == 0
    bare["INT_MASK"] = DONE | FAULT
    assert bare.bus.wait_irq(0) == 1
    bare["INT_MASK"] = DONE | FAULT  # open already, and the bit still set
    assert bare.bus.wait_irq(0) == 1
    bare["INT_STATUS"] = DONE
    bare["INT_MASK"] = DONE | FAULT
    assert bare.bus.wait_irq(SECOND) == 0


def test_after_a_reset_no_interrupt_of_before_comes() -> None:
    bare = ended()
    bare["CONTROL"] = 1
    assert bare.bus.wait_irq(SECOND) == 0
    bare.set_up()
    bare.submit("LOW", JOB)
    assert bare.wait() == DONE


def test_a_reset_at_any_moment_of_a_job_lets_no_interrupt_through() -> None:
    bare = BareDevice()
    bare.submit("LOW", JOB)
    rung = bare.now_ps
    bare.wait()
    duration = bare.now_ps - rung
    for delay in (*range(0, duration, duration // 12), duration - 1, duration, duration + 1):
        bare = BareDevice()
        bare.submit("LOW", JOB)
        bare.advance(delay)
        bare["CONTROL"] = 1
        bare["INT_MASK"] = DONE | FAULT
        assert bare.bus.wait_irq(SECOND) == 0
        assert (bare["STATUS"], bare["INT_STATUS"]) == (1, 0)


def test_a_message_takes_its_time_when_it_is_taken() -> None:
    slow = BareDevice(QUICK.with_(**{"host.irq": "1 us"}))
    slow.submit("LOW", JOB)
    slow.advance(SECOND)
    before = slow.now_ps
    assert slow.bus.wait_irq(0) == 1
    assert slow.now_ps - before == TINY.host.irq_ps == 1_000_000
    before = slow.now_ps
    assert slow.bus.wait_irq(5) == 0
    assert slow.now_ps - before == 5
