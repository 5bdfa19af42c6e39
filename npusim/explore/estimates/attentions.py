"""Fused attention on many designs: the work of each block size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from npusim.compiler.buffers import Buffer
from npusim.compiler.lower.attention import AttentionLowering
from npusim.compiler.lower.matmul import MatMulLowering
from npusim.errors import CompileError
from npusim.explore.estimates.tiles import Case, ChainWorks
from npusim.units import ceil_div
from npusim.work import DmaWork, VectorWork


@dataclass(frozen=True)
class BlockPart:
    """A part of a block: a matrix ``product``, or only work of the vector unit.

    ``elements``: of its result. ``slots``: bytes of the operands of vector work.
    """

    elements: int
    product: Case | None
    chain: ChainWorks
    slots: int = 0


@dataclass(frozen=True)
class RowBlocks:
    """An attention in blocks.

    ``count``, ``of_image``: blocks in all, and per image. ``windows``: bytes of the values between parts. ``far``,
    ``near``: (transfer, number of times) to and from DRAM or L2, and within SRAM. ``in_l2``: bytes of ``far`` by the
    bit of their buffer, 0 for those that are never in the L2.
    """

    count: int
    of_image: int
    windows: int
    parts: tuple[BlockPart, ...]
    far: tuple[tuple[DmaWork, int], ...]
    near: tuple[tuple[DmaWork, int], ...]
    in_l2: tuple[tuple[int, int], ...]


def blocks_of(lowering: AttentionLowering, bits: Mapping[Buffer, int]) -> tuple[RowBlocks, ...]:
    """All block sizes of an attention, the largest first. ``bits``: of buffers whose memory is chosen. Raises
    CompileError if no instruction can compute the smallest."""
    found = []
    for rows in (heights := list(lowering.heights())):
        try:
            found.append(_blocks(lowering, rows, bits))
        except CompileError:
            if rows == heights[-1]:
                raise
    return tuple(found)


def _blocks(lowering: AttentionLowering, rows: int, bits: Mapping[Buffer, int]) -> RowBlocks:
    windows, parts, works = lowering.asked(rows)
    made = []
    for part, lowered, work in zip(lowering.group.parts, parts, works, strict=True):
        elements = rows * part.outputs[0].shape[-1]
        if isinstance(lowered, MatMulLowering):
            case = Case.of(lowered)
            made.append(BlockPart(elements, case, case.chain))
        elif isinstance(work, VectorWork):
            made.append(BlockPart(elements, None, ChainWorks((work,), (work,))))
        else:
            assert lowered is not None
            made.append(BlockPart(elements, None, ChainWorks.of(lowered), work))
    moved = list(lowering.transfers(parts, rows))
    # Products use left operands and results in place.
    direct = {moved[0][0].buffer, moved[1][0].buffer}
    far = tuple((work, times) for view, times, work in moved if not view.buffer.on_chip)
    bytes_of: Counter[int] = Counter()
    for view, times, transfer in moved:
        bytes_of[bits.get(view.buffer, 0)] += 0 if view.buffer.on_chip else times * transfer.bytes
    near = tuple((work, times) for view, times, work in moved if view.buffer.on_chip and view.buffer not in direct)
    count = lowering.blocks(rows)
    return RowBlocks(count, ceil_div(count, lowering.images), windows, tuple(made), far, near, tuple(bytes_of.items()))
