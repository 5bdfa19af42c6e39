# ruff: noqa: T201 a program
"""When `make fuzz` and `make sanitize` last passed, and on which sources: kept in .ci/records.json, which is committed.

    .ci/record.py begin fuzz     before the first step: the sources as they are
    .ci/record.py end fuzz       after the last one: writes the record, if the sources are still the same
    .ci/record.py report         a line for each record
    .ci/record.py check          the same; the exit code is 1 unless all are of today's sources

In between, tests.support.fuzz.run notes its cases in build/records, whose path is in $NPUSIM_RECORD.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / ".ci/records.json"
SUFFIXES = {".py", ".pyx", ".pxd", ".c", ".h", ".toml"}
SOURCES = {
    "fuzz": ("npusim", "hal", "configs", "tests/support", "setup.py"),
    "sanitize": ("npusim", "configs", "tests/support", "tests/unit/kernels", "tests/unit/isa", "setup.py"),
}
"""What each of them covers."""


def files(names: tuple[str, ...]) -> Iterator[Path]:
    """The files of a row of SOURCES, in order."""
    for name in names:
        place = ROOT / name
        found = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.suffix in SUFFIXES)
        # What Cython makes of a source is none.
        yield from (path for path in found if path.suffix != ".c" or not path.with_suffix(".pyx").exists())


def digest(kind: str) -> str:
    """Of the names and contents of all sources that a kind covers."""
    whole = hashlib.sha256()
    for path in files(SOURCES[kind]):
        content = path.read_bytes()
        whole.update(f"{path.relative_to(ROOT)}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def records() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    return found


def notes(kind: str) -> Path:
    return ROOT / "build/records" / kind


def begin(kind: str) -> int:
    notes(kind).parent.mkdir(parents=True, exist_ok=True)
    notes(kind).write_text(json.dumps({"digest": digest(kind)}) + "\n")
    return 0


def end(kind: str) -> int:
    first, *rest = (json.loads(line) for line in notes(kind).read_text().splitlines())
    if first["digest"] != digest(kind):
        print(f"{kind}: the sources have changed meanwhile: nothing is recorded", file=sys.stderr)
        return 1
    date = dt.datetime.now(dt.UTC).date().isoformat()
    found = records()
    found[kind] = {**first, "cases": {each["library"]: each["cases"] for each in rest}, "date": date}
    RECORDS.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    return 0


def report() -> int:
    """Print a line for each record; 1 if one is missing or of other sources."""
    stale, found = 0, records()
    for kind in SOURCES:
        record = found.get(kind)
        if record is not None and record["digest"] == digest(kind):
            print(f"make {kind}: passed on these sources, {record['date']}, {sum(record['cases'].values())} cases")
            continue
        stale = 1
        last = f"; last passed on others, {record['date']}" if record else ""
        print(f"make {kind}: not run on these sources{last}")
    return stale


def main(arguments: list[str]) -> int:
    match arguments:
        case ["begin" | "end" as step, kind] if kind in SOURCES:
            return begin(kind) if step == "begin" else end(kind)
        case ["report"]:
            report()
            return 0
        case ["check"]:
            return report()
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
