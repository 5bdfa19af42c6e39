"""The file of a study: what it keeps, and errors for invalid files."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from npusim.errors import UsageError
from npusim.explore.figures import FAILED, SIMULATED, ModelFigures, StudyRow
from npusim.explore.store import _DESIGN, _FIGURES, StudyStore

ROWS = [
    StudyRow(3, "edge", {"matrix.rows": 8, "vector": False}, "ab" * 32, SIMULATED, "", 1_000_000, (
        ModelFigures("a", 5, 4, 3, 2, 1, "cd" * 32, {"matrix": 0.25, "dram": 1.0}),
        ModelFigures("b", 10**15, 7, 10**12),
    )),
    StudyRow(1 << 60, "tiny", {}, "ef" * 32, FAILED, "it ended", None),
]  # fmt: skip


FORGED = [
    # Other tables, views and triggers.
    "DROP TABLE figures; CREATE VIEW figures AS WITH RECURSIVE t(number) AS (SELECT 1 UNION ALL SELECT number + 1"
    " FROM t) SELECT number, 'm' model, 1 latency, 1 cycles, 1 dram_bytes, 1 energy, 1 power, '' digest, '{}' busy,"
    " '{}' resources, '{}' estimates FROM t",
    "DROP TABLE facts; CREATE VIEW facts AS WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t)"
    " SELECT 'a' name, '1' value FROM t WHERE n < 0",
    "CREATE TRIGGER t AFTER INSERT ON designs BEGIN INSERT INTO figures WITH RECURSIVE t(n) AS"
    " (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n + 100, 'm', 1, 1, 1, 1, 1, '', '{}', '{}', '{}' FROM t; END",
    "CREATE INDEX i ON designs (abs(number))",
    "CREATE TABLE more (a)",
    "ALTER TABLE designs ADD COLUMN more AS (number + 1)",
    "ALTER TABLE figures RENAME COLUMN busy TO idle",
    "DROP TABLE marks",
    "DROP TABLE marks; CREATE VIRTUAL TABLE marks USING fts5(number, mac)",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE facts (name, value)'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'nonsense' WHERE name = 'facts'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 2",
    "PRAGMA journal_mode = WAL",
    # Rows and cells.
    "DELETE FROM figures WHERE number = 3",
    "DELETE FROM figures WHERE model = 'a'",
    "DELETE FROM designs WHERE number = 3",
    "DELETE FROM marks WHERE number = 3",
    "INSERT INTO marks VALUES (4, x'00')",
    "INSERT INTO figures VALUES (4, 'a', 1, 1, 1, 1, 1, '', '{}', '{}', '{}')",
    "INSERT INTO designs VALUES (4, 'edge', '{}', '', 'simulated', '', 1)",
    "UPDATE designs SET number = 77 WHERE number = 3; UPDATE figures SET number = 77 WHERE number = 3",
    "UPDATE designs SET number = 77 WHERE number = 3; UPDATE figures SET number = 77; UPDATE marks SET number = 77"
    " WHERE number = 3",
    "UPDATE facts SET value = '{'",
    "UPDATE facts SET value = x'7b7d'",
    "UPDATE facts SET value = 'x' || hex(zeroblob(600000))",
    "DELETE FROM facts",
    "INSERT INTO facts VALUES (NULL, 'null')",
    "INSERT INTO facts WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t LIMIT 99) SELECT n, 1 FROM t",
    "UPDATE figures SET rowid = 5 - rowid",
    "INSERT INTO figures WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t LIMIT 99)"
    " SELECT 3, n, 1, 1, 1, 1, 1, '', '{}', '{}', hex(zeroblob(30000)) FROM t",
    "INSERT INTO figures WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t LIMIT 5000)"
    " SELECT 3, n, 1, 1, 1, 1, 1, '', '{}', '{}', '{}' FROM t",
]
ODD = ("NULL", "-5", "0", "1", "'abc'", "''", "x'00ff'", "1e999", "'{'", "'{\"a\": 1}'", "CAST(x'ff' AS TEXT)", "1.5")
FORGED += [
    f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE number = 3"
    for table, columns in (("designs", _DESIGN), ("figures", _FIGURES), ("marks", ("number", "mac")))
    for column in columns
    for value in ODD
]


def paragraph(error: pytest.ExceptionInfo[UsageError], path: Path) -> str:
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


def test_what_is_added_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with StudyStore(path) as store:
        store.tell({"space": {"vary": [1, 2]}})
        store.add(ROWS)
    with StudyStore(path) as store:
        assert store.rows() == ROWS
        assert store.facts() == {"space": {"vary": [1, 2]}}
    assert os.listdir(tmp_path) == ["a.study"], "one file, no journals beside it"


def test_a_row_that_is_there_stays(tmp_path: Path) -> None:
    with StudyStore(tmp_path / "a.study") as store:
        store.add(ROWS)
        store.add([StudyRow(3, "other", {}, "", FAILED, "again")])
        assert store.rows() == ROWS


def test_a_design_takes_few_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    many = [StudyRow(n, *[getattr(ROWS[0], name) for name in StudyRow.__slots__[1:]]) for n in range(1000)]
    with StudyStore(path) as store:
        store.add(many)
    assert path.stat().st_size / len(many) <= 50_000 / 10


def test_rows_are_read_while_somebody_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with StudyStore(path) as store:
        store.add(ROWS[:1])
        with StudyStore(path, reading=True) as reader:
            assert reader.rows() == ROWS[:1]
            store.add(ROWS[1:])
            assert reader.rows() == ROWS


def test_rows_are_written_all_or_none(tmp_path: Path) -> None:
    with StudyStore(tmp_path / "a.study") as store:
        with pytest.raises(TypeError):
            store.add([ROWS[0], StudyRow(9, "edge", {"x": object()}, "", SIMULATED)])
        assert store.rows() == []
        store.add(ROWS)
        assert store.rows() == ROWS


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.study"
    path.write_text("dear diary, " * 200)
    with pytest.raises(UsageError) as error:
        StudyStore(path)
    assert "is not a store of npusim explore" in paragraph(error, path)
    assert path.read_text().startswith("dear diary")


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.study"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE addresses (name TEXT)")
    other.close()
    with pytest.raises(UsageError) as error:
        StudyStore(path)
    assert "is a database of something else" in paragraph(error, path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    StudyStore(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(UsageError) as error:
        StudyStore(path)
    assert "is a store of version 99" in paragraph(error, path)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "a.study"
    with pytest.raises(UsageError, match="there is no directory"):
        StudyStore(path)
    with pytest.raises(UsageError, match="no such file"):
        StudyStore(tmp_path / "a.study", reading=True)


def test_a_store_that_may_not_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.study"
    StudyStore(path).close()
    with StudyStore(path, reading=True) as store, pytest.raises(UsageError) as error:
        store.add(ROWS)
    assert "this store is not writable" in paragraph(error, path)

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("npusim.explore.store.os.open", refuse)
    with pytest.raises(UsageError) as error:
        StudyStore(path)
    assert paragraph(error, path).endswith("this store cannot be written: Permission denied")


def test_a_full_disk_loses_nothing_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with StudyStore(path) as store:
        store.add(ROWS)
        (pages,) = store._file.execute("PRAGMA page_count").fetchone()
        store._file.execute(f"PRAGMA max_page_count = {pages}")  # as a disk that has no more of them
        with pytest.raises(UsageError) as error:
            store.add([StudyRow(n, "edge", {"x": "y" * 500}, "", SIMULATED) for n in range(100, 200)])
        assert "the disk is full" in paragraph(error, path)
    with StudyStore(path) as store:
        assert store.rows() == ROWS


def test_a_damaged_store_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with StudyStore(path) as store:
        store.add([StudyRow(n, "edge", {"x": "y" * 500}, "", SIMULATED) for n in range(100)])
    data = bytearray(path.read_bytes())
    data[4096 * 2 :] = b"\xff" * (len(data) - 4096 * 2)
    path.write_bytes(data)
    with pytest.raises(UsageError) as error, StudyStore(path) as store:
        store.rows()
    assert "damaged" in paragraph(error, path)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "a.study"
    with StudyStore(path) as store:
        store.tell({"space": {"vary": [1, 2]}})
        store.add(ROWS)
    return path


def read(path: Path, *, trust: bool = False) -> tuple[object, object]:
    with StudyStore(path, reading=True, trust=trust) as store:
        return store.facts(), store.rows()


def changed(good: Path, path: Path, statements: str) -> bool:
    """Return whether statements that turn a store into something else have changed anything."""
    shutil.copy(good, path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA synchronous = OFF")
        before = list(other.iterdump())
        try:
            other.executescript(statements)
            other.commit()
        except sqlite3.IntegrityError:
            other.rollback()
        try:
            return list(other.iterdump()) != before or "PRAGMA" in statements
        except sqlite3.Error:
            return True


@pytest.mark.parametrize("statements", FORGED)
def test_what_somebody_else_has_written_is_refused(good: Path, tmp_path: Path, statements: str) -> None:
    path = tmp_path / "a.study"
    if not changed(good, path, statements):
        assert read(path) == read(good)
        return
    with pytest.raises(UsageError) as error:
        read(path)
    assert len(paragraph(error, path).replace(str(path), "")) < 300


@pytest.mark.parametrize("statements", FORGED)
def test_it_is_right_or_refused_when_it_is_trusted(good: Path, tmp_path: Path, statements: str) -> None:
    path = tmp_path / "a.study"
    changed(good, path, statements)
    try:
        _, rows = read(path, trust=True)
    except UsageError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 - some of the statements give what may be right
        return
    assert isinstance(rows, list)
    for row in rows:
        assert isinstance(row.settings, dict)
        assert row.known == bool(row.figures) != bool(row.reason)
        assert all(0 < each.latency < 2**64 and isinstance(each.busy, dict) for each in row.figures)


def test_a_store_of_another_user_is_used_when_it_is_trusted(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.study"
    shutil.copy(good, path)
    monkeypatch.setenv("NPUSIM_STATE_DIR", str(tmp_path / "state"))
    with pytest.raises(UsageError, match=r"design 3 was not written by npusim of this user .* \(--trust-store\)"):
        read(path)
    with StudyStore(path, trust=True) as store:
        assert store.rows() == ROWS
        store.sign()
    assert read(path) == ({"space": {"vary": [1, 2]}}, ROWS)


def test_rows_are_of_what_the_store_is_about(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    shutil.copy(good, path)
    with StudyStore(path) as store:
        store.tell({"space": {"vary": [2, 1]}})
    with pytest.raises(UsageError, match="design 3 was not written"):
        read(path)


@pytest.mark.parametrize("reading", [True, False])
def test_only_a_regular_file_is_a_store(good: Path, tmp_path: Path, reading: bool) -> None:
    path = tmp_path / "a.study"
    path.symlink_to(good)
    with pytest.raises(UsageError, match=r"cannot be (read|written): is a symbolic link"):
        StudyStore(path, reading=reading)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match=r"cannot be (read|written): is not a regular file"):
        StudyStore(path, reading=reading)
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match=r"cannot be (read|written): Is a directory"):
        StudyStore(path, reading=reading)


@pytest.mark.parametrize("reading", [True, False])
def test_files_beside_a_store_may_not_say_what_is_in_it(good: Path, tmp_path: Path, reading: bool) -> None:
    path = tmp_path / "a.study"
    shutil.copy(good, path)
    for suffix in ("-wal", "-shm"):
        beside = Path(f"{path}{suffix}")
        beside.touch()
        with pytest.raises(UsageError, match=f"{suffix}: npusim explore makes no such file"):
            StudyStore(path, reading=reading)
        beside.unlink()
    journal = Path(f"{path}-journal")
    journal.write_bytes(b"/etc/passwd" + bytes.fromhex("d9d505f920a163d7"))
    with pytest.raises(UsageError, match="names another file"):
        StudyStore(path, reading=reading)
    journal.unlink()
    journal.symlink_to(good)
    with pytest.raises(UsageError, match="is a symbolic link"):
        StudyStore(path, reading=reading)


def test_a_store_needs_a_key_that_is_the_users(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    monkeypatch.setenv("NPUSIM_STATE_DIR", str(state))
    with pytest.raises(UsageError, match=r"no store can be used without a key: .*open to others"):
        StudyStore(good)


def test_what_takes_too_long_is_stopped(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StudyStore(good, reading=True) as store:
        assert store.rows() == ROWS
        store._file.set_progress_handler(store._is_too_long, 1)
        assert store.rows() == ROWS
        monkeypatch.setattr("npusim.explore.store._MOST_STEPS", -10_000_000)
        with pytest.raises(UsageError, match="damaged"):
            store.rows()


def test_an_interrupt_while_sqlite_asks_whether_to_go_on_is_one(good: Path) -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    with StudyStore(good, reading=True) as store:
        store._file.set_progress_handler(interrupted, 1)
        with pytest.raises(KeyboardInterrupt):
            store.rows()


def test_a_schema_that_is_no_text_is_damaged(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    path.write_bytes(good.read_bytes().replace(b"CREATE TABLE facts", b"CREATE TABLE f\xffcts"))
    with pytest.raises(UsageError, match="this store is damaged"):
        StudyStore(path)
