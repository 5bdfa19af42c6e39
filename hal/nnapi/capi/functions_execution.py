"""Functions of executions, bursts and events."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from . import pointers
from .burst import Burst
from .codes import NOT_AVAILABLE, ApiError, ResultCode, bad_data
from .compilation import Compilation
from .entry import (
    NewHandle,
    OutHandle,
    address,
    boolean,
    entry,
    freed,
    handle,
    i32,
    optional,
    out,
    structure,
    u16,
    u32,
    u64,
)
from .event import Completion, Event, FencedCompletion, ForeignFence
from .execution import Execution
from .functions_compilation import read_attribute
from .handles import TABLE, Kind
from .memory import AnyMemory
from .pointers import OperandTypeValue, read_handles, read_operand_type, read_string

MAX_DEPENDENCIES = 1 << 16
EXECUTION = handle(Kind.Execution)
TYPE = optional(read_operand_type)
Given = OperandTypeValue | None


@entry("ANeuralNetworksExecution_create", handle(Kind.Compilation), NewHandle(Kind.Execution))
def _create(compilation: Compilation, execution: OutHandle) -> None:
    execution.set(Execution(compilation))


@entry("ANeuralNetworksExecution_free", freed(Kind.Execution))
def _free(execution: Execution | None) -> None:
    pass


# Arguments


@entry("ANeuralNetworksExecution_setInput", EXECUTION, i32, TYPE, address, u64)
def _set_input(execution: Execution, index: int, type: Given, buffer: int, length: int) -> None:
    execution.set_input(index, type, buffer, length)


@entry("ANeuralNetworksExecution_setOutput", EXECUTION, i32, TYPE, address, u64)
def _set_output(execution: Execution, index: int, type: Given, buffer: int, length: int) -> None:
    execution.set_output(index, type, buffer, length)


_FROM_MEMORY = (EXECUTION, i32, TYPE, handle(Kind.Memory), u64, u64)


@entry("ANeuralNetworksExecution_setInputFromMemory", *_FROM_MEMORY)
def _set_input_memory(
    execution: Execution, index: int, type: Given, memory: AnyMemory, offset: int, length: int
) -> None:  # fmt: skip
    execution.set_input_memory(index, type, memory, offset, length)


@entry("ANeuralNetworksExecution_setOutputFromMemory", *_FROM_MEMORY)
def _set_output_memory(
    execution: Execution, index: int, type: Given, memory: AnyMemory, offset: int, length: int
) -> None:  # fmt: skip
    execution.set_output_memory(index, type, memory, offset, length)


# Settings


@entry("ANeuralNetworksExecution_setMeasureTiming", EXECUTION, boolean)
def _set_measure(execution: Execution, measure: bool) -> None:
    execution.set_measure(measure)


@entry("ANeuralNetworksExecution_setTimeout", EXECUTION, u64)
def _set_timeout(execution: Execution, duration: int) -> None:
    execution.set_timeout(duration)


@entry("ANeuralNetworksExecution_setLoopTimeout", EXECUTION, u64)
def _set_loop_timeout(execution: Execution, duration: int) -> None:
    execution.set_loop_timeout(duration)


@entry("ANeuralNetworksExecution_setReusable", EXECUTION, boolean)
def _set_reusable(execution: Execution, reusable: bool) -> None:
    execution.set_reusable(reusable)


@entry("ANeuralNetworksExecution_enableInputAndOutputPadding", EXECUTION, boolean)
def _enable_padding(execution: Execution, enable: bool) -> None:
    execution.enable_padding(enable)


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


@entry("ANeuralNetworksExecution_startCompute", EXECUTION, NewHandle(Kind.Event))
def _start_compute(execution: Execution, event: OutHandle) -> None:
    event.set(Completion(execution))


@entry("ANeuralNetworksExecution_startComputeWithDependencies", EXECUTION, address, u32, u64, NewHandle(Kind.Event))
def _start_with_dependencies(
    execution: Execution, dependencies: int, num_dependencies: int, duration: int, event: OutHandle
) -> None:
    words = read_handles(dependencies, num_dependencies, MAX_DEPENDENCIES, "dependencies")
    before: list[Event] = [TABLE.get(Kind.Event, word, f"dependencies[{number}]") for number, word in enumerate(words)]
    if duration:
        execution.compilation.check_one_device("startComputeWithDependencies with a duration")
    event.set(FencedCompletion(execution, before, duration))


@entry("ANeuralNetworksBurst_create", handle(Kind.Compilation), NewHandle(Kind.Burst))
def _burst_create(compilation: Compilation, burst: OutHandle) -> None:
    burst.set(Burst(compilation))


@entry("ANeuralNetworksBurst_free", freed(Kind.Burst))
def _burst_free(burst: Burst | None) -> None:
    pass


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


@entry("ANeuralNetworksEvent_createFromSyncFenceFd", i32, NewHandle(Kind.Event))
def _event_from_fence(sync_fence_fd: int, event: OutHandle) -> None:
    event.set(ForeignFence(sync_fence_fd))


@entry("ANeuralNetworksEvent_getSyncFenceFd", address, out(ctypes.c_int32))
def _event_fence(event: int, sync_fence_fd: Any) -> None:
    sync_fence_fd.set(-1)
    descriptor = TABLE.get(Kind.Event, event, "event").fence_fd()
    if descriptor is None:
        raise bad_data("the event has no sync fence")
    sync_fence_fd.set(os.dup(descriptor))
