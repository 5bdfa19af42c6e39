"""Recording of bus traces: a bus that records accesses, and a transport that records interrupts."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from itertools import count
from typing import Any, BinaryIO

import numpy as np

from npusim.device.bus import Bus, Transport
from npusim.device.npu import INTERFACE_VERSION, NpuDevice
from npusim.device.traces.format import WORKS, RecordKind, TraceRecord, Writer, digest
from npusim.errors import UsageError
from npusim.isa.base import ByteArray

VARIABLE = "NPUSIM_BUS_TRACE"
_devices = count(1)


class InterruptTap:
    """Forwards and records interrupt messages."""

    def __init__(self, transport: Transport, tell: Callable[[int], None]) -> None:
        self._transport = transport
        self._tell = tell
        self.pinned = transport.pinned

    def irq(self, vector: int) -> None:
        self._tell(vector)
        self._transport.irq(vector)

    def level(self) -> None:
        self._transport.level()

    def cancel_irqs(self) -> None:
        self._transport.cancel_irqs()

    def dma_read(self, address: int, size: int) -> bytes:
        return self._transport.dma_read(address, size)

    def dma_write(self, address: int, data: bytes) -> None:
        self._transport.dma_write(address, data)


class Recorder:
    """Writes records with times to a file, which is complete after :meth:`close` or when this object is deleted.

    ``head``: JSON values besides the device. Raises OSError.
    """

    def __init__(self, device: NpuDevice, path: str | os.PathLike[str], head: Mapping[str, Any]) -> None:
        self._clock = device.machine.clock
        self._file = open(path, "wb")  # noqa: SIM115 - open as long as the device is
        adversary = device.machine.adversary
        self._writer = Writer(
            self._file,
            {
                "config": device.config.to_table(),
                "fingerprint": device.config.fingerprint(),
                "npusim": version("npusim"),
                "interface": INTERFACE_VERSION,
                "adversary": adversary.seed if adversary is not None else None,
                "faults": device.faults.to_table(),
                **head,
            },
        )
        self._last_ps = self._clock.now
        self._end = weakref.finalize(self, _end, self._writer, self._file)

    @property
    def open(self) -> bool:
        """Whether records are still written."""
        return not self._file.closed

    def access(self, kind: RecordKind, began: int, *numbers: int) -> None:
        """Record an access of software that began at ``began`` and ends now."""
        if not self._file.closed:
            self._writer.access(TraceRecord(kind, began - self._last_ps, self._clock.now - began, numbers))
            self._last_ps = self._clock.now

    def event(self, kind: RecordKind, *numbers: int) -> None:
        """Record an action of the device."""
        if not self._file.closed:
            self._writer.access(TraceRecord(kind, self._clock.now - self._last_ps, 0, numbers))

    def contents(self, data: bytes | bytearray | memoryview) -> int:
        """The index of these bytes, stored once."""
        return self._writer.contents(data) if self.open else 0

    def close(self) -> None:
        """Stop recording."""
        self.access(RecordKind.PASS, self._clock.now)
        self._end()


def wanted_path(path: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """``path`` or, if it is None, ``$NPUSIM_BUS_TRACE``; the second device of a process writes ``name-2.npt``, and so
    on."""
    if path is None:
        path = os.environ.get(VARIABLE) or None
        number = next(_devices) if path is not None else 1
        if path is not None and number > 1:
            stem, suffix = os.path.splitext(path)
            path = f"{stem}-{number}{suffix}"
    return path


def unwritable(path: str | os.PathLike[str], error: OSError) -> UsageError:
    """The error for a file that cannot be written."""
    return UsageError(f"bus trace {os.fspath(path)}: {error.strerror or error}")


class TracedBus(Bus):
    """The bus of a device with all accesses recorded in a file, until :meth:`close`. Times and data do not change.

    It does not support :meth:`Bus.repeat`, because repeated accesses could not be recorded. Raises OSError.
    """

    def __init__(self, device: NpuDevice, path: str | os.PathLike[str]) -> None:
        self._bus = device.bus
        self._clock = device.machine.clock
        self._recorder = Recorder(device, path, {"seam": "bus"})
        device.connect(InterruptTap(device.transport, partial(self._recorder.event, RecordKind.INTERRUPT)))

    @classmethod
    def wanted(cls, device: NpuDevice, path: str | os.PathLike[str] | None) -> TracedBus | None:
        """The bus for :func:`wanted_path`. Raises UsageError for a file that cannot be written."""
        found = wanted_path(path)
        if found is None:
            return None
        try:
            return cls(device, found)
        except OSError as error:
            raise unwritable(found, error) from None

    def close(self) -> None:
        """Complete the trace; later accesses are not recorded."""
        self._recorder.close()

    def read(self, bar: int, offset: int, size: int) -> int:
        began = self._clock.now
        value = self._bus.read(bar, offset, size)
        self._recorder.access(RecordKind.READ, began, bar, size, offset, value)
        return value

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        began = self._clock.now
        self._bus.write(bar, offset, size, value)
        self._recorder.access(RecordKind.WRITE, began, bar, size, offset, value)

    def read_memory(self, address: int, size: int) -> bytearray:
        began = self._clock.now
        data = self._bus.read_memory(address, size)
        if self._recorder.open:
            self._recorder.access(RecordKind.READ_MEMORY, began, address, size, digest(data))
        return data

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        began = self._clock.now
        self._bus.write_memory(address, data)
        self._recorder.access(RecordKind.WRITE_MEMORY, began, address, self._recorder.contents(data))

    def fill_memory(self, address: int, size: int, fill: Callable[[ByteArray], None]) -> None:
        data = np.empty(size, np.uint8)
        fill(data)
        self.write_memory(address, data.data)

    def wait_irq(self, timeout_ps: int) -> int:
        began = self._clock.now
        vectors = self._bus.wait_irq(timeout_ps)
        self._recorder.access(RecordKind.WAIT, began, timeout_ps, vectors)
        return vectors

    def now_ps(self) -> int:
        return self._clock.now

    def quiet_ps(self) -> int | None:
        return self._bus.quiet_ps()

    def host_work(self, kind: str) -> None:
        began = self._clock.now
        self._bus.host_work(kind)
        self._recorder.access(RecordKind.WORK, began, WORKS.index(kind))

    def note(self, what: str, address: int = 0, size: int = 0) -> None:
        self._bus.note(what, address, size)


def _end(writer: Writer, file: BinaryIO) -> None:
    with file:
        writer.end()
