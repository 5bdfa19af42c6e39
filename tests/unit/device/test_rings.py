"""Rings separately: each doorbell takes the tail of its own ring, a fault names its ring, and a job's cycles count from
the moment it is taken."""

from __future__ import annotations

import pytest

from npusim.device.registers import BY_NAME, RINGS
from npusim.device.ring import JobStatus
from npusim.program import Program
from tests.support.bare_device import SECOND, BareDevice
from tests.support.programs.streams import round_trip
from tests.support.programs.timed_jobs import long_job

DONE = 1
JOB = round_trip(64)


def alone(program: Program) -> int:
    """Return the time in ps of a job on an idle device, from doorbell to interrupt."""
    bare = BareDevice()
    bare.submit("LOW", program)
    rung = bare.now_ps
    bare.wait()
    return bare.now_ps - rung


# Doorbells


@pytest.mark.parametrize("silent", RINGS)
def test_a_doorbell_serves_its_own_ring(silent: str) -> None:
    bare = BareDevice()
    waiting = bare.put(silent, JOB)
    for ring in RINGS:
        if ring != silent:
            served = bare.submit(ring, JOB)
            assert bare.wait() == DONE
            assert bare.completion(served).status == JobStatus.DONE
    assert bare.bus.wait_irq(SECOND) == 0
    assert (bare[f"{silent}_HEAD"], bare[f"{silent}_TAIL"]) == (0, 1)
    assert bare["STATUS"] == 1
    bare.ring(silent)
    assert bare.wait() == DONE
    assert bare.completion(waiting).status == JobStatus.DONE


def test_a_tail_that_moves_on_waits_for_the_next_doorbell() -> None:
    bare = BareDevice()
    bare.submit("LOW", JOB)
    later = bare.put("LOW", JOB)
    assert bare.wait() == DONE
    assert bare.bus.wait_irq(SECOND) == 0
    assert bare["LOW_HEAD"] == 1
    assert bare.completion(later).status == JobStatus.PENDING
    bare.ring("LOW")
    assert bare.wait() == DONE
    assert bare["LOW_HEAD"] == 2


def test_a_tail_alone_parks_nobody() -> None:
    bare = BareDevice()
    bare["CONTEXT_BASE_LO"] = 1 << 24
    bare["PREEMPT"] = 1
    low = bare.submit("LOW", long_job())
    bare.advance(1_000_000)
    bare.put("HIGH", JOB)
    bare.submit("MEDIUM", JOB)  # parks the low one, and is not parked
    for _ in range(2):
        bare.wait()
    assert bare.records[low.seqno].preemptions == 1
    assert bare["HIGH_HEAD"] == 0


def test_a_doorbell_during_a_fault_counts_after_continue() -> None:
    bare = BareDevice()
    bare.submit("LOW", JOB, magic=0)
    bare.wait()
    rung, silent = bare.submit("HIGH", JOB), bare.put("MEDIUM", JOB)
    assert bare.bus.wait_irq(SECOND) == 0
    bare["CONTROL"] = 2
    assert bare.wait() == DONE
    assert bare.completion(rung).status == JobStatus.DONE
    assert bare.bus.wait_irq(SECOND) == 0
    assert bare.completion(silent).status == JobStatus.PENDING


def test_a_reset_forgets_what_was_rung() -> None:
    bare = BareDevice()
    for _ in range(3):
        bare.submit("LOW", JOB)
    bare["CONTROL"] = 1
    bare.set_up()
    bare.submit("HIGH", JOB)
    assert bare.wait() == DONE
    assert bare.bus.wait_irq(SECOND) == 0
    assert bare["LOW_HEAD"] == 0


# Which ring a fault was in


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.parametrize("changes", [{"magic": 0}, {"program_bytes": 8}, {"region_table": 1 << 40}])
def test_a_fault_says_which_ring_it_was_in(ring: str, changes: dict[str, int]) -> None:
    bare = BareDevice()
    bit = next(field.mask for field in BY_NAME["FAULT_RING"].fields if field.name == ring)
    for other in RINGS:
        if other != ring:
            bare.submit(other, JOB)
            bare.wait()
    assert bare["FAULT_RING"] == 0
    bare.submit(ring, JOB, **changes)
    bare.wait()
    assert (bare["STATUS"], bare["FAULT_RING"]) == (4, bit)
    bare["CONTROL"] = 2
    assert (bare["STATUS"], bare["FAULT_RING"]) == (1, 0)
    bare.submit(ring, JOB, **changes)
    bare.wait()
    bare["CONTROL"] = 1
    assert bare["FAULT_RING"] == 0


# What a job's cycles count


def test_cycles_of_queued_jobs_count_from_the_end_of_the_one_before() -> None:
    bare, duration = BareDevice(), alone(JOB)
    entries = [bare.put("LOW", JOB) for _ in range(3)]
    bare.ring("LOW")
    rung = bare.now_ps
    for number, entry in enumerate(entries):
        bare.wait()
        assert bare.now_ps == rung + (number + 1) * duration
        assert bare.completion(entry).cycles == -(-duration // 1000)
        assert bare.records[entry.seqno].started_ps == rung + number * duration


def test_cycles_of_a_job_that_waits_for_a_lower_class() -> None:
    bare, duration, short = BareDevice(), alone(long_job()), alone(JOB)
    low = bare.submit("LOW", long_job())
    rung = bare.now_ps
    bare.advance(1_000_000)
    high = bare.submit("HIGH", JOB)
    bare.wait()
    assert bare.now_ps == rung + duration
    bare.wait()
    assert bare.now_ps == rung + duration + short
    assert [bare.completion(entry).cycles for entry in (low, high)] == [-(-duration // 1000), -(-short // 1000)]


def test_cycles_of_a_parked_job_go_on_while_it_is_parked() -> None:
    bare = BareDevice()
    bare["CONTEXT_BASE_LO"] = 1 << 24
    bare["PREEMPT"] = 1
    low = bare.submit("LOW", long_job())
    rung = bare.now_ps
    bare.advance(1_000_000)
    bare.submit("HIGH", JOB)
    bare.wait()
    bare.wait()
    record = bare.records[low.seqno]
    assert record.suspended_ps > alone(JOB)
    assert bare.now_ps - rung == record.time_ps == alone(long_job()) + record.suspended_ps
    assert bare.completion(low).cycles == -(-record.time_ps // 1000)


def test_cycles_of_a_job_that_went_back_into_its_ring_count_from_the_second_time() -> None:
    bare, duration = BareDevice(), alone(JOB)
    low = bare.submit("LOW", JOB)  # its entry is still being read when the next doorbell rings
    rung = bare.now_ps
    bare.advance(1000)
    bare.submit("HIGH", JOB)
    bare.wait()
    second = bare.now_ps
    assert second > rung + duration
    bare.wait()
    assert bare.now_ps == second + duration
    assert bare.records[low.seqno].started_ps == second
    assert bare.completion(low).cycles == -(-duration // 1000)
