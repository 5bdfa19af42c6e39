"""Published energies and areas, compared with the prices of ``npusim.hw``: of runs, counted actions and chips.

Those of NVDLA are synthesis estimates of the core without its DRAM. Three constants of its config are fitted to the
values for 512 and for 32 MACs; other designs are predictions. Nothing is fitted to the power of TPU v1 and Eyeriss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import Any

from npusim.hw import actions as act
from npusim.hw import nodes
from npusim.hw.area import area
from npusim.hw.config import Config, list_configs, load_config
from npusim.hw.costs import Breakdown
from npusim.hw.energy import action_costs
from npusim.runtime import Result, Session
from npusim.validate.base import DataPoint, DataRow, DataSet, Excluded, machine
from npusim.validate.networks import NETWORKS
from npusim.validate.networks.small import perceptron

FITTED = ("512", "32")
"""Designs of NVDLA, by their MACs, that constants of its config are fitted to."""
_NVDLA = re.compile(r"NVDLA ([0-9]+) MAC/.*")
_ENERGY, _AREA = "energy per ResNet-50 inference", "cell area incl. memories"
_OUTSIDE = ("dram", "phy")
"""Parts that are not included in the published energy or area of a chip."""


def nvdla_energy(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Millijoules of one ResNet-50, run like a network of a user. The power in the primer is that of the core alone."""
    for record, name in _designs(records, _ENERGY):
        label = f"{record.text('machine')}, {record.text('node_nm')} nm"
        if f"nvdla_{name}" not in list_configs():
            yield Excluded(label, "no config of such a machine")
            continue
        config = _at(machine(f"nvdla_{name}"), record)
        with Session(config, cache_dir=False) as session:
            program = session.compile(NETWORKS["resnet50_v1"].make((1, 224, 224, 3)))
            result = session.run(program, timing_only=True)
        yield DataPoint(f"{label}{_remark(name)}", record.number("value"), _inside(result.energy) / 1e12, _kind(name))


def nvdla_area(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Area of the core in square millimetres at a node."""
    for record, name in _designs(records, _AREA):
        label = f"{record.text('machine')}, {record.text('node_nm')} nm"
        if f"nvdla_{name}" not in list_configs():
            yield Excluded(label, "no config of such a machine")
            continue
        found = area(_at(machine(f"nvdla_{name}"), record))
        yield DataPoint(f"{label}{_remark(name)}", record.number("value"), _inside(found) / 1e6, _kind(name))


def _designs(records: Sequence[DataRow], item: str) -> Iterator[tuple[DataRow, str]]:
    """Rows of NVDLA designs for one item, each with its MACs."""
    for record in records:
        found = _NVDLA.fullmatch(record.text("machine"))
        if found and record.text("item").startswith(item):
            yield record, found[1]


def _at(config: Config, record: DataRow) -> Config:
    node = record.size("node_nm")
    return config.with_(**{"technology.node": f"{node} nm", "technology.voltage": f"{nodes.nominal_mv(node)} mV"})


def _kind(name: str) -> str:
    return "fitted to" if name in FITTED else "predicted"


def _remark(name: str) -> str:
    return " (fitted to)" if name in FITTED else ""


def _inside(found: Breakdown) -> int:
    """The sum of the on-chip parts, all of which must be known."""
    parts = [part for part in found.parts if part.name not in _OUTSIDE]
    return sum(part.value or 0 for part in parts) if all(part.value is not None for part in parts) else 0


def tpu_v1(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Watts of a die including its DRAM, while it computes CNN0, as far as that is published: equal square layers."""
    for record in records:
        if record.text("machine") != "TPUv1" or not record.text("item").startswith("power per die at 100% CNN0"):
            continue
        with Session(machine("tpuv1"), cache_dir=False) as session:
            # Jouppi et al., ISCA 2017, table 1: 16 layers, 8 M weights, 2888 operations per byte of weights.
            program = session.compile(perceptron(2888, (isqrt(8 * 10**6 // 16),) * 2, 16))
            result: Result = session.run(program, timing_only=True)
        total = result.energy.total
        assert total is not None
        yield DataPoint("CNN0, incremental power of a die", record.number("value"), total / result.time_ps / 1000)


EYERISS: Mapping[str, Any] = {
    # Chen et al., Eyeriss, JSSC 52(1), 2017, table IV; 64-bit banks of 4 KiB. The sums and feature maps of a PE are in
    # registers, 48 and 24 bytes. Its filters are in an SRAM.
    "clock": "200 MHz",
    "matrix.rows": 12,
    "matrix.cols": 14,
    "matrix.throughput": {"int16": 1},
    "matrix.dataflow": "output_stationary",
    "vector": None,
    "scalar": None,
    "sram.bytes": 108 << 10,
    "sram.banks": 27,
    "sram.bytes_per_cycle": 8,
    "technology.node": "65 nm",
    "technology.voltage": "1 V",
    "technology.pe_register_bytes": 72,
    "technology.pe_memory_bytes": 448,
}
_LAYER = re.compile(r"VGG-16 batch 3 (CONV[0-9-]+) (.*)")
_COUNTED = {
    # The same paper, table VI (cucapra/fodlam, data/eyeriss-vgg16.csv): 10^9 MACs, percentage of zeros in the inputs.
    "CONV1-1": (0.26, 16.0),
    "CONV1-2": (5.55, 47.7),
    "CONV2-1": (2.77, 24.8),
    "CONV2-2": (5.55, 38.7),
    "CONV3-1": (2.77, 39.7),
    "CONV3-2": (5.55, 58.1),
    "CONV3-3": (5.55, 58.7),
    "CONV4-1": (2.77, 64.3),
    "CONV4-2": (5.55, 74.7),
    "CONV4-3": (5.55, 85.4),
    "CONV5-1": (1.39, 79.4),
    "CONV5-2": (1.39, 87.4),
    "CONV5-3": (1.39, 88.5),
}


def eyeriss(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Milliwatts of a layer of VGG-16 from the actions counted by its authors, because no machine here is
    row-stationary."""
    layers: dict[str, dict[str, float]] = {}
    for record in records:
        found = _LAYER.fullmatch(record.text("item")) if record.text("machine") == "Eyeriss" else None
        if found and found[1] in _COUNTED:
            layers.setdefault(found[1], {})[found[2]] = record.number("value")
    config = load_config("tiny").with_(**EYERISS)
    for name, given in layers.items():
        if not {"power", "total latency", "global buffer accesses"} <= given.keys():
            yield Excluded(name, "power, latency or accesses are not in the file")
            continue
        yield DataPoint(name, given["power"], counted_mw(config, *_COUNTED[name], given))


def counted_mw(config: Config, macs: float, zeros: float, given: Mapping[str, float]) -> float:
    """Milliwatts with the prices of a config. A zero input gates the multiplier and the read of the filter, but not the
    registers. 160 A product reads an input and a 16-bit sum from registers and writes the sum. Inputs are always passed
    on."""
    priced, technology = action_costs(config), config.technology
    assert technology is not None
    names = (f"{act.MACS}int16", act.OPERANDS, act.SRAM, act.CLOCK, act.LEAKAGE)
    mac, byte, buffer, clock, leakage = (priced.fj(name) or 0 for name in names)
    filters = 1000 * nodes.sram_pj(technology.node_nm, technology.pe_memory_bytes, 2)
    products = macs * 1e9 * (1 - zeros / 100)
    # A product reads an input and a sum of 16 bits in registers, and writes the sum; an input passes by in any case.
    moved = macs * 1e9 * 2 * byte + products * 3 * 2 * byte
    actions = products * (mac + filters) + moved + given["global buffer accesses"] * 1e6 * buffer
    # fJ/ns is uW; fJ/ms, 1e-9 mW.
    return clock * config.clock_hz * 1e-12 + leakage / 1000 + actions / given["total latency"] * 1e-9


_GEMMINI = {
    "area spatial array 16x16 int8": ("matrix",),
    "area scratchpad 256 KB": ("sram",),
    "area accumulator 64 KB": ("accumulators",),
}
_ROCKET, _WHOLE = "area CPU Rocket", "area total"


def gemmini_area(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Square micrometres of the parts of Gemmini, and of the whole except the processor, which the vector unit
    represents."""
    given = {record.text("item"): record.number("value") for record in records if record.text("machine") == "Gemmini"}
    config = machine("gemmini").with_(**{"matrix.throughput": {"int8": 1}, "vector": None, "scalar": None})
    found = area(config)
    for item, names in _GEMMINI.items():
        if item in given:
            yield DataPoint(item.removeprefix("area "), given[item], sum(found[name] or 0 for name in names), "part")
    if _WHOLE in given and _ROCKET in given:
        yield DataPoint("all but the processor", given[_WHOLE] - given[_ROCKET], float(found.total or 0), "whole")


_LANE_UNITS = 177_690, 685_300, 37_650_000
"""Transistors of an int32 unit, of a float64 unit, and of 64 KiB of registers with four ports (23.53 mm2 at 90 nm by
EMPIRE's formula): PrincetonUniversity/LLMCompass, cost_model.py and configs/GA100.json."""
_LANE_CONTROL = {"AMD": 1_534_500, "NVIDIA": 725_650}
_CROSSBAR_PORT = {"AMD": 33_600_000, "NVIDIA": 55_000_000}
"""Transistors of the control of a lane and of a core's port of the crossbar, in photographs of an MI210 and an A100:
same source. A chip is predicted with the numbers of the other vendor."""


def _core_transistors(vendor: str, lanes: int, int32: int, float64: int, register_files: int) -> int:
    """Transistors of the parts of a streaming multiprocessor or compute unit that correspond to no unit."""
    each_int32, each_float64, each_file = _LANE_UNITS
    control = lanes * _LANE_CONTROL[vendor] + _CROSSBAR_PORT[vendor]
    return control + int32 * each_int32 + float64 * each_float64 + register_files * each_file


def _links(count: int, phy_um2: int, transistors: int, node: int) -> str:
    """Area of the PHYs and controllers of links between chips; same source."""
    return f"{count * (phy_um2 + round(transistors / nodes.transistors_per_um2(node)))} um2"


GPU: Mapping[str, Any] = {
    "matrix.model": "direct",
    "matrix.dataflow": "weight_stationary",
    "matrix.rows": 32,
    "matrix.cols": 64,
    "scalar": None,
    "vector.lanes": 128,
    "sram.banks": 64,
    "sram.bytes_per_cycle": 16,
    "technology.dram": "hbm2",
    "technology.phy": True,
    "technology.cache": True,
}
A100: Mapping[str, Any] = {
    **GPU,
    # NVIDIA A100 white paper: the whole GA100 has 64 pairs of SMs. Each SM has 4 x 256 float16 multipliers, 64 float32
    # lanes and 192 KiB of L1. The chip has six stacks of HBM2, and 48 MiB of L2 in 96 slices of 64 bytes per cycle.
    "clock": "1410 MHz",
    "cores": 64,
    "matrix.throughput": {"float16": 1, "bfloat16": 1, "int8": 2},
    "sram.bytes": 2 * 192 << 10,
    "dram.bytes": "48 GiB",
    "dram.bandwidth": "1866 GB/s",
    "l2.bytes": "48 MiB",
    "l2.bytes_per_cycle": 96 * 64,
    "l2.line_bytes": 64,
    "technology.node": "7 nm",
    "technology.core_transistors": 2 * _core_transistors("AMD", 4 * 32, 64, 32, 4),
    "technology.chip": _links(12, 1_888_000, 74_632_000, 7),
}
MI210: Mapping[str, Any] = {
    **GPU,
    # AMD CDNA 2 white paper: a die has 112 compute units, here 56 pairs, of which an MI210 uses 104. Each has 4 x 256
    # float16 multipliers, 64 lanes of float32 and float64, 512 KiB of registers, a data share of 64 and an L1 of 16
    # KiB. The L2 has 32 slices of 128 bytes per cycle. Eight links: configs/mi210_template.json of LLMCompass.
    "clock": "1700 MHz",
    "cores": 56,
    "matrix.throughput": {"float16": 1, "bfloat16": 1, "float32": "1/4", "int8": 1},
    "sram.bytes": 2 * (64 + 16) << 10,
    "dram.bytes": "64 GiB",
    "dram.bandwidth": "1638 GB/s",
    "l2.bytes": "8 MiB",
    "l2.bytes_per_cycle": 32 * 128,
    "l2.line_bytes": 128,
    "technology.node": "6 nm",
    "technology.core_transistors": 2 * _core_transistors("NVIDIA", 64, 64, 64, 8),
    "technology.chip": _links(8, 5_690_000, 348_148_000, 6),
}
_MEMORY = "area memory PHY", "area memory control"


def gpu_area(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Square millimetres of whole dies, of PHYs and controllers of their DRAM, and of their L2. Other parts of a GPU
    are included by published transistor counts."""
    for machine_, keys in (("A100", A100), ("MI210", MI210)):
        rows = [row for row in records if row.text("machine") == machine_ and row.text("item").startswith("area ")]
        given = {record.text("item"): record.number("value") for record in rows}
        if not given:
            continue
        found = area(load_config("tiny").with_(**keys))
        cache = (found["l2"] or 0) + (found["cache"] or 0)
        memory = sum(given[each] for each in _MEMORY)
        yield DataPoint(f"{machine_}, PHYs and controllers", memory, (found["phy"] or 0) / 1e6, "part")
        # The controllers of the slices are set by the A100.
        kind = "fitted to" if machine_ == "A100" else "part"
        yield DataPoint(f"{machine_}, L2", given["area global buffer"], cache / 1e6, kind)
        yield DataPoint(f"{machine_}, whole die", sum(given.values()), (found.total or 0) / 1e6, "whole")


SIMBA: Mapping[str, Any] = {
    # Shao et al., Simba, MICRO 2019: a chiplet has 16 PEs of 8 x 8 int8 multipliers, with 32 KiB of weights, 8 KiB of
    # inputs and 3 KiB of sums, a global PE with 64 KiB, and a RISC-V processor.
    "clock": "1 GHz",
    "cores": 16,
    "matrix.rows": 8,
    "matrix.cols": 8,
    "matrix.throughput": {"int8": 1},
    "matrix.accumulator_bytes": 3 << 10,
    "vector.lanes": 8,
    "sram.bytes": (32 + 8) << 10,
    "sram.banks": 16,
    "sram.bytes_per_cycle": 8,
    "l2.bytes": 64 << 10,
    "technology.node": "16 nm",
}
_DIES = {"Eyeriss": ("area core", EYERISS), "Simba": ("area chiplet", SIMBA)}


def die_area(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Square millimetres of accelerators on silicon."""
    for record in records:
        item, keys = _DIES.get(record.text("machine"), ("", {}))
        if record.text("item") == item:
            found = area(load_config("tiny").with_(**keys))
            yield DataPoint(record.text("machine"), record.number("value"), (found.total or 0) / 1e6, "whole")


_FILE = "energy_area.csv"
SETS = (
    DataSet(
        "nvdla_energy", "mJ", ("nvdla_2048", "nvdla_512", "nvdla_128", "nvdla_32"), nvdla_energy, _FILE, every=True
    ),
    DataSet("nvdla_area", "mm2", ("nvdla_2048", "nvdla_512", "nvdla_128", "nvdla_32"), nvdla_area, _FILE, every=True),
    DataSet("tpu_v1_power", "W", ("tpuv1",), tpu_v1, _FILE, every=True),
    DataSet("eyeriss_power", "mW", ("tiny",), eyeriss, _FILE, every=True),
    DataSet("gemmini_area", "um2", ("gemmini",), gemmini_area, _FILE, every=True),
    DataSet("gpu_area", "mm2", ("tiny",), gpu_area, _FILE, every=True),
    DataSet("die_area", "mm2", ("tiny",), die_area, _FILE, every=True),
)
