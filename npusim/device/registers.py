"""The register map as a declaration, one line per register and per field, and the rules of access.

A misuse (reserved bits set, write to a read-only register, odd width or offset) has no effect. The first MISUSE_KEPT of
them are kept in ``RegisterFile.misuse``, and all are logged with the logger ``npusim.device``.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from npusim.sim.watch import Watcher

_log = logging.getLogger("npusim.device")

WIDTH = 4
"""Size of a register in bytes."""
ALL_ONES = 0xFFFF_FFFF
MISUSE_KEPT = 100


class FieldAccess(enum.Enum):
    """Access type of a register. The value is the term of a datasheet."""

    RO = "read only"
    RW = "read/write"
    WO = "write only"  # reads as 0
    W1C = "write 1 to clear"


@dataclass(frozen=True, slots=True)
class Field:
    """Bits [low, low + width) of a register; bits that belong to no field are reserved and read as 0."""

    name: str
    low: int
    width: int
    doc: str

    @property
    def mask(self) -> int:
        return ((1 << self.width) - 1) << self.low

    def of(self, value: int) -> int:
        """The value of the field in a register value."""
        return (value & self.mask) >> self.low


@dataclass(frozen=True, slots=True)
class Register:
    """One register of the map.

    ``on_write`` / ``on_read``: name of a side effect that the device provides. ``reset``: value after reset, None if it
    depends on the config. ``part``: the optional part of a device that has this register.
    """

    name: str
    offset: int
    access: FieldAccess
    fields: tuple[Field, ...]
    reset: int | None = 0
    on_write: str = ""
    on_read: str = ""
    part: str = ""

    @property
    def mask(self) -> int:
        """Mask of the bits that belong to fields."""
        return sum(field.mask for field in self.fields)


RO, RW, WO, W1C = FieldAccess.RO, FieldAccess.RW, FieldAccess.WO, FieldAccess.W1C


def _word(name: str, doc: str) -> tuple[Field, ...]:
    return (Field(name, 0, 32, doc),)


_INTERRUPTS = (
    Field("DONE", 0, 1, "a job has ended"),
    Field("FAULT", 1, 1, "the device or its copy engine is halted by a fault"),
    Field("COPY", 2, 1, "a copy with the flag RECORD has ended"),
)
_RING_DOORBELL = Field("RING", 0, 1, "latch TAIL of this ring and take its entries")

RINGS = ("LOW", "MEDIUM", "HIGH")
"""The priorities, one ring each, lowest first."""

# One bit per ring, so that 0 means no fault. With a ring number, 0 would mean LOW.
_FAULT_RINGS = tuple(Field(name, bit, 1, "the fault was in this ring") for bit, name in enumerate(RINGS))

COPY = "COPY"
"""The ring of copies between host memory and device DRAM."""

SOURCES = (*RINGS, "FAULT", COPY)
"""Interrupt sources. Each can have its own vector."""
_ROUTES = tuple(Field(name, 4 * place, 4, "vector of this source") for place, name in enumerate(SOURCES))


def _ring(name: str, offset: int) -> tuple[Register, ...]:
    """The registers of one ring. Their names begin with its priority."""
    return (
        Register(f"{name}_BASE_LO", offset, RW, (Field("ADDRESS", 6, 26, "address of the ring, low word"),)),
        Register(f"{name}_BASE_HI", offset + 0x04, RW, _word("ADDRESS", "high word")),
        Register(f"{name}_SIZE", offset + 0x08, RW, (Field("ENTRIES", 0, 17, "a power of two, 1 to 65536"),)),
        Register(f"{name}_HEAD", offset + 0x0C, RO, _word("COUNT", "entries that the device has finished")),
        Register(f"{name}_TAIL", offset + 0x10, RW, _word("COUNT", "entries that the driver has written")),
        Register(f"{name}_DOORBELL", offset + 0x14, WO, (_RING_DOORBELL,), on_write=f"{name}_doorbell"),
    )


def _part(part: str, registers: tuple[Register, ...]) -> Iterator[Register]:
    """Registers of devices that have an optional part."""
    return (dataclasses.replace(register, part=part) for register in registers)


_COPIES = (
    *_ring(COPY, 0x160),
    Register("COPY_FAULT_CODE", 0x178, RO, (Field("CODE", 0, 8, "0: none; else one of the fault codes"),)),
    Register("COPY_FAULT_ADDR_LO", 0x180, RO, _word("ADDRESS", "address of the fault, low word")),
    Register("COPY_FAULT_ADDR_HI", 0x184, RO, _word("ADDRESS", "high word")),
)  # fmt: skip

_FIRMWARE = (
    Register("FW_ADDR_LO", 0x190, RW, _word("ADDRESS", "address of the firmware image, low word")),
    Register("FW_ADDR_HI", 0x194, RW, _word("ADDRESS", "high word")),
    Register("FW_BYTES", 0x198, RW, _word("BYTES", "size of the image in bytes")),
    Register("FW_BOOT", 0x19C, WO, (Field("GO", 0, 1, "check that image and start it"),), on_write="fw_boot"),
    Register("FW_STATUS", 0x1A0, RO, (Field("STATE", 0, 4, "0 none, 1 booting, 2 running; others: an error"),)),
    Register("FW_VERSION", 0x1A4, RO, (Field("MINOR", 0, 16, "minor version of the running firmware"),
                                       Field("MAJOR", 16, 16, "major version of the running firmware"))),
)  # fmt: skip

REGISTERS: tuple[Register, ...] = (
    Register("ID", 0x000, RO, _word("MAGIC", "the letters N P U and 1"), 0x3155_504E),
    Register("VERSION", 0x004, RO, (Field("ISA", 0, 16, "version of the instruction set"),
                                    Field("INTERFACE", 16, 16, "version of this map and of the ring")), None),
    Register("CAP_UNITS", 0x010, RO, (Field("CORES", 0, 8, "cores"), Field("DMA", 8, 8, "DMA channels of a core"),
                                      Field("MATRIX", 16, 1, "cores have a matrix unit"),
                                      Field("VECTOR", 17, 1, "cores have a vector unit"),
                                      Field("SCALAR", 18, 1, "cores have a scalar unit")), None),
    Register("CAP_MATRIX", 0x014, RO, (Field("ROWS", 0, 16, "rows of the array"),
                                       Field("COLS", 16, 16, "columns of the array")), None),
    Register("CAP_VECTOR", 0x018, RO, _word("LANES", "lanes of the vector unit"), None),
    Register("CAP_SRAM_LO", 0x01C, RO, _word("BYTES", "SRAM bytes of a core, low word"), None),
    Register("CAP_SRAM_HI", 0x020, RO, _word("BYTES", "high word"), None),
    Register("CAP_ACC", 0x024, RO, _word("BYTES", "accumulator bytes of a core"), None),
    Register("CAP_DRAM_LO", 0x028, RO, _word("BYTES", "DRAM bytes, low word"), None),
    Register("CAP_DRAM_HI", 0x02C, RO, _word("BYTES", "high word"), None),
    Register("CAP_CLOCK", 0x030, RO, _word("KHZ", "the device's clock in kHz"), None),
    Register("CAP_QUEUE", 0x034, RO, _word("DEPTH", "commands that can wait at a unit"), None),
    Register("CAP_CONTEXT_LO", 0x038, RO, _word("BYTES", "size of the context area, low word"), None),
    Register("CAP_CONTEXT_HI", 0x03C, RO, _word("BYTES", "high word"), None),
    Register("CONTROL", 0x040, WO, (Field("RESET", 0, 1, "drop all jobs and reset the registers; memory is kept"),
                                    Field("CONTINUE", 1, 1, "after a fault: drop its job, continue with the others")),
             on_write="control"),
    Register("STATUS", 0x044, RO, (Field("READY", 0, 1, "accepts jobs"), Field("BUSY", 1, 1, "a job runs or is parked"),
                                   Field("FAULT", 2, 1, "halted by a fault, see FAULT_CODE and CONTROL"),
                                   Field("FIRMWARE", 3, 1, "waits for firmware, see FW_STATUS; accepts no jobs"),
                                   Field("COPY_FAULT", 4, 1, "copies halted by a fault, see COPY_FAULT_CODE")), None),
    Register("INT_STATUS", 0x048, W1C, _INTERRUPTS, on_write="int_status"),
    Register("INT_MASK", 0x04C, RW, _INTERRUPTS, on_write="int_mask"),
    Register("FAULT_CODE", 0x050, RO, (Field("CODE", 0, 8, "0: none; else one of the fault codes"),)),
    Register("FAULT_ADDR_LO", 0x054, RO, _word("ADDRESS", "address of the fault, low word")),
    Register("FAULT_ADDR_HI", 0x058, RO, _word("ADDRESS", "high word")),
    Register("FAULT_RING", 0x05C, RO, _FAULT_RINGS),
    Register("CONTEXT_BASE_LO", 0x060, RW, (Field("ADDRESS", 6, 26, "DRAM address of the context area, low word"),)),
    Register("CONTEXT_BASE_HI", 0x064, RW, _word("ADDRESS", "high word")),
    Register("PREEMPT", 0x068, RW, (Field("ENABLE", 0, 1, "enable preemption and latch CONTEXT_BASE; stays 0 if "
                                          "the context area does not fit"),),
             on_write="preempt"),
    Register("ABORT_SEQNO_LO", 0x070, RW, _word("SEQNO", "seqno of the job to abort, low word")),
    Register("ABORT_SEQNO_HI", 0x074, RW, _word("SEQNO", "high word")),
    Register("ABORT", 0x078, WO, (Field("GO", 0, 1, "abort that job, if it has begun"),), on_write="abort"),
    Register("CAP_HOST", 0x080, RO, (Field("ADDRESS_BITS", 0, 8, "bits of a host address; 0: no access to host memory "
                                           "and no copies"),
                                     Field("VECTORS", 8, 8, "interrupt vectors; 0: one vector and no INT_ROUTE"),
                                     Field("MODERATION", 16, 1, "has INT_MODERATION"),
                                     Field("FIRMWARE", 17, 1, "needs a firmware image")), None),
    Register("INT_ROUTE", 0x084, RW, _ROUTES, on_write="int_route", part="vectors"),
    Register("INT_MODERATION", 0x088, RW, (Field("INTERVAL", 0, 24, "minimum interval in ns between messages of a "
                                                 "vector, except faults; 0: no moderation"),
                                           Field("COUNT", 24, 8, "number of delayed messages that forces one; "
                                                 "0: no limit")), on_write="int_moderation", part="moderation"),
    Register("SEQNO_LO", 0x0A0, RO, _word("SEQNO", "seqno of the last successful job, low word")),
    Register("SEQNO_HI", 0x0A4, RO, _word("SEQNO", "high word")),
    Register("CYCLES_LO", 0x0B0, RO, _word("COUNT", "cycles since power-on, low word; a read latches the high word"),
             on_read="cycles"),
    Register("CYCLES_HI", 0x0B4, RO, _word("COUNT", "high word, latched when CYCLES_LO was read")),
    Register("ECC_CORRECTED", 0x0C0, RO, _word("COUNT", "corrected memory errors since the reset")),
    Register("ECC_UNCORRECTED", 0x0C4, RO, _word("COUNT", "uncorrectable memory errors since the reset")),
    Register("ECC_ADDR_LO", 0x0C8, RO, _word("ADDRESS", "address of the last error in its memory, low word")),
    Register("ECC_ADDR_HI", 0x0CC, RO, _word("ADDRESS", "high word")),
    Register("ECC_WHERE", 0x0D0, RO, (Field("MEMORY", 0, 2, "memory of the last error: 0 DRAM, 1 SRAM, 2 accumulators"),
                                      Field("CORE", 8, 8, "core of that SRAM or accumulators"))),
    Register("CLOCK", 0x0D4, RO, _word("KHZ", "current clock in kHz; less than CAP_CLOCK while throttled"), None),
    *_ring("LOW", 0x100),
    *_ring("MEDIUM", 0x120),
    *_ring("HIGH", 0x140),
    *_part("host", _COPIES),
    *_part("firmware", _FIRMWARE),
)  # fmt: skip

BY_NAME: Mapping[str, Register] = {register.name: register for register in REGISTERS}
_MASKS: Mapping[str, int] = {register.name: register.mask for register in REGISTERS}
PARTS = tuple(dict.fromkeys(register.part for register in REGISTERS if register.part))
"""Names of the optional parts, as used in ``Register.part``."""
SPACE_BYTES = 0x1000
"""Size of the register map in bytes."""


class RegisterFaults(Protocol):
    """Faults that change accesses to registers."""

    def read(self, register: str, value: int) -> int:
        """The value that software reads from a register that holds ``value``."""

    def loses(self, register: str, value: int) -> bool:
        """Whether a write is lost."""


class RegisterFile:
    """The values of the registers. ``effects``: functions by the names in ``on_write`` / ``on_read``.

    A write effect gets the value after the write. A read effect runs before the value is read. ``watchers`` are called
    for accesses that have reached a register. ``parts``: the names in PARTS that the device has.
    """

    def __init__(
        self,
        resets: Mapping[str, int],
        writes: Mapping[str, Callable[[int], None]],
        reads: Mapping[str, Callable[[], None]],
        watchers: Sequence[Watcher] = (),
        parts: Sequence[str] = PARTS,
    ) -> None:
        self._resets = {reg.name: resets[reg.name] if reg.reset is None else reg.reset for reg in REGISTERS}
        self._writes = writes
        self._reads = reads
        self._watchers = watchers
        self.breaks: RegisterFaults | None = None
        """Consulted for each access, while there are such faults."""
        self.parts = frozenset(parts)
        self._at = {register.offset: register for register in REGISTERS if register.part in ("", *parts)}
        self.values = dict(self._resets)
        """The values as the device sees them, by name. Use :meth:`set` to change one."""
        self.misuse: list[str] = []

    def reset(self) -> None:
        """Set every register to its value after power-on."""
        self.values.update(self._resets)

    def pretend(self, name: str, value: int) -> None:
        """Give a register another value and reset value."""
        self._resets[name] = value
        self.set(name, value)

    def get(self, name: str) -> int:
        """The value as the device sees it."""
        return self.values[name]

    def set(self, name: str, value: int) -> None:
        """Change a register from the side of the device."""
        self.values[name] = value & _MASKS[name]

    def get_pair(self, name: str) -> int:
        """The 64-bit value of registers ``name``_LO and ``name``_HI."""
        return self.values[name + "_HI"] << 32 | self.values[name + "_LO"]

    def set_pair(self, name: str, value: int) -> None:
        """Set registers ``name``_LO and ``name``_HI to the halves of a 64-bit value."""
        self.set(name + "_LO", value & ALL_ONES)
        self.set(name + "_HI", value >> 32 & ALL_ONES)

    def read(self, offset: int, size: int) -> int:
        """A read by software."""
        register = self._find("read", offset, size)
        if register is None:
            return 0
        if register.access is WO:
            self.complain(f"read of {register.name}, which is {register.access.value}")
            return 0
        if register.on_read:
            self._reads[register.on_read]()
        value = self.values[register.name]
        if self._watchers:
            if self.breaks is not None:
                value = self.breaks.read(register.name, value)
            for watcher in self._watchers[:]:
                watcher.register_read(register.name, value)
        return value

    def write(self, offset: int, size: int, value: int) -> None:
        """A write by software."""
        register = self._find("write", offset, size)
        if register is None:
            return
        if register.access is RO:
            self.complain(f"write of {value:#x} to {register.name}, which is {register.access.value}")
            return
        if self.breaks is not None and self.breaks.loses(register.name, value):
            return
        mask, given = _MASKS[register.name], value
        if value & ~mask:
            reserved = value & ~mask
            self.complain(f"write of {value:#x} to {register.name}: reserved bits {reserved:#x} are ignored")
            value &= mask
        if register.access is W1C:
            value = self.values[register.name] & ~value
        if register.access is not WO:
            self.values[register.name] = value
        if register.on_write:
            self._writes[register.on_write](value)
        if self._watchers:
            for watcher in self._watchers[:]:
                watcher.register_written(register.name, given)

    def _find(self, verb: str, offset: int, size: int) -> Register | None:
        register = self._at.get(offset)
        if size != WIDTH or offset % WIDTH:
            self.complain(f"{verb} of {size} bytes at {offset:#x}: registers are {WIDTH} bytes wide and aligned")
            return None
        if register is None:
            self.complain(f"{verb} at {offset:#x}: there is no register")
        return register

    def complain(self, problem: str) -> None:
        """Log a misuse by software."""
        _log.warning("%s", problem)
        for watcher in self._watchers[:]:
            watcher.misused(problem)
        if len(self.misuse) < MISUSE_KEPT:
            self.misuse.append(problem)
