"""Capabilities: ratios that follow from the description."""

from __future__ import annotations

import functools
import json
import math
import stat

import numpy as np
import pytest

from hal.nnapi.driver import capabilities
from hal.nnapi.driver.capabilities import capabilities_of, measure
from hal.nnapi.driver.workloads import MEASURED
from hal.nnapi.types import FLT_MAX, OperandType
from npusim import load_config
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.runtime import Session
from npusim.validate.networks import NETWORKS, build, classify
from tests.support.planted_files import STRANGE, plant, promptly

measured_once = functools.cache(capabilities.measure)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Use a new cache directory, with nothing cached in memory."""
    monkeypatch.setattr(capabilities, "measure", measured_once)
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(capabilities, "_known", {})
    return tmp_path


def by_type(found):
    return {entry.type: entry.info for entry in found.operandPerformance}


def test_every_operand_type_has_a_workload():
    assert set(MEASURED) == set(OperandType) - {OperandType.SUBGRAPH, OperandType.OEM, OperandType.TENSOR_OEM_BYTE}


def test_the_reference_is_as_quick_as_itself():
    found = measured_once(load_config("cpu_reference"))
    infos = [*by_type(found).values(), found.ifPerformance, found.whilePerformance]
    assert all(info.execTime == info.powerUsage == 1.0 for info in infos)
    assert found.relaxedFloat32toFloat16PerformanceTensor.execTime == 1.0
    assert list(by_type(found)) == list(MEASURED)


def test_a_telephones_npu_is_quicker_than_its_processor():
    found = by_type(measured_once(load_config("mobile")))
    assert found[OperandType.TENSOR_QUANT8_ASYMM_SIGNED].execTime < 0.25
    assert found[OperandType.TENSOR_FLOAT32].execTime < 0.25
    assert all(0 < info.execTime < math.inf and 0 < info.powerUsage < math.inf for info in found.values())


@pytest.mark.slow
def test_half_the_clock_takes_twice_the_time_where_memory_does_not_decide():
    quick = load_config("tiny").with_(**{"dram.latency": "1 ns", "dram.bandwidth": "100 GB/s"})
    slow = quick.with_(clock=quick.clock_hz // 2)
    kind = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    assert by_type(measure(slow))[kind].execTime == pytest.approx(2 * by_type(measure(quick))[kind].execTime, rel=0.05)


def test_dearer_memory_shows_in_the_power():
    config = load_config("edge")
    dearer = config.with_(**{"energy.dram_byte": "1625 pJ"})
    cheap, dear = (by_type(measured_once(each))[OperandType.TENSOR_FLOAT32] for each in (config, dearer))
    assert dear.powerUsage > 2 * cheap.powerUsage
    assert dear.execTime == cheap.execTime


def test_a_type_that_the_device_does_not_compute_with_is_absent():
    found = measure(load_config("tiny").with_(matrix=None))
    assert OperandType.TENSOR_FLOAT32 not in by_type(found)
    assert OperandType.TENSOR_BOOL8 in by_type(found)
    assert found.relaxedFloat32toFloat16PerformanceScalar.execTime == FLT_MAX


def test_energy_that_the_description_does_not_give_is_not_made_up():
    config = load_config("tiny")
    assert config.energy is None
    found = measured_once(config)
    infos = [*by_type(found).values(), found.ifPerformance, found.whilePerformance]
    assert {info.powerUsage for info in infos} == {FLT_MAX}
    priced = measure(config.with_(energy=PRICES))
    assert all(0 < info.powerUsage < 1000 for info in by_type(priced).values())
    assert [info.execTime for info in by_type(priced).values()] == [info.execTime for info in by_type(found).values()]


PRICES = {"mac": dict.fromkeys(["int8", "int16", "int32", "float16", "bfloat16", "float32"], "1 pJ"), "vector": "1 pJ",
          "sram_byte": "1 pJ", "dram_byte": "100 pJ", "operand_byte": "0 pJ",
          "accumulator_byte": "1 pJ", "dma_byte": "1 pJ", "clock_cycle": "1 pJ", "leakage": "1 mW"}  # fmt: skip


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


@pytest.mark.parametrize("kind", ["deep", "empty", "cut", "longer", "sparse", *STRANGE])
def test_a_file_that_somebody_else_may_have_made_is_measured_again(kept, monkeypatch, caplog, kind):
    monkeypatch.setattr(capabilities, "measure", measured_once)
    found = capabilities.capabilities_of(load_config("tiny"))
    (file,) = kept.glob("capabilities-*.json")
    file.write_text("[" * 100_000) if kind == "deep" else plant(kind, file)
    monkeypatch.setattr(capabilities, "_known", {})
    measured = []
    monkeypatch.setattr(capabilities, "measure", lambda config: measured.append(config.name) or found)
    with promptly():
        assert capabilities.capabilities_of(load_config("tiny")) is found
    assert measured == ["tiny"]
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.getMessage().startswith(f"{file}: measuring again: ")
    if kind != "directory":  # nothing takes its place
        assert stat.S_ISREG(file.lstat().st_mode)
        assert stat.S_IMODE(file.lstat().st_mode) == 0o600


def test_another_description_has_capabilities_of_its_own(kept, monkeypatch):
    config = load_config("tiny")
    found = measured_once(config)
    monkeypatch.setattr(capabilities, "measure", lambda config: found)
    capabilities_of(config)
    capabilities_of(config.with_(name="renamed"))
    assert len(list(kept.glob("*.json"))) == 1
    capabilities_of(config.with_(clock="2 GHz"))
    assert len(list(kept.glob("*.json"))) == 2


def relaxed_and_float(config):
    found = measured_once(load_config(config))
    return found.relaxedFloat32toFloat16PerformanceTensor, by_type(found).get(OperandType.TENSOR_FLOAT32)


def test_relaxed_floats_are_measured_as_they_are_computed():
    """In half precision, between conversions, on a device that multiplies no other floats."""
    relaxed, exact = relaxed_and_float("rk3588_core")
    assert exact is None
    half = by_type(measured_once(load_config("rk3588_core")))[OperandType.TENSOR_FLOAT16]
    assert half.execTime < relaxed.execTime < 1.2 * half.execTime


class FloatNet(build.Net):
    """The layers of a public network with FLOAT32."""

    def __init__(self, name):
        super().__init__(name, DType.FLOAT32)

    def _weights(self, *shape):
        return self._build.const(np.broadcast_to(np.float32(0), shape), "w")

    def _bias(self, channels):
        return self._weights(channels)

    def _real(self, x):
        return x

    def _quantised(self, x):
        return x


def ratio(graph, config):
    times = []
    for each in (load_config(config), load_config("cpu_reference")):
        with Session(each, cache_dir=False) as session:
            times.append(session.run(compile_graph(graph, each), timing_only=True).time_ps)
    return times[0] / times[1]


NAMED = ("mobilenet_v1", "mobilenet_v2", "resnet50_v1", "squeezenet", "inception_v1")


@pytest.mark.slow
def test_floats_are_as_fast_as_public_networks(monkeypatch):
    monkeypatch.setattr(classify, "Net", FloatNet)
    wanted = np.exp(np.mean([np.log(ratio(NETWORKS[name].make((1, 224, 224, 3)), "edge")) for name in NAMED]))
    found = by_type(measured_once(load_config("edge")))[OperandType.TENSOR_FLOAT32].execTime
    assert 1 / 1.3 < found / wanted < 1.3


@pytest.mark.slow
@pytest.mark.parametrize("config", ["edge", "rk3588_core", "intel_npu27"])
def test_bytes_are_as_fast_as_public_networks(config):
    """Of the two that compile in seconds; all five were 0.097, 0.202 and 0.047."""
    names = ("mobilenet_v1", "squeezenet")
    wanted = np.exp(np.mean([np.log(ratio(NETWORKS[name].make((1, 224, 224, 3)), config)) for name in names]))
    found = by_type(measured_once(load_config(config)))[OperandType.TENSOR_QUANT8_ASYMM_SIGNED].execTime
    assert 1 / 1.3 < found / wanted < 1.3
