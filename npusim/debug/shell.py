"""The commands of the terminal debugger, one per line, typed or from a script."""

from __future__ import annotations

import cmd
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from npusim.debug.bench import Bench, JobRequest
from npusim.debug.stops import ACCESSES, MEMORIES, Range, Stop, bytes_of
from npusim.debug.view import look
from npusim.debug.viewtext import job_lines, queue_text, ring_lines, time_text, unit_line, view_text
from npusim.device.checkpoint import Checkpoint
from npusim.dtypes import DEVICE_DTYPES, from_storage
from npusim.errors import NpusimError, UsageError
from npusim.isa import decode
from npusim.isa.disassemble import disassemble
from npusim.program import CONSTANTS, SCRATCH, Binding, Place, Program
from npusim.units import Dimension, parse

AROUND = 4
"""Instructions shown before and after the current one by ``list``."""


_SHORT = {"accumulators": "acc"}
"""Short names of memories."""
_MOST_NAMES = 24


class _Said:
    """A stream whose lines are passed to ``say``."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._begun = say, ""

    def write(self, text: str) -> None:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._say(line)

    def flush(self) -> None:
        """Nothing to do: only an incomplete line is buffered."""


class Shell(cmd.Cmd):
    """``say(text)`` prints. ``strict``: stop at the first error and set ``failed``, for scripts."""

    prompt = "(npusim) "
    identchars = cmd.Cmd.identchars + "-"

    def __init__(
        self, bench: Bench, request: JobRequest, say: Callable[[str], None], *, stdin: IO[str], strict: bool
    ) -> None:
        # The library prints its own help. Pass it to ``say`` as well.
        super().__init__(stdin=stdin, stdout=cast("IO[str]", _Said(say)))
        # Without a terminal there is no line editing; lines are read from ``stdin`` as given.
        self.use_rawinput = not strict
        if strict:
            self.prompt = ""
        self.bench, self.device, self.debugger = bench, bench.device, bench.debugger
        self._request = request
        self._program: Program = request.program
        self._arrival: Any = None
        self._say = say
        self._strict = strict
        self.failed: NpusimError | None = None
        self._stop = Stop("start", self.device.now_ps, "the program is loaded; run, step or continue submits the job")
        self._loaded = bench.load(self._program)

    # The loop

    def preloop(self) -> None:
        self._say(self._stop.text)

    def onecmd(self, line: str) -> bool:
        try:
            return bool(super().onecmd(line.partition("#")[0].strip()))
        except (NpusimError, ValueError, OSError) as error:
            problem = error if isinstance(error, NpusimError) else UsageError(str(error))
            if self._strict:
                self.failed = problem
                return True
            self._say(f"error: {problem}")
            return False

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        if line == "EOF":
            return
        known = ", ".join(sorted({name[3:] for name in self.get_names() if name.startswith("do_")} - {"EOF"}))
        raise UsageError(f"unknown command {line.split(maxsplit=1)[0]!r}; there are {known}")

    def do_EOF(self, _: str) -> bool:  # noqa: N802 the name that the library calls
        return True

    def do_quit(self, _: str) -> bool:
        """quit: end the debugger."""
        return True

    # The clock

    def _submitted(self) -> None:
        if self._arrival is None:
            self._arrival = self.bench.submit(self._request)

    def _show(self, stop: Stop) -> None:
        self._stop = stop
        number = f"breakpoint {stop.number}, " if stop.number else ""
        self._say(f"{time_text(stop.at_ps)}: {number}{stop.kind}: {stop.text}")

    def do_run(self, line: str) -> None:
        """run: submit the job, unless it was submitted, and continue to the next stop."""
        self.do_continue(line)

    def do_continue(self, line: str) -> None:
        """continue [TIME]: continue to a breakpoint or the end of the job, at most for a time such as 2.5us."""
        self._submitted()
        limit = self.device.now_ps + parse(line, Dimension.TIME) if line else None
        self._show(self.bench.run_until(limit))

    def do_until(self, line: str) -> None:
        """until TIME: continue to a time since power-on, such as 1.2ms, or 120000 for ps; or to a breakpoint."""
        self._submitted()
        self._show(self.bench.run_until(int(line) if line.isdecimal() else parse(line, Dimension.TIME)))

    def do_step(self, line: str) -> None:
        """step [instruction|layer|cycle] [N]: continue until N have ended, begun or passed."""
        self._submitted()
        self._show(self.debugger.step(*_what(line)))

    def do_back(self, line: str) -> None:
        """back [instruction|layer|cycle|stop] [N]: go back in time, by replay from the nearest checkpoint."""
        self._show(self.debugger.back(*_what(line)))

    # Breakpoints

    def do_break(self, line: str) -> None:
        """break layer NAME | instruction NUMBER|KIND | address A | register NAME [VALUE] | seqno [N] | interrupt"""
        kind, *rest = shlex.split(line) or [""]
        debugger = self.debugger
        makers: dict[str, Callable[..., Any]] = {
            "layer": debugger.break_layer,
            "instruction": lambda which: debugger.break_instruction(int(which) if which.isdecimal() else which),
            "address": lambda address: debugger.break_address(_number(address)),
            "register": lambda name, value=None: debugger.break_register(
                name, None if value is None else _number(value)
            ),
            "seqno": lambda seqno=None: debugger.break_seqno(seqno and _number(seqno)),
            "interrupt": debugger.break_interrupt,
        }
        if kind not in makers:
            raise UsageError(f"break: must be one of {', '.join(makers)}, got {kind!r}")
        try:
            made = makers[kind](*rest)
        except TypeError:
            raise UsageError(f"usage: {self.do_break.__doc__}") from None
        self._say(f"breakpoint {made.number}: {made}")

    def do_watch(self, line: str) -> None:
        """watch dram|sram|acc ADDRESS [SIZE] [read|write|access|value] [CORE] | tensor NAME [ACCESS]"""
        memory, *rest = shlex.split(line) or [""]
        if memory == "tensor" and rest:
            self._submitted()
            binding = self._binding(rest[0])
            address, access = self._address(binding.region), rest[1] if len(rest) > 1 else "value"
            made = self.debugger.watch("dram", address, max(1, binding.nbytes), access, label=f"tensor {binding.name}")
        elif memory in MEMORIES and rest:
            sizes = [_number(item) for item in rest if item not in ACCESSES]
            access = next((item for item in rest if item in ACCESSES), "value")
            address, size, core = (*sizes, *(0, 4, 0)[len(sizes) :])
            made = self.debugger.watch(memory, address, size, access, core=core)
        else:
            raise UsageError(f"usage: {self.do_watch.__doc__}")
        self._say(f"breakpoint {made.number}: {made}")

    def do_delete(self, line: str) -> None:
        """delete [NUMBER]: delete a breakpoint, or all."""
        self.debugger.delete(_number(line) if line else None)

    def do_breakpoints(self, _: str) -> None:
        """breakpoints: list breakpoints with their hit counts."""
        for each in self.debugger.breakpoints.values():
            self._say(f"{each.number}: {each}, {each.hits} times")

    # Looking

    def do_where(self, _: str) -> None:
        """where: show the time, the reason of the stop, and the state of each unit."""
        view = self._view()
        self._say(f"{time_text(view['now_ps'])}: {self._stop.kind}: {self._stop.text}")
        for job in view["jobs"]:
            self._say("\n".join(job_lines(job)))

    def do_print(self, line: str) -> None:
        """print all | tensor NAME [COUNT] [TYPE] | memory dram|sram|acc ADDRESS [SIZE] [CORE] | register [NAME] |
        unit [NAME] | queue NAME | ring [NAME]"""
        what, *rest = shlex.split(line) or [""]
        printers: dict[str, Callable[..., None]] = {
            "all": lambda: self._say(view_text(self._view())),
            "tensor": self._print_tensor,
            "memory": self._print_memory,
            "register": self._print_register,
            "unit": self._print_unit,
            "queue": self._print_queue,
            "ring": self._print_ring,
        }
        if what not in printers:
            raise UsageError(f"print: must be one of {', '.join(printers)}, got {what!r}")
        try:
            printers[what](*rest)
        except TypeError:
            raise UsageError(f"usage: {self.do_print.__doc__}") from None

    def _view(self) -> dict[str, Any]:
        return look(self.device, self.debugger.layer)

    def _print_tensor(self, name: str, count: str = "8", kind: str = "") -> None:
        values = [place for place in self._program.places if place.name and place.kind in ("value", "window")]
        places = [place for place in values if place.name == name]
        if places and name not in {each.name for each in self._bindings()}:
            for place in places:
                self._print_place(place, _number(count), kind)
            return
        binding = self._binding(name, (place.name for place in values))
        raw = self.device.machine.memory.slice(self._address(binding.region), binding.nbytes)
        array = from_storage(binding.elements(raw), binding.dtype)
        flat = array.reshape(-1)
        shown = " ".join(map(str, flat[: _number(count)].tolist()))
        numbers = flat[np.isfinite(flat.astype(np.float64))].astype(np.float64) if flat.size else flat
        spread = f"; min {numbers.min():g} max {numbers.max():g} mean {numbers.mean():g}" if numbers.size else ""
        self._say(f"{binding}: {shown}{' ...' if flat.size > _number(count) else ''}{spread}")

    def _print_place(self, place: Place, count: int, kind: str) -> None:
        """Print the current bytes of an intermediate value. The user gives the type, which the program does not
        know."""
        memory, types = self.device.machine.memory, {each.label: each for each in DEVICE_DTYPES}
        if kind and kind not in types:
            raise UsageError(f"type must be one of {', '.join(sorted(types))}, got {kind!r}")
        if place.memory == "dram":
            where = f"dram {self._address(SCRATCH) + place.offset:#x}"
            raw = memory.slice(self._address(SCRATCH) + place.offset, place.nbytes)
        else:
            short = _SHORT.get(place.memory, place.memory)
            there = Range(short, max(place.core, 0), place.offset, place.nbytes)
            where, raw = there.start, there.of(self.device)
        if kind:
            dtype = types[kind]
            whole = raw[: raw.size // dtype.itemsize * dtype.itemsize].view(dtype.storage)
            flat = from_storage(whole, dtype)
            shown = " ".join(map(str, flat[:count].tolist()))
        else:
            flat, shown = raw, " ".join(f"{byte:02x}" for byte in raw[:count].tolist())
        first, last = (self._program.ops[op].name for op in (place.first, place.last))
        self._say(
            f"{place.kind} {place.name} at {where}, {place.nbytes} bytes, from {first} to {last}: {shown}"
            f"{' ...' if flat.size > count else ''}"
        )

    def _bindings(self) -> list[Binding]:
        return [*self._program.inputs, *self._program.outputs]

    def _binding(self, name: str, values: Iterable[str] = ()) -> Binding:
        """An input or output. ``values``: other names for the error message."""
        for each in self._bindings():
            if each.name == name:
                return each
        known = [each.name for each in self._bindings()] + sorted(set(values))
        more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
        raise UsageError(f"tensor must be one of {', '.join(known[:_MOST_NAMES])}{more}, got {name!r}")

    def _address(self, region: int) -> int:
        """Address of a region of the job."""
        if self._arrival is None:
            raise UsageError("the job has no memory yet: run, step or continue submits it")
        return int(self._arrival.job.addresses[region])

    def _print_memory(self, memory: str, address: str, size: str = "64", core: str = "0") -> None:
        start, count = _number(address), _number(size)
        if memory not in MEMORIES or _number(core) >= self.device.config.cores:
            raise UsageError(
                f"memory must be one of {', '.join(MEMORIES)} of a core that there is, got {memory} {core}"
            )
        array = bytes_of(self.device, memory, _number(core))
        if start + count > array.size:
            raise UsageError(f"{memory} has {array.size:#x} bytes, there are no {count} at {start:#x}")
        for at in range(start, start + count, 16):
            row = array[at : min(at + 16, start + count)]
            self._say(f"{at:#10x}  {' '.join(f'{byte:02x}' for byte in row.tolist())}")

    def _print_register(self, name: str | None = None) -> None:
        values = self.device.registers.values
        if name is not None and name not in values:
            raise UsageError(f"there is no register {name!r}")
        for each in [name] if name else values:
            self._say(f"{each} = {values[each]:#x}")

    def _units(self, name: str | None) -> Iterable[dict[str, Any]]:
        units = [unit for job in self._view()["jobs"] for unit in job.get("units", ())]
        names = self.device.machine.layout.names
        if name is not None and name not in names:
            raise UsageError(f"unit must be one of {', '.join(names)}, got {name!r}")
        return [unit for unit in units if name in (None, unit["name"])]

    def _print_unit(self, name: str | None = None) -> None:
        for unit in self._units(name):
            self._say(unit_line(unit))

    def _print_queue(self, name: str) -> None:
        for unit in self._units(name):
            self._say(f"{name}: {queue_text(unit)}")

    def _print_ring(self, name: str | None = None) -> None:
        for ring in self._view()["rings"]:
            if name is None or ring["priority"] == name.upper():
                self._say("\n".join(ring_lines(ring)))

    def do_list(self, line: str) -> None:
        """list [NUMBER]: show instructions around a number in the stream, or around the last stop."""
        middle = _number(line) if line else self._stop.command or 0
        commands = list(decode(self._program.code))
        names = [entry.name for entry in self._program.ops]
        for number, text in enumerate(disassemble(commands, names)):
            if abs(number - middle) <= AROUND:
                self._say(f"{'>' if number == middle else ' '} {text}")

    def do_layers(self, _: str) -> None:
        """layers: the operators of the program."""
        for number, entry in enumerate(self._program.ops):
            self._say(f"{number:4} {entry.name} ({entry.kind})")

    def do_regions(self, _: str) -> None:
        """regions: show the DRAM addresses of constants, scratch, inputs and outputs of the job."""
        self._submitted()
        named = {each.region: each.name for each in (*self._program.inputs, *self._program.outputs)}
        for region, address in sorted(self._arrival.job.addresses.items()):
            name = "constants" if region == CONSTANTS else named.get(region, "scratch")
            self._say(f"r{region} {name}: {address:#x}, {self._loaded.sizes[region]} bytes")

    # Checkpoints

    def do_checkpoint(self, line: str) -> None:
        """checkpoint FILE: save the state of the device."""
        if not line:
            raise UsageError("usage: checkpoint FILE")
        self.device.checkpoint().write(line)
        self._say(f"wrote {line}, {Path(line).stat().st_size} bytes")

    def do_restore(self, line: str) -> None:
        """restore FILE: restore a checkpoint of this session."""
        self.device.restore(Checkpoint.read(line))
        self._show(Stop("restore", self.device.now_ps, line))


def _what(line: str) -> tuple[str, int]:
    """The arguments of step and back."""
    words = line.split()
    if words and words[0].isdecimal():
        words.insert(0, "instruction")
    if len(words) > 2:
        raise UsageError(f"must be a kind and a number, got {line!r}")
    return (words[0] if words else "instruction"), (_number(words[1]) if len(words) > 1 else 1)


def _number(text: str) -> int:
    try:
        found = int(text, 0)
    except ValueError:
        found = -1
    if found < 0:
        raise UsageError(f"must be a number such as 17 or 0x11, got {text!r}")
    return found
