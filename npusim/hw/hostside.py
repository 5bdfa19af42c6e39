"""Keys of the host interface: interrupts, host memory, power states, firmware."""

from __future__ import annotations

import dataclasses

from npusim.hw.keys import Choice, Count, Flag, key
from npusim.hw.sections import BANDWIDTH, TIME
from npusim.units import bytes_to_ps


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PciConfig:
    """A PCI Express function. Absent: one interrupt vector, no access to host memory, resets in no time.

    Sources of the defaults. A read of 64 bytes of host memory: 547 ns, the median that Neugebauer et al. measured on a
    Xeon E5 v3 ("Understanding PCIe performance for end host networking", SIGCOMM 2018). A posted write, such as an
    interrupt message, goes one way: taken as half of that. Bandwidth: eight lanes of 8 GT/s in 128b/130b are
    7.877 GB/s, of which packets of 256 bytes with 24 bytes of header and framing leave 7.2 GB/s (PCI Express Base
    Specification 3.0). Resets: the longest that the specification allows, 100 ms (6.6.2) and 10 ms from D3hot to D0
    (5.3.1.4).
    """

    vectors: int = key(Count(1, 16), "interrupt vectors that a driver can assign to rings, faults and copies", 5)
    interrupts: str = key(
        Choice(("msix", "msi", "intx")),
        "best interrupt type of the function; it also offers the types after it in this list",
        "msix",
    )
    moderation: bool = key(Flag(), "interrupt moderation: a driver can delay and coalesce messages", True)
    address_bits: int = key(Count(0, 63), "width of host addresses in bits; 0 = no access to host memory", 48)
    bandwidth: int = key(BANDWIDTH, "bandwidth of host memory, in each direction", 7_200_000_000)
    read_latency_ps: int = key(TIME, "from a read of host memory to its first data", 547_000)
    write_latency_ps: int = key(TIME, "a posted write to the host, such as an interrupt message", 273_500)
    power_states: bool = key(Flag(), "the function has the power state D3hot besides D0", True)
    resume_ps: int = key(TIME, "from D3hot until the function answers again", 10 * 10**9)
    function_reset: bool = key(Flag(), "the function has a function level reset", True)
    reset_ps: int = key(TIME, "from a function level reset until the function answers again", 100 * 10**9)

    def flow_ps(self, nbytes: int) -> int:
        """Picoseconds of ``nbytes`` bytes on the link, without a latency."""
        return bytes_to_ps(nbytes, self.bandwidth)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FirmwareConfig:
    """The device accepts jobs once a firmware image has been started. Absent: it accepts jobs from power-on."""

    major: int = key(Count(0, 0xFFFF), "major version of the firmware; images of another are refused", 1)
    minor: int = key(Count(0, 0xFFFF), "lowest minor version of the firmware", 0)
    boot_ps: int = key(TIME, "from the start of a valid image until jobs are accepted; an assumption", 10**9)
