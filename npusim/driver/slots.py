"""The device memory that a run of a program needs besides code and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npusim.device.bus import Bus
from npusim.driver import header
from npusim.driver.alloc import Allocator, block_bytes
from npusim.driver.jobs import LoadedProgram, Slot
from npusim.driver.rings import LOG_BYTES
from npusim.program import CONSTANTS, FIRST_IO


class SlotFactory:
    """Makes slots and fills them. A region that the caller binds to an address of his own takes no memory here."""

    def __init__(self, bus: Bus, memory: Allocator) -> None:
        self._bus = bus
        self._memory = memory

    def take(self, loaded: LoadedProgram, bound: Mapping[int, int]) -> Slot:
        """An idle slot, or a new one, with memory for all regions but the ``bound`` ones. Raises DeviceMemoryError."""
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
        """A new slot. Raises DeviceMemoryError; then nothing was taken."""
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
        """Allocate the regions that the caller does not give."""
        program = loaded.program
        for region in range(CONSTANTS + 1, len(loaded.sizes)):
            if region not in bound and region not in slot.own:
                names = [item.name for item in (*program.inputs, *program.outputs) if item.region == region]
                use = "scratch" if region < FIRST_IO else f"tensor {names[-1]!r}" if names else f"region {region}"
                slot.own[region] = self._memory.allocate(loaded.sizes[region], f"program {program.name!r}: {use}")

    def write_table(self, loaded: LoadedProgram, slot: Slot, bound: Mapping[int, int]) -> dict[int, int]:
        """Tell the device where the regions are; their addresses."""
        # Nearly every run uses its slot's own regions: then the table in device memory is what it was.
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
        """Device memory that a slot takes for a program with regions of these sizes, none of them bound."""
        fixed = (len(sizes) * header.REGION_ROW.size, header.COMPLETION.size, LOG_BYTES)
        return sum(map(block_bytes, (*fixed, *sizes[CONSTANTS + 1 :])))
