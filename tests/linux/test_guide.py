"""The commands of the guide for drivers that need a kernel: run where ``make uml`` has built one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from npusim.linux import find_kernel
from tests.support.documents import ROOT, RUN, blocks, model

PAGE = ROOT / "docs" / "guide" / "first-driver.md"


@pytest.mark.slow
def test_its_commands_run_in_their_order(tmp_path: Path) -> None:
    kernel = find_kernel()
    if kernel is None:
        pytest.skip("no User Mode Linux kernel: make uml builds one")
    onnx.save(model(), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.ones((1, 3, 16, 16), np.float32))
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "NPUSIM_CACHE_DIR": str(tmp_path / "cache"),
        "NPUSIM_UML_KERNEL": str(kernel),
    }
    found = [block for block in blocks(PAGE) if block.language in RUN]
    wanted = [block for block in found if block.reason is None or "test_guide.py" in block.reason]
    assert len(wanted) == len(found) - 1  # that which builds the kernel
    for block in wanted:
        done = subprocess.run(
            [*RUN[block.language], block.code],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
