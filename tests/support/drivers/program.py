"""A driver program as docs/reference/driver-test.md specifies, around the driver written from the document.

    python -m tests.support.drivers.program [MISTAKE]

MISTAKE is one of ``MISTAKES``, which the suite must detect.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from npusim.cache import read_program
from npusim.device.transports.bus_socket import BrokenError, SocketBus
from npusim.errors import (
    CacheError,
    DeviceFaultError,
    DeviceGoneError,
    DeviceMemoryError,
    InputError,
    JobAbortedError,
    NpusimError,
    QueueFullError,
    UsageError,
)
from tests.support.drivers.written_from_the_document import DocumentDriver, Job, Loaded

MISTAKES = ("silent", "dies", "babbles", "wrong-output", "late-input")
CLASSES = {"low": 0, "medium": 1, "high": 2}
CODES = {
    DeviceGoneError: "GONE", DeviceMemoryError: "MEMORY", InputError: "INPUT", UsageError: "USAGE",
    JobAbortedError: "ABORTED", QueueFullError: "FULL", CacheError: "FILE",
}  # fmt: skip


class LateInput(DocumentDriver):
    def hand_over(self, job: Job) -> None:
        super().hand_over(job)
        self.bus.write(2, job.regions[-2], 1, self.bus.read(2, job.regions[-2], 1))


class Program:
    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        self.close()

    def close(self) -> None:
        self.driver: Any = None
        self.bus: Any = None
        self.programs: dict[int, Loaded] = {}
        self.jobs: dict[int, tuple[Job, list[str]]] = {}
        self.newest = 0

    def obey(self, verb: str, words: list[str]) -> str:
        if verb == "open":
            kind, _, path = words[0].partition(":")
            if kind != "bus":
                return "error UNSUPPORTED only endpoints of kind bus"
            self.bus = SocketBus(path)
            self.driver = (LateInput if self.mistake == "late-input" else DocumentDriver)(self.bus)
            return "ok"
        if self.driver is None:
            return "ok" if verb == "close" else "error USAGE open first"
        if verb == "close":
            self.driver.close()
            self.bus.close()
            self.close()
            return "ok"
        if verb == "load":
            self.newest += 1
            self.programs[self.newest] = self.driver.load(read_program(Path(words[0])))
            return f"ok {self.newest}"
        if verb == "unload":
            self.driver.unload(self.loaded(words[0]))
            return "ok"
        if verb in ("run", "submit"):
            job, files = self.start(words)
            if verb == "submit":
                self.jobs[job.seqno] = job, files
                return f"ok {job.seqno}"
            return self.finish(job, files, 3 * 10**12)
        if verb == "wait":
            job, files = self.jobs.pop(int(words[0]))
            return self.finish(job, files, int(words[1]))
        if verb == "abort":
            self.driver.abort(self.jobs[int(words[0])][0])
            return "ok"
        if verb == "reset":
            self.driver.reset()
            return "ok"
        return f"error USAGE no such command: {verb}"

    def loaded(self, word: str) -> Loaded:
        return self.programs[int(word)]

    def start(self, words: list[str]) -> tuple[Job, list[str]]:
        loaded, ring = self.programs[self.newest], 1
        if words[0].startswith("@"):
            loaded = self.loaded(words.pop(0)[1:])
        if words[0] in CLASSES:
            ring = CLASSES[words.pop(0)]
        arrow = words.index("->")
        given, files = words[:arrow], words[arrow + 1 :]
        items = loaded.program.inputs
        if len(given) != len(items):
            raise InputError(f"the program takes {len(items)} inputs, got {len(given)}")
        inputs = {x.name: np.fromfile(file, x.dtype.storage) for x, file in zip(items, given, strict=True)}
        return self.driver.submit(loaded, inputs, priority=ring), files

    def finish(self, job: Job, files: list[str], timeout_ps: int) -> str:
        self.driver.wait(job, timeout_ps)
        for item, file in zip(job.loaded.program.outputs, files, strict=True):
            array = job.outputs[item.name]
            Path(file).write_bytes((array + (self.mistake == "wrong-output")).astype(array.dtype).tobytes())
        return f"ok {job.cycles}"


def say(answer: str) -> None:
    sys.stdout.write(answer + "\n")
    sys.stdout.flush()


def main() -> None:
    program = Program(sys.argv[1] if len(sys.argv) > 1 else "")
    for number, line in enumerate(sys.stdin):
        if number == 3 and program.mistake == "silent":
            time.sleep(3600)
        if number == 3 and program.mistake == "dies":
            sys.stderr.write("it hurts\n")
            sys.exit(7)
        if number == 3 and program.mistake == "babbles":
            say("what?")
            continue
        verb, *words = line.rstrip("\n").split(" ")
        try:
            answer = program.obey(verb, words)
        except (BrokenError, ConnectionError) as error:
            answer = f"error GONE {error}"
        except DeviceFaultError as error:
            code = {"TIMEOUT": "TIMEOUT", "DEVICE": "DEVICE", "GONE": "GONE"}.get(error.code, "FAULT")
            answer = f"error {code} {error.code if code == 'FAULT' else error}"
        except (KeyError, ValueError, IndexError) as error:
            answer = f"error USAGE {type(error).__name__} {error}"
        except NpusimError as error:
            answer = f"error {CODES.get(type(error), 'USAGE')} {error}"
        say(answer.replace("\n", " "))


if __name__ == "__main__":
    main()
