"""Convert an execution's arguments to a request to the driver. Client buffers go through one block of shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.units import ceil_div

from ..aidl.types import OMITTED, Request, RequestMemoryPool
from ..types import DataLocation, RequestArgument
from . import pointers
from .arguments import Argument, AtMemory, AtPointer, Omitted
from .memory import RoleMemory, SharedMemory, anonymous

_ALIGNMENT = 64


class Staging:
    """Shared memory for arguments of an execution in client memory."""

    def __init__(self, inputs: Sequence[Argument], outputs: Sequence[Argument]) -> None:
        self._inputs = [argument for argument in inputs if isinstance(argument, AtPointer)]
        self._outputs = outputs
        self._offsets: dict[int, int] = {}
        size = 0
        for argument in (*inputs, *outputs):
            if isinstance(argument, AtPointer):
                self._offsets[id(argument)] = size
                size += ceil_div(argument.length, _ALIGNMENT) * _ALIGNMENT
        self.memory = anonymous(size) if self._offsets else None
        self._mapping = self.memory.shared.map() if self.memory else None

    def place(self, argument: Argument) -> Argument:
        """The argument as the driver sees it."""
        if not isinstance(argument, AtPointer):
            return argument
        assert self.memory is not None
        return AtMemory(self.memory, self._offsets[id(argument)], argument.length, argument.size, argument.dims)

    def take_in(self) -> None:
        """Copy the inputs from the client."""
        # For every computation, because the client may have written new inputs to the same place.
        for argument in self._inputs:
            pointers.copy(self._base + self._offsets[id(argument)], argument.address, argument.size)

    def give_out(self, sizes: Sequence[int | None]) -> None:
        """Copy the outputs to client memory: the given number of bytes of each, limited by its buffer."""
        for argument, size in zip(self._outputs, sizes, strict=True):
            if isinstance(argument, AtPointer):
                count = argument.size if size is None else min(size, argument.length)
                pointers.copy(argument.address, self._base + self._offsets[id(argument)], count)

    @property
    def _base(self) -> int:
        assert self._mapping is not None
        return int(self._mapping.ctypes.data)


class RequestBuilder:
    """Builds a request. ``tokens``: the key of each pool in a burst, for memory objects of the client."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._pools: list[RequestMemoryPool] = []
        self._index: dict[int, int] = {}

    def build(self, inputs: Sequence[Argument], outputs: Sequence[Argument]) -> Request:
        """The request for arguments in memory objects."""
        return Request(
            [self._argument(each) for each in inputs], [self._argument(each) for each in outputs], self._pools
        )

    def _argument(self, argument: Argument) -> RequestArgument:
        if isinstance(argument, Omitted):
            return RequestArgument(True)
        assert isinstance(argument, AtMemory)
        pool = self._pool(argument.memory)
        memory = argument.memory
        if isinstance(memory, RoleMemory) and memory.backing is not None:
            return RequestArgument(False, DataLocation(pool, 0, memory.backing.size), argument.dims)
        padding = argument.length - argument.size
        return RequestArgument(False, DataLocation(pool, argument.offset, argument.size, padding), argument.dims)

    def _pool(self, memory: SharedMemory | RoleMemory) -> int:
        known = memory if isinstance(memory, SharedMemory) else memory.backing or memory
        if known.serial not in self._index:
            self._index[known.serial] = len(self._pools)
            if isinstance(known, SharedMemory):
                self._pools.append(RequestMemoryPool(pool=known.shared))  # type: ignore[arg-type]
                self.tokens.append(OMITTED if known.internal else known.serial)
            else:
                assert known.device is not None
                self._pools.append(RequestMemoryPool(token=known.device.token))
                self.tokens.append(OMITTED)
        return self._index[known.serial]
