"""Devices and compilations."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hal.nnapi.capi import caching, devices, partition
from hal.nnapi.capi.handles import TABLE, Kind
from npusim.errors import ConfigError
from tests.support.nnapi.c_api import Api, ModelMaker, add_model, address, code, compiled, device, handles, set_inputs

NULL, BAD_DATA, BAD_STATE = code("UNEXPECTED_NULL"), code("BAD_DATA"), code("BAD_STATE")


def test_the_runtime(api: Api) -> None:
    assert api.getRuntimeFeatureLevel() == 1_000_008
    assert api.getDefaultLoopTimeout() == 2_000_000_000
    assert api.getMaximumLoopTimeout() == 15_000_000_000


def test_devices(api: Api) -> None:
    count, text, number, level = ctypes.c_uint32(), ctypes.c_char_p(), ctypes.c_int32(), ctypes.c_int64()
    api.ok("getDeviceCount", ctypes.byref(count))
    assert api.getDeviceCount(None) == NULL
    names = []
    for index in range(count.value):
        handle = device(api, index)
        assert handle == device(api, index)
        api.ok("Device_getName", handle, ctypes.byref(text))
        names.append((text.value or b"").decode())
        api.ok("Device_getVersion", handle, ctypes.byref(text))
        assert (text.value or b"").startswith(b"npusim ")
        api.ok("Device_getType", handle, ctypes.byref(number))
        assert number.value == code("DEVICE_ACCELERATOR")
        api.ok("Device_getFeatureLevel", handle, ctypes.byref(level))
        assert level.value == 1_000_008
        api.ok("Device_wait", handle)
    assert names == ["npusim-edge", "npusim-tiny"]
    handle = ctypes.c_void_p(5)
    assert api.getDevice(count.value, ctypes.byref(handle)) == BAD_DATA
    assert handle.value is None


def test_two_devices_of_one_kind() -> None:
    found = devices._open(["tiny", "tiny"])
    assert [each.name for each in found] == ["npusim-tiny", "npusim-tiny:2"]
    for each in found:
        TABLE.pop(Kind.Device, each.handle, "device")
        each.hal.close()


def test_a_device_that_does_not_exist() -> None:
    before = len(TABLE)
    with pytest.raises(ConfigError, match="nonsense"):
        devices._open(["tiny", "nonsense"])
    assert len(TABLE) == before


def test_an_unplugged_device(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    found = devices.devices()[0]
    monkeypatch.setattr(found.hal._engine, "closed", True)
    assert api.Device_wait(device(api)) == code("DEAD_OBJECT")
    compilation = api.make("Compilation_createForDevices", add_model(api), handles([device(api)]), 1)
    assert api.Compilation_finish(compilation) == code("UNAVAILABLE_DEVICE")
    everywhere = api.make("Compilation_create", add_model(api))
    api.ok("Compilation_finish", everywhere)  # the other device is there
    supported = (ctypes.c_bool * 1)(True)
    ask = api.Model_getSupportedOperationsForDevices
    assert ask(add_model(api), handles([device(api)]), 1, supported) == 0
    assert not supported[0]


def test_making_compilations(api: Api) -> None:
    model, handle = add_model(api), ctypes.c_void_p()
    one = device(api)
    make = api.Compilation_createForDevices
    assert make(model, handles([one]), 0, ctypes.byref(handle)) == BAD_DATA
    assert make(model, handles([one, one]), 2, ctypes.byref(handle)) == BAD_DATA
    assert make(model, handles([one, 0]), 2, ctypes.byref(handle)) == NULL
    assert make(model, handles([77]), 1, ctypes.byref(handle)) == BAD_DATA
    assert make(model, None, 1, ctypes.byref(handle)) == NULL
    unfinished = api.make("Model_create")
    assert make(unfinished, handles([one]), 1, ctypes.byref(handle)) == BAD_STATE
    assert handle.value is None


def finished_once(compilation: int, api: Api) -> None:
    api.ok("Compilation_finish", compilation)
    assert api.Compilation_finish(compilation) == BAD_STATE


def test_settings(api: Api) -> None:
    compilation = api.make("Compilation_createForDevices", add_model(api), handles([device(api)]), 1)
    token = (ctypes.c_uint8 * 32)()
    assert api.Compilation_setPreference(compilation, 3) == BAD_DATA
    assert api.Compilation_setPreference(compilation, -1) == BAD_DATA
    assert api.Compilation_setPreference(compilation, code("PREFER_LOW_POWER")) == 0
    assert api.Compilation_setPriority(compilation, 1) == BAD_DATA
    assert api.Compilation_setPriority(compilation, code("PRIORITY_HIGH")) == 0
    assert api.Compilation_setCaching(compilation, None, token) == NULL
    assert api.Compilation_setCaching(compilation, b"", token) == BAD_DATA
    assert api.Compilation_setCaching(compilation, b"/nowhere", None) == NULL
    assert api.Compilation_setTimeout(compilation, 10**12) == 0
    assert api.Execution_create(compilation, ctypes.byref(ctypes.c_void_p())) == BAD_STATE
    assert api.Burst_create(compilation, ctypes.byref(ctypes.c_void_p())) == BAD_STATE
    assert (
        api.Compilation_getPreferredMemoryAlignmentForInput(compilation, 0, ctypes.byref(ctypes.c_uint32()))
        == BAD_STATE
    )
    finished_once(compilation, api)
    for result in (
        api.Compilation_setPreference(compilation, 0),
        api.Compilation_setPriority(compilation, code("PRIORITY_LOW")),
        api.Compilation_setTimeout(compilation, 5),
        api.Compilation_setCaching(compilation, b"/", token),
    ):
        assert result == BAD_STATE


def test_a_timeout_needs_one_device(api: Api) -> None:
    compilation = api.make("Compilation_create", add_model(api))
    assert api.Compilation_setTimeout(compilation, 5) == BAD_DATA
    finished_once(compilation, api)
    assert api.Compilation_setTimeout(compilation, 5) == BAD_STATE  # which comes first
    assert api.Compilation_addExtensionAttribute(compilation, b"com.example.fibonacci", 1, b"x", 1) == BAD_STATE


def test_a_timeout_that_cannot_be_met(api: Api) -> None:
    compilation = api.make("Compilation_createForDevices", add_model(api, [7]), handles([device(api)]), 1)
    api.ok("Compilation_setTimeout", compilation, 1)
    assert api.Compilation_finish(compilation) in {
        code("MISSED_DEADLINE_TRANSIENT"), code("MISSED_DEADLINE_PERSISTENT"),
    }  # fmt: skip
    assert api.Execution_create(compilation, ctypes.byref(ctypes.c_void_p())) == BAD_STATE


def test_a_timeout_ends_the_question_what_is_supported(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices compile to determine it, in the calling thread, and check the clock meanwhile."""
    maker = ModelMaker(api)
    a, b, result = (maker.operand("TENSOR_FLOAT32", [9]) for _ in range(3))
    fuse, last = maker.i32(0), a
    for number in range(60):
        made = result if number == 59 else maker.operand("TENSOR_FLOAT32", [9])
        maker.add("MUL", [last, b, fuse], [made])
        last = made
    compilation = api.make("Compilation_createForDevices", maker.finish([a, b], [result]), handles([device(api)]), 1)
    api.ok("Compilation_setTimeout", compilation, 10**9)
    begun, looks = time.monotonic_ns(), 0

    def clock() -> int:
        nonlocal looks
        looks += 1
        return begun if looks < 100 else begun + 10**10

    monkeypatch.setattr(partition, "time", SimpleNamespace(monotonic_ns=clock))
    assert api.Compilation_finish(compilation) == code("MISSED_DEADLINE_TRANSIENT")
    assert looks == 100
    assert api.Compilation_finish(compilation) == BAD_STATE


@pytest.mark.parametrize("what", ["Alignment", "Padding"])
@pytest.mark.parametrize(("direction", "count"), [("Input", 2), ("Output", 1)])
def test_preferred_memory(api: Api, add: int, what: str, direction: str, count: int) -> None:
    ask: Callable[..., int] = getattr(api, f"Compilation_getPreferredMemory{what}For{direction}")
    found = ctypes.c_uint32()
    for index in range(count):
        assert ask(add, index, ctypes.byref(found)) == 0
        assert found.value
        assert found.value & (found.value - 1) == 0
    assert ask(add, count, ctypes.byref(found)) == BAD_DATA
    assert ask(add, 0, None) == NULL


def cached(api: Api, model: int, folder: Path, token: bytes) -> int:
    compilation = api.make("Compilation_createForDevices", model, handles([device(api)]), 1)
    api.ok("Compilation_setCaching", compilation, str(folder).encode(), (ctypes.c_uint8 * 32)(*token))
    api.ok("Compilation_finish", compilation)
    return compilation


def result_of(api: Api, compilation: int) -> list[float]:
    execution = api.make("Execution_create", compilation)
    a, b, y = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32), np.empty(4, np.float32)
    set_inputs(api, execution, a, b)
    api.ok("Execution_setOutput", execution, 0, None, address(y), 16)
    api.ok("Execution_compute", execution)
    return y.tolist()


def test_caching(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh: list[Any] = []
    from hal.nnapi.capi import compilation as module

    prepare = module._prepare_fresh
    monkeypatch.setattr(module, "_prepare_fresh", lambda *given: fresh.append(1) or prepare(*given))
    model, token = add_model(api), bytes(range(32))
    assert result_of(api, cached(api, model, tmp_path, token)) == [10, 11, 12, 13]
    assert len(fresh) == 1
    files = sorted(tmp_path.iterdir())
    assert [path.suffix for path in files] == [".data0", ".model0"]
    assert result_of(api, cached(api, model, tmp_path, token)) == [10, 11, 12, 13]
    assert len(fresh) == 1, "the second one comes from the cache"
    cached(api, model, tmp_path, bytes(32))
    assert len(fresh) == 2, "another token, another entry"
    files[1].write_bytes(b"nonsense")
    assert result_of(api, cached(api, model, tmp_path, token)) == [10, 11, 12, 13]
    assert len(fresh) == 3, "what is damaged is made anew"
    assert result_of(api, cached(api, model, tmp_path, token)) == [10, 11, 12, 13]
    assert len(fresh) == 3, "and kept again"


def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of devices that are queried for support."""
    names: list[str] = []
    for each in devices.devices():
        ask = each.aidl.getSupportedOperations
        monkeypatch.setattr(
            each.aidl, "getSupportedOperations", lambda model, ask=ask, name=each.name: names.append(name) or ask(model)
        )
    return names


def test_what_is_in_the_cache_is_asked_of_nobody(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, model, token = asked(monkeypatch), add_model(api), bytes(range(32))
    cached(api, model, tmp_path, token)
    assert names == ["npusim-edge"]
    assert result_of(api, cached(api, model, tmp_path, token)) == [10, 11, 12, 13]
    assert names == ["npusim-edge"], "finding out what is supported takes longer than the cache saves"


@pytest.mark.parametrize(
    ("suffix", "damage"), [("data0", b"nonsense"), ("model0", b""), ("model0", b"nonsense")]
)  # the data of this model are empty
def test_a_damaged_cache_is_made_anew(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, damage: bytes
) -> None:
    names, model, token = asked(monkeypatch), add_model(api), bytes(range(32))
    cached(api, model, tmp_path, token)
    [damaged] = tmp_path.glob(f"*.{suffix}")
    damaged.write_bytes(damage)
    for _ in range(2):
        assert result_of(api, cached(api, model, tmp_path, token)) == [10, 11, 12, 13]
        assert names == ["npusim-edge"] * 2, "asked for the damaged one, and not for the one that replaced it"


def test_a_cache_of_another_version_is_not_used(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, model = asked(monkeypatch), add_model(api)
    cached(api, model, tmp_path, bytes(32))
    monkeypatch.setattr(devices.devices()[0], "version", "npusim 0.0 edge")
    assert result_of(api, cached(api, model, tmp_path, bytes(32))) == [10, 11, 12, 13]
    assert names == ["npusim-edge"] * 2
    assert len(list(tmp_path.glob("*.model0"))) == 2


def test_a_cache_that_cannot_be_written(api: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compilation = cached(api, add_model(api), tmp_path / "missing", bytes(32))
    assert "not cached" in caplog.text
    assert result_of(api, compilation) == [10, 11, 12, 13]


def test_names_of_cache_files_tell_devices_apart(tmp_path: Path) -> None:
    edge, tiny = devices.devices()
    cache = caching.Cache(str(tmp_path), bytes(32))
    assert cache.entry(edge, 0).model_files != cache.entry(tiny, 0).model_files
    assert cache.entry(edge, 0) == cache.entry(edge, 0)


def test_all_devices_together(api: Api) -> None:
    assert result_of(api, compiled(api, add_model(api), None)) == [10, 11, 12, 13]
