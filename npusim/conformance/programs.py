"""The test programs of the suite: small, with known results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.hw.config import Config
from npusim.isa.base import Command, Instruction, Unit, Wait, encode, region
from npusim.isa.control import Halt, Residents
from npusim.isa.dma import Copy, Gather
from npusim.program import CONSTANTS, FIRST_IO, SCRATCH, Binding, ConstantData, OpEntry, Program

LINE, NO_PADDING = (0, 0, 0, 1), (0, 0, 0, 0)
SLOW_COPIES, LONG_COPIES = 400, 12_000


def _copy(dst: int, src: int, size: int) -> Copy:
    return Copy(dst, LINE, src, LINE, (1, 1, 1, size), 1, NO_PADDING, NO_PADDING, 0)


class SuitePrograms:
    """The test programs, made for one device, on its first DMA channel."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def round_trip(self, size: int = 64) -> Program:
        """y = x, uint8."""
        return self._made("round_trip", [_copy(0, region(FIRST_IO), size), _copy(region(FIRST_IO + 1), 0, size)], size)

    def twice(self, size: int = 64) -> Program:
        """y0 = y1 = x, uint8."""
        copies = [_copy(0, region(FIRST_IO), size), *(_copy(region(FIRST_IO + at), 0, size) for at in (1, 2))]
        return self._made("twice", copies, inputs=[size], outputs=[size, size])

    def constant(self, data: bytes) -> Program:
        """y = the constants, which stay in SRAM between jobs."""
        load, size = _copy(0, region(CONSTANTS), len(data)), len(data)
        prologue = Residents(len(_commands([load])[0].to_bytes()), size)
        copies: list[Instruction] = [prologue, load, _copy(region(FIRST_IO), 0, size)]
        return self._made("constant", copies, inputs=[], outputs=[size], constants=data)

    def slow(self, size: int = 64) -> Program:
        """y = x after a delay: about 200 us on the smallest device."""
        waste = [_copy(4096, region(SCRATCH), 4096) for _ in range(SLOW_COPIES)]
        return self._made(
            "slow", [*waste, _copy(0, region(FIRST_IO), size), _copy(region(FIRST_IO + 1), 0, size)], size, scratch=4096
        )

    def picked(self, count: int = 16, axis: int = 32) -> Program:
        """y = the constants 0, 1, 2.. at the int32 indices x. An index out of range is fault DATA."""
        gather = Gather(64, (0, 1, 1), region(CONSTANTS), (0, 1, 1), 0, 4, DType.INT32, (1, count, 1), axis, 1)
        loaded, stored = _copy(0, region(FIRST_IO), 4 * count), _copy(region(FIRST_IO + 1), 64, count)
        constants = bytes(range(axis))
        return self._made("picked", [loaded, gather, stored], inputs=[4 * count], outputs=[count], constants=constants)

    def nonsense(self, size: int = 64) -> Program:
        """Writes beyond the end of its output: fault PROGRAM."""
        copies = [_copy(0, region(FIRST_IO), size), _copy(region(FIRST_IO + 1), 0, size + 1)]
        return self._made("nonsense", copies, size)

    def endless(self, size: int = 64) -> Program:
        """y = x after about 100 ms on the smallest device."""
        waste = [_copy(1024, region(SCRATCH), 65536) for _ in range(LONG_COPIES)]
        copies = [*waste, _copy(0, region(FIRST_IO), size), _copy(region(FIRST_IO + 1), 0, size)]
        return self._made("endless", copies, size, scratch=65536)

    def huge(self) -> Program:
        """A program that needs more scratch memory than the DRAM has."""
        return self._made("huge", [], inputs=[], outputs=[], scratch=self._config.dram.bytes + (1 << 20))

    def half(self, size: int = 64, *, twice: bool = False) -> Program:
        """y = x, with scratch memory of more than half of the DRAM. ``twice``: and another output of that size, so that
        one of the two fits, but not both."""
        large = self._config.dram.bytes // 16 * 9
        copies = [_copy(0, region(FIRST_IO), size), _copy(region(FIRST_IO + 1), 0, size)]
        return self._made("half", copies, inputs=[size], outputs=[size, large] if twice else [size], scratch=large)

    def _made(
        self,
        name: str,
        instructions: Sequence[Instruction],
        size: int = 0,
        *,
        inputs: Sequence[int] | None = None,
        outputs: Sequence[int] | None = None,
        scratch: int = 0,
        constants: bytes = b"",
    ) -> Program:
        inputs, outputs = [size] if inputs is None else inputs, [size] if outputs is None else outputs
        commands, first = _commands(instructions), FIRST_IO + len(inputs)
        return Program(
            name,
            self._config.name,
            self._config.fingerprint(),
            "",
            encode([*commands, Command(0, Unit.CONTROL, 0, (), Halt())]),
            ConstantData.of(np.frombuffer(constants, np.uint8)),
            (len(constants), scratch, *inputs, *outputs),
            tuple(Binding(f"x{at}", FIRST_IO + at, (bytes_,), DType.UINT8) for at, bytes_ in enumerate(inputs)),
            tuple(Binding(f"y{at}", first + at, (bytes_,), DType.UINT8) for at, bytes_ in enumerate(outputs)),
            (OpEntry(name, "Copy"),),
            len(commands) + 1,
            (),
        )


def _commands(instructions: Sequence[Instruction]) -> list[Command]:
    """Commands in sequence on channel 0. Each waits for the previous one."""
    commands, done = list[Command](), 0
    for instruction in instructions:
        if isinstance(instruction, Residents):
            commands.append(Command(0, Unit.CONTROL, 0, (), instruction))
            continue
        waits = (Wait(0, Unit.DMA, done),) if done else ()
        commands.append(Command(0, Unit.DMA, 0, waits, instruction))
        done += 1
    return commands
