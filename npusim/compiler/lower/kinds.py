"""Maps every operator kind to its lowering. Importing this module raises an error for a kind that has none.

A kind of the form Elements or Rows brings its instruction along and needs nothing here. For the others, the compiler
knows by name how they become views, which class lowers them, or which rules rewrite them. A name that is missing on one
side is found here, and not only when a model uses the kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from npusim.compiler.grouping.groups import VIEWS, Group
from npusim.compiler.lower import TILES
from npusim.compiler.lower.attention import AttentionLowering
from npusim.compiler.lower.base import Context, Lowering
from npusim.compiler.lower.conv_forms import conv_lowering
from npusim.compiler.lower.element import Elementwise
from npusim.compiler.lower.long_rows import row_lowering
from npusim.compiler.lower.movement import VIEW_RULES, CopyLowering
from npusim.compiler.passes.legalize import RULES
from npusim.ops.base import REGISTRY, Kind, Lowered, RowForm
from npusim.polling import poll


def lower(context: Context, group: Group) -> Lowering:
    """The lowering of a group for the context's device."""
    poll()
    if group.parts:
        return AttentionLowering(context, group)
    if group.anchor is None:
        return Elementwise(context, group)
    kind = group.anchor.kind
    if isinstance(REGISTRY[kind].form, RowForm):
        return row_lowering(context, group)
    if kind == "conv":
        return conv_lowering(context, group)
    return (CopyLowering if kind in VIEWS else TILES[kind])(context, group)


def check_kinds(kinds: Mapping[str, Kind], known: Mapping[Lowered, Collection[str]]) -> None:
    """Raise ValueError for the first kind whose form and the compiler's tables disagree."""
    for form, names in known.items():
        said = {name for name, kind in kinds.items() if kind.form is form}
        for name in sorted(said.difference(names)):
            raise ValueError(f"the kind {name!r} has the form {form.name}, but the compiler has no {form.value} for it")
        # Rules may also rewrite a kind that has a lowering, if the lowering does not handle every case.
        unsaid = set(names) - (set(kinds) if form is Lowered.REWRITTEN else said)
        for name in sorted(unsaid):
            raise ValueError(
                f"the compiler has a {form.value} for {name!r}, which is not a kind of the form {form.name}"
            )


check_kinds(REGISTRY, {Lowered.VIEW: VIEW_RULES, Lowered.TILES: TILES, Lowered.REWRITTEN: RULES})
