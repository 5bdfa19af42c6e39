"""Ten bugs planted in a program, each found from the command line with a script of a few lines."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.cache import write_program
from npusim.cli.app import main
from npusim.errors import DeviceFaultError
from npusim.hw.config import load_config
from npusim.program import Program
from npusim.runtime import Session
from tests.support.programs.planted_bugs import BUGS, SIZE, answer, planted

X0, X1 = np.arange(SIZE).astype(np.uint8), np.arange(100, 100 + SIZE).astype(np.uint8)


def _for_tiny(program: Program) -> Program:
    config = load_config("tiny")
    return dataclasses.replace(program, config_name="tiny", config_fingerprint=config.fingerprint())


def _run(program: Program) -> npt.NDArray[Any]:
    with Session("tiny", cache_dir=False) as session:
        return session.run(_for_tiny(program), {"x0": X0, "x1": X1}).outputs["y0"]


def test_without_a_bug_the_answer_is_right() -> None:
    np.testing.assert_array_equal(_run(planted(None)), answer(X0, X1))


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bug = BUGS[name]
    program = planted(bug)
    try:
        assert not np.array_equal(_run(program), answer(X0, X1)), "the bug does no harm"
    except DeviceFaultError:
        pass  # the input is refused, which also counts as a failure
    file, script = tmp_path / "program.npu", tmp_path / "script"
    write_program(_for_tiny(program), file)
    script.write_text(bug.script)
    np.save(tmp_path / "x0.npy", X0)
    np.save(tmp_path / "x1.npy", X1)
    inputs = [f"--input=x{number}={tmp_path}/x{number}.npy" for number in range(2)]
    code = main(["debug", str(file), "--config", "tiny", *inputs, "--script", str(script)])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    rest = captured.out
    for line in bug.found:
        assert line in rest, f"{line!r} is not in what follows:\n{rest}\nall of it:\n{captured.out}"
        rest = rest[rest.index(line) + len(line) :]
