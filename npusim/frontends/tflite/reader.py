"""Reads the FlatBuffer of a .tflite file into records. Every read of the file is checked here.

The generated accessors of the ``tflite`` package check nothing. A read outside the file raises ``struct.error``, which
becomes ModelError. What is read is limited by the size of the file, because many offsets may refer to one table.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import tflite

from npusim.errors import ModelError, named
from npusim.frontends.tflite import IDENTIFIER
from npusim.ops.base import Array
from npusim.ops.build import MAX_ELEMENTS
from npusim.polling import poll

_DAMAGES = (struct.error, ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
"""Exceptions of the accessors for offsets and lengths that do not fit the file."""
_TABLE_BYTES = 8
"""Least size of a table: its offset in a vector, and the offset of its field list."""
_SHARING = 4
"""Times that the bytes of a file may be read: writers share equal vectors and texts."""
_SLACK = 1 << 16

NAMES: Mapping[int, str] = {code: name for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)}
"""Names of builtin operators by code."""
_OPTIONS = {code: name for name, code in vars(tflite.BuiltinOptions).items() if isinstance(code, int) and code}
_OPTIONS2 = {code: name for name, code in vars(tflite.BuiltinOptions2).items() if isinstance(code, int) and code}


@dataclass(frozen=True, slots=True)
class Quantization:
    """Numbers are (stored - zero) * scale. Both are vectors of one entry, or of one for each slice of ``axis``."""

    scale: Array
    zero: Array
    axis: int


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a sparse constant: its size if it is dense, otherwise the segments and the indices."""

    size: int
    segments: Array | None = None
    indices: Array | None = None


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The layout of a sparse constant: the order of levels, the dimension of each block, the levels."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TensorRecord:
    """A declared tensor. ``open``: dimensions that a caller may choose. ``data``: its buffer, None without one."""

    name: str
    type: int
    shape: tuple[int, ...]
    open: frozenset[int]
    data: memoryview | None
    quantization: Quantization | None
    variable: bool
    sparsity: Sparsity | None


@dataclass(frozen=True, slots=True)
class OperatorRecord:
    """An operator: its name, its tensors by number (-1: omitted), and its options."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    options: OperatorOptions
    custom: bytes = b""


@dataclass(frozen=True, slots=True)
class SubgraphRecord:
    """Tensors and operators, in an order in which they can be computed."""

    name: str
    tensors: tuple[TensorRecord, ...]
    operators: tuple[OperatorRecord, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SignatureRecord:
    """A named entry point: a subgraph, and the names of its inputs and outputs by tensor number."""

    key: str
    subgraph: int
    inputs: Mapping[int, str]
    outputs: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A whole file."""

    subgraphs: tuple[SubgraphRecord, ...]
    signatures: tuple[SignatureRecord, ...]
    buffers: tuple[memoryview | None, ...] = field(repr=False)


def checked(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that reads the file: an exception of an accessor becomes ModelError."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except _DAMAGES as error:
                _damaged(f"{what} cannot be read: {error}", error)

        return run

    return decorate


def _damaged(problem: str, cause: Exception | None = None) -> NoReturn:
    raise ModelError(f"the TFLite model is damaged or truncated: {problem}") from cause


class OperatorOptions:
    """The options of one operator, in a table of the union member ``kind`` ('' if there are none)."""

    __slots__ = ("_table", "kind")

    def __init__(self, kind: str, table: Any) -> None:
        self.kind = kind
        self._table = table

    def get(self, kind: str, name: str) -> Any:
        """An option by its name in the schema, for an operator whose options are of this kind. Without options, the
        default of the schema. Raises ModelError for options of another operator."""
        if self.kind not in (kind, ""):
            _damaged(f"options must be {kind}, are {self.kind}")
        return self._read(kind, name)

    def integers(self, kind: str, name: str) -> list[int]:
        """An option that is a list of integers; empty if it is absent."""
        if not self.get(kind, f"{name}Length"):
            return []
        found: list[int] = self.get(kind, f"{name}AsNumpy").tolist()
        return found

    @checked("an option")
    def _read(self, kind: str, name: str) -> Any:
        table = getattr(tflite, kind)()
        if self._table is None:
            table.Init(_EMPTY, 4)
        else:
            table.Init(self._table.Bytes, self._table.Pos)
        return getattr(table, name)()


_ZEROS = {
    getattr(tflite.TensorType, name): (int(np.iinfo(name.lower()).min), int(np.iinfo(name.lower()).max))
    for name in ("INT8", "UINT8", "INT16", "UINT16")
} | {tflite.TensorType.INT4: (-8, 7)}
"""Range of zero points by element type; others, such as those of biases, have none."""
_EMPTY = struct.pack("<HHi", 4, 4, 4)
"""A table at offset 4 without fields."""


class _Reader:
    """Reads one file and counts the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _SHARING * len(data) + _SLACK

    def spend(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            _damaged("its tables refer to the same bytes too often")

    def tables(self, owner: Any, name: str) -> Iterator[Any]:
        """The tables of a vector."""
        length = getattr(owner, f"{name}Length")()
        self._fits(name, length, 4)
        for index in range(length):
            self.spend(_TABLE_BYTES)
            poll()
            yield getattr(owner, name)(index)

    def numbers(self, owner: Any, name: str) -> Array:
        """A vector of numbers; empty if it is absent."""
        length = getattr(owner, f"{name}Length")()
        if not length:
            return np.zeros(0, np.int32)
        self._fits(name, length, 1)
        found: Array = getattr(owner, f"{name}AsNumpy")()
        self.spend(found.nbytes)
        return found

    def integers(self, owner: Any, name: str) -> tuple[int, ...]:
        """A vector of integers as Python numbers."""
        return tuple(self.numbers(owner, name).tolist())

    def text(self, raw: bytes | None) -> str:
        """A string."""
        self.spend(len(raw or b""))
        return (raw or b"").decode("utf-8", "replace")

    def _fits(self, name: str, length: int, size: int) -> None:
        if length * size > len(self._data):
            _damaged(f"{name} of {length} entries in a file of {len(self._data)} bytes")

    # Parts of a model

    def model(self) -> ModelRecord:
        root = tflite.Model.GetRootAs(self._data, 0)
        buffers = tuple(self._buffer(table) for table in self.tables(root, "Buffers"))
        codes = [self._code(table) for table in self.tables(root, "OperatorCodes")]
        subgraphs = tuple(self._subgraph(table, buffers, codes) for table in self.tables(root, "Subgraphs"))
        if not subgraphs:
            _damaged("it has no graph")
        signatures = tuple(self._signature(table, subgraphs) for table in self.tables(root, "SignatureDefs"))
        return ModelRecord(subgraphs, signatures, buffers)

    def _buffer(self, table: Any) -> memoryview | None:
        whole, length = memoryview(self._data), table.DataLength()
        if length:
            start = table._tab.Vector(table._tab.Offset(4))
            if not 0 <= start <= start + length <= len(whole):
                _damaged(f"a buffer of bytes {start} to {start + length} in a file of {len(whole)}")
            return whole[start : start + length]
        # Data of models over 2 GiB is behind the FlatBuffer. Offsets 0 and 1 mean that there is none.
        start, length = table.Offset(), table.Size()
        if start <= 1:
            return None
        if start + length > len(whole):
            _damaged(f"a buffer of bytes {start} to {start + length} in a file of {len(whole)}")
        return whole[start : start + length]

    def _code(self, table: Any) -> str:
        # Codes up to 126 are in the older field of one byte, which has 127 for later ones.
        code = max(table.BuiltinCode(), table.DeprecatedBuiltinCode())
        name = NAMES.get(code, f"builtin operator {code}")
        return f"CUSTOM:{self.text(table.CustomCode())}" if name == "CUSTOM" else name

    def _subgraph(self, table: Any, buffers: tuple[memoryview | None, ...], codes: list[str]) -> SubgraphRecord:
        tensors = tuple(self._tensor(each, buffers) for each in self.tables(table, "Tensors"))
        operators = tuple(self._operator(each, codes, len(tensors)) for each in self.tables(table, "Operators"))
        inputs, outputs = self.integers(table, "Inputs"), self.integers(table, "Outputs")
        _check_indexes("an input or output of a graph", (*inputs, *outputs), 0, len(tensors))
        return SubgraphRecord(self.text(table.Name()), tensors, operators, inputs, outputs)

    def _tensor(self, table: Any, buffers: tuple[memoryview | None, ...]) -> TensorRecord:
        shape, signature = self.integers(table, "Shape"), self.integers(table, "ShapeSignature")
        number, kind = table.Buffer(), table.Type()
        if number >= max(len(buffers), 1):
            _damaged(f"tensor buffer {number} of {len(buffers)}")
        # Dimensions of 0 do not count, because numpy cannot make such an array either.
        if min(shape, default=0) < 0 or math.prod(max(dim, 1) for dim in shape) > MAX_ELEMENTS:
            _damaged(f"a tensor of shape {list(shape)}")
        if signature and len(signature) != len(shape):
            _damaged(f"a tensor of shape {list(shape)} and signature {list(signature)}")
        return TensorRecord(
            self.text(table.Name()),
            kind,
            shape,
            frozenset(axis for axis, dim in enumerate(signature) if dim < 0),
            buffers[number] if number else None,  # buffer 0 is empty by definition
            self._quantization(table.Quantization(), len(shape), kind),
            bool(table.IsVariable()),
            self._sparsity(table.Sparsity(), len(shape)),
        )

    def _quantization(self, table: Any, rank: int, kind: int) -> Quantization | None:
        if table is None or not table.ScaleLength():
            return None
        scale, axis = self.numbers(table, "Scale").astype(np.float32), table.QuantizedDimension()
        zero = self.numbers(table, "ZeroPoint").astype(np.int64)
        if not len(zero):
            zero = np.zeros(1, np.int64)
        if len(zero) not in (1, len(scale)) or (len(scale) > 1 and not 0 <= axis < rank):
            _damaged(f"{len(scale)} scales and {len(zero)} zero points of dimension {axis} of {rank}")
        if not np.isfinite(scale).all() or (scale < 0).any():
            _damaged("a scale that is not a number >= 0")
        low, high = _ZEROS.get(kind, (0, 0))
        if not low <= zero.min() <= zero.max() <= high:
            _damaged(f"a zero point of {zero.min()} to {zero.max()}, outside {low} to {high}")
        return Quantization(scale, zero, axis)

    def _sparsity(self, table: Any, rank: int) -> Sparsity | None:
        if table is None:
            return None
        order, blocks = self.integers(table, "TraversalOrder"), self.integers(table, "BlockMap")
        levels = tuple(self._level(each) for each in self.tables(table, "DimMetadata"))
        if sorted(order) != list(range(rank + len(blocks))) or len(levels) != len(order):
            _damaged(f"a sparse tensor of {rank} dimensions with levels {list(order)}")
        _check_indexes("a block of a sparse tensor", blocks, 0, rank)
        return Sparsity(order, blocks, levels)

    def _level(self, table: Any) -> Level:
        if table.Format() == tflite.DimensionType.DENSE:
            return Level(table.DenseSize())
        segments = self._index_vector(table.ArraySegmentsType(), table.ArraySegments())
        return Level(0, segments, self._index_vector(table.ArrayIndicesType(), table.ArrayIndices()))

    def _index_vector(self, kind: int, table: Any) -> Array:
        vector = {1: tflite.Int32Vector, 2: tflite.Uint16Vector, 3: tflite.Uint8Vector}[kind]()
        vector.Init(table.Bytes, table.Pos)
        return self.numbers(vector, "Values").astype(np.int64)

    def _operator(self, table: Any, codes: list[str], tensors: int) -> OperatorRecord:
        index = table.OpcodeIndex()
        if index >= len(codes):
            _damaged(f"operator code {index} of {len(codes)}")
        inputs, outputs = self.integers(table, "Inputs"), self.integers(table, "Outputs")
        intermediates = self.integers(table, "Intermediates")
        _check_indexes("an operand", (*inputs, *intermediates), -1, tensors)
        _check_indexes("a result", outputs, 0, tensors)
        kind, options = _OPTIONS.get(table.BuiltinOptionsType(), ""), table.BuiltinOptions()
        if not kind and table.BuiltinOptions2Type():
            kind, options = _OPTIONS2.get(table.BuiltinOptions2Type(), ""), table.BuiltinOptions2()
        if bool(kind) != (options is not None):
            kind, options = "", None
        custom = self.numbers(table, "CustomOptions").tobytes()
        return OperatorRecord(codes[index], inputs, outputs, intermediates, OperatorOptions(kind, options), custom)

    def _signature(self, table: Any, subgraphs: tuple[SubgraphRecord, ...]) -> SignatureRecord:
        number = table.SubgraphIndex()
        _check_indexes("the graph of a signature", (number,), 0, len(subgraphs))
        maps = [
            {each.TensorIndex(): self.text(each.Name()) for each in self.tables(table, name)}
            for name in ("Inputs", "Outputs")
        ]
        for found in maps:
            _check_indexes("a tensor of a signature", tuple(found), 0, len(subgraphs[number].tensors))
        return SignatureRecord(self.text(table.SignatureKey()), number, *maps)


def _check_indexes(what: str, indexes: tuple[int, ...], least: int, count: int) -> None:
    for index in indexes:
        if not least <= index < count:
            _damaged(f"{what} is number {index}, there are {count}")


@checked("it")
def _parsed(data: bytes) -> ModelRecord:
    return _Reader(data).model()


def parse(data: bytes, where: str) -> ModelRecord:
    """The records of a file; its constants are views of ``data``. Raises ModelError."""
    if data[4:8] != IDENTIFIER:
        raise ModelError(f"{named(where)}: is not a TFLite model, which has {IDENTIFIER.decode()} at offset 4")
    try:
        found: ModelRecord = _parsed(data)
    except ModelError as error:
        raise ModelError(f"{named(where)}: {error}") from None
    return found
