"""The schedule of a program: every choice that the graph and the device leave to the compiler, as one record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

SEARCHED = ("fused_attention", "shards", "cascades", "memory", "pinned")
"""The choices that consist of entries, one for each layer or tensor."""


@dataclass(frozen=True, slots=True)
class LayerShard:
    """How cores divide a layer: along dimension ``axis`` of its result, None: its tiles are shared out.

    ``cores``: how many of the program's cores work on it, 0: all.
    """

    layer: str
    axis: int | None
    cores: int = 0


@dataclass(frozen=True, slots=True)
class LayerCascade:
    """Neighbouring layers that are computed together, some rows at a time; one layer alone is in no cascade.

    What is 0 or None is searched. ``rows``: rows of the last result for each stripe. ``overlap``: whether a stripe that
    one unit writes has bytes of its own beside the one that another unit reads at the same time. ``loads``: tensors
    outside of the scratchpad that are read more than once, so that their rows are loaded into rolling buffers.
    ``offsets``: the first bytes of the rolling buffers, those of tensors between layers first.
    """

    layers: tuple[str, ...]
    rows: int = 0
    overlap: bool | None = None
    loads: tuple[str, ...] | None = None
    offsets: tuple[int, ...] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing about it is searched."""
        return len(self.layers) == 1 or (self.rows > 0 and None not in (self.overlap, self.loads, self.offsets))


@dataclass(frozen=True, slots=True)
class TensorMemory:
    """The memory area of a tensor, see :data:`AREAS`; ``offset``: its first byte in the scratchpad, None: searched."""

    tensor: str
    area: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class PinnedLayer:
    """A layer whose weights stay in the scratchpad between inferences; ``offset``: first byte, None: searched."""

    layer: str
    offset: int | None = None


SCRATCHPAD, ROLLING, L2, DRAM = AREAS = ("scratchpad", "rolling buffer", "l2", "dram")
"""Memory areas of tensors: a rolling buffer holds the rows of a tensor that a cascade still reads."""

OPERANDS_FIRST, AFTER_TRIALS, BY_USE = ORDERS = ("operands first", "after trials", "by use")
"""Orders of the constants in memory: first those that layers read as they are, then packed weights; first those of the
layers on the shards that the search has tried; each where it is used first."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices for one program. What is None, or of a kind in ``search`` without an entry, is left to the search.

    ``cores``: that have work. ``channels``: DMA channels of each core that are planned for. ``backing``: the memory,
    "dram" or "l2", that is expected to hold what the scratchpads do not hold when tiles are chosen. ``exchange``:
    whether cores pass tensors to each other's scratchpads: over the exchange network, or through DRAM without one.
    ``large_tiles``: whether the tiles of layers with pinned weights are chosen as if weights cost no loads.
    ``constants``: the order of the constants, see :data:`ORDERS`.
    ``fused_attention``: the first layers of attentions that run as one layer. ``search``: a subset of
    :data:`SEARCHED`; of the other kinds the entries are all that there is.
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
        """Whether choices of a kind that have no entry are searched."""
        return kind in self.search

    @property
    def has_entries(self) -> bool:
        """Whether it names any layer or tensor."""
        return any((self.fused_attention, self.shards, self.cascades, self.memory, self.pinned))

    @property
    def is_complete(self) -> bool:
        """Whether nothing is searched."""
        return not self.search and None not in (self.cores, self.channels, self.backing, self.exchange, self.constants)

    def agrees_with(self, other: Schedule) -> bool:
        """Whether another schedule has the cores, channels, backing memory and exchange that this one sets."""
        pairs = (
            (self.cores, other.cores),
            (self.channels, other.channels),
            (self.backing, other.backing),
            (self.exchange, other.exchange),
        )
        return all(ours is None or theirs is None or ours == theirs for ours, theirs in pairs)

    def with_(self, *closed: str, **choices: Any) -> Schedule:
        """A schedule with other choices, which searches no entries of the kinds ``closed``."""
        return replace(self, search=self.search - set(closed), **choices)


FREE = Schedule()
"""The schedule without constraints: everything is searched."""


def unique_names(names: Iterable[str]) -> list[str]:
    """Names in order; one that occurred before has ``#2``, ``#3`` and so on behind it."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found
