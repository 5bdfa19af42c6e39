"""Constant weights that are compressed in DRAM (ADR 0055): one stream per tile."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim import _core
from npusim.compiler.buffers import View
from npusim.compiler.codegen.issue import Item, Slot
from npusim.compiler.lower.base import Context, fact
from npusim.compiler.lower.transfer import load_items
from npusim.dtypes import DType
from npusim.graph import Op
from npusim.isa.base import MAX_ITEMS
from npusim.isa.dma import Expand
from npusim.program import Deferred, Piece
from npusim.timing.tile_costs import move_prices
from npusim.units import ceil_div

_SYMBOLS = frozenset({DType.INT8, DType.UINT8})
_WHOLE = 8
"""Bits per symbol if weights are bytes."""


class Packed(NamedTuple):
    """The weights of a tile in DRAM: uncompressed, or as a stream of symbols of ``bits`` that expands to ``nbytes``."""

    view: View
    nbytes: int = 0
    bits: int = 0

    def load(self, slot: Slot) -> list[Item]:
        """Load the weights into a slot."""
        if not self.bits:
            return load_items((slot.address, (self.view.dtype.itemsize,), slot), self.view)
        expand = Expand(slot.address, self.view.address, self.nbytes, self.view.shape[0], self.bits)
        return [Item(expand, (self.view,), (slot,))]


def weights_per_kilo(context: Context, op: Op) -> int:
    """Bytes that 1024 bytes of an operator's weights take when compressed as one stream; 1024 if they are not
    compressed."""
    w = op.input(1)
    if not _may_be_stream(context, w.dtype) or w.data is None or not w.data.size:
        return 1024
    whole = squeezed([w.data], op.attrs["w_bits"])
    return min(1024, ceil_div(_size(context, (op, "whole"), [whole], op.attrs["w_bits"]) * 1024, whole.nbytes))


def pack(context: Context, key: Hashable, parts: Sequence[Piece], name: str, dtype: DType, bits: int) -> Packed:
    """Place the weights of one tile, as a stream if that loads faster.

    ``key``: identifies the operator and the tile. ``bits``: of a packed weight, 0 if weights are not packed.
    """
    nbytes = sum(part.nbytes for part in parts)
    symbol = bits or _WHOLE
    if _may_be_stream(context, dtype) and 0 < nbytes * (_WHOLE // symbol) <= MAX_ITEMS:
        size = _size(context, key, parts, bits)
        if move_prices(context.config).pays(nbytes, size, symbol):
            stream = Deferred(lambda *arrays: _core.compress(_joined(arrays), symbol), parts, size)
            return Packed(context.constants.pack([stream], f"{name}.stream", DType.UINT8), nbytes, symbol)
    return Packed(context.constants.pack(parts, name, dtype))


def _may_be_stream(context: Context, dtype: DType) -> bool:
    return dtype in _SYMBOLS and context.config.dma.decoder_weights_per_cycle > 0


def _size(context: Context, key: Hashable, parts: Sequence[Piece], bits: int) -> int:
    """Bytes of the stream. Cached, because reading weights is slow and most schedules have the same tiles."""
    return fact(context, ("stream", key), lambda: _core.compressed_size(_joined(parts), bits or _WHOLE))


def _joined(parts: Sequence[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of arrays in sequence, each in row-major order."""
    return np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])


def joined(
    cut: Callable[[npt.NDArray[Any]], list[list[npt.NDArray[Any]]]], weights: npt.NDArray[Any], nbytes: int, bits: int
) -> Piece:
    """The arrays of ``cut`` in sequence, each group :func:`squeezed`: ``nbytes`` bytes in all.

    They are only made when their bytes are needed, which timing-only runs never do.
    """

    def make(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        out, end = np.empty(nbytes, np.uint8), 0
        for group in cut(array):
            for part in [np.asarray(squeezed(group, bits))] if bits else group:
                start, end = end, end + part.nbytes
                out[start:end].view(part.dtype).reshape(part.shape)[...] = part
        return out

    return Deferred(make, [weights], nbytes)


def squeezed(group: Sequence[npt.NDArray[Any]], bits: int) -> Piece:
    """Pack the low ``bits`` bits of each value into bytes, first value in the lowest bits, arrays in row-major order.

    0: leave the single array as it is.
    """
    if not bits:
        (array,) = group
        return array

    def make(*arrays: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        each = 8 // bits
        values = np.concatenate([array.reshape(-1) for array in arrays]).view(np.uint8)
        full = np.zeros(ceil_div(values.size, each) * each, np.uint8)
        full[: values.size] = values & np.uint8((1 << bits) - 1)
        places = np.arange(0, 8, bits, dtype=np.uint8)
        packed: npt.NDArray[np.uint8] = np.bitwise_or.reduce(full.reshape(-1, each) << places, axis=1)
        return packed

    return Deferred(make, group, ceil_div(sum(array.size for array in group) * bits, 8))
