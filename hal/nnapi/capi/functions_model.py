"""Functions of memories and models."""

from __future__ import annotations

import ctypes
from typing import Any

from . import extensions, memory
from .burst import forget_memory
from .codes import ApiError, ResultCode
from .entry import NewHandle, address, boolean, entry, f32, freed, handle, i32, out, pointer, structure, u16, u32, u64
from .handles import Kind
from .memory import AnyMemory
from .memorydesc import MemoryDesc, Role
from .model import Model
from .pointers import MAX_RANK, read_bytes, read_channel_quant, read_operand_type, read_string, read_u32s

MAX_OPERANDS_OF_OPERATION = 1 << 16
MODEL, MEMORY, MEMORY_DESC = handle(Kind.Model), handle(Kind.Memory), handle(Kind.MemoryDesc)

# Memory

entry("ANeuralNetworksMemory_createFromFd", u64, i32, i32, u64, NewHandle(Kind.Memory))(memory.from_fd)
entry("ANeuralNetworksMemory_copy", MEMORY, MEMORY)(memory.copy)


@entry("ANeuralNetworksMemory_createFromAHardwareBuffer", pointer, NewHandle(Kind.Memory))
def _memory_from_hardware_buffer(ahwb: int) -> None:
    raise ApiError(ResultCode.UNMAPPABLE, "there are no AHardwareBuffers on this system: use createFromFd")


@entry("ANeuralNetworksMemory_free", freed(Kind.Memory))
def _memory_free(gone: AnyMemory | None) -> None:
    if gone is not None:
        forget_memory(gone)


entry("ANeuralNetworksMemoryDesc_create", NewHandle(Kind.MemoryDesc))(MemoryDesc)
entry("ANeuralNetworksMemoryDesc_finish", MEMORY_DESC)(MemoryDesc.finish)
entry("ANeuralNetworksMemory_createFromDesc", MEMORY_DESC, NewHandle(Kind.Memory))(MemoryDesc.create)

for _kind in (Kind.MemoryDesc, Kind.Model, Kind.Compilation, Kind.Execution, Kind.Burst):
    # The handle table drops its reference; nothing else happens.
    entry(f"ANeuralNetworks{_kind.name}_free", freed(_kind))(lambda gone: None)


def _add_role(direction: Any) -> Any:
    def add(desc: MemoryDesc, compilation: Any, index: int, frequency: float) -> None:
        desc.add_role(Role(compilation, direction, index, frequency))

    return add


_ROLE = (MEMORY_DESC, handle(Kind.Compilation), u32, f32)
entry("ANeuralNetworksMemoryDesc_addInputRole", *_ROLE)(_add_role("input"))
entry("ANeuralNetworksMemoryDesc_addOutputRole", *_ROLE)(_add_role("output"))


@entry("ANeuralNetworksMemoryDesc_setDimensions", MEMORY_DESC, u32, address)
def _desc_set_dimensions(desc: MemoryDesc, rank: int, dimensions: int) -> None:
    desc.set_dimensions(read_u32s(dimensions, rank, MAX_RANK, "dimensions"))


# Model

entry("ANeuralNetworksModel_create", NewHandle(Kind.Model))(Model)
entry("ANeuralNetworksModel_finish", MODEL)(Model.finish)
entry("ANeuralNetworksModel_relaxComputationFloat32toFloat16", MODEL, boolean)(Model.relax)
entry("ANeuralNetworksModel_addOperand", MODEL, structure(read_operand_type))(Model.add_operand)
entry("ANeuralNetworksModel_setOperandValue", MODEL, i32, address, u64)(Model.set_value)
entry("ANeuralNetworksModel_setOperandValueFromMemory", MODEL, i32, MEMORY, u64, u64)(Model.set_value_from_memory)
entry("ANeuralNetworksModel_setOperandValueFromModel", MODEL, i32, MODEL)(Model.set_value_from_model)
_PER_CHANNEL = (MODEL, i32, structure(read_channel_quant))
entry("ANeuralNetworksModel_setOperandSymmPerChannelQuantParams", *_PER_CHANNEL)(Model.set_channel_quant)


@entry("ANeuralNetworksModel_addOperation", MODEL, u32, u32, pointer, u32, pointer)
def _add_operation(model: Model, type: int, inputCount: int, inputs: int, outputCount: int, outputs: int) -> None:
    most = MAX_OPERANDS_OF_OPERATION
    read = read_u32s(inputs, inputCount, most, "inputs"), read_u32s(outputs, outputCount, most, "outputs")
    model.add_operation(type, *read)


@entry("ANeuralNetworksModel_identifyInputsAndOutputs", MODEL, u32, pointer, u32, pointer)
def _identify(model: Model, inputCount: int, inputs: int, outputCount: int, outputs: int) -> None:
    most = len(model.operands)
    model.identify(read_u32s(inputs, inputCount, most, "inputs"), read_u32s(outputs, outputCount, most, "outputs"))


# Extensions


def _extension_type(model: Model, extensionName: str, codeWithinExtension: int, type: Any) -> None:
    type.set(extensions.full_type(extensionName, codeWithinExtension))


_TYPE_OF = (MODEL, structure(read_string), u16, out(ctypes.c_int32))
entry("ANeuralNetworksModel_getExtensionOperandType", *_TYPE_OF)(_extension_type)
entry("ANeuralNetworksModel_getExtensionOperationType", *_TYPE_OF)(_extension_type)


@entry("ANeuralNetworksModel_setOperandExtensionData", MODEL, i32, address, u64)
def _set_extension_data(model: Model, index: int, data: int, length: int) -> None:
    if not data and length:
        raise ApiError(ResultCode.UNEXPECTED_NULL, f"data is NULL, but length is {length}")
    model.set_extension_data(index, read_bytes(data, length, "data") if data else None)
