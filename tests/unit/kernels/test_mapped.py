"""Truncated mapped files: zeros and an error for their users, and no effect on anything else."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from npusim._mapped import MappedFile
from npusim.errors import FileCutError
from npusim.program import ConstantData

READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
PAGE = mmap.PAGESIZE


@pytest.fixture
def descriptor() -> Iterator[int]:
    """A file of three pages of ones."""
    made = os.memfd_create("cut")
    os.write(made, b"\x01" * 3 * PAGE)
    yield made
    os.close(made)


def _array(file: MappedFile) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(memoryview(file), np.uint8)


def test_the_file_is_shared(descriptor: int) -> None:
    file = MappedFile(descriptor, 2 * PAGE, READ | WRITE, PAGE, False)
    array = _array(file)
    array[0] = 5
    os.pwrite(descriptor, b"\x06", PAGE + 1)
    assert os.pread(descriptor, 1, PAGE) == b"\x05"
    assert array[:3].tolist() == [5, 6, 1]
    assert (file.cut, array.size) == (False, 2 * PAGE)
    file.check()
    file.check(3 * PAGE)
    with pytest.raises(FileCutError, match=f"it has {3 * PAGE} bytes now, {4 * PAGE} are needed"):
        file.check(4 * PAGE)
    assert not _array(MappedFile(descriptor, PAGE, READ, 0, True)).flags.writeable


@pytest.mark.parametrize("protection", [READ, READ | WRITE])
def test_what_is_gone_is_zeros_for_good(descriptor: int, protection: int) -> None:
    file = MappedFile(descriptor, 3 * PAGE, protection, 0, False)
    array = _array(file)
    os.ftruncate(descriptor, 2 * PAGE)
    assert array[PAGE] == 1
    file.check()  # the accessed pages exist
    assert array[2 * PAGE] == 0
    assert file.cut
    with pytest.raises(FileCutError, match="cut while it was used"):
        file.check()
    os.ftruncate(descriptor, 3 * PAGE)
    assert file.cut
    assert array[0] == 0  # no half of a file


def test_what_is_written_where_nothing_is_goes_nowhere(descriptor: int) -> None:
    file = MappedFile(descriptor, 3 * PAGE, READ | WRITE, 0, False)
    os.ftruncate(descriptor, PAGE)
    _array(file)[:] = 7
    assert file.cut
    assert os.fstat(descriptor).st_size == PAGE


def test_others_are_not_touched(descriptor: int) -> None:
    """Creating and closing mappings does not affect existing ones."""
    whole = MappedFile(descriptor, 3 * PAGE, READ, 0, False)
    for _ in range(50):
        os.ftruncate(descriptor, 3 * PAGE)
        file = MappedFile(descriptor, 3 * PAGE, READ | WRITE, 0, False)
        assert not file.cut
        _array(file)[:] = 3
        os.ftruncate(descriptor, PAGE)
        assert _array(file)[PAGE] == 0
        assert file.cut
        assert not whole.cut
        assert _array(whole)[0] == 3


def test_many_threads_in_files_that_are_cut() -> None:
    failures: list[str] = []

    def work() -> None:
        made = os.memfd_create("cut")
        for round in range(200):
            os.ftruncate(made, 8 * PAGE)
            file = MappedFile(made, 8 * PAGE, READ | WRITE, 0, False)
            _array(file)[:] = 1
            left = round % 8
            os.ftruncate(made, left * PAGE)
            total = int(_array(file)[: (left + 1) * PAGE].sum())
            if not file.cut or total > left * PAGE:
                failures.append(f"{left}: {file.cut}, {total}")
        os.close(made)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_constants_in_a_file_that_is_cut(descriptor: int) -> None:
    array = _array(MappedFile(descriptor, 3 * PAGE, READ, 0, False))
    data = ConstantData(4 * PAGE, [(0, array[:PAGE].view(np.float32).reshape(-1, 2).T), (PAGE, array[PAGE:])])
    out = np.zeros(4 * PAGE, np.uint8)
    data.fill(out)
    assert int(out.sum()) == 3 * PAGE
    os.ftruncate(descriptor, PAGE)
    with pytest.raises(FileCutError, match="cut while it was used"):
        data.fill(out)
    with pytest.raises(FileCutError, match="cut while it was used"):
        data.check()


def test_what_cannot_be_mapped(descriptor: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for arguments in ((1 << 20, PAGE, READ, 0), (descriptor, PAGE, READ, 1), (descriptor, 0, READ, 0)):
        with pytest.raises(OSError, match=r"\[Errno"):
            MappedFile(*arguments, False)
    assert len(os.listdir("/proc/self/fd")) == before


_PROCESS = """
import faulthandler, mmap, os, signal, sys
from npusim._mapped import MappedFile
{before}
made = os.memfd_create("cut")
os.ftruncate(made, 8192)
file = MappedFile(made, 8192, mmap.PROT_READ, 0, False)
foreign = mmap.mmap(made, 8192)
os.ftruncate(made, 0)
assert memoryview(file)[0] == 0 and file.cut
print("covered", flush=True)
{after}
print("alive", flush=True)
"""


@pytest.mark.parametrize(
    ("before", "after", "status", "said"),
    [
        ("", "foreign[0]", -signal.SIGBUS, ""),
        ("faulthandler.enable()", "foreign[0]", -signal.SIGBUS, "Fatal Python error: Bus error"),
        ("signal.signal(signal.SIGBUS, signal.SIG_IGN)", "foreign[0]", -signal.SIGBUS, ""),
        ("", "os.kill(os.getpid(), signal.SIGBUS)", -signal.SIGBUS, ""),
        ("signal.signal(signal.SIGBUS, signal.SIG_IGN)", "os.kill(os.getpid(), signal.SIGBUS)", 0, ""),
        (
            "signal.signal(signal.SIGBUS, lambda *_: print('heard', file=sys.stderr))",
            "os.kill(os.getpid(), signal.SIGBUS)",
            0,
            "heard",
        ),
    ],
)
def test_other_bus_errors_are_what_they_were(before: str, after: str, status: int, said: str) -> None:
    code = _PROCESS.format(before=before, after=after)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == status, run.stderr
    assert run.stdout.split() == ["covered"] + ["alive"] * (status == 0)
    assert said in run.stderr
