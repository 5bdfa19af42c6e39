"""A device that is on: its executor, and what graphs have taken of it."""

from __future__ import annotations

import threading

from npusim.driver.alloc import ALIGNMENT
from npusim.executor import Executor
from npusim.hw.config import Config
from npusim.program import CONSTANTS, Program
from npusim.units import ceil_div

from .status import OnnxifiError, Status

QUEUE_LIMIT = 1 << 20
"""Runs that may wait: more than clients can have events for."""
MAX_GRAPHS = 1024
"""Graphs that a device has room for: its driver's table of contexts."""
RUN_OVERHEAD = 16 * 1024
"""Device memory that a run needs besides its tensors and intermediate values: tables, log, what alignment takes."""


class Power:
    """From switching the device on to losing it. Whoever holds this keeps the device on.

    Programs of graphs stay on the device. Besides them there must be room for a run of any of them, so that what
    onnxInitGraph and onnxSetGraphIO accept can also run: runs take turns.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.executor = Executor(config, queue_limit=QUEUE_LIMIT)
        self._free = self.executor.free_bytes
        self._lock = threading.Lock()
        self._programs: dict[Program, tuple[int, int]] = {}
        self._graphs = 0

    @property
    def lost(self) -> bool:
        """Whether the device is gone."""
        return self.executor.status == "OFFLINE"

    def take_graph(self) -> None:
        """Count one more graph. Raises NO_DEVICE_RESOURCES if there are as many as there may be."""
        with self._lock:
            if self._graphs >= MAX_GRAPHS:
                raise OnnxifiError(
                    Status.NO_DEVICE_RESOURCES,
                    f"{self.config.name} has {self._graphs} graphs; the limit is {MAX_GRAPHS}",
                )
            self._graphs += 1

    def give_graph(self) -> None:
        with self._lock:
            self._graphs -= 1

    def load(self, program: Program) -> None:
        """Put a program with its constants onto the device, to stay. Raises NO_DEVICE_MEMORY."""
        with self._lock:
            taken = {**self._programs, program: (_resident_bytes(program), _run_bytes(program))}
            needed = sum(resident for resident, _ in taken.values()) + max(run for _, run in taken.values())
            if needed > self._free:
                raise OnnxifiError(
                    Status.NO_DEVICE_MEMORY,
                    f"{program.name}: {len(taken)} programs and a run need {needed} bytes of device memory, "
                    f"{self.config.name} has {self._free}",
                )
            self.executor.pin(program)
            self._programs = taken

    def unload(self, program: Program) -> None:
        """Give a program's memory back, when the runs of it that are under way have ended."""
        with self._lock:
            self.executor.unload(program)
            self._programs.pop(program, None)


def _rounded(nbytes: int) -> int:
    return max(1, ceil_div(nbytes, ALIGNMENT)) * ALIGNMENT


def _resident_bytes(program: Program) -> int:
    return _rounded(len(program.code)) + _rounded(max(program.region_bytes[CONSTANTS], program.constants.nbytes))


def _run_bytes(program: Program) -> int:
    return RUN_OVERHEAD + sum(_rounded(nbytes) for nbytes in program.region_bytes[CONSTANTS + 1 :])
