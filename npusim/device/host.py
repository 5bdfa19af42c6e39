"""The host's side of an in-process device: a bus that charges the time which the config names for each access."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from npusim.device.bus import Bus, RegisterModel
from npusim.hw.config import Config
from npusim.isa.base import ByteArray
from npusim.sim.clock import Clock
from npusim.sim.memory import AddressError, DeviceMemory
from npusim.units import bytes_to_ps

_log = logging.getLogger("npusim.device")


class HostBus(Bus):
    """Carries one device in this process. Not for several threads at once."""

    def __init__(self, config: Config, clock: Clock, memory: DeviceMemory, device: RegisterModel) -> None:
        self._host = config.host
        self._clock = clock
        self._memory = memory
        self._device = device
        self._pending = 0
        self._times = {"submit": config.host.submit_ps, "map": config.host.map_ps}
        self.connected = True
        latency, bandwidth = config.host.link_latency_ps, config.host.link_bandwidth
        self._copy_ps = lru_cache(64)(lambda size: latency + bytes_to_ps(size, bandwidth))

    def read(self, bar: int, offset: int, size: int) -> int:
        self._clock.advance(self._host.mmio_ps)
        return self._device.read(bar, offset, size)

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        self._clock.advance(self._host.mmio_ps)
        self._device.write(bar, offset, size, value)

    def read_memory(self, address: int, size: int) -> bytearray:
        self._clock.advance(self._copy_ps(size))
        if self.connected:
            try:
                return bytearray(self._memory.slice(address, size))
            except AddressError as fault:
                _log.warning("bulk read: %s", fault.explanation)
        return bytearray(b"\xff") * size

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        source = np.frombuffer(data, np.uint8)
        self._clock.advance(self._copy_ps(source.size))
        if self.connected:
            try:
                self._memory.slice(address, source.size)[:] = source
            except AddressError as fault:
                _log.warning("bulk write: %s", fault.explanation)

    def fill_memory(self, address: int, size: int, fill: Callable[[ByteArray], None]) -> None:
        self._clock.advance(self._copy_ps(size))
        if self.connected:
            try:
                fill(self._memory.slice(address, size))
            except AddressError as fault:
                _log.warning("bulk write: %s", fault.explanation)

    def wait_irq(self, timeout_ps: int) -> int:
        if not self._clock.run_until(self._came, timeout_ps):
            return 0
        self._clock.advance(self._host.irq_ps)
        vectors, self._pending = self._pending, 0
        return vectors

    def host_work(self, kind: str) -> None:
        if kind not in self._times:
            raise ValueError(f"kind of host work must be one of {', '.join(self._times)}, got {kind!r}")
        self._clock.advance(self._times[kind])

    def irq(self, vector: int) -> None:
        """Deliver an interrupt message."""
        self._pending |= 1 << vector

    def _came(self) -> bool:
        return self._pending != 0
