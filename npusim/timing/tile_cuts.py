"""The tiles that the search tries: cuts along channels, kernel, rows and columns."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from npusim.hw.config import Config
from npusim.isa.matrix_types import CHANNEL_BLOCK
from npusim.timing.tile_problem import MatrixProblem
from npusim.units import ceil_div


def channel_cuts(problem: MatrixProblem, config: Config, *, whole: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (groups, output channels, input channels) of a tile, all at once first."""
    unit = config.matrix.cols if config.matrix else 1
    if problem.depthwise:
        for count in _halvings(problem.groups, 1):
            yield count, problem.oc, problem.ic
        return
    # Several groups share a tile only with all of their channels, because parts of groups are not contiguous.
    for groups in _halvings(problem.groups, 2) if problem.groups > 1 else ():
        yield groups, problem.oc, problem.ic
    # Output channels by columns of the array, so that no part of it idles. Input channels by blocks, because sums may
    # only be cut there (ADR 0007).
    if whole:
        # A group of kernels starts when its own weights have arrived, and its results need not wait for the next group.
        yield 1, min(unit, problem.oc), problem.ic
        return
    for oc in _halvings(problem.oc, 1, unit):
        for ic in _halvings(problem.ic, problem.ic_unit, problem.ic_unit):
            yield 1, oc, ic


def can_cut_taps(problem: MatrixProblem) -> bool:
    """Whether one instruction may process a part of the kernel."""
    # Scales per block of channels are laid out for the whole kernel, and held weights for whole sums.
    scaled = 0 < problem.w_block < problem.ic
    return problem.kh * problem.kw > 1 and not problem.held and not scaled


def tap_cuts(problem: MatrixProblem, config: Config) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (groups, output channels, input channels, kernel rows, kernel columns) of tiles with a part of the
    kernel."""
    kernels = [(rows, problem.kw) for rows in _halvings(problem.kh, 1)[1:]]
    kernels += [(1, cols) for cols in _halvings(problem.kw, 1)[1:]]
    for groups, oc, ic in channel_cuts(problem, config, whole=False):
        # Floats are summed in one order: for each block of channels all taps (ADR 0007).
        if not problem.x_type.is_float or problem.depthwise or ic <= CHANNEL_BLOCK:
            yield from ((groups, oc, ic, *kernel) for kernel in kernels)


@functools.lru_cache(maxsize=1024)
def _halvings(full: int, least: int, multiple: int = 1) -> tuple[int, ...]:
    """``full``, then halves rounded up to a multiple while that is smaller, down to ``least``."""
    sizes = [full]
    while sizes[-1] > least:
        half = ceil_div(sizes[-1], 2)
        rounded = max(least, ceil_div(half, multiple) * multiple if half > multiple else half)
        if rounded >= sizes[-1]:
            break
        sizes.append(rounded)
    return tuple(sizes)


@functools.lru_cache(maxsize=1024)
def spatial_cuts(rows: int, columns: int, *, whole: bool, both_ways: bool) -> tuple[tuple[int, int], ...]:
    """The (rows, columns) of a tile, in the order in which they are tried."""
    if whole:
        return ((rows, columns),)
    # A part of a row has shorter runs than whole rows, even shorter if rows of one channel are innermost, which
    # estimates ignore.
    parts = [(1, ow) for ow in _halvings(columns, 1) if ow < columns]
    if both_ways:
        parts = [(rows, ow) for ow in _halvings(columns, 1)[1:]] + parts * (rows > 1)
    return (*((oh, columns) for oh in _halvings(rows, 1)), *parts)
