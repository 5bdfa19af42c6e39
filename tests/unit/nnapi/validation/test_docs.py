"""The page of rules is generated from the code and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.signature import operation_name
from hal.nnapi.validation.docs import main, render

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "nnapi-validation.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m hal.nnapi.validation.docs"


def test_the_page_names_every_operation() -> None:
    names = {word.strip("|,") for word in render().partition("## Operations")[2].split()}
    assert {operation_name(kind) for kind in REGISTRY} <= names


def test_writing_and_checking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "docs" / "rules.md"
    assert main([str(path), "--check"]) == 1
    assert main([str(path)]) == 0
    assert main([str(path), "--check"]) == 0
    assert "out of date" in capsys.readouterr().err
