"""Diagnostics of the support library: callbacks of the client that are told of finished compilations and executions."""

from __future__ import annotations

import ctypes
import enum
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..aidl.types import OMITTED, Timing
from ..operations.view import QUANTISED
from ..types import OperandType, OperationType
from .codes import FEATURE_LEVEL, NOT_AVAILABLE, ResultCode
from .devices import Device
from .kinds import is_specified
from .operands import BuiltModel, Referenced


class Compiled(Protocol):
    """What is told of a compilation."""

    @property
    def model(self) -> BuiltModel:
        """Its model."""

    @property
    def cached(self) -> bool:
        """Whether the client has set a cache."""

    def devices(self) -> Sequence[Device]:
        """The devices that execute it."""


class DataClass(enum.IntEnum):
    """ANNDIAG_DATA_CLASS_*: the types of a model's inputs or outputs."""

    UNKNOWN = 0
    OTHER = 1
    FLOAT32 = 2
    FLOAT16 = 3
    QUANT = 4
    MIXED = 5


class Mode(enum.IntEnum):
    """ANNDIAG_EXECUTION_MODE_*: the function that started an execution."""

    ASYNC = 1
    SYNC = 2
    BURST = 3
    ASYNC_WITH_DEPS = 4


class Info(ctypes.Structure):
    """ANeuralNetworksDiagnosticCompilationInfo and ...ExecutionInfo, whose fields C reads; see neuralnetworks_sl.c."""

    _fields_ = (
        ("version", ctypes.c_int64),
        ("nanoseconds", ctypes.c_uint64 * 3),
        ("devices", ctypes.c_char_p),
        ("session", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("caching", ctypes.c_bool),
        ("control_flow", ctypes.c_bool),
        ("dynamic", ctypes.c_bool),
        ("hash", ctypes.c_uint8 * 32),
    )


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class _Registered:
    compilation: Callable[[int, int], None] | None
    execution: Callable[[int, int], None] | None
    context: int


_registered = [_Registered(None, None, 0)]
"""One entry, which is replaced as a whole: other threads read it."""


def register(compilation: int, execution: int, context: int) -> None:
    """Set the addresses of both callbacks, in place of earlier ones; 0 for none."""
    made = [_CALLBACK(address) if address else None for address in (compilation, execution)]
    _registered[0] = _Registered(made[0], made[1], context)


def started_ns() -> int:
    """The time at which something starts, for :func:`compiled` and :func:`executed`."""
    return time.monotonic_ns()


def compiled(compilation: Compiled, code: ResultCode, since_ns: int) -> None:
    """Tell of a compilation that has ended."""
    told = _registered[0]
    if told.compilation is not None:
        _tell(told.compilation, told.context, compilation, code, [time.monotonic_ns() - since_ns], 0)


def executed(compilation: Compiled, code: ResultCode, since_ns: int, mode: Mode, timing: Timing) -> None:
    """Tell of an execution that has ended."""
    told = _registered[0]
    if told.execution is not None:
        simulated = [timing.timeInDriverNs, timing.timeOnDeviceNs]
        known = [NOT_AVAILABLE if each == OMITTED else each for each in simulated]
        _tell(told.execution, told.context, compilation, code, [time.monotonic_ns() - since_ns, *known], mode)


def _tell(
    callback: Callable[[int, int], None],
    context: int,
    compilation: Compiled,
    code: ResultCode,
    nanoseconds: list[int],
    mode: int,
) -> None:
    model = compilation.model
    inputs, outputs = ([model.operands[index].type for index in part] for part in (model.inputs, model.outputs))
    models = list(_with_references(model))
    devices = ",".join(f"{device.name}={device.version}" for device in compilation.devices()).encode()
    told = Info(
        FEATURE_LEVEL,
        (ctypes.c_uint64 * 3)(*nanoseconds),
        devices,
        os.getpid() & 0x7FFF_FFFF,
        int(code),
        mode,
        data_class(inputs),
        data_class(outputs),
        compilation.cached,
        any(operation.type in _CONTROL for each in models for operation in each.operations),
        any(_is_dynamic(each) for each in models),
        (ctypes.c_uint8 * 32)(*architecture_hash(models)),
    )
    callback(context, ctypes.addressof(told))


def data_class(kinds: Iterable[int]) -> DataClass:
    """The class of these operand types."""
    found = {_CLASSES.get(kind, DataClass.OTHER) for kind in kinds}
    return found.pop() if len(found) == 1 else DataClass.MIXED if found else DataClass.UNKNOWN


_CLASSES: dict[int, DataClass] = {
    **dict.fromkeys((OperandType.FLOAT32, OperandType.TENSOR_FLOAT32), DataClass.FLOAT32),
    **dict.fromkeys((OperandType.FLOAT16, OperandType.TENSOR_FLOAT16), DataClass.FLOAT16),
    **dict.fromkeys((*QUANTISED, OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL), DataClass.QUANT),
}
_CONTROL = (OperationType.IF, OperationType.WHILE)


def architecture_hash(models: Iterable[BuiltModel]) -> bytes:
    """A digest of a model's operations and operand types, without the values of constants: 32 bytes."""
    shape = [
        (
            [(each.type, each.dimensions, each.scale, each.zeroPoint) for each in model.operands],
            [(each.type, each.inputs, each.outputs) for each in model.operations],
            model.inputs,
            model.outputs,
        )
        for model in models
    ]
    return hashlib.sha256(repr(shape).encode()).digest()


def _with_references(main: BuiltModel) -> Iterable[BuiltModel]:
    """A model and those that it refers to, each once."""
    found = {id(main): main}
    waiting = [main]
    while waiting:
        for operand in waiting.pop().operands:
            if isinstance(operand.value, Referenced) and id(operand.value.model) not in found:
                found[id(operand.value.model)] = operand.value.model
                waiting.append(operand.value.model)
    return found.values()


def _is_dynamic(model: BuiltModel) -> bool:
    return not all(is_specified(each.type, each.dimensions) for each in model.operands)
