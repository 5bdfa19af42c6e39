"""Keys of single matrix cost models: a table below ``[matrix]`` that only the model of that name reads."""

# ruff: noqa: RUF009 - key() and its kin make dataclass fields
from __future__ import annotations

import dataclasses
from fractions import Fraction

from npusim.hw.keys import Count, Flag, Ratio, key


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeshConfig:
    """A mesh that is fed one row of operands after the other and answers a fixed time later (model ``mesh``)."""

    row_stall_cycles: int = key(Count(0, 65536), "cycles in which no row is fed, after each row that is", 0)
    least_rows: int = key(Count(1, 4096), "rows that an operation occupies the mesh for, even if it feeds fewer", 4)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DirectConfig:
    """A convolution core that fetches its operands itself, ``rows`` channels by ``cols`` kernels (model ``direct``)."""

    start_cycles: int = key(
        Count(0), "from a job's registers to its first request, and from its last result to its interrupt: of validate "
        "alone; programs have layer_cycles", 0,
    )  # fmt: skip
    start_latencies: int = key(
        Count(0, 64), "memory latencies before a job's first datum: of validate alone; programs wait for their loads", 1
    )
    weight_port_bytes: int = key(
        Count(1, 4096), "bytes of weights a cycle that the buffer gives to the MACs: the least length of a stripe", 8
    )
    feature_beats_per_cycle: Fraction = key(
        Ratio(1, positive=True),
        "bursts of features a cycle that the fetch unit takes, however fast the memory",
        Fraction(1),
    )
    plain_surfaces: int = key(
        Count(0, 4096), "channel groups up to which features arrive at one burst a cycle all the same", 0
    )
    output_cycles_per_atom: int = key(Count(1, 4096), "cycles that post-processing needs for ``cols`` channels", 1)
    output_row_atoms: int = key(Count(1, 4096), "atoms that leave in one go", 8)
    output_gap_cycles: int = key(Count(0, 4096), "cycles lost after each such row of atoms", 0)
    outputs_beside: bool = key(
        Flag(), "the next instruction computes while the sums of the one before leave, as groups of one do", False
    )
    whole_jobs: bool = key(
        Flag(),
        "a layer whose operands fit the buffer is one job: it fetches its features itself and is cut along its kernels",
        False,
    )
    image_channels: int = key(
        Count(0, 64), "with at most so many input channels, those of a kernel's row are summed side by side", 0
    )
    depthwise_channels: int = key(
        Count(1, 4096), "channels of a depthwise convolution that are computed side by side, a tap a cycle", 1
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GridConfig:
    """A grid of MACs over output pixels and channels (model ``grid``)."""

    pixel_rows: int = key(Count(1, 256), "output rows that are computed side by side", 4)
    pixel_cols: int = key(Count(1, 256), "output columns that are computed side by side", 4)
    output_channels: int = key(Count(1, 4096), "output channels that are computed side by side", 16)
    start_cycles: int = key(Count(0), "cycles of a workload besides its arithmetic", 0)
    operand_bytes_per_cycle: int = key(Count(1, 1 << 16), "bytes of windows a cycle that reach the MACs", 4096)
    depthwise_bytes: int = key(Count(1, 4096), "bytes of channels that a depthwise pass takes side by side", 32)
    depthwise_cycles: Fraction = key(
        Ratio(64, positive=True), "cycles of a depthwise pass over one block of pixels, per tap", Fraction(4)
    )
    input_channels: int = key(
        Count(1, 4096), "input channels that a pixel's sum takes at once; the last ones are filled up to as many", 1
    )
    taps: int = key(Count(1, 64), "taps that a pass takes together, so that the last ones are filled up to as many", 1)
    windows_buffered: bool = key(
        Flag(), "the grid keeps the rows of a window, so that an input passes the SRAM once and not once a tap", False
    )
    weight_bytes_per_cycle: int = key(
        Count(0, 1 << 16), "bytes of weights a cycle that come into the grid before it computes; 0: they come beside", 0
    )
    weight_pixels: int = key(
        Count(0), "output pixels that weights serve before they come into the grid anew; 0: all of a workload", 0
    )
