"""Constant weights of the matrix unit: how the weights of a tile are packed, with their scales and zero points."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.compiler.lower.base import Context
from npusim.compiler.lower.streams import Packed, joined, pack
from npusim.dtypes import DType
from npusim.graph import Op
from npusim.isa.matrix_extras import NO_EXTRAS, NOTHING, Extras
from npusim.isa.matrix_types import accumulator_type, packed_bytes
from npusim.timing.tile_problem import MatrixProblem, weight_bytes
from npusim.units import ceil_div

Cut = Callable[[npt.NDArray[Any]], list[list[npt.NDArray[Any]]]]
"""Extracts the weights of a tile: for each group of channels its arrays, in the order that the unit reads."""

Columns = list[tuple[int, int]]
"""(first output channel, number of channels) of each group of a tile."""


class Part(NamedTuple):
    """The part of the reduction that one instruction adds to a tile: (first, count) of input channels, kernel rows and
    columns."""

    channel: int
    channels: int
    row: int
    rows: int
    col: int
    cols: int

    @property
    def taps(self) -> int:
        """Taps of the kernel in this part."""
        return self.rows * self.cols


class WeightScales(NamedTuple):
    """Scales, and optionally zero points, of integer weights that represent floats.

    Arrays have the shape [rows][output channels], with one row per ``block`` input channels.
    """

    block: int
    scale: npt.NDArray[np.float32]
    zero: npt.NDArray[Any] | None

    @classmethod
    def of(cls, op: Op) -> WeightScales | None:
        """The scales of an operator's weights; None if it has none."""
        scale, zero = op.optional(3), op.optional(4)
        if scale is None:
            return None
        w, conv = op.input(1), op.kind == "conv"
        channels, depth = (w.shape[0], w.shape[1]) if conv else (w.shape[-1], w.shape[-2])
        arrays = []
        for tensor, dtype in ((scale, np.dtype(np.float32)), (zero, w.dtype.storage)):
            if tensor is None or tensor.data is None:
                continue
            # Rows are along the input channels, which follow the output channels in the weights of a convolution.
            lead = 2 if conv else len(w.shape)
            flat = tensor.data.reshape(tensor.shape[lead - 2 : lead])
            rows = flat.T if conv else flat
            arrays.append(np.repeat(rows, channels // rows.shape[1], axis=1).astype(dtype))
        return cls(op.attrs["block"] or depth, arrays[0], arrays[1] if len(arrays) > 1 else None)

    @property
    def rows(self) -> int:
        """Number of rows of scales."""
        return len(self.scale)

    def parts(self, channels: tuple[int, int], columns: Columns) -> list[npt.NDArray[Any]]:
        """The scales of the columns for a part of the input channels, followed by the zero points."""
        low, high = channels[0] // self.block, ceil_div(sum(channels), self.block)
        if self.rows == 1:
            low, high = 0, 1
        arrays = [array for array in (self.scale, self.zero) if array is not None]
        return [array[low:high, first : first + count] for array in arrays for first, count in columns]


def sum_type(op: Op, scales: WeightScales | None) -> DType:
    """The type of an operator's accumulators."""
    return accumulator_type(op.input(0).dtype, op.input(1).dtype, wide=op.attrs["wide"], scaled=scales is not None)


def pack_weights(
    context: Context,
    op: Op,
    problem: MatrixProblem,
    scales: WeightScales | None,
    key: Hashable,
    cut: Cut,
    part: Part,
    columns: Columns,
    parts: int,
) -> Packed:
    """Place the constants of a tile as one run: the weights of each group, each byte-aligned, then scales, then zero
    points.

    ``key``: identifies the tile. ``cut``: extracts its weights, in ``parts`` arrays. ``part``: the part of the
    reduction.
    """
    dtype, bits = problem.w_type, problem.w_bits
    weights = op.input(1).data
    assert weights is not None
    depth = part.taps * (1 if problem.depthwise else part.channels)
    flat: list[Any]
    if not bits and (scales is not None or parts == 1):
        flat = [array for group in cut(weights) for array in group]
    else:
        sizes = [packed_bytes(depth * count, problem.w_type, bits) for _, count in columns]
        flat = [joined(cut, weights, sum(sizes), bits)]
    if bits:
        dtype = DType.UINT8
    if scales is not None:
        flat += scales.parts((part.channel, part.channels), columns)
        flat = [array.reshape(-1).view(np.uint8) for array in map(np.ascontiguousarray, flat)]
        dtype = DType.UINT8
    if problem.w_rows * problem.w_cols > 1:
        # The unit reads whole tiles of weights, so the last one is padded with zeros.
        wanted = weight_bytes(problem, depth, len(columns), columns[0][1])
        flat.append(np.zeros(wanted - sum(array.nbytes for array in flat), np.uint8))
    return pack(context, (op, key, part, *columns), flat, f"{op.name}.weights", dtype, bits)


def extras(
    problem: MatrixProblem,
    scales: WeightScales | None,
    address: int,
    columns: tuple[int, int, int],
    channel: int,
    shift: int,
    skipped: Extras | None,
    *,
    wide: bool,
) -> Extras:
    """The instruction fields that plain products do not need.

    ``address``: of the weights. ``columns``: (groups, weights per channel, channels). ``channel``: the first input
    channel. ``shift``: the address of the epilogue's shift. ``skipped``: the fields for weights that are not
    multiplied. ``wide``: 64-bit sums.
    """
    if scales is None and not wide and not problem.w_bits and shift == NOTHING and skipped is None:
        return NO_EXTRAS
    plain = replace(skipped or NO_EXTRAS, wide=wide, w_bits=problem.w_bits, shift=shift)
    if scales is None:
        return plain
    groups, k, oc = columns
    skip = channel % scales.block if scales.rows > 1 else 0
    # A single row of scales serves the whole reduction, wherever a part of it starts.
    block = scales.block if scales.rows > 1 else k
    w_scale = address + groups * packed_bytes(k * oc, problem.w_type, problem.w_bits)
    w_zeros = NOTHING
    if scales.zero is not None:
        w_zeros = w_scale + 4 * groups * oc * ceil_div(k + skip, block)
    return replace(plain, w_skip=skip, w_block=block, w_scale=w_scale, w_zeros=w_zeros)
