"""Access of the device to data structures of software, in DRAM or in host memory."""

from __future__ import annotations

from collections.abc import Callable

from npusim.device.bus import DmaError, Transport
from npusim.device.ring import HOST
from npusim.hw.hostside import PciConfig
from npusim.sim.machine import Machine
from npusim.sim.memory import AddressError
from npusim.timeline import DeviceFault, FaultCode


class HostError(AddressError):
    """A failed access to host memory. ``address``: bus address."""


class ControlPort:
    """Access to control structures and copies in DRAM only."""

    def __init__(self, machine: Machine) -> None:
        self._control_ps = machine.control_ps
        # Bound methods, because each job calls them several times.
        self.load: Callable[[int, int], bytes] = machine.memory.load
        """Read bytes at an address. Raises AddressError."""
        self.store: Callable[[int, bytes], None] = machine.memory.store
        """Write bytes at an address. Raises AddressError."""

    def read_ps(self, address: int, size: int) -> int:
        """The time of a read in ps."""
        return self._control_ps(size)

    def write_ps(self, address: int, size: int) -> int:
        """The time in ps until a write has arrived."""
        return self._control_ps(size)


class HostPort(ControlPort):
    """Access to DRAM, and to host memory for addresses with the bit HOST."""

    def __init__(self, machine: Machine, pci: PciConfig, transport: Callable[[], Transport]) -> None:
        super().__init__(machine)
        self._pci = pci
        self._transport = transport
        self._near_load, self._near_store = self.load, self.store
        self.load, self.store = self._far_load, self._far_store

    def _far_load(self, address: int, size: int) -> bytes:
        if not address & HOST:
            return self._near_load(address, size)
        address = self._checked(address, size)
        try:
            data = self._transport().dma_read(address, size)
        except DmaError as error:
            raise _fault(error) from None
        if len(data) != size:
            raise HostError(address, f"a read of {size} bytes at {address:#x} has brought {len(data)}")
        return data

    def _far_store(self, address: int, data: bytes) -> None:
        if not address & HOST:
            self._near_store(address, data)
            return
        address = self._checked(address, len(data))
        try:
            self._transport().dma_write(address, data)
        except DmaError as error:
            raise _fault(error) from None

    def read_ps(self, address: int, size: int) -> int:
        if address & HOST:
            return self._pci.read_latency_ps + self._pci.flow_ps(size)
        return super().read_ps(address, size)

    def write_ps(self, address: int, size: int) -> int:
        if address & HOST:
            return self._pci.write_latency_ps + self._pci.flow_ps(size)
        return super().write_ps(address, size)

    def _checked(self, address: int, size: int) -> int:
        """The bus address of an access. Raises HostError."""
        address &= ~HOST
        if address + size > 1 << self._pci.address_bits:
            raise HostError(
                address, f"{size} bytes of host memory at {address:#x}: the device drives {self._pci.address_bits} bits"
            )
        return address


def fault_of(error: AddressError, what: str) -> DeviceFault:
    """The fault for a failed access."""
    code = FaultCode.HOST if isinstance(error, HostError) else FaultCode.ADDRESS
    return DeviceFault(code, error.address, f"{what}: {error.explanation}")


def _fault(error: DmaError) -> HostError:
    return HostError(error.address, f"host memory at {error.address:#x}: {error.explanation}")
