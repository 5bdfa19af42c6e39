"""User Mode Linux on the simulated device: start a kernel, serve it, and build its initial file system."""

from npusim.linux.initrd import Initrd
from npusim.linux.kernel import KernelOutcome, find_kernel, run

__all__ = ["Initrd", "KernelOutcome", "find_kernel", "run"]
