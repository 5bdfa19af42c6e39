"""The work of an instruction without its data, which is the only input of a cost model.

An instruction describes itself as one of these classes; ``npusim.hw.cost`` computes the cost. Compiler and simulator
use the same functions, so they agree.
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

    ``depthwise``: every input channel has ``oc / ic`` filters. ``first`` / ``last``: the tile starts / ends its
    accumulation; the last one outputs ``oh * ow * oc * batch`` elements of ``out_bytes``. ``acc_bytes``: of a sum.
    ``w_bits``: of a packed weight, 0 if not packed. ``idle``: MACs that take time without a product, because their
    weights are the zeros between the blocks of a block-diagonal matrix.
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
    idle: int = 0

    def weight_bytes(self, count: int) -> int:
        """Bytes of ``count`` weights in SRAM."""
        return ceil_div(count * (self.w_bits or 8 * self.dtype.itemsize), 8)

    @property
    def places(self) -> int:
        """MACs that take time, idle ones included."""
        inputs = 1 if self.depthwise else self.ic
        return self.batch * self.oh * self.ow * self.oc * inputs * self.kh * self.kw

    @property
    def macs(self) -> int:
        """Products that are computed."""
        return self.places - self.idle


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
    """The port through which the bytes of a transfer leave a core, each with its own bandwidth: a memory, or the
    network between cores. CONSTANTS is DRAM on a device without a memory for constants. CODE (instructions) and WRITES
    (results to DRAM) are DRAM on a device without separate ports."""

    DRAM = 0
    CONSTANTS = 1
    EXCHANGE = 2
    L2 = 3
    CODE = 4
    WRITES = 5


PLACE_BYTES = 64
"""Known alignment of transfers in DRAM: regions start at multiples of this."""


class Runs(NamedTuple):
    """One side of a transfer: ``pieces`` runs of ``nbytes`` contiguous bytes, ``stride`` apart.

    ``stride``: bytes from start to start; 0 for a single run.
    """

    pieces: int
    nbytes: int
    stride: int


def walked_runs(dims: Sequence[int], strides: Sequence[int], itemsize: int) -> Runs:
    """The runs of one side when elements are moved in the order of ``dims``, the last dimension fastest.

    A run ends if the next element is not at the next address. A repeated element (stride 0) comes from the buffer of
    the engine and ends no run.
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
"""(elements, destination stride, source stride) of each dimension, strides in bytes, outermost first."""


def reordered_runs(walk: Walk, itemsize: int, buffer: int) -> Iterator[tuple[Runs, Runs]]:
    """The runs of destination and source for each block that fits a reorder buffer of ``buffer`` bytes.

    The engine reads a block in source order and writes it in destination order, so a run is contiguous within the
    block. Blocks of a larger buffer include all those of a smaller one.
    """
    dims = [size for size, _, _ in walk]
    to, source = ([abs(row[side]) for row in walk] for side in (1, 2))
    for mine in _prefixes(dims, to, itemsize):
        for other in _prefixes(dims, source, itemsize):
            block = list(map(max, mine, other))
            if prod(block) * itemsize <= buffer:
                yield _block_runs(dims, block, to, itemsize), _block_runs(dims, block, source, itemsize)


def _nearest_first(dims: Sequence[int], strides: Sequence[int], itemsize: int) -> list[int]:
    """The dimensions that form one run of a side, innermost in memory first."""
    found, nbytes = [], itemsize
    for stride, axis in sorted((stride, axis) for axis, stride in enumerate(strides) if stride and dims[axis] > 1):
        if stride != nbytes:
            break
        found.append(axis)
        nbytes *= dims[axis]
    return found


def _prefixes(dims: Sequence[int], strides: Sequence[int], itemsize: int) -> Iterator[list[int]]:
    """Blocks that form one run of a side: inner dimensions complete, and a power of two of the next one."""
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
    # The next run of the block, or the next block.
    apart = [strides[axis] for axis in outside if block[axis] > 1] or [strides[axis] for axis in outside]
    pieces *= prod(dims[axis] for axis in outside)
    return Runs(pieces, nbytes, min(apart, default=nbytes) if pieces > 1 else 0)


@dataclass(frozen=True, slots=True)
class DmaWork:
    """A transfer of ``runs`` contiguous pieces of ``run_bytes`` on the side of DRAM or L2 (the worse side), or, within
    SRAM, on the worse side there.

    ``reads`` / ``writes``: bytes read from and written to DRAM. ``l2_reads`` / ``l2_writes``: of the L2. All are 0 for
    a transfer within SRAM of ``bytes`` bytes. ``stride``: bytes from start to start of the pieces on that side; 0 if
    unknown. ``offset``: of the first piece from a multiple of PLACE_BYTES; 0 if unknown. ``constants``: the source is
    constants of the program, and nothing is written to DRAM. ``decoded``: weights that are decompressed to ``bytes``
    bytes. ``exchanged``: bytes between the SRAMs of cores; runs are of the worse side. ``features``: fetched by the
    matrix unit itself, one run per pixel. ``pieces``, ``piece_bytes``: runs on the side of SRAM, if the other side is
    not SRAM. ``walk``: dimensions of a copy whose sides differ in memory order, with elements of ``itemsize`` bytes,
    for a reorder buffer; empty for other transfers.
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
        """The port of its bytes outside of SRAM; for a copy between two memories, that of the farther one."""
        if self.exchanged:
            return Port.EXCHANGE
        if self.constants:
            return Port.CONSTANTS
        near = (self.l2_reads or self.l2_writes) and not (self.reads or self.writes)
        return Port.L2 if near else Port.DRAM

    @property
    def is_local(self) -> bool:
        """Whether it stays in the SRAM of its core."""
        return not (self.exchanged or self.reads or self.writes or self.l2_reads or self.l2_writes)


@functools.lru_cache(maxsize=1 << 10)
def reordered(work: DmaWork, buffer: int) -> tuple[DmaWork, ...]:
    """The ways in which an engine with a reorder buffer of ``buffer`` bytes can execute a transfer: unchanged, and by
    blocks."""
    found = {work: None}
    if work.walk and buffer:
        reads, writes = bool(work.reads or work.l2_reads), bool(work.writes or work.l2_writes)
        for target, source in reordered_runs(work.walk, work.itemsize, buffer):
            far, near = (source, target) if reads and not writes else (target, source)
            if reads == writes:
                far, near = max(target, source), Runs(1, 0, 0)
            joined = replace(
                work,
                runs=far.pieces,
                run_bytes=far.nbytes,
                stride=far.stride,
                pieces=near.pieces,
                piece_bytes=near.nbytes,
            )
            found[joined] = None
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ControlWork:
    """An instruction of the sequencer (halt): no unit and no cost."""


Work = MatrixWork | VectorWork | ScalarWork | DmaWork | ControlWork
