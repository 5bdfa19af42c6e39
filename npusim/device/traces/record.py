"""Recording: a bus that writes down what passes, and a carrier that writes down interrupts."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from importlib.metadata import version
from itertools import count
from typing import BinaryIO

import numpy as np

from npusim.device.bus import Bus, Carrier
from npusim.device.npu import INTERFACE_VERSION, NpuDevice
from npusim.device.traces.format import WORKS, Access, Kind, Writer, digest
from npusim.errors import UsageError
from npusim.isa.base import ByteArray

VARIABLE = "NPUSIM_BUS_TRACE"
_devices = count(1)


class Tap:
    """Sits between a device and its carrier, and tells of each interrupt message."""

    def __init__(self, carrier: Carrier, tell: Callable[[int], None]) -> None:
        self._carrier = carrier
        self._tell = tell
        self.pinned = carrier.pinned

    def irq(self, vector: int) -> None:
        self._tell(vector)
        self._carrier.irq(vector)

    def level(self) -> None:
        self._carrier.level()

    def withdraw_irqs(self) -> None:
        self._carrier.withdraw_irqs()

    def dma_read(self, address: int, size: int) -> bytes:
        return self._carrier.dma_read(address, size)

    def dma_write(self, address: int, data: bytes) -> None:
        self._carrier.dma_write(address, data)


class TracedBus(Bus):
    """The bus of a device, every access to which is written to a file; :meth:`close` ends it. No time passes for it,
    and what it carries is the same.

    It does no rounds in one go (:meth:`Bus.repeat`): these would be accesses that nobody made. Raises OSError.
    """

    def __init__(self, device: NpuDevice, path: str | os.PathLike[str]) -> None:
        self._bus = device.bus
        self._device = device
        self._clock = device.machine.clock
        self.path = os.fspath(path)
        adversary = device.machine.adversary
        self._file = open(path, "wb")  # noqa: SIM115 - open as long as the device is
        self._writer = Writer(
            self._file,
            {
                "config": device.config.to_table(),
                "fingerprint": device.config.fingerprint(),
                "npusim": version("npusim"),
                "interface": INTERFACE_VERSION,
                "adversary": adversary.seed if adversary is not None else None,
                "faults": device.faults.to_table(),
            },
        )
        self._last_ps = self._clock.now
        device.connect(Tap(device.carrier, self._interrupted))
        # Also when nobody closes it: at the latest at the end of the process.
        self._end = weakref.finalize(self, _end, self._writer, self._file)

    @classmethod
    def wanted(cls, device: NpuDevice, path: str | os.PathLike[str] | None) -> TracedBus | None:
        """That which a path asks for or, if it is None, ``$NPUSIM_BUS_TRACE``; of a process with several devices the
        second writes ``name-2.npt``, and so on. Raises UsageError for a file that cannot be written."""
        if path is None:
            path = os.environ.get(VARIABLE) or None
            if path is None:
                return None
            number = next(_devices)
            if number > 1:
                stem, suffix = os.path.splitext(path)
                path = f"{stem}-{number}{suffix}"
        try:
            return cls(device, path)
        except OSError as error:
            raise UsageError(f"bus trace {os.fspath(path)}: {error.strerror or error}") from None

    def close(self) -> None:
        """The trace is complete; what passes from here on is carried and not written."""
        self._end()

    def read(self, bar: int, offset: int, size: int) -> int:
        began = self._clock.now
        value = self._bus.read(bar, offset, size)
        self._write(Kind.READ, began, bar, size, offset, value)
        return value

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        began = self._clock.now
        self._bus.write(bar, offset, size, value)
        self._write(Kind.WRITE, began, bar, size, offset, value)

    def read_memory(self, address: int, size: int) -> bytearray:
        began = self._clock.now
        data = self._bus.read_memory(address, size)
        if not self._file.closed:
            self._write(Kind.READ_MEMORY, began, address, size, digest(data))
        return data

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        began = self._clock.now
        self._bus.write_memory(address, data)
        if not self._file.closed:
            self._write(Kind.WRITE_MEMORY, began, address, self._writer.contents(data))

    def fill_memory(self, address: int, size: int, fill: Callable[[ByteArray], None]) -> None:
        data = np.empty(size, np.uint8)
        fill(data)
        self.write_memory(address, data.data)

    def wait_irq(self, timeout_ps: int) -> int:
        began = self._clock.now
        vectors = self._bus.wait_irq(timeout_ps)
        self._write(Kind.WAIT, began, timeout_ps, vectors)
        return vectors

    def host_work(self, kind: str) -> None:
        began = self._clock.now
        self._bus.host_work(kind)
        self._write(Kind.WORK, began, WORKS.index(kind))

    def note(self, what: str, address: int = 0, size: int = 0) -> None:
        self._bus.note(what, address, size)

    def _interrupted(self, vector: int) -> None:
        if not self._file.closed:
            self._writer.access(Access(Kind.INTERRUPT, self._clock.now - self._last_ps, 0, (vector,)))

    def _write(self, kind: Kind, began: int, *numbers: int) -> None:
        if not self._file.closed:
            self._writer.access(Access(kind, began - self._last_ps, self._clock.now - began, numbers))
            self._last_ps = self._clock.now


def _end(writer: Writer, file: BinaryIO) -> None:
    with file:
        writer.end()
