"""The warm Python behaves like Python: arguments, folder, environment, streams, exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waits_and_leaks import until

TOLD = """
import os, sys
print(sys.argv, __name__, sys.path[0] in ("", os.getcwd()), os.getcwd(), os.environ["TOLD"], sys.stdin.read())
print("to standard error", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize(
    "way", [["-c", TOLD], ["-m", "told"], ["-mtold"], ["told.py"]], ids=["c", "m", "mtold", "file"]
)
def test_it_does_what_python_does(warm_python: Path, tmp_path: Path, way: list[str]) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    found = [
        subprocess.run(
            [command, *way, "one", "two words"],
            cwd=tmp_path, env={**os.environ, "TOLD": "x y"}, input="some input", capture_output=True, text=True,
            check=False,
        )
        for command in (sys.executable, warm_python)
    ]  # fmt: skip
    assert found[0].returncode == 3, found[0].stderr
    assert "some input" in found[0].stdout
    assert [(each.returncode, each.stdout, each.stderr) for each in found[1:]] == [
        (found[0].returncode, found[0].stdout, found[0].stderr)
    ]


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("pass", 0),
        ("raise SystemExit('said')", 1),
        ("1 / 0", 1),
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_it_ends_as_the_program_ends(warm_python: Path, code: str, ended: int) -> None:
    done = subprocess.run([warm_python, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == ended
    assert ("said" in done.stderr, "ZeroDivisionError" in done.stderr) == ("said" in code, "/" in code)


def test_who_kills_the_command_kills_the_program(warm_python: Path) -> None:
    with subprocess.Popen(
        [warm_python, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"],
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        program = Path(f"/proc/{int(process.stdout.readline())}")
        assert program.exists()
        process.kill()
        until(lambda: not program.exists())


def test_npusim_is_a_command_and_programs_are_apart(warm_python: Path) -> None:
    def said(*words: object) -> str:
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout

    assert said(warm_python.parent / "npusim", "--version").startswith("npusim, version ")
    said(warm_python, "-c", "import npusim; npusim.changed = True")
    assert said(warm_python, "-c", "import npusim; print(hasattr(npusim, 'changed'))") == "False\n"
