"""Fused attention on many designs: what is asked of a device by each size of blocks."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.compiler.lower.attention import AttentionLowering
from npusim.compiler.lower.matmul import MatMulLowering
from npusim.errors import CompileError
from npusim.explore.estimates.tiles import Case, ChainWorks
from npusim.units import ceil_div
from npusim.work import DmaWork, VectorWork


@dataclass(frozen=True)
class BlockPart:
    """A part of a block: a ``product``, or work of the vector unit alone, on so many ``elements`` of its result.

    ``slots``: bytes of the operands of vector work.
    """

    elements: int
    product: Case | None
    chain: ChainWorks
    slots: int = 0


@dataclass(frozen=True)
class RowBlocks:
    """An attention in blocks: how many there are, in all and of an image; bytes of the values between parts; transfers
    with DRAM or L2, and within SRAM, and how often each is done."""

    count: int
    of_image: int
    windows: int
    parts: tuple[BlockPart, ...]
    far: tuple[tuple[DmaWork, int], ...]
    near: tuple[tuple[DmaWork, int], ...]


def blocks_of(lowering: AttentionLowering) -> tuple[RowBlocks, ...]:
    """The blocks of which an attention may be made, the largest first. Raises CompileError if no instruction can
    compute the smallest."""
    found = []
    for rows in (heights := list(lowering.heights())):
        try:
            found.append(_blocks(lowering, rows))
        except CompileError:
            if rows == heights[-1]:
                raise
    return tuple(found)


def _blocks(lowering: AttentionLowering, rows: int) -> RowBlocks:
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
    # Products work on left operands and results where they are.
    direct = {moved[0][0].buffer, moved[1][0].buffer}
    far = tuple((work, times) for view, times, work in moved if not view.buffer.on_chip)
    near = tuple((work, times) for view, times, work in moved if view.buffer.on_chip and view.buffer not in direct)
    count = lowering.blocks(rows)
    return RowBlocks(count, ceil_div(count, lowering.images), windows, tuple(made), far, near)
