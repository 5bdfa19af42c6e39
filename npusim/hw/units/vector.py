"""A unit of parallel lanes: elementwise functions, reductions, rows, windows, conversions.

    compute = ceil(elements * words / per_group) * cost[function] * passes

``words``: lane widths per element (a 64-bit type in 32-bit lanes: 2). ``per_group``: lanes, times the elements that
share a lane if the unit packs narrow types. SRAM traffic runs in parallel: bytes / (banks * width), or bytes /
port_bytes_per_cycle if that port is narrower. The longer one counts. Set-up and SRAM latency come first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.errors import ProgramError
from npusim.hw.config import Config
from npusim.hw.units.base import Cost, beside, first_datum, sram_cycles, total
from npusim.units import ceil_div

if TYPE_CHECKING:
    from npusim.work import VectorWork


def cost(config: Config, work: VectorWork) -> Cost:
    """The cost of vector work. Raises ProgramError without a vector unit, or for a function of unknown class."""
    vector = config.vector
    if vector is None:
        raise ProgramError(f"vector work on {config.name}, which has no vector unit")
    if work.function not in vector.cost:
        raise ProgramError(f"vector function class must be one of {', '.join(vector.cost)}, got {work.function!r}")
    words = ceil_div(work.dtype.itemsize, vector.lane_bytes)
    # A unit without packing uses a lane per element, however narrow the type.
    shared = vector.lane_bytes // work.dtype.itemsize if vector.packed else 1
    groups = ceil_div(work.elements * words, vector.lanes * max(1, shared))
    compute = groups * vector.cost[work.function] * work.passes
    hz = config.vector_hz
    start = first_datum(config, vector.setup_cycles, hz)
    # The port belongs to the unit and limits its time; the banks are shared, so their use is counted separately.
    traffic = banks = sram_cycles(config, work.bytes, hz)
    if vector.port_bytes_per_cycle:
        traffic = max(traffic, ceil_div(work.bytes, vector.port_bytes_per_cycle))
    return total(hz, start + beside(compute, traffic), banks)
