"""Starts a User Mode Linux kernel, serves it a device, and reports how it ended.

Everything that could differ between runs is fixed: address layout, random numbers of the host, paths, limits,
environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from npusim.device.npu import NpuDevice
from npusim.device.transports.uml import UmlTransport
from npusim.device.transports.wire import PeerError
from npusim.errors import NpusimError, UsageError
from npusim.linux.initrd import READY
from npusim.linux.ktap import Ktap

KERNEL_VARIABLE = "NPUSIM_UML_KERNEL"
PRELOADED = "host.so"
"""A library next to the kernel that makes the random numbers of the host equal in every run, and hides processor state
that the kernel does not support."""

_ADDRESSES_NOT_RANDOM = 0x0040000  # of personality(2)
_DIE_WITH_PARENT = 1  # of prctl(2)
_ARGUMENTS = (
    "initrd=initrd",
    "virtio_uml.device=device:1234",
    "time-travel=ext:calendar",
    "con=null",
    "con0=null,fd:1",
    "console=tty0",
    "uml_dir=.",
    "umid=npusim",
    "norandmaps",
    "no_hash_pointers",
    "panic=-1",
)
_LONGEST_LINE = 1 << 16
COMPLAINT = re.compile(
    rb"^\[ *\d+\.\d+\] .*(WARNING: |BUG: |INFO: (possible|suspicious|inconsistent|task|rcu)|ODEBUG: |"
    rb"list_(add|del) corruption|UBSAN: |Oops|Kernel panic)"
)
"""A log line with a warning or error of the kernel."""


@dataclass(frozen=True)
class KernelOutcome:
    """``status``: exit status, as in a shell. ``complaints``: log lines with warnings or errors. ``failures``: tests in
    the log (KUnit, kselftest) that failed or are missing. ``simulated_ps``: simulated time of the run. ``accesses``:
    number of accesses to the device. ``connected``: whether it has connected to the clock."""

    status: int
    complaints: tuple[str, ...]
    failures: tuple[str, ...]
    simulated_ps: int
    accesses: int
    connected: bool


def find_kernel() -> Path | None:
    """``$NPUSIM_UML_KERNEL``, or the kernel built by ``make uml`` at its default path; None if neither exists."""
    if chosen := os.environ.get(KERNEL_VARIABLE):
        return Path(chosen)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("NPUSIM_UML_CACHE") or caches / "npusim-uml")
    built = [cache / variant / "linux" for variant in ("plain", "kasan")]
    return next((path for path in built if path.is_file()), None)


def run(
    device: NpuDevice,
    kernel: Path,
    initrd: bytes,
    log: BinaryIO,
    *,
    memory: str = "128M",
    arguments: Sequence[str] = (),
    patience_s: float = 60,
    limit_ps: int = 10**15,
) -> KernelOutcome:
    """Run a kernel until it ends, and write its console to ``log``. ``arguments``: additional kernel parameters.

    Raises UsageError for a kernel that cannot be started, NpusimError for one that had to be stopped.
    """
    kernel = kernel.resolve()
    if not os.access(kernel, os.X_OK) or not kernel.is_file():
        raise UsageError(f"{kernel}: must be a User Mode Linux kernel, such as make uml builds")
    transport = UmlTransport(device, patience_s, limit_ps)
    with tempfile.TemporaryDirectory(prefix="npusim-uml-") as folder, contextlib.ExitStack() as stack:
        Path(folder, "initrd").write_bytes(initrd)
        calendar, served = (stack.enter_context(_listening(Path(folder, name))) for name in ("calendar", "device"))
        command = ["linux", f"mem={memory}", *_ARGUMENTS, *arguments]
        process = stack.enter_context(_started(kernel, command, folder))
        console = _Console(process.stdout, log)
        ended = stack.enter_context(open(os.pidfd_open(process.pid), "rb", buffering=0))
        try:
            transport.serve(calendar, served, ended)
            status = process.wait(patience_s)
        except PeerError as error:
            raise NpusimError(f"{kernel.name}: {error}") from None
        except subprocess.TimeoutExpired:
            raise NpusimError(
                f"{kernel.name} has closed its connections, and still runs after {patience_s:g} s"
            ) from None
        finally:
            _kill(process)
            console.close()
    status = status if status >= 0 else 128 - status
    return KernelOutcome(
        status, console.complaints, console.failures, device.now_ps, transport.accesses, transport.connected
    )


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        # Socket paths are limited in length, unlike temporary folders: the kernel runs in this folder, and the paths go
        # through it.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        listener.listen(1)
        yield listener


@contextlib.contextmanager
def _started(kernel: Path, command: Sequence[str], folder: str) -> Iterator[subprocess.Popen[bytes]]:
    # Its memory is a file in its folder, because /dev/shm may be smaller, as in containers, and an access beyond it is
    # fatal.
    environment = {"PATH": "/usr/bin:/bin", "HOME": ".", "TMPDIR": "."}
    preload = kernel.parent / PRELOADED
    if preload.is_file():
        environment["LD_PRELOAD"] = str(preload)
    try:
        process = subprocess.Popen(
            command,
            executable=kernel,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a kernel panic kills all processes of its group
            preexec_fn=_prepare(),  # noqa: PLW1509 three system calls, which wait for no lock of another thread
        )
    except OSError as error:
        raise UsageError(f"{kernel}: cannot be started: {error.strerror}") from None
    with process:
        try:
            yield process
        finally:
            _kill(process)


def _prepare() -> Callable[[], None]:
    """Runs in the new process before the kernel is executed."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.personality(_ADDRESSES_NOT_RANDOM)
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    return prepare


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the kernel and the processes in which its programs run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class _Console:
    """Copies the console of a kernel and collects its warnings and errors."""

    def __init__(self, source: IO[bytes] | None, log: BinaryIO) -> None:
        assert source is not None
        self._source = source
        self._log = log
        self._found: list[str] = []
        self._tests = Ktap()
        self._failed: OSError | None = None
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    @property
    def complaints(self) -> tuple[str, ...]:
        return tuple(self._found)

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(self._tests.failures)

    def _copy(self) -> None:
        # To the end even if the log cannot be written, because the kernel would block otherwise.
        for line in iter(lambda: self._source.readline(_LONGEST_LINE), b""):
            if READY.encode() in line:
                self._found.clear()  # Linux 6.1 warns about itself at each start with lockdep
            if COMPLAINT.search(line):
                self._found.append(line.decode(errors="replace").strip())
            self._tests.line(line)
            if self._failed is None:
                try:
                    self._log.write(line)
                    self._log.flush()
                except OSError as error:
                    self._failed = error

    def close(self) -> None:
        """Wait for the end of the output. Raises OSError if the log could not be written."""
        self._thread.join()
        self._tests.end()
        if self._failed is not None:
            raise self._failed
