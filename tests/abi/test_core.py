"""The C core of ONNXIFI alone, with an engine in C, under AddressSanitizer, ThreadSanitizer and valgrind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.c_compiler import PROGRAMS, compile_core, needs_gcc, run

pytestmark = needs_gcc

CASES = ("ids", "sizes", "handles", "filter", "binding", "extensions", "inject", "unplug", "fork", "exit")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("cases") / "cases"
    return compile_core(PROGRAMS / "core_cases.c", target, "-fsanitize=address,undefined")


@pytest.mark.parametrize("case", CASES)
def test_case(cases: Path, case: str) -> None:
    # Objects of an interpreter that has ended cannot be released.
    leaks = "detect_leaks=0" if case == "exit" else "detect_leaks=1"
    done = run(cases, case, ASAN_OPTIONS=leaks)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_threads_that_use_and_release_at_random(sanitizer: str, tmp_path: Path) -> None:
    program = compile_core(PROGRAMS / "core_stress.c", tmp_path / "stress", f"-fsanitize={sanitizer}")
    done = run(program, 8, 1000, TSAN_OPTIONS="halt_on_error=1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok ")
    assert int(done.stdout.split()[1]) > 7000


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind")
def test_threads_under_valgrind(tmp_path: Path) -> None:
    program = compile_core(PROGRAMS / "core_stress.c", tmp_path / "stress")
    options = ("--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite", "--fair-sched=yes")
    done = run("valgrind", *options, program, 8, 1000, timeout=600, PATH="/usr/bin:/bin")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith("ok ")
