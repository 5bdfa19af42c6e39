"""The contents of the compilation cache: a prepared model as two byte strings.

The *body* is for the security-sensitive model file: the length of the JSON (8 bytes, little-endian), the JSON, which
describes model, segments and programs, then the instruction streams. The *data* is for the data file: constants, each
padded to 64 bytes; the body has their offsets, their length and their CRC-32. Of the model's own constants only those
are stored that an execution may read; the programs have theirs.

A checksum is enough for the data: whatever its values, the programs are those of the body and stay within their bounds.
A cryptographic digest would take longer than all other work on a cached model.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from npusim.cache import FORMAT_VERSION, describe, restore
from npusim.compiler.version import COMPILER_VERSION
from npusim.errors import CacheError
from npusim.hw.config import Config
from npusim.isa.base import ISA_VERSION
from npusim.plan import Segment
from npusim.program import Program

from ..extensions import storage_of
from ..operations.constants import Constants
from ..plan import Plan, Record
from ..types import (
    DataLocation,
    ExtensionNameAndPrefix,
    ExtraParams,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Subgraph,
    SymmPerChannelQuantParams,
)
from .values import keep_values, subgraphs

VERSION = 4
"""Version of the body. Increment it with any change."""
PAD = 64
_LENGTH = struct.Struct("<Q")
Bytes = bytes | bytearray | memoryview


class Data:
    """Collects the contents of the data file."""

    def __init__(self) -> None:
        self.pieces: list[Bytes] = []
        self.length = 0
        self.checksum = 0

    def add(self, piece: Bytes) -> list[int]:
        """Append a piece. Returns its place as [offset, length]."""
        place = [self.length, len(piece)]
        for part in (piece, bytes(-len(piece) % PAD)):
            if len(part):
                self.pieces.append(part)
                self.checksum = zlib.crc32(part, self.checksum)
                self.length += len(part)
        return place


def encode(config: Config, model: Model, constants: Constants, plan: Plan) -> tuple[bytes, list[Bytes]]:
    """The body, and the data in pieces."""
    data, records = Data(), plan.export()
    programs = list({id(record.program): record.program for record in records if record.program is not None}.values())
    numbers = {id(program): number for number, program in enumerate(programs)}
    document: dict[str, Any] = {
        "versions": _versions(),
        "config": config.fingerprint(),
        "half": plan.time_ps is not None,
        "model": _model(keep_values(model, constants, plan, records, data.add)),
        "records": [_record(record, numbers) for record in records],
        "programs": [
            {"meta": describe(p), "code": len(p.code), "constants": data.add(p.constants.joined().data)}
            for p in programs
        ],
    }
    document["data"] = [data.length, data.checksum]
    text = json.dumps(document, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *(program.code for program in programs)]), data.pieces


def describes_data(body: bytes) -> tuple[dict[str, Any], bytes, int, int]:
    """(the JSON document, the instruction streams, length and checksum of the data). Raises CacheError."""
    if len(body) < _LENGTH.size:
        raise CacheError(f"the body must have at least {_LENGTH.size} bytes, got {len(body)}")
    (length,) = _LENGTH.unpack_from(body)
    document = json.loads(body[_LENGTH.size : _LENGTH.size + length])
    if document["versions"] != _versions():
        raise CacheError(f"the model was cached by versions {document['versions']}, but this driver is {_versions()}")
    size, checksum = document["data"]
    return document, body[_LENGTH.size + length :], size, checksum


def decode(
    document: dict[str, Any], code: bytes, data: memoryview, config: Config, *, strict: bool
) -> tuple[Model, Constants, list[Record]]:
    """The model, its constants and the compiled segments. ``strict``: it must not compute FLOAT32 as FLOAT16. Raises
    CacheError."""
    if strict and document["half"]:
        raise CacheError("the model was cached by a driver that computes relaxed FLOAT32 as FLOAT16")
    if document["config"] != config.fingerprint():
        raise CacheError(f"the model was cached for another device than {config.name}")
    model = _read_model(document["model"], data)
    constants = Constants(model, (), storage_of(model))
    programs, position = [], 0
    for entry in document["programs"]:
        stream = code[position : position + entry["code"]]
        position += entry["code"]
        programs.append(restore(entry["meta"], stream, np.frombuffer(_piece(data, entry["constants"]), np.uint8)))
    return model, constants, [_read_record(entry, programs) for entry in document["records"]]


def _versions() -> list[int]:
    return [VERSION, FORMAT_VERSION, ISA_VERSION, COMPILER_VERSION]


def _piece(data: memoryview, place: Sequence[int]) -> memoryview:
    offset, length = place
    if offset < 0 or length < 0 or offset + length > len(data):
        raise CacheError(f"{length} bytes at offset {offset} do not lie within the {len(data)} bytes of data")
    return data[offset : offset + length]


# Segments


def _record(record: Record, programs: dict[int, int]) -> dict[str, Any]:
    segment = record.segment
    return {
        "index": record.index,
        "path": [key.hex() for key in record.path],
        "segment": [segment.start, segment.stop],
        "operands": [list(each) for each in (segment.inputs, segment.outputs, segment.counts, segment.ask)],
        "shapes": list(segment.shapes.items()),
        "program": None if record.program is None else programs[id(record.program)],
    }


def _read_record(entry: dict[str, Any], programs: Sequence[Program]) -> Record:
    start, stop = entry["segment"]
    inputs, outputs, counts, ask = (tuple(each) for each in entry["operands"])
    shapes = {number: tuple(shape) for number, shape in entry["shapes"]}
    program = None if entry["program"] is None else programs[entry["program"]]
    path = tuple(bytes.fromhex(key) for key in entry["path"])
    return Record(entry["index"], path, Segment(start, stop, None, shapes, inputs, outputs, counts, ask), program)


# Models


def _model(model: Model) -> dict[str, Any]:
    return {
        "subgraphs": [_subgraph(subgraph) for subgraph in subgraphs(model)],
        "relaxed": bool(model.relaxComputationFloat32toFloat16),
        "extensions": [(entry.name, entry.prefix) for entry in model.extensionNameToPrefix],
    }


def _subgraph(subgraph: Subgraph) -> dict[str, Any]:
    return {
        "operands": [_operand(operand) for operand in subgraph.operands],
        "operations": [(op.type, tuple(op.inputs), tuple(op.outputs)) for op in subgraph.operations],
        "inputs": list(subgraph.inputIndexes),
        "outputs": list(subgraph.outputIndexes),
    }


def _operand(operand: Operand) -> list[Any]:
    place, extra = operand.location, operand.extraParams
    quant = extra.channelQuant if extra else None
    blob = extra.extension if extra else None
    return [
        operand.type,
        list(operand.dimensions),
        operand.numberOfConsumers,
        operand.scale,
        operand.zeroPoint,
        operand.lifetime,
        [place.poolIndex, place.offset, place.length],
        None if quant is None else [list(quant.scales), quant.channelDim],
        None if blob is None else bytes(blob).hex(),
    ]


def _read_model(entry: dict[str, Any], values: memoryview) -> Model:
    main, *referenced = [_read_subgraph(each) for each in entry["subgraphs"]]
    names = [ExtensionNameAndPrefix(name, prefix) for name, prefix in entry["extensions"]]
    return Model(main, tuple(referenced), values, (), entry["relaxed"], tuple(names))


def _read_subgraph(entry: dict[str, Any]) -> Subgraph:
    operations = [Operation(kind, tuple(ins), tuple(outs)) for kind, ins, outs in entry["operations"]]
    return Subgraph(
        tuple(_read_operands(entry["operands"])), tuple(operations), tuple(entry["inputs"]), tuple(entry["outputs"])
    )


def _read_operands(entries: Iterable[list[Any]]) -> Iterable[Operand]:
    for kind, dims, consumers, scale, zero, lifetime, place, quant, blob in entries:
        channel = None if quant is None else SymmPerChannelQuantParams(tuple(quant[0]), quant[1])
        extra = ExtraParams(channel, None if blob is None else bytes.fromhex(blob)) if (quant or blob) else None
        yield Operand(kind, tuple(dims), consumers, scale, zero, OperandLifeTime(lifetime), DataLocation(*place), extra)
