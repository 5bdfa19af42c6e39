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
    # registers, 48 and 24 bytes. Its filters are in an SRAM, see below.
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
}
_FILTERS = 448
"""Bytes of the filter memory of a PE, read two at a time."""
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
    filters = 1000 * nodes.sram_pj(technology.node_nm, _FILTERS, 2)
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


_SM_TRANSISTORS = (
    128 * 996_200  # control of threads, for each of 4 x 32 lanes
    + 44_300_000  # port of the crossbar
    + 32 * 685_300  # float64 units
    + 64 * 177_690  # int32 units
    + 4 * 37_650_000  # register files of 64 KiB with four ports: 23.53 mm2 each at 90 nm by EMPIRE's formula
)
"""Parts of a streaming multiprocessor that correspond to no unit: PrincetonUniversity/LLMCompass, cost_model.py and
configs/GA100.json. Control and crossbar are its means over photographs of this die and of an MI210."""
_L2_UM2 = (48 << 23) * 170_000 // 602_000
"""48 MiB of L2 in memories of 512 KiB including tags: 0.17 um2 per bit at 7 nm with 0.602 utilisation; same source."""
_LINKS_UM2 = 12 * (1_888_000 + round(74_632_000 / nodes.transistors_per_um2(7)))
"""PHYs and controllers of twelve NVLinks; same source."""
A100: Mapping[str, Any] = {
    # NVIDIA A100 white paper: the whole GA100 has 64 pairs of SMs. Each SM has 4 x 256 float16 multipliers, 64 float32
    # lanes and 192 KiB of L1. The chip has six stacks of HBM2.
    "cores": 64,
    "matrix.rows": 32,
    "matrix.cols": 64,
    "matrix.dataflow": "output_stationary",
    "scalar": None,
    "matrix.throughput": {"float16": 1, "bfloat16": 1, "float32": "1/2", "int8": 2},
    "vector.lanes": 128,
    "sram.bytes": 2 * 192 << 10,
    "sram.banks": 64,
    "sram.bytes_per_cycle": 16,
    "dram.bytes": "48 GiB",
    "dram.bandwidth": "1866 GB/s",
    "technology.node": "7 nm",
    "technology.dram": "hbm2",
    "technology.phy": True,
    "technology.core_transistors": 2 * _SM_TRANSISTORS,
    "technology.chip": f"{_L2_UM2 + _LINKS_UM2} um2",
}
_MEMORY = "area memory PHY", "area memory control"


def a100_area(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Square millimetres of the whole die, and of PHYs and controllers of its DRAM. Other parts of a GPU are included
    by their published transistor counts."""
    rows = [row for row in records if row.text("machine") == "A100" and row.text("item").startswith("area ")]
    given = {record.text("item"): record.number("value") for record in rows}
    found = area(load_config("tiny").with_(**A100))
    if given.keys() >= set(_MEMORY):
        yield DataPoint("PHYs and controllers", sum(given[each] for each in _MEMORY), (found["phy"] or 0) / 1e6, "part")
        yield DataPoint("whole die", sum(given.values()), (found.total or 0) / 1e6, "whole")


_FILE = "energy_area.csv"
SETS = (
    DataSet(
        "nvdla_energy", "mJ", ("nvdla_2048", "nvdla_512", "nvdla_128", "nvdla_32"), nvdla_energy, _FILE, every=True
    ),
    DataSet("nvdla_area", "mm2", ("nvdla_2048", "nvdla_512", "nvdla_128", "nvdla_32"), nvdla_area, _FILE, every=True),
    DataSet("tpu_v1_power", "W", ("tpuv1",), tpu_v1, _FILE, every=True),
    DataSet("eyeriss_power", "mW", ("tiny",), eyeriss, _FILE, every=True),
    DataSet("gemmini_area", "um2", ("gemmini",), gemmini_area, _FILE, every=True),
    DataSet("a100_area", "mm2", ("tiny",), a100_area, _FILE, every=True),
)
