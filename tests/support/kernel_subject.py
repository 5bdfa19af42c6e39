"""The kernel module as a driver under test of ``npusim driver-test``, with a new kernel for each case."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npusim.conformance.subject import CODES, DeadError, DriverRefusedError, ProgramSubject
from npusim.device.npu import NpuDevice
from npusim.errors import NpusimError
from npusim.linux import Initrd, run

_SCRIPT = """\
#!/bin/busybox sh
export PATH=/bin:/t
mkdir -p {folder}
mount -t hostfs -o {folder} none {folder} || exit 1
insmod /t/npu.ko {parameters}
npu_test serve {folder}
rmmod npu
true
"""


@contextlib.contextmanager
def itself(device: NpuDevice) -> Iterator[NpuDevice]:
    """Yield the device as its endpoint: the kernel is started on the device."""
    yield device


class KernelSubject(ProgramSubject):
    """Communicates with ``npu_test serve`` in a kernel through files in a shared folder."""

    def __init__(self, kernel: Path, module: Path, program: Path, patience_s: float = 60, parameters: str = "") -> None:
        super().__init__("true", patience_s)
        self._kernel, self._module, self._served, self._parameters = kernel, module, program, parameters
        self._place = Path(self._folder.name)
        self._log = io.BytesIO()
        self._turn = 0
        self._thread: threading.Thread | None = None
        self._failed: NpusimError | None = None

    def open(self, endpoint: NpuDevice) -> None:
        self._turn, self._failed, self._log = 0, None, io.BytesIO()
        for old in (*self._place.glob("*.command"), *self._place.glob("*.answer")):
            old.unlink()
        script = self._place / "script.sh"
        script.write_text(_SCRIPT.format(folder=self._place, parameters=self._parameters))
        script.chmod(0o755)
        files = {"/t/npu.ko": self._module, "/t/npu_test": self._served}
        initrd = Initrd(self._kernel.parent / "busybox", [], [str(script)], files).pack()
        self._thread = threading.Thread(target=self._run, args=(endpoint, initrd), daemon=True)
        self._thread.start()
        try:
            self._ask("open", "/dev/npu0")
        except DriverRefusedError:
            self._end_kernel()
            raise

    def _run(self, device: NpuDevice, initrd: bytes) -> None:
        try:
            run(device, self._kernel, initrd, self._log, patience_s=self._patience_s)
        except NpusimError as error:
            self._failed = error

    def _ask(self, *words: object) -> list[str]:
        if self._thread is None:
            raise DeadError("the kernel does not run")
        self._say(" ".join(map(str, words)) + "\n")
        found, end = self._place / f"{self._turn}.answer", time.monotonic() + self._patience_s
        while not found.exists():
            if not self._thread.is_alive() or time.monotonic() > end:
                raise DeadError(f"{words[0]}: no answer: {self._failed or 'the kernel has ended, or is late'}")
            time.sleep(0.0002)
        answer = found.read_text().strip().split(" ")
        if answer[0] == "ok":
            return answer[1:]
        if answer[0] == "error" and len(answer) > 1 and answer[1] in CODES:
            raise DriverRefusedError(answer[1], " ".join(answer[2:]))
        raise DeadError(f"{words[0]}: answered {' '.join(answer)}")

    def _say(self, text: str) -> None:
        self._turn += 1
        part = self._place / "command"
        part.write_text(text)
        part.rename(self._place / f"{self._turn}.command")

    def _end_kernel(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._say("")
            thread.join(self._patience_s)

    def close(self) -> None:
        try:
            self._ask("close")
        finally:
            self._end_kernel()

    def told(self) -> str:
        return self._log.getvalue().decode(errors="replace")[-4000:]

    def end(self) -> None:
        self._end_kernel()
        super().end()


def report_of(subject: KernelSubject, config: Any, **options: Any) -> Any:
    """Run the suite on this driver."""
    from npusim.conformance import endpoints, suite

    endpoints.KINDS["kernel"] = itself
    try:
        return suite.run(subject, config, name="drivers/linux", endpoint="kernel", **options)
    finally:
        del endpoints.KINDS["kernel"]
