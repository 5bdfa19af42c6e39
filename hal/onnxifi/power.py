"""A powered device: its executor, and the resources of its graphs."""

from __future__ import annotations

import threading

from npusim.faults import faults_asked
from npusim.hw.config import Config
from npusim.runtime import Executor

from .status import OnnxifiError, Status

QUEUE_LIMIT = 1 << 20
"""Most waiting runs: more than clients can have events for."""
MAX_GRAPHS = 1024
"""Most graphs per device: the size of its driver's context table."""


class Power:
    """One power cycle of a device. A reference keeps the device on.

    Programs of graphs stay on the device. There must also be room for one run of any of them, so that accepted graphs
    can run. Runs are executed one at a time.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.executor = Executor(config, faults=faults_asked(), queue_limit=QUEUE_LIMIT)
        self._lock = threading.Lock()
        self._graphs = 0

    @property
    def lost(self) -> bool:
        """Whether the device has disappeared."""
        return self.executor.status == "OFFLINE"

    def take_graph(self) -> None:
        """Count one more graph. Raises NO_DEVICE_RESOURCES at the limit."""
        with self._lock:
            if self._graphs >= MAX_GRAPHS:
                raise OnnxifiError(
                    Status.NO_DEVICE_RESOURCES,
                    f"{self.config.name} has {self._graphs} graphs; the limit is {MAX_GRAPHS}",
                )
            self._graphs += 1

    def give_graph(self) -> None:
        """Count one graph less; the last user powers the device off."""
        with self._lock:
            self._graphs -= 1
