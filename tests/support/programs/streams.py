"""Small instruction streams for tests of the machine, the device and the driver."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.isa.base import Command, Instruction, Unit, Wait, encode, region
from npusim.isa.control import Halt, Residents
from npusim.isa.dma import Copy, Exchange, Expand, Fill, Gather, Multicast
from npusim.isa.functions import Binary, Unary
from npusim.isa.vector import BinaryOp, UnaryOp
from npusim.program import CONSTANTS, FIRST_IO, Binding, ConstantData, OpEntry, Program

QUICK_HOST = {
    "host.mmio": "0 ns", "host.irq": "0 ns", "host.link_latency": "0 ns", "host.submit": "0 ns", "host.map": "0 ns",
    "host.link_bandwidth": "1000 TB/s",
}  # fmt: skip
"""A host that takes the shortest configurable time, for jobs that must arrive at given times."""
ZERO4 = (0, 0, 0, 0)
LINE = (0, 0, 0, 1)


def copy(dst: int, src: int, size: int) -> Copy:
    """Return a contiguous copy of bytes."""
    return Copy(dst, LINE, src, LINE, (1, 1, 1, size), 1, ZERO4, ZERO4, 0)


def multicast(dst: int, src: int, size: int, cores: int) -> Multicast:
    """Return a contiguous copy of bytes to the cores of a mask."""
    return Multicast(dst, LINE, src, LINE, (1, 1, 1, size), 1, ZERO4, ZERO4, 0, cores)


def exchange(dst: int, src: int, size: int, source: int, cores: int) -> Exchange:
    """Return a contiguous copy of bytes from one core's SRAM to that of the cores of a mask."""
    return Exchange(dst, LINE, src, LINE, (1, 1, 1, size), 1, ZERO4, ZERO4, 0, source, cores)


def expand(dst: int, src: int, nbytes: int, size: int, bits: int = 8) -> Expand:
    """Return the expansion of a weight stream of ``size`` bytes."""
    return Expand(dst, src, nbytes, size, bits)


def fill(dst: int, size: int, value: int) -> Fill:
    return Fill(dst, LINE, (1, 1, 1, size), 1, value)


def gather(dst: int, data: int, index: int, count: int, axis_size: int) -> Gather:
    """Return a gather of single bytes of ``data`` by int32 indices in SRAM."""
    return Gather(dst, (0, 1, 1), data, (0, 1, 1), index, 4, DType.INT32, (1, count, 1), axis_size, 1)


def add(dst: int, a: int, b: int, size: int) -> BinaryOp:
    """Return a uint8 addition, modulo 256."""
    return BinaryOp(Binary.ADD, DType.UINT8, dst, LINE, a, LINE, b, LINE, (1, 1, 1, size))


def negate(dst: int, src: int, size: int) -> UnaryOp:
    return UnaryOp(Unary.NEG, DType.INT8, dst, LINE, src, LINE, (1, 1, 1, size), 0.0, 0.0)


class Stream:
    """Commands in the order of their issue; ``put`` returns what other commands wait for."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self._issued: dict[tuple[int, int], int] = {}

    def put(self, unit: int, instruction: Instruction, *waits: Wait, core: int = 0, op: int = 0) -> Wait:
        self.commands.append(Command(core, unit, op, waits, instruction))
        count = self._issued[core, unit] = self._issued.get((core, unit), 0) + 1
        return Wait(core, unit, count)

    def dma(self, instruction: Instruction, *waits: Wait, channel: int = 0, core: int = 0, op: int = 0) -> Wait:
        return self.put(Unit.DMA + channel, instruction, *waits, core=core, op=op)

    def vector(self, instruction: Instruction, *waits: Wait, core: int = 0, op: int = 0) -> Wait:
        return self.put(Unit.VECTOR, instruction, *waits, core=core, op=op)

    def keep(self, sram_bytes: int) -> None:
        """Declare that the commands so far load ``sram_bytes`` of resident weights."""
        size = sum(command.size for command in self.commands)
        self.commands.insert(0, Command(0, Unit.CONTROL, 0, (), Residents(size, sram_bytes)))

    def code(self) -> bytes:
        """Return the stream, ended by a halt."""
        return encode([*self.commands, Command(0, Unit.CONTROL, 0, (), Halt())])

    def program(
        self,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        scratch: int = 0,
        constants: bytes = b"",
        code: bytes | None = None,
    ) -> Program:
        """Return a program whose inputs x0, x1.. and outputs y0, y1.. are uint8 vectors of the given sizes."""
        sizes = [len(constants), scratch, *inputs, *outputs]
        first = FIRST_IO + len(inputs)
        return Program(
            "test", "", "", "",
            self.code() if code is None else code,
            ConstantData.of(np.frombuffer(constants, np.uint8)),
            tuple(sizes),
            tuple(Binding(f"x{i}", FIRST_IO + i, (size,), DType.UINT8) for i, size in enumerate(inputs)),
            tuple(Binding(f"y{i}", first + i, (size,), DType.UINT8) for i, size in enumerate(outputs)),
            (OpEntry("first", "Copy"), OpEntry("second", "Copy")),
            len(self.commands) + 1,
            (),
        )  # fmt: skip


def keeper(constants: bytes) -> Program:
    """Return y0 = its constants, which stay in SRAM: one copy on channel 0 loads them, one reads them."""
    stream = Stream()
    loaded = stream.dma(copy(0, region(CONSTANTS), len(constants)), op=1)
    stream.keep(len(constants))
    stream.dma(copy(region(FIRST_IO), 0, len(constants)), loaded)
    return stream.program([], [len(constants)], constants=constants)


def round_trip(size: int = 1000) -> Program:
    """Return y0 = x0 through SRAM: two copies on channel 0."""
    stream = Stream()
    loaded = stream.dma(copy(0, region(FIRST_IO), size))
    stream.dma(copy(region(FIRST_IO + 1), 0, size), loaded, op=1)
    return stream.program([size], [size])
