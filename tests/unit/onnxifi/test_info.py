"""Device properties come from the descriptions."""

from __future__ import annotations

import onnx
import pytest

from hal.onnxifi import engine
from hal.onnxifi.constants import BackendInfo, Capability
from hal.onnxifi.info import info
from hal.onnxifi.status import OnnxifiError, Status
from npusim.hw.config import list_configs, load_config

REQUIRED = [kind for kind in BackendInfo if kind <= BackendInfo.MAX_GRAPH_COUNT]
TEXTS = {
    BackendInfo.NAME, BackendInfo.VENDOR, BackendInfo.VERSION, BackendInfo.EXTENSIONS, BackendInfo.DEVICE,
    BackendInfo.ONNX_IR_VERSION, BackendInfo.OPSET_VERSION,
}  # fmt: skip


def number(config, kind):
    value = info(config, kind)
    assert len(value) == 8
    return int.from_bytes(value, "little")


def text(config, kind):
    value = info(config, kind)
    assert value.endswith(b"\0")
    assert value.count(b"\0") == 1
    return value[:-1].decode()


@pytest.mark.parametrize("name", list_configs())
def test_all_that_is_required_is_there(name):
    config = load_config(name)
    for kind in REQUIRED:
        (text if kind in TEXTS else number)(config, kind)
    assert len(REQUIRED) == 17
    assert len(info(config, BackendInfo.NAME)) <= 50


def test_speeds_and_sizes_are_those_of_the_description():
    config = load_config("edge")
    matrix = config.matrix
    assert number(config, BackendInfo.MACS_FP32) == matrix.rows * matrix.cols * config.clock_hz // 4
    assert number(config, BackendInfo.MACS_FP16) == matrix.rows * matrix.cols * config.clock_hz // 2
    assert number(config, BackendInfo.MEMORY_SIZE) == 2 << 30
    assert number(config, BackendInfo.MEMORY_BANDWIDTH) == 17_064_000_000
    for kind in (BackendInfo.CPU_MEMORY_READ_BANDWIDTH, BackendInfo.CPU_MEMORY_WRITE_BANDWIDTH):
        assert number(config, kind) == 12_000_000_000
    faster = config.with_(clock="2 GHz", **{"dram.bandwidth": "1 GB/s"})
    assert number(faster, BackendInfo.MACS_FP32) == 2 * number(config, BackendInfo.MACS_FP32)
    assert number(faster, BackendInfo.MEMORY_BANDWIDTH) == 10**9


def test_a_device_without_floats_says_so():
    config = load_config("edge").with_(**{"matrix.throughput": {"int8": 1}})
    assert number(config, BackendInfo.MACS_FP32) == number(config, BackendInfo.MACS_FP16) == 0


def test_capabilities_and_versions():
    config = load_config("tiny")
    found = Capability(number(config, BackendInfo.CAPABILITIES))
    assert Capability.SYMBOLIC_BATCH_SIZE in found
    assert Capability.SYMBOLIC_SIZE_TENSORS in found
    assert Capability.VARIABLE_BATCH_SIZE not in found
    versions = [int(each) for each in text(config, BackendInfo.ONNX_IR_VERSION).split()]
    assert versions == list(range(3, onnx.IR_VERSION + 1))
    assert text(config, BackendInfo.OPSET_VERSION).startswith("ai.onnx:")
    assert number(config, BackendInfo.GRAPH_INIT_PROPERTIES) & 0xFFFFFFFF == 0


@pytest.mark.parametrize("kind", [9, 15, 40, 46, -1, 1 << 20])
def test_what_there_is_not(kind):
    with pytest.raises(OnnxifiError) as caught:
        engine.info(0, kind)
    assert caught.value.status is Status.UNSUPPORTED_ATTRIBUTE
