"""A real User Mode Linux kernel on the device; skipped if there is none."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from npusim.cli.app import main
from npusim.device.npu import NpuDevice
from npusim.errors import NpusimError, UsageError
from npusim.hw.config import Config, load_config
from npusim.linux import Initrd, KernelOutcome, find_kernel, run
from tests.support.c_compiler import PROGRAMS, gcc, needs_gcc

KERNEL = find_kernel()
pytestmark = pytest.mark.skipif(
    KERNEL is None or not KERNEL.is_file(), reason="no User Mode Linux kernel: make uml builds one"
)
TINY = load_config("tiny")


class Machine:
    """A kernel with a script to run."""

    def __init__(self, folder: Path) -> None:
        assert KERNEL is not None
        self.kernel, self.folder = KERNEL, folder

    def run(
        self, script: str, config: Config = TINY, files: Mapping[str, Path] | None = None, **options: object
    ) -> tuple[KernelOutcome, str]:
        program = self.folder / "script.sh"
        program.write_text(f"#!/bin/busybox sh\n{script}\n")
        initrd = Initrd(self.kernel.parent / "busybox", (), [str(program)], files or {})
        log = io.BytesIO()
        outcome = run(NpuDevice(config), self.kernel, initrd.pack(), log, **options)  # type: ignore[arg-type]
        return outcome, log.getvalue().decode().replace("\r", "")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_three_runs_are_equal_to_the_byte(machine: Machine) -> None:
    """Random numbers, addresses, process numbers and dates are equal, which usually differ between two starts of a
    kernel.

    Exception: the number of notifications from the host that the console was read.
    """
    script = """
        cat /proc/self/maps /proc/sys/kernel/random/boot_id /proc/uptime /proc/meminfo
        grep -v console-write /proc/interrupts
        head -c 16 /dev/urandom | hexdump -C; date; echo $$
        for i in 1 2 3; do sleep 0.1 & done; wait; date; cat /proc/slabinfo"""
    runs = [machine.run(script) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]
    outcome, log = runs[0]
    assert outcome.status == 0
    assert "hr timer" in log


def test_seconds_of_waiting_take_none_of_ours(machine: Machine) -> None:
    before = time.process_time() + sum(os.times()[2:4])
    outcome, log = machine.run("cat /proc/uptime; sleep 3; sleep 3; cat /proc/uptime")
    took = time.process_time() + sum(os.times()[2:4]) - before
    assert re.findall(r"^(\d+\.\d\d) ", log, re.MULTILINE) == ["0.00", "6.00"]
    assert 6.0 < outcome.simulated_ps / 1e12 < 6.1
    assert took < 5, "of the processor: booting included"  # KASAN's kernel needs two, the other one


@needs_gcc
@pytest.mark.parametrize("mmio_ns", [100, *(pytest.param(ns, marks=pytest.mark.slow) for ns in (0, 2500))])
def test_an_access_takes_its_time_by_the_kernels_clock(machine: Machine, tmp_path: Path, mmio_ns: int) -> None:
    program = tmp_path / "access_times"
    gcc("-O2", "-static", PROGRAMS / "access_times.c", "-o", program)
    config = TINY.with_(**{"host.mmio": f"{mmio_ns} ns"})
    outcome, log = machine.run("/bin/access_times; /bin/access_times", config, {"/bin/access_times": program})
    assert outcome.status == 0
    found = [int(ns) for ns in re.findall(r"1000 accesses: (\d+) ns", log)]
    # The clock is read in steps of 256 ns, and each reading takes one.
    assert found == [pytest.approx(1000 * mmio_ns, abs=512)] * 2


@pytest.mark.parametrize("status", [7, *(pytest.param(status, marks=pytest.mark.slow) for status in (0, 1, 255))])
def test_the_status_of_the_program_is_the_kernels(machine: Machine, status: int) -> None:
    assert machine.run(f"exit {status}")[0].status == status


def test_a_kernel_that_panics_ends_with_that(machine: Machine) -> None:
    outcome, log = machine.run("", arguments=["rdinit=/nothing", "init=/nothing"])
    assert outcome.status == 128 + 6
    assert "Kernel panic" in log
    assert "Kernel panic" in outcome.complaints[-1]


def test_complaints_of_the_kernel_are_seen(machine: Machine) -> None:
    outcome, _ = machine.run('echo "BUG: something" > /dev/kmsg; echo "WARNING: not of the kernel"')
    assert len(outcome.complaints) == 1
    assert outcome.complaints[0].endswith("BUG: something")


def test_a_kernel_that_never_ends_is_stopped(machine: Machine) -> None:
    with pytest.raises(NpusimError, match=r"still runs after 0\.5 s of simulated time"):
        machine.run("sleep 1000", limit_ps=5 * 10**11)
    left = subprocess.run(["pgrep", "-f", "time-travel=ext:calendar"], capture_output=True, text=True, check=False)
    ours = [pid for pid in left.stdout.split() if _parent(int(pid)) == os.getpid()]
    assert ours == []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


@pytest.mark.slow
def test_a_kernel_that_keeps_its_processor_busy_and_says_nothing_is_given_up(machine: Machine) -> None:
    with pytest.raises(NpusimError, match="the kernel has sent nothing for 1 seconds"):
        machine.run("while :; do :; done", patience_s=1)


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert KERNEL is not None
    script, data, log = tmp_path / "check.sh", tmp_path / "data.txt", tmp_path / "log.txt"
    script.write_text(
        "#!/bin/busybox sh\ncat /a/b/data.txt; echo $1; [ -n \"$2\" ] && echo 'BUG: x' > /dev/kmsg; exit $1\n"
    )
    data.write_text("some data\n")
    options = ["uml", "tiny", "--kernel", str(KERNEL), "--file", f"{data}:/a/b/data.txt"]
    assert main([*options, "--run", f"{script} 5", "--log", str(log)]) == 5
    assert "status 5 after 0.0" in capfd.readouterr().err
    assert "some data\n5\n" in log.read_text().replace("\r", "")
    assert main([*options, "--run", f"{script} 0 complain"]) == 1
    written = capfd.readouterr()
    assert "the kernel complains in its log, 1 lines; the first: [" in written.err
    assert "some data" in written.out
    assert main([*options, "--run", f"{script} 0 complain", "--tolerant"]) == 0


def test_what_is_wrong_is_said_before_the_kernel_starts(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a User Mode Linux kernel, such as make uml builds"):
        run(NpuDevice(TINY), tmp_path, b"", io.BytesIO())
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    with pytest.raises(UsageError, match="text: cannot be started: Exec format error"):
        run(NpuDevice(TINY), tmp_path / "text", b"", io.BytesIO())
    outcome = run(NpuDevice(TINY), Path("/bin/false"), b"", io.BytesIO())
    assert (outcome.status, outcome.accesses) == (1, 0)


def test_faults_of_a_script_happen_in_a_kernel_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, faults = tmp_path / "check.sh", tmp_path / "faults.toml"
    script.write_text(
        "#!/bin/busybox sh\nsleep 1; hexdump -C /sys/bus/pci/devices/0000:00:00.0/config | head -1; echo after $?\n"
    )
    faults.write_text('[[fault]]\nwhen = {time = "500 ms"}\nwhat = {unplug = true}\n')
    command = ["uml", "tiny", "--kernel", str(KERNEL), "--run", str(script), "--faults", str(faults)]
    main(command)
    written = capfd.readouterr()
    assert "ff ff ff ff ff ff ff ff" in written.out, written.err
    faults.write_text('[[fault]]\nwhen = {time = "5 s"}\nwhat = {unplug = true}\n')
    assert main(command) != 0
    assert "fault 1" in capfd.readouterr().err


class Killer(io.BytesIO):
    """A log that kills the kernel at a line."""

    def write(self, line: object) -> int:
        assert isinstance(line, bytes)
        if b"now" in line:
            found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-x", "linux"], capture_output=True, check=True)
            os.kill(int(found.stdout.split()[-1]), signal.SIGKILL)
        return super().write(line)


@pytest.mark.skipif(shutil.which("pgrep") is None, reason="no pgrep")
@pytest.mark.parametrize(
    "busy",
    [
        "cat /sys/bus/pci/devices/0000:00:00.0/config > /dev/null",
        pytest.param("sleep 100", marks=pytest.mark.slow),
        pytest.param(":", marks=pytest.mark.slow),
    ],
)
def test_a_kernel_that_is_killed_ends_the_run(machine: Machine, tmp_path: Path, busy: str) -> None:
    program = tmp_path / "busy.sh"
    program.write_text(f"#!/bin/busybox sh\necho now\nwhile {busy}; do :; done\n")
    initrd = Initrd(machine.kernel.parent / "busybox", (), [str(program)])
    device = NpuDevice(TINY)
    assert run(device, machine.kernel, initrd.pack(), Killer(), limit_ps=10**18).status == 128 + 9
    assert machine.run("exit 3")[0].status == 3
