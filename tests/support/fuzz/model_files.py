"""Damaged models on the way of a user's model: imported, compiled, and run on a device. ``make``: of ONNX."""

from __future__ import annotations

import random
import resource
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from npusim.errors import DeviceFaultError, NpusimError
from npusim.hw.config import Config, load_config
from npusim.runtime import Session
from tests.support.fuzz.damaged_models import broken

PATIENCE_S = 5.0
"""CPU time limit of a case."""
MOST_BYTES = 512 << 20
"""Host memory limit of a case."""
CONFIG = load_config("tiny").with_(**{"dram.bytes": 64 << 20})


class World:
    """Cases on one session, with limits of CPU time and host memory. ``broken`` makes a model; some get ``shapes``."""

    def __init__(
        self,
        config: Config,
        broken: Callable[[random.Random], bytes],
        patience_s: float,
        most_bytes: int,
        shapes: dict[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.tally: Counter[str] = Counter()
        self._config, self._broken, self._shapes = config, broken, shapes
        self._patience_s, self._most_bytes = patience_s, most_bytes
        self._session = Session(config, cache_dir=False)

    def case(self, rng: random.Random) -> list[str]:
        """Run one case; returns what is wrong with its end."""
        model = self._broken(rng)
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        problems = []
        end = "ran to its end"
        try:
            self._run(model, self._shapes if self._shapes and rng.random() < 0.3 else {})
        except NpusimError as error:
            end = type(error).__name__
            # Compiled programs run without a fault, except for faults that depend on data.
            if isinstance(error, DeviceFaultError):
                end = f"fault {error.code}"
                problems += [] if error.code == "DATA" else [str(error)]
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            end = "not an error of npusim"
            problems.append(repr(error))
        took = time.process_time() - began
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        problems += [f"took {took:.1f} s"] if took > self._patience_s else []
        problems += [f"took {more >> 20} MiB"] if more > self._most_bytes else []
        self.tally[end] += 1
        self.tally["over 1 s"] += took > 1
        return [problem.replace("\n", " ") for problem in problems]

    def _run(self, model: bytes, shapes: dict[str, tuple[int, ...]]) -> None:
        program = self._session.compile(model, shapes)
        try:
            fits = sum(program.region_bytes) <= self._config.dram.bytes
            inputs = {item.name: np.zeros(item.shape, item.dtype.storage) for item in program.inputs} if fits else {}
            self._session.run(program, inputs, timing_only=not fits)
        finally:
            self._session.unload(program)


def make() -> World:
    return World(CONFIG, broken, PATIENCE_S, MOST_BYTES, {"x": (2, 4)})
