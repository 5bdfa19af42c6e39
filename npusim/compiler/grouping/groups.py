"""Groups: an operator and the elementwise operators that follow it on the same tile, executed as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import groupby

from npusim.dtypes import DType
from npusim.graph import Op, Tensor, consumers
from npusim.isa.base import Unit
from npusim.isa.functions import Reduce, unary_cost
from npusim.ops.base import REGISTRY, ElementForm, Lowered, RowForm
from npusim.polling import poll

ELEMENTWISE = frozenset(name for name, kind in REGISTRY.items() if isinstance(kind.form, ElementForm))
"""Kinds that compute each output element independently."""

ANCHORS = frozenset(name for name, kind in REGISTRY.items() if kind.unit is Unit.MATRIX and kind.form is Lowered.TILES)
"""Kinds of the matrix unit."""

ROWS = frozenset(name for name, kind in REGISTRY.items() if isinstance(kind.form, RowForm))
"""Kinds that work on whole rows."""

CONTINUED = ANCHORS | {
    name for name, kind in REGISTRY.items() if isinstance(kind.form, RowForm) and not kind.form.single
}
"""Kinds whose tiles elementwise operators may continue in SRAM."""

VIEWS = frozenset(name for name, kind in REGISTRY.items() if kind.form is Lowered.VIEW)
"""Kinds whose result is a view of the same bytes if strides can express it."""

MAX_LOADS = 6
"""Maximum number of full-size tensors that a group loads besides its anchor's. With more, little SRAM would remain for
each."""

MAX_OPS = 64
"""Maximum number of operators in a group. It bounds their SRAM and the time to form groups. One extra load and store
per 64 operators costs next to nothing."""


@dataclass(eq=False, slots=True)
class Group:
    """An anchor (None for purely elementwise work) and a chain in topological order.

    The results are the last output and those of ``sides``, its minimum and maximum. ``parts``: the groups of fused
    attention.
    """

    index: int
    anchor: Op | None
    chain: tuple[Op, ...]
    parts: tuple[Group, ...] = ()
    sides: tuple[Op, ...] = ()

    @property
    def ops(self) -> tuple[Op, ...]:
        """All operators, in order."""
        return (*((self.anchor,) if self.anchor else ()), *self.chain, *self.sides)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The results: those of the last operator, then one for each of ``sides``."""
        last = self.chain[-1] if self.chain else self.anchor
        assert last is not None
        return (*last.outputs, *(op.output for op in self.sides)) if self.sides else last.outputs

    @property
    def name(self) -> str:
        """The name of the first operator."""
        return self.ops[0].name

    @property
    def kind(self) -> str:
        """The labels of all operators, joined by ``+``."""
        return "+".join(map(_label, self.ops))

    def loads(self) -> list[Tensor]:
        """The tensors from outside that the chain reads, each once."""
        return outside(self.chain, {tensor for op in self.ops for tensor in op.outputs})

    def stored(self) -> Iterator[Tensor]:
        """Yield the operands and results of the group, which are in memory, once per operator that uses them."""
        inside = {tensor for op in self.ops for tensor in op.outputs} - set(self.outputs)
        for op in self.ops:
            for tensor in (*op.inputs, *op.outputs):
                if tensor is not None and tensor not in inside:
                    yield tensor


def on_matrix(group: Group) -> bool:
    """Whether a group's main work is on the matrix unit."""
    return group.anchor is not None and group.anchor.kind in ANCHORS


def side_by_side(groups: Iterable[Group]) -> bool:
    """Whether two units can work on different stripes of these groups at the same time: all groups of one unit precede
    all of the other.

    In any other order a unit, which runs its commands in order, would wait between them.
    """
    return len(list(groupby(groups, on_matrix))) == 2


def outside(ops: Sequence[Op], made: Set[Tensor | None]) -> list[Tensor]:
    """The tensors that operators read and that are not in ``made``, each once."""
    return list(dict.fromkeys(t for op in ops for t in op.inputs if t is not None and t not in made))


def _label(op: Op) -> str:
    """The name of an operator in reports: its function if the kind says little."""
    if op.kind in ("unary", "binary"):
        return str(op.attrs["fn"].name).lower()
    return str(op.attrs["name"]) if op.kind == "routine" else op.kind


CONVERSIONS = frozenset({"quantize", "dequantize", "cast"})
"""Kinds that change the type of a value. They join their operand whatever a compiler fuses."""


def form_groups(ops: Sequence[Op], outputs: Sequence[Tensor], fuses: str = "all") -> list[Group]:
    """Join elementwise operators to the producer of an operand, if no other operator reads the value between them.

    A group takes the position of its last operator, where all of its operands exist. ``fuses``: the key of a device.
    """
    # An operator may join several groups, one after another.
    users = consumers(ops)
    kept = set(outputs)
    group_of: dict[Tensor, list[Op]] = {}
    groups: dict[int, list[Op]] = {}
    for op in ops:
        poll()
        members = [op]
        # A dequantisation of bytes joins its reader instead: its result is four times as large as its operand.
        widens = op.kind == "dequantize" and op.input(0).dtype not in (DType.INT32, DType.INT64)
        while op.kind in ELEMENTWISE and not widens:
            joined = _joinable(members, users, kept, group_of, fuses)
            if joined is None:
                break
            members[:0] = joined
            groups.pop(id(joined))
        groups[id(members)] = members
        for member in members:
            for tensor in member.outputs:
                group_of[tensor] = members
    found = []
    for index, members in enumerate(groups.values()):
        anchor = next((op for op in members if op.kind not in ELEMENTWISE), None)
        found.append(Group(index, anchor, tuple(op for op in members if op is not anchor)))
    return found


def join_ranges(groups: Sequence[Group]) -> list[Group]:
    """Let the group that computes a value find its minimum or maximum, while the tiles are in SRAM."""
    makers: dict[Tensor, Group] = {}
    kept: dict[Group, None] = {}
    for group in groups:
        op = group.ops[0]
        maker = makers.get(op.input(0)) if op.inputs and op.inputs[0] is not None else None
        if maker is not None and len(group.ops) == 1 and _is_range(op):
            # On the result itself, because a view of it may be computed later.
            side = Op(op.name, op.kind, (maker.outputs[0],), op.outputs, op.attrs, op.origin)
            maker.sides = (*maker.sides, side)
            continue
        kept[group] = None
        # Another view of the same elements has the same range.
        if maker is not None and op.kind in _SAME and len(group.ops) == 1:
            makers[op.output] = maker
        elif not group.parts and (group.anchor is None or group.anchor.kind in ANCHORS) and group.outputs[0].size:
            makers[group.outputs[0]] = group
    return list(kept)


_SAME = frozenset({"reshape", "transpose"})
"""Views of all elements of a value."""


def _is_range(op: Op) -> bool:
    return op.kind == "reduce" and op.attrs["fn"] in (Reduce.MIN, Reduce.MAX) and op.output.size == 1


def _joinable(
    members: list[Op], users: dict[Tensor, list[Op]], kept: set[Tensor], group_of: dict[Tensor, list[Op]], fuses: str
) -> list[Op] | None:
    """A group to join: its last result has the shape of this group's result, and only this group reads it."""
    # The value in between never leaves SRAM, so no other operator may read it, nor the caller, nor the anchor, which
    # comes first.
    inside = {member for member in members if member.kind in ELEMENTWISE}
    made = {tensor for member in members for tensor in member.outputs}
    shape = members[-1].output.shape
    for tensor in (tensor for member in members if member.kind in ELEMENTWISE for tensor in member.inputs):
        if tensor is None or tensor in made or tensor in kept or tensor.shape != shape or tensor not in group_of:
            continue
        joined = group_of[tensor]
        ends = joined[-1]
        fusible = ends.kind in ELEMENTWISE or ends.kind in CONTINUED
        # Compare counts first, because a value may have very many readers.
        alone = len(users[tensor]) <= len(members) and inside.issuperset(users[tensor])
        if (
            fusible
            and ends.output is tensor
            and alone
            and _compatible(joined, members)
            and _is_fused(joined, members, fuses)
        ):
            return joined
    return None


def _is_fused(joined: Sequence[Op], members: Sequence[Op], fuses: str) -> bool:
    """Whether the compiler of a device computes ``members`` on the tiles of ``joined``."""
    before, after = (
        [op for op in ops if op.kind not in CONVERSIONS and op.kind not in VIEWS] for ops in (joined, members)
    )
    if fuses == "all" or not before or not after:
        return True
    if fuses == "one_operand":
        return not any(_has_two_operands(op) for op in after)
    return fuses == "until_table" and not any(map(_is_table, before))


def _has_two_operands(op: Op) -> bool:
    """Whether an operator reads two values as large as its result."""
    return sum(t is not None and not t.is_constant and t.shape == op.output.shape for t in op.inputs) > 1


def _is_table(op: Op) -> bool:
    """Whether units compute an elementwise operator by tables."""
    return op.kind == "lookup" or (op.kind == "unary" and unary_cost(op.attrs["fn"]) != "simple")


def _compatible(joined: list[Op], members: list[Op]) -> bool:
    """Whether the joined group has at most one anchor, and not too many operators and tensors to load."""
    if len(joined) + len(members) > MAX_OPS:
        return False
    # The chain runs on the tiles of its anchor. Two anchors would have to agree on their tiles.
    anchors = sum(member.kind in CONTINUED for member in (*joined, *members))
    made = {tensor for member in (*joined, *members) for tensor in member.outputs}
    chain = [member for member in (*joined, *members) if member.kind not in CONTINUED]
    read = {tensor for member in chain for tensor in member.inputs if tensor is not None and tensor not in made}
    loads = [tensor for tensor in read if tensor.size == members[-1].output.size]
    return anchors <= 1 and len(loads) <= MAX_LOADS
