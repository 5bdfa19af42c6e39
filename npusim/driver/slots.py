"""The device memory of a run, in addition to code and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npusim.device.bus import Bus
from npusim.driver import header
from npusim.driver.alloc import Allocator, block_bytes
from npusim.driver.jobs import LoadedProgram, Slot
from npusim.driver.rings import LOG_BYTES
from npusim.program import CONSTANTS, FIRST_IO


class SlotFactory:
    """Creates and fills slots. A region that the caller binds to an address takes no memory of the slot."""

    def __init__(self, bus: Bus, memory: Allocator) -> None:
        self._bus = bus
        self._memory = memory

    def take(self, loaded: LoadedProgram, bound: Mapping[int, int]) -> Slot:
        """An idle or new slot with memory for all regions except ``bound``. Raises DeviceMemoryError."""
        if not loaded.idle:
            return self.make(loaded, bound)
        slot = loaded.idle.pop()
        try:
            self._fill(loaded, slot, bound)
        except BaseException:
            loaded.idle.append(slot)
            raise
        return slot

    def make(self, loaded: LoadedProgram, bound: Mapping[int, int]) -> Slot:
        """A new slot. Raises DeviceMemoryError; then nothing is allocated."""
        rows, blocks, slot = len(loaded.sizes) * header.REGION_ROW.size, list[int](), None
        fixed = (("region table", rows), ("completion record", header.COMPLETION.size), ("log", LOG_BYTES))
        try:
            for purpose, size in fixed:
                blocks.append(self._memory.allocate(size, f"program {loaded.program.name!r}: {purpose}"))
            slot = Slot(blocks[0], blocks[1], blocks[2])
            self._fill(loaded, slot, bound)
        except BaseException:
            self._memory.free_all(slot.blocks() if slot else blocks)
            raise
        return slot

    def _fill(self, loaded: LoadedProgram, slot: Slot, bound: Mapping[int, int]) -> None:
        """Allocate the regions that are not bound."""
        program = loaded.program
        for region in range(CONSTANTS + 1, len(loaded.sizes)):
            if region not in bound and region not in slot.own:
                names = [item.name for item in (*program.inputs, *program.outputs) if item.region == region]
                use = "scratch" if region < FIRST_IO else f"tensor {names[-1]!r}" if names else f"region {region}"
                slot.own[region] = self._memory.allocate(loaded.sizes[region], f"program {program.name!r}: {use}")

    def write_table(self, loaded: LoadedProgram, slot: Slot, bound: Mapping[int, int]) -> dict[int, int]:
        """Write the region table; returns the addresses of the regions."""
        # Most runs use the regions of their slot, so the table in device memory is unchanged.
        if not bound and slot.usual:
            return slot.usual
        addresses = {CONSTANTS: loaded.constants, **slot.own, **bound}
        table = [(addresses[region], size) for region, size in enumerate(loaded.sizes)]
        rows = b"".join(header.REGION_ROW.pack(address, size) for address, size in table)
        if rows != slot.rows:
            self._bus.write_memory(slot.table, rows)
            slot.rows = rows
        slot.usual = {} if bound else addresses
        return addresses

    @staticmethod
    def bytes_of(sizes: Sequence[int]) -> int:
        """Bytes of device memory of a slot with unbound regions of these sizes."""
        fixed = (len(sizes) * header.REGION_ROW.size, header.COMPLETION.size, LOG_BYTES)
        return sum(map(block_bytes, (*fixed, *sizes[CONSTANTS + 1 :])))
