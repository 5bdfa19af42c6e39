"""The device as software meets it: registers, command ring, interrupts, faults."""

from npusim.device.npu import NpuDevice

__all__ = ["NpuDevice"]
