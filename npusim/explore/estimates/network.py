"""A network on many devices of one kind: its layers, its values and its possible cascades."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group, form_groups, join_ranges
from npusim.compiler.lower.base import ConstantPool, Context
from npusim.compiler.passes.fill_groups import ends_of
from npusim.compiler.passes.legalize import separate_outputs
from npusim.compiler.pipeline import prepare
from npusim.compiler.schedule.attention import form_attention, possible_attentions
from npusim.compiler.schedule.cascade import LONGEST, Cascade, outline, rows_of, values_between, values_reread
from npusim.compiler.schedule.layout import place
from npusim.compiler.schedule.residency import MEAN_LIFE
from npusim.compiler.schedule.rolling_buffer import StripedValue
from npusim.explore.estimates.layers import layers
from npusim.graph import Graph, Tensor
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


class PreparedNetwork:
    """What does not depend on the numbers that differ: made once for many designs. Raises what ``prepare`` raises."""

    def __init__(self, graph: Graph, config: Config, fused: Collection[str] = ()) -> None:
        """``fused``: the first operators of the attentions that are fused, of those in ``attentions``."""
        self.config = config
        prepared = separate_outputs(prepare(graph, config))
        self.ends = ends_of(prepared)
        groups = form_groups(prepared.ops, prepared.outputs, config.compiler.fuses)
        possible = possible_attentions(groups, prepared.outputs) if config.compiler.fuses == "all" else ()
        self.attentions = dict(possible)
        if fused:
            groups = form_attention(groups, prepared.outputs, config, fused, others=False)
        if config.cores == 1:
            groups = join_ranges(groups)
        self.context = Context(config, ConstantPool())
        placed, buffers = place(prepared, groups, self.context)
        self.layers = layers(placed, self.context, buffers)
        self.users = self._uses()
        self.values = list(self._values())
        self._spans: list[CascadeSpan] | None = None

    @property
    def spans(self) -> list[CascadeSpan]:
        """The cascades that there may be; found when they are first asked for."""
        if self._spans is None:
            self._spans = list(self._cascades())
        return self._spans

    def _uses(self) -> dict[Buffer, list[int]]:
        users: dict[Buffer, list[int]] = {}
        for number, layer in enumerate(self.layers):
            for buffer in layer.buffers:
                users.setdefault(buffer, []).append(number)
        return users

    def _values(self) -> Iterator[Value]:
        """Those that the planner tries, in its order."""
        uses = self.users.items()
        values = [Value(buffer, align(max(buffer.nbytes, 1)), users[0], users[-1]) for buffer, users in uses]
        left = MEAN_LIFE * len(self.layers)
        for value in sorted(values, key=self._order):
            if (life := value.last - value.first + 1) <= left:
                left -= life
                yield value

    def _order(self, value: Value) -> tuple[float, int, int]:
        """The order of the compiler: values first whose bytes are moved most often during their lifetime."""
        worth = len(self.users[value.buffer]) / (value.last - value.first + 1)
        return -worth, value.buffer.nbytes, value.first

    # cascades

    def _cascades(self) -> Iterator[CascadeSpan]:
        tensors = self._tensors()
        groups = [layer.group for layer in self.layers]
        for first in range(len(groups)):
            end, wanted = min(first + LONGEST, len(groups)), first
            for last in range(first, end):
                if rows_of(groups[last], self.context) is None or wanted >= end:
                    break
                found = (
                    values_between(groups[first : last + 1], self.context) if last > first and wanted <= last else None
                )
                wanted = max(wanted, self._last_use(groups[last]))
                if found is not None and self._closed(found, first, last, tensors):
                    span = self._span(first, last, found)
                    if span is not None:
                        yield span

    def _tensors(self) -> dict[Buffer, set[Tensor]]:
        found: dict[Buffer, set[Tensor]] = {}
        for layer in self.layers:
            for tensor in layer.group.stored():
                if tensor in self.context.views:
                    found.setdefault(self.context.views[tensor].buffer, set()).add(tensor)
        return found

    def _last_use(self, group: Group) -> int:
        users = self.users.get(self.context.view(group.outputs[0]).buffer)
        return users[-1] if users else len(self.layers)

    def _closed(self, inner: Sequence[StripedValue], first: int, last: int, tensors: dict[Buffer, set[Tensor]]) -> bool:
        """Whether no layer outside uses the values, and none shares its buffer."""
        for value in inner:
            buffer = self.context.views[value.tensor].buffer
            users = self.users.get(buffer)
            if users is None or users[0] < first or users[-1] > last or len(tensors[buffer]) > 1:
                return False
        return True

    def _span(self, first: int, last: int, inner: Sequence[StripedValue]) -> CascadeSpan | None:
        group_layers = self.layers[first : last + 1]
        groups = [layer.group for layer in group_layers]
        loaded = values_reread(groups, inner, self.context)
        values = [*inner, *loaded]
        in_windows = {value.tensor for value in values}
        buffers = {self.context.view(tensor).buffer for tensor in in_windows}
        shape = outline(groups, values, self.context)
        if shape is None:
            return None
        heights = []
        height = groups[-1].outputs[0].shape[rows_of(groups[-1], self.context) or 0]
        height = height * 2 if groups[-1].outputs[0].shape[0] > 1 else height
        while height > 1:
            height = ceil_div(height, 2)
            heights.append(_stripes(shape.cut(height)))
        near = tuple(sum(layer.bit(buffer) for buffer in buffers) for layer in group_layers)
        direct = tuple(group.anchor is not None and group.anchor.input(0) in in_windows for group in groups)
        return CascadeSpan(
            first,
            last,
            near,
            direct,
            tuple((self.context.view(value.tensor).buffer, value.tensor.nbytes) for value in loaded),
            tuple(heights),
        )


def _stripes(cascade: Cascade) -> Stripes:
    windows = sum(align(each.buffer.nbytes) for each in cascade.rolling)
    return Stripes(tuple(cascade.rows), windows, cascade.images * len(cascade.stripes))


def weight_bytes(group: Group) -> int:
    """Bytes of a convolution's constant weights, as loaded."""
    anchor = group.anchor
    if anchor is None or anchor.kind != "conv":
        return 0
    return packed_bytes(anchor.input(1).size, anchor.input(1).dtype, anchor.attrs["w_bits"])
