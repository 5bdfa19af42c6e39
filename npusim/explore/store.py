"""The rows of a study in one SQLite file, which survives the end of the process at any moment.

A row is written once, completely, in one transaction. Its contents do not depend on the time or place of its
evaluation. A study that was killed and resumed therefore has the same rows as one that was not.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import hmac
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from npusim.errors import UsageError, shown
from npusim.explore.figures import ESTIMATED, FAILED, OF_MODELS, REFUSED, SIMULATED, ModelFigures, StudyRow
from npusim.trusted_files import open_descriptor, state_directory, user_key
from npusim.untrusted import FileKind

STORE = FileKind("study store", error=UsageError, links=False)
KEY_NAME = "study.key"
APPLICATION = 0x6E_70_75_73  # "npus"
VERSION = 3
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE designs (
    number INTEGER PRIMARY KEY, base TEXT NOT NULL, settings TEXT NOT NULL, fingerprint TEXT NOT NULL,
    status TEXT NOT NULL, reason TEXT NOT NULL, area NUMERIC
);
CREATE TABLE figures (
    number INTEGER NOT NULL REFERENCES designs, model TEXT NOT NULL, latency NUMERIC NOT NULL, cycles INTEGER,
    dram_bytes NUMERIC, energy NUMERIC, power NUMERIC, digest TEXT NOT NULL, busy TEXT NOT NULL,
    resources TEXT NOT NULL, estimates TEXT NOT NULL,
    PRIMARY KEY (number, model)
);
CREATE TABLE marks (number INTEGER PRIMARY KEY REFERENCES designs, mac BLOB NOT NULL);
"""
_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1 << 20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1 << 12,
    sqlite3.SQLITE_LIMIT_COLUMN: 16,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_PATIENCE = 60.0
"""Seconds to wait for a transaction of another process. The longest is the reading of all rows."""
_STEPS = 10_000
"""Instructions of SQLite between two checks of their number."""
_MOST_STEPS = 10_000_000
"""Limit for one call, in addition to steps that depend on the size of the file."""
_MOST_FACTS, _MOST_MODELS, _MOST_LENGTH = 16, 1 << 12, 1 << 22
"""Limits: rows of the description of a store, rows of the figures of a design, characters of these figures."""
_JOURNAL_END = bytes.fromhex("d9d505f920a163d7")
"""The end of a journal that names another file, which SQLite would remove."""
_LARGEST = 1 << 64
Cells = tuple[Any, ...]


class StudyStore:
    """The file of one study; ``path`` None keeps it in memory. One process writes to it at a time, others may read.

    Each row has a MAC with this user's key, over the description of the store too: a row that was written or changed by
    others is refused. ``trust``: rows of others are accepted if their values are plausible; :meth:`sign` makes them
    this user's.

    Raises UsageError, in one paragraph, for a file of another kind or version, that cannot be written, or that another
    process writes to.
    """

    def __init__(self, path: Path | None, *, reading: bool = False, trust: bool = False) -> None:
        self.path = path
        self._lock: int | None = None
        self._key = b""
        self._trust = trust
        self._left = 0
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path}: there is no directory {path.parent}")
        with self._explained():
            self._open(path, reading)

    def _open(self, path: Path | None, reading: bool) -> None:
        if path is not None:
            self._lock = _opened(path, reading)
        try:
            if path is not None and self._lock is not None:
                _look_beside(path, self._lock)
                self._key = _key(path)
            where = ":memory:" if path is None else f"file:{_quoted(path)}?mode=rw"
            # A reader cannot write, see below, but takes back the transaction of a writer that was killed.
            self._file = sqlite3.connect(where, timeout=_PATIENCE, uri=path is not None, isolation_level=None)
            try:
                self._defend(reading)
                self._check(reading)
            except BaseException:
                self._file.close()
                raise
        except BaseException:
            self._unlock()
            raise

    def _defend(self, reading: bool) -> None:
        """Restrict SQLite before the file is read, because the file may contain code that SQLite would run, or endless
        structures."""
        for limit, most in _LIMITS.items():
            self._file.setlimit(limit, most)
        if hasattr(self._file, "setconfig"):  # since Python 3.12
            for name, on in (("DEFENSIVE", True), ("ENABLE_TRIGGER", False), ("ENABLE_VIEW", False)):
                self._file.setconfig(getattr(sqlite3, f"SQLITE_DBCONFIG_{name}"), on)
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "temp_store = MEMORY"):
            self._file.execute(f"PRAGMA {pragma}")
        if reading:
            self._file.execute("PRAGMA query_only = ON")
        self._file.set_progress_handler(self._is_too_long, _STEPS)

    def _is_too_long(self) -> bool:
        self._left -= _STEPS
        return self._left < 0

    def _check(self, reading: bool) -> None:
        """Create the tables of a new file; refuse files of other programs."""
        (application,) = self._file.execute("PRAGMA application_id").fetchone()
        (version,) = self._file.execute("PRAGMA user_version").fetchone()
        schema = self._file.execute(_SCHEMA).fetchmany(len(_schema()) + 1)
        if not schema and not application:
            if reading:
                raise UsageError(f"{self.path}: has no rows yet; try again when npusim explore has begun")
            with self._transaction():
                self._file.execute(f"PRAGMA application_id = {APPLICATION}")
                self._file.execute(f"PRAGMA user_version = {VERSION}")
                for statement in _TABLES.split(";"):
                    self._file.execute(statement)
        elif application != APPLICATION:
            raise UsageError(f"{self.path}: is a database of something else, not a store of npusim explore")
        elif version != VERSION:
            raise UsageError(
                f"{self.path}: is a store of version {version}, this npusim reads version {VERSION}; give another"
            )
        elif schema != _schema():
            raise UsageError(f"{self.path}: its tables are not those of a store of npusim explore; give another")
        elif self._trust and self._file.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise UsageError(f"{self.path}: {_DAMAGED}")

    def close(self) -> None:
        """Close the file. Added rows are kept."""
        self._file.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> StudyStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def facts(self) -> dict[str, Any]:
        """The description of the store: space, models, versions."""
        return {name: STORE.parse_json(value.encode(), f"{self._label}: {name}") for name, value in self._facts()}

    def _facts(self) -> list[tuple[str, str]]:
        with self._explained():
            found = self._file.execute("SELECT name, value FROM facts ORDER BY name").fetchmany(_MOST_FACTS + 1)
        if len(found) > _MOST_FACTS or not all(_is_text(cell) for row in found for cell in row):
            raise self._forged("what it is about")
        return found

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Write the description before any rows."""
        rows = [(name, _json(value)) for name, value in facts.items()]
        with self._explained(), self._transaction():
            self._file.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def add(self, rows: Iterable[StudyRow]) -> None:
        """Write rows, all of them or none. Existing rows are not changed."""
        about = self._about()
        with self._explained(), self._transaction():
            for row in rows:
                design = (
                    row.number, row.base, _json(row.settings), row.fingerprint, row.status, row.reason, row.area
                )  # fmt: skip
                done = self._file.execute("INSERT OR IGNORE INTO designs VALUES (?, ?, ?, ?, ?, ?, ?)", design)
                if done.rowcount:
                    self._file.executemany(
                        "INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        [(row.number, *_columns(each)) for each in row.figures],
                    )
                    self._mark(row.number, about)

    def sign(self) -> None:
        """Sign all rows with the key of this user."""
        about = self._about()
        numbers = [row.number for row in self.rows()]
        with self._explained(), self._transaction():
            self._file.execute("DELETE FROM marks")
            for number in numbers:
                self._mark(number, about)

    def _mark(self, number: int, about: bytes) -> None:
        # The MAC covers the cells as they are read back: SQLite stores 5.0 in a numeric column as 5.
        design = self._file.execute("SELECT * FROM designs WHERE number = ?", (number,)).fetchone()
        mac = self._mac(about, design, self._figures(number))
        self._file.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (number, mac))

    def _about(self) -> bytes:
        return hashlib.sha256(repr(self._facts()).encode()).digest()

    def _mac(self, about: bytes, design: Cells, figures: Sequence[Cells]) -> bytes:
        return hmac.digest(self._key, repr((about, design, figures)).encode(), "sha256")

    def _figures(self, number: object) -> list[Cells]:
        """The cells of the figures of a design, in the order in which they were added."""
        rows: list[Cells] = []
        length = 0
        for cells in self._file.execute("SELECT rowid, * FROM figures WHERE number = ?", (number,)):
            # Damaged rows may share bytes, so a small file can contain many large rows.
            length += sum(len(cell) for cell in cells if isinstance(cell, str | bytes))
            if length > _MOST_LENGTH or len(rows) == _MOST_MODELS:
                raise UsageError(f"{self._label}: {_DAMAGED}")
            rows.append(cells)
        return [row[1:] for row in sorted(rows, key=lambda row: row[0])]

    def rows(self) -> list[StudyRow]:
        """All rows by number. Raises UsageError for a row that is not signed by this user."""
        about = self._about()
        found: list[StudyRow] = []
        count = 0
        with self._explained(), self._transaction("DEFERRED"):
            # Rows are read one by one and checked before they are kept, because a damaged file may contain endless
            # tables.
            last = -1
            for *design, mac in self._file.execute(
                "SELECT designs.*, marks.mac FROM designs LEFT JOIN marks ON marks.number = designs.number"
            ):
                number, figures = design[0], self._figures(design[0])
                if number <= last:
                    raise UsageError(f"{self._label}: {_DAMAGED}")
                last = number
                wanted = self._mac(about, tuple(design), figures)
                if not self._trust and not (isinstance(mac, bytes) and hmac.compare_digest(mac, wanted)):
                    raise self._forged(f"design {number}")
                found.append(self._row(design, figures))
                count += len(figures)
            self._nothing_else({row.number for row in found}, count)
        return found

    def _nothing_else(self, numbers: set[int], count: int) -> None:
        """Refuse figures and signatures of designs that do not exist."""
        for table, most in (("figures", count), *(() if self._trust else [("marks", len(numbers))])):
            for place, (number,) in enumerate(self._file.execute(f"SELECT number FROM {table} NOT INDEXED")):
                if place == most or number not in numbers:
                    raise self._forged(f"the table of {table} names design {shown(number)}, which is missing, so it")

    def _row(self, design: Sequence[Any], figures: Sequence[Sequence[Any]]) -> StudyRow:
        number, base, settings, fingerprint, status, reason, area = design
        label = f"{self._label}: design {number}"
        problem = _problem_of_cells(design, figures) if self._trust else ""
        if problem:
            raise UsageError(f"{label}: {problem}")
        found = [
            ModelFigures(
                model,
                latency,
                cycles,
                dram_bytes,
                energy,
                power,
                digest,
                *(STORE.parse_json(each.encode(), label) for each in (busy, resources, estimates)),
            )
            for _, model, latency, cycles, dram_bytes, energy, power, digest, busy, resources, estimates in figures
        ]
        changed = STORE.parse_json(settings.encode(), label)
        row = StudyRow(number, base, changed, fingerprint, status, reason, area, tuple(found))
        problem = _problem(row) if self._trust else ""
        if problem:
            raise UsageError(f"{label}: {problem}")
        return row

    @property
    def _label(self) -> str:
        return str(self.path or "store")

    def _forged(self, what: str) -> UsageError:
        return UsageError(
            f"{self._label}: {what} was not written by npusim of this user on this machine; give another store, or "
            "trust this one (--trust-store)"
        )

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """A transaction; ``DEFERRED``: one that reads, so that others may write meanwhile and it does not see that."""
        self._file.execute(f"BEGIN {kind}")
        try:
            yield
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of SQLite as UsageError with the name of the file, and a limit on its work."""
        # The work per byte of a row is less than these steps.
        self._left = _MOST_STEPS + 16 * (os.fstat(self._lock).st_size if self._lock is not None else 0)
        try:
            yield
        except UnicodeDecodeError:
            raise UsageError(f"{self._label}: {_DAMAGED}") from None
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT" and self._left >= 0:
                raise KeyboardInterrupt from None  # it arrived in the progress handler of SQLite
            raise UsageError(f"{self._label}: {_explain(error)}") from None


WHATIF = "whatif-"
"""Beginning of the names of stores in the cache directory."""


def clear_whatif(folder: Path) -> list[int]:
    """Remove this user's stores of what-if from the cache directory. Returns their sizes in bytes."""
    removed = []
    for path in sorted(folder.glob(f"{WHATIF}*.study")):
        with suppress(OSError):  # a link, no file, or removed by another process
            with STORE.open(path) as file:
                header, status = file.read(100), os.fstat(file.fileno())
            is_store = not header or header[68:72] == APPLICATION.to_bytes(4, "big")
            if is_store and status.st_uid == os.geteuid():
                path.unlink()
                removed.append(status.st_size)
    return removed


def _opened(path: Path, reading: bool) -> int:
    """A descriptor of the file, locked if it will be written. A missing file is then created."""
    flags = os.O_RDONLY if reading else os.O_RDWR | os.O_CREAT
    try:
        found = open_descriptor(path, flags, own=False, links=STORE.links, mode=0o666)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; npusim explore makes it") from None
    except OSError as error:
        raise UsageError(f"{path}: this store cannot be {'read' if reading else 'written'}: {error.strerror}") from None
    try:
        # Not a lock of SQLite, which would exclude readers too.
        if not reading:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        raise UsageError(f"{path}: another study is writing to this store; wait for it, or give another") from None
    return found


def _look_beside(path: Path, descriptor: int) -> None:
    """Refuse files next to a store from which SQLite would read other contents, or names of files to remove."""
    header = os.pread(descriptor, 20, 0)
    if header.startswith(b"SQLite format 3\0") and header[18:] != b"\1\1":
        raise UsageError(f"{path}: has a write-ahead log; npusim explore makes no such store")
    for suffix in ("-wal", "-shm"):
        if os.path.lexists(f"{path}{suffix}"):
            raise UsageError(f"{path}{suffix}: npusim explore makes no such file; remove it")
    journal = Path(f"{path}-journal")
    if not os.path.lexists(journal):
        return
    try:
        with STORE.open(journal) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - len(_JOURNAL_END)))
            end = file.read(len(_JOURNAL_END))
    except FileNotFoundError:  # the writer has just ended a transaction
        return
    except OSError as error:
        raise UsageError(f"{journal}: cannot be read: {error.strerror}") from None
    if end == _JOURNAL_END:
        raise UsageError(f"{journal}: names another file; npusim explore makes no such journal")


def _key(path: Path) -> bytes:
    key = state_directory() / KEY_NAME
    try:
        return user_key(key)
    except OSError as error:
        raise UsageError(f"{path}: no store can be used without a key: {key}: {error.strerror or error}") from None


@functools.cache
def _schema() -> list[tuple[str, str, str, str | None]]:
    """The rows of the schema of a store, as SQLite writes them."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(_TABLES)
        return fresh.execute(_SCHEMA).fetchall()


_DAMAGED = "this store is damaged; give another file, or remove it"


def _explain(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_NOTADB"):
        return "is not a store of npusim explore; give another file, or remove it"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return "this store is not writable; make the file and its directory writable, or give another file"
    if name.startswith("SQLITE_FULL"):
        return "the disk is full; earlier results are stored, and the study continues from them when there is space"
    if name.startswith("SQLITE_IOERR"):
        return "the disk rejects writes; earlier results are stored, and the study continues from them"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_INTERRUPT", "SQLITE_TOOBIG")):
        return _DAMAGED
    return f"the store fails: {shown(str(error))}"


def _is_text(cell: object) -> bool:
    return isinstance(cell, str) and cell.isprintable()


def _is_digest(cell: object) -> bool:
    return isinstance(cell, str) and re.fullmatch("[0-9a-f]{0,64}", cell) is not None


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and 0 <= cell < _LARGEST


def _is_unknown_or_number(cell: object) -> bool:
    return cell is None or _is_number(cell)


_CELLS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "number": ("a number from 0 on", _is_number),
    "base": ("text", _is_text),
    "settings": ("text", _is_text),
    "fingerprint": ("a digest", _is_digest),
    "status": ("a tier, refused or failed", lambda cell: cell in (SIMULATED, ESTIMATED, REFUSED, FAILED)),
    "reason": ("text", _is_text),
    "area": ("a number from 0 to 2^64, or unknown", _is_unknown_or_number),
    "model": ("text", _is_text),
    "latency": ("a number above 0", lambda cell: _is_number(cell) and cell > 0),
    "cycles": ("a whole number from 0 on, or unknown", lambda cell: cell is None or (type(cell) is int and cell >= 0)),
    **dict.fromkeys(("dram_bytes", "energy", "power"), ("a number from 0 to 2^64, or unknown", _is_unknown_or_number)),
    "digest": ("a digest", _is_digest),
    **dict.fromkeys(("busy", "resources", "estimates"), ("text", _is_text)),
}
"""The kind of a cell by its column."""
_DESIGN = ("number", "base", "settings", "fingerprint", "status", "reason", "area")
_FIGURES = (
    "number",
    "model",
    "latency",
    "cycles",
    "dram_bytes",
    "energy",
    "power",
    "digest",
    "busy",
    "resources",
    "estimates",
)


def _problem_of_cells(design: Sequence[Any], figures: Sequence[Sequence[Any]]) -> str:
    """The problem with the cells of a row; empty if there is none."""
    for columns, cells in ((_DESIGN, design), *((_FIGURES, each) for each in figures)):
        for column, cell in zip(columns, cells, strict=True):
            wanted, is_right = _CELLS[column]
            if not is_right(cell):
                return f"{column} must be {wanted}, got {shown(cell)}"
    return ""


def _problem(row: StudyRow) -> str:
    """The problem with a row whose cells are valid individually; empty if there is none."""
    if row.known != bool(row.figures) or row.known == bool(row.reason):
        return "must have either figures or a reason why there are none"
    if not isinstance(row.settings, dict):
        return f"settings must be an object, got {shown(row.settings)}"
    for each in row.figures:
        if not isinstance(each.busy, dict) or not all(_is_number(part) and part <= 1 for part in each.busy.values()):
            return f"busy must be parts of 1 by name, got {shown(each.busy)}"
        if not isinstance(each.resources, dict) or not all(
            type(ps) is int and ps > 0 for ps in each.resources.values()
        ):
            return f"resources must be picoseconds by name, got {shown(each.resources)}"
        if not isinstance(each.estimates, dict) or not all(
            name in OF_MODELS and _is_number(value) for name, value in each.estimates.items()
        ):
            return f"estimates must be figures by name, got {shown(each.estimates)}"
    return ""


def _columns(each: ModelFigures) -> tuple[Any, ...]:
    return (
        each.model, each.latency, each.cycles, each.dram_bytes, each.energy, each.power, each.digest, _json(each.busy),
        _json(each.resources), _json(each.estimates),
    )  # fmt: skip


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=False, separators=(",", ":"))


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(os.fspath(path))
