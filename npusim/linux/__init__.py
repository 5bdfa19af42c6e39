"""A Linux kernel on the simulated device: User Mode Linux started, served, and its files put together."""

from npusim.linux.initrd import Initrd
from npusim.linux.kernel import KernelOutcome, find_kernel, run

__all__ = ["Initrd", "KernelOutcome", "find_kernel", "run"]
