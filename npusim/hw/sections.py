"""Keys of one matrix cost model each: tables below ``[matrix]`` that only the model of that name reads."""

# ruff: noqa: RUF009 - key() makes dataclass fields
from __future__ import annotations

import dataclasses
from fractions import Fraction

from npusim.hw.keys import Count, Flag, Ratio, key

ACCUMULATOR_BYTES = 4
"""Size of a partial sum (int32 or float32) in every mode."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeshConfig:
    """A mesh that takes one row of operands after another and has a fixed latency (model ``mesh``)."""

    row_stall_cycles: int = key(Count(0, 65536), "idle cycles after each row of operands", 0)
    least_rows: int = key(Count(1, 4096), "least number of rows for which an operation occupies the mesh", 4)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DirectConfig:
    """A convolution core with its own fetch unit, ``rows`` channels by ``cols`` kernels (model ``direct``)."""

    start_cycles: int = key(
        Count(0),
        "cycles from the registers of a job to its first request plus from its last result to its interrupt; only for "
        "npusim validate: programs use layer_cycles",
        0,
    )
    start_latencies: int = key(
        Count(0, 64),
        "memory latencies before the first datum of a job; only for npusim validate: programs wait for their loads",
        1,
    )
    weight_port_bytes: int = key(
        Count(1, 4096), "bytes of weights per cycle from the buffer to the MACs; sets the least length of a stripe", 8
    )
    feature_beats_per_cycle: Fraction = key(
        Ratio(1, positive=True),
        "most bursts of features per cycle that the fetch unit takes",
        Fraction(1),
    )
    plain_surfaces: int = key(
        Count(0, 4096), "up to this number of channel groups, features arrive at one burst per cycle", 0
    )
    output_cycles_per_atom: int = key(Count(1, 4096), "post-processing cycles for ``cols`` channels", 1)
    output_row_atoms: int = key(Count(1, 4096), "atoms per output burst", 8)
    output_gap_cycles: int = key(Count(0, 4096), "cycles lost after each output burst", 0)
    outputs_beside: bool = key(Flag(), "an instruction computes while the sums of the previous one leave", False)
    whole_jobs: bool = key(
        Flag(),
        "a layer whose operands fit the buffer is one job: it fetches its own features and is split along its kernels",
        False,
    )
    image_channels: int = key(
        Count(0, 64), "up to this number of input channels, the channels of a kernel row are summed in parallel", 0
    )
    depthwise_channels: int = key(
        Count(1, 4096), "parallel channels of a depthwise convolution, at one tap per cycle", 1
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GridConfig:
    """A grid of MACs over output pixels and channels (model ``grid``)."""

    pixel_rows: int = key(Count(1, 256), "parallel output rows", 4)
    pixel_cols: int = key(Count(1, 256), "parallel output columns", 4)
    output_channels: int = key(Count(1, 4096), "parallel output channels", 16)
    start_cycles: int = key(Count(0), "cycles of a workload in addition to its arithmetic", 0)
    operand_bytes_per_cycle: int = key(Count(1, 1 << 16), "bytes of windows per cycle that reach the MACs", 4096)
    depthwise_bytes: int = key(Count(1, 4096), "parallel bytes of channels in a depthwise pass", 32)
    depthwise_cycles: Fraction = key(
        Ratio(64, positive=True), "cycles per tap of a depthwise pass over one block of pixels", Fraction(4)
    )
    input_channels: int = key(Count(1, 4096), "parallel input channels of a pixel; the last pass is padded", 1)
    taps: int = key(Count(1, 64), "taps of one pass; the last pass is padded", 1)
    windows_buffered: bool = key(
        Flag(), "the grid buffers the rows of a window: an input is read from SRAM once instead of once per tap", False
    )
    weight_bytes_per_cycle: int = key(
        Count(0, 1 << 16), "bytes of weights per cycle loaded before the grid computes; 0: loaded while it computes", 0
    )
    weight_pixels: int = key(
        Count(0), "output pixels after which the weights are loaded again; 0: once per workload", 0
    )
