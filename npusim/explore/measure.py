"""Points of several devices for one model, each compiled and simulated, in one or several processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npusim.errors import NpusimError
from npusim.explore.whatif import WhatIfPoint, point
from npusim.hw.config import Config
from npusim.runtime.provenance import as_json


@dataclass(frozen=True, slots=True)
class Measurer:
    """``model``: an ONNX file. ``shapes``, ``bind``: values for its open inputs. ``jobs``: number of processes.

    The points do not depend on the number of processes. They are in the order of the devices.
    """

    model: Path
    shapes: Mapping[str, Sequence[int]] | None = None
    bind: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 1

    def __call__(self, devices: Sequence[Config]) -> list[WhatIfPoint | str]:
        return list(self.points(devices))

    def points(self, devices: Sequence[Config]) -> Iterator[WhatIfPoint | str]:
        """The points one after the other."""
        jobs = min(self.jobs, len(devices))
        if jobs <= 1:
            yield from map(self.one, devices)
            return
        # Spawned, not forked: a process with threads must not be copied. Ctrl-C is for this process, which ends them.
        context = multiprocessing.get_context("spawn")
        with context.Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            yield from pool.imap(self.one, devices, chunksize=1)

    def described(self, config: Config) -> dict[str, Any]:
        """The model as JSON values."""
        from npusim.frontends.models import digest_file

        return {
            "file": str(self.model),
            "digest": digest_file(self.model, config.dram.bytes, values=False),
            "input_shapes": {name: list(shape) for name, shape in (self.shapes or {}).items()},
            "bind": {name: as_json(value) for name, value in self.bind.items()},
        }

    def one(self, device: Config) -> WhatIfPoint | str:
        """The point of a device; the reason as text if the model cannot run on it."""
        from npusim.runtime import Session

        try:
            with Session(device, cache_dir=False) as session:
                return point(session, session.compile(self.model, self.shapes, bind=self.bind, timing_only=True))
        except (NpusimError, MemoryError) as error:
            return str(error).splitlines()[0] if str(error) else "this machine has too little memory for that"
