"""Instructions drawn from the declarations of their fields: any encodable ones, and small executable ones."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, get_args, get_type_hints

import numpy as np
from hypothesis import strategies as st

from npusim.dtypes import DEVICE_DTYPES, DType
from npusim.isa.base import ADDRESS, TAIL, Command, Instruction, Unit, Wait, region
from npusim.isa.dma import Expand, Fetch, Multicast
from npusim.isa.matrix import Depthwise
from npusim.isa.matrix_extras import NO_EXTRAS, NOTHING, Extras
from npusim.isa.matrix_types import PACKED_BITS
from npusim.isa.repeat import Repeat, Strides
from npusim.isa.routine import Call, Operand
from npusim.isa.row_parts import Part, RowPart
from npusim.routines import canonical
from tests.support.sample_routines import PLAIN

_INTEGERS = {
    "B": (0, 2**8),
    "H": (0, 2**16),
    "I": (0, 2**32),
    "Q": (0, 2**64),
    "h": (-(2**15), 2**15),
    "i": (-(2**31), 2**31),
    "q": (-(2**63), 2**63),
}


@functools.cache
def field_codes(cls: type[Instruction]) -> dict[str, tuple[str, int, Any]]:
    """Return for each field its struct code, its length (0 for a scalar), and its enumeration, if any."""
    hints = get_type_hints(cls, include_extras=True)
    codes = {}
    for field in dataclasses.fields(cls):
        code, *rest = get_args(hints[field.name])[1:]
        codes[field.name] = (code[-1], int(code[:-1] or 0), rest[0] if rest and rest[0] is not ADDRESS else None)
    return codes


@functools.cache
def address_fields(cls: type[Instruction]) -> frozenset[str]:
    """Return the names of address fields; other 64-bit fields are sizes, masks and patterns."""
    return frozenset(field.name for field in dataclasses.fields(cls) if field.type == "Address")


_OPERANDS = st.builds(
    Operand,
    st.integers(0, 2**64 - 1),
    st.sampled_from(DType),
    st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
)
_VALUES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8)
CALLS = st.builds(
    Call,
    st.text(max_size=20),
    st.integers(0, 2**16 - 1),
    st.dictionaries(st.text(max_size=8), _VALUES | st.lists(_VALUES, max_size=3).map(tuple), max_size=3).map(canonical),
    st.lists(_OPERANDS, max_size=3).map(tuple),
    st.lists(_OPERANDS, max_size=3).map(tuple),
)
"""Draws any encodable call, of unknown routines."""


_WORDS = st.integers(0, 2**32 - 1)
_ADDRESSES = st.integers(0, 2**64 - 1)
EXTRAS = st.builds(
    Extras, st.booleans(), st.integers(0, 255), st.booleans(), *[_WORDS] * 2, *[_ADDRESSES] * 3, *[_WORDS] * 5,
    *[st.integers(0, 255)] * 6,
)  # fmt: skip
"""Draws any value of the bytes after a matrix instruction, sometimes none."""


_STRIDES = st.dictionaries(
    st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**8 - 1)),
    st.integers(-(2**63), 2**63 - 1).filter(bool),
    max_size=4,
).map(lambda found: Strides(tuple((*place, step) for place, step in sorted(found.items()))))


def _tails(cls: type[Instruction]) -> st.SearchStrategy[Any]:
    if cls is Repeat:
        return _STRIDES
    return st.just(NO_EXTRAS) | EXTRAS if cls.unit is Unit.MATRIX else CALLS


def _element(code: str, enumeration: Any) -> st.SearchStrategy[Any]:
    if enumeration is not None:
        return st.sampled_from(list(enumeration))
    if code == "?":
        return st.booleans()
    if code in "fd":
        return st.floats(width=32 if code == "f" else 64, allow_nan=False)
    low, end = _INTEGERS[code]
    return st.integers(low, end - 1)


def encodable(cls: type[Instruction]) -> st.SearchStrategy[Instruction]:
    """Draw any values that the fields can hold."""
    parts = {}
    for name, (code, count, enumeration) in field_codes(cls).items():
        element = _tails(cls) if code == TAIL else _element(code, enumeration)
        parts[name] = st.tuples(*[element] * count) if count else element
    return st.builds(cls, **parts)


def commands(cls: type[Instruction]) -> st.SearchStrategy[Command]:
    """Draw a command around any instruction of a class."""
    byte, count = st.integers(0, 255), st.integers(0, 2**32 - 1)
    waits = st.lists(st.builds(Wait, byte, st.sampled_from([0, 1, 2, 3, 7, 8, 9, 255]), count), max_size=4)
    units = st.integers(8, 255) if cls.unit is Unit.DMA else st.just(int(cls.unit))
    return st.builds(Command, byte, units, count, waits.map(tuple), encodable(cls))


AREA = 4096
"""Size of the area that each address field points to, with room on both sides."""
_SMALL_TYPES = (DType.INT8, DType.UINT8, DType.INT16)
_TYPES = {
    "index_type": [DType.INT32, DType.INT64],
    "real": [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16],
}
"""Types of fields that accept only a few."""


class Executable:
    """Draws small instructions whose operands are in separate areas."""

    def __init__(self, cls: type[Instruction], seed: int) -> None:
        self.cls = cls
        self.rng = np.random.default_rng((cls.opcode, seed))

    def make(self) -> Instruction:
        area = 0
        values: dict[str, Any] = {}
        for name, (code, count, enumeration) in field_codes(self.cls).items():
            if code == TAIL:
                values[name] = self._extras(area) if self.cls.unit is Unit.MATRIX else self._call()
            elif name in address_fields(self.cls):
                optional = name in ("bias", "scale") and self.cls.mnemonic.startswith("matrix.")
                values[name] = NOTHING if optional and self.rng.random() < 0.4 else area * AREA + AREA // 2
                area += 1
            else:
                values[name] = self._value(name, code, count, enumeration)
        self._agree(values)
        return self.cls(**values)

    def _extras(self, area: int) -> Extras:
        """Draw the extras of a matrix instruction, in areas from ``area`` on; ``_agree`` makes the types match."""
        if self.rng.random() < 0.3:
            return NO_EXTRAS
        places = [NOTHING if self.rng.random() < 0.4 else (area + i) * AREA + AREA // 2 for i in range(3)]
        block = int(self.rng.integers(1, 5))
        scaled = places[0] != NOTHING
        blocks = [int(self.rng.integers(1, 5)) for _ in range(4)]
        if self.cls is Depthwise or self.rng.random() < 0.5:
            blocks = [0] * 4
        phases = [0] * 7
        bits = int(self._pick([0, *PACKED_BITS]))
        as_product = any(blocks) and not bits and not scaled and bool(self.rng.random() < 0.5)
        if self.cls is not Depthwise and not any(blocks) and self.rng.random() < 0.5:
            rows, cols = (int(self.rng.integers(1, 4)) for _ in range(2))
            full = [int(self.rng.integers(1, count + 1)) for count in (rows, cols)]
            phases = [
                int(self.rng.integers(2, 5)),
                rows,
                cols,
                *full,
                *(int(self.rng.integers(end + 1)) for end in full),
            ]
        return Extras(
            bool(self.rng.random() < 0.4) and not scaled,
            bits,
            as_product,
            int(self.rng.integers(block)) if scaled else 0,
            block if scaled else 0,
            places[0],
            places[1] if scaled else NOTHING,
            places[2],
            *blocks,
            *phases,
        )

    def _call(self) -> Call:
        """Draw one of the test routines on small operands."""
        start = AREA // 2
        rows, count, depth = (self._integer("dims", "I") for _ in range(3))
        if self.cls.unit is Unit.VECTOR:
            operands = [Operand(area * AREA + start, DType.INT8, (rows, count)) for area in range(2)]
            return Call("test.square", 1, (), (operands[0],), (operands[1],))
        shapes = ((rows, count, depth), (count,), (rows, count, depth), (depth, rows))
        kinds = (DType.INT32, DType.INT32, DType.INT32, DType.UINT8)
        operands = [
            Operand(area * AREA + start, kind, shape)
            for area, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
        ]
        return Call("test.scale", 1, canonical(PLAIN), tuple(operands[:2]), tuple(operands[2:]))

    def _value(self, name: str, code: str, count: int, enumeration: Any) -> Any:
        if enumeration is DType:
            return self._pick(sorted(DEVICE_DTYPES))
        if enumeration is not None:
            return self._pick(list(enumeration))
        if count:
            return tuple(self._integer(name, code) for _ in range(count))
        return self._integer(name, code)

    def _integer(self, name: str, code: str) -> Any:
        if code == "?":
            return bool(self.rng.random() < 0.5)
        if code in "fd":
            return float(self._pick([0.0, 0.5, 1.0, 2.0, -1.0]))
        if code == "q":
            return int(self._pick([0, 8, 8, 16, 24, 40, 72, -8, -16]))
        if name == "cores":
            return int(self.rng.integers(1, 8))
        if code == "Q":
            return int(self.rng.integers(0, 2**63))
        if name == "itemsize":
            return int(self._pick([1, 2, 4, 8]))
        if name in ("before", "after", "pads", "fn", "reduction"):
            return int(self.rng.integers(0, 3))
        return int(self.rng.integers(1, 5)) if self.rng.random() < 0.97 else 0

    def _pick(self, options: list[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def _agree_on_row(self, values: dict[str, Any]) -> None:
        values["fn"] = self._pick(list(Part))
        if values["fn"] < Part.CUMSUM:
            values["dtype"] = self._pick([DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
        values["count"] = values["at"] + values["dims"][1]

    def _agree(self, values: dict[str, Any]) -> None:
        """Make types match, which random ones seldom do."""
        if "w_type" in values:
            kinds = [(t, t) for t in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT32)]
            bytes_ = [DType.INT8, DType.UINT8]
            extras = values["extras"]
            small = [(a, b) for a in (*_SMALL_TYPES, DType.UINT16) for b in _SMALL_TYPES]
            kinds = small if extras.wide else kinds + small
            if extras.w_scale != NOTHING:
                kinds = [(a, b) for a in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16) for b in bytes_]
            if extras.w_bits:
                kinds = [(a, b) for a, b in kinds if b in bytes_]
            values["x_type"], values["w_type"] = self._pick(kinds)
            if values["w_type"] not in bytes_ or extras.w_scale != NOTHING:
                values["w_zero"] = 0
            values["scale_stride"] = self._pick([0, 4])
            values |= dict.fromkeys(("oh", "kh", "kw", "sw") if extras.pixel_blocks else (), 1)
            values["low"], values["high"] = self._pick([(float("-inf"), float("inf")), (-4.0, 6.0)])
            values["out_scale"] = self._pick([1.0, 0.5])
        if "source" in values:
            values["source"] = 3  # which is not one of the target cores
        if issubclass(self.cls, Multicast | Expand | Fetch):
            values["src"] = region(0, values["src"])
        if issubclass(self.cls, Expand):
            values["nbytes"], values["bits"] = int(self.rng.integers(1, 9)), self._pick([2, 4, 8])
            values["size"] = values["nbytes"] + 1  # of a plain block: the bytes follow its mode byte unchanged
        values.update({name: self._pick(types) for name, types in _TYPES.items() if name in values})
        if issubclass(self.cls, RowPart):
            self._agree_on_row(values)
        for name in ("k", "ih", "iw"):
            if name == "k" and name in values:
                values[name] = min(values[name], values["dims"][1])
