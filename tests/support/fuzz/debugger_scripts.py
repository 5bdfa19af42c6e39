"""Scripts for the terminal debugger: each command is executed or rejected, and the script runs to its end."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import numpy as np

from npusim.cli.debug import SCRIPT
from npusim.debug.bench import Bench, JobRequest
from npusim.debug.shell import Shell
from tests.support.bare_device import QUICK
from tests.support.fuzz.given_files import NUMBERS, TEXTS, Kind
from tests.support.programs.planted_bugs import BUGS, SIZE, planted

COMMANDS = (
    "run", "continue", "continue 1 us", "until 2us", "until 99999999", "step", "step layer 2", "step cycle 100",
    "step instruction 3", "back", "back 2", "back layer", "back stop", "back cycle 10", "break layer x",
    "break instruction 2", "break instruction vector.binary", "break address 0x100", "break register STATUS 1",
    "break seqno 1", "break interrupt", "watch dram 0x1000 16 write", "watch sram 0 4 value 0", "watch acc 0 4",
    "watch tensor y0 access", "delete", "delete 1", "breakpoints", "where", "print all", "print tensor x0 4",
    "print tensor y0 8 int8", "print memory dram 0 64", "print memory sram 0x10 20 0", "print register", "print ring",
    "print register STATUS", "print unit", "print unit core0.dma0", "print queue core0.vector", "print ring low",
    "list", "list 3", "layers", "regions", "checkpoint saved", "restore saved", "restore given", "help", "help step",
    "quit", "# nothing",
)  # fmt: skip
WORDS = (
    *map(str, NUMBERS), *TEXTS, "0x10", "0xffffffffffffffff", "1e9 s", "1h", "1e99 s", "9" * 5000, "value",
    "core1.dma0", "tensor", "layer", "cycle", "'", '"x', "\\", "٣", "1_0", "STATUS", "y0", "x1",
)  # fmt: skip
_FILES = {"checkpoint": "saved", "restore": "saved"}
"""Fixed file names for commands that access files, so that the fuzz writes nowhere else."""


class Scripts(Kind):
    """Sequences of commands on a program with a few vector instructions."""

    plain = 0.05

    def __init__(self) -> None:
        super().__init__()
        self._program = planted(None)
        self._inputs = {name: np.arange(SIZE).astype(np.uint8) for name in ("x0", "x1")}
        os.chdir(self.folder)

    def good(self, rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return rng.choice(list(BUGS.values())).script.encode()
        return "".join(f"{rng.choice(COMMANDS)}\n" for _ in range(rng.choice((1, 3, 6)))).encode()

    def changed(self, rng: random.Random) -> bytes:
        lines = self.good(rng).decode().splitlines()
        for _ in range(rng.choice((1, 1, 2, 3))):
            words = lines[at := rng.randrange(len(lines))].split(" ")
            place = rng.randrange(len(words) + 1)
            words[place : place + rng.choice((0, 1, 1))] = [rng.choice(WORDS)]
            lines[at] = " ".join(words)
        return ("\n".join(lines) + "\n").encode("utf-8", "replace")

    def use(self, path: Path, rng: random.Random) -> str:
        lines = SCRIPT.text(path).splitlines()
        for number, line in enumerate(lines):
            command = line.split()[0] if line.split() else ""
            lines[number] = f"{command} {_FILES[command]}" if command in _FILES else line
        said: list[str] = []
        with Bench(QUICK) as bench:
            request = JobRequest(self._program, None, self._inputs)
            shell = Shell(bench, request, said.append, stdin=io.StringIO("\n".join(lines)), strict=True)
            shell.cmdloop()
        if shell.failed is not None:
            raise shell.failed
        return "to its end"


def make() -> Scripts:
    return Scripts()
