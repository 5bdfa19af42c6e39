"""What one action takes of energy. The prices are a config's energy table, each with its source beside it in the file;
a config without a table has none. ``npusim.report.energy`` adds up."""

from __future__ import annotations

from npusim.hw.config import EnergyConfig
from npusim.work import MatrixWork, ScalarWork, VectorWork, Work


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
