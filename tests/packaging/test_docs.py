"""Every command and every Python block of the documentation runs, in the order of its page, in an empty directory.

The directory holds ``model.onnx`` (input ``x``, float32[1, 3, 16, 16]) and ``x.npy``, standing for the reader's own.
A block is left out only by a comment above it that gives the reason: ``<!-- not run: it installs -->``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.documents import RUN, blocks, model

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHOWN = {"text", "toml", "json", ""}


def test_the_pages_exist() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "docs/index.md", "docs/guide/getting-started.md", "docs/guide/architect.md"} <= names


LONG = {"docs/timing.md", "docs/guide/architect.md"}
"""Pages that take half a minute and more."""


def _with_marks(page: Path) -> Any:
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=[pytest.mark.slow] if name in LONG else [])


@pytest.mark.parametrize("page", map(_with_marks, PAGES))
def test_what_a_page_tells_to_run_runs(page: Path, tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.ones((1, 3, 16, 16), np.float32))
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": scripts, "NPUSIM_CACHE_DIR": str(tmp_path / "cache")}
    for block in blocks(page):
        assert block.language in RUN or block.language in SHOWN, f"{page}: a block of {block.language!r}"
        if block.language in SHOWN or block.reason is not None:
            continue
        command = [*RUN[block.language], block.code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block.code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_the_report_in_the_readme_has_the_lines_of_the_demo() -> None:
    """The same lines; their numbers may be those of an earlier compiler."""
    shown = next(block.code for block in blocks(ROOT / "README.md") if block.code.startswith("demo on"))
    done = subprocess.run(
        [sys.executable, "-m", "npusim", "demo"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert labels(shown) == labels(done.stdout)


def labels(report: str) -> list[str]:
    """The first word of each line, sorted: layers change places when costs change."""
    return sorted(line.split()[0] for line in report.splitlines() if line.strip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
