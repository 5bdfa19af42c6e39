"""The device as software meets it: registers, command ring, interrupts, fault injection."""

from npusim.device.npu import NpuDevice

__all__ = ["NpuDevice"]
