"""``scalar.routine`` and ``vector.routine``: run a named routine on dense operands in SRAM.

The call follows the header in the stream, little-endian:

    u16 version, u8 length of the name, u8 inputs, u8 outputs, the name;
    per operand: u64 address, u8 type, u8 rank, u32 per dimension;
    the parameters: u8 count, per parameter u8 length, name, value.

A value is a tag and its bytes: ``b`` u8, ``i`` i64, ``f`` f64, ``s`` u16 length and UTF-8, ``t`` u8 count and values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from npusim.dtypes import DEVICE_DTYPES, DType
from npusim.errors import ModelError, ProgramError
from npusim.isa.base import (
    MAX_ROUTINE_STEPS,
    TAIL,
    Access,
    Instruction,
    Memory,
    Space,
    Unit,
    describe_address,
    instruction,
    space_of,
    span,
)
from npusim.routines import Routine, Spec, find_routine
from npusim.routines.base import Array, Pairs
from npusim.work import Work

MAX_CALL_BYTES = 1536
"""Limit in bytes of an encoded call: with all possible waits the command fits the fetch buffer of the sequencer."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A dense row-major operand and its address."""

    address: int
    dtype: DType
    shape: tuple[int, ...]

    @property
    def spec(self) -> Spec:
        """Shape and type of the operand."""
        return Spec(self.shape, self.dtype)

    def access(self, write: bool) -> Access | None:
        """The bytes of the operand; None if it has no elements."""
        return span(self.address, (self.spec.size,), (self.dtype.itemsize,), self.dtype.itemsize, write)

    def __repr__(self) -> str:
        return f"{describe_address(self.address)}:{self.dtype.label}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the routine, its operands and its parameters (sorted by name)."""

    name: str
    version: int
    params: Pairs
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]

    def __str__(self) -> str:
        params = " ".join(f"{name}={value}" for name, value in self.params)
        return f"{self.name}@{self.version}({params}) {[*self.inputs]} -> {[*self.outputs]}"

    def to_bytes(self) -> bytes:
        """The encoding. Raises ProgramError if it is too long for a command."""
        name = self.name.encode()
        try:
            parts = [struct.pack("<HBBB", self.version, len(name), len(self.inputs), len(self.outputs)), name]
            for operand in (*self.inputs, *self.outputs):
                rank = len(operand.shape)
                parts.append(struct.pack(f"<QBB{rank}I", operand.address, operand.dtype, rank, *operand.shape))
            parts.append(struct.pack("<B", len(self.params)))
            for label, value in self.params:
                parts += [struct.pack("<B", len(label.encode())), label.encode(), _pack_value(value)]
        except struct.error as error:
            raise ProgramError(f"routine {self.name}: {error} in {self}") from None
        raw = b"".join(parts)
        if len(raw) > MAX_CALL_BYTES:
            raise ProgramError(
                f"routine {self.name}: the call takes {len(raw)} bytes, at most {MAX_CALL_BYTES} are possible"
            )
        return raw

    @staticmethod
    def from_bytes(raw: bytes) -> Call:
        """Inverse of :meth:`to_bytes`. Raises ValueError for other bytes."""
        if len(raw) > MAX_CALL_BYTES:
            raise ValueError(f"the call takes {len(raw)} bytes, at most {MAX_CALL_BYTES} are possible")
        reader = _Reader(raw)
        version, length, inputs, outputs = reader.take("<HBBB")
        name = reader.text(length)
        operands = []
        for _ in range(inputs + outputs):
            address, dtype, rank = reader.take("<QBB")
            operands.append(Operand(address, DType(dtype), reader.take(f"<{rank}I")))
        params = tuple(
            (reader.text(*reader.take("<B")), _unpack_value(reader)) for _ in range(*reader.take("<B"))
        )  # the name of each, then its value
        call = Call(name, version, params, tuple(operands[:inputs]), tuple(operands[inputs:]))
        # Each call has one encoding: bytes that decode but would be encoded differently are refused.
        if reader.at != len(raw) or call.to_bytes() != raw:
            raise ValueError("the call is not in canonical form")
        return call


class _Reader:
    """Reads fields from bytes. Raises ValueError at their end."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize(layout)
        if self.at + size > len(self.raw):
            raise ValueError("the call is cut short")
        values = struct.unpack_from(layout, self.raw, self.at)
        self.at += size
        return values

    def text(self, length: int) -> str:
        return bytes(self.take(f"<{length}s")[0]).decode()


def _pack_value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<sB", b"b", value)
        case int():
            return struct.pack("<sq", b"i", value)
        case float():
            return struct.pack("<sd", b"f", value)
        case str():
            raw = value.encode()
            return struct.pack("<sH", b"s", len(raw)) + raw
        case _:
            return struct.pack("<sB", b"t", len(value)) + b"".join(map(_pack_value, value))


# The depth is limited, because bytes from a file could otherwise exhaust the stack with nested tuples.
def _unpack_value(reader: _Reader, depth: int = 3) -> Any:
    (tag,) = reader.take("<s")
    match tag:
        case b"b":
            return bool(*reader.take("<B"))
        case b"i":
            return reader.take("<q")[0]
        case b"f":
            return reader.take("<d")[0]
        case b"s":
            return reader.text(*reader.take("<H"))
        case b"t" if depth:
            return tuple(_unpack_value(reader, depth - 1) for _ in range(*reader.take("<B")))
        case _:
            raise ValueError(f"unknown tag {tag!r} of a parameter")


@dataclass(slots=True)
class _Routine(Instruction):
    """Common part of the instructions of both units."""

    call: Annotated[Call, TAIL, Call.from_bytes]
    limit: ClassVar[int] = MAX_ROUTINE_STEPS
    data_decides: ClassVar[bool] = True

    def routine(self) -> Routine:
        """The called routine. Raises ProgramError if it is not registered."""
        call = self.call
        routine = find_routine(call.name, call.version)
        if routine is None:
            raise ProgramError(
                f"{self.mnemonic}: routine {call.name!r} version {call.version} is not registered; "
                "import the package that defines it first"
            )
        return routine

    def check(self) -> None:
        routine, call = self.routine(), self.call
        if Unit[routine.unit.upper()] is not self.unit:
            raise ProgramError(f"{self.mnemonic}: routine {call.name} runs on the {routine.unit} unit")
        names = [name for name, _ in call.params]
        if names != sorted(set(names)):
            raise ProgramError(f"{self.mnemonic}: routine {call.name}: parameters must be sorted, got {names}")
        for operand in (*call.inputs, *call.outputs):
            if operand.dtype not in DEVICE_DTYPES:
                raise ProgramError(f"{self.mnemonic}: no unit computes with {operand.dtype.label}")
            # A routine gets numpy arrays, and its code may rely on alignment.
            if operand.address % operand.dtype.itemsize:
                raise ProgramError(f"{self.mnemonic}: {operand} must start at a multiple of {operand.dtype.itemsize}")
            if space_of(operand.address) != Space.SRAM:
                raise ProgramError(f"{self.mnemonic}: {operand} must be in SRAM")
        try:
            wanted = routine.outputs([operand.spec for operand in call.inputs], dict(call.params))
        except ModelError as error:
            raise ProgramError(f"{self.mnemonic}: {error}") from None
        got = [operand.spec for operand in call.outputs]
        if got != wanted:
            raise ProgramError(f"{self.mnemonic}: routine {call.name}: outputs must be {wanted}, got {got}")

    def elements(self) -> int:
        call = self.call
        inputs, outputs = ([operand.spec for operand in side] for side in (call.inputs, call.outputs))
        return self.routine().steps(inputs, outputs, dict(call.params))

    def accesses(self) -> Iterator[Access | None]:
        for operand in self.call.inputs:
            yield operand.access(False)
        for operand in self.call.outputs:
            yield operand.access(True)

    def work(self) -> Work:
        call = self.call
        inputs, outputs = ([operand.spec for operand in side] for side in (call.inputs, call.outputs))
        return self.routine().work(inputs, outputs, dict(call.params))

    def execute(self, memory: Memory, core: int) -> None:
        call = self.call
        inputs = [_array(operand, memory, core) for operand in call.inputs]
        outputs = [_array(operand, memory, core) for operand in call.outputs]
        for array in inputs:
            # A routine must not modify its inputs, because later pieces still use the tile.
            array.setflags(write=False)
        for array in outputs:
            # Elements that a routine does not write must not depend on earlier tiles in this slot.
            array.fill(0)
        try:
            self.routine().execute(inputs, dict(call.params), outputs)
        except Exception as error:  # noqa: BLE001 - the routine may be user code, which can raise anything
            raise ProgramError(f"{self.mnemonic}: routine {call.name}: {error}") from None


def _array(operand: Operand, memory: Memory, core: int) -> Array:
    place = memory.at(core, operand.address)
    raw = np.asarray(place.memory)
    return raw[place.offset : place.offset + operand.spec.nbytes].view(operand.dtype.storage).reshape(operand.shape)


@instruction(0x53, "scalar.routine", Unit.SCALAR)
class ScalarRoutine(_Routine):
    """Run a routine of the scalar unit."""


@instruction(0x48, "vector.routine", Unit.VECTOR)
class VectorRoutine(_Routine):
    """Run a routine of the vector unit."""


def routine_instruction(
    routine: Routine, params: Pairs, inputs: Sequence[Operand], outputs: Sequence[Operand]
) -> Instruction:
    """The instruction for the unit of the routine."""
    cls = VectorRoutine if routine.unit == "vector" else ScalarRoutine
    return cls(Call(routine.name, routine.version, params, tuple(inputs), tuple(outputs)))
