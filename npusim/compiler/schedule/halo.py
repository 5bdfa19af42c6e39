"""Halo rows: rows beside a core's own band that the core computes itself, so that no other core has to send them.

A layer that is cut along the rows of images reads rows that belong to the bands of other cores. Cores exchange these
rows, or each core also computes them: its band of the producing layer then covers all rows that the following layers
read on this core. Bands are therefore computed from the last layer backwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group, outside
from npusim.compiler.lower.base import Context
from npusim.compiler.schedule.regions import is_region
from npusim.compiler.schedule.shards import is_row, operand_axes, window_rows
from npusim.graph import Tensor

Band = tuple[int, int]
"""(start, end): the first row, and the row after the last one."""


class LayerCut(NamedTuple):
    """How a group is divided. ``axis``: dimension of its result, None: the cores share its tiles. ``cores``: number of
    cores. ``halo``: each core also computes the rows that following groups read on this core."""

    axis: int | None
    cores: int
    halo: bool = False


class Readers:
    """The groups that read the result of each group. ``whole``: the context of all cores. ``rows``: bytes per row of
    each buffer, for regions."""

    def __init__(self, groups: Sequence[Group], whole: Context, rows: Mapping[Buffer, int]) -> None:
        self._rows = rows
        self._tensors: dict[Buffer, set[Tensor]] = {}
        self._readers: dict[Tensor, list[Group]] = {}
        self._views = whole.views
        for group in groups:
            for tensor in group.stored():
                if tensor in whole.views:
                    self._tensors.setdefault(whole.views[tensor].buffer, set()).add(tensor)
            for read in outside(group.ops, set()):
                self._readers.setdefault(read, []).append(group)

    def of(self, group: Group, cuts: Sequence[LayerCut]) -> list[Group]:
        """The groups that read the result of a group, if each core can compute all rows that it reads: all readers are
        cut along the same rows, for as many cores. Otherwise an empty list."""
        cut, out = cuts[group.index], group.outputs[0]
        if cut.axis is None or len(group.outputs) > 1:
            return []
        buffer = self._views[out].buffer
        # Readers of other views of the buffer may need other rows.
        if not buffer.is_scratch or self._tensors[buffer] != {out}:
            return []
        if not is_region(self._views[out], cut.axis, self._rows[buffer]):
            return []
        readers = [each for each in self._readers.get(out, ()) if each is not group]
        return readers if all(self._is_alike(out, cut, each, cuts[each.index]) for each in readers) else []

    @staticmethod
    def _is_alike(tensor: Tensor, cut: LayerCut, reader: Group, other: LayerCut) -> bool:
        if other.axis is None or other.cores != cut.cores:
            return False
        axes = operand_axes(reader, other.axis)
        return axes is not None and axes.get(tensor) == cut.axis


def rows_read(tensor: Tensor, reader: Group, axis: int, band: Band) -> Band:
    """Return the rows of a tensor that a group reads for a band of its result; ``axis``: the axis of its cut."""
    anchor = reader.anchor
    if anchor is None or anchor.inputs[0] is not tensor or not is_row(reader, axis):
        return band
    (low, high), _ = window_rows(anchor, *band)
    beside = any(tensor in op.inputs for op in reader.chain)
    return (min(low, band[0]), max(high, band[1])) if beside else (low, high)


def halo_bands(
    group: Group, readers: Sequence[Group], cuts: Sequence[LayerCut], bands: Mapping[int, list[Band]]
) -> list[Band]:
    """Return the rows of a group's result that each core reads; ``bands``: those of the following groups."""
    out, found = group.outputs[0], list[Band]()
    for reader in readers:
        axis = cuts[reader.index].axis
        assert axis is not None
        for core, band in enumerate(bands[reader.index]):
            low, high = rows_read(out, reader, axis, band)
            if core == len(found):
                found.append((low, high))
            found[core] = min(found[core][0], low), max(found[core][1], high)
    # All cores use the tiles of the first core, so its band must be as high as any other.
    height = out.shape[cuts[group.index].axis or 0]
    most = max(end - first for first, end in found)
    end = min(height, max(found[0][0] + most, found[0][1]))
    found[0] = min(found[0][0], end - most), end
    return found
