"""Reference of the tiling search: scores one tiling after the other with the cost functions of ``npusim.hw``.

The compiled search is compared with it. They share no code except the cuts that are tried and the operand sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import product
from operator import add
from typing import NamedTuple

from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import align, constants_side, dram_model
from npusim.hw.units.dma import exchange_bandwidth, memory_bandwidth
from npusim.isa.base import MAX_ELEMENTS, MAX_PRODUCTS
from npusim.isa.dma import expanding
from npusim.isa.matrix import products
from npusim.isa.matrix_types import rate_type
from npusim.timing.tile import (
    MOST_RISEN,
    OVERLAP,
    SLACK_PERCENT,
    TAPS_PERCENT,
    acc_bytes,
    best_at_banks,
    code_bytes,
    fewest_steps,
    input_copies,
    search_passes,
)
from npusim.timing.tile_costs import array_pricing, move_prices
from npusim.timing.tile_cuts import can_cut_taps, channel_cuts, spatial_cuts, tap_cuts
from npusim.timing.tile_problem import Home, MatrixProblem, Tiling, chain_time, footprint, input_window, taps
from npusim.units import ceil_div
from npusim.work import DmaWork, MatrixWork


def sram_bytes(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """Return the SRAM for all slots of a tile; double-buffered slots count twice."""
    # Loaded and stored operands have two copies, for neighbouring tiles. Sums have one, which passes from one part of
    # the input channels to the next, unless they are the output tile themselves.
    x, w, parameters, acc, out = footprint(problem, tile)
    elements, epilogue = tile.oh * tile.ow * tile.groups * tile.oc, problem.epilogue
    weights = _channel_tiles(problem, tile) * (_chunks(problem, tile) * align(w) + align(parameters))
    total = weights * problem.held if problem.held else 2 * (align(w) + align(parameters))
    if problem.pinned:
        total = 0
    total += align(elements * epilogue.element_bytes)
    total += align((min(elements, epilogue.piece) if tile.in_pieces else elements) * epilogue.between)
    if problem.x_home is not Home.DIRECT:
        total += input_copies(config) * align(x)
    if problem.in_place and not acc_bytes(config):
        return total + (2 * align(acc) if problem.main else 0)
    return total + (2 * align(out) if problem.main else 0) + (0 if acc_bytes(config) else align(acc))


def choose(problem: MatrixProblem, config: Config, budget: int) -> Tiling | None:
    """Return the tiling with the best score that fits in ``budget`` bytes of SRAM, or None."""
    best = None
    for whole in search_passes(config):
        cuts = [(*cut, 0, 0) for cut in channel_cuts(problem, config, whole=whole)]
        if best := _chosen(problem, config, budget, cuts, whole=whole):
            break
    if can_cut_taps(problem) and (best is None or best[0] > good(problem, config)):
        cuts = list(tap_cuts(problem, config))
        found = _chosen(problem, config, budget, cuts, whole=False)
        if found and (best is None or found[0] * (100 + SLACK_PERCENT) // 100 < best[0]):
            best = found
    return best and best[1]


def good(problem: MatrixProblem, config: Config) -> int:
    """Return the time in ps up to which tiles with a part of the kernel are not tried."""
    p = problem
    image = cost_model(config).product_ps(_work(p, Tiling(p.groups, p.oh, p.ow, p.oc, p.ic, False)))
    pixels = p.images * p.oh * p.ow
    nbytes = pixels * p.sh * p.sw * p.groups * p.ic * p.x_type.itemsize if p.x_home is Home.DRAM else 0
    nbytes += pixels * p.groups * p.oc * p.stored_bytes if p.out_home is Home.DRAM else 0
    weights = footprint(p, Tiling(p.groups, 1, 1, p.oc, p.ic, False)).w
    nbytes += 0 if p.held else weights * p.w_kilo // 1024
    bound = max(p.images * image // config.cores, nbytes * 10**12 // dram_model(config).bandwidth)
    return bound * (100 + TAPS_PERCENT) // 100


def _chosen(
    problem: MatrixProblem, config: Config, budget: int, cuts: list[tuple[int, int, int, int, int]], *, whole: bool
) -> tuple[int, Tiling] | None:
    """Return the best tiling among some cuts of channels and taps, and its score."""
    scored = []
    for cut in cuts:
        least, risen = None, 0
        for tiles in _candidates(problem, config, budget, cut, whole=whole):
            # Tiles of partial rows have a halo, and stripes are small, so they are only tried if single rows do not
            # fit.
            halo = problem.held or (problem.oh > 1 and problem.kw > 1)
            if least is not None and tiles[0].ow < problem.ow and halo:
                break
            times = [score(problem, tile, config) for tile in tiles]
            scored += [(time, _steps(problem, tile), tile) for time, tile in zip(times, tiles, strict=True)]
            if least is None or min(times) < least:
                least, risen = min(times), 0
                continue
            risen += 1
            if risen == MOST_RISEN and not problem.both_ways:
                break
        # Held weights cost no loads, so smaller parts of them gain nothing.
        if problem.held and not problem.pinned and scored:
            break
    if not scored:
        return None
    tile = fewest_steps(scored)
    limit = banked(problem, tile, config)
    ps = min(ps for ps, _, each in scored if each == tile)
    if limit <= ps:
        return ps, tile
    options = [option for option in scored if option[0] < limit]
    tile = best_at_banks(options, lambda tile: banked(problem, tile, config))
    return max(score(problem, tile, config), banked(problem, tile, config)), tile


def _steps(problem: MatrixProblem, tile: Tiling) -> int:
    return _spatial(problem, tile) * _channel_tiles(problem, tile) * _chunks(problem, tile)


def _candidates(
    problem: MatrixProblem, config: Config, budget: int, cut: tuple[int, int, int, int, int], *, whole: bool
) -> Iterator[list[Tiling]]:
    """Yield the fitting spatial cuts for a cut of channels and taps, large ones first.

    Each comes with weights in the inner loop, and then in the outer loop if that differs: it decides whether weights or
    pixels are loaded again.
    """
    limit = acc_bytes(config)
    groups, oc, ic, kh, kw = cut
    # The full kernel height or width is always encoded as 0.
    kernel = kh if kh < problem.kh else 0, kw if kw < problem.kw else 0
    for oh, ow in spatial_cuts(problem.oh, problem.ow, whole=whole, both_ways=problem.both_ways):
        tile = Tiling(groups, oh, ow, oc, ic, False, False, *kernel)
        if limit and footprint(problem, tile).acc > limit:
            continue
        if sram_bytes(problem, tile, config) > budget:
            tile = tile._replace(in_pieces=True)
            if not problem.epilogue.between or sram_bytes(problem, tile, config) > budget:
                continue
        # With a large SRAM the instruction limits decide: those of the matrix unit, or of the chain.
        if products(_work(problem, tile)) > MAX_PRODUCTS or oh * ow * groups * oc > MAX_ELEMENTS:
            continue
        several = _ordered(problem, tile) or _may_share(config)
        yield [tile, tile._replace(weights_outer=True)] if several else [tile]


def _ordered(problem: MatrixProblem, tile: Tiling) -> bool:
    """Return whether weights in the outer loop may be better; see :func:`_loads`."""
    several = _spatial(problem, tile) > 1 and _channel_tiles(problem, tile) > 1
    return several and _chunks(problem, tile) == 1


def _spatial(problem: MatrixProblem, tile: Tiling) -> int:
    return problem.images * ceil_div(problem.oh, tile.oh) * ceil_div(problem.ow, tile.ow)


def _channel_tiles(problem: MatrixProblem, tile: Tiling) -> int:
    return ceil_div(problem.groups, tile.groups) * ceil_div(problem.oc, tile.oc)


def _chunks(problem: MatrixProblem, tile: Tiling) -> int:
    kh, kw = taps(problem, tile)
    return ceil_div(problem.ic, tile.ic) * ceil_div(problem.kh, kh) * ceil_div(problem.kw, kw)


def computing(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """Return the matrix unit's time in ps for all tiles, one after the other."""
    return _computing(problem, tile, cost_model(config).product_ps)


def banked(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """Return the time in ps that all SRAM banks need for all tiles: for the matrix unit, and for the chain."""
    elements = problem.images * problem.oh * problem.ow * problem.groups * problem.oc
    return computing_banked(problem, tile, config) + elements * problem.epilogue.banks // 1024


def computing_banked(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """Return the matrix unit's part of :func:`banked`."""
    cost = cost_model(array_pricing(config)).cost
    return _computing(problem, tile, lambda work: cost(work).sram_ps)


def _computing(problem: MatrixProblem, tile: Tiling, price: Callable[[MatrixWork], int]) -> int:
    if _divides(problem, tile):
        tiles = _spatial(problem, tile) * _channel_tiles(problem, tile)
        return tiles * _chunks(problem, tile) * price(_work(problem, tile))
    total = 0
    rows, cols = taps(problem, tile)
    for groups, oh, ow, oc, ic, kh, kw in product(
        _sizes(problem.groups, tile.groups), _sizes(problem.oh, tile.oh), _sizes(problem.ow, tile.ow),
        _sizes(problem.oc, tile.oc), _sizes(problem.ic, tile.ic), _sizes(problem.kh, rows), _sizes(problem.kw, cols),
    ):  # fmt: skip
        steps = groups[0] * oh[0] * ow[0] * oc[0] * ic[0] * kh[0] * kw[0]
        part = Tiling(groups[1], oh[1], ow[1], oc[1], ic[1], tile.weights_outer, False, kh[1], kw[1])
        total += steps * price(_work(problem, part))
    return problem.images * total


def _divides(problem: MatrixProblem, tile: Tiling) -> bool:
    """Return whether all tiles have the same size."""
    pixels, channels = problem.oh % tile.oh or problem.ow % tile.ow, problem.oc % tile.oc or problem.ic % tile.ic
    kh, kw = taps(problem, tile)
    return not (pixels or channels or problem.groups % tile.groups or problem.kh % kh or problem.kw % kw)


def _sizes(full: int, size: int) -> tuple[tuple[int, int], ...]:
    """Return (count, size) of the parts of ``full``: whole ones, and the remainder."""
    count, rest = divmod(full, size)
    return tuple(part for part in ((count, size), (1, rest)) if part[0] and part[1])


class Filled(NamedTuple):
    """How full the tiles of each kind are on average, including those at the edges; 1 is full. ``x`` and ``out`` only
    count pixels."""

    x: float
    w: float
    out: float


def filled(problem: MatrixProblem, tile: Tiling) -> Filled:
    """Return the means over all tiles of a problem of a tile's content over that of a whole tile."""
    if _divides(problem, tile):
        return Filled(1, 1, 1)
    oh, ow = _fullness(problem.oh, tile.oh), _fullness(problem.ow, tile.ow)
    kernel = taps(problem, tile)
    whole = input_window(problem, tile, (tile.oh, tile.ow), kernel)
    rows = 1 - (1 - oh) * tile.oh * problem.sh / (whole.rows * whole.row_step)
    cols = 1 - (1 - ow) * tile.ow * problem.sw / (whole.cols * whole.col_step)
    counts = ceil_div(problem.kh, kernel[0]) * ceil_div(problem.kw, kernel[1])
    part = problem.kh * problem.kw / (counts * kernel[0] * kernel[1])
    weights = _channel_fullness(problem, tile) * _fullness(problem.ic, tile.ic) * part
    return Filled(rows * cols, weights, oh * ow)


def _channel_fullness(problem: MatrixProblem, tile: Tiling) -> float:
    return _fullness(problem.groups, tile.groups) * _fullness(problem.oc, tile.oc)


def _fullness(whole: int, size: int) -> float:
    return whole / (ceil_div(whole, size) * size)


class _Mean(NamedTuple):
    """Means of the transfers of some tiles with ``pixels`` pixels each: time in ps alone and within a stream, and bytes
    through the pins."""

    ps: float
    stream: float
    nbytes: float


def _mean(
    problem: MatrixProblem, tile: Tiling, channels: tuple[int, int], item: int, row: int, pixels: int, config: Config,
    home: Home = Home.DRAM, *, write: bool = False,
) -> _Mean | None:  # fmt: skip
    """Return means over all tiles of a problem, as if all had their full number of pixels.

    ``channels``: those of a group and of a tile; ``item``: bytes of an element; ``row``: pixels in one run if a tile
    has all channels. A tile at the edge of the channels has as many runs as others, so its time is not proportional to
    its bytes.
    """
    if home is Home.DIRECT:
        return None
    model = cost_model(config)
    ps = stream = nbytes = 0
    for (some, groups), (many, width) in product(_sizes(problem.groups, tile.groups), _sizes(*channels)):
        count, every = groups * width, problem.groups * channels[0]
        # Channels are innermost. All of them make one run of a whole row of pixels; a part of them has a run per pixel,
        # anywhere in a burst.
        run, stride = (count * item * row, 0) if count == every else (count * item, every * item)
        work = _moving(home, pixels * count * item, run, stride, write=write)
        assert work is not None
        ps += some * many * model.cost(work).ps
        stream += some * many * model.stream_ps(work)
        nbytes += some * many * model.dram_bytes(work)
    total = ceil_div(problem.groups, tile.groups) * ceil_div(*channels)
    return _Mean(ps / total, stream / total, nbytes / total)


def score(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """Return the figure in ps by which tilings of a problem are compared."""
    times = _times(problem, tile, config, commands=True)
    longest = max(times.parts)
    # A small part of hidden work shows, and the same of traffic: it costs energy, and decides between equals.
    return longest + (sum(times.parts) - longest + times.parts.shared) // OVERLAP + times.first + times.w


def latency(problem: MatrixProblem, tile: Tiling, config: Config, *, again: bool = False) -> int:
    """Return the approximate time in ps of all tiles between other layers, which is compared with theirs.

    ``again``: after other rows of the same layer, which hide the first loads; the last store and chain are hidden by
    what follows.
    """
    times = _times(problem, tile, config)
    parts = times.parts
    longest = max(parts)
    if again:
        shown = parts.compute // times.per_core if parts.chain > parts.compute else 0
    else:
        # Weights are loaded during the last tile of the previous layer, which is assumed to be as long as one of these.
        shown = times.first + max(0, times.w - longest // (times.per_core * _chunks(problem, tile)))
    # Traffic counts as in the choice of tilings, whatever the layer waits for.
    return max(longest + shown, banked(problem, tile, config)) + parts.shared // OVERLAP


class _Parts(NamedTuple):
    """Times in ps of computing, the chain, loading and storing on a core's channels, and of the DRAM shared by all."""

    compute: int
    chain: int
    loading: int
    storing: int
    shared: int


class _Times(NamedTuple):
    """The parallel parts; the load of the first weights (``w``); other work that nothing overlaps (``first``); tiles
    per core."""

    parts: _Parts
    w: int
    first: int
    per_core: int


def _times(problem: MatrixProblem, tile: Tiling, config: Config, *, commands: bool = False) -> _Times:
    """Return the times of all tiles. ``commands``: whether the bytes of commands count as traffic."""
    model = cost_model(config)
    spatial, channels, chunks = _spatial(problem, tile), _channel_tiles(problem, tile), _chunks(problem, tile)
    bytes_ = footprint(problem, tile)
    x_loads, w_loads = _loads(problem, tile, spatial, channels, chunks)
    per_core = ceil_div(spatial * channels, config.cores)
    # Loads are counted for the whole problem. A core with the most tasks is assumed to have the same share of the
    # loads.
    share = per_core / (spatial * channels)
    # Counting edge tiles as whole ones would overcharge cuts that leave small ones. A core with a part of all tiles is
    # assumed to have whole ones.
    whole = per_core * chunks * model.product_ps(_work(problem, tile))
    compute = min(whole, _computing(problem, tile, model.product_ps))
    full = filled(problem, tile)
    rows, cols, _, step = input_window(problem, tile, (tile.oh, tile.ow), taps(problem, tile))
    mean = functools.partial(_mean, problem, tile)
    x = mean(
        (problem.ic, tile.ic), problem.x_type.itemsize, cols if step == 1 else 1, rows * cols, config, problem.x_home
    )
    x = x and _padded(problem, tile, x, bytes_.x, config)
    outputs, pixels = (problem.oc, tile.oc), tile.oh * tile.ow
    out = mean(outputs, problem.stored_bytes, tile.ow, pixels, config, problem.out_home, write=True)
    operands = [mean(outputs, item, tile.ow, pixels, config) for item in problem.epilogue.operands]
    # Weights are assumed to be constants, as nearly all are.
    weights = None if problem.held else _weights(problem, bytes_.w, config)
    w = weights and _Mean(model.cost(weights).ps, model.stream_ps(weights), model.dram_bytes(weights))
    parameters = None
    if problem.fetched and not problem.held:
        nbytes = tile.groups * tile.oc * problem.fetched
        beside = _dma(nbytes, nbytes, 0, constants=True)
        parameters = _Mean(model.cost(beside).ps, model.stream_ps(beside), model.dram_bytes(beside))
    x_cores, w_cores = _loaded_for(problem, tile, spatial, channels, config, chunks)
    stores = spatial * channels * full.out
    p_count = w_loads / chunks / w_cores * _channel_fullness(problem, tile)
    moves = [(x_loads / x_cores * full.x, x), (w_loads / w_cores * full.w, w), (p_count, parameters)]
    if operands:
        moves.append((stores, _Mean(*map(_plain_sum, zip(*operands, strict=True)))))
    # As if sequential. More channels only start transfers earlier. If they changed the choice of tiles, the error of
    # this score could make a network slower with more of them.
    loading = int(share * _plain_sum(count * move.stream for count, move in moves if move))
    if x and not config.compiler.inputs_ahead:
        compute += int(share * x_loads * full.x * x.ps)
    storing = int(min(per_core, stores) * out.stream) if out else 0
    if config.dma.channels == 1:  # then loads and stores take turns; otherwise one channel is kept for stores
        loading, storing = loading + storing, 0
    # All cores share the DRAM: its time is that of the bytes of all cores, for any distribution of tasks.
    traffic = _plain_sum(count * move.nbytes for count, move in (*moves, (stores, out)) if move)
    if commands and not problem.held:
        # Commands that load, that store, and those of the chain, which are about as long.
        tasks, product_code, copy_code = spatial * channels, *code_bytes(config)
        copies = tasks * (len(operands) + bool(out) + (problem.epilogue.kilo > 0)) + (x_loads if x else 0)
        copies += (w_loads if w else 0) + (w_loads // chunks if parameters else 0)
        traffic += float(copies * copy_code + tasks * chunks * product_code)
    apart = w_loads / w_cores * full.w * w.nbytes if w and config.constants else 0
    apart += p_count * parameters.nbytes if parameters and config.constants else 0
    shared = max(
        int((traffic - apart) * problem.beside) * 10**12 // dram_model(config).bandwidth,
        int(apart * problem.beside) * 10**12 // dram_model(constants_side(config)).bandwidth,
    )
    results = stores * _channel_fullness(problem, tile)
    behind = chain_time(problem, tile)
    chain = int(min(per_core, results) * behind)
    # The first loads, the last store, and the chain on the last tile are not overlapped; if the chain takes longest,
    # the first tile's sums show instead. Inputs that are not loaded ahead already count as computing.
    first = sum(int(move.ps) for move in (x if config.compiler.inputs_ahead else None, out) if move)
    first += behind if chain <= compute else compute // per_core
    return _Times(_Parts(compute, chain, loading, storing, shared), int(w.ps) if w else 0, first, per_core)


def _padded(problem: MatrixProblem, tile: Tiling, x: _Mean, nbytes: int, config: Config) -> _Mean:
    """Return the load of an input tile whose padding is only written."""
    if problem.padded is None:
        return x
    p, model, (height, width, top, left) = problem, cost_model(config), problem.padded
    kernel = taps(p, tile)
    inside = _reached((p.oh, tile.oh), p.sh, (p.kh, kernel[0]), p.dh, top, height)
    inside *= _reached((p.ow, tile.ow), p.sw, (p.kw, kernel[1]), p.dw, left, width)
    written = DmaWork(nbytes, 1, nbytes, 0, 0)
    return _Mean(
        max(inside * x.ps, model.cost(written).ps), max(inside * x.stream, model.stream_ps(written)), inside * x.nbytes
    )


def _reached(
    out: tuple[int, int], stride: int, kernel: tuple[int, int], dilation: int, before: int, limit: int
) -> float:
    """Return the share of input pixels along an axis that are not padding. Pairs are (all, those of a tile).

    If there are many tiles, it is the mean of a few.
    """
    inside = total = 0
    step = ceil_div(ceil_div(*out), 64) * out[1]
    for first, tap in product(range(0, out[0], step), range(0, kernel[0], kernel[1])):
        begin = first * stride + tap * dilation - before
        size, part = min(out[1], out[0] - first), min(kernel[1], kernel[0] - tap)
        positions = range(begin, begin + (size - 1) * stride + (part - 1) * dilation + 1)
        inside += len(range(max(0, positions.start), min(limit, positions.stop)))
        total += len(positions)
    return inside / total


def _plain_sum(values: Iterable[float]) -> float:
    """Sum one by one: newer Python versions compensate rounding errors in sum(), which would choose other tiles."""
    return functools.reduce(add, values, 0.0)


def _loads(problem: MatrixProblem, tile: Tiling, spatial: int, channels: int, chunks: int) -> tuple[int, int]:
    """Return how often an input tile and a weight tile are loaded."""
    tasks = spatial * channels
    # An operand stays in its slot while the next task needs the same. With several parts of the input channels, every
    # part is another tile and nothing stays.
    if chunks > 1:
        return tasks * chunks, tasks * chunks
    if tile.weights_outer:
        x = spatial if channels == 1 else tasks
        return x, channels if problem.shared_weights else tasks
    w = channels if spatial == 1 or (channels == 1 and problem.shared_weights) else tasks
    # Output channels of one group use the same input; those of the next group use other channels.
    grouped = ceil_div(problem.groups, tile.groups)
    return spatial * grouped, w


def _loaded_for(
    problem: MatrixProblem, tile: Tiling, spatial: int, channels: int, config: Config, chunks: int
) -> tuple[int, int]:
    """Return how many cores each load of an input tile and of a weight tile serves, if one load can serve several.

    :func:`_loads` counts once per run of tasks with the same outer part, even if several cores have a part of that run.
    Sharing within the run therefore gains nothing over that count.
    """
    if not _may_share(config) or (problem.x_home, problem.held) != (Home.DRAM, False):
        return problem.x_serves, problem.w_serves
    outer, inner = (channels, spatial) if tile.weights_outer else (spatial, channels)
    if outer * inner % config.cores:
        return 1, 1  # the cores drift apart, so none requests the same as another at the same time
    tasks = outer * inner // config.cores
    if tasks % inner and inner % tasks:
        return 1, 1
    # This many cores process the same inner parts at the same time.
    together = config.cores // max(1, inner // tasks)
    if tile.weights_outer:
        return _served(config, together, config), 1
    stays = channels == 1 and chunks == 1  # then they are counted once for all cores
    return 1, _served(config, together, constants_side(config)) if problem.shared_weights and not stays else 1


def _may_share(config: Config) -> bool:
    return config.cores > 1 and (config.interconnect.multicast or config.exchange is not None)


def _served(config: Config, cores: int, memory: Config) -> int:
    """Return how many of ``cores`` cores a read of a memory serves: all with multicast, else as many as the exchange
    network can reach in the time of their own reads."""
    if config.interconnect.multicast or cores == 1:
        return cores
    reads = Fraction(cores, memory_bandwidth(memory))
    sends = Fraction(cores - 1, exchange_bandwidth(config))
    return max(1, min(cores, int(reads / sends)))


def _work(problem: MatrixProblem, tile: Tiling) -> MatrixWork:
    groups, oc, ic = tile.groups, tile.oc, tile.ic
    if problem.depthwise:  # the groups are the channels of one image
        groups, oc, ic = 1, tile.groups * tile.oc, tile.groups
    return MatrixWork(
        rate_type(problem.x_type, problem.w_type), groups, tile.oh, tile.ow, oc, ic, *taps(problem, tile),
        problem.depthwise, True, True, problem.out_type.itemsize, problem.sum_bytes, problem.w_width,
    )  # fmt: skip


def _weights(problem: MatrixProblem, nbytes: int, config: Config) -> DmaWork:
    plain, size = _dma(nbytes, nbytes, 0, constants=True), max(1, nbytes * problem.w_kilo // 1024)
    if problem.w_kilo == 1024 or not move_prices(config).pays(nbytes, size, problem.w_bits or 8):
        return plain
    return expanding(nbytes, size, problem.w_bits or 8)


def _moving(home: Home, nbytes: int, run: int, stride: int, *, write: bool = False) -> DmaWork | None:
    """Return the transfer of a tile from or to its home."""
    if home is Home.DIRECT:
        return None
    if home is Home.DRAM:
        return _dma(nbytes, run, stride, write=write)
    run = max(1, min(run, nbytes))
    return DmaWork(nbytes, ceil_div(nbytes, run), run, 0, 0)


def _dma(nbytes: int, run: int, stride: int, *, write: bool = False, constants: bool = False) -> DmaWork:
    run = max(1, min(run, nbytes))
    moved = (0, nbytes) if write else (nbytes, 0)
    return DmaWork(nbytes, ceil_div(nbytes, run), run, *moved, stride, constants=constants)
