"""Optional fields of matrix instructions, encoded after the others, and the weights that they describe."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from npusim import _core
from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.base import Memory, describe_address
from npusim.units import ceil_div

if TYPE_CHECKING:
    from npusim._core import Strided

NOTHING = 0xFFFF_FFFF_FFFF_FFFF
"""The address of an operand that does not exist."""


@dataclass(frozen=True, slots=True)
class Extras:
    """Optional fields after the other fields of an instruction; empty if none is used.

    ``wide``: sums have 64 bits. ``w_bits``: bits of a packed weight, 0 if not packed. ``shift``: float32 per channel of
    each batch item, added after the scale. ``w_scale``: weights are dequantized, (w - zero) * scale, to the type of x:
    rows of one float32 per output channel, the first for ``w_block - w_skip`` of the K, each other for ``w_block``.
    ``w_zeros``: zero points in the same layout, of the type of the weights. ``block_ic``, ``block_oc``: weights are
    block-diagonal: output channels are in blocks of ``block_oc``, and each block has weights for ``block_ic`` input
    channels. The tile starts at input channel ``first_ic`` and output channel ``first_oc`` of the whole matrix. Weights
    outside the blocks take time, but are not multiplied; each block is summed like a convolution of its own.
    ``pixel_blocks``: of a product, whose pixels are the rows of a block-diagonal matrix: blocks are of ``block_oc``
    pixels in place of output channels, and the tile starts at pixel ``first_oc``.
    ``phase_oc``: each ``phase_oc`` output channels are a phase, in ``phase_rows`` rows of ``phase_cols``, and the tile
    starts at output channel ``first_oc`` of all. The first kernel row of phases from row ``full_rows`` on takes
    time, but is not multiplied; nor is the last one of phases before row ``low_rows``. ``full_cols`` and ``low_cols``:
    the same for kernel columns.
    """

    wide: bool = False
    w_bits: int = 0
    pixel_blocks: bool = False
    w_skip: int = 0
    w_block: int = 0
    w_scale: int = NOTHING
    w_zeros: int = NOTHING
    shift: int = NOTHING
    block_ic: int = 0
    block_oc: int = 0
    first_ic: int = 0
    first_oc: int = 0
    phase_oc: int = 0
    phase_rows: int = 0
    phase_cols: int = 0
    full_rows: int = 0
    full_cols: int = 0
    low_rows: int = 0
    low_cols: int = 0

    def __str__(self) -> str:
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                shown = describe_address(value) if field.default == NOTHING else value
                parts.append(f"{field.name}={shown}")
        return f"[{','.join(parts)}]"

    def to_bytes(self) -> bytes:
        """The encoding: empty if no field is used."""
        if self is NO_EXTRAS or self == NO_EXTRAS:
            return b""
        return _EXTRAS.pack(*attrgetter(*_EXTRA_NAMES)(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Extras:
        """Inverse of ``to_bytes``. Raises ProgramError for other bytes."""
        if not data:
            return NO_EXTRAS
        if len(data) != _EXTRAS.size:
            raise ProgramError(f"extras of {len(data)} bytes, must be 0 or {_EXTRAS.size}")
        extras = cls(*_EXTRAS.unpack(data))
        if extras.to_bytes() != data:
            raise ProgramError("extras without effect, or a flag that is neither 0 nor 1")
        return extras


_EXTRAS = struct.Struct("<?B?xIIQQQIIIIIBBBBBB2x")
_EXTRA_NAMES = [field.name for field in fields(Extras)]
NO_EXTRAS = Extras()


def unpacked_weights(
    types: tuple[DType, DType],
    w: int,
    extras: Extras,
    memory: Memory,
    core: int,
    dims: tuple[int, int, int],
    strides: tuple[int, ...] = (),
) -> tuple[DType, Strided]:
    """(type, weights) for the kernels: unpacked, and dequantized if they have scales.

    ``types``: of pixels and weights. ``w``: address of the weights. ``dims``: (items, products per output, channels).
    ``strides``: bytes between items, none for a single one.
    """
    x_type, w_type = types
    batch, k, channels = dims
    stride = strides[0] if strides else 0
    scaled = extras.w_scale != NOTHING
    if not (extras.w_bits or scaled):
        return w_type, memory.at(core, w, strides)
    kind = x_type if scaled else w_type
    items = batch if stride else 1
    rows = ceil_div(k + extras.w_skip, extras.w_block) * channels if scaled else 0
    made = np.empty(items * k * channels * kind.itemsize, np.uint8)
    _core.weights(
        w_type,
        extras.w_bits or 8,
        kind,
        memory.at(core, w, (stride,)),
        _core.Strided(made, 0, (k * channels * kind.itemsize,)),
        (items, k, channels),
        memory.at(core, extras.w_scale, (rows * 4,)) if scaled else None,
        memory.at(core, extras.w_zeros, (rows,)) if extras.w_zeros != NOTHING else None,
        extras.w_block or 1,
        extras.w_skip,
    )
    return kind, _core.Strided(made, 0, tuple(k * channels * kind.itemsize if step else 0 for step in strides))
