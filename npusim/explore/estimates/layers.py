"""The layers of a network as the compiler groups them, and the work of each for every choice of memories.

The work is taken from the compiler's own lowerings, which are made once for one device: other devices differ only in
prices and tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

import numpy as np

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.attention import AttentionLowering
from npusim.compiler.lower.base import Context, Lowering, SlotTable
from npusim.compiler.lower.kinds import lower
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.compiler.passes.fill_groups import counts_of, is_grouped, joined_attrs
from npusim.compiler.schedule.slots import place_slots
from npusim.errors import CompileError
from npusim.explore.estimates.attentions import RowBlocks, blocks_of
from npusim.explore.estimates.tiles import Case
from npusim.graph import Op, Tensor
from npusim.hw.memory import align
from npusim.isa.base import Command, Space, Unit, Wait
from npusim.timing.tile_problem import Home
from npusim.work import DmaWork, ScalarWork, VectorWork


@dataclass(frozen=True)
class Plain:
    """A layer without matrix products.

    ``vector``, ``scalar``: (work, number of times). ``far``: (bit of the buffer, bytes moved to and from DRAM or L2).
    ``near``: bytes moved within SRAM. ``code``: bytes of commands. ``slots``: bytes of a tile. ``loaded``, ``stored``:
    ((runs, bytes of a run), number of transfers) of transposing transfers. ``ends``: transfers that nothing hides.
    """

    vector: tuple[tuple[VectorWork, int], ...]
    scalar: tuple[tuple[ScalarWork, int], ...]
    far: tuple[tuple[int, int], ...]
    near: int
    code: int
    slots: int
    loaded: tuple[tuple[tuple[int, int], int], ...] = ()
    stored: tuple[tuple[tuple[int, int], int], ...] = ()
    ends: tuple[DmaWork, ...] = ()


Demand = Case | Plain | tuple[RowBlocks, ...]
"""The work of a layer: a matrix product, anything else, or a fused attention."""


@dataclass(slots=True)
class EstimatedLayer:
    """A group and the values in memory that it uses. The planner chooses the memory of ``buffers``.

    ``counts``: for a grouped convolution, the numbers of groups that the compiler may join. ``share``: the work of all
    cores divided by that of the first, if the layer is cut.
    """

    group: Group
    context: Context
    buffers: list[Buffer] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [1])
    share: float = 1.0
    cases: dict[int, Demand | None] = field(default_factory=dict)
    forms: dict[int, Group] = field(default_factory=dict)

    @property
    def is_cut(self) -> bool:
        """Whether it is the first core's shard of a layer."""
        return self.context.whole is not None

    @property
    def bits(self) -> int:
        """The number of bits of a code: one per buffer, and above them an index in ``counts``."""
        return len(self.buffers) + (len(self.counts) - 1).bit_length()

    def form(self, number: int) -> Group:
        """The group with ``counts[number]`` groups of its convolution joined."""
        if number not in self.forms:
            several = len(self.counts) > 1
            self.forms[number] = _joined(self.group, self.counts[number]) if several else self.group
        return self.forms[number]

    def case(self, near: int) -> Demand | None:
        """The work if the buffers whose bits are set in ``near`` are in SRAM; None if that is impossible."""
        if near not in self.cases:
            self.cases[near] = self._case(near)
        return self.cases[near]

    def _case(self, near: int) -> Demand | None:
        for bit, buffer in enumerate(self.buffers):
            buffer.core = 0 if near >> bit & 1 else None
        try:
            self.context.room = self.context.sram_bytes
            lowering = lower(self.context, self.form(near >> len(self.buffers)))
            if isinstance(lowering, AttentionLowering):
                return blocks_of(lowering, {buffer: self.bit(buffer) for buffer in self.buffers})
            return Case.of(lowering) if isinstance(lowering, MatrixLowering) else _plain(lowering, self)
        except CompileError:
            return None
        finally:
            for buffer in self.buffers:
                buffer.core = None

    def striped(self, case: Case, rows: int, *, window: bool) -> Case:
        """The case for ``rows`` rows at a time, with all weights in SRAM. ``window``: the input is in SRAM, too."""
        x_home = Home.DIRECT if window else case.problem.x_home
        return replace(case, problem=case.problem._replace(held=1, x_home=x_home, oh=rows))

    def in_l2(self, code: int) -> int:
        """The sum of 1, 2 and 4 for the input, the result and other operands in the L2, given the bits of the buffers
        in the L2."""
        anchor = self.group.anchor
        if not code or anchor is None:
            return 0
        x, out = self._bit_of(anchor.input(0)), self._bit_of(self.group.outputs[0])
        return bool(code & x) + 2 * bool(code & out) + 4 * bool(code & ~x & ~out)

    def _bit_of(self, tensor: Tensor) -> int:
        view = self.context.views.get(tensor)
        return 0 if view is None else self.bit(view.buffer)

    def bit(self, buffer: Buffer) -> int:
        """The bit of a buffer; 0 if the layer does not use it, or its memory is not chosen."""
        return 1 << self.buffers.index(buffer) if buffer in self.buffers else 0


def layers(groups: Iterable[tuple[Group, Context]], buffers: Sequence[Buffer]) -> list[EstimatedLayer]:
    """The layers of a network, each with the context of its lowering. ``buffers``: those whose memory is chosen."""
    wanted = {buffer for buffer in buffers if buffer.is_scratch and buffer.nbytes}
    found = []
    for group, outer in groups:
        context = copy(outer)
        context.tiles = False
        layer = EstimatedLayer(group, context)
        # Shards keep their groups: the compiler joins those of whole layers.
        whole = context.config.matrix is not None and context.whole is None
        if whole and group.anchor is not None and is_grouped(group.anchor):
            layer.counts = counts_of(group.anchor)
        for tensor in group.stored():
            view = context.views.get(tensor)
            if view is not None and view.buffer in wanted and view.buffer not in layer.buffers:
                layer.buffers.append(view.buffer)
        found.append(layer)
    return found


def _joined(group: Group, count: int) -> Group:
    """A group with ``count`` groups of its convolution joined. The values of the weights are not read."""
    op = group.anchor
    assert op is not None
    x, w, *others = op.inputs
    assert w is not None
    assert w.data is not None
    if count > 1:
        oc, ic, *kernel = w.shape
        shape = oc, count * ic, *kernel
        w = Tensor(w.name, shape, w.dtype, np.broadcast_to(np.zeros((), w.data.dtype), shape))
    attrs = MappingProxyType(joined_attrs(op, count))
    return replace(group, anchor=Op(op.name, op.kind, (x, w, *others), op.outputs, attrs, op.origin))


_FIRST, _LAST = DmaWork(64, 1, 64, 64, 0), DmaWork(64, 1, 64, 0, 64)
"""A load and a store of a few bytes, whose time is almost only latency."""
_ONE_WAIT = (Wait(0, Unit.CONTROL, 0),)


def _plain(lowering: Lowering, layer: EstimatedLayer) -> Plain:
    context = layer.context
    vector: Counter[VectorWork] = Counter()
    scalar: Counter[ScalarWork] = Counter()
    specs = lowering.slots()
    starts = place_slots(specs, [(0, context.sram_bytes)], low_end=True) or []
    code = bursts = 0
    ends: dict[DmaWork, None] = {}
    loaded: Counter[tuple[int, int]] = Counter()
    stored: Counter[tuple[int, int]] = Counter()
    for step in lowering.steps(SlotTable(0, specs, starts), 0, 1):
        code += sum(
            Command(0, item.instruction.unit, 0, _ONE_WAIT, item.instruction).size
            for item in (*step.loads, *step.compute, *step.stores)
        )
        for item in step.compute:
            work = item.instruction.work()
            if isinstance(work, VectorWork):
                vector[work] += 1
            elif isinstance(work, ScalarWork):
                scalar[work] += 1
        for items, runs in ((step.loads, loaded), (step.stores, stored)):
            for item in items:
                work = item.instruction.work()
                if isinstance(work, DmaWork) and (work.reads or work.writes):
                    ends[_LAST if work.writes else _FIRST] = None
                if isinstance(work, DmaWork) and work.walk:
                    inside = (work.runs, work.run_bytes) if work.is_local else (work.pieces, work.piece_bytes)
                    runs[inside] += inside[0] > 1
                    short = max(0, lowering.config.dma.burst_bytes - work.run_bytes)
                    bursts += 2 * work.runs * short if work.reads and work.writes else 0
    far, near = Counter({0: bursts}), 0
    # Values that are concatenated in place are not moved.
    for view in lowering.moves() if code else ():
        count = prod(dim for dim, stride in zip(view.shape, view.strides, strict=True) if stride) * view.dtype.itemsize
        if view.buffer.on_chip:
            near += count
        else:
            far[layer.bit(view.buffer)] += count
    slots = sum(align(max(spec.nbytes, 1)) * spec.copies for spec in specs if spec.space is Space.SRAM)
    words = tuple((+loaded).items()), tuple((+stored).items()), tuple(ends)
    return Plain(tuple(vector.items()), tuple(scalar.items()), tuple((+far).items()), near, code, slots, *words)
