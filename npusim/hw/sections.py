"""Sections of the description of a device: keys with their ranges, meanings and defaults."""

# ruff: noqa: RUF009 - key(), table() and section() make dataclass fields
from __future__ import annotations

import dataclasses
from fractions import Fraction

from npusim.hw.dram_parts import MAPPING, PARTS
from npusim.hw.keys import Choice, Count, Flag, FrozenTable, MapOf, Quantity, Ratio, Text, key, section, table
from npusim.hw.kinds import dram_kinds, unit_kinds
from npusim.units import Dimension, bytes_to_ps

CLOCK = Quantity(Dimension.FREQUENCY, 1_000, 100 * 10**9)
TIME = Quantity(Dimension.TIME, 0, 10**12)
BANDWIDTH = Quantity(Dimension.BANDWIDTH, 10**6, 10**15)

MATRIX_DTYPES = ("int8", "int16", "int32", "float16", "bfloat16", "float32")
FUNCTIONS = ("simple", "divide", "sqrt", "transcendental", "convert", "reduce")
STORED_AS = {"uint8": "int8", "bool": "int8", "uint16": "int16", "uint32": "int32"}
FUSIONS = ("all", "until_table", "one_operand", "none")
_NOT_COMPUTED = Fraction(0)

ACCUMULATOR_BYTES = 4
"""Size of a partial sum (int32 or float32) in every mode."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeshConfig:
    """A mesh that accepts one row of operands at a time and has a fixed latency (model ``mesh``)."""

    row_stall_cycles: int = key(Count(0, 65536), "idle cycles after each row of operands", 0)
    least_rows: int = key(Count(1, 4096), "least number of rows for which an operation occupies the mesh", 4)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DirectConfig:
    """A convolution core with its own fetch unit, ``rows`` channels by ``cols`` kernels (model ``direct``)."""

    start_cycles: int = key(
        Count(0),
        "cycles from the registers of a job to its first request plus from its last result to its interrupt; only for "
        "npusim validate: programs use compiler.layer_cycles",
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
    linear: bool = key(
        Flag(), "blocks of pixels continue in the next row of the image, so that only the last block is padded", False
    )
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MatrixConfig:
    """An array of multiply-accumulate elements (PEs). Absent: the device has no matrix unit."""

    rows: int = key(Count(1, 4096), "PEs in a column of the array")
    cols: int = key(Count(1, 4096), "PEs in a row of the array")
    dataflow: str = key(
        Choice(("weight_stationary", "output_stationary", "input_stationary")),
        "stationary operand, which stays in the PEs",
    )
    model: str = key(Choice(lambda: unit_kinds("matrix")), "cost model", "systolic")
    throughput: FrozenTable[Fraction] = key(
        MapOf(MATRIX_DTYPES, Ratio(64)),
        "MACs per PE and cycle, by type; 0 or missing = not supported; unsigned types use the signed rate",
    )
    preload_hidden: bool = key(Flag(), "the next stationary operand loads while the current one computes", True)
    weight_buffers: int = key(Count(1, 16), "stationary operands held in the PEs; 2 = double-buffered", 2)
    fill_drain: str = key(
        Choice(("per_fold", "per_tile")),
        "whether the pipeline fills and drains once per fold or once per tile",
        "per_tile",
    )
    setup_cycles: int = key(Count(0), "cycles before the first operand of an instruction", 8)
    accumulator_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 30), "dedicated partial-sum memory; 0 = partial sums are in SRAM", 0
    )
    output_elements_per_cycle: int = key(
        Count(1, 4096), "results per cycle that post-processing reads from the accumulators", 16
    )
    clock_hz: int | None = key(CLOCK, "clock of this unit; left out = the device's clock", None)
    sums_shift_out: bool = key(
        Flag(),
        "output stationary: finished sums shift out through the array, one row per cycle; false: immediately",
        True,
    )
    arrays: int = key(Count(1, 64), "number of rows x cols arrays that share the folds of an instruction", 1)
    port_bytes_per_cycle: int = key(
        Count(0, 1 << 16),
        "SRAM port width; operands are read before the array computes and results written after; 0 = overlapped",
        0,
    )
    weight_bits: int = key(
        Count(2, 8, power_of_two=True),
        "narrowest constant weights that stay packed in memory until the unit reads them; 8 = no packing",
        8,
    )
    weight_scales: bool = key(Flag(), "weights of 8 bits and fewer are dequantized on their way into the array", False)
    mesh: MeshConfig | None = section(MeshConfig, "keys of matrix.model mesh", optional=True)
    direct: DirectConfig | None = section(DirectConfig, "keys of matrix.model direct", optional=True)
    grid: GridConfig | None = section(GridConfig, "keys of matrix.model grid", optional=True)

    @property
    def elements(self) -> int:
        """PEs of all arrays."""
        return self.rows * self.cols * self.arrays

    def rate(self, dtype: str) -> Fraction:
        """MACs per PE and cycle for the label of an element type; 0 = not supported."""
        return self.throughput.get(STORED_AS.get(dtype, dtype), _NOT_COMPUTED)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VectorConfig:
    """A SIMD unit for elementwise work, reductions and conversions. Absent: the device has none."""

    lanes: int = key(Count(1, 65536), "parallel operations")
    lane_bytes: int = key(Count(1, 8, power_of_two=True), "width of a lane; a wider element takes several passes", 4)
    packed: bool = key(Flag(), "several narrow elements share a lane", False)
    setup_cycles: int = key(Count(0), "cycles before the first operand of an instruction", 8)
    setup_hidden: bool = key(Flag(), "the set-up of an instruction overlaps the previous instruction", False)
    cost: FrozenTable[int] = table(
        MapOf(
            FUNCTIONS,
            Count(1, 4096),
            (("simple", 1), ("divide", 4), ("sqrt", 4), ("transcendental", 8), ("convert", 1), ("reduce", 1)),
        ),
        "cycles per operation in a lane, by class of function",
    )
    clock_hz: int | None = key(CLOCK, "clock of this unit; left out = the device's clock", None)
    port_bytes_per_cycle: int = key(
        Count(0, 1 << 16), "width of the load and store ports to SRAM; 0 = the full SRAM bandwidth", 0
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScalarConfig:
    """A small processor for data-dependent work, one element at a time. Absent: the device has none."""

    setup_cycles: int = key(Count(0), "cycles before the first element", 16)
    cycles_per_element: int = key(Count(1, 65536), "cycles per element", 4)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SramConfig:
    """On-chip memory of one core."""

    bytes: int = key(
        Quantity(Dimension.SIZE, 4 << 10, 1 << 34), "capacity of one core; less is too little for some layers"
    )
    banks: int = key(Count(1, 4096), "banks that can be accessed in parallel", 16)
    bytes_per_cycle: int = key(Count(1, 4096), "width of the port of one bank", 16)
    latency_cycles: int = key(Count(0, 1024), "cycles from address to data", 2)

    @property
    def total_bytes_per_cycle(self) -> int:
        """Bytes per cycle of all banks together."""
        return self.banks * self.bytes_per_cycle


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DmaConfig:
    """The DMA engines of one core, between DRAM and SRAM."""

    channels: int = key(Count(1, 16), "parallel transfers of one core", 2)
    setup_cycles: int = key(Count(0), "cycles from a descriptor to its first request", 16)
    bytes_per_cycle: int = key(Count(1, 4096), "width of one channel's data path", 32)
    max_outstanding: int = key(Count(1, 4096), "outstanding bursts of one channel", 32)
    burst_bytes: int = key(
        Quantity(Dimension.SIZE, 1, 1 << 16, power_of_two=True),
        "unit of DRAM traffic; a shorter run wastes the rest of the burst",
        64,
    )
    local_bytes_per_cycle: int = key(Count(0, 4096), "bytes per cycle of a copy within SRAM; 0 = bytes_per_cycle", 0)
    local_least_cycles: int = key(Count(0), "shortest time of a copy within SRAM, including its set-up", 0)
    gather_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 20),
        "size of the store-and-forward buffer: this many bytes are read before the first one is written",
        0,
    )
    reorder_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 24),
        "reorder buffer of a channel: a block of this size is read in source order and written in destination order; "
        "0 = both in the same order",
        0,
    )
    write_latency_ps: int | None = key(
        TIME, "from a write to its acknowledgement; left out = the latency of a read", None
    )
    duplex: bool = key(Flag(), "a copy within DRAM reads and writes at the same time", False)
    in_flight: int = key(
        Count(1, 64), "pipelined transfers of one channel: the latency of one overlaps the data of earlier ones", 1
    )
    separate_weight_port: bool = key(
        Flag(),
        "constants use the second channel and features of the matrix unit the first; needs three channels",
        False,
    )
    decoder_weights_per_cycle: int = key(
        Count(0, 4096),
        "constant weights that a channel decompresses per cycle on their way into SRAM; 0 = no decoder",
        0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DramConfig:
    """The off-chip memory, shared by all cores."""

    bytes: int = key(Quantity(Dimension.SIZE, 1 << 20, 1 << 48), "capacity")
    bandwidth: int = key(BANDWIDTH, "peak bandwidth of all channels together")
    kind: str = key(Choice(dram_kinds), "DRAM model", "fixed")
    latency_ps: int = key(TIME, "from a request to its first data", 100_000)
    channels: int = key(Count(1, 1024), "channels, which share the bandwidth equally; no effect with kind fixed", 1)
    efficiency: Fraction = key(
        Ratio(1, positive=True), "fraction of the peak that sequential streams reach", Fraction(1)
    )
    part: str = key(Choice(("none", *PARTS)), "kind jedec: the DRAM part, which selects its JEDEC timings", "none")
    ranks: int = key(Count(1, 8, power_of_two=True), "kind jedec: ranks per channel", 1)
    mapping: str = key(
        Text(), "kind jedec: fields of an address, most significant first: ro, ra, bg, ba, co, ch", MAPPING
    )
    read_queue: int = key(Count(1, 256), "kind jedec: entries of the read queue of a channel", 32)
    write_queue: int = key(Count(1, 256), "kind jedec: entries of the write queue of a channel", 32)
    bank_queue: int = key(Count(0, 64), "kind jedec: entries of the queue of each bank; 0 = one queue for all reads", 8)
    refresh: bool = key(Flag(), "kind jedec: model refresh", True)
    bank_refresh: bool = key(
        Flag(), "kind jedec: sets of banks are refreshed one after another; false: all banks of a rank at once", False
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConstantsConfig:
    """A separate memory for weights and other constants with its own port: flash, a ROM, a second DRAM."""

    bytes: int = key(
        Quantity(Dimension.SIZE, 1 << 10, 1 << 48), "capacity; a network with larger constants is rejected"
    )
    bandwidth: int = key(BANDWIDTH, "bandwidth of reads of constants; instructions come from DRAM")
    latency_ps: int = key(TIME, "from a request to its first data, without the latency of the interconnect")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class L2Config:
    """An on-chip memory shared by all cores, between SRAM and interconnect, for values that do not fit SRAM."""

    bytes: int = key(Quantity(Dimension.SIZE, 1 << 10, 1 << 34), "capacity")
    bytes_per_cycle: int = key(Count(1, 1 << 16), "bytes per cycle that all cores together read and write", 64)
    latency_cycles: int = key(Count(0, 65536), "cycles from a request to its first data", 20)
    line_bytes: int = key(
        Quantity(Dimension.SIZE, 1, 1 << 16, power_of_two=True),
        "unit of its traffic; a shorter run wastes the rest of the line",
        64,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InterconnectConfig:
    """The interconnect between the DMA engines of the cores and the DRAM."""

    bytes_per_cycle: int = key(Count(1, 1 << 16), "width, shared by all cores", 64)
    core_bytes_per_cycle: int = key(
        Count(0, 1 << 16), "width of the port of one core, shared by its channels; 0 = that of the interconnect", 0
    )
    latency_cycles: int = key(Count(0, 65536), "latency of a request", 8)
    arbitration: str = key(
        Choice(("need", "fair")),
        "how transfers share the bandwidth: need = all of it to the transfer that is needed first, fair = equal shares",
        "need",
    )
    multicast: bool = key(Flag(), "one read from DRAM can be written to the SRAM of several cores", False)
    separate_code_port: bool = key(
        Flag(),
        "instructions do not use the DRAM port and need no fetch, as if written to registers before a job",
        False,
    )
    separate_write_port: bool = key(
        Flag(), "writes to DRAM have a port of the same bandwidth, and do not reduce the bandwidth of reads", False
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeConfig:
    """A network between the SRAMs of the cores, separate from the interconnect to the DRAM."""

    bytes_per_cycle: int = key(Count(1, 1 << 16), "width, shared by all cores")
    latency_cycles: int = key(Count(0, 65536), "cycles from a request to the first byte from another core", 8)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CompilerConfig:
    """The vendor's compiler, runtime and driver: which of the possible programs they make, and their time per layer.

    The defaults are those of an ideal compiler.
    """

    keeps_values: bool = key(
        Flag(), "values stay in SRAM between layers; false: every layer writes its results to DRAM", True
    )
    cascades: bool = key(
        Flag(), "layers may be computed in stripes of rows, so that values between them need not fit SRAM", True
    )
    pools_outputs: bool = key(
        Flag(), "pooling reads the rows of a convolution from SRAM even if compiler.keeps_values is false", False
    )
    fuses: str = key(
        Choice(FUSIONS),
        "elementwise operators that are computed on the tiles of their producer: all; until_table = none behind a "
        "function that takes tables, such as a sigmoid; one_operand = only those of one operand; none. Conversions of "
        "types always are",
        "all",
    )
    parts_in_place: bool = key(
        Flag(),
        "operands of a concatenation are written in place, and slices are read in place; false: both are copied",
        True,
    )
    inputs_ahead: bool = key(
        Flag(),
        "the next input tile loads while the matrix unit computes; false: it loads afterwards, into the same buffer",
        True,
    )
    weight_tiles: bool = key(
        Flag(),
        "constant weights are padded to whole tiles of the matrix unit's array in DRAM, and read with the padding",
        False,
    )
    resident_weights: bool = key(
        Flag(), "weights may stay in SRAM between inferences of the same program; the first inference loads them", False
    )
    resident_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 34),
        "largest size of the pinned weights; 0 = as much as reduces the latency",
        0,
    )
    shares: str = key(
        Choice(("all", "products")),
        "layers that several cores share: all, or only those of the matrix unit, so that one core computes the others",
        "all",
    )
    layer_by_layer: bool = key(
        Flag(), "a layer begins when the previous one has ended, and layers form no cascades", False
    )
    layer_time_ps: int = key(
        TIME, "time of runtime and driver to start a layer, while all units are idle; above 0 implies layer_by_layer", 0
    )
    layer_cycles: int = key(
        Count(0), "sequencer cycles to switch to the commands of another layer; units continue meanwhile", 0
    )
    layer_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 24),
        "extra instruction bytes per layer, all loaded from DRAM before a job begins",
        0,
    )

    @property
    def one_by_one(self) -> bool:
        """Whether a layer begins when the previous one has ended."""
        return self.layer_by_layer or self.layer_time_ps > 0

    @property
    def may_cascade(self) -> bool:
        """Whether layers may form cascades."""
        return self.cascades and not self.one_by_one


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostConfig:
    """The host: times of its accesses to the device."""

    mmio_ps: int = key(TIME, "one register access", 200_000)
    irq_ps: int = key(TIME, "from the interrupt line to the handler of the driver", 2_000_000)
    link_bandwidth: int = key(BANDWIDTH, "bandwidth of bulk copies between host and device memory", 8 * 10**9)
    link_latency_ps: int = key(TIME, "start-up time of one bulk copy", 500_000)
    submit_ps: int = key(TIME, "host time for one job submission", 1_000_000)
    map_ps: int = key(TIME, "host time to map one memory pool for the device", 5_000_000)
    operation_ps: int = key(
        TIME,
        "host time for one multiply-accumulate, or for one element read or written by other operators, in operators "
        "that run on the host",
        250,
    )
    decision_ps: int = key(
        TIME,
        "host time for one decision between programs: a branch, an iteration of a loop, values that decide shapes, or "
        "a result whose size depends on data; elements that it reads or writes take host.operation each",
        500_000,
    )
    compile_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 48),
        "host memory for the values and steps of one compilation, excluding the model itself; 0 = an eighth of "
        "dram.bytes, at most 256 MiB",
        0,
    )

    def copy_ps(self, nbytes: int) -> int:
        """Picoseconds of one bulk copy of ``nbytes`` bytes, in either direction."""
        return self.link_latency_ps + bytes_to_ps(nbytes, self.link_bandwidth)
