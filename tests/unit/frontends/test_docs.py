"""The page of supported operators is generated from the code and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.frontends.docs import main, render
from npusim.frontends.onnx.registry import entries

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "operators.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m npusim.frontends.docs"


def test_the_page_names_every_operator() -> None:
    page = render()
    assert all(f"| {entry.op_type} |" in page for entry in entries())


def test_writing_and_checking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "docs" / "operators.md"
    assert main([str(path), "--check"]) == 1
    assert main([str(path)]) == 0
    assert main([str(path), "--check"]) == 0
    assert "out of date" in capsys.readouterr().err
