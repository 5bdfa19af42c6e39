"""Order by priority, expired deadlines, and the effect of a fault on other jobs."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.errors import (
    DeadlineError,
    DeviceFaultError,
    DeviceGoneError,
    JobAbortedError,
)
from npusim.faults import AtCommand, AtInterrupt, Fault, Hang, MessageFault
from npusim.runtime import Executor, Priority
from tests.support.programs.executor_jobs import SIZE, TINY, adder, made_for, request, run, values
from tests.support.waits_and_leaks import until

HOST = TINY.host
LONG = 400


# Priority, deadlines, abort


def test_jobs_go_to_the_device_in_the_order_of_their_class(executor: Executor) -> None:
    order: list[int] = []
    program = adder()
    with executor.paused():
        jobs = []
        for number, priority in enumerate((0, 1, 2, 0, 1, 2)):
            jobs.append(executor.submit(request(program, values(number), Priority(priority))))
            jobs[-1].add_done_callback(lambda _, number=number: order.append(number))
        for priority, waiting in ((0, 6), (1, 4), (2, 2)):
            assert executor.backlog_ps(priority) == waiting * executor.estimate(program)
    for number, job in enumerate(jobs):
        assert np.array_equal(job.wait(60).outputs["y0"], values(number) + 1)
    until(lambda: len(order) == len(jobs))
    assert [order.index(number) for number in (2, 5)] < [order.index(number) for number in (0, 3)]
    assert order.index(0) < order.index(3)
    assert order.index(1) < order.index(4)
    assert executor.backlog_ps(Priority.LOW) == 0


def test_a_higher_job_interrupts_one_that_runs(executor: Executor) -> None:
    slow, quick = adder(slow=LONG), adder(9)
    with executor.paused():
        low = executor.submit(request(slow, values(1), Priority.LOW))
        high = executor.submit(request(quick, values(2), Priority.HIGH))
    assert high.wait(60).suspended_ps == 0
    done = low.wait(60)
    assert np.array_equal(done.outputs["y0"], values(1) + 1)
    assert done.total_ps == done.time_ps + done.queued_ps + done.suspended_ps + done.host_ps
    with executor.paused():  # high first, then the low one runs when the next high one comes
        jobs = [executor.submit(request(quick, values(3), Priority.HIGH)) for _ in range(2)]
        low = executor.submit(request(slow, values(4), Priority.LOW))
    for job in jobs:
        job.wait(60)
    done = low.wait(60)
    assert np.array_equal(done.outputs["y0"], values(4) + 1)
    assert executor.preemption
    assert done.host.preemptions >= 1
    assert [span.kind for span in done.timeline.spans if span.unit == "sequencer"][:2] == [
        "context.save", "context.restore",
    ]  # fmt: skip


@pytest.mark.parametrize("budget_ps", [1, 20 * 10**6, 200 * 10**6])
def test_a_job_ends_when_its_time_is_over(executor: Executor, budget_ps: int) -> None:
    program = adder(slow=LONG)
    assert executor.estimate(program) > 200 * 10**6
    with pytest.raises(DeadlineError, match=f"not done within {budget_ps} ps"):
        run(executor, program, values(), budget_ps=budget_ps)
    assert np.array_equal(run(executor, adder(), values(), budget_ps=10**9).outputs["y0"], values() + 1)
    executor.unload(program)
    executor.unload(adder())


def test_a_job_that_waits_ends_when_its_time_is_over(executor: Executor) -> None:
    with executor.paused():
        first = executor.submit(request(adder(slow=LONG), values()))
        second = executor.submit(request(adder(), values(), budget_ps=50 * 10**6))
    with pytest.raises(DeadlineError):
        second.wait(60)
    assert np.array_equal(first.wait(60).outputs["y0"], values() + 1)


def test_abort_waiting_and_running_jobs(executor: Executor) -> None:
    program = adder(slow=LONG)
    for rounds in range(3):
        with executor.paused():
            jobs = [executor.submit(request(program, values(), Priority.LOW)) for _ in range(3)]
        jobs[rounds].abort()
        for number, job in enumerate(jobs):
            if number == rounds:
                with pytest.raises(JobAbortedError, match="was aborted"):
                    job.wait(60)
                job.abort()  # too late, and harmless
            else:
                assert np.array_equal(job.wait(60).outputs["y0"], values() + 1)


# Faults


def test_only_the_faulty_job_fails(executor: Executor) -> None:
    broken = made_for(adder())
    broken.code = b"\xff" * 40
    with executor.paused():
        jobs = [executor.submit(request(item, values())) for item in (adder(1), broken, adder(2))]
    assert np.array_equal(jobs[0].wait(60).outputs["y0"], values() + 1)
    with pytest.raises(DeviceFaultError, match="device fault PROGRAM"):
        jobs[1].wait(60)
    assert np.array_equal(jobs[2].wait(60).outputs["y0"], values() + 2)


def test_a_unit_that_hangs_fails_its_job(executor: Executor) -> None:
    program = adder()
    executor.faults.add([Fault(AtCommand(command=1, unit="core0.vector"), Hang(hang="core0.vector"))])
    with pytest.raises(DeviceFaultError, match="TIMEOUT at 0x0: the device is idle; it was reset"):
        run(executor, program, values())
    assert np.array_equal(run(executor, program, values()).outputs["y0"], values() + 1)


def test_lost_interrupts_cost_time_but_no_job() -> None:
    lost = Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="lose"))
    with Executor(TINY, faults=[lost]) as executor:
        done = run(executor, adder(), values())
        assert np.array_equal(done.outputs["y0"], values() + 1)
        assert 100 * 10**9 <= done.host_ps < 101 * 10**9


@pytest.mark.parametrize("through_executor", [True, False])
def test_when_the_device_is_gone_everybody_hears_of_it(through_executor: bool) -> None:
    executor = Executor(TINY)
    program, buffer = adder(slow=LONG), executor.buffer(SIZE)
    with executor.paused():
        jobs = [executor.submit(request(program, values(), Priority(number % 3))) for number in range(5)]
    executor.unload(program)
    (executor.unplug if through_executor else executor.device.unplug)()
    for job in jobs:
        with pytest.raises(DeviceGoneError, match="UNPLUGGED"):
            job.wait(60)
    assert executor.status == "OFFLINE"
    with pytest.raises(DeviceGoneError):
        run(executor, program, values())
    for call in (lambda: executor.buffer(1), lambda: executor.read(buffer, 1), lambda: executor.pin(program)):
        with pytest.raises(DeviceGoneError):
            call()
    buffer.release()
    executor.close()
