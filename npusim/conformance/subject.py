"""The interface to a driver under test in any language: verbs and error codes."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import shlex
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.cache import write_program
from npusim.device.bus import Bus
from npusim.errors import (
    DeadlineError,
    DeviceFaultError,
    DeviceGoneError,
    DeviceMemoryError,
    InputError,
    JobAbortedError,
    QueueFullError,
    UsageError,
    shown,
)
from npusim.program import Program
from npusim.untrusted import FileKind

Arrays = Mapping[str, npt.NDArray[Any]]
OUTPUT = FileKind("output of a program under driver-test")
CODES = ("USAGE", "INPUT", "FILE", "MEMORY", "FULL", "FAULT", "TIMEOUT", "ABORTED", "GONE", "DEVICE", "UNSUPPORTED")
CLASSES = ("low", "medium", "high")
LONGEST_LINE = 1 << 16
SLICE_S = 0.2


class DriverRefusedError(Exception):
    """The driver has refused, or the job has failed. Arguments: code, text."""

    def __init__(self, code: str, text: str, /) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()


class DeadError(Exception):
    """The driver violates the protocol, does not answer, or has died."""


class Subject(ABC):
    """One driver, on one device at a time. The types of programs and jobs are those of the driver."""

    @abstractmethod
    def open(self, endpoint: Any) -> None:
        """Connect to a device. Each verb raises DriverRefusedError for a refusal, DeadError if the driver has ended."""

    @abstractmethod
    def load(self, program: Program) -> Any:
        """Load a program into device memory. Returns its handle."""

    @abstractmethod
    def unload(self, loaded: Any) -> None:
        """Free the memory of a loaded program."""

    @abstractmethod
    def run(self, loaded: Any, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Run a loaded program. Returns the outputs by name."""

    @abstractmethod
    def submit(self, loaded: Any, inputs: Arrays, ring: int = 1) -> Any:
        """Start a job of a loaded program in a ring. Returns the handle of the job."""

    @abstractmethod
    def wait(self, job: Any, timeout_ps: int) -> dict[str, npt.NDArray[Any]]:
        """Wait for a job, at most ``timeout_ps`` of device time. Returns the outputs by name."""

    @abstractmethod
    def abort(self, job: Any) -> None:
        """Request the end of a job."""

    @abstractmethod
    def reset(self) -> None:
        """Reset the device; loaded programs stay."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect and free everything."""

    def told(self) -> str:
        """Messages on standard error since the last call."""
        return ""

    def end(self) -> None:  # noqa: B027 - a class needs no end
        """Release everything. Called when the subject is not needed any more."""


_MEANT = (
    (DeviceMemoryError, "MEMORY"),
    (QueueFullError, "FULL"),
    (InputError, "INPUT"),
    (UsageError, "USAGE"),
    (DeviceGoneError, "GONE"),
    (JobAbortedError, "ABORTED"),
    (DeadlineError, "TIMEOUT"),
)
_OTHER_DEVICE = ("DEVICE", "NOT_READY", "UNKNOWN_DEVICE", "UNKNOWN_VERSION")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Convert errors of a Python driver to codes."""
    try:
        yield
    except DeviceFaultError as error:
        if isinstance(error, DeviceGoneError):
            raise DriverRefusedError("GONE", str(error)) from error
        if error.code == "TIMEOUT" or error.code in _OTHER_DEVICE:
            raise DriverRefusedError("TIMEOUT" if error.code == "TIMEOUT" else "DEVICE", str(error)) from error
        raise DriverRefusedError("FAULT", f"{error.code} {error}") from error
    except tuple(kind for kind, _ in _MEANT) as error:
        raise DriverRefusedError(next(code for kind, code in _MEANT if isinstance(error, kind)), str(error)) from error


class PythonSubject(Subject):
    """A class with the verbs of :class:`npusim.driver.Driver`, constructed with a bus."""

    def __init__(self, make: Callable[[Bus], Any]) -> None:
        self._make = make
        self._driver: Any = None

    @classmethod
    def named(cls, path: str) -> PythonSubject:
        """The driver class ``module:Class``. Raises UsageError."""
        module, colon, name = path.partition(":")
        if not colon or not module or not name:
            raise UsageError(f"--connect python:{path}: must be python:MODULE:CLASS")
        try:
            return cls(getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError) as error:
            raise UsageError(f"--connect python:{path}: {error}") from None

    def open(self, endpoint: Any) -> None:
        """Create the driver on a bus of the device."""
        with _refusals():
            self._driver = self._make(endpoint)

    def _verb(self, name: str) -> Any:
        try:
            return getattr(self._driver, name)
        except AttributeError:
            raise DriverRefusedError("UNSUPPORTED", f"the driver has no {name}()") from None

    def load(self, program: Program) -> Any:
        """Call ``load`` of the driver."""
        with _refusals():
            return self._verb("load")(program)

    def unload(self, loaded: Any) -> None:
        """Call ``unload`` of the driver."""
        with _refusals():
            self._verb("unload")(loaded)

    def run(self, loaded: Any, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Call ``run`` of the driver."""
        with _refusals():
            return dict(self._verb("run")(loaded, inputs).outputs)

    def submit(self, loaded: Any, inputs: Arrays, ring: int = 1) -> Any:
        """Call ``submit`` of the driver."""
        with _refusals():
            return self._verb("submit")(loaded, inputs, priority=ring)

    def wait(self, job: Any, timeout_ps: int) -> dict[str, npt.NDArray[Any]]:
        """Call ``wait`` of the driver."""
        with _refusals():
            return dict(self._verb("wait")(job, timeout_ps).outputs)

    def abort(self, job: Any) -> None:
        """Call ``abort`` of the driver."""
        with _refusals():
            self._verb("abort")(job)

    def reset(self) -> None:
        """Call ``reset`` of the driver."""
        with _refusals():
            self._verb("reset")()

    def close(self) -> None:
        """Call ``close`` of the driver, if it has one."""
        driver, self._driver = self._driver, None
        if hasattr(driver, "close"):
            with _refusals():
                driver.close()


class _Loaded(NamedTuple):
    number: str
    program: Program


class _Job(NamedTuple):
    seqno: str
    loaded: _Loaded
    files: list[Path]


class ProgramSubject(Subject):
    """A program that reads commands and writes answers, one line each. Started on first use, and again if it dies.

    ``patience_s``: time limit for one answer, in host seconds.
    """

    def __init__(self, command: str, patience_s: float) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--connect exec:{command}: {error}") from None
        if not self._command:
            raise UsageError("--connect exec:: must be exec:COMMAND LINE")
        if shutil.which(self._command[0]) is None:
            raise UsageError(f"--connect exec:{self._command[0]}: there is no such program")
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="npusim-driver-")
        self._noise = Path(self._folder.name, "stderr").open("w+b")  # noqa: SIM115 - as long as the subject
        self._heard = b""
        self._files = 0

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._heard = b""
            try:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._noise, bufsize=0
                )
            except OSError as error:
                raise UsageError(f"--connect exec:{self._command[0]}: {error.strerror}") from None
        return self._process

    def _ask(self, *words: object) -> list[str]:
        """Send a command. Returns the words after "ok"."""
        process, line = self._running(), " ".join(map(str, words))
        assert process.stdin is not None
        try:
            process.stdin.write(line.encode() + b"\n")
            answer = self._answer(process, line).split(" ")
        except BrokenPipeError:
            raise self._dead(f"{line}: the program does not listen, exit code {process.poll()}") from None
        if answer[0] == "ok":
            return answer[1:]
        if answer[0] == "error" and len(answer) > 1 and answer[1] in CODES:
            raise DriverRefusedError(answer[1], " ".join(answer[2:]))
        raise self._dead(f"{line}: the answer must be ok or error and a code, got {shown(' '.join(answer))}")

    def _answer(self, process: subprocess.Popen[bytes], line: str) -> str:
        assert process.stdout is not None
        waited = 0.0
        while b"\n" not in self._heard:
            if len(self._heard) > LONGEST_LINE:
                raise self._dead(f"{line}: the answer has no end after {LONGEST_LINE} bytes")
            if not select.select([process.stdout], [], [], SLICE_S)[0]:
                waited += SLICE_S
                if waited >= self._patience_s:
                    raise self._dead(f"{line}: no answer within {self._patience_s:g} s")
                continue
            piece = os.read(process.stdout.fileno(), 1 << 12)
            if not piece:
                raise self._dead(f"{line}: the program has ended, exit code {process.wait()}")
            self._heard += piece
        answer, _, self._heard = self._heard.partition(b"\n")
        return answer.decode(errors="replace")

    def _dead(self, why: str) -> DeadError:
        self._kill()
        return DeadError(why)

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):
                    pipe.close()

    def told(self) -> str:
        """The last part of the standard error of the program."""
        self._noise.flush()
        self._noise.seek(0)
        text = self._noise.read().decode(errors="replace")
        self._noise.seek(0)
        self._noise.truncate()
        return text

    def end(self) -> None:
        """Terminate the program."""
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.stdin.close()
                process.wait(min(5, self._patience_s))
        self._kill()
        self._noise.close()
        self._folder.cleanup()

    def _file(self, suffix: str) -> Path:
        self._files += 1
        return Path(self._folder.name, f"{self._files}{suffix}")

    def open(self, endpoint: Any) -> None:
        """Send ``open`` with the endpoint."""
        self._ask("open", endpoint)

    def load(self, program: Program) -> _Loaded:
        """Write the program to a file and send ``load``."""
        file = self._file(".npu")
        write_program(program, file)
        try:
            number = self._ask("load", file)
        finally:
            file.unlink()
        if len(number) != 1:
            raise self._dead(f"load: the answer must be ok and the program's number, got {shown(number)}")
        return _Loaded(number[0], program)

    def unload(self, loaded: _Loaded) -> None:
        """Send ``unload``."""
        self._ask("unload", loaded.number)

    def _given(self, loaded: _Loaded, inputs: Arrays) -> tuple[list[object], list[Path]]:
        """The words of a job command, and the files for its outputs."""
        given = []
        for name in (item.name for item in loaded.program.inputs if item.name in inputs):
            given.append(self._file(".bin"))
            given[-1].write_bytes(inputs[name].tobytes())
        files = [self._file(".out") for _ in loaded.program.outputs]
        return [*given, "->", *files], files

    def _outputs(self, loaded: _Loaded, files: list[Path]) -> dict[str, npt.NDArray[Any]]:
        found = {}
        for item, file in zip(loaded.program.outputs, files, strict=True):
            try:
                data = replace(OUTPUT, most=item.nbytes).read(file)
            except UsageError as error:
                raise DeadError(f"output {item.name!r}: {error}") from None
            if len(data) != item.nbytes:
                raise DeadError(f"output {item.name!r}: {file.name} must have {item.nbytes} bytes, has {len(data)}")
            found[item.name] = np.frombuffer(data, item.dtype.storage).reshape(item.shape)
        return found

    def run(self, loaded: _Loaded, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Send ``run`` with files of the inputs, and read the files of the outputs."""
        words, files = self._given(loaded, inputs)
        self._ask("run", f"@{loaded.number}", *words)
        return self._outputs(loaded, files)

    def submit(self, loaded: _Loaded, inputs: Arrays, ring: int = 1) -> _Job:
        """Send ``submit`` with files of the inputs."""
        words, files = self._given(loaded, inputs)
        seqno = self._ask("submit", f"@{loaded.number}", CLASSES[ring], *words)
        if len(seqno) != 1:
            raise self._dead(f"submit: the answer must be ok and the seqno, got {shown(seqno)}")
        return _Job(seqno[0], loaded, files)

    def wait(self, job: _Job, timeout_ps: int) -> dict[str, npt.NDArray[Any]]:
        """Send ``wait``, and read the files of the outputs."""
        self._ask("wait", job.seqno, timeout_ps)
        return self._outputs(job.loaded, job.files)

    def abort(self, job: _Job) -> None:
        """Send ``abort``."""
        self._ask("abort", job.seqno)

    def reset(self) -> None:
        """Send ``reset``."""
        self._ask("reset")

    def close(self) -> None:
        """Send ``close``."""
        if self._process is not None:
            self._ask("close")
