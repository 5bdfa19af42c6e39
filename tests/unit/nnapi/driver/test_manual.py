"""The manual's table of operations agrees with the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from hal.nnapi.driver import manual
from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.versions import operation_version
from hal.nnapi.types import OperationType

ROOT = Path(__file__).resolve().parents[4]


def test_the_committed_table_is_up_to_date():
    assert manual.main([str(ROOT / manual.DEFAULT_PATH), "--check"]) == 0


def test_a_stale_table_is_noticed(tmp_path, capsys):
    page = tmp_path / "page.md"
    assert manual.main([str(page)]) == 0
    assert manual.main([str(page), "--check"]) == 0
    page.write_text(page.read_text("utf-8").replace("| ADD |", "| SUM |"))
    assert manual.main([str(page), "--check"]) == 1
    assert "python -m hal.nnapi.driver.manual" in capsys.readouterr().err


def test_every_operation_is_defined_and_listed():
    assert set(REGISTRY) == set(OperationType) - {OperationType.OEM_OPERATION}
    rows = [line.split("|")[1].strip() for line in manual.render().splitlines() if line.startswith("| ")]
    assert rows[1:] == [OperationType(kind).name for kind in sorted(REGISTRY)]


@pytest.mark.parametrize(
    ("kind", "version"),
    [(OperationType.TANH, "1.0"), (OperationType.DIV, "1.1"), (OperationType.ABS, "1.2"), (OperationType.RANK, "1.3")],
)
def test_versions(kind, version):
    assert str(operation_version(kind)) == version
