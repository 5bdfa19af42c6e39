"""Type signatures of operations, written as text and expanded to the set of all legal combinations.

A signature is a line of words, one per operand: a lower-case letter is a scalar (``i`` INT32, ``f`` FLOAT32, ``h``
FLOAT16, ``b`` BOOL, ``u`` UINT32); any other word is a name that the rows bind to a type, or an abbreviation of TYPES.
``x*4`` repeats a word; ``[ ... ]`` encloses an optional end and may be nested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..types import OperandType as T
from ..types import OperationType

Types = tuple[int, ...]
Form = tuple[Types, Types]
"""Types of the inputs and of the outputs."""
Row = Mapping[str, int]

F32, F16, I32, BOOL8 = T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_BOOL8
Q8, Q8S = T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYMM, Q8C = T.TENSOR_QUANT8_SYMM, T.TENSOR_QUANT8_SYMM_PER_CHANNEL
Q16, Q16S = T.TENSOR_QUANT16_ASYMM, T.TENSOR_QUANT16_SYMM

_SCALARS = {"i": T.INT32, "f": T.FLOAT32, "h": T.FLOAT16, "b": T.BOOL, "u": T.UINT32}
_TENSORS = {"F32": F32, "F16": F16, "I32": I32, "BOOL8": BOOL8}
_QUANTISED = {"Q8": Q8, "Q8S": Q8S, "Q8SYMM": Q8SYMM, "Q8C": Q8C, "Q16": Q16, "Q16S": Q16S}
TYPES: Mapping[str, int] = _SCALARS | _TENSORS | _QUANTISED

FLOATS = (F32, F16)
QUANT8 = (Q8, Q8S)
SCALAR_OF: Mapping[int, int] = {F32: T.FLOAT32, F16: T.FLOAT16, I32: T.INT32}
"""The scalar type of a tensor type."""


def rows(name: str, types: Iterable[int]) -> list[Row]:
    """One row for each type of ``name``."""
    return [{name: each} for each in types]


def forms(inputs: str, outputs: str, table: Sequence[Row] = ({},)) -> frozenset[Form]:
    """All combinations of the signature lines, with names bound by each row of the table."""
    shapes = _expand(inputs.replace("[", " [ ").replace("]", " ] ").split())
    results = outputs.split()
    return frozenset((_bind(shape, row), _bind(_expand(results)[0], row)) for shape in shapes for row in table)


def _expand(words: Sequence[str]) -> list[list[str]]:
    """The words with none, one, two, ... of the optional ends."""
    lists: list[list[str]] = []
    current: list[str] = []
    for word in words:
        if word == "[":
            lists.append(list(current))
        elif word != "]":
            name, _, count = word.partition("*")
            current += [name] * int(count or 1)
    return [*lists, current]


def _bind(words: Sequence[str], row: Row) -> Types:
    return tuple(row[word] if word in row else TYPES[word] for word in words)


def type_name(code: int) -> str:
    """The name of an operand type, or its number if it is unknown."""
    try:
        return T(code).name
    except ValueError:
        return f"type {code:#x}"


def operation_name(code: int) -> str:
    """The name of an operation type, or its number if it is unknown."""
    try:
        return OperationType(code).name
    except ValueError:
        return f"type {code:#x}"
