"""Changed program files on the way of a user's file: read, checked, run on the device, and reported."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from npusim.cache import read_program
from npusim.errors import DeviceFaultError, NpusimError
from npusim.isa.base import decode
from npusim.isa.disassemble import disassemble
from npusim.program import Program
from npusim.report import run as report
from npusim.runtime import Session
from tests.support.fuzz.damaged_programs import broken
from tests.support.fuzz.fences import SANITIZED, Fences
from tests.support.fuzz.sample_programs import CONFIGS, Sample

PATIENCE_S = 20.0 if SANITIZED else 5.0
"""CPU time limit of a case, independent of other load on the machine."""
MOST_BYTES = 256 << 20
"""Host memory limit of a case."""
DEFECTS = ("INTERNAL", "DEADLOCK", "TIMEOUT", "UNPLUGGED", "RING")
"""Faults that ``isa.verify`` rules out, or defects of the simulator or driver. ADDRESS is not included: the verifier
does not check the address of an operand without elements, but the device may."""


class World:
    """Devices of each configuration in a reproducible state: the memory content depends only on the case."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "changed.npu"
        self._file = self._path.open("wb", buffering=0)
        self._sessions = [Session(config, cache_dir=False) for config in CONFIGS]
        self._used = [CONFIGS[n].dram.bytes - each.driver.free_bytes for n, each in enumerate(self._sessions)]
        self._fences = Fences()

    def case(self, rng: random.Random) -> list[str]:
        sample, data = broken(rng)
        os.pwrite(self._file.fileno(), data, 0)  # reopening the file would take longer than everything else
        os.ftruncate(self._file.fileno(), len(data))
        session = self._sessions[sample.config]
        numbers = np.random.default_rng(rng.getrandbits(32))
        self._clear(sample.config, numbers)
        self._fences.memory, self._fences.compare = session.device.machine.memory, rng.random() < 1 / 16
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        problems = []
        try:
            end = self._run(session, sample, rng, numbers)
        except NpusimError as error:
            end = f"refused: {type(error).__name__}"
            if isinstance(error, DeviceFaultError):
                end = f"fault {error.code}" + (" before it begins" if str(error).find(": command ") > 0 else "")
                if error.code in DEFECTS:
                    problems.append(str(error))
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            end = "not an error of npusim"
            problems.append(repr(error))
        took = time.process_time() - began
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        problems += [f"took {took:.1f} s"] if took > PATIENCE_S else []
        problems += [f"took {more >> 20} MiB"] if more > MOST_BYTES else []
        problems += self._fences.problems
        self._fences.problems.clear()
        self.tally[end] += 1
        self.tally["over 1 s"] += took > 1
        return [f"{problem} ({sample.program.name})".replace("\n", " ") for problem in problems]

    def _clear(self, config: int, numbers: np.random.Generator) -> None:
        memory = self._sessions[config].device.machine.memory
        memory.dram[self._used[config] :] = 0
        noise = numbers.choice(np.array([0, 1, 2, 3, 0x3F, 0x80, 0xFF], np.uint8), 4096)
        for area in (*memory.sram, *memory.acc):
            area[:] = np.resize(noise, area.size)

    def _run(self, session: Session, sample: Sample, rng: random.Random, numbers: np.random.Generator) -> str:
        """Run the file and return the outcome. Raises the error for the file, its program or the run."""
        program = read_program(self._path)
        if rng.random() < 1 / 8:
            for _ in disassemble(decode(program.code), [entry.name for entry in program.ops]):
                pass
        fits = sum(program.region_bytes) <= CONFIGS[sample.config].dram.bytes
        inputs = _inputs(program, sample, rng.random() < 0.7, numbers) if fits else {}
        try:
            result = session.run(program, inputs, timing_only=not fits)
            if rng.random() < 1 / 8:
                report.text(result, session.config, "any")
                json.dumps(result.to_json_dict(), allow_nan=False)
            if rng.random() < 1 / 8:  # from a recording, with the memory content left by the first run
                session.run(program, inputs, timing_only=not fits)
        finally:
            session.unload(program)
        return "ran to its end"


def _inputs(program: Program, sample: Sample, usual: bool, numbers: np.random.Generator) -> dict[str, Any]:
    """Return the sample's inputs where they fit, and random bytes otherwise."""
    inputs = {}
    for item in program.inputs:
        array = sample.feeds.get(item.name)
        if not usual or array is None or array.dtype != item.dtype.storage or array.shape != item.shape:
            raw = numbers.integers(0, 256, math.prod(item.shape) * item.dtype.itemsize, np.uint8)
            if item.dtype.storage == np.bool_:
                raw &= 1
            array = raw.view(item.dtype.storage).reshape(item.shape)
        inputs[item.name] = array
    return inputs


def make() -> World:
    return World()
