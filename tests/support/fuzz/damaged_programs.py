"""Program files as an attacker would write them: real ones with changes and a valid checksum."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import random
import struct
from collections.abc import Callable
from typing import Any

from npusim.cache import FORMAT_VERSION
from npusim.errors import ProgramError
from npusim.isa.base import ISA_VERSION, MAX_ITEMS, TAIL, Command, Instruction, Unit, Wait, acc, encode, region
from npusim.isa.matrix_extras import NOTHING, Extras
from npusim.isa.matrix_types import PACKED_BITS
from npusim.isa.repeat import Strides
from npusim.isa.routine import Call, Operand
from tests.support.fuzz.sample_programs import CONFIGS, Sample, samples
from tests.support.programs.any_instruction import address_fields, field_codes

ODD = (
    None, True, False, -1, 0, 1, 2, 3, 1.0, 1e400, float("nan"), 2**31, 2**48, 2**48 + 1, 2**63, 2**64, 10**400,
    "", "x", "\ud800", "float32", "FLOAT32", "bool", "x" * 70000,
    [], {}, [[]], [0, 2**48, 2**48], [1] * 33, {"name": 1},
)  # fmt: skip
"""Unexpected values for a description."""
BITS = {"B": 8, "H": 16, "I": 32, "Q": 64, "h": 15, "i": 31, "q": 63}
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 64, 255, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
STEPS = (-64, -8, -4, -1, 1, 2, 4, 8, 64, 4096)
_EXTRA_ADDRESSES = ("w_scale", "w_zeros", "shift")
_EXTRA_NUMBERS = ("w_skip", "w_block", "block_ic", "block_oc", "first_ic", "first_oc", "phase_oc")
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-310, 1e30, 1e308, float("inf"), float("-inf"), float("nan"))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every value inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


# Instruction fields


def _stepped(value: int, rng: random.Random) -> int:
    return rng.choice((value + rng.choice(STEPS), 2 * value, value // 2, -value))


def _address(value: int, others: list[int], sample: Sample, rng: random.Random) -> int:
    """Return an address that is another operand's (so that they overlap), near one, at the end of a memory, or
    anywhere."""
    chance = rng.random()
    if chance < 0.45:
        return rng.choice(others)
    if chance < 0.65:
        return rng.choice(others) + rng.choice(STEPS)
    if chance < 0.85:
        return _stepped(value, rng)
    config, regions = CONFIGS[sample.config], sample.program.region_bytes
    number = rng.randrange(len(regions) + 1)
    ends = (config.sram.bytes, acc(0), region(number), region(number, (*regions, 0)[number]), 2**64 - 1, 2 << 48)
    return rng.choice(ends) - rng.choice((0, 0, 1, 4, 64))


def _integer(value: int, others: list[int], rng: random.Random) -> int:
    """Return an integer that mostly keeps the command meaningful."""
    chance = rng.random()
    if chance < 0.35:
        return rng.choice((0, 1, 2, 3, 4, 8))
    if chance < 0.65:
        return _stepped(value, rng)
    return rng.choice(others) if chance < 0.85 else rng.choice(NUMBERS) * rng.choice((1, 1, -1))


def _wrapped(value: int, code: str) -> int:
    """Wrap the value to the range of a field with this code."""
    bits = BITS[code]
    return (value + 2**bits) % 2 ** (bits + 1) - 2**bits if code.islower() else value % 2**bits


def _item(
    value: Any, is_address: bool, code: str, enumeration: Any, others: list[int], sample: Sample, rng: random.Random
) -> Any:
    if enumeration is not None:
        return rng.choice(list(enumeration))
    if code == "?":
        return not value
    if code in "fd":
        return struct.unpack(code, struct.pack(code, _float(value, code, rng)))[0]
    if is_address:
        return _wrapped(_address(value, others, sample, rng), code)
    return _wrapped(_integer(value, others, rng), code)


def _float(value: float, code: str, rng: random.Random) -> float:
    chosen = rng.choice((*FLOATS, -value, 2 * value))
    return chosen if code == "d" or abs(chosen) < 1e38 or chosen in FLOATS[-3:] else 1e38


def _numbers(instruction: Instruction, addresses: bool) -> list[int]:
    """Return the addresses of an instruction, or its other integers."""
    found: list[int] = [0]
    for name, (code, _, enumeration) in field_codes(type(instruction)).items():
        value = getattr(instruction, name)
        if code == TAIL and isinstance(value, Extras):
            found += [getattr(value, each) for each in (_EXTRA_ADDRESSES if addresses else _EXTRA_NUMBERS)]
        elif code == TAIL and isinstance(value, Strides):
            found += [] if addresses else [number for entry in value.each for number in entry]
        elif code == TAIL:
            operands = (*value.inputs, *value.outputs)
            found += [each.address for each in operands] if addresses else [n for each in operands for n in each.shape]
        elif code not in "?fd" and enumeration is None and (name in address_fields(type(instruction))) == addresses:
            found += value if isinstance(value, tuple) else [value]
    return found


def _field(instruction: Instruction, sample: Sample, rng: random.Random) -> Instruction:
    """Change one field, or one element of it."""
    codes = field_codes(type(instruction))
    if not codes:
        return instruction
    name = rng.choice(list(codes))
    code, count, enumeration = codes[name]
    value = getattr(instruction, name)
    if code == TAIL and isinstance(value, Call):
        return dataclasses.replace(instruction, **{name: _call(value, sample, rng)})
    if code == TAIL and isinstance(value, Strides):
        return dataclasses.replace(instruction, **{name: _strides(value, rng)})
    other = instruction if rng.random() < 0.7 else rng.choice(sample.commands).instruction
    if code == TAIL:
        return dataclasses.replace(instruction, **{name: _extras(value, other, sample, rng)})
    addresses = name in address_fields(type(instruction))
    others = _numbers(other, addresses)
    if not count:
        changed = _item(value, addresses, code, enumeration, others, sample, rng)
    else:
        at = rng.randrange(count)
        changed = tuple(
            _item(item, addresses, code, enumeration, others, sample, rng) if index == at else item
            for index, item in enumerate(value)
        )
    return dataclasses.replace(instruction, **{name: changed})


def _swapped(instruction: Instruction, sample: Sample, rng: random.Random) -> Instruction:
    """Swap two fields of the same type."""
    codes = field_codes(type(instruction))
    pairs = [(a, b) for a in codes for b in codes if a < b and codes[a] == codes[b] and codes[a][0] != TAIL]
    if not pairs:
        return instruction
    a, b = rng.choice(pairs)
    return dataclasses.replace(instruction, **{a: getattr(instruction, b), b: getattr(instruction, a)})


def _still(instruction: Instruction, sample: Sample, rng: random.Random) -> Instruction:
    """Set all strides to zero and a large count: the operands stay in place for any number of elements."""
    changes: dict[str, Any] = {}
    for name, (code, count, _) in field_codes(type(instruction)).items():
        if code == "q":
            changes[name] = (0,) * count if count else 0
        elif name == "dims":
            size = rng.choice((2 ** rng.randrange(8, 20), 2 ** rng.randrange(20, 32), MAX_ITEMS))
            at = rng.randrange(count)
            changes[name] = tuple(
                size if index == at else item for index, item in enumerate(getattr(instruction, name))
            )
    return dataclasses.replace(instruction, **changes)


def _strides(strides: Strides, rng: random.Random) -> Strides:
    """Change, add or remove the stride of an address."""
    entries = list(strides.each)
    if entries and rng.random() < 0.7:
        command, field, step = entries.pop(rng.randrange(len(entries)))
    else:
        command, field, step = rng.randrange(8), rng.randrange(12), 64
    if rng.random() < 0.8:
        place = rng.randrange(3)
        changed = [command, field, step]
        changed[place] = rng.randrange(1 << (16, 8)[place]) if place < 2 else rng.choice((-step, 2 * step, 1, 1 << 40))
        command, field, step = changed
        entries.append((command, field, step))
    return Strides(tuple(sorted(entries)))


def _extras(extras: Extras, other: Instruction, sample: Sample, rng: random.Random) -> Extras:
    """Change the sum width, the weight bits, or scales, zero points and shift, alone or in matching combinations."""
    kind = rng.randrange(6)
    if kind == 0:
        name = rng.choice(("wide", "wide", "pixel_blocks"))
        return dataclasses.replace(extras, **{name: not getattr(extras, name)})
    if kind == 1:
        return dataclasses.replace(extras, w_bits=rng.choice((0, *PACKED_BITS, 1, 8, 255)))
    if kind == 2:
        name = rng.choice(_EXTRA_NUMBERS)
        changes: dict[str, Any] = {name: _wrapped(_integer(getattr(extras, name), _numbers(other, False), rng), "I")}
        return dataclasses.replace(extras, **changes)
    addresses = _numbers(other, True)
    if kind == 3 and extras.w_scale == NOTHING:
        block = rng.choice((1, 2, 3, 4, 8, 32, 2**31))
        scale, zeros = (_wrapped(_address(0, addresses, sample, rng), "Q") for _ in range(2))
        skip = rng.choice((0, 0, 1, block - 1))
        return dataclasses.replace(
            extras, w_skip=skip, w_block=block, w_scale=scale, w_zeros=rng.choice((NOTHING, zeros))
        )
    name = rng.choice(_EXTRA_ADDRESSES)
    chosen = NOTHING if rng.random() < 0.2 else _address(getattr(extras, name), addresses, sample, rng)
    changes = {name: _wrapped(chosen, "Q")}
    return dataclasses.replace(extras, **changes)


def _call(call: Call, sample: Sample, rng: random.Random) -> Call:
    kind = rng.randrange(6)
    operands = [*call.inputs, *call.outputs]
    count = len(call.inputs)
    if kind == 0:
        params = list(call.params)
        if params:
            at = rng.randrange(len(params))
            params[at] = (params[at][0], _parameter(params[at][1], rng))
        return dataclasses.replace(call, params=tuple(params))
    if kind == 1:
        other = rng.choice([each for each in samples() if each.config == sample.config])
        calls = [c.instruction.call for c in other.commands if hasattr(c.instruction, "call")]
        return dataclasses.replace(call, name=rng.choice(calls).name if calls else rng.choice(("", "x", "npusim.\0")))
    if kind == 2:
        return dataclasses.replace(call, version=rng.choice((0, 1, 2, 65535)))
    if kind == 3 and operands:
        operands.insert(rng.randrange(len(operands)), operands.pop())
    elif operands:
        at = rng.randrange(len(operands))
        operands[at] = _operand(operands[at], [operand.address for operand in operands], sample, rng)
    return dataclasses.replace(call, inputs=tuple(operands[:count]), outputs=tuple(operands[count:]))


def _parameter(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return _wrapped(_integer(value, [value], rng), "q")
    if isinstance(value, float):
        return _float(value, "d", rng)
    return value[: rng.randrange(len(value) + 1)] if rng.random() < 0.5 else tuple(_parameter(v, rng) for v in value)


def _operand(operand: Operand, addresses: list[int], sample: Sample, rng: random.Random) -> Operand:
    kind = rng.randrange(4)
    if kind == 0:
        return dataclasses.replace(operand, dtype=rng.choice(list(type(operand.dtype))))
    if kind == 1 and operand.shape:
        shape = list(operand.shape)
        shape[rng.randrange(len(shape))] = _wrapped(_integer(rng.choice(shape), shape, rng), "I")
        return dataclasses.replace(operand, shape=tuple(shape))
    return dataclasses.replace(operand, address=_wrapped(_address(operand.address, addresses, sample, rng), "Q"))


# Commands


_CHANGES: tuple[Callable[[Instruction, Sample, random.Random], Instruction], ...] = (
    *[_field] * 30,
    *[_swapped] * 4,
    _still,
)


def _instructions(commands: list[Command], sample: Sample, rng: random.Random) -> None:
    """Change fields of some instructions."""
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 6))):
        at = rng.randrange(len(commands))
        changed = rng.choice(_CHANGES)(commands[at].instruction, sample, rng)
        commands[at] = dataclasses.replace(commands[at], instruction=changed)


def _order(commands: list[Command], sample: Sample, rng: random.Random) -> None:
    """Remove, duplicate or move a command, or insert one from another program."""
    at, to = rng.randrange(len(commands)), rng.randrange(len(commands))
    kind = rng.randrange(4)
    if kind == 0:
        del commands[at]
    elif kind == 1:
        commands.insert(to, commands[at])
    elif kind == 2:
        commands.insert(to, commands.pop(at))
    else:
        commands.insert(to, rng.choice(rng.choice(samples()).commands))


def _issue(commands: list[Command], sample: Sample, rng: random.Random) -> None:
    """Change the unit, core or operator; remove waits, or add waits for nothing or for any command."""
    at = rng.randrange(len(commands))
    command = commands[at]
    byte = rng.choice((0, 0, 1, 2, 3, Unit.DMA, Unit.DMA + 1, 255))
    kind = rng.randrange(6)
    waits = list(command.waits)
    if kind == 0:
        commands[at] = dataclasses.replace(command, unit=byte)
    elif kind == 1:
        commands[at] = dataclasses.replace(command, core=byte)
    elif kind == 2:
        commands[at] = dataclasses.replace(command, op=rng.choice((0, 1, 2, 1000, 2**32 - 1)))
    elif kind == 3 and waits:
        del waits[rng.randrange(len(waits))]
    elif kind == 4 and waits:
        wait = rng.choice(waits)
        waits[waits.index(wait)] = wait._replace(completed=_wrapped(_stepped(wait.completed, rng), "I"))
    else:
        waits += [Wait(rng.choice((0, 0, 1)), byte, rng.choice((0, 1, 2, 5, 2**32 - 1)))] * rng.choice((1, 1, 1, 200))
    if kind > 2:
        commands[at] = dataclasses.replace(command, waits=tuple(waits))


def _mixed(commands: list[Command], sample: Sample, rng: random.Random) -> None:
    for change in rng.sample((_instructions, _order, _issue), 2):
        if commands:
            change(commands, sample, rng)


_STREAMS: tuple[Callable[[list[Command], Sample, random.Random], None], ...] = (
    *[_instructions] * 9,
    _order,
    _issue,
    _mixed,
)


def _with_stream(sample: Sample, rng: random.Random) -> bytes:
    commands = list(sample.commands)
    rng.choice(_STREAMS)(commands, sample, rng)
    try:
        code = encode(commands)
    except (ProgramError, struct.error):  # not encodable
        code = sample.program.code
    constants = _scribbled(sample.constants, rng) if rng.random() < 0.1 else sample.constants
    return packed(sample.description.encode(), code, constants)


# Files


def _scribbled(data: bytes, rng: random.Random) -> bytes:
    """Write small and large integers of several sizes to some places, for example in index tables."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 2, 8)) if out else 0):
        size = rng.choice((1, 2, 4, 8))
        at = rng.randrange(len(out)) // size * size
        raw = _wrapped(rng.choice(NUMBERS) * rng.choice((1, -1)), "q").to_bytes(8, "little", signed=True)[:size]
        out[at : at + size] = raw[: len(out) - at]
    return bytes(out)


def _with_constants(sample: Sample, rng: random.Random) -> bytes:
    return packed(sample.description.encode(), sample.program.code, _scribbled(sample.constants, rng))


def _with_description(sample: Sample, rng: random.Random) -> bytes:
    """Replace, remove, duplicate or nest values, exchange them with others, or change sizes slightly."""
    document = {"all": json.loads(sample.description)}
    for _ in range(rng.choice((1, 1, 2, 3))):
        *way, last = rng.choice(places(document["all"], ("all",)))
        owner: Any = document
        for key in way:
            owner = owner[key]
        change = rng.randrange(8)
        if change == 0:
            del owner[last]
        elif change == 1 and isinstance(owner, list):
            owner.insert(last, copy.deepcopy(owner[last]))
        elif change == 2:
            owner[last] = [owner[last]]
        elif change == 3:
            other: Any = document
            for key in rng.choice(places(document["all"], ("all",))):
                other = other[key]
            owner[last] = copy.deepcopy(other)
        elif change < 7 and type(owner[last]) is int:
            owner[last] = _integer(owner[last], [owner[last]], rng)
        else:
            owner[last] = copy.deepcopy(rng.choice(ODD))
        if "all" not in document:
            break
    return packed(json.dumps(document.get("all")).encode(), sample.program.code, sample.constants)


def _with_bytes(sample: Sample, rng: random.Random) -> bytes:
    """Change bytes of the stream or of the description, with a valid checksum."""
    meta, code = bytearray(sample.description.encode()), bytearray(sample.program.code)
    part = rng.choice((meta, code, code))
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(part) + 1)
        kind = rng.randrange(4)
        if kind < 2:
            part[at : at + 1] = bytes([rng.choice((0, 1, 2, 4, 0x7F, 0x80, 0xFF, rng.randrange(256)))])
        elif kind == 2:
            del part[at : at + rng.choice((1, 2, 8, 64))]
        else:
            part[at:at] = rng.randbytes(rng.choice((1, 2, 8, 64)))
    return packed(bytes(meta), bytes(code), sample.constants)


def _with_header(sample: Sample, rng: random.Random) -> bytes:
    """Change bytes of the whole file, its length, or header fields, without adapting the checksum."""
    data = bytearray(packed(sample.description.encode(), sample.program.code, sample.constants))
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        return bytes(data) + rng.randbytes(rng.choice((1, 64, 4096)))
    if kind == 2:
        struct.pack_into("<Q", data, rng.choice((8, 16, 24, 32)), rng.choice(NUMBERS))
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def packed(meta: bytes, code: bytes, constants: bytes) -> bytes:
    """Return a program file with its checksum; see :mod:`npusim.cache` for the layout."""
    parts = (meta, code, constants)
    versions = struct.pack("<II", FORMAT_VERSION, ISA_VERSION)
    lengths = struct.pack("<QQQ", *map(len, parts))
    header = b"NPUSIM\x00\x1a" + versions + lengths + hashlib.sha256(versions + lengths + b"".join(parts)).digest()
    return b"".join(part + bytes(-len(part) % 64) for part in (header, *parts))


BREAKS: tuple[Callable[[Sample, random.Random], bytes], ...] = (
    *[_with_stream] * 14, _with_constants, *[_with_description] * 2, *[_with_bytes] * 2, _with_header,
)  # fmt: skip


def broken(rng: random.Random) -> tuple[Sample, bytes]:
    """Return a program, and a probably invalid file made from it."""
    sample = rng.choice(samples())
    return sample, rng.choice(BREAKS)(sample, rng)
