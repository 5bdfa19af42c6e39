"""Predicted times of jobs, for deadlines."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.hw.config import Config
from npusim.ops.build import GraphBuilder
from npusim.program import Program
from npusim.runtime import Executor, Request


def job_ps(executor: Executor, program: Program, moved: Iterable[int], mappings: int) -> int:
    """Modelled picoseconds of one job whose program is on the device, with an empty queue.

    ``moved``: bytes of each input and output that the host copies. This is exact, unless the operands are in other
    device buffers than in the previous run, which takes slightly longer.
    """
    host = executor.config.host
    transfers = sum(host.copy_ps(nbytes) for nbytes in moved if nbytes)
    return executor.estimate(program) + overhead_ps(executor.config) + transfers + mappings * host.map_ps


@functools.lru_cache(64)
def overhead_ps(config: Config) -> int:
    """Host time of a job besides copying, measured on a separate device."""
    builder = GraphBuilder("overhead")
    nothing = builder.input("x", (1,), DType.INT32)
    program = compile_graph(builder.finish([builder.add("reshape", [nothing], {"shape": (1, 1)})]), config)
    with Executor(config) as executor:
        first, second = (executor.submit(Request(program, timing_only=True)).wait() for _ in range(2))
    return min(first.host_ps, second.host_ps)  # the first run also loads the program
