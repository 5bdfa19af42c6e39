"""Recording at a PCI function: accesses of any transport, and actions of the device on the host."""

from __future__ import annotations

import os
from typing import Any

from npusim.device.bus import DmaError
from npusim.device.npu import NpuDevice
from npusim.device.pci import HostSide, PciFunction
from npusim.device.traces.format import RecordKind, digest
from npusim.device.traces.record import Recorder, unwritable, wanted_path


class TracedHost:
    """Records all that the device does on its host."""

    def __init__(self, host: HostSide, recorder: Recorder) -> None:
        self._host = host
        self._recorder = recorder

    def interrupt(self, vector: int) -> None:
        self._recorder.event(RecordKind.INTERRUPT, vector)
        self._host.interrupt(vector)

    def intx(self, asserted: bool) -> None:
        self._recorder.event(RecordKind.PIN, int(asserted))
        self._host.intx(asserted)

    def dma_read(self, address: int, size: int) -> bytes:
        try:
            data = self._host.dma_read(address, size)
        except DmaError as error:
            self._recorder.event(RecordKind.DMA_REFUSED, address, size, error.address)
            raise
        self._recorder.event(RecordKind.DMA_READ, address, self._recorder.contents(data))
        return data

    def dma_write(self, address: int, data: bytes) -> None:
        try:
            self._host.dma_write(address, data)
        except DmaError as error:
            self._recorder.event(RecordKind.DMA_REFUSED, address, len(data), error.address)
            raise
        self._recorder.event(RecordKind.DMA_WRITE, address, len(data), digest(data))


class TracedFunction(PciFunction):
    """A PCI function that records every access in a file. Raises OSError.

    Writes to DRAM that the host has mapped cannot be recorded, so transports do not offer the mapping while tracing.
    """

    traced = True

    def __init__(self, device: NpuDevice, host: HostSide, path: str | os.PathLike[str], **how: Any) -> None:
        self._recorder = Recorder(device, path, {"seam": "function", "function": how})
        super().__init__(device, TracedHost(host, self._recorder), **how)

    def close(self) -> None:
        """Complete the trace; later accesses are not recorded."""
        self._recorder.close()

    def config_read(self, offset: int, size: int) -> int:
        value = super().config_read(offset, size)
        self._config_access(RecordKind.CONFIG_READ, size, offset, value)
        return value

    def config_write(self, offset: int, size: int, value: int) -> None:
        super().config_write(offset, size, value)
        self._config_access(RecordKind.CONFIG_WRITE, size, offset, value)

    def restart(self) -> None:
        began = self._clock.now
        super().restart()
        self._recorder.access(RecordKind.RESTART, began)

    def _config_access(self, kind: RecordKind, size: int, offset: int, value: int) -> None:
        if size in (1, 2, 4, 8) and offset >= 0:  # otherwise it has no effect
            self._recorder.access(kind, self._clock.now, size, offset, value & (1 << 64) - 1)

    def read(self, bar: int, offset: int, size: int) -> int:
        value = super().read(bar, offset, size)
        self._access(RecordKind.READ, bar, size, offset, value)
        return value

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        super().write(bar, offset, size, value)
        self._access(RecordKind.WRITE, bar, size, offset, value & (1 << 64) - 1)

    def _access(self, kind: RecordKind, bar: int, size: int, offset: int, value: int) -> None:
        if size in (1, 2, 4, 8) and offset >= 0 and bar >= 0:
            self._recorder.access(kind, self._clock.now, bar, size, offset, value)

    def read_memory(self, offset: int, size: int) -> bytes:
        began = self._clock.now
        data = super().read_memory(offset, size)
        self._recorder.access(RecordKind.READ_MEMORY, began, offset, size, digest(data))
        return data

    def write_memory(self, offset: int, data: bytes) -> None:
        began = self._clock.now
        super().write_memory(offset, data)
        self._recorder.access(RecordKind.WRITE_MEMORY, began, offset, self._recorder.contents(data))


def function_of(device: NpuDevice, host: HostSide, **how: Any) -> PciFunction:
    """A function for a transport, with a trace if ``$NPUSIM_BUS_TRACE`` is set. Raises UsageError for a file that
    cannot be written."""
    path = wanted_path(None)
    if path is None:
        return PciFunction(device, host, **how)
    try:
        return TracedFunction(device, host, path, **how)
    except OSError as error:
        raise unwritable(path, error) from None
