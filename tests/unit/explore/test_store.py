"""The file of a study: what it keeps, and what it says of files that cannot be one."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from npusim.errors import UsageError
from npusim.explore.figures import FAILED, SIMULATED, Figures, Row
from npusim.explore.store import Store

ROWS = [
    Row(3, "edge", {"matrix.rows": 8, "vector": False}, "ab" * 32, SIMULATED, "", 1_000_000, (
        Figures("a", 5, 4, 3, 2, 1, "cd" * 32, {"matrix": 0.25, "dram": 1.0}), Figures("b", 10**15, 7, 10**12),
    )),
    Row(1 << 60, "tiny", {}, "ef" * 32, FAILED, "it ended", None),
]  # fmt: skip


def paragraph(error: pytest.ExceptionInfo[UsageError], path: Path) -> str:
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


def test_what_is_added_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with Store(path) as store:
        store.tell({"space": {"vary": [1, 2]}})
        store.add(ROWS)
    with Store(path) as store:
        assert store.rows() == ROWS
        assert store.facts() == {"space": {"vary": [1, 2]}}
    assert os.listdir(tmp_path) == ["a.study"], "one file, no journals beside it"


def test_a_row_that_is_there_stays(tmp_path: Path) -> None:
    with Store(tmp_path / "a.study") as store:
        store.add(ROWS)
        store.add([Row(3, "other", {}, "", FAILED, "again")])
        assert store.rows() == ROWS


def test_a_design_takes_few_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    many = [Row(n, *[getattr(ROWS[0], name) for name in Row.__slots__[1:]]) for n in range(1000)]
    with Store(path) as store:
        store.add(many)
    assert path.stat().st_size / len(many) <= 50_000 / 10


def test_rows_are_read_while_somebody_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with Store(path) as store:
        store.add(ROWS[:1])
        with Store(path, reading=True) as reader:
            assert reader.rows() == ROWS[:1]
            store.add(ROWS[1:])
            assert reader.rows() == ROWS


def test_rows_are_written_all_or_none(tmp_path: Path) -> None:
    with Store(tmp_path / "a.study") as store:
        with pytest.raises(TypeError):
            store.add([ROWS[0], Row(9, "edge", {"x": object()}, "", SIMULATED)])
        assert store.rows() == []
        store.add(ROWS)
        assert store.rows() == ROWS


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.study"
    path.write_text("dear diary, " * 200)
    with pytest.raises(UsageError) as error:
        Store(path)
    assert "is no store of npusim explore" in paragraph(error, path)
    assert path.read_text().startswith("dear diary")


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.study"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE addresses (name TEXT)")
    other.close()
    with pytest.raises(UsageError) as error:
        Store(path)
    assert "is a database of something else" in paragraph(error, path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    Store(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(UsageError) as error:
        Store(path)
    assert "is a store of version 99" in paragraph(error, path)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "a.study"
    with pytest.raises(UsageError, match="there is no directory"):
        Store(path)
    with pytest.raises(UsageError, match="no such file"):
        Store(tmp_path / "a.study", reading=True)


def test_a_store_that_may_not_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.study"
    Store(path).close()
    with Store(path, reading=True) as store, pytest.raises(UsageError) as error:
        store.add(ROWS)
    assert "this store cannot be written" in paragraph(error, path)

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("npusim.explore.store.os.open", refuse)
    with pytest.raises(UsageError) as error:
        Store(path)
    assert paragraph(error, path).endswith("this store cannot be written: Permission denied")


def test_a_full_disk_loses_nothing_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with Store(path) as store:
        store.add(ROWS)
        (pages,) = store._file.execute("PRAGMA page_count").fetchone()
        store._file.execute(f"PRAGMA max_page_count = {pages}")  # as a disk that has no more of them
        with pytest.raises(UsageError) as error:
            store.add([Row(n, "edge", {"x": "y" * 500}, "", SIMULATED) for n in range(100, 200)])
        assert "the disk is full" in paragraph(error, path)
    with Store(path) as store:
        assert store.rows() == ROWS


def test_a_damaged_store_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with Store(path) as store:
        store.add([Row(n, "edge", {"x": "y" * 500}, "", SIMULATED) for n in range(100)])
    data = bytearray(path.read_bytes())
    data[4096 * 2 :] = b"\xff" * (len(data) - 4096 * 2)
    path.write_bytes(data)
    with pytest.raises(UsageError) as error, Store(path) as store:
        store.rows()
    assert "damaged" in paragraph(error, path)
