"""Run a model on a simulated device, and inspect the arithmetic of its program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import onnx

import npusim
from npusim.isa.base import decode
from npusim.work import MatrixWork

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.program import Program
    from npusim.runtime import Result

Array = npt.NDArray[Any]


def simulate(
    model: onnx.ModelProto, inputs: Mapping[str, Array], config: str | Config, **overrides: Any
) -> tuple[Program, Result]:
    """Compile without a cache and run with arithmetic; ``overrides`` are dotted config keys."""
    device = npusim.load_config(config)
    session = npusim.Session(device.with_(**overrides) if overrides else device, cache_dir=False)
    program = session.compile(model)
    return program, session.run(program, dict(inputs))


def matrix_macs(program: Program) -> Counter[str]:
    """Return the multiply-accumulates of the program's matrix instructions by element type."""
    macs: Counter[str] = Counter()
    for command in decode(program.code):
        work = command.instruction.work()
        if isinstance(work, MatrixWork):
            macs[work.dtype.label] += work.macs
    return macs
