"""Grouped convolutions as block-diagonal ones: several groups become one, with zeros between their weights.

A matrix unit may compute a few wide groups faster than many narrow ones, although the zeros take its time. How many
groups become one is chosen by the search for tiles, for the convolution alone. Its values are taken to be in SRAM if
they fit and are not inputs or outputs of the graph.
"""

from __future__ import annotations

from math import inf

import numpy as np

from npusim.compiler.grouping.groups import ELEMENTWISE
from npusim.compiler.passes.rewrite import Rewriter
from npusim.graph import Graph, Op, Tensor
from npusim.hw.config import Config
from npusim.hw.memory import dram_model
from npusim.isa.matrix import accumulator_type, rate_type
from npusim.ops.budget import Budget
from npusim.timing.tile import EpilogueCosts, Home, MatrixProblem, Tiling, footprint, tilings
from npusim.timing.tile_costs import matrix_prices


def fill_groups(graph: Graph, config: Config, budget: Budget) -> Graph:
    """Join groups of convolutions with constant weights where that is faster on a device.

    Raises CompileError if the zeros exceed the budget.
    """
    if config.matrix is None or not any(map(_is_grouped, graph.ops)):
        return graph
    ends: set[Tensor] = {*graph.inputs, *graph.outputs}
    for op in reversed(graph.ops):  # what elementwise operators make of a value has its place
        if op.kind in ELEMENTWISE and op.output in ends:
            ends.update(tensor for tensor in op.inputs if tensor is not None)

    def homes(op: Op) -> tuple[Home, Home]:
        most = config.sram.bytes // _SHARE
        x, out = (Home.DRAM if t in ends or t.nbytes > most else Home.DIRECT for t in (op.input(0), op.output))
        return x, out

    filled = Rewriter(graph, budget).run(
        lambda rewriter, op: _is_grouped(op) and _fill(rewriter, op, homes(op), config)
    )
    filled.cache_rows = graph.cache_rows
    return filled


_SHARE = 2
"""A value that takes more than one in so many parts of the scratchpad is not expected to fit there."""


def _is_grouped(op: Op) -> bool:
    grouped = op.kind == "conv" and op.attrs["groups"] > 1 and op.input(1).data is not None
    return grouped and not op.attrs["blocks"] and op.output.size > 0


def _phases(op: Op) -> tuple[int, ...]:
    """The phases of a convolution that has to skip taps; () for depthwise ones of integers. To those a tap of zeros
    adds nothing, and the unit's way to compute them has no phases."""
    phases: tuple[int, ...] = op.attrs["phases"]
    return () if op.input(0).dtype.is_integer and op.input(1).shape[1] == 1 else phases


def _fill(rewriter: Rewriter, op: Op, homes: tuple[Home, Home], config: Config) -> bool:
    count = _joined(op, homes, config)
    attrs = {**op.attrs, "phases": _phases(op)}
    if count == 1:
        if attrs != op.attrs:
            rewriter.substitute(op.output, rewriter.add(op.name, op.kind, op.inputs, attrs))
        return attrs != op.attrs
    w, groups = op.input(1), op.attrs["groups"]
    oc, ic, *kernel = w.shape
    assert w.data is not None
    rewriter.budget.take_bytes(w.nbytes * (count - 1), op.name)
    # A zero is what adds nothing: the zero point.
    filled = np.full((groups // count, count, oc // groups, count, ic, *kernel), op.attrs["w_zero"], w.data.dtype)
    each = np.arange(count)
    filled[:, each, :, each] = np.moveaxis(w.data.reshape(groups // count, count, oc // groups, ic, *kernel), 1, 0)
    weights = rewriter.const(f"{w.name}.filled", filled.reshape(oc, count * ic, *kernel), w.dtype)
    attrs |= {"groups": groups // count, "blocks": (ic, oc // groups)}
    inputs = op.input(0), weights, *op.inputs[2:]
    rewriter.substitute(op.output, rewriter.add(op.name, op.kind, inputs, attrs))
    return True


def _joined(op: Op, homes: tuple[Home, Home], config: Config) -> int:
    """How many groups become one: the number of least time, and of those the smallest."""
    groups = op.attrs["groups"]
    problems = {count: _problem(op, homes, config, count) for count in range(1, groups + 1) if groups % count == 0}
    best, found = 1, _latency(problems[1], config)
    # The most promising first: most of the others cannot be faster than those, whatever their tiles.
    for bound, count in sorted((_bound(problems[count], config), count) for count in problems if count > 1):
        if bound >= found:
            break
        time = _latency(problems[count], config)
        if (time, count) < (found, best):
            best, found = count, time
    plain = problems[1]
    if plain.x_turned and plain.out_turned and _is_product(op):
        # Without zeros between its groups it may be computed as a product, which transposes no image.
        return 1 if _latency(_as_product(plain), config) <= found else best
    return best


def _is_product(op: Op) -> bool:
    """Whether each group of a convolution may become a product, and blocks of zeros may not."""
    attrs = op.attrs
    single = (*op.input(1).shape[2:], *attrs["stride"]) == (1, 1, 1, 1) and not any(attrs["pads"])
    return single and op.input(0).dtype.is_float and op.input(1).shape[1] > 1 and op.optional(3) is None


def _as_product(problem: MatrixProblem) -> MatrixProblem:
    """The products of the weights of each group and each image."""
    p = problem
    return p._replace(
        images=p.images * p.groups, oh=1, ow=p.oc, groups=1, oc=p.oh * p.ow, shared_weights=False, x_turned=False,
        out_turned=False, x_type=p.w_type, w_type=p.x_type,
    )  # fmt: skip


def _latency(problem: MatrixProblem, config: Config) -> float:
    """Picoseconds of a problem alone on the device, and a part of those of the unit; infinite where no tile fits."""
    known = tilings(problem, config)
    tile = known.choose(config.sram.bytes)
    # Of equal estimates the one with the least arithmetic is the fastest: what few tiles load and store hides little.
    return inf if tile is None else known.latency(tile) + known.computing(tile) / (_SHOWN * config.cores)


_SHOWN = 4
"""One part in so many of the arithmetic is taken to show."""


def _bound(problem: MatrixProblem, config: Config) -> float:
    """Picoseconds that no tiling can be below by much: of the unit for one large tile, or of all bytes."""
    p = problem
    prices = matrix_prices(
        config, rate_type(p.x_type, p.w_type), p.kh, p.kw, p.depthwise, p.out_type.itemsize, p.sum_bytes, p.w_width
    )
    sizes = (1, p.oh, p.ow, p.groups * p.oc, p.groups) if p.depthwise else (p.groups, p.oh, p.ow, p.oc, p.ic)
    size = footprint(p, Tiling(p.groups, p.oh, p.ow, p.oc, p.ic, False))
    ends = size.x * (p.x_home is Home.DRAM) + size.out * (p.out_home is Home.DRAM)
    moved = p.images * ends + size.w
    return max(p.images * prices[sizes] / config.cores, moved / dram_model(config).bandwidth * 1e12)


def _problem(op: Op, homes: tuple[Home, Home], config: Config, count: int) -> MatrixProblem:
    """The convolution with ``count`` groups as one; ``homes``: of its input and its output."""
    attrs, x, w = op.attrs, op.input(0), op.input(1)
    oc, ic, kh, kw = w.shape
    n, *image = op.output.shape
    oh, ow = image[:2] if attrs["layout"] == "NHWC" else image[1:]
    (sh, sw), (dh, dw), groups = attrs["stride"], attrs["dilation"], attrs["groups"] // count
    depthwise = ic * count == 1 and not _phases(op)
    turned = attrs["layout"] == "NCHW"
    if (kh, kw, sh, sw) == (1, 1, 1, 1) and not any(attrs["pads"]) and not depthwise:
        # The lowering takes all pixels as one row, in NCHW those of an image.
        n, oh, ow = (n, 1, oh * ow) if turned else (1, 1, n * oh * ow)
    sums = accumulator_type(x.dtype, w.dtype, wide=attrs["wide"], scaled=op.optional(3) is not None)
    matrix = config.matrix
    rows, cols = (matrix.rows, matrix.cols) if matrix and matrix.weight_tiles else (1, 1)
    # Results of integers are taken to be as wide as the pixels.
    return MatrixProblem(
        n, oh, ow, groups, oc // groups, ic * count, kh, kw, sh, sw, dh, dw, depthwise, True, x.dtype,
        w.dtype, x.dtype, EpilogueCosts(), False, *homes, homes[1] is Home.DRAM, w_bits=attrs["w_bits"], w_rows=rows,
        w_cols=cols, sum_bytes=sums.itemsize, x_turned=turned and homes[0] is Home.DRAM and oh * ow > 1,
        out_turned=turned and homes[1] is Home.DRAM and oh * ow > 1,
    )  # fmt: skip
