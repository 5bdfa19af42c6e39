"""Study stores as an attacker would write them: changed statements, cells and bytes of a valid store written by this
user.

Without trust, the rows are those written, or the store is rejected. With trust, the rows must be valid.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
import struct
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from npusim.explore.report import text, to_json_dict, write_csv
from npusim.explore.study import Study
from tests.support.explore_designs import Synthetic, space, synthetic_area
from tests.support.fuzz.watched import watched

ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t)"
COLUMNS = {
    "facts": ("name", "value"),
    "designs": ("number", "base", "settings", "fingerprint", "status", "reason", "area"),
    "figures": ("number", "model", "latency", "cycles", "dram_bytes", "energy", "power", "digest", "busy"),
    "marks": ("number", "mac"),
}
VALUES = (
    "NULL", "0", "1", "-1", "-5", "2", "3", "77", "1.5", "1e308", "9e999", "-9e999", "9223372036854775807", "''",
    "'x'", "'-5'",
    "'NaN'", "x'00ff'", "zeroblob(40)", "zeroblob(2000000)", "CAST(x'ff00' AS TEXT)", "'{'", "'{}'", "'[]'", "'null'",
    "'{\"matrix\": \"x\"}'", "'{\"matrix\": 2}'", "'{\"matrix.rows\": 9e99}'", "'1e999'", "char(27) || '[2J'",
    "char(0x202e)",
    "'=cmd()'", "'simulated'", "'estimated'", "'failed'", "'none'", "'edge'", "randomblob(32)", "hex(zeroblob(3000))",
    "replace(hex(zeroblob(3000)), '00', '[')", "replace(hex(zeroblob(300)), '00', '{\"a\":')",
    "'\" ' || char(0) || 'x'",
)  # fmt: skip
SCHEMA = (
    "DROP TABLE {table}; CREATE VIEW {table} AS {endless} SELECT n {columns} FROM t",
    "ALTER TABLE {table} RENAME TO kept; CREATE VIEW {table} AS SELECT * FROM kept UNION ALL SELECT * FROM kept",
    "CREATE TRIGGER t AFTER {event} ON {table} BEGIN INSERT INTO facts {endless} SELECT n, n FROM t; END",
    "CREATE TRIGGER t BEFORE {event} ON {table} BEGIN DELETE FROM designs; DELETE FROM figures; END",
    "CREATE INDEX i ON {table} ({column})",
    "CREATE INDEX i ON {table} (abs({column}))",
    "CREATE TABLE {event}s (a)",
    "ALTER TABLE {table} ADD COLUMN more",
    "ALTER TABLE {table} ADD COLUMN more AS (hex(zeroblob(1000000)))",
    "ALTER TABLE {table} DROP COLUMN {column}",
    "ALTER TABLE {table} RENAME COLUMN {column} TO other",
    "DROP TABLE {table}; CREATE TABLE {table} ({columns2})",
    "DROP TABLE {table}; CREATE VIRTUAL TABLE {table} USING fts5({columns2})",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE name = '{table}'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = {value} WHERE name = '{table}'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = {page} WHERE name = '{table}'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET type = 'view', rootpage = 0 WHERE name = '{table}'",
    "PRAGMA writable_schema = ON; INSERT INTO sqlite_master SELECT * FROM sqlite_master",
    "PRAGMA user_version = {page}",
    "PRAGMA application_id = {page}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA auto_vacuum = FULL; VACUUM",
    "PRAGMA page_size = 512; VACUUM",
    "PRAGMA encoding = 'UTF-16'; VACUUM",
    "ANALYZE",
)
ROWS = (
    "UPDATE OR REPLACE {table} SET {column} = {value}",
    "UPDATE OR REPLACE {table} SET {column} = {value} WHERE rowid = {row}",
    "UPDATE OR REPLACE {table} SET {column} = {value} WHERE number = {row}",
    "UPDATE OR REPLACE {table} SET {column} = (SELECT {column} FROM {table} ORDER BY rowid DESC)",
    "DELETE FROM {table}",
    "DELETE FROM {table} WHERE rowid = {row}",
    "DELETE FROM {table} WHERE number = {row}",
    "INSERT OR REPLACE INTO {table} SELECT {values}",
    "INSERT OR REPLACE INTO {table} {endless} SELECT {values} FROM t LIMIT 400",
    "UPDATE OR REPLACE designs SET number = {value} WHERE number = {row};"
    " UPDATE OR REPLACE figures SET number = {value} WHERE number = {row};"
    " UPDATE OR REPLACE marks SET number = {value} WHERE number = {row}",
    "UPDATE figures SET rowid = -rowid",
)


def statement(rng: random.Random) -> str:
    template = rng.choice(ROWS if rng.random() < 0.7 else SCHEMA)
    table = rng.choice(tuple(COLUMNS))
    columns = COLUMNS[table]
    return template.format(
        table=table, column=rng.choice(columns), value=rng.choice(VALUES), row=rng.randrange(7), endless=ENDLESS,
        columns=", ".join(columns), columns2=", ".join(columns), page=rng.choice((0, 1, 2, 3, 5, 99)),
        event=rng.choice(("INSERT", "UPDATE", "DELETE")), values=", ".join(rng.choice(VALUES) for _ in columns),
    )  # fmt: skip


def stated(path: Path, rng: random.Random) -> None:
    """Run statements; if SQLite itself rejects them, the file does not change."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;")
        file.set_progress_handler(lambda: True, 20_000)
        for _ in range(rng.choice((1, 1, 2, 4))):
            with contextlib.suppress(sqlite3.Error):
                file.executescript(statement(rng))
        with contextlib.suppress(sqlite3.Error):
            file.commit()


def overwritten(path: Path, rng: random.Random) -> None:
    """Change bytes of the header, of b-trees, of cells, or of whole pages."""
    data = bytearray(path.read_bytes())
    size = 4096
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        page = rng.randrange(len(data) // size) * size
        kind = rng.randrange(8)
        if kind == 0:
            data[rng.randrange(100)] = rng.randrange(256)
        elif kind == 1:  # b-tree header: type, number of cells, their offset, last child
            at = page + (100 if page == 0 else 0)
            data[at + rng.randrange(12)] = rng.choice((0, 1, 2, 5, 10, 13, 255, rng.randrange(256)))
        elif kind == 2:  # an inner page with children in the same file, including itself
            children = [rng.randrange(1, len(data) // size + 1) for _ in range(rng.choice((1, 5, 300)))]
            data[page + 100 * (not page) : page + size] = _inner(children, size - 100 * (not page), rng)
        elif kind == 3:
            other = rng.randrange(len(data) // size) * size
            data[page : page + size] = data[other : other + size]
        elif kind == 4:
            del data[rng.randrange(len(data)) :]
            if len(data) < size:
                break
        elif kind == 5:
            at = rng.randrange(len(data) - 9)
            data[at : at + 9] = rng.choice((b"\xff" * 9, b"\0" * 9, rng.randbytes(9)))
        else:
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    path.write_bytes(data)


def _inner(children: list[int], size: int, rng: random.Random) -> bytes:
    """Return an inner table page with (child, key) in each cell."""
    cells = [struct.pack(">I", child) + bytes([number & 0x7F]) for number, child in enumerate(children)]
    offsets, end, body = [], size, b""
    for cell in cells:
        end -= len(cell)
        body = cell + body
        offsets.append(end)
    head = struct.pack(">BHHHBI", 5, 0, len(cells), end, 0, rng.choice(children))
    pointers = b"".join(struct.pack(">H", offset) for offset in offsets)
    return (head + pointers).ljust(end, b"\0")[:end] + body


def beside(path: Path, rng: random.Random) -> None:
    """Create a file next to the store that SQLite reads."""
    journal = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", rng.choice((1, 2, 2**32 - 1)), 7, 3, 512, 4096)
    page = struct.pack(">I", rng.randrange(1, 9)) + rng.randbytes(4096) + bytes(4)
    content = rng.choice((b"", rng.randbytes(50), journal, journal.ljust(512, b"\0") + page, b"/x\0" + journal[:8]))
    Path(f"{path}{rng.choice(('-journal', '-journal', '-wal', '-shm'))}").write_bytes(content)


class World:
    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._directory = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self._folder = Path(self._directory.name)
        os.environ["NPUSIM_STATE_DIR"] = str(self._folder / "state")
        self._space = space({"matrix.rows": [4, 8, 16], "matrix.cols": [4, 8]})
        self._good = self._folder / "good.study"
        with self._study(self._good) as study:
            study.run(workers=0)
            self._rows = dict(study.rows)

    def _study(self, path: Path, *, trust: bool = False) -> Study:
        return Study(self._space, store=path, evaluate=Synthetic(), area=synthetic_area, trust=trust)

    def case(self, rng: random.Random) -> list[str]:
        folder = self._folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / "a.study"
        shutil.copy(self._good, path)
        kind = rng.random()
        if kind < 0.5:
            stated(path, rng)
        elif kind < 0.95:
            overwritten(path, rng)
        else:
            beside(path, rng)
        trust = rng.random() < 0.5
        size = path.stat().st_size
        problems = watched(lambda: self._use(path, trust), self.tally)
        if path.stat().st_size > max(size, 1 << 16) * 2:
            problems.append(f"the file has grown from {size} to {path.stat().st_size} bytes")
        return problems

    def _use(self, path: Path, trust: bool) -> str:
        with self._study(path, trust=trust) as study:
            known = dict(study.rows)
            self._check(known, trust)
            study.run(workers=0, budget=6)
            text(study, 20)
            json.dumps(to_json_dict(study), allow_nan=False)
            write_csv(study, path.with_name("a.csv"))
            if not trust:
                assert dict(study.rows) == self._rows
        with self._study(path) as again:
            assert again.rows == study.rows
        return f"was used, {'trusted' if trust else 'as written'}{'' if known == self._rows else ', other rows'}"

    def _check(self, rows: dict[int, Any], trust: bool) -> None:
        for number, row in rows.items():
            good = self._rows[number]
            if not trust:
                assert row == good
            assert (row.number, row.base, row.settings, row.fingerprint) == (
                number, good.base, good.settings, good.fingerprint
            )  # fmt: skip
            assert row.known == bool(row.figures) != bool(row.reason)
            assert all(each.model == "none" and 0 < each.latency < 2**64 for each in row.figures)


def make() -> World:
    return World()
