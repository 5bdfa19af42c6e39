"""Tensors that cores share through their scratchpads.

Layers may be cut along different axes, or read rows that another core computed. For such a tensor, each core's
scratchpad holds the bytes that the core writes or reads, at the same address on every core. As soon as a core has
finished its shard of the layer, it sends the result to the cores that read it: over the exchange network, or, on a
device without one, through DRAM, from where the other cores load it before their next layer.

The bytes that a core reads follow from its shards. A core sends whole steps of the outermost dimension in memory that
overlap the bytes that another core reads, for example rows next to its own band, or a whole shard. If the interconnect
supports multicast, cores that read the same bytes receive them in one transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from npusim.compiler.buffers import Buffer, View
from npusim.compiler.codegen.issue import Item, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context
from npusim.compiler.lower.transfer import copy_items
from npusim.compiler.schedule.regions import Region, cut_view, join, place_view, region_of
from npusim.compiler.schedule.shards import Shard
from npusim.graph import Tensor
from npusim.isa.dma import Copy, Exchange, Multicast


@dataclass(slots=True)
class CoreTransfer:
    """A transfer from one core to others.

    ``source``, ``targets``: the bytes in the scratchpads of sender and receivers. ``relay``: the bytes in DRAM that
    they pass through; None with an exchange network.
    """

    core: int
    source: View
    targets: list[View]
    relay: View | None = None

    def sends(self) -> Iterator[Item]:
        """The instructions of the sending core."""
        if self.relay is not None:
            yield from _copies(self.relay, self.source)
            return
        for item in _copies(self.targets[0], self.source):
            fields = _fields(item)
            exchange = Exchange(**fields, source=self.core, cores=_mask(self.targets))
            yield Item(exchange, item.reads, tuple(self.targets), self.core)

    def receives(self) -> Iterator[Item]:
        """The instructions of the first receiving core."""
        if self.relay is None:
            return
        for item in _copies(self.targets[0], self.relay):
            if len(self.targets) == 1:
                yield item
            else:
                yield Item(Multicast(**_fields(item), cores=_mask(self.targets)), item.reads, tuple(self.targets))


def _copies(target: View, source: View) -> list[Item]:
    # In memory order, so that an instruction has as few dimensions as possible.
    order = source.order()
    to, walked = target.permute(order), source.permute(order)
    return copy_items(
        (to.address, to.strides, target), (walked.address, walked.strides, source), to.shape, to.dtype.itemsize
    )


def _fields(item: Item) -> dict[str, Any]:
    copy = item.instruction
    assert isinstance(copy, Copy)
    return {each.name: getattr(copy, each.name) for each in copy.fields}


def _mask(views: Sequence[View]) -> int:
    return sum(1 << (view.buffer.core or 0) for view in views)


def sent_tiles(transfers: Sequence[CoreTransfer], core: int) -> Iterator[Tile]:
    """What a core sends, as the last tile of its shard of a group."""
    # Through DRAM, bytes are written once for all cores that read them.
    known: set[tuple[int, tuple[int, ...]]] = set()
    items: list[Item] = []
    for transfer in transfers:
        if transfer.core != core:
            continue
        if transfer.relay is not None:
            key = transfer.relay.offset, transfer.relay.shape
            if key in known:
                continue
            known.add(key)
        items += transfer.sends()
    if items:
        yield Tile(stores=items)


def received(transfers: Sequence[CoreTransfer], core: int) -> list[Item]:
    """The loads of a core for what others have sent through DRAM."""
    return [item for each in transfers if each.targets[0].buffer.core == core for item in each.receives()]


@dataclass(slots=True)
class SharedTensor:
    """A tensor that cores may exchange: the bytes that each core uses and reads, and the groups that compute it."""

    whole: Buffer
    row: int
    """Bytes per row; its regions consist of such rows."""
    cores: int
    all: list[Region | None] | None = field(default_factory=list)
    """The bytes that each core uses; None: some core may use any byte."""
    read: list[Region | None] = field(default_factory=list)
    made: list[Region | None] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)
    is_exact: bool = True
    """Whether regions that cores make contain no bytes that others make."""
    is_possible: bool = True
    """Whether cores can exchange it."""
    buffers: list[Buffer] = field(default_factory=list)
    """The buffer of each core."""
    held: list[Region] = field(default_factory=list)
    """The bytes of the tensor that each core's buffer holds."""
    moved: dict[tuple[int, Tensor], View] = field(default_factory=dict)
    """The views of the whole tensor that were replaced by views of the cores' buffers, by core and tensor."""

    def __post_init__(self) -> None:
        self.all, self.read, self.made = [None] * self.cores, [None] * self.cores, [None] * self.cores

    def add(self, group: Group, touched: Sequence[Region | None] | None, *, makes: bool, reads: bool) -> None:
        """Add a group that uses the tensor. ``touched``: bytes by core, None for any bytes."""
        # If a group both reads and writes it, a transfer could overwrite bytes that are still needed.
        self.is_possible = self.is_possible and touched is not None and not (makes and reads)
        if touched is None or self.all is None:
            self.all = None
            return
        self.all = list(map(join, self.all, touched))
        if makes:
            self.makers.append(group.index)
            self.made = list(map(join, self.made, touched))
        if reads:
            self.read = list(map(join, self.read, touched))

    @property
    def is_private(self) -> bool:
        """Whether each core makes all bytes that it reads."""
        pairs = zip(self.made, self.read, strict=True)
        alone = len(self.makers) == 1 and self.is_possible and self.is_exact
        return alone and all(read is None or (made is not None and made.holds(read)) for made, read in pairs)

    def spans(self, shards: Sequence[Sequence[Shard] | None], contexts: Sequence[Context]) -> list[Region | None]:
        """The bytes of the tensor that each core holds: those that it computes, reads, or receives."""
        found = list(self.read)
        for core, made in self._made(shards, contexts):
            found[core] = join(found[core], region_of(made, self.row))
            for other, wanted in enumerate(self.read):
                if other != core and wanted is not None and (sent := cut_view(made, wanted)) is not None:
                    found[other] = join(found[other], region_of(sent, self.row))
        return found

    def begin(self, buffers: list[Buffer], spans: Sequence[Region | None]) -> None:
        """Set the cores' buffers, which hold ``spans`` of the tensor."""
        self.buffers, self.held = buffers, [span for span in spans if span is not None]
        for buffer in buffers:
            buffer.is_met = True

    def keep_in_dram(self, contexts: Sequence[Context]) -> None:
        """Undo :meth:`begin`: the whole tensor is in DRAM, where all cores access it."""
        for (core, tensor), view in self.moved.items():
            contexts[core].views[tensor] = view

    def view(self, made: View, core: int) -> View:
        """The view of bytes of the tensor in a core's buffer."""
        return place_view(made, self.held[core], self.buffers[core])

    def _made(
        self, shards: Sequence[Sequence[Shard] | None], contexts: Sequence[Context]
    ) -> Iterator[tuple[int, View]]:
        """Yield (core, the slice of the tensor that it computes), as views of the whole tensor."""
        for number in self.makers:
            for core, (shard, context) in enumerate(zip(shards[number] or (), contexts, strict=False)):
                yield core, context.views[shard.group.outputs[0]]


def transfers_of(
    tensor: SharedTensor, shards: Sequence[Sequence[Shard] | None], *, multicast: bool, by_dram: bool
) -> Iterator[tuple[int, list[CoreTransfer]]]:
    """Yield (group, transfers) for each group that computes a shared tensor.

    ``multicast``: one transfer may serve several cores. ``by_dram``: the cores have no exchange network.
    """
    for number in tensor.makers:
        found: list[CoreTransfer] = []
        for core, shard in enumerate(shards[number] or ()):
            made = tensor.moved[core, shard.group.outputs[0]]
            known: dict[tuple[int, tuple[int, ...], Region | int], CoreTransfer] = {}
            for other, wanted in enumerate(tensor.read[: len(tensor.buffers)]):
                if other == core or wanted is None or (sent := cut_view(made, wanted)) is None:
                    continue
                target = tensor.view(sent, other)
                key = sent.offset, sent.shape, tensor.held[other] if multicast else other
                if key in known:
                    known[key].targets.append(target)
                else:
                    known[key] = CoreTransfer(core, tensor.view(sent, core), [target], sent if by_dram else None)
            found += known.values()
        yield number, found
