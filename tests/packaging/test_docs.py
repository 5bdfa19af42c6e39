"""Every command and every Python block of the documentation runs, in the order of its page, in an empty directory.

The directory contains ``model.onnx`` (input ``x``, float32[1, 3, 16, 16]) and ``x.npy`` in place of the reader's files.
A block is only skipped by a comment above it with the reason: ``<!-- not run: it installs -->``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from npusim.cli.app import main
from tests.support.documents import RUN, blocks, run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHOWN = {"text", "toml", "json", ""}


def test_the_pages_exist() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "docs/index.md", "docs/guide/getting-started.md", "docs/guide/architect.md"} <= names


LONG = {"docs/timing.md", "docs/guide/architect.md", "docs/guide/explore.md"}
"""Slow pages. Their commands also run in tests of the commands."""


def _with_marks(page: Path) -> Any:
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=[pytest.mark.slow] if name in LONG else [])


@pytest.mark.parametrize("page", list(map(_with_marks, PAGES)))
def test_what_a_page_tells_to_run_runs(page: Path, tmp_path: Path, warm_python: Path) -> None:
    found = blocks(page)
    unknown = {block.language for block in found} - RUN.keys() - SHOWN
    assert not unknown, f"{page}: blocks of {unknown}"
    run([block for block in found if block.language in RUN and block.reason is None], tmp_path, warm_python.parent)


def test_the_report_in_the_readme_has_the_lines_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines are the same; their numbers may be those of an earlier compiler."""
    shown = next(block.code for block in blocks(ROOT / "README.md") if block.code.startswith("demo on"))
    assert main(["demo"]) == 0
    assert labels(shown) == labels(capsys.readouterr().out)


def labels(report: str) -> list[str]:
    """Return the first word of each line, sorted, because the order of layers depends on their costs."""
    return sorted(line.split()[0] for line in report.splitlines() if line.strip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
