"""npusim uml with kernels that end at once: which log lines count as failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("[    0.1]     not ok 2 wraps", "tests in the kernel's log failed, 1 lines; the first: not ok 2 wraps"),
        ("1..2", "tests in the kernel's log failed, 1 lines; the first: a plan of 2 tests has 0 results"),
        ("hello", "kernel has ended without connecting to the device"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--tolerant",)])
def test_a_status_of_0_is_not_enough(cli: Cli, tmp_path: Path, log: str, said: str, options: tuple[str, ...]) -> None:
    kernel = tmp_path / "kernel"
    kernel.write_text(f"#!/bin/sh\necho '{log}'\n")
    kernel.chmod(0o755)
    done = cli("uml", "tiny", "--kernel", str(kernel), "--initrd", str(kernel), *options)
    assert done.code == 1
    assert said in done.err
