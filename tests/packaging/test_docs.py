"""Every command and every Python block of the documentation runs, in the order of its page, in an empty directory.

The directory contains ``model.onnx`` and ``image.npy``, the files that ``npusim demo --save model.onnx`` writes.
A block is only skipped by a comment above it with the reason: ``<!-- not run: it installs -->``. A block below
``<!-- printed by: COMMAND -->`` is what the command prints there; ``python -m tests.packaging.printed`` writes it anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import PAGES, ROOT, RUN, blocks, run, to_run

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
    for block, output in run(to_run(page), tmp_path, warm_python.parent).items():
        assert output == block.code, f"{page.name} differs: python -m tests.packaging.printed"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
