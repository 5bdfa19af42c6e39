"""The fixture ``npu_golden``: compare a run with a golden file."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path

from npusim.errors import NpusimError, UsageError
from npusim.testing.changes import changes
from npusim.testing.record import GOLDEN, dump, read
from npusim.testing.run import ModelRun
from npusim.trusted_files import replace_file

FOLDER = "golden"
_SUFFIX = ".npu.txt"
_LONGEST = 120
"""Limit of the characters of a file name before its digest, because file systems limit names to 255 bytes."""


class Golden:
    """Files next to a test: ``golden/<test file>/<test>.npu.txt``, and ``<test>-<name>.npu.txt`` for further ones.

    ``test``: the id of the test within its file, ``[Class::]function[parameters]``. Ids with classes, parameters or
    other special characters are not unique as file names, so a digest of the id is appended.
    """

    def __init__(self, test_file: Path, test: str, update: bool) -> None:
        self._folder = test_file.parent / FOLDER / test_file.stem
        self._test, self._update = test, update
        self._used: set[str] = set()

    def __call__(self, run: ModelRun, name: str = "", *, no_later: bool = False) -> None:
        """Fail unless the timeline equals that of the file; with ``no_later``, unless it takes at most as long.

        ``name`` distinguishes several runs of one test. Without a file, the test fails with instructions.
        """
        path = self.path(name)
        if path.name in self._used:
            raise UsageError(f"npu_golden: {path.name} is compared twice in this test; give each run a name")
        self._used.add(path.name)
        if self._update:
            _replace(path, dump(run.record))
            return
        if not path.exists():
            raise AssertionError(f"there is no golden timeline {path}\n{self._advice(name, path)}")
        before = read(path)
        same = (before.model, before.device) == (run.record.model, run.record.device)
        if no_later and same and run.record.totals["time_ps"] <= before.totals["time_ps"]:
            return
        if found := changes(before, run.record, path.name):
            raise AssertionError("\n".join(found))

    def path(self, name: str = "") -> Path:
        """The file of a run of this test."""
        told = _readable(self._test.replace("::", "."), name)
        if told != f"{self._test}-{name}".removesuffix("-") or len(told) > _LONGEST:
            digest = hashlib.sha256(f"{self._test}\0{name}".encode("utf-8", "surrogateescape")).hexdigest()
            told = f"{told[:_LONGEST]}~{digest[:12]}"
        return self._folder / (told + _SUFFIX)

    def _advice(self, name: str, path: Path) -> str:
        """Advice for creating the file."""
        old = self._folder / (_readable(self._test.rpartition("::")[2], name) + _SUFFIX)
        if old != path and old.exists():
            # The old file is not read: several tests may have shared its name.
            return (
                f"{old.name}, named by an earlier version, may be of another test: if it is of this one, rename it to "
                f"{path.name}; otherwise pytest --npu-update writes a new one"
            )
        return "pytest --npu-update writes it; review it"


def _readable(test: str, name: str) -> str:
    """The id of a test and the name of a run as a portable file name."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "_", f"{test}-{name}" if name else test).strip("_")


def _replace(path: Path, text: str) -> None:
    """Write a file atomically: an interruption leaves the previous file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(NpusimError):  # an unreadable file is replaced
        if GOLDEN.text(path) == text:
            return  # keep the date, and do not touch a read-only tree
    replace_file(path, [text.encode()], mode=0o644)
