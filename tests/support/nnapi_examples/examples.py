"""NNAPI conformance examples as Model objects.

The examples are not part of the project. They are read from $NNAPI_VECTORS, or from shared/nnapi/vectors beside the
checkout.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import (
    DataLocation,
    ExtraParams,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
    SymmPerChannelQuantParams,
)

if TYPE_CHECKING:
    from hal.nnapi.memory import Memory

Array = npt.NDArray[Any]
Record = Mapping[str, Any]
Get = Callable[[str, int], Array | None]
"""Returns the flat values of an operand, given its subgraph ("main", "ref0", ...) and index; None if it has none."""
Constants = Literal["copy", "pool", "given"]

VECTORS = Path(os.environ.get("NNAPI_VECTORS") or Path(__file__).resolve().parents[4] / "shared" / "nnapi" / "vectors")
HIDL_VERSIONS = ("V1_0", "V1_1", "V1_2", "V1_3")
AIDL_VERSIONS = ("AIDL_V2", "AIDL_V3")
"""Versions whose files may be in a folder of their own, ``vectors_aidl`` beside the other."""
VERSIONS = (*HIDL_VERSIONS, *AIDL_VERSIONS)

_CONSTANT = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)


def available() -> bool:
    """Return whether the examples are installed."""
    return VECTORS.is_dir()


def examples(versions: Sequence[str] = VERSIONS) -> Iterator[tuple[dict[str, Any], Get]]:
    """Yield every example of these interface versions, in the order of the files."""
    for version in versions:
        for rec in _records(version):
            yield rec, functools.partial(_get, rec["version"], rec["test"])


def _folder(version: str) -> Path:
    """Return the folder with the files of a version."""
    beside = VECTORS.with_name("vectors_aidl")
    return beside if version in AIDL_VERSIONS and beside.is_dir() else VECTORS


@functools.cache
def _records(version: str) -> list[dict[str, Any]]:
    with gzip.open(_folder(version) / f"{version}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@functools.cache
def _values(version: str) -> Mapping[str, Array]:
    return np.load(_folder(version) / f"{version}.npz")  # type: ignore[no-any-return]


def _get(version: str, test: str, group: str, index: int) -> Array | None:
    values, key = _values(version), f"{test}/{group}/{index}"
    return values.get(key)


def build_model(
    rec: Record, get: Get, constants: Constants = "copy"
) -> tuple[Model, list[Array | None], list[Array | None]]:
    """Return an example as (model, inputs, expected outputs).

    The arrays have the order and shapes of the main subgraph's inputs and outputs; None for an omitted input and for an
    output that is not compared.

    ``constants``: all in ``operandValues`` ("copy"), all in one ashmem pool ("pool"), or as in the example ("given").
    They are 4-byte aligned.
    """
    blobs = _Blobs(constants)
    named = [("main", rec["main"]), *((f"ref{number}", each) for number, each in enumerate(rec["referenced"]))]
    subgraphs = [_subgraph(each, functools.partial(get, name), blobs) for name, each in named]
    model = Model(
        main=subgraphs[0],
        referenced=subgraphs[1:],
        operandValues=bytes(blobs.copied),
        pools=blobs.pools(),
        relaxComputationFloat32toFloat16=rec["relaxed"],
    )
    operands, main = rec["main"]["operands"], rec["main"]
    inputs = [_shaped(operands[index], get("main", index)) for index in main["inputs"]]
    expected = [None if operands[i]["ignored"] else _output(operands[i], get("main", i)) for i in main["outputs"]]
    return model, inputs, expected


class _Blobs:
    """Stores the constants."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.copied = bytearray()
        self.shared = bytearray()

    def add(self, lifetime: OperandLifeTime, data: bytes) -> tuple[OperandLifeTime, DataLocation]:
        """Store one constant. Returns its lifetime and location."""
        if self.constants != "given":
            pooled = self.constants == "pool"
            lifetime = OperandLifeTime.CONSTANT_REFERENCE if pooled else OperandLifeTime.CONSTANT_COPY
        blob = self.copied if lifetime == OperandLifeTime.CONSTANT_COPY else self.shared
        location = DataLocation(0, len(blob), len(data))
        blob += data + bytes(-len(data) % 4)
        return lifetime, location

    def pools(self) -> list[Memory]:
        """Return the pools of the model."""
        return [ashmem(bytes(self.shared))] if self.shared else []


def ashmem(data: bytes) -> Memory:
    """Return a shared memory pool with these bytes."""
    from hal.nnapi.memory import allocate_ashmem

    memory = allocate_ashmem(len(data))
    with memory.map() as mapping:
        mapping[:] = data
    return memory


def _subgraph(rec: Record, get: Callable[[int], Array | None], blobs: _Blobs) -> Subgraph:
    return Subgraph(
        operands=[_operand(operand, get(index), blobs) for index, operand in enumerate(rec["operands"])],
        operations=[
            Operation(OperationType[each["type"]], list(each["inputs"]), list(each["outputs"]))
            for each in rec["operations"]
        ],
        inputIndexes=list(rec["inputs"]),
        outputIndexes=list(rec["outputs"]),
    )


def _operand(rec: Record, data: Array | None, blobs: _Blobs) -> Operand:
    lifetime = OperandLifeTime[rec["lifetime"]]
    location = DataLocation()
    if lifetime in _CONSTANT:
        assert data is not None, f"constant {rec['name']} has no data"
        lifetime, location = blobs.add(lifetime, data.tobytes())
    elif lifetime == OperandLifeTime.SUBGRAPH:
        location.offset = rec["subgraphIndex"]
    return Operand(
        type=OperandType[rec["type"]],
        dimensions=list(rec["dims"]),
        numberOfConsumers=rec["consumers"],
        scale=rec["scale"],
        zeroPoint=rec["zeroPoint"],
        lifetime=lifetime,
        location=location,
        extraParams=_extra(rec.get("channelQuant")),
    )


def _extra(quant: Record | None) -> ExtraParams | None:
    if quant is None:
        return None
    return ExtraParams(SymmPerChannelQuantParams(list(quant["scales"]), quant["channelDim"]))


def _shaped(operand: Record, data: Array | None) -> Array | None:
    return None if data is None else data.reshape(_dims(operand))


def _output(operand: Record, data: Array | None) -> Array:
    """An output without elements has no data."""
    if data is None:
        return np.zeros(_dims(operand), STORAGE[OperandType[operand["type"]]])
    return data.reshape(_dims(operand))


def _dims(operand: Record) -> Sequence[int]:
    """Return the dimensions at execution; a variant of an example leaves them open in the model."""
    dims: Sequence[int] = operand.get("shape", operand["dims"])
    return dims
