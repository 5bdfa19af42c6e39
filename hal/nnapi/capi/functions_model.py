"""Functions of memories and models."""

from __future__ import annotations

import ctypes
from typing import Any

from . import extensions, memory
from .burst import forget_memory
from .codes import ApiError, ResultCode
from .entry import (
    NewHandle,
    OutHandle,
    address,
    boolean,
    entry,
    f32,
    freed,
    handle,
    i32,
    out,
    pointer,
    structure,
    u16,
    u32,
    u64,
)
from .handles import Kind
from .memory import AnyMemory
from .memorydesc import MemoryDesc, Role
from .model import Model
from .pointers import (
    MAX_RANK,
    ChannelQuantValue,
    OperandTypeValue,
    read_bytes,
    read_channel_quant,
    read_operand_type,
    read_string,
    read_u32s,
)

MAX_OPERANDS_OF_OPERATION = 1 << 16

# Memory


@entry("ANeuralNetworksMemory_createFromFd", u64, i32, i32, u64, NewHandle(Kind.Memory))
def _memory_from_fd(size: int, protect: int, fd: int, offset: int, new: OutHandle) -> None:
    new.set(memory.from_fd(size, protect, fd, offset))


@entry("ANeuralNetworksMemory_createFromAHardwareBuffer", pointer, NewHandle(Kind.Memory))
def _memory_from_hardware_buffer(ahwb: int, new: OutHandle) -> None:
    raise ApiError(ResultCode.UNMAPPABLE, "there are no AHardwareBuffers on this system: use createFromFd")


@entry("ANeuralNetworksMemory_free", freed(Kind.Memory))
def _memory_free(gone: AnyMemory | None) -> None:
    if gone is not None:
        forget_memory(gone)


@entry("ANeuralNetworksMemory_copy", handle(Kind.Memory), handle(Kind.Memory))
def _memory_copy(src: AnyMemory, dst: AnyMemory) -> None:
    memory.copy(src, dst)


@entry("ANeuralNetworksMemoryDesc_create", NewHandle(Kind.MemoryDesc))
def _desc_create(desc: OutHandle) -> None:
    desc.set(MemoryDesc())


@entry("ANeuralNetworksMemoryDesc_free", freed(Kind.MemoryDesc))
def _desc_free(desc: MemoryDesc | None) -> None:
    pass


def _add_role(direction: Any) -> Any:
    def add(desc: MemoryDesc, compilation: Any, index: int, frequency: float) -> None:
        desc.add_role(Role(compilation, direction, index, frequency))

    return add


_ROLE = (handle(Kind.MemoryDesc), handle(Kind.Compilation), u32, f32)
entry("ANeuralNetworksMemoryDesc_addInputRole", *_ROLE)(_add_role("input"))
entry("ANeuralNetworksMemoryDesc_addOutputRole", *_ROLE)(_add_role("output"))


@entry("ANeuralNetworksMemoryDesc_setDimensions", handle(Kind.MemoryDesc), u32, address)
def _desc_set_dimensions(desc: MemoryDesc, rank: int, dimensions: int) -> None:
    desc.set_dimensions(read_u32s(dimensions, rank, MAX_RANK, "dimensions"))


@entry("ANeuralNetworksMemoryDesc_finish", handle(Kind.MemoryDesc))
def _desc_finish(desc: MemoryDesc) -> None:
    desc.finish()


@entry("ANeuralNetworksMemory_createFromDesc", handle(Kind.MemoryDesc), NewHandle(Kind.Memory))
def _memory_from_desc(desc: MemoryDesc, new: OutHandle) -> None:
    new.set(desc.create())


# Model


@entry("ANeuralNetworksModel_create", NewHandle(Kind.Model))
def _model_create(model: OutHandle) -> None:
    model.set(Model())


@entry("ANeuralNetworksModel_free", freed(Kind.Model))
def _model_free(model: Model | None) -> None:
    pass


@entry("ANeuralNetworksModel_finish", handle(Kind.Model))
def _model_finish(model: Model) -> None:
    model.finish()


@entry("ANeuralNetworksModel_addOperand", handle(Kind.Model), structure(read_operand_type))
def _add_operand(model: Model, type: OperandTypeValue) -> None:
    model.add_operand(type)


@entry("ANeuralNetworksModel_setOperandValue", handle(Kind.Model), i32, address, u64)
def _set_value(model: Model, index: int, buffer: int, length: int) -> None:
    model.set_value(index, buffer, length)


@entry("ANeuralNetworksModel_setOperandValueFromMemory", handle(Kind.Model), i32, handle(Kind.Memory), u64, u64)
def _set_value_from_memory(model: Model, index: int, memory: AnyMemory, offset: int, length: int) -> None:
    model.set_value_from_memory(index, memory, offset, length)


@entry("ANeuralNetworksModel_setOperandValueFromModel", handle(Kind.Model), i32, handle(Kind.Model))
def _set_value_from_model(model: Model, index: int, value: Model) -> None:
    model.set_value_from_model(index, value)


@entry(
    "ANeuralNetworksModel_setOperandSymmPerChannelQuantParams", handle(Kind.Model), i32, structure(read_channel_quant)
)
def _set_channel_quant(model: Model, index: int, channelQuant: ChannelQuantValue) -> None:
    model.set_channel_quant(index, channelQuant)


@entry("ANeuralNetworksModel_addOperation", handle(Kind.Model), u32, u32, pointer, u32, pointer)
def _add_operation(model: Model, type: int, inputCount: int, inputs: int, outputCount: int, outputs: int) -> None:
    most = MAX_OPERANDS_OF_OPERATION
    read = read_u32s(inputs, inputCount, most, "inputs"), read_u32s(outputs, outputCount, most, "outputs")
    model.add_operation(type, *read)


@entry("ANeuralNetworksModel_identifyInputsAndOutputs", handle(Kind.Model), u32, pointer, u32, pointer)
def _identify(model: Model, inputCount: int, inputs: int, outputCount: int, outputs: int) -> None:
    most = len(model.operands)
    model.identify(read_u32s(inputs, inputCount, most, "inputs"), read_u32s(outputs, outputCount, most, "outputs"))


@entry("ANeuralNetworksModel_relaxComputationFloat32toFloat16", handle(Kind.Model), boolean)
def _relax(model: Model, allow: bool) -> None:
    model.relax(allow)


# Extensions


@entry(
    "ANeuralNetworksModel_getExtensionOperandType", handle(Kind.Model), structure(read_string), u16, out(ctypes.c_int32)
)
def _extension_operand_type(model: Model, extensionName: str, operandCodeWithinExtension: int, type: Any) -> None:
    type.set(extensions.full_type(extensionName, operandCodeWithinExtension))


@entry(
    "ANeuralNetworksModel_getExtensionOperationType",
    handle(Kind.Model),
    structure(read_string),
    u16,
    out(ctypes.c_int32),
)
def _extension_operation_type(model: Model, extensionName: str, operationCodeWithinExtension: int, type: Any) -> None:
    type.set(extensions.full_type(extensionName, operationCodeWithinExtension))


@entry("ANeuralNetworksModel_setOperandExtensionData", handle(Kind.Model), i32, address, u64)
def _set_extension_data(model: Model, index: int, data: int, length: int) -> None:
    if not data and length:
        raise ApiError(ResultCode.UNEXPECTED_NULL, f"data is NULL, but length is {length}")
    model.set_extension_data(index, read_bytes(data, length, "data") if data else None)
