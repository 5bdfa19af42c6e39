"""Turn grouped convolutions into block-diagonal ones: several groups become one, with zeros between their weights.

A matrix unit may compute a few wide groups faster than many narrow ones, although it also multiplies the zeros. The
tile search chooses how many groups to join, for the convolution alone. Its values are assumed to be in SRAM if they fit
and are not inputs or outputs of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Set
from math import inf
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from npusim.compiler.grouping.groups import ELEMENTWISE
from npusim.compiler.passes.rewrite import Rewriter
from npusim.graph import Graph, Op, Tensor
from npusim.hw.config import Config
from npusim.hw.memory import dram_model
from npusim.isa.matrix_types import accumulator_type, are_interchangeable, rate_type
from npusim.ops.budget import Budget
from npusim.timing.tile import tilings
from npusim.timing.tile_costs import MatrixPrices, matrix_prices
from npusim.timing.tile_problem import EpilogueCosts, Home, MatrixProblem, Tiling, footprint


def fill_groups(graph: Graph, config: Config, budget: Budget) -> Graph:
    """Join groups of convolutions with constant weights where that is faster on the device.

    Raises CompileError if the zeros exceed the budget.
    """
    if config.matrix is None or not any(map(is_grouped, graph.ops)):
        return graph
    ends = ends_of(graph)
    filled = Rewriter(graph, budget).run(
        lambda rewriter, op: is_grouped(op) and _fill(rewriter, op, homes_of(op, ends, config.sram.bytes), config)
    )
    filled.cache_rows = graph.cache_rows
    return filled


_SHARE = 2
"""A value larger than 1/2 of the scratchpad is not expected to fit there."""


def ends_of(graph: Graph) -> set[Tensor]:
    """Inputs and outputs of the graph, and values from which an output is computed by elementwise operators alone."""
    ends: set[Tensor] = {*graph.inputs, *graph.outputs}
    for op in reversed(graph.ops):
        if op.kind in ELEMENTWISE and op.output in ends:
            ends.update(tensor for tensor in op.inputs if tensor is not None)
    return ends


def homes_of(op: Op, ends: Set[Tensor], sram_bytes: int) -> tuple[Home, Home]:
    """The memories that are assumed to hold the input and the output of a convolution."""
    most = sram_bytes // _SHARE
    x, out = (Home.DRAM if t in ends or t.nbytes > most else Home.DIRECT for t in (op.input(0), op.output))
    return x, out


def is_grouped(op: Op) -> bool:
    """Whether an operator is a grouped convolution with constant weights that has not been joined yet."""
    grouped = op.kind == "conv" and op.attrs["groups"] > 1 and op.input(1).data is not None
    return grouped and not op.attrs["blocks"] and op.output.size > 0


def _phases(op: Op) -> tuple[int, ...]:
    """The phases of a convolution that must skip taps; () for depthwise integer convolutions.

    For those, a tap of zeros adds nothing, and the depthwise form of the unit has no phases.
    """
    phases: tuple[int, ...] = op.attrs["phases"]
    return () if op.input(0).dtype.is_integer and op.input(1).shape[1] == 1 else phases


def _fill(rewriter: Rewriter, op: Op, homes: tuple[Home, Home], config: Config) -> bool:
    count = _joined(op, homes, config)
    attrs = joined_attrs(op, count)
    if count == 1:
        if attrs != op.attrs:
            rewriter.substitute(op.output, rewriter.add(op.name, op.kind, op.inputs, attrs))
        return attrs != op.attrs
    w, groups = op.input(1), op.attrs["groups"]
    oc, ic, *kernel = w.shape
    assert w.data is not None
    rewriter.budget.take_bytes(w.nbytes * (count - 1), op.name)
    # The zero point is the value that adds nothing.
    filled = np.full((groups // count, count, oc // groups, count, ic, *kernel), op.attrs["w_zero"], w.data.dtype)
    each = np.arange(count)
    filled[:, each, :, each] = np.moveaxis(w.data.reshape(groups // count, count, oc // groups, ic, *kernel), 1, 0)
    weights = rewriter.const(f"{w.name}.filled", filled.reshape(oc, count * ic, *kernel), w.dtype)
    inputs = op.input(0), weights, *op.inputs[2:]
    rewriter.substitute(op.output, rewriter.add(op.name, op.kind, inputs, attrs))
    return True


def joined_attrs(op: Op, count: int) -> dict[str, Any]:
    """The attributes of a convolution with ``count`` groups joined into one."""
    attrs = {**op.attrs, "phases": _phases(op)}
    if count > 1:
        oc, ic, *_ = op.input(1).shape
        attrs |= {"groups": op.attrs["groups"] // count, "blocks": (ic, oc // op.attrs["groups"])}
    return attrs


def counts_of(op: Op) -> list[int]:
    """The numbers of groups that may be joined, in ascending order."""
    groups = op.attrs["groups"]
    return [count for count in range(1, groups + 1) if groups % count == 0]


class Alternatives(NamedTuple):
    """A grouped convolution in each form.

    ``problems``: with each of the ``counts`` joined groups, the first without joining; then the same as products of
    weights and image, if that is possible.
    """

    counts: tuple[int, ...]
    problems: tuple[MatrixProblem, ...]


def alternatives(op: Op, homes: tuple[Home, Home], config: Config) -> Alternatives:
    """The forms of a grouped convolution. ``homes``: the memories of its input and output."""
    counts = tuple(counts_of(op))
    problems = tuple(_problem(op, homes, config, count) for count in counts)
    if problems[0].x_turned and problems[0].out_turned and _is_product(op):
        problems += tuple(map(_as_product, problems))
    return Alternatives(counts, problems)


def _joined(op: Op, homes: tuple[Home, Home], config: Config) -> int:
    """The number of groups to join on a device."""
    forms = alternatives(op, homes, config)
    limits = np.array([[limit(*bounds(problem, config), config.cores)] for problem in forms.problems[1:]])
    search = best_forms(forms, limits)
    asked = next(search)
    while True:
        try:
            asked = search.send([np.full(len(rows), _latency(problem, config)) for problem, rows in asked])
        except StopIteration as end:
            return forms.counts[int(end.value[0])]


Floats = npt.NDArray[np.floating[Any]]
Index = npt.NDArray[np.intp]
Number = TypeVar("Number", float, Floats)
Asked = list[tuple[MatrixProblem, Index]]


def best_forms(forms: Alternatives, limits: Floats) -> Generator[Asked, list[Floats], Index]:
    """Choose the fastest form of a convolution for each device of a batch; on a tie the one with the fewest joined
    groups.

    ``limits``: results of :func:`limit`, as [forms except the first][devices]. Yields (problem, device numbers) pairs,
    and expects for each the :func:`score` of its best tile on these devices, infinite if no tile fits. Returns the
    index of the count by device.
    """
    everyone = np.arange(limits.shape[1])
    best, (found,) = np.zeros(len(everyone), np.intp), (yield [(forms.problems[0], everyone)])
    # The most promising form first: most others cannot be faster, whatever their tiles.
    for tried in limits.argsort(0, kind="stable"):
        going = limits[tried, everyone] < found
        groups = [(number + 1, np.flatnonzero(going & (tried == number))) for number in np.unique(tried[going])]
        if not groups:
            break
        times = yield [(forms.problems[number], rows) for number, rows in groups]
        for (number, rows), each in zip(groups, times, strict=True):
            joined = number % len(forms.counts)
            better = (each < found[rows]) | ((each == found[rows]) & (joined < best[rows]))
            best[rows[better]], found[rows[better]] = joined, each[better]
    return best


def _is_product(op: Op) -> bool:
    """Whether an NCHW convolution may become products of weights and image, which need no transposition."""
    attrs, (x, w) = op.attrs, (op.input(0).dtype, op.input(1).dtype)
    single = (*op.input(1).shape[2:], *attrs["stride"]) == (1, 1, 1, 1) and not any(attrs["pads"])
    return single and are_interchangeable(x, w, attrs["x_zero"]) and not op.optional(3) and not _phases(op)


def _as_product(problem: MatrixProblem) -> MatrixProblem:
    """The product of each group's weights and each image."""
    p = problem
    return p._replace(
        images=p.images * p.groups, oh=1, ow=p.oc, groups=1, oc=p.oh * p.ow, shared_weights=False, x_turned=False,
        out_turned=False, x_type=p.w_type, w_type=p.x_type,
    )  # fmt: skip


def _latency(problem: MatrixProblem, config: Config) -> float:
    """The score of the best tile on the device; infinite if no tile fits."""
    known = tilings(problem, config)
    tile = known.choose(config.sram.bytes)
    if tile is None:
        return inf
    return score(known.latency(tile), known.computing(tile), bounds(problem, config)[1], config.cores)


def score(latency: Number, computing: Number, dram: Number, cores: int) -> Number:
    """Picoseconds of a problem alone on the device, plus a fraction of the arithmetic and, on several cores, of the
    DRAM traffic. ``dram``: picoseconds of the bytes, from :func:`bounds`."""
    # Among equal estimates the least arithmetic is the fastest: loads and stores of a few tiles hide little of it.
    # Several cores compute faster but share the DRAM, so traffic that one layer hides delays the loads of others.
    return latency + computing / (_SHOWN * cores) + (dram / _SHOWN if cores > 1 else 0)


def limit(unit: Any, dram: Any, cores: int) -> Any:
    """A lower bound of the score over all tilings, approximately. ``unit``, ``dram``: results of :func:`bounds`."""
    return score(np.maximum(unit / cores, dram), unit, dram, cores)


_SHOWN = 4
"""1/4 of the arithmetic, or of the traffic, is assumed to be exposed."""


def bounds(
    problem: MatrixProblem, config: Config, prices_of: Callable[..., MatrixPrices] = matrix_prices
) -> tuple[float, float]:
    """Approximate lower bounds in picoseconds over all tilings: of one core's unit for one large tile, and of all
    bytes.

    ``prices_of``: the class itself for a batch of devices, which is not hashable.
    """
    p = problem
    prices = prices_of(
        config, rate_type(p.x_type, p.w_type), p.kh, p.kw, p.depthwise, p.out_type.itemsize, p.sum_bytes, p.w_width
    )
    sizes = (1, p.oh, p.ow, p.groups * p.oc, p.groups) if p.depthwise else (p.groups, p.oh, p.ow, p.oc, p.ic)
    size = footprint(p, Tiling(p.groups, p.oh, p.ow, p.oc, p.ic, False))
    # Small tiles leave out rows and columns that a stride skips.
    kept = [min(1, n * k / ((n - 1) * s + k)) for n, k, s in ((p.oh, p.kh, p.sh), (p.ow, p.kw, p.sw))]
    x = size.x * kept[0] * kept[1]
    ends = x * (p.x_home is Home.DRAM) + size.out * (p.out_home is Home.DRAM)
    moved = p.images * ends + size.w
    return p.images * prices[sizes], moved / dram_model(config).bandwidth * 1e12


def _problem(op: Op, homes: tuple[Home, Home], config: Config, count: int) -> MatrixProblem:
    """The convolution with ``count`` groups joined. ``homes``: the memories of its input and output."""
    attrs, x, w = op.attrs, op.input(0), op.input(1)
    oc, ic, kh, kw = w.shape
    n, *image = op.output.shape
    oh, ow = image[:2] if attrs["layout"] == "NHWC" else image[1:]
    (sh, sw), (dh, dw), groups = attrs["stride"], attrs["dilation"], attrs["groups"] // count
    depthwise = ic * count == 1 and not _phases(op)
    turned = attrs["layout"] == "NCHW"
    if (kh, kw, sh, sw) == (1, 1, 1, 1) and not any(attrs["pads"]) and not depthwise:
        # The lowering treats all pixels as one row; in NCHW, those of an image.
        n, oh, ow = (n, 1, oh * ow) if turned else (1, 1, n * oh * ow)
    sums = accumulator_type(x.dtype, w.dtype, wide=attrs["wide"], scaled=op.optional(3) is not None)
    matrix = config.matrix
    rows, cols = (matrix.rows, matrix.cols) if matrix and config.compiler.weight_tiles else (1, 1)
    # Integer results are assumed to be as wide as the pixels.
    return MatrixProblem(
        n, oh, ow, groups, oc // groups, ic * count, kh, kw, sh, sw, dh, dw, depthwise, True, x.dtype,
        w.dtype, x.dtype, EpilogueCosts(), False, *homes, homes[1] is Home.DRAM, w_bits=attrs["w_bits"], w_rows=rows,
        w_cols=cols, sum_bytes=sums.itemsize, x_turned=turned and homes[0] is Home.DRAM and oh * ow > 1,
        out_turned=turned and homes[1] is Home.DRAM and oh * ow > 1,
    )  # fmt: skip
