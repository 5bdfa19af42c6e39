"""What an instruction asks of the hardware, without data: the only thing a cost model sees.

An instruction describes itself as one of these; ``npusim.hw.cost`` prices it. Compiler and simulator use the same
functions, so the plan and the charge agree.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

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


class Runs(NamedTuple):
    """One side of a transfer as the engine walks it: ``pieces`` of ``nbytes`` contiguous bytes, ``stride`` apart.

    ``stride``: bytes from the start of one piece to that of the next; 0 for a single piece.
    """

    pieces: int
    nbytes: int
    stride: int


def walked_runs(dims: Sequence[int], strides: Sequence[int], itemsize: int) -> Runs:
    """The runs of one side that is walked in the order of ``dims``, the last dimension fastest.

    A run ends where the next element in this order is not at the next higher address. An element that is read again
    (stride 0) comes from the engine's buffer and ends no run.
    """
    nbytes, count, apart = itemsize, 1, 0
    for dim, stride in zip(reversed(dims), reversed(strides), strict=True):
        if dim <= 1 or not stride:
            continue
        if stride == nbytes and not apart:
            nbytes *= dim
        else:
            count *= dim
            apart = apart or abs(stride)
    return Runs(count, nbytes, apart)


Walk = tuple[tuple[int, int, int], ...]
"""(elements, stride of the destination, stride of the source) of each dimension, in bytes, the outermost first."""


def reordered_runs(walk: Walk, itemsize: int, buffer: int) -> Iterator[tuple[Runs, Runs]]:
    """The runs of the destination and of the source for each block that a reorder buffer of ``buffer`` bytes holds.

    The engine reads a block in the order of the source and writes it in that of the destination, so a run is what is
    contiguous within the block. Blocks of a larger buffer include all those of a smaller one.
    """
    dims = [size for size, _, _ in walk]
    to, source = ([abs(row[side]) for row in walk] for side in (1, 2))
    for mine in _prefixes(dims, to, itemsize):
        for other in _prefixes(dims, source, itemsize):
            block = list(map(max, mine, other))
            if prod(block) * itemsize <= buffer:
                yield _block_runs(dims, block, to, itemsize), _block_runs(dims, block, source, itemsize)


def _nearest_first(dims: Sequence[int], strides: Sequence[int], itemsize: int) -> list[int]:
    """The dimensions that are one run of a side, the innermost in memory first."""
    found, nbytes = [], itemsize
    for stride, axis in sorted((stride, axis) for axis, stride in enumerate(strides) if stride and dims[axis] > 1):
        if stride != nbytes:
            break
        found.append(axis)
        nbytes *= dims[axis]
    return found


def _prefixes(dims: Sequence[int], strides: Sequence[int], itemsize: int) -> Iterator[list[int]]:
    """Blocks that are one run of a side: of the run's dimensions the inner ones whole, of the next a power of two."""
    block = [1] * len(dims)
    yield list(block)
    for axis in _nearest_first(dims, strides, itemsize):
        size = 2
        while size < dims[axis]:
            block[axis] = size
            yield list(block)
            size *= 2
        block[axis] = dims[axis]
        yield list(block)


def _block_runs(dims: Sequence[int], block: Sequence[int], strides: Sequence[int], itemsize: int) -> Runs:
    nbytes, pieces, outside = itemsize, 1, [axis for axis, stride in enumerate(strides) if stride and dims[axis] > 1]
    for axis in _nearest_first(dims, strides, itemsize):
        nbytes *= block[axis]
        pieces *= ceil_div(dims[axis], block[axis])
        outside.remove(axis)
        if block[axis] < dims[axis]:
            break
    # The next run of the block, or where it has no other, the next block.
    apart = [strides[axis] for axis in outside if block[axis] > 1] or [strides[axis] for axis in outside]
    pieces *= prod(dims[axis] for axis in outside)
    return Runs(pieces, nbytes, min(apart, default=nbytes) if pieces > 1 else 0)


@dataclass(frozen=True, slots=True)
class DmaWork:
    """A transfer of ``runs`` contiguous pieces of ``run_bytes`` on the side of DRAM or L2 (the worse side), or, within
    SRAM, on the worse side there.

    ``reads`` / ``writes``: bytes read from and written to DRAM; ``l2_reads`` / ``l2_writes``: of the L2. All are 0 for
    a transfer within SRAM of ``bytes`` bytes.
    ``stride``: bytes from the start of one piece to that of the next on that side; 0 if that is not known.
    ``offset``: of the first piece from a multiple of PLACE_BYTES; 0 if that is not known.
    ``constants``: what is read are constants of the program, and nothing is written to DRAM. ``decoded``: weights that
    pass a decoder on their way, as so many ``bytes`` are made of what is read. ``exchanged``: what passes from one
    core's SRAM to others'; runs are of the worse side, no DRAM is touched. ``features``: what the matrix unit's own
    engine fetches, a run for each pixel. ``pieces``, ``piece_bytes``: the runs on the side of SRAM, if the other side
    is outside. ``walk``: the dimensions of a copy whose sides differ in memory order, with elements of ``itemsize``
    bytes: what a reorder buffer may join; empty for any other transfer.
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
    pieces: int = 1
    piece_bytes: int = 0
    walk: Walk = ()
    itemsize: int = 1

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


@functools.lru_cache(maxsize=1 << 10)
def reordered(work: DmaWork, buffer: int) -> tuple[DmaWork, ...]:
    """How an engine with a reorder buffer of ``buffer`` bytes may make a transfer: as described, and by blocks."""
    found = {work: None}
    if work.walk and buffer:
        reads, writes = bool(work.reads or work.l2_reads), bool(work.writes or work.l2_writes)
        for target, source in reordered_runs(work.walk, work.itemsize, buffer):
            far, near = (source, target) if reads and not writes else (target, source)
            if reads == writes:
                far, near = max(target, source), Runs(1, 0, 0)
            joined = replace(
                work, runs=far.pieces, run_bytes=far.nbytes, stride=far.stride, pieces=near.pieces,
                piece_bytes=near.nbytes,
            )  # fmt: skip
            found[joined] = None
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ControlWork:
    """A sequencer instruction (halt): no unit, no cost of its own."""


Work = MatrixWork | VectorWork | ScalarWork | DmaWork | ControlWork
