"""A network on many devices of one kind: its layers, its values and its possible cascades."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group, form_groups, join_ranges
from npusim.compiler.lower.base import ConstantPool, Context
from npusim.compiler.passes.fill_groups import ends_of
from npusim.compiler.passes.legalize import separate_outputs
from npusim.compiler.pipeline import prepare
from npusim.compiler.schedule.attention import form_attention, possible_attentions
from npusim.compiler.schedule.axis_search import AxisSearch, with_all_halos
from npusim.compiler.schedule.cascade import LONGEST, Cascade, outline, rows_of
from npusim.compiler.schedule.exchange import transfers_of
from npusim.compiler.schedule.halo import LayerCut
from npusim.compiler.schedule.layout import place
from npusim.compiler.schedule.residency import MEAN_LIFE
from npusim.compiler.schedule.rolling_buffer import StripedValue
from npusim.compiler.schedule.sharding import make_shards, move_to_cores
from npusim.compiler.schedule.step_costs import KnownCosts, StepCosts
from npusim.compiler.schedule.stripe_heights import is_closed, rolling_values
from npusim.explore.estimates.layers import EstimatedLayer, layers
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.memory import align
from npusim.isa.matrix_types import packed_bytes
from npusim.units import ceil_div


@dataclass(frozen=True, slots=True)
class Value:
    """A value whose memory is chosen: its bytes, and the first and the last layer that use it."""

    buffer: Buffer
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Stripes:
    """A cascade with stripes of one height: ``rows`` that each layer makes at once, bytes of all windows, and how many
    stripes there are in all images."""

    rows: tuple[int, ...]
    windows: int
    turns: int


@dataclass(frozen=True, slots=True)
class CascadeSpan:
    """Layers ``first`` to ``last`` as a cascade: of each layer which values are in windows, and whether its input is;
    buffers that are loaded into windows with their bytes."""

    first: int
    last: int
    near: tuple[int, ...]
    direct: tuple[bool, ...]
    loaded: tuple[tuple[Buffer, int], ...]
    heights: tuple[Stripes, ...]


class Transfer(NamedTuple):
    """What cores send each other of the result of a layer, if it is in their scratchpads. ``buffer``: of the first
    core. ``nbytes``: bytes over the exchange network; without one, bytes written to DRAM or L2 and read from it.
    ``relay``: bytes that they occupy there."""

    layer: int
    buffer: Buffer
    nbytes: int
    relay: int


class PreparedNetwork:
    """What does not depend on the numbers that differ: made once for many designs. Raises what ``prepare`` raises."""

    def __init__(
        self,
        graph: Graph,
        config: Config,
        fused: Collection[str] = (),
        cut_for: Config | None = None,
        *,
        cascades: bool = True,
    ) -> None:
        """``fused``: the first operators of the attentions that are fused, of those in ``attentions``. ``cut_for``: a
        device with several cores; the layers are the first core's shards of the layers as the compiler cuts them for
        this device, with or without ``cascades``."""
        self.config = config
        prepared = self.graph = separate_outputs(prepare(graph, config))
        self.ends = ends_of(prepared)
        groups = form_groups(prepared.ops, prepared.outputs, config.compiler.fuses)
        possible = possible_attentions(groups, prepared.outputs) if config.compiler.fuses == "all" else ()
        self.attentions = dict(possible)
        if fused:
            groups = form_attention(groups, prepared.outputs, config, fused, others=False)
        self.transfers: list[Transfer] = []
        self.cut: Collection[Buffer] | None = None
        if cut_for is None:
            groups = join_ranges(groups)
            self.context = Context(config, ConstantPool())
            placed, buffers = place(prepared, groups, self.context)
            self.layers = layers(((group, self.context) for group in placed), buffers)
            self.costs = StepCosts(placed, buffers, self.context, KnownCosts())
        else:
            self.context = Context(cut_for, ConstantPool())
            placed, buffers = place(prepared, groups, self.context)
            self.layers = self._cut(placed, buffers, cascades=cascades)
        self.users = {buffer: users for buffer, users in self.costs.users.items() if users}
        self.values = list(self._values())
        self._spans: list[CascadeSpan] | None = None

    @property
    def spans(self) -> list[CascadeSpan]:
        """The cascades that there may be; found when they are first asked for."""
        if self._spans is None:
            self._spans = list(self._cascades())
        return self._spans

    def _cut(self, groups: Sequence[Group], buffers: Sequence[Buffer], *, cascades: bool) -> list[EstimatedLayer]:
        """The first core's shards."""
        whole, device = self.context, self.context.config
        apart = replace(whole, constants=ConstantPool(), views=dict(whole.views), memo={})
        cuts: Sequence[LayerCut] = AxisSearch(groups, apart, in_bands=cascades, passes=True).run()
        if cascades:
            cuts = with_all_halos(groups, apart, cuts, ())
        shards = make_shards(groups, whole, cuts, passes=True)
        if not shards.are_cut:
            self.costs = StepCosts(groups, buffers, whole, KnownCosts())
            return layers(((group, whole) for group in groups), buffers)
        self.context = shards.contexts[0]
        moved, shared = move_to_cores(groups, buffers, shards)
        multicast, by_dram = device.interconnect.multicast, device.exchange is None
        for tensor in shared:
            for number, sent in transfers_of(tensor, shards.shards, multicast=multicast, by_dram=by_dram):
                # Bytes that several cores read are written to DRAM once.
                written = {(each.relay.offset, each.relay.shape): each.relay for each in sent if each.relay}
                moved_views = *written.values(), *(each.source for each in sent)
                nbytes = sum(prod(view.shape) * view.dtype.itemsize for view in moved_views)
                if nbytes:
                    self.transfers.append(Transfer(number, tensor.buffers[0], nbytes, tensor.whole.nbytes))
        self.cut = dict.fromkeys(copies[0] for copies in moved.values())
        # All other values stay as a whole, outside of the scratchpads.
        found, buffers = shards.on_first_core(groups), [*self.cut, *(each for each in buffers if each not in moved)]
        first = [group for group, _ in found]
        self.costs = StepCosts(first, buffers, self.context, KnownCosts(), shards.other_cores())
        found_layers = layers(found, buffers)
        for layer, own in zip(found_layers, shards.shards, strict=True):
            sizes = [prod(each.group.outputs[0].shape) for each in own or ()]
            layer.share = sum(sizes) / sizes[0] if sizes and sizes[0] else 1.0
        return found_layers

    def _values(self) -> Iterator[Value]:
        """Those that the planner tries, in its order."""
        uses = self.users.items()
        values = [
            Value(buffer, align(max(buffer.nbytes, 1)), users[0], users[-1])
            for buffer, users in uses
            if self.cut is None or buffer in self.cut
        ]
        left = MEAN_LIFE * len(self.layers)
        for value in sorted(values, key=self._order):
            if (life := value.last - value.first + 1) <= left:
                left -= life
                yield value

    def _order(self, value: Value) -> tuple[float, int, int]:
        """The order of the compiler: values first whose bytes are moved most often during their lifetime."""
        worth = len(self.users[value.buffer]) / (value.last - value.first + 1)
        return -worth, value.buffer.nbytes, value.first

    def _cascades(self) -> Iterator[CascadeSpan]:
        groups = self.costs.groups
        for first in range(len(groups)):
            end, wanted = min(first + LONGEST, len(groups)), first
            for last in range(first, end):
                if rows_of(groups[last], self.context) is None or wanted >= end:
                    break
                run, is_complete = groups[first : last + 1], last > first and wanted <= last
                users = self.users.get(self.context.view(groups[last].outputs[0]).buffer)
                wanted = max(wanted, users[-1] if users else len(groups))
                striped = rolling_values(run, self.context) if is_complete and is_closed(run, self.costs) else None
                span = self._span(run, striped) if striped is not None else None
                if span is not None:
                    yield span

    def _span(self, groups: Sequence[Group], striped: Sequence[StripedValue]) -> CascadeSpan | None:
        shape = outline(groups, striped, self.context, self.costs.cores)
        if shape is None:
            return None
        first, last = groups[0].index, groups[-1].index
        loaded = [value.tensor for value in striped if value.maker >= len(groups)]
        in_windows = {value.tensor for value in striped} | {t for value in striped for t, _ in value.slices}
        buffers = {self.context.view(tensor).buffer for tensor in in_windows}
        heights = []
        height = groups[-1].outputs[0].shape[rows_of(groups[-1], self.context) or 0]
        height = height * 2 if groups[-1].outputs[0].shape[0] > 1 else height
        while height > 1:
            height = ceil_div(height, 2)
            heights.append(_stripes(shape.cut(height)))
        near = tuple(sum(layer.bit(buffer) for buffer in buffers) for layer in self.layers[first : last + 1])
        direct = tuple(group.anchor is not None and group.anchor.input(0) in in_windows for group in groups)
        sources = tuple((self.context.view(tensor).buffer, tensor.nbytes) for tensor in loaded)
        return CascadeSpan(first, last, near, direct, sources, tuple(heights))


def _stripes(cascade: Cascade) -> Stripes:
    windows = sum(align(each.buffer.nbytes) for each in cascade.rolling)
    return Stripes(tuple(cascade.rows), windows, cascade.images * len(cascade.stripes))


def weight_bytes(group: Group) -> int:
    """Bytes of a convolution's constant weights, as loaded."""
    anchor = group.anchor
    if anchor is None or anchor.kind != "conv":
        return 0
    return packed_bytes(anchor.input(1).size, anchor.input(1).dtype, anchor.attrs["w_bits"])
