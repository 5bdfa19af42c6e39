"""A device driven directly through its registers as docs/device.md describes, without a driver."""

from __future__ import annotations

from collections.abc import Callable

from npusim.device.bus import BAR_REGISTERS, Bus
from npusim.device.npu import NpuDevice
from npusim.device.registers import BY_NAME, RINGS
from npusim.device.ring import COMPLETION, ENTRY, ENTRY_MAGIC, REGION_ROW, Completion, RingEntry
from npusim.hw.config import Config, load_config
from npusim.program import Program
from npusim.timeline import Timeline
from tests.support.programs.streams import QUICK_HOST

TINY = load_config("tiny")
QUICK = TINY.with_(**QUICK_HOST)
"""Register accesses take no time, so jobs arrive exactly when a test says."""
ENTRIES = 8
LOG_BYTES = 256
SECOND = 10**12


class BareDevice:
    """Registers by name, rings in DRAM, and device memory that is allocated and never freed."""

    def __init__(
        self,
        config: Config = QUICK,
        transport: Callable[[NpuDevice], Bus] | None = None,
        *,
        device: NpuDevice | None = None,
        bus: Bus | None = None,
    ) -> None:
        self.device = device or NpuDevice(config)
        self.bus = bus or (transport(self.device) if transport else self.device.bus)
        self.records: dict[int, Timeline] = {}
        self.device.listener = self.records.__setitem__
        self._free = 1 << 20
        self._bases = {ring: self.take(ENTRIES * ENTRY.size) for ring in RINGS}
        self._seqno = 0
        self.set_up()

    def set_up(self) -> None:
        """Program the ring addresses, as after a reset."""
        self._tails = dict.fromkeys(RINGS, 0)
        for ring, base in self._bases.items():
            self[f"{ring}_BASE_LO"] = base
            self[f"{ring}_SIZE"] = ENTRIES
        self["INT_MASK"] = 3

    def __getitem__(self, register: str) -> int:
        return self.bus.read(BAR_REGISTERS, BY_NAME[register].offset, 4)

    def __setitem__(self, register: str, value: int) -> None:
        self.bus.write(BAR_REGISTERS, BY_NAME[register].offset, 4, value)

    @property
    def now_ps(self) -> int:
        return self.device.now_ps

    def advance(self, ps: int) -> None:
        self.device.machine.clock.advance(ps)

    def advance_to_end(self) -> None:
        """Advance time until a bit of INT_STATUS is set."""
        offset = BY_NAME["INT_STATUS"].offset
        assert self.device.machine.clock.run_until(lambda: self.device.read(BAR_REGISTERS, offset, 4), SECOND)

    def take(self, size: int) -> int:
        """Allocate device memory and return its address."""
        address, self._free = self._free, self._free + -(-size // 64) * 64
        return address

    def store(self, data: bytes) -> int:
        """Copy data to new device memory and return its address."""
        address = self.take(len(data))
        self.bus.write_memory(address, data)
        return address

    def put(self, ring: str, program: Program, **changes: int) -> RingEntry:
        """Write a job to a ring and update TAIL without ringing the doorbell. ``changes`` replaces fields of the
        entry."""
        self._seqno += 1
        table = b"".join(REGION_ROW.pack(self.take(size), size) for size in program.region_bytes)
        entry = RingEntry(
            ENTRY_MAGIC, 0, self.store(program.code), len(program.code), len(program.region_bytes), self.store(table),
            self._seqno, self.take(COMPLETION.size), self.take(LOG_BYTES), LOG_BYTES,
        )._replace(**changes)  # fmt: skip
        self.bus.write_memory(self._bases[ring] + self._tails[ring] % ENTRIES * ENTRY.size, ENTRY.pack(*entry))
        self._tails[ring] += 1
        self[f"{ring}_TAIL"] = self._tails[ring]
        return entry

    def ring(self, ring: str) -> None:
        self[f"{ring}_DOORBELL"] = 1

    def submit(self, ring: str, program: Program, **changes: int) -> RingEntry:
        """Write a job to a ring and ring its doorbell."""
        entry = self.put(ring, program, **changes)
        self.ring(ring)
        return entry

    def completion(self, entry: RingEntry) -> Completion:
        return Completion(*COMPLETION.unpack(self.bus.read_memory(entry.completion, COMPLETION.size)))

    def text(self, entry: RingEntry) -> str:
        """Return the fault text that the device wrote to the entry's log buffer."""
        return bytes(self.bus.read_memory(entry.log, LOG_BYTES)).split(b"\0", 1)[0].decode()

    def wait(self) -> int:
        """Wait for an interrupt, clear it, and return its bits of INT_STATUS."""
        assert self.bus.wait_irq(SECOND) == 1
        bits = self["INT_STATUS"]
        self["INT_STATUS"] = bits
        return bits
