"""A stand-in for npusim.runtime to test what the command line itself does: options, files, errors, exit codes.

``BEHAVIOUR`` selects what a run does: return the sample, raise, or wait for an interrupt.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.program import Binding, OpEntry
from tests.support.sample_run import Run, sample

BEHAVIOUR: dict[str, Any] = {}
CALLS: list[tuple[str, Any]] = []
"""Calls of the session, in order."""


@dataclass
class Program:
    """The part of a program that the command line reads."""

    name: str = "net"
    config_name: str = "tiny"
    ops: tuple[OpEntry, ...] = (OpEntry("load", "reshape"), OpEntry("conv", "conv"), OpEntry("tail", "unary"))
    inputs: tuple[Binding, ...] = (Binding("x", 2, (2, 3), DType.FLOAT32), Binding("ids", 3, (4,), DType.INT64))
    bound: tuple[tuple[str, str], ...] = ()
    resident_bytes: int = 0
    code: bytes = b""


@dataclass
class Result(Run):
    """The sample with the JSON of the real class."""

    program: Any = None
    inputs: dict[str, Any] = field(default_factory=dict)
    origin: Any = "a model"
    seed: int | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def to_json_dict(self) -> dict[str, Any]:
        return {"model": self.model, "config": self.config, "cycles": self.cycles}


class Session:
    """Records its calls."""

    def __init__(self, config: Any, *, cache_dir: Path | bool | None = None) -> None:
        CALLS.append(("session", (config, cache_dir)))
        self.device = SimpleNamespace(watch=lambda watcher: None, faults=SimpleNamespace(check=lambda: None))

    def compile(
        self,
        source: Any,
        input_shapes: Any = None,
        *,
        bind: Any = None,
        inputs: Any = None,
        timing_only: bool = False,
        schedule: Any = None,
        decisions: bool = False,
    ) -> Program:
        CALLS.extend([("compile", (source, input_shapes)), ("bind", bind), ("arrays", inputs), ("schedule", schedule)])
        if "compile" in BEHAVIOUR:
            raise BEHAVIOUR["compile"]
        return Program()

    def run(self, program: Program, inputs: Any = None, *, timing_only: bool = False) -> Result:
        CALLS.append(("run", inputs))
        if BEHAVIOUR.get("wait"):
            sys.stdout.write("running\n")
            sys.stdout.flush()
            time.sleep(60)
        if "run" in BEHAVIOUR:
            raise BEHAVIOUR["run"]
        result = Result(**vars(sample()), program=program)
        result.outputs = {} if timing_only else BEHAVIOUR.get("outputs", {"y": np.arange(4, dtype=np.float32)})
        return result
