"""The kernel module of ``drivers/linux`` in a Debian kernel under QEMU, which runs on the host's clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from npusim.device.npu import NpuDevice
from npusim.device.transports.door import door
from npusim.device.transports.pci_proxy import PciProxy
from npusim.device.transports.vfio_user import VfioUser
from npusim.linux.initrd import ENDED, READY
from npusim.linux.kernel import COMPLAINT
from tests.support import qemu
from tests.support.kernel_module import Run, Sources, device_config
from tests.support.waits_and_leaks import until

FETCH = Path(__file__).parents[2] / "drivers" / "qemu" / "fetch.sh"
LIMIT_S = 110
"""Time limit of a kernel, not counting time in which it waited for a host CPU. It takes 4 s, and up to half a minute
where each memory access is a message (600 000 of them)."""
_RAM = "256M"
_COMMAND_LINE = "console=ttyS0 loglevel=7 panic=-1 mitigations=off no_timer_check"
"""no_timer_check: the kernel counts ticks of the host's clock within some instructions, and a busy host gives too
few."""
_LOGS = ("console", "output")
_OUTPUT = "/dev/ttyS1"
"""The second serial line."""


def kernel() -> Path:
    """Return the kernel fetched by ``drivers/qemu/fetch.sh``. Skips the test if there is none."""
    done = subprocess.run([FETCH, "where"], capture_output=True, text=True, check=True)
    found = Path(done.stdout.strip())
    if not found.is_file():
        pytest.skip("no kernel for QEMU: drivers/qemu/fetch.sh fetches one")
    if shutil.which("make") is None or shutil.which("gcc") is None:
        pytest.skip("modules cannot be built: make or gcc is not here")
    return found


class QemuShop(Sources):
    """``vfio_user``: use a QEMU that supports vfio-user; otherwise the device is connected by x-pci-proxy-dev."""

    def __init__(self, folder: Path, *, vfio_user: bool) -> None:
        self._vfio_user = vfio_user
        self.kernel = kernel()
        super().__init__(folder, self.kernel.parent / "build", "x86")

    def run(self, module: Path, script: str, device: NpuDevice, parameters: Mapping[str, object] | None = None) -> Run:
        """Load the module, run a busybox script, and remove the module.

        ``log`` of the result contains the kernel's lines from the first module on, then those of the script. They use
        separate serial lines so that they do not interrupt each other.
        """
        serve = self._serve_vfio_user if self._vfio_user else self._serve_proxy
        machine = self._machine(module, script, parameters)
        with serve(device) as (options, fds):
            self._boot([*machine, *options], fds)
        findings = [finding.kind for finding in device.checker.findings] if device.checker else []
        device.close()
        return self._outcome(findings, device.now_ps)

    def run_served(self, module: Path, script: str) -> Run:
        """The same with the device in an ``npusim device-server`` process, which fails on a driver mistake. The
        simulated time is not known."""
        path, said = self.folder.parent / "served", self.folder.parent / "said"
        serve = [
            sys.executable,
            "-m",
            "npusim",
            "device-server",
            "tiny",
            "--set",
            f"dram.bytes={device_config().dram.bytes}",
        ]
        machine = self._machine(module, script, None)
        environment = {**os.environ, "NPUSIM_DRIVER_CHECK": "1"}
        with said.open("w") as errors:
            if self._vfio_user:
                command = [*serve, "--vfio-user", str(path), "--clients", "1"]
                with subprocess.Popen(command, env=environment, stderr=errors) as process:
                    try:
                        until(path.exists)
                        self._boot([*machine, *_vfio_user(path)])
                        code = process.wait(LIMIT_S)
                    finally:
                        process.kill()
            else:
                command = [*serve, "--pci-proxy", "--", *machine]
                code = self._ended(command, stderr=errors, env=environment)
        findings = [line for line in _text(said).splitlines() if "driver: " in line]
        assert code == bool(findings), f"npusim device-server ended with {code}\n{_text(said)}"
        return self._outcome(findings, 0)

    def _machine(self, module: Path, script: str, parameters: Mapping[str, object] | None) -> list[str]:
        """Return the QEMU command without the device."""
        folder = self.folder.parent
        script = f"exec > {_OUTPUT} 2>&1\n{script}"
        initrd = folder / "initrd"
        initrd.write_bytes(self.initrd(self.kernel.parent / "busybox", module, script, parameters).pack())
        for name in _LOGS:
            (folder / name).unlink(missing_ok=True)
        # Two processors, except on older QEMUs, where the device's answers must come from one thread.
        accelerator = ["-accel", "tcg", "-smp", "2"] if self._vfio_user else ["-accel", "tcg,thread=single"]
        memory = f"memory-backend-memfd,id=ram,size={_RAM},share=on"
        machine = ["-machine", "q35,memory-backend=ram", "-object", memory, "-m", _RAM, *accelerator]
        nothing_else = ["-nodefaults", "-no-user-config", "-nographic", "-vga", "none", "-net", "none", "-no-reboot"]
        serial = [option for name in _LOGS for option in ("-serial", f"file:{folder / name}")]
        files = ["-kernel", str(self.kernel), "-initrd", str(initrd), "-append", _COMMAND_LINE]
        return [*qemu.COMMAND, *machine, *nothing_else, *serial, *files]

    def _boot(self, command: list[str], fds: tuple[int, ...] = ()) -> None:
        """Run a machine until it is switched off."""
        code = self._ended(command, fds)
        assert code == 0, f"QEMU ended with {code}\n{self._logs()}"

    def _ended(self, command: list[str], fds: tuple[int, ...] = (), **more: Any) -> int:
        """Run a command until its machine is switched off, and return the exit code."""
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, **more) as process:
            since = time.monotonic()
            try:
                while time.monotonic() - since - _waited_s(process.pid) < LIMIT_S:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return process.wait(1)
                raise AssertionError(f"still runs after {LIMIT_S} s\n{self._logs()}")
            finally:
                process.terminate()  # if this is npusim device-server, it also stops QEMU

    def _logs(self) -> str:
        return "".join(_text(self.folder.parent / name)[-3000:] for name in _LOGS)

    def _outcome(self, findings: list[str], simulated_ps: int) -> Run:
        console, output = (_text(self.folder.parent / name) for name in _LOGS)
        console = console.partition(READY)[2]
        status = [line for line in console.splitlines() if ENDED in line]
        assert status, f"the kernel has not said how it ends\n{self._logs()}"
        assert "Power down" in console
        complaints = [line for line in console.splitlines() if COMPLAINT.match(line.encode())]
        return Run(int(status[-1].rpartition(" ")[2]), console + output, complaints, findings, simulated_ps)

    @contextlib.contextmanager
    def _serve_vfio_user(self, device: NpuDevice) -> Iterator[tuple[list[str], tuple[int, ...]]]:
        """Serve one QEMU like ``npusim device-server --vfio-user``. Yields its options."""
        path = self.folder.parent / "socket"
        server = VfioUser(device)
        with door(path) as listener:
            thread = threading.Thread(target=lambda: server.serve(listener.accept()[0]))
            thread.start()
            try:
                yield _vfio_user(path), ()
            finally:
                # end the server's accept if nobody connected
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:
                    knock.connect(str(path))
                thread.join(LIMIT_S)

    @contextlib.contextmanager
    def _serve_proxy(self, device: NpuDevice) -> Iterator[tuple[list[str], tuple[int, ...]]]:
        """Serve like ``npusim device-server --pci-proxy``."""
        (ours, theirs), (channel, far) = socket.socketpair(), socket.socketpair()
        server = PciProxy(device)
        thread = threading.Thread(target=lambda: server.serve(ours, channel))
        thread.start()
        files = theirs.fileno(), far.fileno()
        options = ["-device", f"x-pci-proxy-dev,id=npusim,fd={files[0]}"]
        options += ["-chardev", f"socket,id=npusim-messages,fd={files[1]}"]
        options += ["-object", "qtest,id=npusim-qtest,chardev=npusim-messages,log=/dev/null"]
        with theirs, far:
            try:
                yield options, files
            finally:
                for end in (theirs, far):
                    end.shutdown(socket.SHUT_RDWR)
                thread.join(LIMIT_S)


def _waited_s(process: int) -> float:
    """Return the longest time that a thread of the process waited for a CPU. On a busy machine this is most of the
    time."""
    waited_ns = [0]
    for threads in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            waited_ns.append(int(threads.read_text().split()[1]))
    return max(waited_ns) / 1e9


def chosen() -> bool:
    """Return whether to use vfio-user (else x-pci-proxy-dev). Skips the test if QEMU is missing or has neither."""
    if qemu.has_device("vfio-user-pci"):
        return True
    if not qemu.has_device("x-pci-proxy-dev"):
        pytest.skip(
            f"no QEMU with vfio-user-pci or x-pci-proxy-dev: {' '.join(qemu.COMMAND)}; $NPUSIM_QEMU may name one"
        )
    return False


def _vfio_user(path: Path) -> list[str]:
    """Return the options for the device behind a socket."""
    return ["-device", f'{{"driver": "vfio-user-pci", "socket": {{"type": "unix", "path": "{path}"}}}}']


def _text(log: Path) -> str:
    return log.read_text(errors="replace").replace("\r", "") if log.exists() else ""
