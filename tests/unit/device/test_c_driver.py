"""The C driver: with all warnings, under sanitizers, in the conformance suite, with planted bugs, and killed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.cache import write_program
from npusim.conformance import Report, run
from npusim.conformance.subject import ProgramSubject
from npusim.demo import network
from npusim.device.findings import KINDS
from npusim.device.transports.door import door
from npusim.program import Program
from tests.support.c_compiler import needs_gcc
from tests.support.fuzz.damaged_programs import broken
from tests.support.vfio_client import SMALL, Served

pytestmark = [needs_gcc, pytest.mark.skipif(shutil.which("make") is None, reason="no make")]
SOURCES = Path(__file__).resolve().parents[3] / "drivers"
SANITIZE = ("SANITIZE=1", "CFLAGS=-O1 -g")
PATIENCE_S = 60


def build(folder: Path, *options: str, sources: Path = SOURCES) -> Path:
    done = subprocess.run(
        ["make", "-C", sources / "c", f"OUT={folder}", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("c-sanitized"), *SANITIZE)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Path]:
    compiled = npusim.Session(SMALL, cache_dir=False).compile(network())
    path = tmp_path_factory.mktemp("program") / "demo.npu"
    write_program(compiled, path)
    return compiled, path


@contextlib.contextmanager
def listening(served: Served, path: Path) -> Iterator[None]:
    """Serve clients at a path, one after the other."""
    over = threading.Event()
    with door(path) as listener:

        def work() -> None:
            while not over.is_set():
                peer, _ = listener.accept()
                served.server.serve(peer)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:
                knock.connect(str(path))
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


def obey(driver: Path, *lines: str) -> list[str]:
    """Return the program's answers. It must exit with success, and without sanitizer findings."""
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run([driver], input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def suite(driver: Path, seeds: int = 5, cases: Sequence[str] | None = None) -> Report:
    subject = ProgramSubject(str(driver), PATIENCE_S)
    return run(subject, npusim.load_config("tiny"), name="c", endpoint="vfio-user", seeds=seeds, cases=cases)


def test_it_is_as_small_as_is_said() -> None:
    assert len((SOURCES / "c/npu.c").read_text().splitlines()) <= 400
    assert "python" not in (SOURCES / "c/npu.c").read_text().lower()


def test_it_keeps_all_promises(sanitized: Path) -> None:
    report = suite(sanitized / "driver_test")
    assert [each.state for each in report.outcomes] == ["passed"] * len(report.outcomes), report.text()


PLANTED = [
    ("entry-late", r"(memcpy\(npu->memory \+ job->entry, &entry.*?;)(.*?NPU_LOW_DOORBELL_RING\);)", r"\2\1"),
    ("record-not-cleared", r"\.status = NPU_JOB_PENDING", ".status = NPU_JOB_DONE"),
    ("register-misuse", r"NPU_LOW_DOORBELL_RING\)", "NPU_LOW_DOORBELL_RING | 2)"),
    ("interrupt-unacknowledged", r"write_register\(npu, NPU_INT_STATUS.*?;", ";"),
    ("ring-changed", r"write_register\(npu, NPU_CONTROL, NPU_CONTROL_RESET\);", ";"),
    ("seqno-reused", r"\+\+npu->seqno", "npu->seqno"),
    ("doorbell-without-tail", r"write_register\(npu, NPU_LOW_TAIL.*?;", ";"),
    ("ring-overrun", r"inside == ENTRIES", "inside > 4 * ENTRIES"),
    ("shared-in-flight", r"\.completion = job->block", ".completion = npu->ring[2] + 4096"),
    ("never rings", r"write_register\(npu, NPU_LOW_DOORBELL.*?;", ";"),
    ("never continues", r"write_register\(npu, NPU_CONTROL, NPU_CONTROL_CONTINUE\);", ";"),
    ("never copies the code", r"memcpy\(npu->memory \+ program->code.*?;", ";"),
]
"""Named after the finding, if any: writes to memory mapped by the program are only seen at doorbells."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pattern", "instead"), PLANTED, ids=[name for name, *_ in PLANTED])
def test_a_planted_bug_is_found(tmp_path: Path, name: str, pattern: str, instead: str) -> None:
    shutil.copytree(SOURCES, tmp_path / "drivers", ignore=shutil.ignore_patterns("build", "linux", "uml"))
    file = tmp_path / "drivers/c/npu.c"
    changed, count = re.subn(pattern, instead, file.read_text(), flags=re.DOTALL)
    assert count, "the bug is not planted"
    file.write_text(changed)
    folder = build(tmp_path / "out", "CFLAGS=-O1 -Wno-error", sources=tmp_path / "drivers")
    report = suite(folder / "driver_test", cases=("computes", "a-full-ring", "a-bus-error", "a-reset"))
    kinds = {str(found["kind"]) for each in report.failed for found in each.findings}
    assert report.failed, report.text()
    assert name in kinds or name not in KINDS, (kinds, report.text())


def test_the_same_bits_and_cycles_as_in_process(sanitized: Path, program: tuple[Program, Path], tmp_path: Path) -> None:
    compiled, path = program
    (x,), (y,) = compiled.inputs, compiled.outputs
    served = Served(lockstep=False)
    given = np.random.default_rng(3).standard_normal(x.shape).astype(x.dtype.storage)
    given.tofile(tmp_path / "x")
    session = npusim.Session(SMALL, cache_dir=False)
    expected = session.run(compiled, {x.name: given})
    with listening(served, tmp_path / "s"):
        said = obey(
            sanitized / "driver_test", f"open vfio-user:{tmp_path / 's'}", f"load {path}",
            f"run {tmp_path / 'x'} -> {tmp_path / 'y'}", f"submit high {tmp_path / 'x'} -> {tmp_path / 'z'}", "reset",
            "wait 2 1000000000000", f"run @1 {tmp_path / 'x'} -> {tmp_path / 'y'}", "unload 1", "close",
        )  # fmt: skip
    cycles = f"ok {expected.cycles}"
    assert said == ["ok", "ok 1", cycles, "ok 2", "ok", said[5], cycles, "ok", "ok"]
    assert said[5] in ("error ABORTED the job was aborted", cycles)
    assert (tmp_path / "y").read_bytes() == expected.outputs[y.name].tobytes()


def test_a_job_that_has_ended_before_a_reset_is_not_lost(
    sanitized: Path, program: tuple[Program, Path], tmp_path: Path
) -> None:
    compiled, path = program
    (x,), (y,) = compiled.inputs, compiled.outputs
    np.zeros(x.shape, x.dtype.storage).tofile(tmp_path / "x")
    submit = f"submit {tmp_path / 'x'} -> {tmp_path / 'y'}"
    with listening(Served(lockstep=True), tmp_path / "s"):  # when the second is rung in, the first has ended
        said = obey(
            sanitized / "driver_test", f"open vfio-user:{tmp_path / 's'}", f"load {path}", submit, submit,
            "reset", "wait 1 1000000000000", "close",
        )  # fmt: skip
    assert said[5].startswith("ok ")
    assert (tmp_path / "y").stat().st_size == y.nbytes


def test_files_that_are_no_programs(sanitized: Path, program: tuple[Program, Path], tmp_path: Path) -> None:
    whole = program[1].read_bytes()
    rng = random.Random(4)
    files = [b"", whole[:71], whole[:-64], whole[:40], bytes(1000), whole[:130] + b"~" + whole[131:]]
    files += [broken(rng)[1] for _ in range(100)]  # changed, with a checksum that fits
    lines = []
    for number, data in enumerate(files):
        (tmp_path / f"{number}.npu").write_bytes(data)
        lines.append(f"load {tmp_path / f'{number}.npu'}")
    with listening(Served(), tmp_path / "s"):
        said = obey(sanitized / "driver_test", f"open vfio-user:{tmp_path / 's'}", *lines, f"load {program[1]}")
    assert [answer.split()[:2] for answer in said[1:7]] == [["error", "FILE"]] * 6
    assert said[7 : len(files)].count("ok") < len(files)
    assert {answer.split()[0] for answer in said} == {"ok", "error"}
    assert len(said) == len(lines) + 2


def test_a_server_that_is_not_there(built: Path, tmp_path: Path) -> None:
    assert obey(built / "driver_test", f"open vfio-user:{tmp_path / 'none'}", "load x", "open bus:x", "what") == [
        "error GONE the device is not there",
        "error USAGE open first",
        "error UNSUPPORTED endpoints must be vfio-user:SOCKET",
        "error USAGE open first",
    ]


@pytest.mark.parametrize("answer", [b"", b"\xff" * 16, b"\1\0\1\0\x10\0\0\0\1\0\0\0\0\0\0\0", bytes(200)])
def test_a_server_that_lies(sanitized: Path, tmp_path: Path, answer: bytes) -> None:
    with door(tmp_path / "s") as listener:

        def lie() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(answer)

        thread = threading.Thread(target=lie)
        thread.start()
        said = obey(sanitized / "driver_test", f"open vfio-user:{tmp_path / 's'}")
        thread.join()
    assert said == ["error GONE the device is not there"]


def kill_clients(built: Path, path: Path, tmp_path: Path, clients: int) -> None:
    """Kill clients at random moments; the next one always gets its job done."""
    rng, open_before = random.Random(6), len(os.listdir("/proc/self/fd"))
    served = Served(lockstep=False)
    with listening(served, tmp_path / "s"):
        for number in range(clients):
            client = subprocess.Popen(
                [built / "bench", tmp_path / "s", path, "100000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(rng.random() * 0.5)
            client.kill()
            client.wait()
            if number % 10 == 9:
                done = subprocess.run(
                    [built / "bench", tmp_path / "s", path, "3"],
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE_S,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
                assert "3 jobs of" in done.stdout
    assert len(os.listdir("/proc/self/fd")) < open_before + 20


def test_clients_that_are_killed(built: Path, program: tuple[Program, Path], tmp_path: Path) -> None:
    kill_clients(built, program[1], tmp_path, 3)


@pytest.mark.slow
def test_a_hundred_clients_that_are_killed(built: Path, program: tuple[Program, Path], tmp_path: Path) -> None:
    kill_clients(built, program[1], tmp_path, 100)


@pytest.mark.slow
def test_ten_thousand_jobs(built: Path, program: tuple[Program, Path], tmp_path: Path) -> None:
    with listening(Served(lockstep=False), tmp_path / "s"):
        done = subprocess.run(
            [built / "bench", tmp_path / "s", program[1], "10000"],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert re.search(r"10000 jobs of \d+ cycles: \d+ us each, 0 different", done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind")
def test_nothing_leaks(built: Path, program: tuple[Program, Path], tmp_path: Path) -> None:
    compiled, path = program
    np.zeros(compiled.inputs[0].nbytes, np.uint8).tofile(tmp_path / "x")
    lines = [
        f"open vfio-user:{tmp_path / 's'}",
        f"load {path}",
        "load /none",
        f"submit {tmp_path / 'x'} -> {tmp_path / 'y'}",
    ]
    with listening(Served(), tmp_path / "s"):
        done = subprocess.run(
            ["valgrind", "-q", "--leak-check=full", "--error-exitcode=9", built / "driver_test"],
            input="\n".join(lines), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1::2] == ["ok 1", "ok 1"]
