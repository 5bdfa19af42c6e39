"""Every key of a device description affects a reported number, in the physically expected direction if there is one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from npusim.dtypes import DType
from npusim.errors import NpusimError
from npusim.graph import Graph
from npusim.hw.area import area
from npusim.hw.capability import capabilities
from npusim.hw.config import Config, load_config
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session

SLOWER, FASTER, MOVES = "slower", "faster", "moves"


class Turn(NamedTuple):
    """One change of a key: its new value, the expected change of the time, and other keys that it needs to have an
    effect."""

    value: Any
    expected: str = MOVES
    given: Mapping[str, Any] = MappingProxyType({})


_L2 = {"l2.bytes": "1 MiB", "sram.bytes": "64 KiB"}
"""An L2, and values in it because they do not fit in the SRAM."""

_CONSTANTS = {"constants.bytes": "1 MiB", "constants.bandwidth": "2 GB/s", "constants.latency": "300 ns"}

TURNS: dict[str, Turn] = {
    "clock": Turn("2 GHz", FASTER),
    "cores": Turn(2, FASTER),
    "queue_depth": Turn(1),
    "compiler.fuses": Turn("none", SLOWER),
    "compiler.shares": Turn("products", MOVES, {"cores": 2}),
    "compiler.layer_by_layer": Turn(True, SLOWER),
    "compiler.layer_time": Turn("50 us", SLOWER),
    "compiler.layer_cycles": Turn(1000, SLOWER),
    "compiler.layer_bytes": Turn("64 KiB", SLOWER),
    "matrix": Turn(False),
    "matrix.rows": Turn(8, SLOWER),
    "matrix.cols": Turn(8, SLOWER),
    "matrix.dataflow": Turn("output_stationary"),
    "matrix.throughput": Turn({"int8": "1/2", "float32": "1/8"}, SLOWER),
    "matrix.preload_hidden": Turn(False, SLOWER),
    "matrix.weight_buffers": Turn(4, FASTER),
    "matrix.fill_drain": Turn("per_fold", SLOWER),
    "matrix.setup_cycles": Turn(500, SLOWER),
    "matrix.accumulator_bytes": Turn("4 KiB", SLOWER),
    "matrix.output_elements_per_cycle": Turn(1, SLOWER),
    "matrix.clock": Turn("250 MHz", SLOWER),
    "matrix.arrays": Turn(4),
    "matrix.port_bytes_per_cycle": Turn(1, SLOWER),
    "matrix.sums_shift_out": Turn(False, MOVES, {"matrix.dataflow": "output_stationary"}),
    "matrix.weight_bits": Turn(8, SLOWER),
    "compiler.weight_tiles": Turn(True, SLOWER),
    "matrix.weight_scales": Turn(False, SLOWER),
    "vector": Turn(False),
    "vector.lanes": Turn(4, SLOWER),
    "vector.lane_bytes": Turn(1, SLOWER),
    # With one channel; with more, the time of 8-bit elements is hidden by other work.
    "vector.packed": Turn(True, FASTER, {"vector.lanes": 1, "dma.channels": 1}),
    "vector.setup_cycles": Turn(500, SLOWER),
    "vector.setup_hidden": Turn(True, FASTER),
    "vector.cost": Turn({"simple": 4, "transcendental": 64}, SLOWER),
    "vector.clock": Turn("250 MHz", SLOWER),
    "vector.port_bytes_per_cycle": Turn(1, SLOWER),
    "scalar": Turn(False),
    "scalar.setup_cycles": Turn(5000, SLOWER),
    "scalar.cycles_per_element": Turn(40, SLOWER),
    "sram.bytes": Turn("96 KiB", SLOWER),
    "sram.banks": Turn(1, SLOWER),
    "sram.bytes_per_cycle": Turn(1, SLOWER),
    "sram.latency_cycles": Turn(200, SLOWER),
    "compiler.keeps_values": Turn(False, SLOWER),
    "compiler.resident_weights": Turn(True, FASTER),
    "compiler.resident_bytes": Turn("1 KiB", SLOWER, {"compiler.resident_weights": True}),
    "dma.channels": Turn(1, SLOWER),
    "dma.setup_cycles": Turn(500, SLOWER),
    "dma.bytes_per_cycle": Turn(2, SLOWER),
    "dma.max_outstanding": Turn(1, SLOWER),
    "dma.burst_bytes": Turn("1 KiB", SLOWER),
    "dma.local_bytes_per_cycle": Turn(1, SLOWER),
    "dma.local_least_cycles": Turn(50_000, SLOWER),
    "dma.gather_bytes": Turn("4 KiB", SLOWER),
    "dma.write_latency": Turn("5 us", SLOWER),
    "dma.duplex": Turn(True, FASTER, {"interconnect.bytes_per_cycle": 4}),
    "dma.in_flight": Turn(4, FASTER),
    "compiler.parts_in_place": Turn(False),
    "compiler.inputs_ahead": Turn(False, SLOWER),
    "dma.separate_weight_port": Turn(True, MOVES, {"dma.channels": 4}),
    "dma.decoder_weights_per_cycle": Turn(64, FASTER),
    "dma.reorder_bytes": Turn("64 KiB", FASTER),
    "dram.bytes": Turn("1 MiB"),
    "dram.bandwidth": Turn("1 GB/s", SLOWER),
    "dram.latency": Turn("2 us", SLOWER),
    "dram.efficiency": Turn("1/4", SLOWER),
    "interconnect.bytes_per_cycle": Turn(2, SLOWER),
    "interconnect.core_bytes_per_cycle": Turn(2, SLOWER),
    "interconnect.latency_cycles": Turn(1000, SLOWER),
    "interconnect.arbitration": Turn("fair"),
    "interconnect.multicast": Turn(False, SLOWER, {"cores": 2}),
    "interconnect.separate_code_port": Turn(True, FASTER),
    "interconnect.separate_write_port": Turn(True, FASTER),
    "l2": Turn({"bytes": "1 MiB"}, FASTER, {"sram.bytes": "64 KiB"}),
    "l2.bytes": Turn("1 KiB", SLOWER, _L2),
    "l2.bytes_per_cycle": Turn(1, SLOWER, _L2),
    "l2.latency_cycles": Turn(5000, SLOWER, _L2),
    "l2.line_bytes": Turn("64 KiB", SLOWER, _L2),
    "constants": Turn({"bytes": "1 MiB", "bandwidth": "1 GB/s", "latency": "300 ns"}, SLOWER),
    "constants.bytes": Turn("1 KiB", MOVES, _CONSTANTS),
    "constants.bandwidth": Turn("1 GB/s", SLOWER, _CONSTANTS),
    "constants.latency": Turn("5 us", SLOWER, _CONSTANTS),
    "host.mmio": Turn("20 us", SLOWER),
    "host.irq": Turn("200 us", SLOWER),
    "host.link_bandwidth": Turn("10 MB/s", SLOWER),
    "host.link_latency": Turn("500 us", SLOWER),
    "host.submit": Turn("200 us", SLOWER),
    "host.map": Turn("200 us", SLOWER),
    "technology": Turn(False),
    "technology.node": Turn("28 nm"),
    "technology.voltage": Turn("900 mV"),
    "technology.leakage": Turn(9),
    "technology.dram": Turn("ddr4"),
    "technology.dram_pins": Turn(512, MOVES, {"technology.phy": True}),
    "technology.phy": Turn(True),
    "technology.pe_register_bytes": Turn(64),
    "technology.accumulator_pixels": Turn(64),
    "technology.activity": Turn("1/2"),
    "technology.clocked": Turn("1/2"),
    "technology.logic_layout": Turn(3),
    "technology.sram_layout": Turn(3),
    "technology.floorplan": Turn(3),
    "technology.pe_memory_bytes": Turn(64),
    "technology.cache": Turn(True, MOVES, {"l2.bytes": "1 MiB"}),
    "technology.control": Turn("1 mm2"),
    "technology.core_transistors": Turn(10**9),
    "technology.chip": Turn("2 mm2"),
    "energy.mac": Turn({"int8": "9 pJ", "float32": "9 pJ"}),
    "energy.operand_byte": Turn("9 pJ"),
    "energy.accumulator_byte": Turn("9 pJ"),
    "energy.vector": Turn("9 pJ"),
    "energy.scalar": Turn("9 pJ"),
    "energy.sram_byte": Turn("99 pJ"),
    "energy.dma_byte": Turn("9 pJ"),
    "energy.dram_byte": Turn("9 pJ"),
    "energy.l2_byte": Turn("9 pJ", MOVES, _L2),
    "energy.clock_cycle": Turn("9 pJ"),
    "energy.leakage": Turn("9 mW"),
    "energy.phy": Turn("9 mW", MOVES, {"technology.phy": True}),
    "area.pe": Turn("9 um2"),
    "area.sram_kib": Turn("9 um2"),
    "area.l2_kib": Turn("9 um2", MOVES, _L2),
    "area.accumulator_kib": Turn("9 um2"),
    "area.wires": Turn("9 um2"),
    "area.lane": Turn("9 um2"),
    "area.scalar": Turn("9 um2"),
    "area.dma": Turn("9 um2"),
    "area.control": Turn("9 um2"),
    "area.phy": Turn("9 um2", MOVES, {"technology.phy": True}),
}

SILENT = {
    "name": "a label",
    "description": "a label",
    "matrix.model": "one model at a time: each has tests of its own",
    "dram.kind": "one kind at a time: each has tests of its own",
    "dram.channels": "without effect under the kind fixed, as the manual says",
    "energy.constants_byte": "of a memory that the device has not: tests/unit/hw/test_energy.py",
    "compiler.cascades": "of networks with cascades: tests/unit/compiler/test_chip_keys.py",
    "compiler.pools_outputs": "of a device whose SRAM keeps no values: tests/unit/compiler/test_chip_keys.py",
    "technology.any_clock": "decides which clocks are refused: tests/unit/hw/test_speed.py",
    "technology.idle": "of load tests: tests/unit/explore/test_serving.py",
    "host.operation": "of models in which values decide: tests/property/test_run_time_decisions.py",
    "host.decision": "of models that decide at run time: tests/property/test_planned_models.py",
    "host.compile_bytes": "decides what is refused while it is compiled: tests/unit/frontends/test_limits.py",
    **dict.fromkeys(
        (
            "dram.part",
            "dram.mapping",
            "dram.ranks",
            "dram.refresh",
            "dram.bank_refresh",
            "dram.bank_queue",
            "dram.read_queue",
            "dram.write_queue",
        ),
        "of the kind jedec, whose tests are in tests/unit/hw/test_dram.py",
    ),
}
"""Keys without an effect, and why that is right."""


def _network() -> Graph:
    """Build a network that uses every unit: 8-bit and float products, 4-bit and scaled weights, vector and row
    functions, the scalar unit, copies."""
    rng = np.random.default_rng(0)
    build = GraphBuilder("probe")
    image = build.input("image", (1, 16, 24, 24), DType.FLOAT32)
    weight = build.const(rng.standard_normal((64, 16, 3, 3), np.float32), "weight")
    window = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    features = build.add("unary", [build.add("conv", [image, weight], window)], {"fn": Unary.GELU})
    rows = build.add("softmax", [features], {"axis": 1, "log": False})
    small = build.input("small", (96, 512), DType.INT8)
    codes = build.const(rng.integers(-9, 9, (512, 160)).astype(np.int8), "codes")
    product = build.add("matmul", [small, codes])
    bytes_ = build.add("cast", [product], {"to": DType.INT8})
    doubled = build.add("binary", [bytes_, bytes_], {"fn": Binary.MAX})
    best, _ = build.add_all("topk", [rows], {"axis": 1, "k": 3, "largest": True})
    places = build.const(rng.integers(0, 3, (1, 2, 24, 24)), "places")
    patch = build.const(np.ones((1, 2, 24, 24), np.float32), "patch")
    mended = build.add("scatter_elements", [best, places, patch], {"axis": 1, "reduction": "add"})
    wide = build.add("pad", [image], {"before": (0, 0, 0, 3), "after": (0, 0, 0, 2), "mode": "constant", "value": 0})
    fours = build.const(rng.integers(-8, 8, (160, 512)).astype(np.int8), "fours")
    packed = build.add("matmul", [doubled, fours])
    reals = build.add("cast", [doubled], {"to": DType.FLOAT32})
    eights = build.const(rng.integers(-128, 128, (160, 512)).astype(np.int8), "eights")
    scales = [build.const(np.full((1, 512), 0.25, np.float32)), build.const(np.zeros((1, 512), np.int32))]
    scaled = build.add("matmul", [reals, build.add("dequantize", [eights, *scales], {"to": DType.FLOAT32})])
    halves = [build.add("unary", [image], {"fn": fn}) for fn in (Unary.RELU, Unary.EXP)]
    joined = build.add("concat", halves, {"axis": 1})
    return build.finish([rows, mended, doubled, wide, packed, scaled, joined])


GRAPH = _network()


@functools.cache
def _run(config: Config) -> tuple[int, int, object]:
    """Return (device time of the second run in ps, simulated time of load and two runs in ps, energy of the second
    run).

    One memory pool is mapped before: a session does not use one, but other clients of a driver do.
    """
    with Session(config, cache_dir=False) as session:
        session.driver.map_memory(1)
        program = session.compile(GRAPH)
        inputs = {b.name: np.zeros(b.shape, b.dtype.storage) for b in program.inputs}
        session.run(program, inputs)
        result = session.run(program, inputs)
        assert result.energy is not None
        return result.time_ps, session.device.now_ps, result.energy.parts


def _keys() -> list[str]:
    # Tables that edge has not are there as soon as one of their keys is.
    full = load_config("edge").with_(energy={}, area={}, **_L2, **_CONSTANTS)
    rows = [row[0] for row in full.resolved()]
    sections = {key.partition(".")[0] for key in rows if "." in key and key.partition(".")[0] in TURNS}
    return sorted({*rows, *sections})


@pytest.mark.parametrize("key", _keys())
def test_every_key_moves_what_is_reported(key: str) -> None:
    if key in SILENT or key.partition(".")[0] in SILENT:
        return
    turn = TURNS[key]
    before = load_config("edge").with_(**turn.given)
    after = before.with_(**{key: None if turn.value is False and "." not in key else turn.value})
    assert after.fingerprint() != before.fingerprint()
    if turn.expected is MOVES:
        assert _observed(after) != _observed(before)
        return
    (device, total, _), (old_device, old_total, _) = _run(after), _run(before)
    moved = (total, old_total) if key.startswith("host.") else (device, old_device)
    assert moved[0] > moved[1] if turn.expected is SLOWER else moved[0] < moved[1]


@functools.cache
def _observed(config: Config) -> object:
    """Return times, energy, area and capabilities, or the error with which the device refuses the network."""
    try:
        return _run(config), capabilities(config), area(config)
    except NpusimError as error:
        return str(error)
