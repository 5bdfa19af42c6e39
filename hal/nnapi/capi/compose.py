"""Convert a finished model and the models that it refers to into one model of the AIDL interface."""

from __future__ import annotations

from typing import TypeVar

from npusim.units import ceil_div

from .. import types
from ..aidl import types as aidl_types
from ..aidl.types import OperandLifeTime as LifeTime
from ..extensions.registry import CODE_BITS
from ..memory import Memory
from ..types import DataLocation
from . import extensions
from .operands import BuiltModel, BuiltOperand, Copied, InMemory, Missing, Pointed, Referenced

T = TypeVar("T")
_ALIGNMENT = 8


def compose(main: BuiltModel) -> aidl_types.Model:
    """Build one model from a main model and all models that it refers to, directly or not. Its pools are plain Memory
    objects."""
    return _Composer().compose(main)


class _Composer:
    def __init__(self) -> None:
        self._values = bytearray()
        self._pools: list[Memory] = []
        self._pool_of: dict[int, int] = {}
        self._models: list[BuiltModel] = []
        self._place_of: dict[int, int] = {}
        self._prefixes: set[int] = set()

    def compose(self, main: BuiltModel) -> aidl_types.Model:
        top = self._subgraph(main)
        referenced = []
        number = 0
        while number < len(self._models):  # referenced models may refer to more models
            referenced.append(self._subgraph(self._models[number]))
            number += 1
        names = [entry for entry in extensions.known() if entry.prefix in self._prefixes]
        return aidl_types.Model(
            top,
            referenced,
            bytes(self._values),
            self._pools,  # type: ignore[arg-type]
            main.relaxed,
            names,
        )

    def _subgraph(self, model: BuiltModel) -> aidl_types.Subgraph:
        roles = {
            **dict.fromkeys(model.inputs, LifeTime.SUBGRAPH_INPUT),
            **dict.fromkeys(model.outputs, LifeTime.SUBGRAPH_OUTPUT),
        }
        operands = [self._operand(operand, roles.get(index)) for index, operand in enumerate(model.operands)]
        operations = []
        for number in model.order:
            added = model.operations[number]
            self._note(added.type)
            operations.append(types.Operation(added.type, added.inputs, added.outputs))
        return aidl_types.Subgraph(operands, operations, model.inputs, model.outputs)

    def _operand(self, built: BuiltOperand, role: LifeTime | None) -> aidl_types.Operand:
        self._note(built.type)
        lifetime, place = self._place(built)
        return aidl_types.Operand(
            built.type,
            built.dimensions,
            built.scale,
            built.zeroPoint,
            lifetime if role is None else role,
            place,
            built.extra,
        )

    def _place(self, built: BuiltOperand) -> tuple[LifeTime, DataLocation]:
        value = built.value
        match value:
            case Copied(data):
                offset = ceil_div(len(self._values), _ALIGNMENT) * _ALIGNMENT
                self._values += bytes(offset - len(self._values)) + data
                return LifeTime.CONSTANT_COPY, DataLocation(0, offset, len(data))
            case InMemory(memory, offset, length):
                pool = _number_of(memory.shared, self._pools, self._pool_of)
                return LifeTime.CONSTANT_POOL, DataLocation(pool, offset, length)
            case Referenced(model):
                return LifeTime.SUBGRAPH, DataLocation(0, _number_of(model, self._models, self._place_of), 0)
            case Missing():
                return LifeTime.NO_VALUE, DataLocation()
            case Pointed():
                raise TypeError("a value in the client's memory was not taken over before the model was composed")
        return LifeTime.TEMPORARY_VARIABLE, DataLocation()

    def _note(self, kind: int) -> None:
        prefix = kind >> CODE_BITS
        if prefix and kind < 1 << 31:
            self._prefixes.add(prefix)


def _number_of(thing: T, things: list[T], numbers: dict[int, int]) -> int:
    """The index of an object in the list; a new object is appended."""
    if id(thing) not in numbers:
        numbers[id(thing)] = len(things)
        things.append(thing)
    return numbers[id(thing)]
