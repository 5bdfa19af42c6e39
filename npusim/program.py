"""Program: the output of the compiler, as stored in cache files and loaded by drivers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from npusim import notebook
from npusim.dtypes import DType, raw_bytes
from npusim.errors import UsageError, named, shown
from npusim.graph import HostPart
from npusim.weights import owner

CONSTANTS = 0
"""Region of the constants: read-only, written when the program is loaded."""
SCRATCH = 1
"""Region of intermediate values."""
FIRST_IO = 2
"""First region of inputs and outputs: one per input, then one per output."""


@runtime_checkable
class Cuttable(Protocol):
    """Memory that may be truncated: a mapped file."""

    @property
    def cut(self) -> bool:
        """Whether bytes were read that did not exist."""

    def check(self) -> None:
        """Raise FileCutError if bytes were read that did not exist."""


class Deferred:
    """A piece that is computed each time it is read; the same interface as an array.

    ``make(*arrays)`` returns its bytes, ``nbytes`` of them; its arrays may be deferred, too.
    """

    __slots__ = ("_make", "arrays", "nbytes")

    dtype = np.dtype(np.uint8)

    def __init__(self, make: Callable[..., npt.NDArray[np.uint8]], arrays: Sequence[Piece], nbytes: int) -> None:
        self._make = make
        self.arrays = tuple(arrays)
        self.nbytes = nbytes

    @property
    def size(self) -> int:
        return self.nbytes

    @property
    def shape(self) -> tuple[int]:
        return (self.nbytes,)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self._make(*self.arrays), dtype)


Piece = npt.NDArray[Any] | Deferred


class ConstantData:
    """The contents of the constants region: ``nbytes`` bytes, zero between the pieces.

    ``pieces``: (offset, array) in order. An array may be :class:`Deferred`, not contiguous, or a view of other memory
    such as a mapped file. It is read when the bytes are needed, and must not change. ``left_out``: the constants of a
    timing-only program, which has no bytes.
    """

    __slots__ = ("_files", "left_out", "nbytes", "pieces")

    def __init__(self, nbytes: int, pieces: Sequence[tuple[int, Piece]], *, left_out: bool = False) -> None:
        self.nbytes = nbytes
        self.pieces = tuple(pieces)
        self.left_out = left_out
        # Each file once, however many pieces it has, because the check is a system call.
        sources = {id(source): source for source in map(owner, _arrays(pieces))}
        self._files = [source for source in sources.values() if isinstance(source, Cuttable)]

    @classmethod
    def of(cls, data: npt.NDArray[np.uint8]) -> Self:
        """A single piece."""
        return cls(data.size, [(0, data)])

    @property
    def held_bytes(self) -> int:
        """Upper bound of the memory that they use, in bytes."""
        return 0 if self.left_out else self.nbytes

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        """Write all bytes to an array. Raises FileCutError; UsageError for left-out constants."""
        self.check_there()
        end = 0
        for offset, piece in self.pieces:
            out[end:offset] = 0
            end = offset + piece.nbytes
            out[offset:end].view(piece.dtype).reshape(piece.shape)[...] = piece
        out[end:] = 0
        self.check()

    def check_there(self) -> None:
        """Raise UsageError for left-out constants."""
        if self.left_out:
            raise UsageError("the program was compiled for timing alone, without its constants: compile it to compute")

    def check(self) -> None:
        """Raise FileCutError if a file was truncated while its bytes were read."""
        for file in self._files:
            file.check()

    @property
    def lost(self) -> bool:
        """Whether that has happened, so that the contents are no longer those of the file."""
        return any(file.cut for file in self._files)

    def parts(self) -> Iterator[npt.NDArray[np.uint8]]:
        """All bytes in order, by piece or gap. None for left-out constants."""
        if self.left_out:
            return
        end = 0
        for offset, piece in self.pieces:
            if offset > end:
                yield np.zeros(offset - end, np.uint8)
            end = offset + piece.nbytes
            yield raw_bytes(np.asarray(piece))
        if end < self.nbytes:
            yield np.zeros(self.nbytes - end, np.uint8)

    def joined(self) -> npt.NDArray[np.uint8]:
        """All bytes as one array, copied only if there are several pieces. None for left-out constants."""
        parts = list(self.parts())
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.uint8), *parts])


def _arrays(pieces: Iterable[tuple[int, Piece]]) -> Iterator[npt.NDArray[Any]]:
    """All arrays that are read for the pieces, including those of deferred pieces."""
    for offset, piece in pieces:
        if isinstance(piece, Deferred):
            yield from _arrays((offset, part) for part in piece.arrays)
        else:
            yield piece


@dataclass(frozen=True, slots=True)
class Binding:
    """An input or output of a program: row-major elements at the start of its region.

    ``capacity``: rows along ``axis`` if an input and an output share a region: the input is its first rows, the output
    has more of them. 0: elements are contiguous. ``nbytes``: of the region.
    """

    name: str
    region: int
    shape: tuple[int, ...]
    dtype: DType
    axis: int = 0
    capacity: int = 0
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", math.prod(self.held) * self.dtype.itemsize)

    @property
    def held(self) -> tuple[int, ...]:
        """The shape at full capacity."""
        if not self.capacity:
            return self.shape
        return (*self.shape[: self.axis], self.capacity, *self.shape[self.axis + 1 :])

    def elements(self, region: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The elements as a view of the first ``nbytes`` bytes of the region."""
        held = region[: self.nbytes].view(self.dtype.storage).reshape(self.held)
        # The ellipsis also gives a view of a scalar.
        first: tuple[Any, ...] = (*map(slice, self.shape), ...)
        found: npt.NDArray[Any] = held[first]
        return found

    def __str__(self) -> str:
        """For people: ``x float32[1, 3, 224, 224]``."""
        name = named(self.name)
        return f"{name} {self.dtype.label}{list(self.shape)}"


def _listed(bindings: Sequence[Binding]) -> str:
    """A few of them as text, because a network may have hundreds."""
    more = [f"{len(bindings) - 3} more"] if len(bindings) > 4 else []
    first = bindings[:3] if more else bindings
    return ", ".join([*map(str, first), *more]) or "nothing"


@dataclass(frozen=True, slots=True)
class OpEntry:
    """A row of the operator table: the meaning of an operator index in a command.

    ``members``: names of the model operators in it; empty if unknown. ``result``: the type of its (first) result as
    text, such as ``int8[1, 28, 28, 16]``; empty if unknown or without one.
    """

    name: str
    kind: str
    members: tuple[str, ...] = ()
    result: str = ""


MEMORIES = ("sram", "accumulators", "dram", "l2")
"""Memories of a :class:`Place`; in DRAM, the region SCRATCH."""
PLACE_KINDS = ("value", "window", "weights", "tile", "sums")
"""Contents of a place: a whole value, a rolling buffer, weights, a tile, partial sums."""
EVERY = -1
"""A place on every core that works for its operators."""


class Place(NamedTuple):
    """Bytes ``offset`` to ``offset + nbytes`` of a memory and their contents from the first instruction of operator
    ``first`` to the last one of operator ``last``. A later place at the same bytes replaces it.

    ``memory``: of MEMORIES. ``core``: its core, or EVERY; 0 for DRAM and L2. ``kind``: of PLACE_KINDS. ``name``: of the
    value, if it is one.
    """

    memory: str
    core: int
    kind: str
    name: str
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class Program:
    """A compiled model. ``region_bytes[r]`` is the minimum size of region r.

    ``code``: the instruction stream (see npusim.isa). ``constants``: the contents of region CONSTANTS. ``macs``:
    multiply-accumulates of the matrix unit by element type. ``bound``: model inputs that are constants of the program,
    with their values. ``resident_bytes``: size of the pinned weights, which stay in SRAM between runs. ``from_cache``:
    read from a file. ``host``: work of the host for each run. ``places``: the memory map; empty if it would be too
    large. ``emitted``: the commands of the compiler, kept as long as the program; None for a program from a file.
    """

    name: str
    config_name: str
    config_fingerprint: str
    key: str
    code: bytes
    constants: ConstantData
    region_bytes: tuple[int, ...]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    ops: tuple[OpEntry, ...]
    commands: int
    macs: tuple[tuple[DType, int], ...]
    bound: tuple[tuple[str, str], ...] = ()
    resident_bytes: int = 0
    from_cache: bool = False
    places: tuple[Place, ...] = ()
    host: HostPart = field(default_factory=HostPart)
    emitted: object = field(default=None, repr=False)

    @property
    def timing_only(self) -> bool:
        """Whether it can only be timed, because its constants were left out."""
        return self.constants.left_out

    @property
    def states(self) -> tuple[tuple[Binding, Binding], ...]:
        """Inputs that grow to outputs in place."""
        outputs = {binding.region: binding for binding in self.outputs}
        return tuple((binding, outputs[binding.region]) for binding in self.inputs if binding.region in outputs)

    def __repr__(self) -> str:
        counts = f"instructions {self.commands}, operators {len(self.ops)}"
        ways = f"{_listed(self.inputs)} -> {_listed(self.outputs)}"
        return f"<Program {shown(self.name)} for {shown(self.config_name)}: {counts}, {ways}>"

    def _repr_html_(self) -> str:
        sizes = self.describe()
        rows = [
            ("device", shown(sizes["config"])),
            ("instructions", f"{sizes['commands']}, {sizes['code_bytes']} bytes"),
            ("operators", str(len(self.ops))),
            ("constants", f"{sizes['constant_bytes']} bytes"),
            ("scratch", f"{sizes['scratch_bytes']} bytes"),
            *([("resident weights", f"{self.resident_bytes} bytes")] if self.resident_bytes else []),
            ("inputs", _listed(self.inputs)),
            ("outputs", _listed(self.outputs)),
        ]
        return notebook.table(f"Program {shown(self.name)}", rows)

    def describe(self) -> dict[str, Any]:
        """Sizes for reports, in bytes."""
        return {
            "name": self.name,
            "config": self.config_name,
            "commands": self.commands,
            "code_bytes": len(self.code),
            "constant_bytes": int(self.constants.nbytes),
            "scratch_bytes": self.region_bytes[SCRATCH],
            "resident_bytes": self.resident_bytes,
        }
