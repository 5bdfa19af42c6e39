"""The example notebook runs from its first cell to its last in an empty directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documents import ROOT

NOTEBOOK = ROOT / "examples/architect/study.ipynb"


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, 4)
    client.NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    # The first cell makes files. Every other one shows something.
    assert not shown[0]
    assert all(shown[1:])


def test_outputs_are_not_kept() -> None:
    nbformat = pytest.importorskip("nbformat")
    cells = [cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    assert [cell for cell in cells if cell.outputs or cell.execution_count] == []
