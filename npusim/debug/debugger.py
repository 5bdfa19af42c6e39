"""The debugger: runs the clock of a device to the next breakpoint, and back.

There are two ways to stop. A caller that controls the clock calls :meth:`Debugger.run_until` and gets a Stop: time is
halted after the event. In a blocking call such as ``Session.run``, ``on_stop`` is called during the event, and the call
continues when it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npusim.debug.history import History
from npusim.debug.stops import (
    ACCESSES,
    MEMORIES,
    AtInstruction,
    AtLayer,
    AtMemory,
    AtRegister,
    Breakpoint,
    InterruptBreakpoint,
    Range,
    SeqnoBreakpoint,
    Stop,
    how,
    seqno_of,
)
from npusim.debug.view import command_numbers
from npusim.device.npu import NpuDevice
from npusim.device.registers import BY_NAME
from npusim.device.stepping import HOUR_PS, InstructionCounter, Layers
from npusim.errors import UsageError
from npusim.isa.base import INSTRUCTIONS
from npusim.program import Program
from npusim.sim.job import MachineJob
from npusim.sim.stepper import Stepper
from npusim.sim.steps import Step
from npusim.sim.watch import Watcher
from npusim.timeline import Timeline


class _JobEnds(Watcher):
    """Stops at the end of each job."""

    steps = False

    def __init__(self, tell: Callable[[Stop], None], now: Callable[[], int]) -> None:
        self._tell, self._now = tell, now

    def job_ends(self, job: MachineJob, timeline: Timeline) -> None:
        self._tell(Stop("end", self._now(), f"job with seqno {seqno_of(job)} has ended{how(timeline)}"))


class Debugger:
    """Breakpoints on one device. ``programs``: programs of its jobs, for names of layers; more can be added to
    :attr:`programs`. ``on_stop``: called at a breakpoint in a blocking call. ``history``: whether to keep checkpoints
    for :meth:`back`."""

    def __init__(
        self,
        device: NpuDevice,
        *programs: Program,
        on_stop: Callable[[Stop], None] | None = None,
        history: bool = True,
    ) -> None:
        self.device = device
        self.programs = list(programs)
        self.on_stop = on_stop
        self.breakpoints: dict[int, Breakpoint] = {}
        self._number = 0
        self._found: list[Stop] = []
        self._running = self._quiet = False
        self._history = History(device, keep=history)
        self._names: tuple[Any, Program | None] = (None, None)
        self._numbers: tuple[Any, dict[int, int]] = (None, {})

    # Names

    def program(self) -> Program | None:
        """The program of the running job, if known."""
        player = self.device.machine.current
        if player is None:
            return None
        if self._names[0] is not player:
            code = self.device.machine.memory.slice(player.job.code, player.job.code_bytes)
            found = [item for item in self.programs if len(item.code) == code.size and item.code == code.tobytes()]
            self._names = player, found[0] if found else None
        return self._names[1]

    def layer(self, step: Step) -> str:
        """The operator of a step: its name, or its number if the program is unknown."""
        program = self.program()
        return program.ops[step.op].name if program and step.op < len(program.ops) else str(step.op)

    def command(self, step: Step) -> int | None:
        """The number of a step in the stream of the running job."""
        player = self.device.machine.current
        if not isinstance(player, Stepper):
            return None
        if self._numbers[0] is not player:
            self._numbers = player, command_numbers(player)
        return self._numbers[1].get(step.begin)

    # Breakpoints

    def _arm(self, make: Callable[[int], Breakpoint]) -> Breakpoint:
        made = make(self._number + 1)
        self._number += 1
        self.breakpoints[self._number] = made
        self.device.watch(made)
        return made

    def break_layer(self, layer: str) -> Breakpoint:
        """Stop when the first instruction of an operator begins. Raises UsageError."""
        names = {entry.name for program in self.programs for entry in program.ops}
        if self.programs and layer not in names:
            some = ", ".join(sorted(names)[:8])
            raise UsageError(f"layer must be one of the program's, such as {some}, got {layer!r}")
        return self._arm(lambda number: AtLayer(self, number, self._tell, layer))

    def break_instruction(self, which: int | str) -> Breakpoint:
        """Stop when the command with a number in the stream begins, or any command of a kind such as ``dma.copy``."""
        if isinstance(which, int):
            return self._arm(lambda number: AtInstruction(self, number, self._tell, command=which))
        kinds = sorted(cls.mnemonic for cls in INSTRUCTIONS.values())
        if which not in kinds:
            raise UsageError(f"instruction must be a number or one of {', '.join(kinds)}, got {which!r}")
        return self._arm(lambda number: AtInstruction(self, number, self._tell, mnemonic=which))

    def break_address(self, address: int) -> Breakpoint:
        """Stop when the command at a DRAM address begins."""
        return self._arm(lambda number: AtInstruction(self, number, self._tell, address=address))

    def break_register(self, register: str, value: int | None = None) -> Breakpoint:
        """Stop when software reads or writes a register, or writes a given value. Raises UsageError."""
        if register not in BY_NAME:
            raise UsageError(f"there is no register {register!r}; docs/device.md has the list")
        return self._arm(lambda number: AtRegister(self, number, self._tell, register, value))

    def break_seqno(self, seqno: int | None = None) -> Breakpoint:
        """Stop when the job with a seqno, or any job, is dispatched, and when it ends."""
        return self._arm(lambda number: SeqnoBreakpoint(self, number, self._tell, seqno))

    def break_interrupt(self) -> Breakpoint:
        """Stop when the device sends an interrupt."""
        return self._arm(lambda number: InterruptBreakpoint(self, number, self._tell))

    def watch(
        self, memory: str, address: int, size: int = 4, access: str = "value", *, core: int = 0, label: str = ""
    ) -> Breakpoint:
        """Stop when bytes of ``dram`` or ``l2``, or of ``sram`` or ``acc`` of a core, are read, written, either
        (``access``), or changed (``value``). Raises UsageError."""
        if memory not in MEMORIES or access not in ACCESSES:
            raise UsageError(f"watch: must be {', '.join(MEMORIES)} and {', '.join(ACCESSES)}, got {memory} {access}")
        if not 0 <= core < self.device.config.cores:
            raise UsageError(f"watch: core must be below {self.device.config.cores}, got {core}")
        where = Range(memory, core, address, size)
        if address < 0 or size < 1 or where.of(self.device).size != size:
            raise UsageError(f"watch: there is no {where}")
        return self._arm(lambda number: AtMemory(self, number, self._tell, where, access, label))

    def delete(self, number: int | None = None) -> None:
        """Delete a breakpoint, or all. Raises UsageError."""
        numbers = list(self.breakpoints) if number is None else [number]
        for each in numbers:
            if each not in self.breakpoints:
                raise UsageError(f"there is no breakpoint {each}")
            self.device.unwatch(self.breakpoints.pop(each))

    def _tell(self, stop: Stop) -> None:
        if self._quiet:
            return
        if self._running:
            self._found.append(stop)
        elif self.on_stop is not None:
            self.on_stop(stop)

    # The clock

    def run_until(self, time_ps: int | None = None) -> Stop:
        """Advance to a breakpoint, the end of a job, or a time in ps; None: as long as events are pending."""
        clock = self.device.machine.clock
        limit = clock.now + HOUR_PS if time_ps is None else time_ps
        if limit < clock.now:
            raise UsageError(f"time must not go back: {limit} ps is before {clock.now} ps, which is now")

        def done() -> object:
            return self._found or (time_ps is None and clock.coming is None)

        self._run(done, limit)
        if self._found:
            return self._found[0]
        return Stop("time", clock.now, "no events are pending" if time_ps is None else "the time was reached")

    def step(self, what: str = "instruction", count: int = 1) -> Stop:
        """Advance by ended instructions, begun layers, or cycles; or to a breakpoint or the end of a job."""
        if what == "cycle":
            return self.run_until(self.device.now_ps + count * self.device.machine.cycle_ps)
        if what not in ("instruction", "layer"):
            raise UsageError(f"step: must be instruction, layer or cycle, got {what!r}")
        counter = InstructionCounter() if what == "instruction" else Layers(self.device.machine.current)
        clock = self.device.machine.clock
        self.device.watch(counter)
        try:
            self._run(lambda: counter.count >= count or self._found or clock.coming is None, clock.now + HOUR_PS)
        finally:
            self.device.unwatch(counter)
        if self._found:
            return self._found[0]
        text = f"{counter.count} {what}{'s' if counter.count != 1 else ''}"
        return Stop("step", clock.now, text if counter.count else "no events are pending")

    def back(self, what: str = "instruction", count: int = 1) -> Stop:
        """Go back by ended instructions, begun layers, or cycles, or (``stop``) to the previous position of the clock,
        if only this debugger has advanced the clock since.

        Raises UsageError without a history.
        """
        self._quiet = True
        try:
            text = self._history.back(what, count)
        finally:
            self._quiet = False
        for each in self.breakpoints.values():
            each.again()
        return Stop("back", self.device.now_ps, text)

    def _run(self, done: Callable[[], object], limit: int) -> None:
        self.device.machine.clock.check_outside("to run the clock")
        ends = _JobEnds(self._tell, lambda: self.device.now_ps)
        self.device.watch(ends)
        self._found, self._running = [], True
        try:
            self._history.run(done, limit)
        finally:
            self._running = False
            self.device.unwatch(ends)
