"""Weights that a matrix instruction does not multiply: those outside diagonal blocks, and taps that a phase of a
transposed convolution does not have. See :class:`npusim.isa.matrix_extras.Extras`."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from npusim import _core
from npusim._core import Strided
from npusim.isa.matrix_extras import Extras
from npusim.units import ceil_div


class Run(NamedTuple):
    """Consecutive equal blocks along the diagonal, limited to a tile: their number, the input and output channels of
    each, and the channels of the tile at which the first one starts."""

    blocks: int
    ic: int
    oc: int
    at_ic: int
    at_oc: int


def runs(extras: Extras, ic: int, oc: int) -> list[Run]:
    """The blocks with weights in a tile of ``ic`` and ``oc`` channels. The first and the last may be partial."""
    wide, high = extras.block_ic, extras.block_oc
    starts = extras.first_ic, extras.first_oc
    ends = starts[0] + ic, starts[1] + oc
    low = max(starts[0] // wide, starts[1] // high)
    end = min(ceil_div(ends[0], wide), ceil_div(ends[1], high))
    whole = max(ceil_div(starts[0], wide), ceil_div(starts[1], high)), min(ends[0] // wide, ends[1] // high)
    if whole[0] >= whole[1]:
        parts = [(block, block + 1) for block in range(low, end)]
    else:
        parts = [(low, whole[0]), whole, (whole[1], end)]
    found = []
    for first, last in parts:
        if first < last:
            low_ic, end_ic = max(first * wide, starts[0]), min((first + 1) * wide, ends[0])
            low_oc, end_oc = max(first * high, starts[1]), min((first + 1) * high, ends[1])
            at = low_ic - starts[0], low_oc - starts[1]
            found.append(Run(last - first, end_ic - low_ic, end_oc - low_oc, *at))
    return found


class Phase(NamedTuple):
    """Output channels of a tile with the same kernel rows and columns: the first channel and their number, rows and
    columns of the kernel, and the rows and columns before them that are not multiplied."""

    at_oc: int
    oc: int
    kh: int
    kw: int
    down: int
    right: int


def phases(extras: Extras, oc: int, kernel: tuple[int, int]) -> list[Phase]:
    """The phases of a tile of ``oc`` output channels. Neighbours with equal kernels are merged. ``kernel``: rows and
    columns of the kernel of the tile."""
    found = list[Phase]()
    at = 0
    while at < oc:
        number, inside = divmod(extras.first_oc + at, extras.phase_oc)
        row, col = divmod(number, extras.phase_cols)
        down, right = int(row >= extras.full_rows), int(col >= extras.full_cols)
        # A kernel of one row may lack both its first and its last row, which are the same.
        kh, kw = kernel[0] - down - (row < extras.low_rows), kernel[1] - right - (col < extras.low_cols)
        own = max(0, kh), max(0, kw), down, right
        count = min(extras.phase_oc - inside, oc - at)
        if found and found[-1][2:] == own:
            found[-1] = found[-1]._replace(oc=found[-1].oc + count)
        else:
            found.append(Phase(at, count, *own))
        at += count
    return found


class WeightShape(NamedTuple):
    """The weights of a tile, [batch item][K][oc]. ``block``: input channels per block of K."""

    batch: int
    ic: int
    oc: int
    kh: int
    kw: int
    itemsize: int
    block: int


def phase_weights(w: Strided, tile: WeightShape, phase: Phase) -> Strided:
    """The weights of a phase, [batch item][K][oc], from those of the tile; one item if all share them."""
    size, (stride,) = tile.itemsize, w.strides
    items, nbytes = tile.batch if stride else 1, phase.kh * phase.kw * tile.ic * phase.oc * size
    made = np.empty(items * nbytes, np.uint8)
    for index, low in product(range(items), range(0, tile.ic, tile.block)):
        count = min(tile.block, tile.ic - low)
        taps = low * tile.kh * tile.kw + (phase.down * tile.kw + phase.right) * count
        columns, rows = count * tile.oc * size, count * phase.oc * size
        _core.copy(
            Strided(
                made,
                index * nbytes + low * phase.kh * phase.kw * phase.oc * size,
                (phase.kw * rows, rows, phase.oc * size, size),
            ),
            Strided(
                w.memory,
                w.offset + index * stride + (taps * tile.oc + phase.at_oc) * size,
                (tile.kw * columns, columns, tile.oc * size, size),
            ),
            (phase.kh, phase.kw, count, phase.oc),
            size,
        )
    return Strided(made, 0, (nbytes if stride else 0,))


def block_weights(w: Strided, tile: WeightShape, index: int, run: Run) -> Strided:
    """The weights of a run of blocks for one batch item, [block][K][oc], from those of the tile."""
    size, taps, (stride,) = tile.itemsize, tile.kh * tile.kw, w.strides
    nbytes = taps * run.ic * run.oc * size
    made = np.empty(run.blocks * nbytes, np.uint8)
    for number in range(run.blocks):
        first = run.at_ic + number * run.ic
        column = run.at_oc + number * run.oc
        # Up to the next end of a channel block, of the tile or of this block.
        at = first
        while at < first + run.ic:
            outer, inner = at - at % tile.block, at - (at - first) % tile.block
            wide = min(tile.block, tile.ic - outer)
            narrow = min(tile.block, first + run.ic - inner)
            count = min(outer + wide, inner + narrow) - at
            source = (outer * taps + at - outer) * tile.oc + column
            target = ((inner - first) * taps + at - inner) * run.oc
            rows, columns = narrow * run.oc * size, wide * tile.oc * size
            _core.copy(
                Strided(made, number * nbytes + target * size, (0, rows, run.oc * size, size)),
                Strided(w.memory, w.offset + index * stride + source * size, (0, columns, tile.oc * size, size)),
                (1, taps, count, run.oc),
                size,
            )
            at += count
    return Strided(made, 0, (nbytes,))
