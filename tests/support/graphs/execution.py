"""Ways of running a graph, to be compared with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import to_storage
from npusim.errors import CompileError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.memory import align
from npusim.isa.base import decode
from npusim.isa.interpret import interpret
from npusim.program import CONSTANTS, Program
from npusim.runtime import Result, Session
from npusim.sim.memory import DeviceMemory, JobMemory
from tests.support.random_devices import ROOMY

Arrays = dict[str, npt.NDArray[Any]]


def compiled(graph: Graph, config: Config) -> Program | None:
    """Compile a graph. Returns None if the SRAM is too small for it, which is accepted for small SRAMs only."""
    try:
        return compile_graph(graph, config)
    except CompileError as error:
        said = str(error)
    assert "internal" not in said, said
    assert config.sram.bytes < ROOMY or "accumulators" in said, said
    return None


def interpreted(program: Program, config: Config, inputs: Mapping[str, npt.NDArray[Any]], poison: int = 0x5A) -> Arrays:
    """Execute the program in program order and return the outputs in storage form.

    Everything except constants and inputs starts as ``poison``. A program that reads memory nobody wrote therefore
    gives another result than on the device, whose memories start as zeros.
    """
    memory = DeviceMemory(config)
    for array in (*memory.sram, *memory.acc):
        array[:] = poison
    regions, base = [], 0
    for size in program.region_bytes:
        regions.append((base, size))
        base += align(max(size, 1))
    memory.dram[:base] = poison
    program.constants.fill(memory.dram[: program.constants.nbytes])
    assert regions[CONSTANTS][0] == 0
    for binding in program.inputs:
        start = regions[binding.region][0]
        binding.elements(memory.dram[start : start + binding.nbytes])[...] = to_storage(
            np.asarray(inputs[binding.name])
        )
    interpret(decode(program.code), JobMemory(memory, regions))
    outputs = {}
    for binding in program.outputs:
        start = regions[binding.region][0]
        raw = np.frombuffer(memory.dram[start : start + binding.nbytes].tobytes(), np.uint8)
        outputs[binding.name] = binding.elements(raw).copy()
    return outputs


def simulated(program: Program, config: Config, inputs: Mapping[str, Any], *, timing_only: bool = False) -> Result:
    """Run the program once on a fresh device."""
    return Session(config, cache_dir=False).run(program, inputs, timing_only=timing_only)


def outputs_of(result: Result) -> Arrays:
    """Return the outputs of a run in storage form."""
    return {name: to_storage(array) for name, array in result.outputs.items()}
