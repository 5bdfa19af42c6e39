"""All coverage points, derived from the declarations of instructions, registers and faults.

Fields with enumerable values count by value: types, functions, enumerated numbers, flags, and the memory of a DMA
address. The check of an instruction decides which values are legal. Sizes, strides and counts are not listed, nor are
wide fields of registers.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npusim._core import Strided
from npusim.device.registers import REGISTERS, RINGS, FieldAccess, Register
from npusim.errors import NpusimError
from npusim.isa.base import INSTRUCTIONS, Instruction, Space, Unit, region, space_of
from npusim.isa.dma import Exchange, Expand, Fetch, Multicast
from npusim.isa.matrix_extras import NO_EXTRAS, Extras
from npusim.timeline import FaultCode

GROUPS = ("instructions", "stalls", "jobs", "faults", "registers")
FEW = 16
"""A one-byte field with at most this many legal values is enumerated; others are sizes."""
WIDE = 2
"""Bits of register fields up to this width are counted individually."""
SPACES = ("sram", "acc", "dram")
_LISTED = "B?"
_ONE = "BHI?fd"
_PARTS = re.compile(r"(\d*)([a-zA-Z?])")
_PARTNERS = {
    "matrix": ("vector", "scalar", "dma", "sram", "preempted"),
    "vector": ("matrix", "scalar", "dma", "sram", "preempted"),
    "scalar": ("matrix", "vector", "dma", "sram", "preempted"),
    "dma": ("matrix", "vector", "scalar", "dma", "dram", "preempted"),
    "sequencer": ("matrix", "vector", "scalar", "dma", "fetch", "preempted"),
}
"""The resources that a kind of unit can wait for."""


class CoveragePoint(NamedTuple):
    """One point to cover: ``item`` of ``subject``, which is an instruction, a unit, a register or a fault."""

    group: str
    subject: str
    item: str


@functools.cache
def universe() -> tuple[CoveragePoint, ...]:
    """All points, in the order of a report."""
    return (*_instructions(), *_stalls(), *_jobs(), *_faults(), *_registers())


def _instructions() -> Iterator[CoveragePoint]:
    for _, cls in sorted(INSTRUCTIONS.items()):
        yield CoveragePoint("instructions", cls.mnemonic, "issued")
        for name, values in listed(cls).items():
            for value in values:
                yield CoveragePoint("instructions", cls.mnemonic, f"{name} {label(value)}")
        for name in addresses(cls):
            for space in SPACES:
                yield CoveragePoint("instructions", cls.mnemonic, f"{name} in {space}")
        for name in extras(cls):
            yield CoveragePoint("instructions", cls.mnemonic, f"with {name}")


def _stalls() -> Iterator[CoveragePoint]:
    for unit, others in _PARTNERS.items():
        for other in others:
            yield CoveragePoint("stalls", unit, f"on {other}")


def _jobs() -> Iterator[CoveragePoint]:
    for item in ("done", "fault", "aborted", "without arithmetic", "preempted", "preempted again", "residents held"):
        yield CoveragePoint("jobs", "job", item)
    for ring in RINGS:
        yield CoveragePoint("jobs", ring, "done")


def _faults() -> Iterator[CoveragePoint]:
    for code in FaultCode:
        if code is not FaultCode.NONE:
            yield CoveragePoint("faults", code.name, "happened")


def _registers() -> Iterator[CoveragePoint]:
    for register in REGISTERS:
        for item in register_items(register):
            yield CoveragePoint("registers", register.name, item)


@functools.cache
def register_items(register: Register) -> tuple[str, ...]:
    """The coverage points of a register."""
    items = []
    readable, writable = register.access is not FieldAccess.WO, register.access is not FieldAccess.RO
    if readable:
        items.append("read")
    if writable:
        items.append("written")
    for field in register.fields:
        if field.width <= WIDE and register.reset is not None:  # without one, the config determines the value
            for bit in range(field.low, field.low + field.width):
                items += [f"{field.name}[{bit}] read as 1"] if readable else []
                items += [f"{field.name}[{bit}] written 1"] if writable else []
    return tuple(items)


def label(value: object) -> str:
    """A value of a field as text for a report."""
    if isinstance(value, bool):
        return "set" if value else "clear"
    name = getattr(value, "name", None)
    return name.lower() if isinstance(name, str) else str(value)


def space_name(address: int) -> str:
    """The name of the memory of an address."""
    space = space_of(address)
    return "dram" if space >= Space.REGION else Space(space).name.lower()


@functools.cache
def addresses(cls: type[Instruction]) -> Sequence[str]:
    """Fields of a DMA instruction that are addresses in any memory."""
    if cls.unit != Unit.DMA or issubclass(cls, Multicast | Expand | Exchange | Fetch):
        return ()  # each of their addresses is in a fixed memory
    codes = _codes(cls)
    wide = [field.name for field in cls.fields if codes[field.name] == "Q"]
    return [name for name in wide if name not in ("pattern", "axis_size")]


@functools.cache
def extras(cls: type[Instruction]) -> Sequence[str]:
    """The names of the extras of an instruction."""
    made = _plain(cls, {})
    tail = getattr(made, cls.tail.name) if cls.tail is not None and cls.unit == Unit.MATRIX else None
    return [field.name for field in dataclasses.fields(Extras)] if tail is NO_EXTRAS else []


@functools.cache
def listed(cls: type[Instruction]) -> Mapping[str, Sequence[Any]]:
    """Enumerable fields, each with the values that are valid together with some values of the others."""
    codes, candidates = _codes(cls), dict[str, list[Any]]()
    for field in cls.fields:
        code = codes[field.name]
        if not field.length and code in _LISTED:
            numbers: Sequence[Any] = (False, True) if code == "?" else range(256)
            candidates[field.name] = list(field.convert if isinstance(field.convert, enum.EnumType) else numbers)
    # Fields with arbitrary numbers need not be combined with every type.
    company = {name: values for name, values in candidates.items() if 2 < len(values) < 256}
    found = {}
    for name, values in candidates.items():
        others = {each: company[each] for each in company if each != name}
        legal = [value for value in values if _means_something(cls, name, value, others)]
        if len(legal) <= FEW or name in company:
            found[name] = legal
    return found


def _means_something(cls: type[Instruction], name: str, value: Any, others: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a device executes the instruction with a value of a field and some values of the other fields."""
    for company in itertools.product(*others.values()):
        made = _plain(cls, {**dict(zip(others, company, strict=True)), name: value})
        try:
            made.check()
            made.execute(_Bytes(), 0)
        except (NpusimError, ValueError):  # from its check, the data or a kernel, as in npusim.sim.job.attempt
            continue
        return True
    return False


class _Bytes:
    """A memory of zeros at every address, large enough for the table of a lookup."""

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        return Strided(np.zeros(1 << 11, np.uint8), 0, strides)


def _plain(cls: type[Instruction], values: Mapping[str, Any]) -> Instruction:
    """An instruction on one element, with the given fields."""
    codes = _codes(cls)
    filled: dict[str, Any] = {}
    for field in cls.fields:
        if field.length:
            filled[field.name] = (int(field.name in ("dims", "outer", "shape")),) * field.length
        elif isinstance(field.convert, enum.EnumType):
            filled[field.name] = next(iter(field.convert))
        else:
            number = int(codes[field.name] in _ONE and "zero" not in field.name and field.name != "at")
            filled[field.name] = bool(number) if codes[field.name] == "?" else number
    if issubclass(cls, Multicast | Expand | Fetch):
        filled |= {"src": region(0)} | ({"cores": 1} if "cores" in codes else {})
    if issubclass(cls, Expand):
        filled |= {"nbytes": 1, "size": 2}  # of zeros: ten bits that encode one zero byte
    if cls is Exchange:
        filled |= {"source": 1, "cores": 1}
    if cls.tail is not None:
        filled[cls.tail.name] = NO_EXTRAS
    return cls(**{**filled, **values})


@functools.cache
def _codes(cls: type[Instruction]) -> Mapping[str, str]:
    """The encoding of each field, as a struct format character."""
    letters = "".join(letter * int(count or 1) for count, letter in _PARTS.findall(cls.layout.format))
    return {field.name: letters[field.start] for field in cls.fields}
