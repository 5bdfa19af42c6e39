"""The backend of plans: the simulated device for one execution, with its priority, deadline and clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import numpy as np

from npusim.plan import PlanBuffer
from npusim.program import Program
from npusim.runtime import DeviceBuffer, Executor, Job, Priority, Request, Result

from ..errors import StatusError
from ..operations.view import Array
from ..types import ErrorStatus
from .deadline import Deadline

POLL_S = 0.05
"""Minimum time between two checks of the deadline's clock, which may differ from the machine's."""

BATCH = 64
"""Iterations of a loop that are repeated before other clients are served and the clock is checked. Even, so that the
next iterations start with the same memory."""


class DeviceBackend:
    """Runs the programs of one execution, and sums their simulated times.

    ``mappings``: pools that the host maps for it, charged to its first job. ``device_ps``: time on the device.
    ``driver_ps``: that plus host, transfers, submission and queue.
    """

    def __init__(
        self,
        executor: Executor,
        priority: Priority,
        deadline: Deadline | None = None,
        mappings: int = 0,
        limited: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.limited = limited
        self._executor = executor
        self._priority = priority
        self._deadline = deadline
        self._budget_ps = None if deadline is None else deadline.budget_ps()
        self._mappings = mappings
        # The last two iterations of a loop, condition and body each, for `again`.
        self._past: deque[Job] = deque(maxlen=4)
        self.device_ps = 0
        self.driver_ps = 0

    def run(
        self, program: Program, inputs: Mapping[str, Array | PlanBuffer], outputs: Mapping[str, PlanBuffer]
    ) -> Mapping[str, Array]:
        """Run a program on the device. Raises StatusError when the deadline passes, and errors of the executor."""
        request = Request(
            program,
            cast("Mapping[str, Array | DeviceBuffer]", inputs),
            cast("Mapping[str, DeviceBuffer]", outputs),
            priority=self._priority,
            budget_ps=self._rest_ps(),
            host_mappings=self._mappings,
        )
        job = self._executor.submit(request, here=True)
        done = self._wait(job)
        # The mappings are charged to the first job only.
        self._mappings = 0
        self._past.append(job)
        self.device_ps += done.time_ps
        self.driver_ps += done.total_ps
        return done.outputs

    def again(self, limit_ps: int) -> int:
        """Implements Backend.again, unless another client waits for the device."""
        past = list(self._past)
        # Two iterations of a condition, whose result was read, and a body, whose results were not.
        if [[out.nbytes for out in job.read_back] for job in past] != [[1], [], [1], []]:
            return 0
        done = [job.wait() for job in past[2:]]
        device_ps = sum(result.time_ps for result in done)
        condition_ps, body_ps = (result.total_ps for result in done)
        count, batch = 0, BATCH
        while batch == BATCH:
            most = self._most(limit_ps, condition_ps, body_ps)
            batch = self._executor.repeat((past[:2], past[2:]), min(BATCH, most)) if most > 0 else 0
            count += batch
            self.device_ps += batch * device_ps
            self.driver_ps += batch * (condition_ps + body_ps)
        if count % 2:
            self._past.rotate(2)  # the first of them is again the job whose result is read next
        return count

    def _most(self, limit_ps: int, condition_ps: int, body_ps: int) -> int:
        """The number of iterations that fit into the loop limit and the remaining budget."""
        # A body may start until the limit has passed, so one more than fits, but it must end within the budget.
        most = 1 + (limit_ps - self.driver_ps - condition_ps) // (condition_ps + body_ps)
        rest = self._rest_ps()
        return most if rest is None else min(most, (rest - 1) // (condition_ps + body_ps))

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Device memory for a value between programs."""
        return self._executor.buffer(nbytes)

    def read(self, buffer: PlanBuffer, nbytes: int) -> bytes | bytearray:
        """Bytes of device memory, at the cost of a transfer."""
        self.driver_ps += self._executor.config.host.copy_ps(nbytes)
        return self._executor.read(cast("DeviceBuffer", buffer), nbytes)

    def write(self, buffer: PlanBuffer, data: Array) -> None:
        """Fill device memory from the host, at the cost of a transfer."""
        self.driver_ps += self._executor.config.host.copy_ps(data.nbytes)
        self._executor.write(cast("DeviceBuffer", buffer), np.ascontiguousarray(data).view(np.uint8).data)

    def decide(self, name: str, kind: str, elements: int) -> None:
        """No time: an execution is only charged for transfers and submissions."""

    def elapsed_ps(self) -> int:
        """Simulated time that this execution has taken so far."""
        return self.driver_ps

    def _rest_ps(self) -> int | None:
        """The remaining budget. Raises StatusError if it is exhausted."""
        if self._deadline is None or self._budget_ps is None:
            return None
        rest = self._budget_ps - self.driver_ps
        if rest <= 0 or self._deadline.passed():
            raise StatusError(ErrorStatus.MISSED_DEADLINE_TRANSIENT, "the deadline has passed during the execution")
        return rest

    def _wait(self, job: Job) -> Result:
        if self._deadline is None:
            return job.wait()
        while True:
            try:
                return job.wait(max(POLL_S, self._deadline.seconds_left()))
            except TimeoutError:
                if self._deadline.passed():
                    job.abort()
                    raise StatusError(
                        ErrorStatus.MISSED_DEADLINE_TRANSIENT, "the deadline has passed during the execution"
                    ) from None
