"""``npusim debug``: every command from a script, and the errors of an interactive session."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from npusim.cache import write_program
from npusim.debug import Bench, JobRequest
from npusim.debug.shell import Shell
from npusim.demo import network
from npusim.program import Program
from npusim.runtime import Session
from tests.unit.cli.conftest import Cli


@pytest.fixture(scope="module")
def program() -> Program:
    return Session("tiny", cache_dir=False).compile(network())


@pytest.fixture
def file(program: Program, tmp_path: Path) -> Path:
    write_program(program, tmp_path / "demo.npu")
    return tmp_path / "demo.npu"


def _script(file: Path, *lines: str) -> Path:
    script = file.with_name("script")
    script.write_text("\n".join(lines))
    return script


def test_every_command(cli: Cli, file: Path, program: Program) -> None:
    saved = file.with_name("saved.npuckpt")
    lines = [
        "# a comment", "", "help", "help watch", "layers", "break layer head", "break seqno", "break seqno 1",
        "break register MEDIUM_DOORBELL 1", "break interrupt", "break address 0x43000", "break instruction matrix.conv",
        "watch sram 0 4 value 0", "watch tensor image read", "breakpoints", "delete 1", "delete",
        "step", "step 2", "step layer", "step cycle 5", "until 1ms", f"checkpoint {saved}", f"restore {saved}",
        "print tensor probabilities", "print tensor image 3", "print tensor pool 2 float32",
        "print tensor stem.relu", "print memory dram 0x1000", "print memory sram 0 16 0",
        "print register", "print register STATUS", "print unit", "print unit core0.dma0", "print queue core0.vector",
        "print ring", "print ring medium", "print all", "regions", "list", "list 3", "where", "run", "quit", "never",
    ]  # fmt: skip
    outcome = cli("debug", file, "--script", _script(file, *lines))
    assert (outcome.code, outcome.err) == (0, "")
    cycles = Session("tiny", cache_dir=False).run(program, {"image": np.zeros((1, 3, 32, 32), np.float32)}).cycles
    assert f"job with seqno 1 has ended after {cycles} cycles" in outcome.out
    assert "r3 probabilities: " in outcome.out
    assert "value pool at core0.sram 0x" in outcome.out
    assert "from stem to block.project: " in outcome.out
    assert "STATUS = 0x1" in outcome.out
    assert "never" not in outcome.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("go", "unknown command 'go'; there are back, break"),
        ("break", "break: must be one of layer, instruction, address"),
        ("break layer", "usage: break layer NAME"),
        ("break layer nothing", "layer must be one of the program's, such as block.depthwise"),
        ("break address x", "must be a number such as 17 or 0x11, got 'x'"),
        ("break layer 'a", "No closing quotation"),
        ("watch", "usage: watch dram"),
        ("watch tensor z", "tensor must be one of image, probabilities, got 'z'"),
        ("watch sram 0x7fffffff", "watch: there is no core0.sram"),
        ("step lines", "step: must be instruction, layer or cycle, got 'lines'"),
        ("continue 5 apples", "5 apples"),
        ("back", "back: there is no history"),
        ("print", "print: must be one of all, tensor"),
        ("print tensor probabilities", "the job has no memory yet"),
        ("print tensor pool 2 complex", "type must be one of bfloat16, bool, float16"),
        ("print tensor z", "tensor must be one of image, probabilities, block.add"),
        ("print memory rom 0", "memory must be one of dram, sram, acc"),
        ("print memory sram 0 0x7fffffff", "sram has 0x20000 bytes"),
        ("print register NONE", "there is no register 'NONE'"),
        ("print unit core9", "unit must be one of core0.matrix"),
        ("delete 4", "there is no breakpoint 4"),
        ("checkpoint", "usage: checkpoint FILE"),
        ("restore /nothing", "/nothing: cannot be read"),
    ],
)
def test_a_script_ends_at_the_first_command_that_fails(cli: Cli, file: Path, line: str, message: str) -> None:
    outcome = cli("debug", file, "--script", _script(file, line, "layers"))
    assert outcome.code == 2
    assert message in outcome.message
    assert "(conv+relu)" not in outcome.out


def test_commands_come_from_standard_input(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("continue\nprint tensor probabilities 1"))
    outcome = cli("debug", file)
    assert outcome.code == 0
    assert "probabilities float32[1, 10]: " in outcome.out


def test_a_script_that_is_not_there(cli: Cli, file: Path) -> None:
    outcome = cli("debug", file, "--script", file.with_name("none"))
    assert outcome.code != 0
    assert "none" in outcome.message


def test_a_person_who_errs_goes_on(program: Program) -> None:
    said: list[str] = []
    inputs = {"image": np.zeros((1, 3, 32, 32), np.float32)}
    with Bench("tiny") as bench:
        typed = io.StringIO("brake\nlayers\nquit\n")
        shell = Shell(bench, JobRequest(program, inputs=inputs), said.append, stdin=typed, strict=False)
        shell.use_rawinput = False
        shell.cmdloop()
    assert shell.failed is None
    assert said[1].startswith("error: unknown command 'brake'")
    assert "stem" in said[2]
