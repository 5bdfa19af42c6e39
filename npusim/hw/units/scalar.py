"""A small processor that handles one element at a time: setup + elements * cycles_per_element.

It accesses SRAM through the port of one bank. If that takes longer than the elements, it determines the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.errors import ProgramError
from npusim.hw.config import Config
from npusim.hw.units.base import Cost, beside, first_datum, sram_cycles, total
from npusim.units import ceil_div

if TYPE_CHECKING:
    from npusim.work import ScalarWork


def cost(config: Config, work: ScalarWork) -> Cost:
    """The cost of scalar work. Raises ProgramError without a scalar unit."""
    scalar = config.scalar
    if scalar is None:
        raise ProgramError(f"scalar work on {config.name}, which has no scalar unit")
    start = first_datum(config, scalar.setup_cycles, config.clock_hz)
    # The width of one bank, not of all, because elements are accessed one at a time, at addresses from an index.
    traffic = ceil_div(work.bytes, config.sram.bytes_per_cycle)
    banks = sram_cycles(config, work.bytes, config.clock_hz)
    return total(config.clock_hz, start + beside(work.elements * scalar.cycles_per_element, traffic), banks)
