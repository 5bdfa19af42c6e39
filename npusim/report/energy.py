"""The energy of a run: its actions by the prices of the config's energy table, each with its source beside it in the
file; a config without a table has none."""

from __future__ import annotations

from npusim.hw.config import Config, EnergyConfig
from npusim.isa.base import decode
from npusim.isa.dma import Multicast
from npusim.program import Program
from npusim.timeline import Counters
from npusim.work import MatrixWork, ScalarWork, VectorWork, Work

UW_PS_PER_FJ = 1000


def energy_fj(config: Config, program: Program, counters: Counters) -> int | None:
    """Femtojoules of one run of a program: arithmetic, bytes of SRAM and DRAM, leakage. None if the config does not say
    what they take: another device's prices would be an invention."""
    table = config.energy
    if table is None:
        return None
    arithmetic = sum(arithmetic_fj(table, command.instruction.work()) for command in decode(program.code))
    sram = sum(unit.bytes for unit in counters.units.values()) + _repeated(program)
    dram = counters.dram_read_bytes + counters.dram_write_bytes
    leakage = table.leakage_uw * counters.duration_ps // UW_PS_PER_FJ
    return arithmetic + sram * table.sram_byte_fj + dram * table.dram_byte_fj + leakage


def _repeated(program: Program) -> int:
    """Bytes that are written to more SRAMs than the one that a unit counts."""
    loads = [command.instruction for command in decode(program.code) if isinstance(command.instruction, Multicast)]
    return sum((len(load.targets(0)) - 1) * load.work().bytes for load in loads)


def arithmetic_fj(table: EnergyConfig, work: Work) -> int:
    """Femtojoules of an instruction's arithmetic; the bytes that it moves are priced where they are counted.

    An element of the scalar unit is priced as a vector lane's operation: the sources of the tables have no other row.
    """
    match work:
        case MatrixWork():
            return work.macs * table.mac_fj(work.dtype.label)
        case VectorWork():
            return work.elements * work.passes * table.vector_fj
        case ScalarWork():
            return work.elements * table.vector_fj
        case _:
            return 0
