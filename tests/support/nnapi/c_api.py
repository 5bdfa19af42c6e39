"""libneuralnetworks.so for tests. Every prototype is read from the header that clients compile against."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hal.abi import INCLUDE, LIB

HEADER = INCLUDE / "NeuralNetworks.h"
SUPPORT_HEADER = INCLUDE / "NeuralNetworksSupportLibraryImpl.h"
LIBRARY = LIB / "libneuralnetworks.so"
ADDEND, TENS = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
os.environ.setdefault("NPUSIM_NNAPI_DEVICES", "edge,tiny")

_PROTOTYPE = re.compile(r"^(\w+) (ANeuralNetworks\w+)\(([^;]*)\);", re.MULTILINE)
_MEMBER = re.compile(r"^    ([\w ]+?) \*?\(\*(\w+)\)\(\s*([^;]*)\);", re.MULTILINE)
_CONSTANT = re.compile(r"^ +(ANEURALNETWORKS_\w+) = (\d+),", re.MULTILINE)
_PLAIN: Mapping[str, Any] = {
    "int": ctypes.c_int, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "uint16_t": ctypes.c_uint16,
    "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64, "size_t": ctypes.c_size_t, "bool": ctypes.c_bool,
    "float": ctypes.c_float, "ANeuralNetworksOperationType": ctypes.c_int32, "void": None,
}  # fmt: skip


def prototypes() -> dict[str, tuple[str, list[str]]]:
    """Return the result type and parameters of every function in the header."""
    found = {}
    for result, name, parameters in _PROTOTYPE.findall(HEADER.read_text("utf-8")):
        words = " ".join(parameters.split())
        found[name] = (result, [] if words == "void" else words.split(", "))
    return found


def members() -> dict[str, tuple[str, list[str]]]:
    """Return the result type and parameters of each function in the support library's table, in its order."""
    found = {}
    for result, name, parameters in _MEMBER.findall(SUPPORT_HEADER.read_text("utf-8")):
        words = " ".join(parameters.split())
        found[name] = (result, [] if words == "void" else words.split(", "))
    return found


CONSTANTS = {name: int(value) for name, value in _CONSTANT.findall(HEADER.read_text("utf-8"))}


def code(name: str) -> int:
    """Return the number of ANEURALNETWORKS_<name>."""
    return CONSTANTS[f"ANEURALNETWORKS_{name}"]


def _ctype(parameter: str) -> Any:
    return ctypes.c_void_p if "*" in parameter else _PLAIN[parameter.split()[-2]]


class OperandType(ctypes.Structure):
    """ANeuralNetworksOperandType."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("dimensionCount", ctypes.c_uint32),
        ("dimensions", ctypes.POINTER(ctypes.c_uint32)),
        ("scale", ctypes.c_float),
        ("zeroPoint", ctypes.c_int32),
    )


class ChannelQuant(ctypes.Structure):
    """ANeuralNetworksSymmPerChannelQuantParams."""

    _fields_ = (
        ("channelDim", ctypes.c_uint32),
        ("scaleCount", ctypes.c_uint32),
        ("scales", ctypes.POINTER(ctypes.c_float)),
    )


class Api:
    """The functions without their prefix ``ANeuralNetworks``: ``api.Model_create(...)``. Results are numbers."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(LIBRARY))
        for name, (result, parameters) in prototypes().items():
            function = getattr(self._library, name)
            function.restype = _PLAIN[result]
            function.argtypes = [_ctype(parameter) for parameter in parameters]
            setattr(self, name.removeprefix("ANeuralNetworks").lstrip("_"), function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the header has no function ANeuralNetworks{name}")

    def ok(self, name: str, *arguments: Any) -> None:
        """Call a function that must succeed."""
        result = getattr(self, name)(*arguments)
        assert result == 0, f"{name}: {result}"

    def make(self, name: str, *arguments: Any) -> int:
        """Call a function whose last parameter receives a handle, and return the handle."""
        handle = ctypes.c_void_p()
        self.ok(name, *arguments, ctypes.byref(handle))
        assert handle.value
        return handle.value


class TableApi(Api):
    """The functions of the support library's table, and no others."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(LIBRARY))
        library.ANeuralNetworks_getSLDriverImpl.restype = ctypes.c_void_p
        table = members()
        words = (ctypes.c_void_p * (1 + len(table))).from_address(library.ANeuralNetworks_getSLDriverImpl())
        self.level = words[0]
        for place, (name, (result, parameters)) in enumerate(table.items(), 1):
            if not name.startswith("SL_"):
                made = ctypes.CFUNCTYPE(_PLAIN[result], *(_ctype(parameter) for parameter in parameters))
                setattr(self, name.removeprefix("ANeuralNetworks").lstrip("_"), made(words[place]))


def operand_type(kind: str | int, dims: Sequence[int] = (), scale: float = 0.0, zero: int = 0) -> OperandType:
    """Return an operand type by the name of its code."""
    number = code(kind) if isinstance(kind, str) else kind
    array = (ctypes.c_uint32 * len(dims))(*dims) if len(dims) else None
    return OperandType(number, len(dims), array, scale, zero)


def u32s(values: Sequence[int]) -> Any:
    """Return an array of uint32_t."""
    return (ctypes.c_uint32 * len(values))(*values)


class File:
    """Anonymous memory with floats, and its memory object."""

    def __init__(self, api: Api, values: Sequence[float] | np.ndarray[Any, Any], protect: int = 3) -> None:
        self._data = np.asarray(values, np.float32)
        self.descriptor = os.memfd_create("floats")
        os.write(self.descriptor, self._data.tobytes())
        self.memory = api.make("Memory_createFromFd", self._data.nbytes, protect, self.descriptor, 0)

    def read(self) -> list[float]:
        return np.frombuffer(os.pread(self.descriptor, self._data.nbytes, 0), np.float32).tolist()

    def close(self) -> None:
        os.close(self.descriptor)


def memory_of(api: Api, data: np.ndarray[Any, Any], protect: int = 3) -> int:
    """Create an ANeuralNetworksMemory from a file with these bytes."""
    descriptor = os.memfd_create("values")
    os.write(descriptor, data.tobytes())
    memory = api.make("Memory_createFromFd", data.nbytes, protect, descriptor, 0)
    os.close(descriptor)
    return memory


def address(array: np.ndarray[Any, Any]) -> int:
    """Return the address of an array."""
    return int(array.ctypes.data)


class ModelMaker:
    """Builds a model; ``tensor`` and similar methods return operand indices."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.model = api.make("Model_create")
        self.count = 0
        self.kept: list[Any] = []

    def operand(self, kind: str | int, dims: Sequence[int] = (), scale: float = 0.0, zero: int = 0) -> int:
        """Add an operand."""
        self.api.ok("Model_addOperand", self.model, ctypes.byref(operand_type(kind, dims, scale, zero)))
        self.count += 1
        return self.count - 1

    def constant(self, kind: str, values: Any, scale: float = 0.0, zero: int = 0) -> int:
        """Add an operand with a value: a number for a scalar, an array for a tensor."""
        array = np.ascontiguousarray(values)
        index = self.operand(kind, array.shape if kind.startswith("TENSOR") else (), scale, zero)
        self.kept.append(array)
        self.api.ok("Model_setOperandValue", self.model, index, address(array), array.nbytes)
        return index

    def i32(self, value: int) -> int:
        """Add an INT32."""
        return self.constant("INT32", np.int32(value))

    def add(self, kind: str, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Add an operation."""
        self.api.ok(
            "Model_addOperation", self.model, code(kind), len(inputs), u32s(inputs), len(outputs), u32s(outputs)
        )

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        """Set inputs and outputs, and finish the model."""
        self.api.ok(
            "Model_identifyInputsAndOutputs", self.model, len(inputs), u32s(inputs), len(outputs), u32s(outputs)
        )
        self.api.ok("Model_finish", self.model)
        return self.model


def add_model(api: Api, dims: Sequence[int] = (4,), out: Sequence[int] | None = None) -> int:
    """Build y = a + b."""
    maker = ModelMaker(api)
    a, b = (maker.operand("TENSOR_FLOAT32", dims) for _ in range(2))
    fuse, y = maker.i32(0), maker.operand("TENSOR_FLOAT32", dims if out is None else out)
    maker.add("ADD", [a, b, fuse], [y])
    return maker.finish([a, b], [y])


def device(api: Api, number: int = 0) -> int:
    """Return a device handle."""
    handle = ctypes.c_void_p()
    api.ok("getDevice", number, ctypes.byref(handle))
    assert handle.value
    return handle.value


def handles(values: Sequence[int]) -> Any:
    """Return an array of handles."""
    return (ctypes.c_void_p * len(values))(*values)


def compiled(api: Api, model: int, number: int | None = 0) -> int:
    """Return a finished compilation for one device, or for all of them."""
    if number is None:
        compilation = api.make("Compilation_create", model)
    else:
        compilation = api.make("Compilation_createForDevices", model, handles([device(api, number)]), 1)
    api.ok("Compilation_finish", compilation)
    return compilation


def set_inputs(api: Api, execution: int, *arrays: np.ndarray[Any, Any]) -> None:
    """Set inputs in client memory with the dimensions of the model."""
    for number, array in enumerate(arrays):
        api.ok("Execution_setInput", execution, number, None, address(array), array.nbytes)


def filled(api: Api, execution: int) -> np.ndarray[Any, Any]:
    """Set all arguments of y = a + b to 0, 1, 2, 3 and four tens, and return the output array."""
    result = np.zeros(4, np.float32)
    set_inputs(api, execution, ADDEND, TENS)
    api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
    return result
