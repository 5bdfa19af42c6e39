"""The devices behind the backend IDs: powered on with the first backend, and off when nothing uses them any more."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence

from npusim.hw.config import Config
from npusim.runtime import Executor

from .power import Power
from .status import OnnxifiError, Status

_log = logging.getLogger("npusim.onnxifi")


class Device:
    """One configured device. ``number`` is its index in the list of backends."""

    def __init__(self, number: int, config: Config) -> None:
        self.number = number
        self.config = config
        self.present = True
        self._lock = threading.Lock()
        self._power: weakref.ref[Power] | None = None

    def power(self) -> Power:
        """Return the device, powered on. Raises BACKEND_UNAVAILABLE if it is unplugged."""
        with self._lock:
            if not self.present:
                raise OnnxifiError(Status.BACKEND_UNAVAILABLE, f"{self.config.name} is unplugged")
            known = self._live()
            # Old backends still hold the unplugged device; new ones get a working one.
            if known is None or known.lost:
                known = Power(self.config)
                self._power = weakref.ref(known)
            return known

    def live_executor(self) -> Executor | None:
        """Return the executor if the device is on, to inject faults."""
        with self._lock:
            power = self._live()
        return None if power is None else power.executor

    def unplug(self) -> None:
        """Remove the device: its jobs end with an error, and everything created on it is lost."""
        with self._lock:
            self.present = False
            power = self._live()
            self._power = None
        if power is not None:
            # Outside the lock: jobs end here, and their callbacks may request the device again.
            power.executor.unplug()
        _log.info("%s is unplugged", self.config.name)

    def plug(self) -> None:
        """Insert a device of the same description, with empty memory."""
        with self._lock:
            self.present = True
        _log.info("%s is plugged in", self.config.name)

    def _live(self) -> Power | None:
        return None if self._power is None else self._power()


def make_devices(configs: Sequence[Config]) -> tuple[Device, ...]:
    """Return a device for each description, in order."""
    return tuple(Device(number, config) for number, config in enumerate(configs))
