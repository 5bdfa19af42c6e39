"""Fused attention: two matrix products and the row operators between them become one group.

The scores of attention grow with the square of the sequence length, and only the softmax and the product with the
values read them. In one group they never leave SRAM. ``lower.attention`` computes the group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from math import prod

from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import sram_budget
from npusim.compiler.schedule.names import suggestion
from npusim.errors import ScheduleError
from npusim.graph import Op, Tensor, consumers
from npusim.hw.config import Config
from npusim.ops.base import REGISTRY, RowForm


def form_attention(
    groups: Sequence[Group],
    outputs: Sequence[Tensor],
    config: Config,
    wanted: Collection[str] = (),
    *,
    others: bool = True,
) -> list[Group]:
    """Replace the groups of each fused attention by one group, at the position of the last.

    ``wanted``: the first operators of attention blocks that must be fused. ``others``: whether all that easily fit into
    the scratchpad are fused too. Raises ScheduleError if no attention begins with a wanted operator.
    """
    wanted, runs = set(wanted), _candidates(groups, outputs)
    fused: dict[Group, Group] = {}
    taken: set[Group] = set()
    for group, members in runs.items():
        parts = list(chain.from_iterable(map(_apart, members)))
        names = _names(group)
        is_wanted = not wanted.isdisjoint(names)
        if parts and taken.isdisjoint(members) and (is_wanted or (others and likely_fits(parts, config))):
            wanted -= names
            taken.update(members)
            fused[members[-1]] = _joined(parts)
    if wanted:
        raise _no_attention(min(wanted), [group.name for group, members in runs.items() if members])
    return _numbered(fused.get(group, group) for group in groups if group in fused or group not in taken)


def possible_attentions(groups: Sequence[Group], outputs: Sequence[Tensor]) -> Iterator[tuple[str, list[Group]]]:
    """The first operator and the parts of each attention that :func:`form_attention` may fuse."""
    for group, members in _candidates(groups, outputs).items():
        if members:
            yield group.ops[0].name, list(chain.from_iterable(map(_apart, members)))


def _numbered(groups: Iterable[Group]) -> list[Group]:
    return [Group(index, group.anchor, group.chain, group.parts) for index, group in enumerate(groups)]


def _candidates(groups: Sequence[Group], outputs: Sequence[Tensor]) -> dict[Group, list[Group]]:
    """For each group, in order, the groups of the attention that begins with it; mostly none."""
    users = consumers([op for group in groups for op in group.ops])
    owner = {op: group for group in groups for op in group.ops}
    return {group: _from(group, users, owner, set(outputs)) for group in groups}


def _names(group: Group) -> set[str]:
    return {op.name for op in group.ops}


def _no_attention(name: str, possible: Sequence[str]) -> ScheduleError:
    return ScheduleError(f"fused_attention: no attention begins with {name}; {suggestion(name, possible)}")


def _joined(parts: Sequence[Group]) -> Group:
    ops = [op for part in parts for op in part.ops]
    return Group(0, ops[0], tuple(ops[1:]), tuple(parts))


def _from(group: Group, users: dict[Tensor, list[Op]], owner: dict[Op, Group], outputs: set[Tensor]) -> list[Group]:
    """The groups from a product to the next one, if they can be fused; else none."""
    if group.anchor is None or group.anchor.kind != "matmul":
        return []
    members, has_rows = [group], False
    while len(members) < LONGEST:
        value = members[-1].outputs[0]
        readers = {owner[op] for op in users.get(value, ())}
        if len(readers) != 1 or value in outputs or not value.size:
            return []
        (reader,) = readers
        if reader.anchor is not None and reader.anchor.kind == "matmul":
            members.append(reader)
            return members if has_rows and _multiplies(reader, value) else []
        if not _keeps_rows(reader, value):
            return []
        has_rows = has_rows or reader.anchor is not None
        members.append(reader)
    return []


def _apart(group: Group) -> list[Group]:
    """Split a row group into the row operator and the elementwise operators after it. A product is not split."""
    if group.anchor is None or group.anchor.kind == "matmul" or not group.chain:
        return [group]
    return [Group(group.index, group.anchor, ()), Group(group.index, None, group.chain)]


LONGEST = 8
"""Maximum number of groups that are fused."""


def _multiplies(group: Group, value: Tensor) -> bool:
    """Whether a product reads the value only as its left operand, batch by batch."""
    anchor = group.anchor
    assert anchor is not None
    others = [*anchor.inputs[1:], *group.loads()]
    return anchor.input(0) is value and value not in others and anchor.output.shape[:-2] == value.shape[:-2]


def _keeps_rows(group: Group, value: Tensor) -> bool:
    """Whether each row of the group's result depends only on the same row of the value."""
    out = group.outputs[0]
    if out.shape != value.shape or len(group.outputs) != 1:
        return False
    if group.anchor is None:
        return True
    form = REGISTRY[group.anchor.kind].form
    last = len(value.shape) - 1
    # Rows are computed in place, so later operators of the group can no longer read the value.
    whole = isinstance(form, RowForm) and not form.single and group.anchor.attrs["axis"] == last
    return whole and value not in group.loads()


def likely_fits(parts: Sequence[Group], config: Config) -> bool:
    """Whether two blocks with as many rows as the matrix unit fit beside two copies of the right operands."""
    if config.matrix is None:
        return False
    rows = min(parts[0].outputs[0].shape[-2], config.matrix.rows)
    held = moving = 0
    for part in parts:
        out = part.outputs[0]
        if part.anchor is not None and part.anchor.kind != "matmul" and part.anchor.input(0).dtype is out.dtype:
            continue  # computed in place
        moving += rows * out.shape[-1] * out.dtype.itemsize
        if part.anchor is not None:
            right = part.anchor.input(1)
            held += prod(right.shape[-2:]) * right.dtype.itemsize
    left = parts[0].ops[0].input(0)
    moving += rows * left.shape[-1] * left.dtype.itemsize
    return 2 * (held + moving) <= sram_budget(config)
