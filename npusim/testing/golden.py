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
"""Characters of a file's name before its digest: file systems take 255 bytes."""


class Golden:
    """Files beside a test: ``golden/<test file>/<test>.npu.txt``, and ``<test>-<name>.npu.txt`` for further ones.

    ``test``: the test's id within its file, ``[Class::]function[parameters]``. Ids with
    classes, parameters or other special characters are not unique as file names, so a digest of the id is appended.
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
        """Instructions to create the file."""
        old = self._folder / (_readable(self._test.rpartition("::")[2], name) + _SUFFIX)
        if old != path and old.exists():
            # Not read: several tests may have had that name, and the last one that was updated is the one in the file.
            return (
                f"{old.name}, as earlier versions called it, may be another test's: if it is this one's, rename it to "
                f"{path.name}; pytest --npu-update writes it anew"
            )
        return "pytest --npu-update writes it: look at it then"


def _readable(test: str, name: str) -> str:
    """A test's id and a run's name as a file may be called anywhere."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "_", f"{test}-{name}" if name else test).strip("_")


def _replace(path: Path, text: str) -> None:
    """Write a file atomically: an interruption leaves the previous file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(NpusimError):  # of what is none, in whose place it goes
        if GOLDEN.text(path) == text:
            return  # its date stays, and a read-only tree is not touched
    replace_file(path, [text.encode()], mode=0o644)
