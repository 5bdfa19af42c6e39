"""The kernel module of ``drivers/linux``: built, changed, and run in a User Mode Linux kernel on a device.

:mod:`tests.support.qemu_kernel` runs it in QEMU.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.cache import write_program
from npusim.demo import network
from npusim.device.npu import NpuDevice
from npusim.hw.config import Config, load_config
from npusim.linux import Initrd, find_kernel, run

SOURCE = Path(__file__).parents[2] / "drivers" / "linux"
INCLUDE = SOURCE.parent / "include"
PIN = SOURCE.parent / "uml" / "pin"
COUNTERS = "cat /sys/kernel/debug/npu0/counters"
INTERRUPTS = "grep npu0 /proc/interrupts"
_OF_THE_KERNEL = "suspicious RCU usage"
"""Complaint of Linux 6.1 itself at the first fork of every User Mode Linux kernel with lockdep, before any module is
loaded."""


def kernel() -> Path:
    """Return the kernel built by ``make uml``. Skips the test if there is none."""
    found = find_kernel()
    if found is None:
        pytest.skip("no User Mode Linux kernel: make uml builds one")
    if not (found.parent / "build").is_dir() or shutil.which("make") is None or shutil.which("gcc") is None:
        pytest.skip(f"{found}: modules cannot be built against it")
    return found


def device_config(**overrides: object) -> Config:
    """Return the device of these tests. Its DRAM is small because the kernel can only access that much."""
    return load_config("tiny").with_(**{"dram.bytes": 16 << 20, **overrides})


class Sources:
    """A copy of the sources in ``folder``, with modules built for the kernel tree ``build``."""

    def __init__(self, folder: Path, build: Path, arch: str) -> None:
        self.folder = folder / "linux"
        self._target = [f"KDIR={build}", f"ARCH={arch}"]
        shutil.copytree(SOURCE, self.folder, ignore=shutil.ignore_patterns("*.o", "*.ko", ".*", "npu_test"))
        self._make("-C", str(self.folder / "test"))
        self.program = self.folder / "test" / "npu_test"
        self.data = _data(folder / "data")

    def module(self, name: str = "npu", changes: Sequence[tuple[str, str, str]] = ()) -> Path:
        """Build the module with changes: (file, text that occurs once, its replacement)."""
        with self._changed(changes):
            self._make("-C", str(self.folder), *self._target, f"NPU_INCLUDE={INCLUDE}", "modules")
            place = self.folder.parent / name
            place.mkdir(exist_ok=True)
            return Path(shutil.copy(self.folder / "npu.ko", place / "npu.ko"))

    @contextlib.contextmanager
    def _changed(self, changes: Sequence[tuple[str, str, str]]) -> Iterator[None]:
        originals = {name: (self.folder / name).read_text() for name, _, _ in changes}
        texts = dict(originals)
        for name, old, new in changes:
            assert texts[name].count(old) == 1, f"{name} has {texts[name].count(old)} times: {old}"
            texts[name] = texts[name].replace(old, new)
        try:
            for name, text in texts.items():
                (self.folder / name).write_text(text)
            yield
        finally:
            for name, text in originals.items():
                (self.folder / name).write_text(text)

    @staticmethod
    def _make(*arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(
            ["make", *arguments], capture_output=True, text=True, check=False, timeout=300, env=environment
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert "warning:" not in done.stderr, done.stderr

    def initrd(
        self,
        busybox: Path,
        module: Path,
        script: str,
        parameters: Mapping[str, object] | None,
        before: Sequence[Path] = (),
    ) -> Initrd:
        """Return a system that loads the modules ``before`` and this one, runs a busybox script, and removes the
        module."""
        path = self.folder.parent / "script.sh"
        path.write_text(f"#!/bin/busybox sh\nexport PATH=/bin:/t\n{script}\n")
        path.chmod(0o755)
        arguments = [f"{name}={value}" for name, value in {"dyndbg": "+p", **parameters}.items()] if parameters else []
        return Initrd(
            busybox,
            [*([str(each)] for each in before), [str(module), *arguments]],
            [str(path)],
            {"/t/npu_test": self.program, **{f"/t/{file.name}": file for file in self.data}},
        )


class Workshop(Sources):
    """Sources built for User Mode Linux."""

    def __init__(self, folder: Path) -> None:
        self.kernel = kernel()
        super().__init__(folder, self.kernel.parent / "build", "um")

    def needs_sleep(self) -> None:
        """Skip the test if the kernel cannot suspend and wake up."""
        options = (self.kernel.parent / "build" / ".config").read_text().splitlines()
        if not {"CONFIG_PM_SLEEP_DEBUG=y", "CONFIG_UML_RTC=y"} <= set(options):
            pytest.skip(f"{self.kernel} cannot sleep and wake: make uml builds one that can")

    def pin(self) -> Path:
        """Build the module of the interrupt controller for the pin."""
        place = self.folder.parent / "pin"
        shutil.copytree(PIN, place, ignore=shutil.ignore_patterns("*.o", "*.ko", ".*"))
        self._make("-C", str(place), f"KDIR={self.kernel.parent / 'build'}")
        return place / "pin.ko"

    def run(
        self,
        module: Path,
        script: str,
        device: NpuDevice | None = None,
        parameters: Mapping[str, object] | None = None,
        before: Sequence[Path] = (),
    ) -> Run:
        """Load the modules ``before`` and this one, run a busybox script, and remove the module."""
        device = device or NpuDevice(device_config(), check=True)
        initrd = self.initrd(self.kernel.parent / "busybox", module, script, parameters, before)
        log = io.BytesIO()
        outcome = run(device, self.kernel, initrd.pack(), log)
        device.close()
        text = log.getvalue().decode(errors="replace").replace("\r", "")
        complaints = [line for line in outcome.complaints if _OF_THE_KERNEL not in line]
        findings = [finding.kind for finding in device.checker.findings] if device.checker else []
        return Run(outcome.status, text, complaints, findings, outcome.simulated_ps)


@dataclass(frozen=True)
class Run:
    """``log``: console output; ``complaints``: kernel warnings about the modules; ``findings``: kinds found by the
    register checker."""

    status: int
    log: str
    complaints: list[str]
    findings: list[str]
    simulated_ps: int

    def check_good(self) -> None:
        """Check that the script succeeded, without complaints or findings."""
        assert (self.status, self.complaints, self.findings) == (0, [], []), self.log[-3000:]

    def counters(self) -> dict[str, int]:
        """Return the counters as the script printed them last."""
        pairs = (line.split(" ") for line in self.log.splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}

    def interrupts(self) -> list[int]:
        """Return the count of each interrupt of the device over all processors, as printed by :data:`INTERRUPTS`."""
        lines = re.findall(r"^ *\d+:((?: +\d+)+) .* npu0$", self.log, re.MULTILINE)
        return [sum(map(int, counts.split())) for counts in lines]


def cases(name: str) -> str:
    """Return the script line that runs cases of ``drivers/linux/test``."""
    return f"npu_test cases {name} /t/demo.npu /t/in.bin /t/golden.bin"


def _data(folder: Path) -> list[Path]:
    """Write a program, an input, and the expected output from a device without a Linux driver."""
    folder.mkdir()
    session = npusim.Session(device_config(), cache_dir=False)
    program = session.compile(network())
    (given,), (wanted,) = program.inputs, program.outputs
    array = np.random.default_rng(0).integers(0, 100, given.shape).astype(given.dtype.storage)
    result = session.run(program, {given.name: array}).outputs[wanted.name]
    write_program(program, folder / "demo.npu")
    (folder / "in.bin").write_bytes(array.tobytes())
    (folder / "golden.bin").write_bytes(np.ascontiguousarray(result).tobytes())
    return sorted(folder.iterdir())
