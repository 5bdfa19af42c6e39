# ruff: noqa: T201 a program
"""Fuzz the C libraries with calls no valid client makes, the device with instructions and files no compiler makes, and
the importer with damaged models.

``python -m tests.support.fuzz.run [--library onnxifi] [--cases N]`` runs them. Case n of a library depends only on the
seed and n. Cases run in separate processes to detect crashes and hangs together with the case number. A call must
return a status from its function's list. A status that reports a failure of the library itself, without an injected
failure, is also a finding. ``--only n`` runs one case in this process.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import logging
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[3]
MODULES = {
    "onnxifi": "tests.support.fuzz.onnxifi_calls",
    "onnxifi-v1": "tests.support.fuzz.onnxifi_v1_calls",
    "neuralnetworks": "tests.support.fuzz.nnapi_calls",
    "programs": "tests.support.fuzz.instruction_streams",
    "npu-files": "tests.support.fuzz.program_files",
    "weight-streams": "tests.support.fuzz.weight_streams",
    "models": "tests.support.fuzz.model_files",
    "onnxruntime": "tests.support.fuzz.ort_models",
    "tflite-models": "tests.support.fuzz.tflite_files",
    "vfio-user": "tests.support.fuzz.vfio_messages",
    "pci-proxy": "tests.support.fuzz.proxy_messages",
    "uml": "tests.support.fuzz.uml_kernels",
    "spaces": "tests.support.fuzz.space_files",
    "stores": "tests.support.fuzz.study_stores",
    "checkpoints": "tests.support.fuzz.checkpoint_files",
    "bus-traces": "tests.support.fuzz.trace_files",
    "fault-scripts": "tests.support.fuzz.fault_scripts",
    "scenarios": "tests.support.fuzz.scenario_files",
    "goldens": "tests.support.fuzz.golden_files",
    "debugger-scripts": "tests.support.fuzz.debugger_scripts",
    "run-files": "tests.support.fuzz.run_files",
    "arrays": "tests.support.fuzz.array_files",
}
GIVEN = (
    "checkpoints", "bus-traces", "fault-scripts", "scenarios", "goldens", "debugger-scripts", "run-files", "arrays",
)  # fmt: skip
"""Files from users that commands read, each with a :class:`tests.support.fuzz.given_files.Kind`."""
CHUNK = 20_000
"""Most cases per process."""
TALLY = "tally "
"""Prefix of the output line with the tally."""
FOUND = 3
"""Exit status of a process with findings."""
PATIENCE_S = 60.0
"""A case that takes longer counts as hanging."""
START_S = 900.0
"""Time limit until a process starts its first case: it imports, perhaps with sanitizers, and prepares objects."""


class World(Protocol):
    """A library with prepared objects. It may have a ``tally``, a Counter of outcomes."""

    def case(self, rng: random.Random) -> list[str]:
        """Run a case and return the problems."""
        ...


class Surprises(logging.Handler):
    """Collects errors that a library logs with a traceback, which are unexpected by definition."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        trace = traceback.format_exception(record.exc_info[1]) if record.exc_info else []
        where = " | ".join(line.strip() for part in trace[-3:] for line in part.splitlines())
        self._lines.append(f"{record.getMessage()} | {where}".replace("\n", " "))

    def take(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines


def world_of(library: str) -> World:
    world: World = importlib.import_module(MODULES.get(library, library)).make()
    return world


def rng_of(library: str, seed: int, number: int) -> random.Random:
    return random.Random(f"{library}:{seed}:{number}")


def run_cases(library: str, seed: int, numbers: range, progress: Path | None = None) -> Iterator[str]:
    """Run cases in this process and yield the findings.

    The number of the current case is kept in ``progress``. If the library has a tally, the last line starts with TALLY.
    """
    logging.disable(logging.WARNING)  # every rejection is logged
    seen = Surprises()
    logging.getLogger().addHandler(seen)
    world = world_of(library)
    with open(progress or os.devnull, "r+b" if progress else "wb", buffering=0) as file:
        for number in numbers:
            os.pwrite(file.fileno(), struct.pack("<q", number), 0)
            found = world.case(rng_of(library, seed, number)) + seen.take()
            yield from (f"case {number}: {problem}" for problem in found)
    if hasattr(world, "tally"):
        yield TALLY + json.dumps(world.tally)


class Worker:
    """A process that runs a chunk of cases."""

    def __init__(self, library: str, seed: int, numbers: range, folder: Path) -> None:
        self.numbers = numbers
        self._progress = folder / f"{library}-{numbers.start}"
        self._progress.write_bytes(struct.pack("<q", numbers.start - 1))  # none yet
        self._output = (folder / f"{library}-{numbers.start}.txt").open("w+")
        command = [sys.executable, "-m", "tests.support.fuzz.run", "--library", library, "--seed", str(seed)]
        command += ["--worker", str(numbers.start), str(numbers.stop), str(self._progress)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=self._output, stderr=subprocess.STDOUT)
        self._last, self._since = numbers.start - 1, time.monotonic()

    @property
    def tally(self) -> Counter[str]:
        """Outcomes of a process that exited by itself."""
        lines = [line for line in self._text().splitlines() if line.startswith(TALLY)]
        return Counter(json.loads(lines[-1].removeprefix(TALLY))) if lines else Counter()

    @property
    def current(self) -> int:
        """Number of the current case. Before the first case it is that of the first: a process that died then would die
        again."""
        return max(self._number(), self.numbers.start)

    def _number(self) -> int:
        return int(struct.unpack("<q", self._progress.read_bytes())[0])

    def poll(self) -> list[str] | None:
        """Return the findings if the process has ended, and None otherwise."""
        number, now = self._number(), time.monotonic()
        if number != self._last:
            self._last, self._since = number, now
        current = self.current
        if self._process.poll() is None:
            if now - self._since < (PATIENCE_S if number >= self.numbers.start else START_S):
                return None
            self._process.send_signal(signal.SIGABRT)  # faulthandler prints the stack
            self._process.wait()
            return [*self._findings(), f"case {current}: hangs\n{self._text()[-3000:]}"]
        lines = self._findings()
        if self._process.returncode not in (0, FOUND):
            lines.append(f"case {current}: the process ended with {self._process.returncode}\n{self._text()[-3000:]}")
        return lines

    def _findings(self) -> list[str]:
        return [line for line in self._text().splitlines() if line.startswith("case ")]

    def _text(self) -> str:
        self._output.seek(0)
        return self._output.read()


def run_all(
    library: str, seed: int, first: int, cases: int, workers: int = 2, tally: Counter[str] | None = None
) -> Iterator[str]:
    """Run cases in several processes and yield the problems. ``tally`` counts the outcomes."""
    chunk = max(1, min(CHUNK, -(-cases // workers)))
    chunks = [range(start, min(start + chunk, first + cases)) for start in range(first, first + cases, chunk)]
    with tempfile.TemporaryDirectory() as folder:
        running: list[Worker] = []
        while chunks or running:
            while chunks and len(running) < workers:
                running.append(Worker(library, seed, chunks.pop(0), Path(folder)))
            time.sleep(0.05)
            for worker in running[:]:
                problems = worker.poll()
                if problems is None:
                    continue
                running.remove(worker)
                if tally is not None:
                    tally.update(worker.tally)
                yield from problems
                rest = range(worker.current + 1, worker.numbers.stop)
                if rest and any("hangs" in problem or "the process ended" in problem for problem in problems):
                    chunks.insert(0, rest)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--library", default="all", help=f"{', '.join(MODULES)}, given-files, all, or a module")
    parser.add_argument("--cases", type=int, default=200_000, help="of each library")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker or options.only is not None:
        faulthandler.enable()
        only = options.only
        numbers = range(only, only + 1) if only is not None else range(*map(int, options.worker[:2]))
        progress = Path(options.worker[2]) if options.worker else None
        found = 0
        for problem in run_cases(options.library, options.seed, numbers, progress):
            found += not problem.startswith(TALLY)
            print(problem, flush=True)
        return FOUND if found else 0
    found = 0
    named = {"all": list(MODULES), "given-files": GIVEN}
    for library in named.get(options.library, [options.library]):
        begin = time.monotonic()
        tally: Counter[str] = Counter()
        for problem in run_all(library, options.seed, options.first, options.cases, options.workers, tally):
            found += 1
            print(f"{library}: {problem}", flush=True)
        print(f"{library}: {options.cases} cases, seed {options.seed}, {time.monotonic() - begin:.0f} s", flush=True)
        for end, count in tally.most_common():
            print(f"{library}: {count} {end}", flush=True)
        if record := os.environ.get("NPUSIM_RECORD"):  # see .ci/record.py
            with open(record, "a", encoding="utf-8") as file:
                file.write(json.dumps({"library": library, "cases": options.cases}) + "\n")
    print(f"{found} problems")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
