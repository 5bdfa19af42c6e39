"""Capabilities: ratios that follow from the description."""

from __future__ import annotations

import json
import math

import pytest

from hal.nnapi.driver import capabilities
from hal.nnapi.driver.capabilities import capabilities_of, energy_fj, measure
from hal.nnapi.driver.workloads import MEASURED, workload_of
from hal.nnapi.types import FLT_MAX, OperandType
from npusim import Session, load_config
from npusim.compiler.pipeline import compile_graph


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache directory of our own, and nothing in memory."""
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(capabilities, "_known", {})
    return tmp_path


def by_type(found):
    return {entry.type: entry.info for entry in found.operandPerformance}


def test_every_operand_type_has_a_workload():
    assert set(MEASURED) == set(OperandType) - {OperandType.SUBGRAPH, OperandType.OEM, OperandType.TENSOR_OEM_BYTE}


def test_the_reference_is_as_quick_as_itself():
    found = measure(load_config("cpu_reference"))
    infos = [*by_type(found).values(), found.ifPerformance, found.whilePerformance]
    assert all(info.execTime == info.powerUsage == 1.0 for info in infos)
    assert found.relaxedFloat32toFloat16PerformanceTensor.execTime == 1.0
    assert list(by_type(found)) == list(MEASURED)


def test_a_telephones_npu_is_quicker_than_its_processor():
    found = by_type(measure(load_config("mobile")))
    assert found[OperandType.TENSOR_QUANT8_ASYMM_SIGNED].execTime < 0.25
    assert found[OperandType.TENSOR_FLOAT32].execTime < 0.25
    assert all(0 < info.execTime < math.inf and 0 < info.powerUsage < math.inf for info in found.values())


def test_half_the_clock_takes_twice_the_time_where_memory_does_not_decide():
    quick = load_config("tiny").with_(**{"dram.latency": "1 ns", "dram.bandwidth": "100 GB/s"})
    slow = quick.with_(clock=quick.clock_hz // 2)
    kind = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    assert by_type(measure(slow))[kind].execTime == pytest.approx(2 * by_type(measure(quick))[kind].execTime, rel=0.05)


def test_dearer_memory_shows_in_the_power():
    config = load_config("edge")
    dear = config.with_(**{"energy.dram_byte": "1625 pJ"})
    kind = OperandType.TENSOR_FLOAT32
    assert by_type(measure(dear))[kind].powerUsage > 2 * by_type(measure(config))[kind].powerUsage
    assert by_type(measure(dear))[kind].execTime == by_type(measure(config))[kind].execTime


def test_a_type_that_the_device_does_not_compute_with_is_absent():
    found = measure(load_config("tiny").with_(matrix=None))
    assert OperandType.TENSOR_FLOAT32 not in by_type(found)
    assert OperandType.TENSOR_BOOL8 in by_type(found)
    assert found.relaxedFloat32toFloat16PerformanceScalar.execTime == FLT_MAX


def test_energy_adds_up_by_hand():
    config = load_config("tiny")
    table = load_config("edge").energy
    ((graph, _),) = workload_of(OperandType.INT32).graphs
    program = compile_graph(graph, config)
    with Session(config, cache_dir=False) as session:
        result = session.run(program, timing_only=True)
    elements = 28 * 28 * 32
    dram = result.dram_read_bytes + result.dram_write_bytes
    assert dram == 2 * 4 * elements + 4 + len(program.code)  # the tensor in and out, the scalar, the code
    # Every byte crosses the SRAM's port when it is loaded or stored, and when the vector unit reads or writes it.
    sram = sum(unit.bytes for unit in result.counters.units.values())
    assert energy_fj(program, result, table) == elements * 4600 + dram * 162_500 + sram * 12_500


def test_they_are_measured_once_and_kept_between_processes(kept, monkeypatch):
    config = load_config("tiny")
    first = capabilities_of(config)
    monkeypatch.setattr(capabilities, "_known", {})  # as a new process
    monkeypatch.setattr(capabilities, "measure", lambda config: pytest.fail("measured again"))
    assert capabilities_of(config) == first
    assert capabilities_of(config) is capabilities_of(config)


def test_a_damaged_file_is_measured_again(kept, monkeypatch):
    config = load_config("tiny")
    first, measured = capabilities_of(config), []
    monkeypatch.setattr(capabilities, "measure", lambda config: measured.append(config) or first)
    (file,) = kept.glob("capabilities-*.json")
    damages = ["", "[]", "{}", '{"relaxed": [1.0, -1.0]}', "\x00", file.read_text().replace('"if": [', '"if": [NaN, ')]
    for text in damages:
        file.write_text(text)
        monkeypatch.setattr(capabilities, "_known", {})
        assert capabilities_of(config) == first
        assert json.loads(file.read_text())["operands"]
    assert measured == [config] * len(damages)


def test_another_description_has_capabilities_of_its_own(kept):
    config = load_config("tiny")
    capabilities_of(config)
    capabilities_of(config.with_(name="renamed"))
    assert len(list(kept.glob("*.json"))) == 1
    capabilities_of(config.with_(clock="2 GHz"))
    assert len(list(kept.glob("*.json"))) == 2
