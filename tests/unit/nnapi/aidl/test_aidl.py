"""The AIDL interface: results or one exception, nanoseconds, descriptors instead of handles."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from hal.nnapi import aidl, fence, open_device
from hal.nnapi.aidl.memory import from_memory
from hal.nnapi.aidl.types import (
    ExecutionConfig,
    Model,
    NumberOfCacheFiles,
    Operand,
    PrepareModelConfig,
    Request,
    RequestMemoryPool,
    ServiceSpecificException,
    Subgraph,
    Timing,
    TokenValuePair,
)
from hal.nnapi.fence import FenceStatus
from hal.nnapi.memory import allocate_blob
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    DeviceType,
    ErrorStatus,
    ExtensionNameAndPrefix,
    OperandType,
    OutputShape,
    RequestArgument,
)
from tests.support.nnapi import models
from tests.support.nnapi.models import add_case

NONE, INVALID, FAILURE = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
TOKEN = bytes(32)
OMITTED = -1
INT64_MAX = (1 << 63) - 1


@pytest.fixture(scope="module")
def idevice(tmp_path_factory):
    with open_device("tiny", state_dir=tmp_path_factory.mktemp("state")) as opened:
        yield opened


@pytest.fixture
def device(idevice, tmp_path, monkeypatch):
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path))
    return aidl.device(idevice)


def add(dims=(4,), out_dims=None):
    newest = models.add(dims, out_dims)
    operands = [
        Operand(o.type, o.dimensions, o.scale, o.zeroPoint, o.lifetime, o.location) for o in newest.main.operands
    ]
    main = Subgraph(operands, newest.main.operations, newest.main.inputIndexes, newest.main.outputIndexes)
    return Model(main, operandValues=newest.operandValues)


class Callback:
    def __init__(self):
        self.calls = []
        self.came = threading.Event()

    def notify(self, status, prepared):
        self.calls.append((status, prepared))
        self.came.set()

    def wait(self):
        assert self.came.wait(30)
        assert len(self.calls) == 1
        return self.calls[0]


def request_of(case):
    pools = [RequestMemoryPool(pool=from_memory(case.memory))]
    return Request(case.request.inputs, case.request.outputs, pools)


@pytest.fixture
def prepared(device):
    callback = Callback()
    device.prepareModel(add(), 1, 1, OMITTED, [], [], TOKEN, callback)
    status, model = callback.wait()
    assert status is NONE
    return model


def failure(call, *args):
    with pytest.raises(ServiceSpecificException) as caught:
        call(*args)
    return caught.value.errorCode


def test_what_the_device_says(device, idevice):
    assert device.getType() is DeviceType.ACCELERATOR
    assert device.getVersionString() == idevice.getVersionString()[1]
    assert device.getNumberOfCacheFilesNeeded() == NumberOfCacheFiles(1, 1)
    assert [extension.name for extension in device.getSupportedExtensions()] == ["com.example.fibonacci"]
    assert device.getCapabilities() == idevice.getCapabilities_1_3()[1]
    assert device.getSupportedOperations(add()) == [True]


def test_a_sum_in_nanoseconds(prepared):
    case = add_case()
    result = prepared.executeSynchronously(request_of(case), True, OMITTED, OMITTED)
    assert result.outputSufficientSize
    assert result.outputShapes == [OutputShape([4], True)]
    assert 100 < result.timing.timeOnDeviceNs < result.timing.timeInDriverNs < 100_000
    assert case.output().tolist() == [10, 11, 12, 13]
    unmeasured = prepared.executeSynchronously(request_of(case), False, INT64_MAX, OMITTED)
    assert unmeasured.timing == Timing(-1, -1)


def test_too_little_room_is_a_result_not_an_exception(device):
    callback = Callback()
    device.prepareModel(add((0,), (0,)), 1, 1, OMITTED, [], [], TOKEN, callback)
    model = callback.wait()[1]
    case = models.Case([np.ones(4, np.float32), np.ones(4, np.float32)], [15])
    result = model.executeSynchronously(request_of(case), True, OMITTED, OMITTED)
    assert not result.outputSufficientSize
    assert result.outputShapes == [OutputShape([4], False)]
    assert result.timing == Timing(-1, -1)


def wrong_rank():
    model = add()
    model.main.operands[2].dimensions = (1,)
    return model


@pytest.mark.parametrize("model", [None, 7, wrong_rank()], ids=["none", "number", "rank"])
def test_an_invalid_model_is_raised_and_told_once(device, model):
    assert failure(device.getSupportedOperations, model) is INVALID
    callback = Callback()
    assert failure(device.prepareModel, model, 1, 1, OMITTED, [], [], TOKEN, callback) is INVALID
    assert callback.calls == [(INVALID, None)]


def test_prefixes_have_15_bits(device):
    model = add()
    model.extensionNameToPrefix = [ExtensionNameAndPrefix("com.example.fibonacci", 1 << 15)]
    assert failure(device.getSupportedOperations, model) is INVALID
    model.extensionNameToPrefix = [ExtensionNameAndPrefix("com.example.fibonacci", (1 << 15) - 1)]
    assert device.getSupportedOperations(model) == [True]


@pytest.mark.parametrize("value", [-2, -(1 << 40), "soon", None])
def test_other_negative_times_are_invalid(device, prepared, value):
    callback = Callback()
    assert failure(device.prepareModel, add(), 1, 1, value, [], [], TOKEN, callback) is INVALID
    assert callback.calls == [(INVALID, None)]
    request = request_of(add_case())
    assert failure(prepared.executeSynchronously, request, True, value, OMITTED) is INVALID
    assert failure(prepared.executeSynchronously, request, True, OMITTED, value) is INVALID
    assert failure(prepared.executeFenced, request, [], True, OMITTED, OMITTED, value) is INVALID


def test_a_callback_must_be_one(device):
    assert failure(device.prepareModel, add(), 1, 1, OMITTED, [], [], TOKEN, None) is INVALID


def test_the_cache_takes_descriptors(device, tmp_path):
    descriptors = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("model", "data")]
    callback = Callback()
    config = PrepareModelConfig(modelCache=descriptors[:1], dataCache=descriptors[1:], cacheToken=TOKEN)
    device.prepareModelWithConfig(add(), config, callback)
    assert callback.wait()[0] is NONE
    again = Callback()
    device.prepareModelFromCache(OMITTED, descriptors[:1], descriptors[1:], TOKEN, again)
    status, model = again.wait()
    assert status is NONE
    case = add_case()
    model.executeSynchronously(request_of(case), False, OMITTED, OMITTED)
    assert case.output().tolist() == [10, 11, 12, 13]
    other = Callback()
    wrong = bytes(31) + b"\x01"
    args = (OMITTED, descriptors[:1], descriptors[1:], wrong, other)
    assert failure(device.prepareModelFromCache, *args) is FAILURE
    assert other.calls == [(FAILURE, None)]
    for descriptor in descriptors:
        os.close(descriptor)


def test_fenced(prepared):
    gate, case = fence.create(), add_case()
    wait_for = gate.dup()
    result = prepared.executeFenced(request_of(case), wait_for, True, OMITTED, OMITTED, OMITTED)
    assert failure(result.callback.getExecutionInfo) is FAILURE  # it is not over
    gate.signal()
    assert fence.wait([result.syncFence], 30) is FenceStatus.SIGNALED
    status, launched, fenced = result.callback.getExecutionInfo()
    assert status is NONE
    assert 0 < fenced.timeOnDeviceNs < fenced.timeInDriverNs < launched.timeInDriverNs
    os.close(result.syncFence)
    os.close(wait_for[0])
    gate.close()
    request = request_of(case)
    assert failure(prepared.executeFenced, request, [None], True, OMITTED, OMITTED, OMITTED) is INVALID


def test_a_fence_in_error_is_invalid(prepared):
    case, config = add_case(), ExecutionConfig()
    request = request_of(case)
    reusable = prepared.createReusableExecution(request, config)
    with fence.create() as gate:
        gate.signal_error()
        assert failure(prepared.executeFenced, request, gate.handle, True, OMITTED, OMITTED, OMITTED) is INVALID
        assert failure(prepared.executeFencedWithConfig, request, gate.handle, config, OMITTED, OMITTED) is INVALID
        assert failure(reusable.executeFenced, gate.handle, OMITTED, OMITTED) is INVALID


def test_reusable_executions_map_their_pools_once(idevice, prepared):
    case = add_case()
    execution = prepared.createReusableExecution(request_of(case), ExecutionConfig(measureTiming=True))
    before = idevice._engine.executor.counters.mappings
    results = [execution.executeSynchronously(OMITTED) for _ in range(3)]
    assert idevice._engine.executor.counters.mappings == before + 1
    times = [result.timing.timeInDriverNs for result in results]
    assert times[0] > times[1] == times[2]
    fenced = execution.executeFenced([], OMITTED, OMITTED)
    assert fence.wait([fenced.syncFence], 30) is FenceStatus.SIGNALED
    os.close(fenced.syncFence)
    bad = request_of(case)
    bad.outputs = []
    assert failure(prepared.createReusableExecution, bad, ExecutionConfig()) is INVALID
    late = ExecutionConfig(loopTimeoutDurationNs=15_000_000_001)
    assert failure(prepared.createReusableExecution, request_of(case), late) is INVALID


def test_bursts(prepared):
    burst, case = prepared.configureExecutionBurst(), add_case()
    result = burst.executeSynchronously(request_of(case), [5], True, OMITTED, OMITTED)
    assert result.outputSufficientSize
    assert case.output().tolist() == [10, 11, 12, 13]
    burst.releaseMemoryResource(5)
    assert failure(burst.releaseMemoryResource, -2) is INVALID


def test_buffers(device, prepared):
    role = BufferRole(0, 0, 0.5)
    made = device.allocate(BufferDesc((4,)), [prepared], [role], [])
    assert made.token > 0
    memory = allocate_blob(16)
    memory.map()[:] = np.arange(4, dtype=np.float32).tobytes()
    assert failure(made.buffer.copyTo, from_memory(memory)) is FAILURE  # nothing is in it
    made.buffer.copyFrom(from_memory(memory), [4])
    made.buffer.copyTo(from_memory(memory))
    case = add_case()
    inputs = [RequestArgument(False, DataLocation(1, 0, 0), (4,)), case.request.inputs[1]]
    pools = [RequestMemoryPool(pool=from_memory(case.memory)), RequestMemoryPool(token=made.token)]
    prepared.executeSynchronously(Request(inputs, case.request.outputs, pools), False, OMITTED, OMITTED)
    assert case.output().tolist() == [10, 11, 12, 13]
    assert failure(device.allocate, BufferDesc(()), [], [role], []) is INVALID


def test_consumers_are_counted_for_the_client(device):
    """The AIDL interface has no such field; models that use an operand twice are valid."""
    model = add()
    model.main.operations[0].inputs = (0, 0, 2)
    assert device.getSupportedOperations(model) == [True]
    assert model.main.operands[0].type == OperandType.TENSOR_FLOAT32


HINT = TokenValuePair(1 << 16 | 7, b"fast")
NAMED = [ExtensionNameAndPrefix("com.example.fibonacci", 1)]
WRONG_HINTS = {
    "repeated": ([HINT, TokenValuePair(HINT.token, b"slow")], NAMED),
    "negative": ([TokenValuePair(-1, b"")], NAMED),
    "33 bits": ([TokenValuePair(1 << 31, b"")], NAMED),
    "no bytes": ([TokenValuePair(7, "text")], NAMED),
    "no hint": ([7], NAMED),
    "no list": (7, NAMED),
    "bad name": ([HINT], [ExtensionNameAndPrefix("Fibonacci", 1)]),
    "name is a number": ([HINT], [ExtensionNameAndPrefix(7, 1)]),
    "long prefix": ([HINT], [ExtensionNameAndPrefix("com.example.fibonacci", 1 << 15)]),
    "repeated prefix": ([HINT], [*NAMED, ExtensionNameAndPrefix("com.example.other", 1)]),
}
RIGHT_HINTS = {
    "named": ([HINT], NAMED),
    "of an unknown extension": ([HINT], [ExtensionNameAndPrefix("com.example.other", 1)]),
    "of a prefix without a name": ([HINT, TokenValuePair(5 << 16, b"")], NAMED),
}


@pytest.mark.parametrize(("hints", "names"), WRONG_HINTS.values(), ids=WRONG_HINTS)
def test_wrong_hints_are_refused_everywhere(device, prepared, hints, names):
    callback = Callback()
    config = PrepareModelConfig(compilationHints=hints, extensionNameToPrefix=names)
    assert failure(device.prepareModelWithConfig, add(), config, callback) is INVALID
    assert callback.calls == [(INVALID, None)]
    case = add_case()
    request = request_of(case)
    config = ExecutionConfig(executionHints=hints, extensionNameToPrefix=names)
    assert failure(prepared.executeSynchronouslyWithConfig, request, config, OMITTED) is INVALID
    assert failure(prepared.executeFencedWithConfig, request, [], config, OMITTED, OMITTED) is INVALID
    assert failure(prepared.createReusableExecution, request, config) is INVALID
    burst = prepared.configureExecutionBurst()
    assert failure(burst.executeSynchronouslyWithConfig, request, [0], config, OMITTED) is INVALID


@pytest.mark.parametrize(("hints", "names"), RIGHT_HINTS.values(), ids=RIGHT_HINTS)
def test_hints_that_the_driver_does_not_know_change_nothing(device, hints, names):
    callback = Callback()
    config = PrepareModelConfig(compilationHints=hints, extensionNameToPrefix=names)
    device.prepareModelWithConfig(add(), config, callback)
    case = add_case()
    config = ExecutionConfig(executionHints=hints, extensionNameToPrefix=names)
    assert callback.wait()[1].executeSynchronouslyWithConfig(request_of(case), config, OMITTED).outputSufficientSize
    assert case.output().tolist() == [10, 11, 12, 13]


def test_what_is_no_configuration_is_refused(device, prepared):
    callback = Callback()
    assert failure(device.prepareModelWithConfig, add(), 7, callback) is INVALID
    assert callback.calls == [(INVALID, None)]
    case = add_case()
    assert failure(prepared.createReusableExecution, request_of(case), None) is INVALID


def test_every_interface_says_its_version_and_hash(device, prepared):
    """The hash is that of the frozen version 4 in aidl_api/android.hardware.neuralnetworks/4/.hash of AOSP."""
    case = add_case()
    request = request_of(case)
    buffer = device.allocate(BufferDesc((4,)), [prepared], [BufferRole(0, 0, 1.0)], []).buffer
    fenced = prepared.executeFenced(request, [], False, OMITTED, OMITTED, OMITTED)
    if fenced.syncFence is not None:
        fence.wait([fenced.syncFence], 30)
        os.close(fenced.syncFence)
    parts = [
        device, prepared, prepared.configureExecutionBurst(), buffer, fenced.callback,
        prepared.createReusableExecution(request, ExecutionConfig()),
    ]  # fmt: skip
    assert {each.getInterfaceVersion() for each in parts} == {4}
    assert {each.getInterfaceHash() for each in parts} == {"53178f8de9b8861df391cf0593f6f3e08adad33d"}
