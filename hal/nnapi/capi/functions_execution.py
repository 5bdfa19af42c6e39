"""Functions of executions, bursts and events."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from . import pointers
from .burst import Burst
from .codes import NOT_AVAILABLE, ApiError, ResultCode, bad_data
from .entry import NewHandle, address, boolean, entry, freed, handle, i32, optional, out, structure, u16, u32, u64
from .event import Completion, Event, FencedCompletion, ForeignFence
from .execution import Execution
from .functions_compilation import read_attribute
from .handles import TABLE, Kind
from .pointers import read_handles, read_operand_type, read_string

MAX_DEPENDENCIES = 1 << 16
EXECUTION = handle(Kind.Execution)
TYPE = optional(read_operand_type)


entry("ANeuralNetworksExecution_create", handle(Kind.Compilation), NewHandle(Kind.Execution))(Execution)


# Arguments


_FROM_MEMORY = (EXECUTION, i32, TYPE, handle(Kind.Memory), u64, u64)
entry("ANeuralNetworksExecution_setInput", EXECUTION, i32, TYPE, address, u64)(Execution.set_input)
entry("ANeuralNetworksExecution_setOutput", EXECUTION, i32, TYPE, address, u64)(Execution.set_output)
entry("ANeuralNetworksExecution_setInputFromMemory", *_FROM_MEMORY)(Execution.set_input_memory)
entry("ANeuralNetworksExecution_setOutputFromMemory", *_FROM_MEMORY)(Execution.set_output_memory)


# Settings


entry("ANeuralNetworksExecution_setMeasureTiming", EXECUTION, boolean)(Execution.set_measure)
entry("ANeuralNetworksExecution_setTimeout", EXECUTION, u64)(Execution.set_timeout)
entry("ANeuralNetworksExecution_setLoopTimeout", EXECUTION, u64)(Execution.set_loop_timeout)
entry("ANeuralNetworksExecution_setReusable", EXECUTION, boolean)(Execution.set_reusable)
entry("ANeuralNetworksExecution_enableInputAndOutputPadding", EXECUTION, boolean)(Execution.enable_padding)


@entry("ANeuralNetworksExecution_addExtensionAttribute", EXECUTION, structure(read_string), u16, address, u64)
def _add_attribute(
    execution: Execution, extensionName: str, attributeCodeWithinExtension: int, data: int, length: int
) -> None:
    execution.add_attribute(extensionName, attributeCodeWithinExtension, read_attribute(data, length))


# Computing


@entry("ANeuralNetworksExecution_compute", EXECUTION)
def _compute(execution: Execution) -> None:
    execution.compute()


@entry("ANeuralNetworksExecution_burstCompute", EXECUTION, handle(Kind.Burst))
def _burst_compute(execution: Execution, burst: Burst) -> None:
    burst.compute(execution)


entry("ANeuralNetworksExecution_startCompute", EXECUTION, NewHandle(Kind.Event))(Completion)


@entry("ANeuralNetworksExecution_startComputeWithDependencies", EXECUTION, address, u32, u64, NewHandle(Kind.Event))
def _start_with_dependencies(execution: Execution, dependencies: int, num_dependencies: int, duration: int) -> Event:
    words = read_handles(dependencies, num_dependencies, MAX_DEPENDENCIES, "dependencies")
    before: list[Event] = [TABLE.get(Kind.Event, word, f"dependencies[{number}]") for number, word in enumerate(words)]
    if duration:
        execution.compilation.check_one_device("startComputeWithDependencies with a duration")
    return FencedCompletion(execution, before, duration)


entry("ANeuralNetworksBurst_create", handle(Kind.Compilation), NewHandle(Kind.Burst))(Burst)


# Results


@entry("ANeuralNetworksExecution_getOutputOperandRank", EXECUTION, i32, out(ctypes.c_uint32))
def _output_rank(execution: Execution, index: int, rank: Any) -> None:
    shape = execution.output_shape(index)
    rank.set(len(shape.dimensions))
    _check_sufficient(index, shape)


@entry("ANeuralNetworksExecution_getOutputOperandDimensions", EXECUTION, i32, out(ctypes.c_uint32))
def _output_dimensions(execution: Execution, index: int, dimensions: Any) -> None:
    shape = execution.output_shape(index)
    if execution.output_is_scalar(index):
        raise bad_data(f"output {index} is a scalar: it has no dimensions")
    pointers.write_array(ctypes.c_uint32, dimensions.address, tuple(shape.dimensions))
    _check_sufficient(index, shape)


def _check_sufficient(index: int, shape: Any) -> None:
    if not shape.isSufficient:
        raise ApiError(ResultCode.OUTPUT_INSUFFICIENT_SIZE, f"there was not enough room for output {index}")


@entry("ANeuralNetworksExecution_getDuration", EXECUTION, i32, out(ctypes.c_uint64))
def _duration(execution: Execution, durationCode: int, duration: Any) -> None:
    duration.set(NOT_AVAILABLE)
    duration.set(execution.duration(durationCode))


# Events


@entry("ANeuralNetworksEvent_wait", handle(Kind.Event))
def _event_wait(event: Event) -> None:
    event.wait()


@entry("ANeuralNetworksEvent_free", freed(Kind.Event))
def _event_free(event: Event | None) -> None:
    if event is not None:
        event.settle()


entry("ANeuralNetworksEvent_createFromSyncFenceFd", i32, NewHandle(Kind.Event))(ForeignFence)


@entry("ANeuralNetworksEvent_getSyncFenceFd", address, out(ctypes.c_int32))
def _event_fence(event: int, sync_fence_fd: Any) -> None:
    sync_fence_fd.set(-1)
    descriptor = TABLE.get(Kind.Event, event, "event").fence_fd()
    if descriptor is None:
        raise bad_data("the event has no sync fence")
    sync_fence_fd.set(os.dup(descriptor))
