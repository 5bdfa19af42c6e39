"""The energy of a run: its actions by the prices of the config."""

from __future__ import annotations

from npusim.hw.config import Config
from npusim.hw.energy import arithmetic_fj
from npusim.isa.base import decode
from npusim.program import Program
from npusim.timeline import Counters

UW_PS_PER_FJ = 1000


def energy_fj(config: Config, program: Program, counters: Counters) -> int | None:
    """Femtojoules of one run of a program: arithmetic, bytes of SRAM and DRAM, leakage. None if the config does not say
    what they take: another device's prices would be an invention."""
    table = config.energy
    if table is None:
        return None
    arithmetic = sum(arithmetic_fj(table, command.instruction.work()) for command in decode(program.code))
    sram = sum(unit.bytes for unit in counters.units.values())
    dram = counters.dram_read_bytes + counters.dram_write_bytes
    leakage = table.leakage_uw * counters.duration_ps // UW_PS_PER_FJ
    return arithmetic + sram * table.sram_byte_fj + dram * table.dram_byte_fj + leakage
