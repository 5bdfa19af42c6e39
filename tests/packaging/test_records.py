"""The records of long checks: of current sources, of other sources, and of sources that change meanwhile."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci/record.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script, on a separate tree."""
    module = script()
    for name in ("npusim/a.py", "npusim/b.pyx", "hal/c.c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RECORDS", tmp_path / "records.json")
    return module


def passes(record: ModuleType, kind: str) -> None:
    assert record.main(["begin", kind]) == 0
    with record.notes(kind).open("a") as file:
        file.write(json.dumps({"library": "programs", "cases": 7}) + "\n")
    assert record.main(["end", kind]) == 0


def test_a_record_holds_until_a_source_changes(
    record: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record.main(["check"]) == 1
    passes(record, "fuzz")
    assert record.main(["check"]) == 1, "one of two"
    passes(record, "sanitize")
    (tmp_path / "npusim/b.c").write_text("made of b.pyx")
    capsys.readouterr()
    assert record.main(["check"]) == 0
    assert capsys.readouterr().out.count("passed on these sources") == 2
    (tmp_path / "hal/c.c").write_text("changed")
    assert record.main(["check"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("make fuzz: not run on these sources; last passed on others, ")
    assert "make sanitize: passed" in told[1], "which does not cover it"
    assert record.main(["report"]) == 0


@pytest.mark.parametrize("change", ["rename", "edit"])
def test_sources_that_change_meanwhile_are_not_recorded(record: ModuleType, tmp_path: Path, change: str) -> None:
    assert record.main(["begin", "fuzz"]) == 0
    if change == "rename":
        (tmp_path / "npusim/a.py").rename(tmp_path / "npusim/d.py")
    else:
        (tmp_path / "npusim/a.py").write_text("other")
    assert record.main(["end", "fuzz"]) == 1
    assert not record.RECORDS.exists()


def test_every_source_that_is_named_is_there() -> None:
    names = {name for names in script().SOURCES.values() for name in names}
    assert [name for name in names if not (SCRIPT.parents[1] / name).exists()] == []
