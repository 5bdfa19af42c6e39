"""The border with C: words become arguments, exceptions become result codes.

A function is declared by its name and a description of each parameter, in the order of the C prototype::

    @entry("ANeuralNetworksModel_addOperand", handle(Kind.Model), structure(read_operand_type))
    def add_operand(model: Model, operand_type: OperandTypeValue) -> None: ...

A parameter is described by a function of (word, its name in messages).
"""

from __future__ import annotations

import ctypes
import inspect
import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..aidl.types import ServiceSpecificException
from ..border import said, verdict
from . import pointers
from .codes import ApiError, ResultCode, code_of
from .handles import TABLE, Kind

T = TypeVar("T")
Parameter = Callable[[int, str], Any]
_log = logging.getLogger("hal.nnapi.capi")


class Out(Generic[T]):
    """The address of a result."""

    def __init__(self, address: int, write: Callable[[int, Any], None]) -> None:
        self.address = address
        self._write = write

    def set(self, value: T) -> None:
        """Write the result to the client's memory."""
        self._write(self.address, value)


_write_pointer = pointers.writer(ctypes.c_uint64)


def handle(kind: Kind) -> Parameter:
    """A handle that must exist."""
    return lambda word, what: TABLE.get(kind, word & _U64, what)


def freed(kind: Kind) -> Parameter:
    """A handle that is freed by the call. NULL is allowed and gives None."""
    return lambda word, what: TABLE.pop(kind, word & _U64, what) if word else None


def structure(read: Callable[[int, str], T]) -> Callable[[int, str], T]:
    """A pointer to a structure that must be there."""
    return lambda word, what: read(word & _U64, what)


def optional(read: Callable[[int, str], T]) -> Callable[[int, str], T | None]:
    """A pointer to a structure, or NULL, which gives None."""
    return lambda word, what: read(word & _U64, what) if word else None


def i32(word: int, what: str) -> int:
    """int32_t, int."""
    # A 32-bit argument uses the low half of a register; the upper half is undefined.
    return (word + (1 << 31) & 0xFFFF_FFFF) - (1 << 31)


def u32(word: int, what: str) -> int:
    """uint32_t."""
    return word & 0xFFFF_FFFF


def u16(word: int, what: str) -> int:
    """uint16_t."""
    return word & 0xFFFF


def u64(word: int, what: str) -> int:
    """uint64_t, size_t."""
    return word & _U64


def boolean(word: int, what: str) -> bool:
    """bool."""
    # Only the lowest byte of a bool is defined.
    return bool(word & 0xFF)


def f32(word: int, what: str) -> float:
    """float; its bits are the low half of the word."""
    number: float = struct.unpack("<f", struct.pack("<I", word & 0xFFFF_FFFF))[0]
    return number


def address(word: int, what: str) -> int:
    """A pointer that may be NULL."""
    return word & _U64


def pointer(word: int, what: str) -> int:
    """A pointer that must not be NULL."""
    return pointers.require(word & _U64, what)


def out(kind: Any) -> Parameter:
    """A pointer parameter to which a plain result is written."""
    write = pointers.writer(kind)
    return lambda word, what: Out(pointers.require(word & _U64, what), write)


@dataclass(frozen=True, slots=True)
class NewHandle:
    """A pointer parameter to which the handle of the returned object is written; NULL if the function fails."""

    kind: Kind

    def __call__(self, word: int, what: str) -> Out[Any]:
        place = pointers.require(word & _U64, what)
        return Out(place, lambda address, thing: _write_pointer(address, TABLE.add(self.kind, thing)))


@dataclass(frozen=True, slots=True)
class Entry:
    """A function of the C API that returns a result code, or nothing."""

    name: str
    parameters: Sequence[Parameter]
    names: Sequence[str]
    run: Callable[..., Any]

    def arguments(self, words: Sequence[int]) -> list[Any]:
        """Convert the words to arguments. Raises ApiError; NULL arguments are reported before wrong ones."""
        for parameter, word in zip(self.parameters, words, strict=True):
            # Before anything can fail, so that a client never reads an uninitialised handle.
            if isinstance(parameter, NewHandle) and word:
                _write_pointer(word & _U64, 0)
        found, wrong = [], None
        for parameter, word, name in zip(self.parameters, words, self.names, strict=True):
            try:
                found.append(parameter(word, name))
            except ApiError as error:
                if error.code is ResultCode.UNEXPECTED_NULL:
                    raise
                wrong = wrong or error
        if wrong is not None:
            raise wrong
        return found

    def answer(self, words: Sequence[int]) -> None:
        """Call the function and store its results."""
        arguments = self.arguments(words)
        if self.parameters and isinstance(self.parameters[-1], NewHandle):
            *arguments, new = arguments
            new.set(self.run(*arguments))
        else:
            self.run(*arguments)


ENTRIES: dict[str, Entry] = {}
"""Every function by name; the ``functions_*`` modules fill it."""


def entry(name: str, *parameters: Parameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function of the C API. Its Python parameters have the names of the C prototype; ``self`` of a method
    has the name of its class, and the pointer to a new handle that of the object."""

    def declare(run: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(run).parameters)
        if names[:1] == ["self"]:
            names[0] = run.__qualname__.partition(".")[0].lower()
        if parameters and isinstance(parameters[-1], NewHandle):
            names.append(parameters[-1].kind.name.lower())
        if len(names) != len(parameters) or name in ENTRIES:
            raise TypeError(f"{name}: {len(parameters)} parameters are described, the function has {names}")
        ENTRIES[name] = Entry(name, parameters, names, run)
        return run

    return declare


def call(name: str, words: Sequence[int]) -> int:
    """Call a function. Exceptions become a result code and a line in the log."""
    try:
        ENTRIES[name].answer(words)
        return int(ResultCode.NO_ERROR)
    except ApiError as error:
        return _failed(name, error.code, error.message)
    except ServiceSpecificException as error:
        return _failed(name, code_of(error.errorCode), error.message)
    except MemoryError:
        return _failed(name, ResultCode.OUT_OF_MEMORY, "the host has no memory left")
    except Exception as error:  # noqa: BLE001 - C cannot catch it
        expected, status = verdict(error)
        return _failed(name, code_of(status), said(error), None if expected else error)


def _failed(name: str, code: ResultCode, message: str, defect: Exception | None = None) -> int:
    level = logging.ERROR if defect else logging.WARNING
    _log.log(level, "%s: %s: %s", name, code.name, message, exc_info=defect)
    return int(code)


_U64 = 0xFFFF_FFFF_FFFF_FFFF
