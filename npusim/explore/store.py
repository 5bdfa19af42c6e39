"""What is known of the designs of one space, in one SQLite file that survives whatever ends the process.

A row is written once, whole, in a transaction of its own or with others; nothing in it depends on when or where it was
found. So a study that was killed and went on has the same rows as one that ran through.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from npusim.errors import UsageError, shown
from npusim.explore.figures import Figures, Row

APPLICATION = 0x6E_70_75_73  # "npus"
VERSION = 1
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE designs (
    number INTEGER PRIMARY KEY, base TEXT NOT NULL, settings TEXT NOT NULL, fingerprint TEXT NOT NULL,
    status TEXT NOT NULL, reason TEXT NOT NULL, area NUMERIC
);
CREATE TABLE figures (
    number INTEGER NOT NULL REFERENCES designs, model TEXT NOT NULL, latency NUMERIC NOT NULL, cycles INTEGER,
    dram_bytes NUMERIC, energy NUMERIC, power NUMERIC, digest TEXT NOT NULL, busy TEXT NOT NULL,
    PRIMARY KEY (number, model)
);
"""


class Store:
    """The file of one study; ``path`` None keeps it in memory. One process writes to it at a time, others may read.

    Raises UsageError, in one paragraph, for a file that is something else, of another version, that cannot be written,
    or that another process writes to.
    """

    def __init__(self, path: Path | None, *, reading: bool = False) -> None:
        self.path = path
        self._lock: int | None = None
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path}: there is no directory {path.parent}")
        if reading and path is not None and not path.is_file():
            raise UsageError(f"{path}: no such file; npusim explore makes it")
        with self._explained():
            self._open(path, reading)

    def _open(self, path: Path | None, reading: bool) -> None:
        if path is not None and not reading:
            self._lock = self._locked(path)
        try:
            where = ":memory:" if path is None else f"file:{_quoted(path)}?mode={'ro' if reading else 'rwc'}"
            self._file = sqlite3.connect(where, uri=path is not None, isolation_level=None)
            self._check()
        except BaseException:
            self._unlock()
            raise

    def _locked(self, path: Path) -> int:
        # Not one of SQLite's own locks: those would keep readers out as well.
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(f"{path}: this store cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise UsageError(f"{path}: another study is writing to this store; wait for it, or give another") from None
        return lock

    def _check(self) -> None:
        """Make the tables of a new file; refuse one of somebody else's."""
        (application,) = self._file.execute("PRAGMA application_id").fetchone()
        (version,) = self._file.execute("PRAGMA user_version").fetchone()
        (tables,) = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables and not application:
            with self._transaction():
                for statement in _TABLES.split(";"):
                    self._file.execute(statement)
                self._file.execute(f"PRAGMA application_id = {APPLICATION}")
                self._file.execute(f"PRAGMA user_version = {VERSION}")
        elif application != APPLICATION:
            raise UsageError(f"{self.path}: is a database of something else, not a store of npusim explore")
        elif version != VERSION:
            raise UsageError(
                f"{self.path}: is a store of version {version}, this npusim reads version {VERSION}; give another"
            )

    def close(self) -> None:
        """Give the file to others. What was added stays."""
        self._file.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def facts(self) -> dict[str, Any]:
        """What the store is about: space, models, versions."""
        with self._explained():
            return {name: json.loads(value) for name, value in self._file.execute("SELECT name, value FROM facts")}

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Write down what it is about."""
        rows = [(name, _json(value)) for name, value in facts.items()]
        with self._explained(), self._transaction():
            self._file.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows, all of them or none; one that is there stays as it is."""
        with self._explained(), self._transaction():
            for row in rows:
                design = (
                    row.number, row.base, _json(row.settings), row.fingerprint, row.status, row.reason, row.area
                )  # fmt: skip
                done = self._file.execute("INSERT OR IGNORE INTO designs VALUES (?, ?, ?, ?, ?, ?, ?)", design)
                if done.rowcount:
                    self._file.executemany(
                        "INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        [(row.number, *_columns(each)) for each in row.figures],
                    )

    def rows(self) -> list[Row]:
        """Everything that is there, by number."""
        with self._explained():
            figures: dict[int, list[Figures]] = {}
            for number, model, latency, cycles, dram_bytes, energy, power, digest, busy in self._file.execute(
                "SELECT * FROM figures ORDER BY number, rowid"
            ):
                figures.setdefault(number, []).append(
                    Figures(model, latency, cycles, dram_bytes, energy, power, digest, json.loads(busy))
                )
            designs = self._file.execute("SELECT * FROM designs ORDER BY number").fetchall()
        return [
            Row(number, base, json.loads(settings), fingerprint, status, reason, area, tuple(figures.get(number, ())))
            for number, base, settings, fingerprint, status, reason, area in designs
        ]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What SQLite says, in our words and with the file's name."""
        try:
            yield
        except sqlite3.Error as error:
            raise UsageError(f"{self.path or 'store'}: {_explain(error)}") from None


def _explain(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_NOTADB"):
        return "is no store of npusim explore; give another file, or remove it"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return "this store cannot be written; give it, and its directory, the right to be, or give another file"
    if name.startswith("SQLITE_FULL"):
        return "the disk is full; what was stored before is there, and the study goes on from it when there is room"
    if name.startswith("SQLITE_IOERR"):
        return "the disk does not take what is written; what was stored before is there, and the study goes on from it"
    if name.startswith("SQLITE_CORRUPT"):
        return "this store is damaged; give another file, or remove it"
    return f"the store fails: {shown(str(error))}"


def _columns(each: Figures) -> tuple[Any, ...]:
    return (
        each.model, each.latency, each.cycles, each.dram_bytes, each.energy, each.power, each.digest, _json(each.busy)
    )  # fmt: skip


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=False, separators=(",", ":"))


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(os.fspath(path))
