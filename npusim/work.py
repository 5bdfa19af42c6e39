"""What an instruction asks of the hardware, without data: the only thing a cost model sees.

An instruction describes itself as one of these; ``npusim.hw.cost`` prices it. Compiler and simulator use the same
functions, so the plan and the charge agree.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from npusim.dtypes import DType
from npusim.units import ceil_div


@dataclass(frozen=True, slots=True)
class MatrixWork:
    """A batch of convolution (or matmul: oh=1, ow=M, kh=kw=1, ic=K, oc=N) tiles on the matrix unit.

    ``depthwise``: every input channel has ``oc / ic`` filters of its own. ``first`` / ``last``: the tile starts / ends
    its accumulation; on the last one ``oh * ow * oc * batch`` elements of ``out_bytes`` each leave the unit.
    ``acc_bytes``: of a sum; ``w_bits``: of a weight, 0: those of ``dtype``.
    """

    dtype: DType
    batch: int
    oh: int
    ow: int
    oc: int
    ic: int
    kh: int
    kw: int
    depthwise: bool
    first: bool
    last: bool
    out_bytes: int
    acc_bytes: int = 4
    w_bits: int = 0

    def weight_bytes(self, count: int) -> int:
        """Of so many weights, as they lie in SRAM."""
        return ceil_div(count * (self.w_bits or 8 * self.dtype.itemsize), 8)

    @property
    def macs(self) -> int:
        inputs = 1 if self.depthwise else self.ic
        return self.batch * self.oh * self.ow * self.oc * inputs * self.kh * self.kw


@dataclass(frozen=True, slots=True)
class VectorWork:
    """Elementwise, reduction, row, window or conversion work on the vector unit.

    ``function``: a cost class of the config (``simple``, ``divide``, ``sqrt``, ``transcendental``, ``convert``,
    ``reduce``). ``elements``: lane operations to perform; ``passes`` of them over the data (softmax reads its row three
    times). ``bytes``: SRAM bytes read and written.
    """

    function: str
    dtype: DType
    elements: int
    passes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ScalarWork:
    """Work of the scalar unit: element-by-element, data-dependent (index lists, top-k)."""

    elements: int
    bytes: int


class Port(enum.IntEnum):
    """What the bytes of a transfer pass where they leave a core, each with a bandwidth of its own: by the way to a
    memory, or to other cores. CONSTANTS is DRAM on a device without a memory for them; CODE, by which commands come and
    no transfer, and WRITES, by which results go to DRAM, likewise."""

    DRAM = 0
    CONSTANTS = 1
    EXCHANGE = 2
    L2 = 3
    CODE = 4
    WRITES = 5


PLACE_BYTES = 64
"""What is known of a transfer's place in DRAM: regions start at multiples of this, and of nothing larger."""


@dataclass(frozen=True, slots=True)
class DmaWork:
    """A transfer of ``runs`` contiguous pieces of ``run_bytes`` on the side of DRAM or L2 (the worse side).

    ``reads`` / ``writes``: bytes read from and written to DRAM; ``l2_reads`` / ``l2_writes``: of the L2. All are 0 for
    a transfer within SRAM of ``bytes`` bytes.
    ``stride``: bytes from the start of one piece to that of the next on that side; 0 if that is not known.
    ``offset``: of the first piece from a multiple of PLACE_BYTES; 0 if that is not known.
    ``constants``: what is read are constants of the program, and nothing is written to DRAM. ``decoded``: weights that
    pass a decoder on their way, as so many ``bytes`` are made of what is read. ``exchanged``: what passes from one
    core's SRAM to others'; runs are of the worse side, no DRAM is touched. ``features``: what the matrix unit's own
    engine fetches, a run for each pixel.
    """

    bytes: int
    runs: int
    run_bytes: int
    reads: int
    writes: int
    stride: int = 0
    offset: int = 0
    constants: bool = False
    decoded: int = 0
    exchanged: bool = False
    l2_reads: int = 0
    l2_writes: int = 0
    features: bool = False

    @property
    def port(self) -> Port:
        """What its bytes pass outside of SRAM. A copy between two memories passes the port of the farther one."""
        if self.exchanged:
            return Port.EXCHANGE
        if self.constants:
            return Port.CONSTANTS
        near = (self.l2_reads or self.l2_writes) and not (self.reads or self.writes)
        return Port.L2 if near else Port.DRAM

    @property
    def is_local(self) -> bool:
        """It does not leave the SRAM of its core."""
        return not (self.exchanged or self.reads or self.writes or self.l2_reads or self.l2_writes)


@dataclass(frozen=True, slots=True)
class ControlWork:
    """A sequencer instruction (halt): no unit, no cost of its own."""


Work = MatrixWork | VectorWork | ScalarWork | DmaWork | ControlWork
