"""IDevice: its properties, how models are prepared, and that nothing makes it raise."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest

from hal.nnapi import open_device, v1_0, v1_1, v1_2
from hal.nnapi.memory import Memory, hardware_buffer
from hal.nnapi.types import (
    Capabilities,
    DataLocation,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    OutputShape,
    RequestArgument,
    Timing,
)
from npusim import load_config
from npusim.errors import ConfigError
from tests.support.nnapi import models
from tests.support.nnapi.client import Frame, PreparedCallback, execute_sync, prepare, prepared_model
from tests.support.nnapi.models import add, add_case, add_of, chain, loop
from tests.support.waits_and_leaks import until

NONE, INVALID = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT
TOKEN = bytes(32)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    with open_device("tiny", state_dir=tmp_path_factory.mktemp("state")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path))


def test_what_it_says_of_itself(device):
    assert device.getStatus() is DeviceStatus.AVAILABLE
    assert device.getType() == (NONE, DeviceType.ACCELERATOR)
    assert device.getNumberOfCacheFilesNeeded() == (NONE, 1, 1)
    status, version = device.getVersionString()
    assert status is NONE
    assert version.startswith("npusim ")
    assert "tiny" in version
    status, extensions = device.getSupportedExtensions()
    assert status is NONE
    assert [extension.name for extension in extensions] == ["com.example.fibonacci"]


def test_a_device_is_opened_by_name_path_or_description(tmp_path):
    config = load_config("tiny")
    (tmp_path / "mine.toml").write_text(config.to_toml())
    for source in ("tiny", tmp_path / "mine.toml", config):
        with open_device(source) as opened:
            assert opened.config.fingerprint() == config.fingerprint()
    with pytest.raises(ConfigError, match="no such config"):
        open_device("tinny")


def test_capabilities_in_every_version(device):
    status, newest = device.getCapabilities_1_3()
    assert status is NONE
    assert isinstance(newest, Capabilities)
    kinds = [entry.type for entry in newest.operandPerformance]
    assert kinds == sorted(kinds)
    assert OperandType.SUBGRAPH not in kinds
    infos = [entry.info for entry in newest.operandPerformance]
    for info in [*infos, newest.ifPerformance, newest.whilePerformance]:
        assert info.execTime > 0
        assert info.powerUsage > 0
    assert device.getCapabilities() == (NONE, v1_0.capabilities_from_1_3(newest))
    assert device.getCapabilities_1_1() == (NONE, v1_1.capabilities_from_1_3(newest))
    assert device.getCapabilities_1_2() == (NONE, v1_2.capabilities_from_1_3(newest))


def test_every_version_prepares_and_executes(device):
    launches = [
        lambda done: device.prepareModel(add_of(v1_0), done),
        lambda done: device.prepareModel_1_1(add_of(v1_1), 1, done),
        lambda done: device.prepareModel_1_2(add_of(v1_2), 1, [], [], TOKEN, done),
        lambda done: device.prepareModel_1_3(add(), 1, 1, None, [], [], TOKEN, done),
    ]
    supported = [
        device.getSupportedOperations(add_of(v1_0)),
        device.getSupportedOperations_1_1(add_of(v1_1)),
        device.getSupportedOperations_1_2(add_of(v1_2)),
        device.getSupportedOperations_1_3(add()),
    ]
    assert supported == [(NONE, [True])] * 4
    for launch in launches:
        callback = PreparedCallback()
        assert launch(callback) is NONE
        status, prepared = callback.wait()
        assert status is NONE
        case = add_case()
        old = v1_0.Request(case.request.inputs, case.request.outputs, [case.memory])
        assert prepared.executeSynchronously(old, 0) == (NONE, [OutputShape([4], True)], Timing())
        assert case.output().tolist() == [10, 11, 12, 13]


def cycle():
    """Build three additions that depend on each other in a cycle."""
    operands = [models.tensor(models.IN, (1,)), models.tensor(models.IN, (1,)), models.scalar(0, 3),
                models.tensor(models.TEMP, (1,)), models.tensor(models.TEMP, (1,)),
                models.tensor(models.OUT, (1,))]  # fmt: skip
    operations = [
        Operation(OperationType.ADD, (0, 4, 2), (3,)),
        Operation(OperationType.ADD, (1, 3, 2), (4,)),
        Operation(OperationType.ADD, (3, 4, 2), (5,)),
    ]
    model = add()
    model.main.operands, model.main.operations, model.main.outputIndexes = operands, operations, (5,)
    return model


def wrong_consumers():
    model = add()
    model.main.operands[0].numberOfConsumers = 2
    return model


@pytest.mark.parametrize("model", [cycle(), wrong_consumers(), None, 7], ids=["cycle", "consumers", "none", "number"])
def test_an_invalid_model_is_told_three_times(device, model):
    assert device.getSupportedOperations_1_3(model) == (INVALID, [])
    assert prepare(device, model) == (INVALID, INVALID, None)
    assert device.explain(model) == (INVALID, [])


@pytest.mark.parametrize("bad", [-1, 3, None, "high"])
def test_preference_and_priority_are_checked(device, bad):
    assert prepare(device, add(), preference=bad) == (INVALID, INVALID, None)
    assert prepare(device, add(), priority=bad) == (INVALID, INVALID, None)


def test_a_callback_that_cannot_be_called_is_an_invalid_argument(device):
    assert device.prepareModel_1_3(add(), 1, 1, None, [], [], TOKEN, None) is INVALID
    assert device.prepareModel_1_3(add(), 1, 1, None, [], [], TOKEN, object()) is INVALID


def test_the_model_is_the_drivers_own_when_the_call_has_returned(device):
    model, callback = add(), PreparedCallback()
    values = bytearray(4)
    model.operandValues = values
    device.prepareModel_1_3(model, 1, 1, None, [], [], TOKEN, callback)
    model.main.operations[0].type = OperationType.MUL
    model.main.operands.clear()
    values[0] = 99
    status, prepared = callback.wait()
    assert status is NONE
    case = add_case()
    assert execute_sync(prepared, _frame(case)).status is NONE
    assert case.output().tolist() == [10, 11, 12, 13]


def _frame(case):
    case.raw = list
    return case


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("make", [lambda: hardware_buffer(4, 4), lambda: Memory("of another kind", (0,), 16)])
def test_an_operation_whose_constant_nobody_can_read_is_not_supported(device, place, make):
    """Only this operation; the model as a whole cannot be prepared."""
    model = chain(5)
    operands = [*model.main.operands]
    numbers = list(model.main.operations[place].inputs)
    numbers[1] = len(operands)
    operands[1] = replace(operands[1], numberOfConsumers=4)
    location = DataLocation(0, 0, 16)
    operands.append(Operand(models.F32, (4,), 1, lifetime=OperandLifeTime.CONSTANT_REFERENCE, location=location))
    operations = [*model.main.operations]
    operations[place] = replace(operations[place], inputs=numbers)
    model.main = replace(model.main, operands=operands, operations=operations)
    model.pools = [make()]
    assert device.getSupportedOperations_1_3(model) == (NONE, [number != place for number in range(5)])
    assert f"operand {len(operands) - 1}, lies in pool 0" in device.explain(model)[1][place].reason
    assert prepare(device, model) == (ErrorStatus.GENERAL_FAILURE, ErrorStatus.GENERAL_FAILURE, None)


def test_a_loop_whose_body_has_a_constant_that_nobody_can_read_is_not_supported(device):
    model = loop()
    body = model.referenced[1]
    location = DataLocation(0, 0, 8)
    constant = Operand(models.F32, (2,), 1, lifetime=OperandLifeTime.CONSTANT_REFERENCE, location=location)
    body.operands.append(constant)
    body.operands[1] = replace(body.operands[1], numberOfConsumers=1)
    body.operations[1] = replace(body.operations[1], inputs=(1, len(body.operands) - 1, 2))
    model.pools = [hardware_buffer(4, 4)]
    assert device.getSupportedOperations_1_3(model) == (NONE, [False])


METHODS = {
    "getSupportedOperations": 1, "getSupportedOperations_1_1": 1, "getSupportedOperations_1_2": 1,
    "getSupportedOperations_1_3": 1, "explain": 1, "prepareModel": 2, "prepareModel_1_1": 3, "prepareModel_1_2": 6,
    "prepareModel_1_3": 8, "prepareModelFromCache": 4, "prepareModelFromCache_1_3": 5, "allocate": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    "junk", [None, 7, "x", b"\x00", [], [None], {}, float("nan"), pytest.param(object(), id="object"), [[-1]]], ids=repr
)
def test_nothing_makes_a_method_raise(device, junk):
    for name, count in METHODS.items():
        result = getattr(device, name)(*[junk] * count)
        status = result[0] if isinstance(result, tuple) else result
        assert status in (INVALID, ErrorStatus.GENERAL_FAILURE), name


@pytest.mark.parametrize("junk", [None, 7, "x", [], [None], {}, pytest.param(object(), id="object")], ids=repr)
def test_nothing_makes_an_execution_raise(device, junk):
    prepared = prepared_model(device, add())
    assert prepared.execute(junk, junk) is INVALID
    assert prepared.execute_1_2(junk, junk, junk) is INVALID
    assert prepared.execute_1_3(junk, junk, junk, junk, junk) is INVALID
    for result in (prepared.executeSynchronously(junk, junk), prepared.executeSynchronously_1_3(*[junk] * 4)):
        assert result == (INVALID, [], Timing())
    assert prepared.executeFenced(*[junk] * 6) == (INVALID, None, None)


def test_a_callbacks_exception_is_logged_and_not_lost(device, caplog):
    told = threading.Event()

    class Broken:
        def notify_1_3(self, status, prepared):
            told.set()
            raise ZeroDivisionError("a client's mistake")

    assert device.prepareModel_1_3(add(), 1, 1, None, [], [], TOKEN, Broken()) is NONE
    assert told.wait(30)
    until(lambda: "a client's mistake" in caplog.text)  # the log follows the call
    prepared_model(device, add())  # and the driver goes on


def test_many_threads_prepare_and_execute_one_model(device):
    failures, shared, model = [], prepared_model(device, add()), chain(3)

    def client():
        try:
            own = prepared_model(device, model)
            for prepared, wanted in ((shared, [10, 11, 12, 13]), (own, [30, 31, 32, 33])):
                case = add_case()
                assert execute_sync(prepared, _frame(case)).status is NONE
                assert case.output().tolist() == wanted
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_explain_says_why_and_so_does_the_log(caplog):
    config = load_config("tiny").with_(vector=None)
    with open_device(config) as opened, caplog.at_level(logging.WARNING, "hal.nnapi"):
        status, (entry,) = opened.explain(add())
        assert status is NONE
        assert (entry.index, entry.operation, entry.supported) == (0, "ADD", False)
        assert "vector" in entry.reason
        assert opened.getSupportedOperations_1_3(add()) == (NONE, [False])
        assert "operation 0 (ADD) is not supported" in caplog.text
        assert prepare(opened, add()) == (NONE, ErrorStatus.GENERAL_FAILURE, None)


def test_operations_whose_shapes_come_with_an_execution_are_supported_behind_others(device):
    """An addition of known shape, then a convolution with a filter of unknown rank."""
    model = add((1, 2, 2, 1))
    main, image, shape = model.main, len(model.main.operands) - 1, (1, 2, 2, 1)
    main.operands[image] = models.tensor(models.TEMP, shape)
    main.operands += [models.tensor(models.IN, ()), models.tensor(models.IN, ()), models.tensor(models.OUT, ())]
    main.operands[2].numberOfConsumers += 1
    main.operands += [models.scalar(4, 3)]
    fused, (filters, bias, out, one) = 2, range(image + 1, image + 5)
    convolution = Operation(OperationType.CONV_2D, [image, filters, bias, one, one, one, fused], [out])
    main.operations = [*main.operations, convolution]
    main.inputIndexes, main.outputIndexes = [0, 1, filters, bias], [out]
    model.operandValues = np.array([0, 1], np.int32).tobytes()
    assert device.getSupportedOperations_1_3(model) == (NONE, [True, True])
    numbers = [np.full(shape, 2, np.float32), np.full(shape, 3, np.float32)]
    frame = Frame([*numbers, np.full((1, 1, 1, 1), 10, np.float32), np.ones(1, np.float32)], [16])
    outcome = execute_sync(prepared_model(device, model), frame)
    assert outcome.status is NONE
    assert np.array_equal(outcome.array(0, np.dtype(np.float32)), np.full(shape, 51))
    frame.close()


def test_an_operation_that_nobody_knows_is_unsupported_not_invalid(device):
    model = add()
    model.main.operations[0].type = OperationType.OEM_OPERATION
    status, (entry,) = device.explain(model)
    assert (status, entry.supported) == (NONE, False)
    assert "knows" in entry.reason
    assert prepare(device, model) == (NONE, ErrorStatus.GENERAL_FAILURE, None)


def test_a_model_that_does_not_fit_exhausts_the_memory():
    small = load_config("tiny").with_(**{"dram.bytes": "1 MiB"})
    with open_device(small) as opened:
        assert prepare(opened, add((1 << 20,)))[1] is ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT


def test_a_request_argument_may_be_used_by_old_and_new(device):
    prepared = prepared_model(device, add())
    case = add_case()
    bare = v1_0.Request(
        [RequestArgument(False, a.location) for a in case.request.inputs], case.request.outputs, [case.memory]
    )
    assert prepared.executeSynchronously(bare, 1)[0] is NONE
    assert np.array_equal(case.output(), [10, 11, 12, 13])
