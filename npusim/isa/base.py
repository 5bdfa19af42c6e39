"""The common part of all instructions: addresses, fields, encoding and the interface of an instruction.

A command in the stream is a header, its waits, and the fields of the instruction, little-endian:

    u8 opcode, u8 unit, u8 core, u8 waits, u16 length in bytes, u16 zero, u32 operator index
    per wait: u8 core, u8 unit, u16 zero, u32 count
    the fields in the order of the class, as declared

A *wait* delays a command until a unit has completed ``count`` commands of this job. Units execute their commands in
order, so one count per unit expresses any dependency.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import prod
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
)

import numpy as np
import numpy.typing as npt

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.work import Work

if TYPE_CHECKING:
    from npusim._core import Strided

ISA_VERSION = 5
"""Part of every fingerprint. Increment it when an encoding or the meaning of a field changes."""

# Limits of the work of one instruction. Kernels take up to a few seconds for that, and cannot be interrupted meanwhile.

MAX_ELEMENTS = 1 << 26
"""Most elements of an instruction of the vector or scalar unit."""

MAX_ITEMS = 1 << 28
"""Most items of a DMA instruction."""

MAX_PRODUCTS = 1 << 33
"""Most products of a matrix instruction, with output channels rounded up to CHANNEL_STEP."""

MAX_ROUTINE_STEPS = 1 << 32
"""Most elements of one call of a routine, which cannot always be split: pairs of boxes, samples of regions."""

MOST_WAITS = 255
"""Most waits of one command; their number has 8 bits in its header."""

ITEM_SIZES = (1, 2, 4, 8)
"""Item sizes in bytes for instructions that move data without interpreting it."""

ByteArray = npt.NDArray[np.uint8]

SPACE_SHIFT = 48
OFFSET_MASK = (1 << SPACE_SHIFT) - 1


class Space(enum.IntEnum):
    """Memory selected by the upper 16 bits of an address. REGION + r is row r of the region table of the job, in DRAM.
    Each core has its own SRAM and accumulators; L2 is shared."""

    SRAM = 0
    ACC = 1
    L2 = 2
    REGION = 16


MOST_REGIONS = (1 << 64 - SPACE_SHIFT) - Space.REGION
"""Most regions of a job, as the upper 16 bits of an address must distinguish them."""


class Unit(enum.IntEnum):
    """The unit that executes a command; DMA + c is channel c."""

    MATRIX = 0
    VECTOR = 1
    SCALAR = 2
    CONTROL = 3
    DMA = 8


def of_unit(unit: int, each: tuple[int, int, int, int]) -> int:
    """Select a value for matrix, vector and scalar units and for channels."""
    return each[min(unit, Unit.CONTROL)]


def unit_name(core: int, unit: int) -> str:
    """The name of a unit in timelines, counters and messages: ``core0.matrix``, ``core1.dma2``."""
    if unit >= Unit.DMA:
        return f"core{core}.dma{unit - Unit.DMA}"
    # No verified stream has such a unit, but unverified streams can be printed, too.
    return f"core{core}.{Unit(unit).name.lower() if unit <= Unit.CONTROL else f'unit{unit}'}"


def sram(offset: int) -> int:
    """The address of a byte of the core's own SRAM."""
    return offset


def acc(offset: int) -> int:
    """The address of a byte of the core's own accumulator memory."""
    return Space.ACC << SPACE_SHIFT | offset


def l2(offset: int) -> int:
    """The address of a byte of the L2."""
    return Space.L2 << SPACE_SHIFT | offset


def region(index: int, offset: int = 0) -> int:
    """The address of a byte of region ``index`` in DRAM."""
    return (Space.REGION + index) << SPACE_SHIFT | offset


def space_of(address: int) -> int:
    """The space number of an address."""
    return address >> SPACE_SHIFT


def offset_of(address: int) -> int:
    """The byte offset of an address within its space."""
    return address & OFFSET_MASK


# Plain integers, because this is called for each transfer of a stream; members of Space are three times slower.
_DRAM, _L2 = Space.REGION << SPACE_SHIFT, int(Space.L2)


def is_dram(address: int) -> bool:
    """Whether an address is in DRAM."""
    return address >= _DRAM


def is_l2(address: int) -> bool:
    """Whether an address is in the L2."""
    return address >> SPACE_SHIFT == _L2


def is_outside(address: int) -> bool:
    """Whether an address is in a memory that all cores share and only DMA can access: DRAM or L2."""
    return address >= _DRAM or address >> SPACE_SHIFT == _L2


def describe_address(address: int) -> str:
    """An address as text: ``sram+0x40``, ``r2+0x100``."""
    space, offset = space_of(address), offset_of(address)
    if space >= Space.REGION:
        return f"r{space - Space.REGION}+{offset:#x}"
    return f"{Space(space).name.lower()}+{offset:#x}" if space <= Space.L2 else f"space{space}+{offset:#x}"


class Wait(NamedTuple):
    """Hold until ``unit`` of ``core`` has completed ``completed`` commands of this job."""

    core: int
    unit: int
    completed: int


class Access(NamedTuple):
    """Bytes [address + low, address + high) that an instruction may touch."""

    address: int
    low: int
    high: int
    write: bool


def span(address: int, dims: Iterable[int], strides: Iterable[int], itemsize: int, write: bool) -> Access | None:
    """The Access of a strided operand (strides in bytes); None when it has no elements."""
    # Each stride is constant, so the extreme bytes are at corners of the box: a sum
    # over dimensions bounds all elements.
    low, high = 0, itemsize
    for dim, stride in zip(dims, strides, strict=True):
        if dim == 0:
            return None
        reach = (dim - 1) * stride
        low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return Access(address, low, high, write)


def loops(*counts: int) -> int:
    """Number of iterations of nested loops; an empty loop counts as one, because the loops around it still run."""
    return prod(max(1, count) for count in counts)


def check_row(mnemonic: str, row: int, stride: int) -> None:
    """Raise ProgramError for rows that repeat one element, because kernels copy a row, so its size must be bounded by
    memory."""
    if row > 1 and not stride:
        raise ProgramError(f"{mnemonic}: the {row} elements of a row must not share an address")


def check_itemsize(itemsize: int) -> None:
    """Raise ProgramError for an unsupported item size."""
    if itemsize not in ITEM_SIZES:
        raise ProgramError(f"item size must be one of {ITEM_SIZES}, got {itemsize}")


def check_index_type(dtype: DType) -> None:
    """Raise ProgramError for a type that cannot be an index."""
    if not dtype.is_integer:
        raise ProgramError(f"index type must be an integer, got {dtype.label}")


class Memory(Protocol):
    """The memories as an instruction of one core sees them."""

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        """The elements from an address on, as kernels take them; strides in bytes, outermost first."""


Call = tuple[Callable[..., object], tuple[Any, ...]]
"""A function and its arguments."""


def perform(calls: Iterable[Call]) -> None:
    """Make calls in order."""
    for function, arguments in calls:
        function(*arguments)


U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
I16 = Annotated[int, "h"]
I32 = Annotated[int, "i"]
I64 = Annotated[int, "q"]
F32 = Annotated[float, "f"]
F64 = Annotated[float, "d"]
Flag = Annotated[bool, "?"]
ADDRESS = "address"
Address = Annotated[int, "Q", ADDRESS]
Dims3 = Annotated[tuple[int, ...], "3I"]
Dims4 = Annotated[tuple[int, ...], "4I"]
Strides3 = Annotated[tuple[int, ...], "3q"]
Strides4 = Annotated[tuple[int, ...], "4q"]
Type = Annotated[DType, "B", DType]
UnaryFn = Annotated[Unary, "B", Unary]
BinaryFn = Annotated[Binary, "B", Binary]
ReduceFn = Annotated[Reduce, "B", Reduce]
TAIL = "*"
"""Code of a last field with the rest of the command: an object with ``to_bytes``, and its inverse."""


class _Field(NamedTuple):
    name: str
    start: int
    length: int  # 0: a scalar
    convert: Callable[[int], Any] | None
    is_address: bool = False


class _Tail(NamedTuple):
    name: str
    convert: Callable[[bytes], Any]


class _Remembering:
    """Holds cached values of an instruction that are not fields of it."""

    __slots__ = ("_said",)

    _said: Work


@dataclasses.dataclass(slots=True)
class Instruction(_Remembering, ABC):
    """Base class of all instructions. A subclass declares its fields, accesses, work and arithmetic."""

    opcode: ClassVar[int] = 0
    mnemonic: ClassVar[str] = ""
    unit: ClassVar[Unit] = Unit.CONTROL
    layout: ClassVar[struct.Struct] = struct.Struct("<")
    fields: ClassVar[tuple[_Field, ...]] = ()
    reads: ClassVar[Sequence[tuple[Callable[[Any], Any], bool]]] = ()
    """Functions that read the field values in order, and whether each returns several values."""
    tail: ClassVar[_Tail | None] = None
    limit: ClassVar[int] = MAX_ELEMENTS
    data_decides: ClassVar[bool] = False
    """Whether addresses depend on data. Then its outputs must not overlap other operands (``isa.verify``)."""

    @abstractmethod
    def elements(self) -> int:
        """Most elements that ``execute`` processes for any data; at most ``limit``.

        With strides of 0, large dimensions fit in memory, so this bounds the time.
        """

    @abstractmethod
    def accesses(self) -> Iterator[Access | None]:
        """The bytes of every operand; None for an empty operand."""

    @abstractmethod
    def work(self) -> Work:
        """The work, from which the cost is computed."""

    def asked(self) -> Work:
        """The result of :meth:`work`, cached. For instructions whose fields do not change any more, as in a command
        stream."""
        try:
            return self._said
        except AttributeError:
            self._said = self.work()  # type: ignore[misc]  # a slot of the base
            return self._said

    def like(self, other: Instruction) -> None:
        """Copy the cached values of an instruction that differs in addresses only. For the vector unit, whose work does
        not depend on addresses; no effect on others."""
        if self.unit is Unit.VECTOR:
            self._said = other.asked()  # type: ignore[misc]  # a slot of the base

    @abstractmethod
    def execute(self, memory: Memory, core: int) -> None:
        """Do the arithmetic. Raises ProgramError for illegal values in the data."""

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        """The calls that :meth:`execute` makes, which may be repeated: of kernels if their arguments depend on the
        fields and the memory alone, otherwise of ``execute`` itself."""
        return ((self.execute, (memory, core)),)

    def check(self) -> None:
        """Raise ProgramError for invalid field values. Addresses are checked separately. Most instructions accept all
        values."""

    def targets(self, core: int) -> Sequence[int]:
        """The cores to whose memories it writes. ``core``: the core that it was issued to."""
        return (core,)

    def reads_of(self, core: int) -> int:
        """The core from whose memories it reads. ``core``: the core that it was issued to."""
        return core

    def operands(self, memory: Memory, core: int, *names: str) -> list[Strided]:
        """The operands of these names for kernels: address field ``name``, strides field ``name_strides``."""
        return [memory.at(core, getattr(self, name), getattr(self, f"{name}_strides")) for name in names]

    def refuse_index(self, index: Strided, strides: Sequence[int], position: int) -> NoReturn:
        """Raise ProgramError for an index that a kernel has found out of range, at a position in ``dims``."""
        fields: Any = self
        place = np.unravel_index(position, fields.dims)
        where = index.offset + sum(int(at) * stride for at, stride in zip(place, strides, strict=True))
        value = np.ndarray((), fields.index_type.storage, index.memory, where)
        raise ProgramError(
            f"{self.mnemonic}: operand 'index' holds {value} at {list(map(int, place))}, which is outside the axis of "
            f"{fields.axis_size}"
        )

    def to_bytes(self) -> bytes:
        """The fields as bytes. Raises ProgramError for a value that does not fit its field."""
        values: list[Any] = []
        for read, several in self.reads:
            if several:
                values += read(self)
            else:
                values.append(read(self))
        try:
            return self.layout.pack(*values) + (self._tail_bytes() if self.tail else b"")
        except struct.error as error:
            raise ProgramError(f"{self.mnemonic}: {error} in {self}") from None

    def _tail_bytes(self) -> bytes:
        return getattr(self, self.tail.name).to_bytes() if self.tail else b""

    def encoded_bytes(self) -> int:
        """The size of the fields in the stream, in bytes."""
        return self.layout.size + (len(self._tail_bytes()) if self.tail else 0)


INSTRUCTIONS: dict[int, type[Instruction]] = {}
"""Every instruction by opcode."""

_I = TypeVar("_I", bound=Instruction)


@dataclass_transform()
def instruction(opcode: int, mnemonic: str, unit: Unit) -> Callable[[type[_I]], type[_I]]:
    """A class decorator for instructions: makes a slotted dataclass with an encoding, registered by opcode."""

    def register(cls: type[_I]) -> type[_I]:
        if opcode in INSTRUCTIONS:
            raise ValueError(f"opcode {opcode:#x} of {mnemonic} belongs to {INSTRUCTIONS[opcode].mnemonic}")
        if cls.__abstractmethods__:
            raise TypeError(f"{mnemonic} does not say its {', '.join(sorted(cls.__abstractmethods__))}")
        made = dataclasses.dataclass(slots=True)(cls)
        # "<" also switches off the alignment of C structs: the encoding is the same on every host.
        formats, fields, position = ["<"], [], 0
        hints = get_type_hints(made, include_extras=True)
        for declared in dataclasses.fields(made):
            code, *convert = get_args(hints[declared.name])[1:]
            if code == TAIL:
                made.tail = _Tail(declared.name, convert[0])
                continue
            count = int(code[:-1] or 0)
            formats.append(code)
            is_address = ADDRESS in convert
            read = convert[0] if convert and not is_address else None
            fields.append(_Field(declared.name, position, count, read, is_address))
            position += count or 1
        made.opcode, made.mnemonic, made.unit = opcode, mnemonic, unit
        made.layout, made.fields = struct.Struct("".join(formats)), tuple(fields)
        made.reads = _readers(fields)
        INSTRUCTIONS[opcode] = made
        return made

    return register


def _readers(fields: Iterable[_Field]) -> list[tuple[Callable[[Any], Any], bool]]:
    """As few read functions as possible: adjacent scalars are read together, arrays separately."""
    readers: list[tuple[Callable[[Any], Any], bool]] = []
    for is_array, run in groupby(fields, lambda field: field.length > 0):
        names = [field.name for field in run]
        if is_array:
            readers += [(attrgetter(name), True) for name in names]
        else:
            readers.append((attrgetter(*names), len(names) > 1))
    return readers


@dataclasses.dataclass(slots=True)
class Command:
    """An issued instruction: its unit, core, operator and waits."""

    core: int
    unit: int
    op: int
    waits: tuple[Wait, ...]
    instruction: Instruction

    @property
    def size(self) -> int:
        """Size of the command in the stream, in bytes."""
        return _HEADER.size + len(self.waits) * _WAIT.size + self.instruction.encoded_bytes()

    def to_bytes(self) -> bytes:
        """The command as bytes: header, waits, fields."""
        body, waits = self.instruction.to_bytes(), b""
        for core, unit, completed in self.waits:
            waits += _WAIT.pack(core, unit, 0, completed)
        length = _HEADER.size + len(waits) + len(body)
        opcode = self.instruction.opcode
        return _HEADER.pack(opcode, self.unit, self.core, len(self.waits), length, 0, self.op) + waits + body


_HEADER = struct.Struct("<BBBBHHI")
_WAIT = struct.Struct("<BBHI")
HEADER_BYTES, WAIT_BYTES = _HEADER.size, _WAIT.size
"""Sizes in bytes of the header of a command, and of each wait that follows it."""


def encode(commands: Iterable[Command]) -> bytes:
    """The instruction stream of commands."""
    return b"".join(command.to_bytes() for command in commands)


def operators(stream: bytes | memoryview) -> set[int]:
    """The operators with commands for units, in a possibly damaged stream, as far as its headers are valid."""
    found: set[int] = set()
    position = 0
    while position + _HEADER.size <= len(stream):
        _, unit, _, _, length, _, op = _HEADER.unpack_from(stream, position)
        if unit != Unit.CONTROL:
            found.add(op)
        position += max(length, _HEADER.size)
    return found


def decode(stream: bytes | memoryview) -> Iterator[Command]:
    """The commands of a stream, one by one. Raises ProgramError with a byte offset for invalid bytes."""
    position, end = 0, len(stream)
    while position < end:
        if end - position < _HEADER.size:
            raise ProgramError(
                f"command at byte {position}: {end - position} bytes left, a header takes {_HEADER.size}"
            )
        opcode, unit, core, count, length, zero, op = _HEADER.unpack_from(stream, position)
        cls = INSTRUCTIONS.get(opcode)
        if cls is None:
            raise ProgramError(f"command at byte {position}: unknown opcode {opcode:#04x}")
        body = position + _HEADER.size + count * _WAIT.size
        least = body - position + cls.layout.size
        # Reserved bits must be 0, so that they can be given a meaning later.
        if length < least or (length > least and cls.tail is None) or zero or position + length > end:
            raise ProgramError(f"command at byte {position}: {cls.mnemonic} of length {length} does not fit its fields")
        waits = []
        for at in range(position + _HEADER.size, body, _WAIT.size):
            wait_core, wait_unit, wait_zero, wait_count = _WAIT.unpack_from(stream, at)
            if wait_zero:
                raise ProgramError(f"command at byte {position}: reserved bits of a wait are set")
            waits.append(Wait(wait_core, wait_unit, wait_count))
        yield Command(core, unit, op, tuple(waits), _decode_fields(cls, stream, body, position, length))
        position += length


def instructions_of(stream: bytes, wanted: type[_I]) -> Iterator[_I]:
    """The instructions of a class in a possibly damaged stream, as far as its headers are valid. Other commands are not
    decoded, because streams are long and may contain few of this class. Raises as :func:`decode` for an invalid one."""
    opcodes = {opcode for opcode, cls in INSTRUCTIONS.items() if issubclass(cls, wanted)}
    position, last = 0, len(stream) - _HEADER.size
    while position <= last:
        opcode, _, _, _, length, _, _ = _HEADER.unpack_from(stream, position)
        if opcode not in INSTRUCTIONS or length < _HEADER.size:
            return
        if opcode in opcodes:
            found = next(decode(stream[position : position + length])).instruction
            assert isinstance(found, wanted)
            yield found
        position += length


def _decode_fields(
    cls: type[Instruction], stream: bytes | memoryview, body: int, position: int, length: int
) -> Instruction:
    raw = cls.layout.unpack_from(stream, body)
    values: list[Any] = []
    for _, start, count, convert, _ in cls.fields:
        if count:
            values.append(raw[start : start + count])
        elif convert is None:
            values.append(raw[start])
        else:
            try:
                values.append(convert(raw[start]))
            except ValueError as error:
                raise ProgramError(f"command at byte {position}: {cls.mnemonic}: {error}") from None
    if cls.tail is not None:
        rest = bytes(stream[body + cls.layout.size : position + length])
        try:
            values.append(cls.tail.convert(rest))
        except (ValueError, ProgramError) as error:
            raise ProgramError(f"command at byte {position}: {cls.mnemonic}: {error}") from None
    return cls(*values)
