"""ANeuralNetworksBurst: consecutive executions of one compilation, with persistent mappings and programs."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ..aidl.types import ExecutionConfig, ExecutionResult, Request
from .codes import bad_data, bad_state
from .compilation import Compilation
from .execution import Execution
from .memory import AnyMemory, SharedMemory

_live: weakref.WeakSet[Burst] = weakref.WeakSet()


class Burst:
    """A burst. One execution at a time."""

    def __init__(self, compilation: Compilation) -> None:
        compilation.check_finished()
        self._compilation = compilation
        self._bursts: list[Any] = [step.prepared.configureExecutionBurst() for step in compilation.steps]
        self._one = threading.Lock()
        _live.add(self)

    def compute(self, execution: Execution) -> None:
        """Compute an execution of the same compilation. Raises ApiError: BAD_DATA, BAD_STATE while another runs."""
        if execution.compilation is not self._compilation:
            raise bad_data("the execution and the burst are not of the same compilation")
        if not self._one.acquire(blocking=False):
            raise bad_state("the burst is computing another execution")
        try:
            execution.compute(self.execute)
        finally:
            self._one.release()

    def execute(
        self, number: int, request: Request, tokens: list[int], config: ExecutionConfig, deadline_ns: int
    ) -> ExecutionResult:
        """Run step ``number`` of the compilation."""
        burst = self._bursts[number]
        return burst.executeSynchronouslyWithConfig(request, tokens, config, deadline_ns)  # type: ignore[no-any-return]

    def forget(self, serial: int) -> None:
        """Drop the mapping of a freed memory object."""
        for burst in self._bursts:
            burst.releaseMemoryResource(serial)


def forget_memory(memory: AnyMemory) -> None:
    """Notify every burst that a memory object was freed."""
    if isinstance(memory, SharedMemory):
        # A copy, because the collector may take a burst out of the set at any time.
        for burst in list(_live):
            burst.forget(memory.serial)
