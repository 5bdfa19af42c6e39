"""TFLite models written with the builder functions of the ``tflite`` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
import tflite

Array = npt.NDArray[Any]
VERSIONS = {"BROADCAST_TO": 2}
"""Versions of operators that other readers require."""
TYPES: Mapping[str, int] = {
    name.lower(): code for name, code in vars(tflite.TensorType).items() if isinstance(code, int)
}
UNIONS: Mapping[str, int] = {name: code for name, code in vars(tflite.BuiltinOptions).items() if isinstance(code, int)}
CODES: Mapping[str, int] = {name: code for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)}


@dataclass
class Given:
    """A tensor.

    ``type``: lower-case name; ``scale``: one number or one for each slice of ``axis``; ``data``: makes it a constant;
    ``signature``: its shape with -1 for open dimensions; ``packed``: bytes in place of those of ``data``.
    """

    name: str
    shape: Sequence[int]
    type: str = "float32"
    scale: Any = None
    zero: Any = 0
    axis: int = 0
    data: Array | None = None
    variable: bool = False
    signature: Sequence[int] | None = None
    packed: bytes | None = None

    @property
    def free(self) -> bool:
        """Whether it is neither a constant nor a variable."""
        return self.data is None and self.packed is None and not self.variable


def const(name: str, data: Any, type: str | None = None, **rest: Any) -> Given:
    """A constant tensor."""
    array = np.asarray(data)
    return Given(name, array.shape, type or array.dtype.name, data=array, **rest)


@dataclass
class Operator:
    """An operator; ``inputs`` and ``outputs`` are numbers of tensors, ``options`` its options in the schema's words."""

    name: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    kind: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    custom: bytes = b""
    intermediates: Sequence[int] = ()


@dataclass
class Subgraph:
    """A graph."""

    tensors: Sequence[Given]
    operators: Sequence[Operator]
    inputs: Sequence[int]
    outputs: Sequence[int]
    name: str = "main"


@dataclass
class Signature:
    """A signature of graph 0: names of tensors by number."""

    inputs: Mapping[int, str]
    outputs: Mapping[int, str]
    key: str = "serving_default"


def single(name: str, tensors: Sequence[Given], kind: str = "", outputs: int = 1, **options: Any) -> bytes:
    """A model of one operator: the last tensors are its outputs, the others its inputs in order."""
    first = len(tensors) - outputs
    inputs = [number for number in range(first) if tensors[number].free]
    operator = Operator(name, range(first), range(first, len(tensors)), kind, options)
    return model([Subgraph(tensors, [operator], inputs, range(first, len(tensors)))])


def model(subgraphs: Sequence[Subgraph], signatures: Sequence[Signature] = ()) -> bytes:
    """The bytes of a file."""
    builder = flatbuffers.Builder(1024)
    names = list(dict.fromkeys(op.name for graph in subgraphs for op in graph.operators))
    buffers = [_table(builder, "Buffer")]
    graphs = []
    for graph in subgraphs:
        tensors = []
        for tensor in graph.tensors:
            place = 0
            raw = tensor.packed if tensor.packed is not None else None if tensor.data is None else tensor.data.tobytes()
            if raw is not None:
                place = len(buffers)
                data = builder.CreateNumpyVector(np.frombuffer(raw, np.uint8)) if raw else None
                buffers.append(_table(builder, "Buffer", **({} if data is None else {"Data": data})))
            tensors.append(_tensor(builder, tensor, place))
        operators = [_operator(builder, op, names) for op in graph.operators]
        fields = {
            "Tensors": _offsets(builder, tensors),
            "Inputs": _ints(builder, graph.inputs),
            "Outputs": _ints(builder, graph.outputs),
            "Operators": _offsets(builder, operators),
            "Name": builder.CreateString(graph.name),
        }
        graphs.append(_table(builder, "SubGraph", **fields))
    codes = []
    for name in names:
        custom = builder.CreateString(name.partition(":")[2]) if ":" in name else None
        code = CODES[name.partition(":")[0]]
        rest = {} if custom is None else {"CustomCode": custom}
        rest |= {"DeprecatedBuiltinCode": min(code, 127), "BuiltinCode": code, "Version": VERSIONS.get(name, 1)}
        codes.append(_table(builder, "OperatorCode", **rest))
    fields = {
        "Subgraphs": _offsets(builder, graphs),
        "OperatorCodes": _offsets(builder, codes),
        "Buffers": _offsets(builder, buffers),
    }
    if signatures:
        fields["SignatureDefs"] = _offsets(builder, [_signature(builder, each) for each in signatures])
    builder.Finish(_table(builder, "Model", Version=3, **fields), b"TFL3")
    return bytes(builder.Output())


def _table(builder: Any, kind: str, **fields: Any) -> int:
    getattr(tflite, f"{kind}Start")(builder)
    for name, value in fields.items():
        getattr(tflite, f"{kind}Add{name}")(builder, value)
    found: int = getattr(tflite, f"{kind}End")(builder)
    return found


def _ints(builder: Any, numbers: Sequence[int]) -> int:
    found: int = builder.CreateNumpyVector(np.asarray(list(numbers), np.int32))
    return found


def _offsets(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    found: int = builder.EndVector()
    return found


def _tensor(builder: Any, tensor: Given, place: int) -> int:
    fields: dict[str, Any] = {"Shape": _ints(builder, tensor.shape), "Name": builder.CreateString(tensor.name)}
    if tensor.signature is not None:
        fields["ShapeSignature"] = _ints(builder, tensor.signature)
    if tensor.scale is not None:
        scale = np.atleast_1d(np.float32(tensor.scale))
        parts = {
            "Scale": builder.CreateNumpyVector(scale),
            "ZeroPoint": builder.CreateNumpyVector(np.zeros(len(scale), np.int64) + tensor.zero),
        }
        fields["Quantization"] = _table(builder, "QuantizationParameters", **parts, QuantizedDimension=tensor.axis)
    return _table(builder, "Tensor", Type=TYPES[tensor.type], Buffer=place, IsVariable=tensor.variable, **fields)


def _operator(builder: Any, op: Operator, names: Sequence[str]) -> int:
    fields: dict[str, Any] = {
        "Inputs": _ints(builder, op.inputs),
        "Outputs": _ints(builder, op.outputs),
        "Intermediates": _ints(builder, op.intermediates),
    }
    if op.kind:
        options: dict[str, Any] = {}
        for name, value in op.options.items():
            if isinstance(value, str):
                options[name] = builder.CreateString(value)
            else:
                options[name] = _ints(builder, value) if isinstance(value, list | tuple) else value
        fields["BuiltinOptions"] = _table(builder, op.kind, **options)
    if op.custom:
        fields["CustomOptions"] = builder.CreateNumpyVector(np.frombuffer(op.custom, np.uint8))
    kind = UNIONS.get(op.kind, 0)
    return _table(builder, "Operator", OpcodeIndex=names.index(op.name), BuiltinOptionsType=kind, **fields)


def _signature(builder: Any, signature: Signature) -> int:
    fields: dict[str, Any] = {"SignatureKey": builder.CreateString(signature.key)}
    for name, found in (("Inputs", signature.inputs), ("Outputs", signature.outputs)):
        maps = [
            _table(builder, "TensorMap", Name=builder.CreateString(text), TensorIndex=number)
            for number, text in found.items()
        ]
        fields[name] = _offsets(builder, maps)
    return _table(builder, "SignatureDef", SubgraphIndex=0, **fields)
