"""DMA instructions: strided copies with padding and transposition, fills, gathers by an index list, and decompression
of weights."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar

from npusim import _core
from npusim.errors import ProgramError
from npusim.isa.base import (
    I64,
    MAX_ITEMS,
    SPACE_SHIFT,
    U8,
    U32,
    U64,
    Access,
    Address,
    Call,
    Dims3,
    Dims4,
    Instruction,
    Memory,
    Space,
    Strides3,
    Strides4,
    Type,
    Unit,
    check_index_type,
    check_itemsize,
    describe_address,
    instruction,
    instructions_of,
    is_dram,
    is_l2,
    is_outside,
    l2,
    loops,
    offset_of,
    perform,
    region,
    space_of,
    span,
)
from npusim.program import CONSTANTS
from npusim.work import PLACE_BYTES, DmaWork, Runs, Walk, Work, walked_runs

if TYPE_CHECKING:
    from npusim._core import Strided


def _bytes_outside(address: int, strides: Sequence[int], dims: Sequence[int], itemsize: int) -> int:
    """Bytes of one operand that are in DRAM or L2; broadcast bytes count once."""
    if not is_outside(address):
        return 0
    return prod(dim for dim, stride in zip(dims, strides, strict=True) if stride or dim == 0) * itemsize


def _begins(address: int, strides: Sequence[int], dims: Sequence[int]) -> int:
    """Start of the first burst of one operand: with a negative stride, the address is that of the highest piece."""
    back = sum((dim - 1) * stride for dim, stride in zip(dims, strides, strict=True) if stride < 0)
    return (offset_of(address) + back) % PLACE_BYTES


def _is_constant(address: int) -> bool:
    return space_of(address) == Space.REGION + CONSTANTS


_NONE = (0, 0, 0, 0)


def _shape(address: int) -> int:
    """The properties of an address that the work of a transfer depends on: memory, constants or not, offset."""
    space = address >> SPACE_SHIFT
    if space >= _FIRST_REGION:
        return (_CONSTANT if space == _OF_CONSTANTS else _OTHER) | address % PLACE_BYTES
    return _IN_L2 | address % PLACE_BYTES if space == _L2 else 0


# Plain integers, because this is called for each transfer of a stream; members of Space are three times slower.
_L2, _FIRST_REGION, _OF_CONSTANTS = int(Space.L2), int(Space.REGION), Space.REGION + CONSTANTS
_IN_L2, _CONSTANT, _OTHER = l2(0), region(CONSTANTS), region(CONSTANTS + 1)


@functools.lru_cache(1 << 12)
def _copying(
    dst: int,
    dst_strides: tuple[int, ...],
    src: int,
    src_strides: tuple[int, ...],
    dims: tuple[int, ...],
    itemsize: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> DmaWork:
    """The work of a copy between addresses in the form of :func:`_shape`, cached, because streams have few different
    ones."""
    padded = tuple(b + d + a for b, d, a in zip(before, dims, after, strict=True))
    total = prod(padded) * itemsize
    target = walked_runs(padded, dst_strides, itemsize)
    # Without elements there is only padding, and no source.
    source = walked_runs(dims, src_strides, itemsize) if 0 not in dims else Runs(1, 0, 0)
    reads, writes = (
        _bytes_outside(src, src_strides, dims, itemsize),
        _bytes_outside(dst, dst_strides, padded, itemsize),
    )
    walk = reorderable(padded, dst_strides, src_strides, itemsize)
    if not reads and not writes:
        worse = max(source, target) if total else Runs(1, 0, 0)
        return DmaWork(total, worse.pieces, worse.nbytes, 0, 0, walk=walk, itemsize=itemsize if walk else 1)
    outside, inside = [], Runs(1, 0, 0)
    if reads:
        outside.append((source, _begins(src, src_strides, dims)))
    elif not is_outside(src):
        inside = source
    if writes:
        outside.append((target, _begins(dst, dst_strides, padded)))
    else:
        inside = target
    runs, place = max(outside)
    near, far = (reads if is_l2(src) else 0), (writes if is_l2(dst) else 0)
    pieces, piece_bytes, _ = inside if inside.pieces > 1 else Runs(1, 0, 0)
    return DmaWork(
        total,
        runs.pieces,
        runs.nbytes,
        reads - near,
        writes - far,
        runs.stride,
        place,
        not is_dram(dst) and _is_constant(src),
        l2_reads=near,
        l2_writes=far,
        pieces=pieces,
        piece_bytes=piece_bytes,
        walk=walk,
        itemsize=itemsize if walk else 1,
    )


def reorderable(dims: Sequence[int], dst: Sequence[int], src: Sequence[int], itemsize: int) -> Walk:
    """The loops of a copy in which one side would have longer runs in another order; empty for other copies."""
    for strides in (dst, src):
        by_address = sorted(((abs(stride), dim) for dim, stride in zip(dims, strides, strict=True)), reverse=True)
        alone = walked_runs([dim for _, dim in by_address], [stride for stride, _ in by_address], itemsize)
        if alone.pieces < walked_runs(dims, strides, itemsize).pieces:
            return tuple(zip(dims, dst, src, strict=True))
    return ()


@instruction(0x10, "dma.copy", Unit.DMA)
class Copy(Instruction):
    """Copy ``dims`` items. The destination has ``before`` and ``after`` additional items in each dimension, set to
    ``pattern``.

    Strides are in bytes, outermost dimension first. The two sides may have any order, so a copy can transpose. The
    engine moves elements in one order on both sides: that of ``dims``, with the last dimension fastest.
    """

    dst: Address
    dst_strides: Strides4
    src: Address
    src_strides: Strides4
    dims: Dims4
    itemsize: U8
    before: Dims4
    after: Dims4
    pattern: U64
    limit: ClassVar[int] = MAX_ITEMS

    @property
    def padded(self) -> tuple[int, ...]:
        """Destination dimensions."""
        return tuple(b + d + a for b, d, a in zip(self.before, self.dims, self.after, strict=True))

    def check(self) -> None:
        check_itemsize(self.itemsize)

    def elements(self) -> int:
        return loops(*self.padded)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.src, self.dims, self.src_strides, self.itemsize, False)
        yield span(self.dst, self.padded, self.dst_strides, self.itemsize, True)

    def work(self) -> DmaWork:
        """Padding is written like data. Of two sides in DRAM, the one with more runs determines the use of bursts; in
        SRAM each run takes whole words."""
        return _copying(
            _shape(self.dst),
            self.dst_strides,
            _shape(self.src),
            self.src_strides,
            self.dims,
            self.itemsize,
            self.before,
            self.after,
        )

    def alike(self, works: dict[tuple[int, int, int], DmaWork]) -> None:
        """Copy the cached values of an equal copy at other addresses. ``works``: cache of such copies, to which this
        one is added."""
        key = _shape(self.dst), _shape(self.src), self.itemsize
        work = works.get(key)
        if work is None:
            work = works[key] = self.work()
        self._said = work

    def execute(self, memory: Memory, core: int) -> None:
        perform(self.calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        # The address of a source without elements is not checked, so it must not be used.
        return list(
            _placing(self, memory, core, None if 0 in self.dims else memory.at(core, self.src, self.src_strides))
        )


def _placing(copy: Copy, memory: Memory, core: int, src: Strided | None) -> Iterator[Call]:
    """Write the result of a copy from ``src`` to the destination of a core. ``src``: None without elements."""
    dst = memory.at(core, copy.dst, copy.dst_strides)
    if copy.before != _NONE or copy.after != _NONE:
        # Fills the whole destination including the inside: simpler than four strips, and priced by the padded size
        # anyway.
        yield _core.fill, (dst, copy.padded, copy.itemsize, copy.pattern)
    if src is not None:
        if copy.before != _NONE:
            inside = sum(b * s for b, s in zip(copy.before, copy.dst_strides, strict=True))
            dst = memory.at(core, copy.dst + inside, copy.dst_strides)
        yield _core.copy, (dst, src, copy.dims, copy.itemsize)


@instruction(0x17, "dma.fetch", Unit.DMA)
class Fetch(Copy):
    """A copy of features for a matrix unit with its own fetch unit; the last dimension has the channels of a pixel.

    Each pixel takes whole bursts in DRAM, padded after its last channel. Spatial padding is not written, because the
    unit creates it.
    """

    def check(self) -> None:
        check_itemsize(self.itemsize)
        _check_ways(self.dst, self.src)

    def work(self) -> DmaWork:
        pixels, run = prod(self.dims[:3]), self.dims[3] * self.itemsize
        return DmaWork(pixels * run, pixels, run, pixels * run, 0, features=True)


def _cores_of(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def _check_ways(dst: int, src: int) -> None:
    if not is_dram(src):
        raise ProgramError(f"src must be in DRAM, got {describe_address(src)}")
    _check_target(dst)


def _check_target(dst: int) -> None:
    if space_of(dst) != Space.SRAM:
        raise ProgramError(f"dst must be in SRAM, got {describe_address(dst)}")


@instruction(0x13, "dma.multicast", Unit.DMA)
class Multicast(Copy):
    """A copy from DRAM or L2 into the SRAM of several cores, at the same offset in each. ``cores``: bit c for core
    c."""

    cores: U64

    def targets(self, core: int) -> Sequence[int]:
        return _cores_of(self.cores)

    def check(self) -> None:
        check_itemsize(self.itemsize)
        if not self.cores:
            raise ProgramError("cores must name at least one core")
        # Another source in SRAM would be ambiguous, because each core has its own.
        if not is_outside(self.src):
            raise ProgramError(f"src must be in DRAM or L2, got {describe_address(self.src)}")
        _check_target(self.dst)

    def elements(self) -> int:
        return loops(len(self.targets(0)), *self.padded)

    def execute(self, memory: Memory, core: int) -> None:
        perform(self.calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        src = None if 0 in self.dims else memory.at(core, self.src, self.src_strides)
        return [call for target in self.targets(core) for call in _placing(self, memory, target, src)]


@instruction(0x14, "dma.expand", Unit.DMA)
class Expand(Instruction):
    """Decompress ``size`` bytes of DRAM to ``nbytes`` bytes of weights in SRAM.

    The stream has symbols of ``bits`` bits, see ``npusim.kernels._codec``. A damaged stream is a device fault.
    """

    dst: Address
    src: Address
    nbytes: U64
    size: U64
    bits: U8
    limit: ClassVar[int] = MAX_ITEMS

    @property
    def symbols(self) -> int:
        """Number of symbols in the compressed data."""
        return symbols_in(self.nbytes, self.bits)

    def check(self) -> None:
        symbols_in(self.nbytes, self.bits)
        if not self.nbytes or not self.size:
            raise ProgramError(f"must make bytes of bytes, got {self.nbytes} of {self.size}")
        _check_ways(self.dst, self.src)

    def elements(self) -> int:
        return self.symbols

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.src, (self.size,), (1,), 1, False)
        # No more than this is written, whatever the length of the stream.
        yield span(self.dst, (self.nbytes,), (1,), 1, True)

    def work(self) -> DmaWork:
        """The decoder processes symbols at its own rate."""
        place = offset_of(self.src) % PLACE_BYTES
        return expanding(self.nbytes, self.size, self.bits, place=place, constants=_is_constant(self.src))

    def execute(self, memory: Memory, core: int) -> None:
        for target in self.targets(core):
            out, stream = memory.at(target, self.dst), memory.at(core, self.src)
            wrong, there = _core.expand(out, stream, self.nbytes, self.size, self.bits)
            if wrong:
                raise ProgramError(
                    f"{self.mnemonic}: the stream of {self.size} bytes at {describe_address(self.src)} does not expand "
                    f"to {self.nbytes}: behind {there}, {wrong}"
                )


@instruction(0x15, "dma.expand_multicast", Unit.DMA)
class MulticastExpand(Expand):
    """As Expand, into the SRAM of several cores, at the same offset in each. ``cores``: bit c for core c."""

    cores: U64

    def targets(self, core: int) -> Sequence[int]:
        return _cores_of(self.cores)

    def check(self) -> None:
        if not self.cores:
            raise ProgramError("cores must name at least one core")
        Expand.check(self)

    def elements(self) -> int:
        return self.symbols * len(self.targets(0))


SYMBOL_BITS = (2, 4, 8)
"""Bits of the symbols of a stream: packed weights, and bytes."""

MULTICASTS = (Multicast, MulticastExpand)
"""Instructions that write to several cores; others write to the core that they were issued to."""


def symbols_in(nbytes: int, bits: int) -> int:
    """The number of symbols in ``nbytes`` bytes. Raises ProgramError for an invalid number of bits, because reports
    also process unverified programs."""
    if bits not in SYMBOL_BITS:
        raise ProgramError(f"bits must be one of {SYMBOL_BITS}, got {bits}")
    return nbytes * (8 // bits)


def expanding(nbytes: int, size: int, bits: int, *, place: int = 0, constants: bool = True) -> DmaWork:
    """The work of decompressing ``size`` bytes to ``nbytes`` bytes of weights of ``bits`` bits."""
    decoded = symbols_in(nbytes, bits)
    return DmaWork(nbytes, 1, size, size, 0, offset=place, constants=constants, decoded=decoded)


def expanded_bytes(stream: bytes) -> tuple[int, int]:
    """(compressed bytes, decompressed bytes) of all weights that a command stream decompresses, per core. The stream
    may be damaged."""
    read = made = 0
    with contextlib.suppress(ProgramError):
        for expand in instructions_of(stream, Expand):
            read += expand.size
            made += expand.nbytes
    return read, made


@instruction(0x16, "dma.exchange", Unit.DMA)
class Exchange(Copy):
    """A copy from the SRAM of core ``source`` into that of others, at the same offset in each. ``cores``: bit c for
    core c. Any core may execute it."""

    source: U8
    cores: U64

    def targets(self, core: int) -> Sequence[int]:
        return _cores_of(self.cores)

    def reads_of(self, core: int) -> int:
        return self.source

    def check(self) -> None:
        check_itemsize(self.itemsize)
        if not self.cores:
            raise ProgramError("cores must name at least one core")
        if self.cores >> self.source & 1:
            raise ProgramError(f"cores must not name core {self.source}, which is the source")
        for name, address in (("src", self.src), ("dst", self.dst)):
            if space_of(address) != Space.SRAM:
                raise ProgramError(f"{name} must be in SRAM, got {describe_address(address)}")

    def elements(self) -> int:
        return loops(len(self.targets(0)), *self.padded)

    def work(self) -> DmaWork:
        """The side with more pieces determines the use of the network."""
        return _exchanging(self.dst_strides, self.src_strides, self.dims, self.padded, self.itemsize)

    def execute(self, memory: Memory, core: int) -> None:
        perform(self.calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        src = None if 0 in self.dims else memory.at(self.source, self.src, self.src_strides)
        return [call for target in self.targets(core) for call in _placing(self, memory, target, src)]


@functools.lru_cache(1 << 12)
def _exchanging(
    dst_strides: tuple[int, ...],
    src_strides: tuple[int, ...],
    dims: tuple[int, ...],
    padded: tuple[int, ...],
    itemsize: int,
) -> DmaWork:
    source, target = walked_runs(dims, src_strides, itemsize), walked_runs(padded, dst_strides, itemsize)
    worse = max(source, target)
    walk = reorderable(padded, dst_strides, src_strides, itemsize)
    pieces, total = (worse.pieces if prod(padded) else 0), prod(padded) * itemsize
    return DmaWork(total, pieces, worse.nbytes, 0, 0, exchanged=True, walk=walk, itemsize=itemsize if walk else 1)


@instruction(0x11, "dma.fill", Unit.DMA)
class Fill(Instruction):
    """Set ``dims`` items to ``pattern`` (its low ``itemsize`` bytes)."""

    dst: Address
    dst_strides: Strides4
    dims: Dims4
    itemsize: U8
    pattern: U64
    limit: ClassVar[int] = MAX_ITEMS

    def check(self) -> None:
        check_itemsize(self.itemsize)

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.dst, self.dims, self.dst_strides, self.itemsize, True)

    def work(self) -> Work:
        total = prod(self.dims) * self.itemsize
        if not is_outside(self.dst):
            return DmaWork(total, 1, total, 0, 0)
        runs = walked_runs(self.dims, self.dst_strides, self.itemsize)
        place = _begins(self.dst, self.dst_strides, self.dims)
        near = total if is_l2(self.dst) else 0
        return DmaWork(total, runs.pieces, runs.nbytes, 0, total - near, runs.stride, place, l2_writes=near)

    def execute(self, memory: Memory, core: int) -> None:
        perform(self.calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        return ((_core.fill, (memory.at(core, self.dst, self.dst_strides), self.dims, self.itemsize, self.pattern)),)


@instruction(0x12, "dma.gather", Unit.DMA)
class Gather(Instruction):
    """dst[o, j, i] = data[o, index[j], i]. ``index`` is in SRAM; negative values count from the end of ``axis_size``.

    ``dims``: (outer, indices, inner items). An index out of range is a device fault.
    """

    dst: Address
    dst_strides: Strides3
    data: Address
    data_strides: Strides3
    index: Address
    index_stride: I64
    index_type: Type
    dims: Dims3
    axis_size: U32
    itemsize: U8
    limit: ClassVar[int] = MAX_ITEMS
    data_decides: ClassVar[bool] = True

    def check(self) -> None:
        check_itemsize(self.itemsize)
        check_index_type(self.index_type)

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        outer, count, inner = self.dims
        # The rows are only known with the index, so the bound is the whole axis; the kernel checks all indices against
        # axis_size before it moves data.
        yield span(self.data, (outer, self.axis_size, inner), self.data_strides, self.itemsize, False)
        yield span(self.index, (count,), (self.index_stride,), self.index_type.itemsize, False)
        yield span(self.dst, self.dims, self.dst_strides, self.itemsize, True)

    def work(self) -> Work:
        outer, count, inner = self.dims
        total = prod(self.dims) * self.itemsize
        runs = max(walked_runs((inner,), side[2:], self.itemsize) for side in (self.data_strides, self.dst_strides))
        reads, writes = (total if is_dram(self.data) else 0), (total if is_dram(self.dst) else 0)
        # One piece per index, also for adjacent rows: the cost must not depend on data.
        constants = not writes and _is_constant(self.data)
        near, far = (total if is_l2(self.data) else 0), (total if is_l2(self.dst) else 0)
        return DmaWork(
            total,
            outer * count * runs.pieces,
            runs.nbytes,
            reads,
            writes,
            constants=constants,
            l2_reads=near,
            l2_writes=far,
        )

    def execute(self, memory: Memory, core: int) -> None:
        dst = memory.at(core, self.dst, self.dst_strides)
        data = memory.at(core, self.data, self.data_strides)
        index = memory.at(core, self.index, (0, self.index_stride, 0))
        bad = _core.gather(dst, data, index, self.index_type, self.dims, self.axis_size, self.itemsize)
        if bad >= 0:
            self.refuse_index(index, (0, self.index_stride, 0), bad)
