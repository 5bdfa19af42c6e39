"""Values that cores cut differently, or whose neighbouring rows they need: each core has in its SRAM what it makes of
such a value and what it reads of it, at the same addresses as all others, and gives what it has made to those who want
it as soon as it has made all of it.

Who wants which bytes follows from what parts of groups touch. Of what a core has made, whole steps of the outermost
dimension in memory are given, those that lie among the bytes that another one wants: rows of an image for a window over
them, all of a part for who reads the whole. Cores that want the same of it get it at once, if the device can do that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from npusim.compiler.buffers import Buffer, View
from npusim.compiler.codegen.issue import Item, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context
from npusim.compiler.lower.transfer import copy_items
from npusim.compiler.schedule.shards import Part
from npusim.compiler.schedule.slots import Span
from npusim.graph import Tensor
from npusim.isa.dma import Copy, Exchange


def join(one: Span | None, other: Span | None) -> Span | None:
    """The bytes from the first to the last of both."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


@dataclass(slots=True)
class CoreTransfer:
    """What a core has made and gives to others: where it lies in its SRAM, and where in theirs."""

    core: int
    source: View
    targets: list[View]

    def items(self) -> Iterator[Item]:
        """The instructions, which the giver's channel executes."""
        # As they lie in memory, so that as few dimensions as possible are walked.
        order = self.source.order()
        first, source = self.targets[0].permute(order), self.source.permute(order)
        cores = sum(1 << (view.buffer.core or 0) for view in self.targets)
        copies = copy_items(
            (first.address, first.strides, first), (source.address, source.strides, self.source),
            first.shape, first.dtype.itemsize,
        )  # fmt: skip
        for item in copies:
            copy = item.instruction
            assert isinstance(copy, Copy)
            fields = {each.name: getattr(copy, each.name) for each in copy.fields}
            yield Item(Exchange(**fields, source=self.core, cores=cores), item.reads, tuple(self.targets), self.core)


def giving(gifts: Sequence[CoreTransfer], core: int) -> Iterator[Tile]:
    """What a core gives, as the last step of its part of a group."""
    items = [item for gift in gifts if gift.core == core for item in gift.items()]
    if items:
        yield Tile(stores=items)


@dataclass(slots=True)
class SharedTensor:
    """What is known of a value that cores may exchange: what each of them touches, what it reads, and who makes it."""

    whole: Buffer
    cores: int
    all: list[Span | None] | None = field(default_factory=list)
    """None: some core may touch any byte."""
    read: list[Span | None] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)
    is_possible: bool = True
    """Whether it can be exchanged."""
    buffers: list[Buffer] = field(default_factory=list)
    """Those of the cores."""
    bases: list[int] = field(default_factory=list)
    """Which byte of the value a core's first one is."""
    moved: dict[tuple[int, Tensor], View] = field(default_factory=dict)
    """Views as they were of the whole value, by core and tensor."""

    def __post_init__(self) -> None:
        self.all, self.read = [None] * self.cores, [None] * self.cores

    def add(self, group: Group, touched: Sequence[Span | None] | None, *, makes: bool, reads: bool) -> None:
        """One more group that touches the value; ``touched``: None for any bytes."""
        # Who makes what lies among what it reads would be given the one before it has read the other.
        self.is_possible = self.is_possible and touched is not None and not (makes and reads)
        if touched is None or self.all is None:
            self.all = None
            return
        self.all = list(map(join, self.all, touched))
        if makes:
            self.makers.append(group.index)
        if reads:
            self.read = list(map(join, self.read, touched))

    def spans(self, parts: Sequence[Sequence[Part] | None], contexts: Sequence[Context]) -> list[Span | None]:
        """Which bytes of the value each core has: what it makes, what it reads, and what it is given with that."""
        found = list(self.read)
        for core, made in self._made(parts, contexts):
            found[core] = join(found[core], made.extent())
            for other, wanted in enumerate(self.read):
                if other != core and wanted is not None and (part := _among(made, wanted)) is not None:
                    found[other] = join(found[other], part.extent())
        return found

    def begin(self, buffers: list[Buffer], spans: Sequence[Span | None]) -> None:
        """The cores have these buffers, for these bytes of the value."""
        self.buffers, self.bases = buffers, [span[0] for span in spans if span is not None]
        for buffer in buffers:
            buffer.is_met = True

    def part(self, contexts: Sequence[Context]) -> None:
        """The cores meet in DRAM after all."""
        for (core, tensor), view in self.moved.items():
            contexts[core].views[tensor] = view

    def view(self, made: View, core: int) -> View:
        """Bytes of the value where a core has them."""
        return made.moved({self.whole: (self.buffers[core], -self.bases[core])})

    def _made(self, parts: Sequence[Sequence[Part] | None], contexts: Sequence[Context]) -> Iterator[tuple[int, View]]:
        """(core, part of the value that it makes): as long as views are of the whole value."""
        for number in self.makers:
            for core, (part, context) in enumerate(zip(parts[number] or (), contexts, strict=False)):
                yield core, context.views[part.group.outputs[0]]


def gifts(
    meeting: SharedTensor, parts: Sequence[Sequence[Part] | None], *, several: bool
) -> Iterator[tuple[int, list[CoreTransfer]]]:
    """What cores give after each group that makes a value. ``several``: to several cores at once."""
    for number in meeting.makers:
        found: list[CoreTransfer] = []
        for core, part in enumerate(parts[number] or ()):
            made = meeting.moved[core, part.group.outputs[0]]
            known: dict[tuple[int, tuple[int, ...], int], CoreTransfer] = {}
            for other, wanted in enumerate(meeting.read[: len(meeting.buffers)]):
                if other == core or wanted is None or (given := _among(made, wanted)) is None:
                    continue
                target = meeting.view(given, other)
                key = given.offset, given.shape, meeting.bases[other] if several else ~other
                if key in known:
                    known[key].targets.append(target)
                else:
                    known[key] = CoreTransfer(core, meeting.view(given, core), [target])
            found += known.values()
        yield number, found


def _among(made: View, wanted: Span) -> View | None:
    """The steps of the outermost dimension in memory that touch some bytes; None if none does."""
    axis = next((axis for axis in made.order() if made.shape[axis] > 1), None)
    low, high = made.extent()
    if high <= wanted[0] or wanted[1] <= low:
        return None
    if axis is None or made.strides[axis] <= 0:
        return made
    stride, length = made.strides[axis], made.shape[axis]
    step = high - low - (length - 1) * stride
    first = max(0, -((low + step - wanted[0] - 1) // stride) if wanted[0] >= low + step else 0)
    end = min(length, -(-(wanted[1] - low) // stride))
    if first >= end:
        return None
    starts = [first if at == axis else 0 for at in range(len(made.shape))]
    sizes = [end - first if at == axis else dim for at, dim in enumerate(made.shape)]
    return made.slice(starts, sizes)
