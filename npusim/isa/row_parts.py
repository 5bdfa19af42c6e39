"""Vector instructions on parts of rows that are longer than SRAM. A state in SRAM carries intermediate results."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from npusim import _core
from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.base import F64, U8, U32, Access, Address, Flag, Memory, Unit, instruction, span
from npusim.isa.reduction import RowInstruction
from npusim.work import VectorWork, Work

STATE_BYTES = 16
"""Per row: two numbers of 8 bytes."""


class Part(enum.IntEnum):
    """The function of a part of a row. The state is (a, b)."""

    SOFTMAX_TOTAL = 0
    """a: the largest element so far; b: the sum of exp(x - a)."""
    SOFTMAX = 1
    """exp(x - a) / b"""
    LOG_SOFTMAX = 2
    """x - a - log(b)"""
    MASKED_SOFTMAX = 3
    """The same, with zeros if a is -inf."""
    SUM = 4
    """a: the sum so far."""
    CENTRED_SQUARES = 5
    """b: the sum of (x - a / count)^2."""
    SQUARES = 6
    """b: the sum of x^2."""
    NORMALIZE = 7
    """(x - a / count) / sqrt(b / count + epsilon)"""
    RMS_NORMALIZE = 8
    """x / sqrt(b / count + epsilon)"""
    CUMSUM = 9
    """a: the sum so far. Inclusive running sums."""
    CUMPROD = 10
    """a: the product so far. Inclusive running products."""
    ARG_MAX = 11
    """a: the sort key of the largest element so far; b: its position. The last part writes the position."""
    ARG_MIN = 12
    """The same for the smallest element."""


GATHERING = frozenset({Part.SOFTMAX_TOTAL, Part.SUM, Part.CENTRED_SQUARES, Part.SQUARES})
"""Parts that only write the state."""
ARGUMENTS = frozenset({Part.ARG_MAX, Part.ARG_MIN})
_FLOAT_ONLY = frozenset(Part) - ARGUMENTS - {Part.CUMSUM, Part.CUMPROD}
_FUNCTIONS = {Part.SOFTMAX_TOTAL: ("transcendental", 2), Part.SOFTMAX: ("transcendental", 1)}
_FUNCTIONS[Part.LOG_SOFTMAX] = _FUNCTIONS[Part.MASKED_SOFTMAX] = _FUNCTIONS[Part.SOFTMAX]
_FUNCTIONS |= dict.fromkeys((Part.CUMSUM, Part.CUMPROD, *ARGUMENTS), ("reduce", 1))


@instruction(0x4A, "vector.row_part", Unit.VECTOR)
class RowPart(RowInstruction):
    """``fn`` (Part) of a part of each row of ``count`` elements. The part begins at element ``at``.

    ``first``: initialise the state [outer][inner] of 16 bytes; otherwise continue with it. The results of all parts are
    those of the instruction on whole rows, bit for bit. Running sums and products must process parts in order of
    summation, which ``reverse`` inverts.
    """

    fn: U8
    first: Flag
    last: Flag
    state: Address
    count: U32
    at: U32
    epsilon: F64
    exclusive: Flag
    reverse: Flag
    select_last: Flag

    def check(self) -> None:
        if self.fn >= len(Part):
            raise ProgramError(f"vector.row_part: function must be below {len(Part)}, got {self.fn}")
        if self.at + self.dims[1] > self.count:
            raise ProgramError(
                f"vector.row_part: elements {self.at} to {self.at + self.dims[1]} of a row of {self.count}"
            )
        if not self.dtype.is_float and self.fn in _FLOAT_ONLY:
            raise ProgramError(f"vector.row_part: type must be a float type, got {self.dtype.label}")
        if self.dtype is DType.BOOL and self.fn in (Part.CUMSUM, Part.CUMPROD):
            raise ProgramError("vector.row_part: type must be a number, got bool")
        RowInstruction.check(self)

    def accesses(self) -> Iterator[Access | None]:
        outer, _, inner = self.dims
        yield span(self.src, self.dims, self.src_strides, self.dtype.itemsize, False)
        yield span(self.state, (outer * inner,), (STATE_BYTES,), STATE_BYTES, True)
        if self.fn in ARGUMENTS and self.last:
            yield span(self.dst, (outer, 1, inner), self.dst_strides, 8, True)
        elif self.fn not in GATHERING | ARGUMENTS:
            yield span(self.dst, self.dims, self.dst_strides, self.dtype.itemsize, True)

    def work(self) -> Work:
        function, passes = _FUNCTIONS.get(Part(self.fn), ("simple", 1))
        outer, row, inner = self.dims
        elements = outer * row * inner
        moved = elements * self.dtype.itemsize * passes
        if self.fn in ARGUMENTS:
            moved += outer * inner * 8 * self.last
        elif self.fn not in GATHERING:
            moved += elements * self.dtype.itemsize
        return VectorWork(function, self.dtype, elements, passes, moved)

    def execute(self, memory: Memory, core: int) -> None:
        dtype, dst, src, dims = self._operands(memory, core)
        state = memory.at(core, self.state, (dims[2] * STATE_BYTES, STATE_BYTES))
        _core.row_part(
            self.fn, dtype, dst, src, state, dims, self.first, self.last, self.count, self.at, self.epsilon,
            self.exclusive, self.reverse, self.select_last,
        )  # fmt: skip
