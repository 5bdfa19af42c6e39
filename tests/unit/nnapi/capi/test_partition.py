"""Models that no single device supports. The devices are real, their reported support is not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hal.nnapi.capi import devices
from hal.nnapi.capi.handles import TABLE, Kind
from hal.nnapi.types import OperationType
from tests.support.nnapi.c_api import Api, ModelMaker, address, code, device, handles, set_inputs


@pytest.fixture
def supporting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the operations that each device supports."""

    def limit(*allowed: set[OperationType]) -> None:
        for each, kinds in zip(devices.devices(), allowed, strict=True):

            def support(model: Any, kinds: set[OperationType] = kinds) -> list[bool]:
                return [operation.type in kinds for operation in model.main.operations]

            monkeypatch.setattr(each.aidl, "getSupportedOperations", support)

    return limit


ADD, MUL, SUB = OperationType.ADD, OperationType.MUL, OperationType.SUB


def network(api: Api, dims: Sequence[int] = (4,)) -> int:
    """Build sum = a + b; y = (a + b) * b - a. Both are outputs, and the sum is also needed after the cut."""
    maker = ModelMaker(api)
    a, b, total, product, y = (maker.operand("TENSOR_FLOAT32", dims) for _ in range(5))
    fuse = maker.i32(0)
    maker.add("SUB", [product, a, fuse], [y])
    maker.add("MUL", [total, b, fuse], [product])
    maker.add("ADD", [a, b, fuse], [total])
    return maker.finish([a, b], [y, total])


def compile_for_both(api: Api, model: int) -> tuple[int, int]:
    compilation = api.make("Compilation_createForDevices", model, handles([device(api, 0), device(api, 1)]), 2)
    return compilation, api.Compilation_finish(compilation)


@pytest.mark.parametrize("way", ["compute", "burst", "event"])
def test_a_model_is_cut(api: Api, supporting: Callable[..., None], way: str) -> None:
    supporting({ADD, SUB}, {MUL})
    compilation, result = compile_for_both(api, network(api))
    assert result == 0
    execution = api.make("Execution_create", compilation)
    a, b = np.arange(4, dtype=np.float32), np.array([5, 6, 7, 8], np.float32)
    y, total = np.empty(4, np.float32), np.empty(4, np.float32)
    set_inputs(api, execution, a, b)
    for index, array in enumerate((y, total)):
        api.ok("Execution_setOutput", execution, index, None, address(array), 16)
    if way == "compute":
        api.ok("Execution_compute", execution)
    elif way == "burst":
        api.ok("Execution_burstCompute", execution, api.make("Burst_create", compilation))
    else:
        event = api.make("Execution_startCompute", execution)
        api.ok("Event_wait", event)
    assert total.tolist() == (a + b).tolist()
    assert y.tolist() == ((a + b) * b - a).tolist()


def cached_for_both(api: Api, model: int, folder: Path) -> int:
    compilation = api.make("Compilation_createForDevices", model, handles([device(api, 0), device(api, 1)]), 2)
    api.ok("Compilation_setCaching", compilation, str(folder).encode(), (ctypes.c_uint8 * 32)())
    api.ok("Compilation_finish", compilation)
    return compilation


def lengths_of(compilation: int) -> list[int]:
    steps = TABLE.get(Kind.Compilation, compilation, "compilation").steps
    return [len(step.part.model.main.operations) for step in steps]


def test_a_cut_is_kept(
    api: Api, supporting: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supporting({ADD, SUB}, {MUL})
    model = network(api)
    assert lengths_of(cached_for_both(api, model, tmp_path)) == [1, 1, 1]
    for each in devices.devices():  # from here on no device answers
        monkeypatch.setattr(each.aidl, "getSupportedOperations", None)
    compilation = cached_for_both(api, model, tmp_path)
    assert lengths_of(compilation) == [1, 1, 1]
    execution = api.make("Execution_create", compilation)
    a, b = np.arange(4, dtype=np.float32), np.array([5, 6, 7, 8], np.float32)
    y, total = np.empty(4, np.float32), np.empty(4, np.float32)
    set_inputs(api, execution, a, b)
    for index, array in enumerate((y, total)):
        api.ok("Execution_setOutput", execution, index, None, address(array), 16)
    api.ok("Execution_compute", execution)
    assert y.tolist() == ((a + b) * b - a).tolist()


@pytest.mark.parametrize(
    "note",
    ["", "7", "[[0, 1]]", "[[0, 3]]", "[[0, 1], [1, 2]]", "[[0, 1], [9, 1], [0, 1]]", "[[0, 1], [1, 0], [0, 2]]",
     '[["edge", 3]]', "[[0, 1.5], [1, 1.5]]"],
)  # fmt: skip
def test_a_note_of_a_cut_that_somebody_has_changed_is_not_believed(
    api: Api, supporting: Callable[..., None], tmp_path: Path, note: str
) -> None:
    supporting({ADD, SUB}, {MUL})
    model = network(api)
    cached_for_both(api, model, tmp_path)
    [path] = tmp_path.glob("*.cut")
    right = path.read_text()
    path.write_text(note)
    assert lengths_of(cached_for_both(api, model, tmp_path)) == [1, 1, 1]
    assert path.read_text() == right


def test_what_nobody_supports(api: Api, supporting: Callable[..., None]) -> None:
    supporting({ADD}, {MUL})
    assert compile_for_both(api, network(api))[1] == code("BAD_DATA")


def test_a_cut_needs_known_dimensions(api: Api, supporting: Callable[..., None]) -> None:
    supporting({ADD, SUB}, {MUL})
    assert compile_for_both(api, network(api, [0]))[1] == code("BAD_DATA")


def test_an_output_that_another_device_needs_is_not_omitted(api: Api, supporting: Callable[..., None]) -> None:
    supporting({ADD, SUB}, {MUL})
    compilation, _ = compile_for_both(api, network(api))
    execution = api.make("Execution_create", compilation)
    values = np.ones(4, np.float32)
    set_inputs(api, execution, values, values)
    api.ok("Execution_setOutput", execution, 0, None, address(values), 16)
    api.ok("Execution_setOutput", execution, 1, None, None, 0)
    assert api.Execution_compute(execution) == code("BAD_DATA")


def test_an_output_that_nobody_else_needs_may_be_omitted(api: Api, supporting: Callable[..., None]) -> None:
    supporting({ADD, SUB}, {MUL})
    maker = ModelMaker(api)
    a, b, difference, product = (maker.operand("TENSOR_FLOAT32", [4]) for _ in range(4))
    fuse = maker.i32(0)
    maker.add("SUB", [a, b, fuse], [difference])
    maker.add("MUL", [a, b, fuse], [product])
    compilation, result = compile_for_both(api, maker.finish([a, b], [difference, product]))
    assert result == 0
    execution, values, found = (
        api.make("Execution_create", compilation),
        np.full(4, 3, np.float32),
        np.zeros(4, np.float32),
    )
    set_inputs(api, execution, values, values)
    api.ok("Execution_setOutput", execution, 0, None, None, 0)
    api.ok("Execution_setOutput", execution, 1, None, address(found), 16)
    api.ok("Execution_compute", execution)
    assert found.tolist() == [9] * 4


def test_the_faster_device_gets_what_both_support(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for favourite in devices.devices():
        for each in devices.devices():
            monkeypatch.setattr(each, "cost", lambda kind, preference, best=each is favourite: 1.0 if best else 2.0)
        compilation, _ = compile_for_both(api, network(api))
        steps = TABLE.get(Kind.Compilation, compilation, "compilation").steps
        assert [step.part.device for step in steps] == [favourite]


def test_costs_come_from_the_capabilities() -> None:
    edge, tiny = devices.devices()
    float32 = code("TENSOR_FLOAT32")
    assert 0 < edge.cost(float32, 1) < tiny.cost(float32, 1)
    assert edge.cost(float32, 0) != edge.cost(float32, 1)
