"""The shared time budget of several jobs of one execution."""

from __future__ import annotations

import pytest

from hal.nnapi.errors import StatusError
from hal.nnapi.execution.backend import DeviceBackend
from hal.nnapi.execution.deadline import Deadline
from hal.nnapi.types import ErrorStatus
from npusim.errors import DeadlineError
from npusim.runtime import Executor, Priority
from tests.support.programs.executor_jobs import TINY, adder, values


def test_the_first_job_of_an_execution_pays_for_its_mappings() -> None:
    program, totals = adder(), []
    with Executor(TINY) as executor:
        for mappings in (0, 0, 3):  # the first one also brings the program
            backend = DeviceBackend(executor, Priority.MEDIUM, mappings=mappings)
            before = executor.counters.mappings
            for _ in range(2):
                past = backend.driver_ps
                found = backend.run(program, {"x0": values()}, {})
                assert (found["y0"] == values() + 1).all()
                totals.append(backend.driver_ps - past)
            assert executor.counters.mappings == before + mappings
            assert executor.device.last_job is not None
            assert backend.device_ps == 2 * executor.device.last_job.time_ps > 0
            assert backend.elapsed_ps() == backend.driver_ps > backend.device_ps
    plain, again, mapped, after = totals[2:]
    assert plain == again == after
    assert mapped == plain + 3 * TINY.host.map_ps


def test_jobs_share_the_budget_of_their_execution() -> None:
    """The clock is stopped: what remains is the budget minus the time of earlier jobs."""
    program = adder()
    with Executor(TINY) as executor:
        probe = DeviceBackend(executor, Priority.MEDIUM)
        probe.run(program, {"x0": values()}, {})  # brings the program
        past = probe.driver_ps
        probe.run(program, {"x0": values()}, {})
        taken_ps = probe.driver_ps - past
        budget_ns = 2 * taken_ps // 1000 + 1
        backend = DeviceBackend(executor, Priority.MEDIUM, Deadline(budget_ns, lambda: 0))
        for _ in range(2):
            backend.run(program, {"x0": values()}, {})
        left = 1000 * budget_ns - 2 * taken_ps
        with pytest.raises(DeadlineError, match=f"not done within {left} ps"):
            backend.run(program, {"x0": values()}, {})
        assert backend.driver_ps == 2 * taken_ps
        used_up = DeviceBackend(executor, Priority.MEDIUM, Deadline(1, lambda: 0))
        used_up.driver_ps = 1000
        with pytest.raises(StatusError) as caught:
            used_up.run(program, {"x0": values()}, {})
        assert caught.value.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
