"""The schedule of a program: one record of every choice that the graph and the device leave to the compiler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

SEARCHED = ("fused_attention", "shards", "cascades", "memory", "pinned")
"""The kinds of choices that consist of entries, each for one layer or tensor."""


@dataclass(frozen=True, slots=True)
class LayerShard:
    """How cores divide a layer: along dimension ``axis`` of its result; None: they share its tiles.

    ``cores``: the number of cores that work on it, 0: all cores of the program. ``halo``: each core also computes the
    rows beside its own that later layers on this core read, so that the cores do not exchange them.
    """

    layer: str
    axis: int | None
    cores: int = 0
    halo: bool = False


@dataclass(frozen=True, slots=True)
class LayerCascade:
    """Neighbouring layers that are computed together, a few rows at a time. An entry with one layer keeps it out of
    cascades.

    Fields that are 0 or None are searched. ``rows``: rows of the last result per stripe. ``overlap``: whether the
    stripe that one unit writes never overlaps the one that another unit reads at the same time. ``loads``: tensors
    outside the scratchpad that are read more than once, so their rows are loaded into rolling buffers. ``offsets``:
    byte addresses of the rolling buffers, those of tensors between layers first.
    """

    layers: tuple[str, ...]
    rows: int = 0
    overlap: bool | None = None
    loads: tuple[str, ...] | None = None
    offsets: tuple[int, ...] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether no field is left to the search."""
        return len(self.layers) == 1 or (self.rows > 0 and None not in (self.overlap, self.loads, self.offsets))


@dataclass(frozen=True, slots=True)
class TensorMemory:
    """The memory area of a tensor, one of :data:`AREAS`. ``offset``: its address in the scratchpad, None: searched."""

    tensor: str
    area: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class PinnedLayer:
    """A layer whose weights stay in the scratchpad between inferences. ``offset``: their address, None: searched."""

    layer: str
    offset: int | None = None


SCRATCHPAD, ROLLING, L2, DRAM = AREAS = ("scratchpad", "rolling buffer", "l2", "dram")
"""Memory areas of tensors. A rolling buffer holds the rows of a tensor that a cascade has still to read."""

OPERANDS_FIRST, AFTER_TRIALS, BY_USE = ORDERS = ("operands first", "after trials", "by use")
"""Orders of the constants in memory. "operands first": those that layers read unchanged, then packed weights. "after
trials": behind the constants that the shard search placed while it tried shards. "by use": by first use."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices for one program. A field that is None, or of a kind in ``search`` without an entry, is left to the
    search.

    ``cores``: number of cores with work. ``channels``: DMA channels per core that the plan uses. ``backing``: the
    memory, "dram" or "l2", that is assumed to hold what does not fit into the scratchpads when tiles are chosen.
    ``exchange``: whether cores pass tensors to each other's scratchpads, over the exchange network, or through DRAM if
    there is none. ``large_tiles``: whether tiles of layers with pinned weights are chosen as if loading weights were
    free. ``constants``: the order of the constants, one of :data:`ORDERS`. ``fused_attention``: the first layers of
    attention blocks that run as one layer. ``search``: a subset of :data:`SEARCHED`; kinds that are not in it have no
    other entries than those given.
    """

    cores: int | None = None
    channels: int | None = None
    backing: str | None = None
    exchange: bool | None = None
    large_tiles: bool | None = None
    constants: str | None = None
    fused_attention: tuple[str, ...] = ()
    shards: tuple[LayerShard, ...] = ()
    cascades: tuple[LayerCascade, ...] = ()
    memory: tuple[TensorMemory, ...] = ()
    pinned: tuple[PinnedLayer, ...] = ()
    search: frozenset[str] = frozenset(SEARCHED)

    def searches(self, kind: str) -> bool:
        """Whether the search may add choices of this kind."""
        return kind in self.search

    @property
    def has_entries(self) -> bool:
        """Whether it has an entry for any layer or tensor."""
        return any((self.fused_attention, self.shards, self.cascades, self.memory, self.pinned))

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to the search."""
        return not self.search and None not in (self.cores, self.channels, self.backing, self.exchange, self.constants)

    def agrees_with(self, other: Schedule) -> bool:
        """Whether two schedules have no conflicting values of cores, channels, backing memory and exchange."""
        pairs = (
            (self.cores, other.cores),
            (self.channels, other.channels),
            (self.backing, other.backing),
            (self.exchange, other.exchange),
        )
        return all(ours is None or theirs is None or ours == theirs for ours, theirs in pairs)

    def with_(self, *closed: str, **choices: Any) -> Schedule:
        """Return a schedule with other choices, and no search for the kinds ``closed``."""
        return replace(self, search=self.search - set(closed), **choices)


FREE = Schedule()
"""The schedule without constraints: everything is searched."""


def unique_names(names: Iterable[str]) -> list[str]:
    """Make names unique, in order: repeated names get the suffix ``#2``, ``#3`` and so on."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found
