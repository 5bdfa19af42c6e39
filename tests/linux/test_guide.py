"""The guide's commands for drivers that need a kernel; run if ``make uml`` has built one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from npusim.linux import find_kernel
from tests.support.documents import ROOT, RUN, blocks, run

PAGE = ROOT / "docs" / "guide" / "first-driver.md"


@pytest.mark.slow
def test_its_commands_run_in_their_order(tmp_path: Path) -> None:
    kernel = find_kernel()
    if kernel is None:
        pytest.skip("no User Mode Linux kernel: make uml builds one")
    found = [block for block in blocks(PAGE) if block.language in RUN]
    wanted = [block for block in found if block.reason is None or "test_guide.py" in block.reason]
    assert len(wanted) == len(found) - 1  # that which builds the kernel
    run(wanted, tmp_path, Path(sys.executable).parent, NPUSIM_UML_KERNEL=str(kernel))
