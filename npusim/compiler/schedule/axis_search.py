"""The search for the axes along which layers are cut for several cores.

Dynamic programming in the order of the groups: among all choices that end with the same axis, the cheapest is kept. The
cost of a group is its estimate, given the tensors that are expected in the scratchpads, plus the time of transfers:
tensors that cores exchange, or that go to DRAM because a later group is cut differently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from operator import itemgetter

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context
from npusim.compiler.schedule.cascade import LONGEST, rows_of
from npusim.compiler.schedule.halo import Band, LayerCut, Readers, halo_bands
from npusim.compiler.schedule.memory_choices import CascadeRun
from npusim.compiler.schedule.regions import Region, are_disjoint, join, overlap, union
from npusim.compiler.schedule.scratchpad import ScheduleStep, fit
from npusim.compiler.schedule.sharding import buffer_rows, core_context, cut_group, even_bands, like, touched_by
from npusim.compiler.schedule.shards import Shard, axes_of
from npusim.compiler.schedule.slots import CONSTANTS
from npusim.errors import CompileError
from npusim.hw.memory import align, dram_model
from npusim.hw.units.dma import exchange_bandwidth, exchange_latency_ps

_Path = tuple[tuple[LayerCut, ...], int]
"""The cuts of the groups so far, and their total estimate in picoseconds."""


class AxisSearch:
    """The search for the cuts of all groups.

    ``fixed``: given cuts, by group. ``runs``: given cascades; their groups are cut along rows. ``in_bands``: layers of
    many rows are cut along these, so that they may form cascades. ``passes``: whether cores pass values to each other.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        whole: Context,
        fixed: Mapping[int, LayerCut] | None = None,
        *,
        runs: Sequence[CascadeRun] = (),
        in_bands: bool = False,
        passes: bool,
    ) -> None:
        self._groups = groups
        self._whole = whole
        self._cores = whole.config.cores
        self._fixed = fixed or {}
        self._passes = passes
        self._in_bands = in_bands
        self._striped = {number for run in runs if run.first < run.last for number in range(run.first, run.last + 1)}
        self._rows = buffer_rows(groups, whole)
        self._touched: dict[tuple[int, LayerCut], Mapping[Buffer, list[Region | None] | None]] = {}
        self._known: dict[tuple[int, LayerCut, frozenset[Buffer]], int | None] = {}
        self._shards: dict[tuple[int, LayerCut], tuple[list[Shard], list[Context]]] = {}
        self._makers: dict[Buffer, list[int]] = {}
        self._readers: dict[Buffer, list[int]] = {}
        for group in self._groups:
            buffer = whole.view(group.outputs[0]).buffer
            self._makers.setdefault(buffer, []).append(group.index)
            read = [tensor for op in group.ops for tensor in op.inputs if tensor is not None]
            for other in dict.fromkeys(whole.views[tensor].buffer for tensor in read if tensor in whole.views):
                self._readers.setdefault(other, []).append(group.index)

    def run(self) -> tuple[LayerCut, ...]:
        """Return the cut of each group. Raises CompileError if some group does not fit with any cut."""
        paths: list[_Path] = [((), 0)]
        for group in self._groups:
            following = []
            for cut in self._options(group):
                extended = [self._extend(path, group, cut) for path in paths]
                found = [path for path in extended if path is not None]
                if found:
                    following.append(min(found, key=itemgetter(1)))
            if not following:
                raise CompileError(f"internal: no shard of {group.name} ({group.kind}) fits")
            paths = following
        cuts, _ = min(paths, key=itemgetter(1))
        return self._with_halos(cuts) if self._passes else cuts

    def _with_halos(self, cuts: tuple[LayerCut, ...]) -> tuple[LayerCut, ...]:
        """Add a halo to each cut where computing rows on several cores takes less time than exchanging them."""
        readers, found = Readers(self._groups, self._whole, self._rows), list(cuts)
        bands: dict[int, list[Band]] = {}
        # The least time of each group with the cut that was chosen, wherever its tensors are.
        least: dict[int, int] = {}
        for (number, known, _), ps in self._known.items():
            if ps and known == cuts[number]:
                least[number] = min(ps, least.get(number, ps))
        for group in reversed(self._groups):
            cut = cuts[group.index]
            if cut.axis is None:
                continue
            own = bands[group.index] = even_bands(group, cut.axis, self._whole, cut.cores)
            behind = readers.of(group, cuts)
            if not behind:
                continue
            wanted = halo_bands(group, behind, cuts, bands)
            ps = least.get(group.index, 0)
            if group.index not in self._fixed and self._saves(group, ps, behind, cuts, own, wanted):
                found[group.index] = cut._replace(halo=True)
            if found[group.index].halo:
                bands[group.index] = wanted
        return tuple(found)

    def _saves(
        self,
        group: Group,
        ps: int,
        readers: Sequence[Group],
        cuts: Sequence[LayerCut],
        own: Sequence[Band],
        wanted: Sequence[Band],
    ) -> bool:
        """Whether computing the halo of a group takes less time than exchanging the rows that its ``readers`` need.

        ``ps``: the time of the group without halo. ``own``, ``wanted``: bands without and with halo.
        """
        buffer = self._whole.view(group.outputs[0]).buffer
        made = self._touches(group.index, cuts[group.index])[buffer]
        reads = [self._touches(reader.index, cuts[reader.index])[buffer] for reader in readers]
        if made is None or None in reads:
            return False
        regions = [union(each) for each in zip(*filter(None, reads), strict=True)]
        joined = list(map(join, made, regions))
        if are_disjoint(joined):
            return False
        height, rows = (max(end - first for first, end in bands) for bands in (own, wanted))
        return ps * (rows - height) < height * self._exchange_ps(buffer, regions, made)

    def _options(self, group: Group) -> list[LayerCut]:
        if group.index in self._fixed:
            return [self._fixed[group.index]]
        axes = axes_of(group, passes=self._passes)
        rows = rows_of(group, self._whole)
        if rows in axes:
            high = self._in_bands and group.outputs[0].shape[rows] >= _LEAST_ROWS * self._cores
            if high or group.index in self._striped:
                return [LayerCut(rows, self._cores)]
        return [LayerCut(axis, self._cores) for axis in (*axes, None)]

    def _extend(self, path: _Path, group: Group, cut: LayerCut) -> _Path | None:
        """Extend a path by one group; None if the group does not fit."""
        (cuts, before), local, extra = path, set(), 0
        for buffer, spans in self._touches(group.index, cut).items():
            is_local, ps = self._transfer(cuts, group.index, buffer, spans)
            extra += ps
            if is_local:
                local.add(buffer)
            else:
                extra += self._burst_ps(spans or ())
        cost = self._estimate(group, cut, frozenset(local))
        return None if cost is None else ((*cuts, cut), before + cost + extra)

    def _burst_ps(self, spans: Sequence[Region | None]) -> int:
        """Picoseconds of the DRAM for the bytes beside columns that are narrower than its bursts."""
        burst, config = self._whole.config.dma.burst_bytes, self._whole.config
        more = 0
        for span in spans:
            if span is not None and span.high - span.low < span.row:
                more += align(span.high - span.low, burst) * (span.end - span.first) - span.nbytes
        return more * 10**12 // dram_model(config).bandwidth

    def _transfer(
        self, cuts: Sequence[LayerCut], number: int, buffer: Buffer, spans: Sequence[Region | None] | None
    ) -> tuple[bool, int]:
        """Whether a tensor is expected in the scratchpads when a group uses ``spans`` of it, and the picoseconds of
        transfers that the group's reads add."""
        makers = self._makers.get(buffer, ())
        fits = buffer.is_scratch and spans is not None and self._is_small(spans)
        if number in makers:
            return fits, 0
        before = [self._touches(maker, cuts[maker]).get(buffer) for maker in makers if maker < number]
        known = [each for each in before if each is not None]
        if fits and spans is not None and len(known) == len(before):
            joined = [union(each) for each in zip(spans, *known, strict=True)]
            if are_disjoint(joined):
                return True, 0
            if self._passes and self._is_small(joined):
                made = [union(each) for each in zip(*known, strict=True)]
                sent = self._is_sent(cuts, number, buffer, spans)
                return True, 0 if sent else self._exchange_ps(buffer, spans, made)
        if before and len(known) == len(before) and all(map(self._is_small, known)):
            # The groups that compute it were expected to keep it in the scratchpads, but this group needs it in DRAM.
            return False, buffer.nbytes * 10**12 // self._whole.config.dram.bandwidth
        return False, 0

    def _is_sent(self, cuts: Sequence[LayerCut], number: int, buffer: Buffer, wanted: Sequence[Region | None]) -> bool:
        """Whether an earlier group has already brought these bytes to the same cores."""
        for reader in self._readers.get(buffer, ()):
            if reader >= number:
                break
            read = self._touches(reader, cuts[reader]).get(buffer)
            if read and all(
                one is None or (other and other.holds(one)) for one, other in zip(wanted, read, strict=True)
            ):
                return True
        return False

    def _exchange_ps(self, buffer: Buffer, wanted: Sequence[Region | None], made: Sequence[Region | None]) -> int:
        """Approximate picoseconds to send what each core computed to the cores that need it."""
        config = self._whole.config
        multicast, by_dram = config.interconnect.multicast, config.exchange is None
        sent = 0
        for core, own in enumerate(made):
            shares = [overlap(own, span) for other, span in enumerate(wanted) if other != core]
            # Multicast sends bytes once to several cores. Without a network they are written to DRAM once.
            once = min(sum(shares), own.nbytes if own is not None else 0)
            sent += (once if multicast else sum(shares)) + (once if by_dram else 0)
        if by_dram:
            return sent * 10**12 // dram_model(config).bandwidth + 2 * config.dram.latency_ps
        return sent * 10**12 // exchange_bandwidth(config) + exchange_latency_ps(config)

    def _is_small(self, spans: Sequence[Region | None]) -> bool:
        most = max((span.nbytes for span in filter(None, spans)), default=0)
        return (self._passes or are_disjoint(spans)) and most <= self._whole.config.sram.bytes // _SHARE

    def _touches(self, number: int, cut: LayerCut) -> Mapping[Buffer, list[Region | None] | None]:
        key = number, cut
        if key not in self._touched:
            group = self._groups[number]
            shards, contexts = (None, []) if cut.axis is None else self._shards_of(group, cut)
            self._touched[key] = touched_by(group, shards, self._whole, contexts, self._rows, passes=self._passes)
        return self._touched[key]

    def _shards_of(self, group: Group, cut: LayerCut) -> tuple[list[Shard], list[Context]]:
        key = group.index, cut
        if key not in self._shards:
            # Only the views of this group: with those of all groups, the work would be quadratic in the number of
            # groups.
            tensors = (t for op in group.ops for t in (*op.inputs, *op.outputs) if t is not None)
            views = {tensor: self._whole.views[tensor] for tensor in tensors if tensor in self._whole.views}
            contexts = [core_context(self._whole, views) for _ in range(self._cores)]
            assert cut.axis is not None
            self._shards[key] = cut_group(group, cut.axis, self._whole, contexts[: cut.cores]), contexts
        return self._shards[key]

    def _estimate(self, group: Group, cut: LayerCut, local: frozenset[Buffer]) -> int | None:
        """Picoseconds of a group with the ``local`` buffers in the scratchpad; None if it does not fit."""
        key = group.index, cut, local
        if key not in self._known:
            self._known[key] = self._estimate_new(group, cut, local)
        return self._known[key]

    def _estimate_new(self, group: Group, cut: LayerCut, local: frozenset[Buffer]) -> int | None:
        context = self._whole
        if ScheduleStep([group]).is_empty:
            return 0
        if cut.axis is not None:
            shards, contexts = self._shards_of(group, cut)
            size = group.outputs[0].shape[cut.axis]
            group, context = shards[0].group, copy(contexts[0])
            # Cores with smaller shards leave more of the DRAM bandwidth to the first core.
            context.beside = round(size / group.outputs[0].shape[cut.axis])
            places = {buffer: (like(buffer, buffer.nbytes, 0), 0) for buffer in local}
            context.views = {tensor: view.moved(places) for tensor, view in context.views.items()}
        try:
            fitted = fit(ScheduleStep([group]), context)
        except CompileError:
            return None
        # Constants that a core holds leave it less room for those of later layers, which are loaded meanwhile.
        held = sum(spec.total for spec in fitted.specs[0] if spec.name in CONSTANTS)
        return fitted.lowerings[0].estimate() + held * 10**12 // (dram_model(context.config).bandwidth * _HELD)


def with_all_halos(
    groups: Sequence[Group], whole: Context, cuts: Sequence[LayerCut], given: Collection[int]
) -> list[LayerCut]:
    """Add halos so that runs of neighbouring layers, as long as possible, may form cascades. ``given``: groups whose
    cuts do not change."""
    readers, found = Readers(groups, whole, buffer_rows(groups, whole)), list(cuts)
    first = 0
    while first < len(groups):
        run, last = set[int](), first
        for end in range(first + 1, min(first + LONGEST, len(groups))):
            wider = _run_halos(groups[first : end + 1], whole, cuts, readers, given)
            if wider is None:
                break
            run, last = wider, end
        for number in run:
            found[number] = cuts[number]._replace(halo=True)
        first = last + 1
    return found


def _run_halos(
    run: Sequence[Group], whole: Context, cuts: Sequence[LayerCut], readers: Readers, given: Collection[int]
) -> set[int] | None:
    """The groups of a run whose results each core can compute with a halo for the others; None if that is too much
    work."""
    last, found = run[-1].index, set[int]()
    bands: dict[int, list[Band]] = {}
    for group in reversed(run):
        cut = cuts[group.index]
        if cut.axis is None:
            return None
        own = bands[group.index] = even_bands(group, cut.axis, whole, cut.cores)
        behind = readers.of(group, cuts)
        if not behind or behind[-1].index > last or (group.index in given and not cut.halo):
            continue
        wanted = bands[group.index] = halo_bands(group, behind, cuts, bands)
        (_, height), (start, end) = own[0], wanted[0]
        if (end - start) * 100 > height * (100 + _MOST_REPEATED):
            return None
        found.add(group.index)
    return found


_MOST_REPEATED = 25
"""Limit, in percent of its own rows, for the rows that a core repeats for a cascade."""
_LEAST_ROWS = 4
"""Rows of each core's band from which on layers may form cascades."""
_HELD = 8
"""A fraction 1/4 of the time to load the constants that a core holds is added to its estimate."""
_SHARE = 4
"""A tensor larger than 1/4 of the scratchpad is not expected to fit there."""
