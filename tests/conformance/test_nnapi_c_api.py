"""The NNAPI conformance examples through libneuralnetworks.so, with every way to compute; run if they are installed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import Model, Operand, OperandLifeTime, Subgraph
from tests.support.nnapi.c_api import Api, ChannelQuant, TableApi, address, compiled, handles, operand_type, u32s
from tests.support.nnapi_examples.examples import (
    AIDL_VERSIONS,
    VERSIONS,
    Array,
    Get,
    Record,
    available,
    build_model,
    examples,
)
from tests.support.nnapi_examples.running import differences

pytestmark = pytest.mark.skipif(not available(), reason="the NNAPI conformance examples are not here")


class Client:
    """A program that builds a model with the C API."""

    def __init__(self, api: Api, model: Model) -> None:
        self._api = api
        self._source = model
        self._values = np.frombuffer(bytes(model.operandValues), np.uint8)
        self._referenced: dict[int, int] = {}
        self.model = self._build(model.main)

    def _build(self, subgraph: Subgraph) -> int:
        model = self._api.make("Model_create")
        if self._source.relaxComputationFloat32toFloat16:
            self._api.ok("Model_relaxComputationFloat32toFloat16", model, True)
        for index, operand in enumerate(subgraph.operands):
            self._add(model, index, operand)
        for operation in reversed(subgraph.operations):  # the order is the runtime's business
            inputs, outputs = operation.inputs, operation.outputs
            self._api.ok(
                "Model_addOperation", model, int(operation.type), len(inputs), u32s(inputs), len(outputs), u32s(outputs)
            )
        ins, outs = subgraph.inputIndexes, subgraph.outputIndexes
        self._api.ok("Model_identifyInputsAndOutputs", model, len(ins), u32s(ins), len(outs), u32s(outs))
        self._api.ok("Model_finish", model)
        return model

    def _add(self, model: int, index: int, operand: Operand) -> None:
        given = operand_type(int(operand.type), operand.dimensions, operand.scale, operand.zeroPoint)
        self._api.ok("Model_addOperand", model, ctypes.byref(given))
        quant = operand.extraParams.channelQuant if operand.extraParams else None
        if quant is not None:
            scales = (ctypes.c_float * len(quant.scales))(*quant.scales)
            params = ChannelQuant(quant.channelDim, len(quant.scales), scales)
            self._api.ok("Model_setOperandSymmPerChannelQuantParams", model, index, ctypes.byref(params))
        place = operand.location
        if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
            where = address(self._values) + place.offset
            self._api.ok("Model_setOperandValue", model, index, where, place.length)
        elif operand.lifetime == OperandLifeTime.NO_VALUE:
            self._api.ok("Model_setOperandValue", model, index, None, 0)
        elif operand.lifetime == OperandLifeTime.SUBGRAPH:
            number = place.offset
            if number not in self._referenced:
                self._referenced[number] = self._build(self._source.referenced[number])
            self._api.ok("Model_setOperandValueFromModel", model, index, self._referenced[number])


def compute(api: Api, compilation: int, execution: int) -> int:
    return int(api.Execution_compute(execution))


def start(api: Api, compilation: int, execution: int) -> int:
    event = api.make("Execution_startCompute", execution)
    return int(api.Event_wait(event))


def fenced(api: Api, compilation: int, execution: int) -> int:
    event = ctypes.c_void_p()
    before = handles([])
    launched = api.Execution_startComputeWithDependencies(execution, before, 0, 0, ctypes.byref(event))
    return int(launched or api.Event_wait(event.value))


def burst(api: Api, compilation: int, execution: int) -> int:
    made = api.make("Burst_create", compilation)
    result = api.Execution_burstCompute(execution, made)
    api.Burst_free(made)
    return int(result)


def reusable(api: Api, compilation: int, execution: int) -> int:
    return int(api.Execution_compute(execution) or api.Execution_compute(execution))


WAYS = {"compute": compute, "startCompute": start, "fenced": fenced, "burst": burst, "reusable": reusable}
Way = Callable[[Api, int, int], int]


def run(api: Api, rec: Record, get: Get, way: Way) -> str:
    """Return what is wrong with the result of an example; empty if nothing is."""
    model, inputs, expected = build_model(rec, get)
    compilation = compiled(api, Client(api, model).model)
    execution = api.make("Execution_create", compilation)
    if way is reusable:
        api.ok("Execution_setReusable", execution, True)
    if "infinite" in rec["test"]:
        api.ok("Execution_setLoopTimeout", execution, 1_000_000)
    arrays = [None if array is None else np.ascontiguousarray(array) for array in inputs]
    for index, array in enumerate(arrays):
        if array is None:
            api.ok("Execution_setInput", execution, index, None, None, 0)
        else:
            given = _given(model.main.operands[model.main.inputIndexes[index]], array.shape)
            api.ok("Execution_setInput", execution, index, ctypes.byref(given), address(array), array.nbytes)
    results = _outputs(api, execution, rec, model)
    code = way(api, compilation, execution)
    if code:
        return f"result code {code}"
    found = [_shaped(api, execution, index, array) for index, array in enumerate(results)]
    return "; ".join(differences(rec, model, inputs, expected, found))


def _given(operand: Operand, shape: Sequence[int]) -> Any:
    return operand_type(int(operand.type), shape if operand.dimensions else (), operand.scale, operand.zeroPoint)


def _outputs(api: Api, execution: int, rec: Record, model: Model) -> list[Array]:
    found = []
    for index, number in enumerate(model.main.outputIndexes):
        operand, dims = model.main.operands[number], rec["main"]["operands"][number]["dims"]
        array = np.zeros(int(np.prod(dims, dtype=np.int64)), STORAGE[operand.type])
        room = array if array.size else np.zeros(1, array.dtype)
        api.ok("Execution_setOutput", execution, index, None, address(room), room.nbytes)
        found.append(array)
    return found


def _shaped(api: Api, execution: int, index: int, array: Array) -> Array:
    rank = ctypes.c_uint32()
    api.ok("Execution_getOutputOperandRank", execution, index, ctypes.byref(rank))
    if not rank.value:
        return array.reshape(())
    dims = (ctypes.c_uint32 * rank.value)()
    api.ok("Execution_getOutputOperandDimensions", execution, index, dims)
    return array.reshape(tuple(dims))


def failures(
    ways: Sequence[str], part: slice, versions: Sequence[str] = VERSIONS, make: Callable[[], Api] = Api
) -> dict[str, str]:
    """Return the failures in a part of the examples by name and way."""
    api = make()
    found = {}
    for rec, get in list(examples(versions))[part]:
        for way in ways:
            if way == "burst" and "infinite" in rec["test"]:
                continue
            unspecified = any(0 in rec["main"]["operands"][i]["dims"] for i in rec["main"]["outputs"])
            problem = run(api, rec, get, WAYS[way])
            must_fail = rec["expectFailure"] or (way == "fenced" and unspecified)
            if bool(problem) != bool(must_fail):
                found[f"{rec['test']} {way}"] = problem or "must fail"
    return found


@pytest.mark.parametrize(("number", "way"), list(enumerate(WAYS)))
def test_a_sample_of_the_examples(number: int, way: str) -> None:
    assert not failures([way], slice(number * 8, None, 32))


def test_examples_of_the_newest_levels_in_every_way() -> None:
    assert not failures(list(WAYS), slice(None), AIDL_VERSIONS)


def test_examples_of_the_newest_levels_by_the_table_of_the_support_library() -> None:
    assert not failures([way for way in WAYS if way != "startCompute"], slice(None), AIDL_VERSIONS, TableApi)


@pytest.mark.slow
def test_all_examples_in_every_way() -> None:
    assert not failures(list(WAYS), slice(None))
