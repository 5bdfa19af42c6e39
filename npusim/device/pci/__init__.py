"""The device as a PCI Express function: configuration space, base address registers, MSI, MSI-X, INTx, reset, power."""

from npusim.device.bus import DmaError
from npusim.device.pci.function import HostSide, PciFunction
from npusim.device.pci.host import HostWindow, PciHost
from npusim.device.pci.space import Bar

__all__ = ["Bar", "DmaError", "HostSide", "HostWindow", "PciFunction", "PciHost"]
