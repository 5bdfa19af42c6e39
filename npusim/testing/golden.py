"""What the fixture ``npu_golden`` gives: a run held against a file."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from npusim.errors import UsageError
from npusim.testing.changes import changes
from npusim.testing.record import dump, load
from npusim.testing.run import Run

FOLDER = "golden"
_SUFFIX = ".npu.txt"


class Golden:
    """Files beside a test: ``golden/<test file>/<test>.npu.txt``, and ``<test>-<name>.npu.txt`` for further ones."""

    def __init__(self, test_file: Path, test: str, update: bool) -> None:
        self._folder = test_file.parent / FOLDER / test_file.stem
        self._test, self._update = test, update
        self._used: set[str] = set()

    def __call__(self, run: Run, name: str = "", *, no_later: bool = False) -> None:
        """Fail unless the run's timeline is the file's; with ``no_later``, unless it takes at most as long.

        ``name`` tells apart several runs of one test. Where there is no file the test fails and says how to make it.
        """
        path = self.path(name)
        if path.name in self._used:
            raise UsageError(f"npu_golden: {path.name} is compared twice in this test; give each run a name")
        self._used.add(path.name)
        if self._update:
            _replace(path, dump(run.record))
            return
        if not path.exists():
            raise AssertionError(f"there is no golden timeline {path}\npytest --npu-update writes it: look at it then")
        before = load(path.read_text("utf-8"), str(path))
        if no_later and run.record.totals["time_ps"] <= before.totals["time_ps"]:
            return
        if found := changes(before, run.record, path.name):
            raise AssertionError("\n".join(found))

    def path(self, name: str = "") -> Path:
        """The file of a run of this test."""
        return self._folder / (_file_name(f"{self._test}-{name}" if name else self._test) + _SUFFIX)


def _file_name(text: str) -> str:
    """A test's name with its parameters as a file may be called anywhere."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "_", text).strip("_")


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all: who is interrupted leaves the one that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_text("utf-8") == text:
        return  # its date stays, and a read-only tree is not touched
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
