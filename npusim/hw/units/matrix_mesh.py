"""The mesh of Gemmini (rows = cols = D). Cost is counted in rows of operands that are fed, as in its control logic.

A matmul M x K x N is split into operations of at most D rows for one D x D block of the stationary operand; M is the
innermost loop. The first block is preloaded alone. After that, an operation that preloads the block of its successor
feeds D rows, even if it computes fewer. Any other operation feeds its own rows, at least ``least_rows``:

    rows   = D + (operations - 1) * D + max(rows of the last one, least_rows)       weight stationary
    rows   = D + operations * D                                                     output stationary
    cycles = first row + (rows - 1) * (1 + row_stall) / rate + 2 * D + 1    [+ D: sums shifted out, output stationary]

The first row is accepted ``max(row_stall, 1)`` cycles after its request. Depthwise: every channel is a separate matmul.
SRAM traffic runs in parallel as in the systolic model; the longer one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.hw.config import Config
from npusim.hw.sections import MeshConfig
from npusim.hw.units.base import COMPUTE, LATENCY, MEMORY, Cost, first_datum, total
from npusim.hw.units.matrix_systolic import drain_cycles, place, traffic_cycles, unit_for
from npusim.units import ceil_div

if TYPE_CHECKING:
    from npusim.work import MatrixWork


def cost(config: Config, work: MatrixWork) -> Cost:
    """The cost of a matmul. Raises ProgramError if there is no matrix unit or it does not support the type of the
    work."""
    matrix = unit_for(config, work)
    mesh = matrix.mesh or MeshConfig()
    placed = place(matrix, work)
    size, rate = matrix.rows, matrix.rate(work.dtype.label)
    blocks = placed.matmuls * ceil_div(placed.rows, size) * ceil_div(placed.columns, size)
    rows = size + blocks * ceil_div(placed.streamed, size) * size  # rows that enter the mesh, including preloads
    if matrix.dataflow != "output_stationary":
        rows += max((placed.streamed - 1) % size + 1, mesh.least_rows) - size
    # From the entry of the last row to its last sum: across the mesh, down the mesh, and one more stage, as in the RTL.
    pipeline = 2 * size + 1 + (size if matrix.dataflow == "output_stationary" else 0)
    # The first row does not wait for another one, so its stall is counted separately.
    later = (rows - 1) * (1 + mesh.row_stall_cycles)
    feeding = max(mesh.row_stall_cycles, 1) + ceil_div(later * rate.denominator, rate.numerator)
    drain = drain_cycles(matrix, work)
    traffic = traffic_cycles(config, work, placed)
    terms = first_datum(config, matrix.setup_cycles, config.matrix_hz)
    if traffic > max(feeding + pipeline, drain):
        terms.append(("sram", MEMORY, traffic))
    elif drain > feeding + pipeline:
        terms.append(("output", COMPUTE, drain))
    else:
        terms += [("rows", COMPUTE, feeding), ("pipeline", LATENCY, pipeline)]
    return total(config.matrix_hz, terms, traffic)
