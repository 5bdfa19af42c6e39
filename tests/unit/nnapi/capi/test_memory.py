"""Memory objects from files, and from devices for certain roles."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest

from hal.nnapi.capi.handles import TABLE, Kind
from hal.nnapi.memory.mapping import Mapping
from tests.support.nnapi.c_api import Api, File, ModelMaker, address, code, compiled, operand_type, set_inputs

NULL, BAD_DATA, BAD_STATE = code("UNEXPECTED_NULL"), code("BAD_DATA"), code("BAD_STATE")
A, B = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)


def test_files(api: Api) -> None:
    handle = ctypes.c_void_p()
    descriptor = os.memfd_create("bytes")
    os.ftruncate(descriptor, 8192)
    make = api.Memory_createFromFd
    for size, protect, fd, offset in (
        (0, 3, descriptor, 0), (8193, 3, descriptor, 0), (4096, 3, descriptor, 4097), (64, 3, -1, 0), (64, 3, 9999, 0),
        (64, 8, descriptor, 0), (1 << 63, 3, descriptor, 0), (64, 3, descriptor, 1 << 63),
    ):  # fmt: skip
        assert make(size, protect, fd, offset, ctypes.byref(handle)) == BAD_DATA, (size, protect, fd, offset)
    assert make(64, 3, descriptor, 0, None) == NULL
    api.Memory_free(api.make("Memory_createFromFd", 4096, 1, descriptor, 4096))
    os.close(descriptor)


def test_hardware_buffers_are_refused(api: Api) -> None:
    handle = ctypes.c_void_p(4)
    assert api.Memory_createFromAHardwareBuffer(1, ctypes.byref(handle)) == code("UNMAPPABLE")
    assert handle.value is None
    assert api.Memory_createFromAHardwareBuffer(None, ctypes.byref(handle)) == NULL


def test_arguments_in_files(api: Api, execution: int) -> None:
    source, result = File(api, [0, *A, *B]), File(api, np.zeros(6))
    for function in (api.Execution_setInputFromMemory, api.Execution_setOutputFromMemory):
        assert function(execution, 3, None, source.memory, 4, 16) == BAD_DATA
        assert function(execution, 0, None, source.memory, 24, 16) == BAD_DATA
        assert function(execution, 0, None, source.memory, 4, 12) == BAD_DATA
        assert function(execution, 0, None, source.memory, 0, 0) == BAD_DATA
        other = operand_type("TENSOR_FLOAT32", [3])
        assert function(execution, 0, ctypes.byref(other), source.memory, 4, 16) == BAD_DATA
    api.ok("Execution_setInputFromMemory", execution, 0, None, source.memory, 4, 16)
    api.ok("Execution_setInputFromMemory", execution, 1, None, source.memory, 20, 16)
    api.ok("Execution_setOutputFromMemory", execution, 0, None, result.memory, 8, 16)
    api.Memory_free(source.memory)
    api.ok("Execution_compute", execution)
    assert result.read() == [0, 0, 10, 11, 12, 13]


def test_an_output_in_memory_that_cannot_be_written(api: Api, execution: int) -> None:
    result = File(api, np.zeros(4), protect=1)
    set_inputs(api, execution, A, B)
    api.ok("Execution_setOutputFromMemory", execution, 0, None, result.memory, 0, 16)
    assert api.Execution_compute(execution) == BAD_DATA


def test_memory_in_bursts(api: Api, add: int) -> None:
    burst, source, result = api.make("Burst_create", add), File(api, [*A, *B]), File(api, np.zeros(4))
    for _ in range(3):
        execution = api.make("Execution_create", add)
        api.ok("Execution_setInputFromMemory", execution, 0, None, source.memory, 0, 16)
        api.ok("Execution_setInputFromMemory", execution, 1, None, source.memory, 16, 16)
        api.ok("Execution_setOutputFromMemory", execution, 0, None, result.memory, 0, 16)
        api.ok("Execution_burstCompute", execution, burst)
        assert result.read() == [10, 11, 12, 13]
        assert kept_by(burst) == 2
    api.Memory_free(source.memory)
    assert kept_by(burst) == 1
    api.Burst_free(burst)


def kept_by(burst: int) -> int:
    """Return the number of mappings that a burst keeps."""
    [inner] = TABLE.get(Kind.Burst, burst, "burst")._bursts
    return len(inner._kept)


def test_a_burst_keeps_nothing_of_the_runtime_s_own(api: Api, add: int) -> None:
    burst = api.make("Burst_create", add)
    for _ in range(3):
        execution, result = api.make("Execution_create", add), np.zeros(4, np.float32)
        set_inputs(api, execution, A, B)
        api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
        api.ok("Execution_burstCompute", execution, burst)
        assert kept_by(burst) == 0


# Files that are cut


@pytest.fixture
def gone(api: Api) -> File:
    """A file that was truncated completely."""
    file = File(api, np.ones(4096))
    os.ftruncate(file.descriptor, 0)
    return file


def test_constants_in_a_file_that_is_cut(api: Api) -> None:
    file = File(api, np.ones(4096))
    maker = ModelMaker(api)
    x, y = (maker.operand("TENSOR_FLOAT32", [4096]) for _ in range(2))
    weights = maker.operand("TENSOR_FLOAT32", [4096])
    api.ok("Model_setOperandValueFromMemory", maker.model, weights, file.memory, 0, 4 * 4096)
    maker.add("ADD", [x, weights, maker.i32(0)], [y])
    model = maker.finish([x], [y])
    compilation, data = compiled(api, model), np.zeros(4096, np.float32)
    os.ftruncate(file.descriptor, 4096)
    late = api.make("Compilation_create", model)
    assert api.Compilation_finish(late) == BAD_DATA  # the memory is not within its file
    execution = api.make("Execution_create", compilation)
    set_inputs(api, execution, data)
    api.ok("Execution_setOutput", execution, 0, None, address(data), data.nbytes)
    assert api.Execution_compute(execution) == code("OP_FAILED")


@pytest.mark.parametrize("kind", ["Input", "Output"])
def test_arguments_in_a_file_that_is_cut(api: Api, add: int, gone: File, kind: str) -> None:
    execution, data = api.make("Execution_create", add), np.zeros(4, np.float32)
    api.ok(f"Execution_set{kind}FromMemory", execution, 0, None, gone.memory, 0, 16)
    api.ok("Execution_setInput", execution, 1, None, address(data), 16)
    if kind == "Input":
        api.ok("Execution_setOutput", execution, 0, None, address(data), 16)
    else:
        api.ok("Execution_setInput", execution, 0, None, address(data), 16)
    assert api.Execution_compute(execution) in (BAD_DATA, code("OP_FAILED"))


def test_copies_of_files_that_are_cut(api: Api, gone: File, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = File(api, np.ones(4096))
    assert api.Memory_copy(whole.memory, gone.memory) == BAD_DATA
    assert api.Memory_copy(gone.memory, whole.memory) == BAD_DATA
    check = Mapping.check

    def cut_behind(mapping: Mapping) -> None:
        check(mapping)
        os.ftruncate(other.descriptor, 0)

    for places in ((0, 1), (1, 0)):
        other = File(api, np.ones(4096))
        files = [whole.memory, other.memory]
        with monkeypatch.context() as patched:
            patched.setattr(Mapping, "check", cut_behind)
            assert api.Memory_copy(files[places[0]], files[places[1]]) == code("OP_FAILED")
    assert np.all(np.array(whole.read()) == 0)  # read from the truncated file
