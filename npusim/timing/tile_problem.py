"""A matrix operator as the tile search sees it, and the bytes that its tiles take."""

from __future__ import annotations

import enum
from math import gcd
from typing import NamedTuple

from npusim.dtypes import DType
from npusim.isa.matrix_types import CHANNEL_BLOCK, packed_bytes, rate_type
from npusim.timing.tile_costs import EXPAND
from npusim.units import ceil_div


class Home(enum.IntEnum):
    """How a tile accesses the value that it is a part of."""

    DRAM = 0
    COPIED = 1  # the value is in SRAM, the tile in its own slot beside it
    DIRECT = 2  # the instruction works on the value in place


class EpilogueCosts(NamedTuple):
    """The costs of the chain after a matrix operator.

    ``element_bytes``: SRAM bytes per element of a tile for operands and results. ``between``: further bytes per element
    of a tile, or of a ``piece`` of this many elements. ``begin``: picoseconds to start on a tile or piece. ``kilo``:
    picoseconds per 1024 elements. ``operands``: item sizes of the operands in DRAM. ``banks``: picoseconds of all SRAM
    banks per 1024 elements. ``result``: item size of the result that is stored instead of the sums, 0 without a chain.
    """

    element_bytes: int = 0
    between: int = 0
    piece: int = 1
    begin: int = 0
    kilo: int = 0
    operands: tuple[int, ...] = ()
    banks: int = 0
    result: int = 0


class MatrixProblem(NamedTuple):
    """A convolution (or a matmul: height 1, width M, kernel 1x1) as the tile search sees it.

    ``ic``, ``oc``: channels per group. ``in_place``: the accumulators are the output tile. ``main``: the sums go to a
    slot, whether or not the result of the chain does. ``held``: copies of all weights that stay in SRAM because tiles
    of other operators alternate, 0 if they do not stay. ``pinned``: they stay from one inference to the next, at their
    own address. ``beside``: number of cores with such a problem at the same time. ``x_serves``, ``w_serves``: the
    number of these that one load of an operand serves. ``w_bits``: of a packed weight, else 0. ``w_block``: weights of
    a channel that share a scale, 0 without scales. ``w_zeros``: whether there are also zero points. ``w_rows``,
    ``w_cols``: weights are padded to multiples of this many summands and channels. ``sum_bytes``: per accumulator.
    ``parameters``: bytes of bias, scale and shift per channel. ``fetched``: those of them that are constants, which
    load with the weights. ``w_kilo``: approximate bytes in DRAM per 1024 bytes of weights, fewer if they are
    compressed. ``x_turned``, ``out_turned``: transfers of tiles transpose, so that each element is a run in SRAM.
    ``padded``: rows and columns of the input, and of the padding before them, if much of the tiles is padding.
    ``ic_unit``: parts of a reduction have multiples of this many input channels. ``both_ways``: cuts along columns are
    as good as cuts along rows.
    """

    images: int
    oh: int
    ow: int
    groups: int
    oc: int
    ic: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    depthwise: bool
    shared_weights: bool
    x_type: DType
    w_type: DType
    out_type: DType
    epilogue: EpilogueCosts
    in_place: bool
    x_home: Home = Home.DRAM
    out_home: Home = Home.DRAM
    main: bool = True
    held: int = 0
    pinned: bool = False
    beside: int = 1
    x_serves: int = 1
    w_serves: int = 1
    w_bits: int = 0
    w_block: int = 0
    w_zeros: bool = False
    w_rows: int = 1
    w_cols: int = 1
    sum_bytes: int = 4
    parameters: int = 8
    fetched: int = 0
    w_kilo: int = 1024
    x_turned: bool = False
    out_turned: bool = False
    padded: tuple[int, int, int, int] | None = None
    ic_unit: int = CHANNEL_BLOCK
    both_ways: bool = False

    @property
    def x_way(self) -> str:
        """How inputs are loaded: a key of the transfer prices."""
        return _way("read" if self.x_home is Home.DRAM else "copy", self.x_type.itemsize * self.x_turned)

    @property
    def out_way(self) -> str:
        """How results are stored: a key of the transfer prices."""
        return _way("write" if self.out_home is Home.DRAM else "copy", self.stored_bytes * self.out_turned)

    @property
    def w_way(self) -> str:
        """How weights are loaded: a key of the transfer prices."""
        return f"{EXPAND}{self.w_bits or 8}" if self.w_kilo < 1024 else "constants"

    @property
    def stored_bytes(self) -> int:
        """Bytes per element of the result. A chain may convert floats to bytes, and then the floats are never
        stored."""
        return self.epilogue.result or self.out_type.itemsize

    @property
    def w_width(self) -> int:
        """Bits of a weight as in ``MatrixWork``: 0 if they are as wide as the type of the rate."""
        narrower = self.w_type.itemsize < rate_type(self.x_type, self.w_type).itemsize
        return self.w_bits or (8 * self.w_type.itemsize if narrower else 0)


def _way(way: str, word: int) -> str:
    return f"{way}{word}" if word else way


def ic_unit(block: int, dtype: DType) -> int:
    """The unit, in input channels, of parts of a reduction over blocks of ``block`` channels, each of which is summed
    separately."""
    if not dtype.is_float or block % CHANNEL_BLOCK == 0 or CHANNEL_BLOCK % block == 0:
        return CHANNEL_BLOCK
    return ceil_div(CHANNEL_BLOCK, block) * block


class Tiling(NamedTuple):
    """The sizes of one tile: groups, output rows, columns and channels, input channels.

    ``weights_outer``: which loop is outermost. ``in_pieces``: the chain processes the tile in pieces. ``kh``, ``kw``:
    kernel rows and columns of one instruction, 0 for all of them.
    """

    groups: int
    oh: int
    ow: int
    oc: int
    ic: int
    weights_outer: bool
    in_pieces: bool = False
    kh: int = 0
    kw: int = 0


class Footprint(NamedTuple):
    """Bytes of one copy of each slot."""

    x: int
    w: int
    parameters: int
    acc: int
    out: int


def footprint(problem: MatrixProblem, tile: Tiling) -> Footprint:
    """The bytes that a tile needs in SRAM and accumulators."""
    kernel = taps(problem, tile)
    rows, cols, *_ = input_window(problem, tile, (tile.oh, tile.ow), kernel)
    channels = tile.groups * tile.oc
    pixels = tile.oh * tile.ow
    depth = kernel[0] * kernel[1] * (1 if problem.depthwise else tile.ic)
    return Footprint(
        rows * cols * tile.groups * tile.ic * problem.x_type.itemsize,
        weight_bytes(problem, depth, tile.groups, tile.oc),
        channels * problem.parameters,
        pixels * channels * problem.sum_bytes,
        pixels * channels * problem.out_type.itemsize,
    )


def weight_bytes(problem: MatrixProblem, k: int, groups: int, channels: int) -> int:
    """Bytes of a tile's weights, ``k`` per channel, with their scales and zero points, for any position of the
    blocks."""
    if problem.depthwise:  # the channels of all groups are contiguous
        groups, channels = 1, groups * channels
    rows = min(ceil_div(k - 1, problem.w_block) + 1, k) if problem.w_block else 0
    filled = k * channels
    if not problem.depthwise:
        filled = ceil_div(k, problem.w_rows) * problem.w_rows * ceil_div(channels, problem.w_cols) * problem.w_cols
    each = packed_bytes(filled, problem.w_type, problem.w_bits)
    return groups * (each + rows * channels * (5 if problem.w_zeros else 4))


def taps(problem: MatrixProblem, tile: Tiling) -> tuple[int, int]:
    """Kernel rows and columns of one instruction."""
    return tile.kh or problem.kh, tile.kw or problem.kw


class InputWindow(NamedTuple):
    """Rows and columns of a slot, padding included. ``row_step``, ``col_step``: the input rows and columns that each
    advances."""

    rows: int
    cols: int
    row_step: int
    col_step: int


def input_window(problem: MatrixProblem, tile: Tiling, out: tuple[int, int], kernel: tuple[int, int]) -> InputWindow:
    """The input that ``kernel`` rows and columns read for ``out`` rows and columns of a tile's output."""
    p = problem
    row_step = _read_step(out[0], p.sh, kernel[0], p.kh, p.dh)
    col_step = _read_step(out[1], p.sw, kernel[1], p.kw, p.dw)
    if p.x_turned or col_step * tile.groups * tile.ic * p.x_type.itemsize < LEAST_RUN:
        col_step = 1
    rows, cols = (out[0] - 1) * p.sh + (kernel[0] - 1) * p.dh, (out[1] - 1) * p.sw + (kernel[1] - 1) * p.dw
    return InputWindow(rows // row_step + 1, cols // col_step + 1, row_step, col_step)


def _read_step(outputs: int, stride: int, taps: int, kernel: int, dilation: int) -> int:
    """The distance between the input positions along an axis that are read; all outputs and taps skip those between.

    ``taps``: those of the ``kernel`` in one instruction. A whole undilated kernel reads nearly all positions.
    """
    if dilation == 1 and taps == kernel:
        return 1
    return max(1, gcd(stride if outputs > 1 else 0, dilation if taps > 1 else 0))


LEAST_RUN = 64
"""Minimum distance in bytes between read pixels at which the pixels between them are not loaded. Within a burst they
are loaded anyway."""


def chain_time(problem: MatrixProblem, tile: Tiling) -> int:
    """Picoseconds of the chain on a tile."""
    epilogue, elements = problem.epilogue, tile.oh * tile.ow * tile.groups * tile.oc
    pieces = ceil_div(elements, epilogue.piece) if tile.in_pieces else 1
    return pieces * epilogue.begin + elements * epilogue.kilo // 1024
