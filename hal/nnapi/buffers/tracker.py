"""The buffers of one device: allocation, tokens, and their uses in executions."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..border import status_of
from ..errors import invalid_argument
from ..operations.view import Shape
from ..types import ErrorStatus, MemoryPool, Operand, Request, RequestArgument
from .buffer import Buffer, InputUse, OutputUse
from .roles import Dims, Direction, Prepared, check_allocation, merge_dims

if TYPE_CHECKING:
    from npusim.runtime import Executor

MAX_TOKEN = (1 << 32) - 1
_ALLOWED = (ErrorStatus.DEVICE_UNAVAILABLE, ErrorStatus.INVALID_ARGUMENT)


class BufferTracker:
    """Finds live buffers by their tokens. It keeps no buffer alive."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        # Weak references: a client frees a buffer by dropping it, and a running execution holds the memory itself.
        self._live: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
        self._tokens = itertools.cycle(range(1, MAX_TOKEN + 1))  # reuse a token as late as possible
        self._lock = threading.Lock()

    def allocate(
        self, desc: object, preparedModels: object, inputRoles: object, outputRoles: object
    ) -> tuple[ErrorStatus, Buffer | None, int]:
        """``IDevice.allocate``: (status, buffer, token). Never raises; failures other than invalid arguments or an
        absent device are GENERAL_FAILURE, because the interface has no other status here."""
        try:
            layout, roles = check_allocation(self, desc, preparedModels, inputRoles, outputRoles)
            with self._lock:
                token = next(token for token in self._tokens if token not in self._live)
            buffer = self._live[token] = Buffer(self._executor, token, layout, roles)
        except Exception as error:  # noqa: BLE001 - this is the border
            status = status_of(error, "allocate")
            return status if status in _ALLOWED else ErrorStatus.GENERAL_FAILURE, None, 0
        return ErrorStatus.NONE, buffer, token

    def find(self, token: int) -> Buffer:
        """The buffer with this token. Raises StatusError (INVALID_ARGUMENT) if there is none."""
        buffer = self._live.get(token)
        if buffer is None:
            raise invalid_argument(f"there is no buffer with token {token}")
        return buffer

    def check_token(self, token: int) -> None:
        """Raise StatusError (INVALID_ARGUMENT) if no buffer has this token."""
        self.find(token)

    def uses(self, prepared: Prepared, request: Request) -> BufferUses:
        """The buffers that a request uses, checked against their roles. ``request`` has passed all other rules.

        Raises StatusError (INVALID_ARGUMENT).
        """
        buffers = {number: self.find(token) for number, token in _tokens(request)}
        return BufferUses(prepared, request, buffers)


class BufferUses:
    """The buffers of one execution by argument: ``inputs`` and ``outputs``. Call ``start`` immediately before the work,
    after all waits, and ``finish`` afterwards."""

    def __init__(self, prepared: Prepared, request: Request, buffers: dict[int, Buffer]) -> None:
        self._prepared = prepared
        self._buffers = buffers
        self.inputs: dict[int, InputUse] = {}
        self.outputs: dict[int, OutputUse] = {}
        if not buffers:
            return
        main = prepared.model.main
        used: set[int] = set()
        for index, argument in enumerate(request.inputs):
            found = self._find("input", index, argument, main.operands[main.inputIndexes[index]])
            if found:
                self.inputs[index] = InputUse(*found, f"input {index}")
                used.add(found[0].token)
        for index, argument in enumerate(request.outputs):
            found = self._find("output", index, argument, main.operands[main.outputIndexes[index]])
            if found:
                self.outputs[index] = OutputUse(*found)
                # If one buffer is read and written, or written twice, its contents would depend on the order of
                # transfers.
                if found[0].token in used:
                    raise invalid_argument(
                        f"output {index} lies in buffer {found[0].token}, which another argument uses as well"
                    )
                used.add(found[0].token)

    def _find(
        self, direction: Direction, index: int, argument: RequestArgument, operand: Operand
    ) -> tuple[Buffer, Dims] | None:
        buffer = None if argument.hasNoValue else self._buffers.get(argument.location.poolIndex)
        if buffer is None:
            return None
        given = merge_dims(
            tuple(operand.dimensions) or None, tuple(argument.dimensions) or None, f"{direction} {index}"
        )
        buffer.static_dims(self._prepared, direction, index, given)
        return buffer, given

    def start(self) -> None:
        """Acquire the inputs, and invalidate the contents of the outputs.

        Raises StatusError: GENERAL_FAILURE if an input has no contents, INVALID_ARGUMENT if their shape differs from
        the argument's.
        """
        for read in self.inputs.values():
            read.start()
        for write in self.outputs.values():
            write.start()

    def finish(self, shapes: Sequence[Shape] | None) -> None:
        """Mark the end of the execution. ``shapes``: of the outputs, or None if it failed or never ran."""
        for index, write in self.outputs.items():
            write.finish(None if shapes is None else tuple(shapes[index]))
        for read in self.inputs.values():
            read.release()


def _tokens(request: Request) -> list[tuple[int, int]]:
    """(pool index, token) of the pools that are buffers."""
    found = []
    for number, pool in enumerate(request.pools):
        token = pool.token if isinstance(pool, MemoryPool) else pool
        if isinstance(token, int):
            found.append((number, token))
    return found
