"""IBuffer: device memory that the driver manages.

A buffer has contents, with their own dimensions if the roles leave some open, or it is uninitialised. Writers remove
the contents when they start and set new ones when they have succeeded. The lock is held only for changes of the state,
never during a transfer or an execution: clients that read and write concurrently get an error or undefined bytes, but
never wait.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..border import never_raises
from ..errors import StatusError, invalid_argument
from ..memory import Memory
from ..operations.view import Shape
from ..types import ErrorStatus
from ..validation.fields import U32, MalformedError, instance, integers
from .roles import Dims, Direction, Layout, Prepared, Roles, merge_dims

if TYPE_CHECKING:
    from npusim.runtime import DeviceBuffer, Executor


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an initialised buffer: device memory and dimensions.

    Device memory is freed when neither the buffer nor an execution refers to it.
    """

    memory: DeviceBuffer
    shape: Shape


class Buffer:
    """IBuffer of HAL 1.3. Requests refer to it by ``token``; dropping it frees its memory."""

    def __init__(self, executor: Executor, token: int, layout: Layout, roles: Roles) -> None:
        self.token = token
        self._executor = executor
        self._layout = layout
        self._roles = roles
        self._lock = threading.Lock()
        self._contents: Contents | None = None
        nbytes = layout.nbytes(layout.dims)
        self._memory = None if nbytes is None else executor.buffer(nbytes)  # allocated when the dimensions are known

    # The interface

    @never_raises()
    def copyTo(self, dst: Memory) -> ErrorStatus:
        """Copy the contents to shared memory of exactly their size."""
        self._check_available()
        # Read once and without the lock: contents are never changed, only replaced as a whole.
        contents = self._contents
        layout = self._layout
        nbytes = contents.memory.nbytes if contents else layout.nbytes(layout.dims)
        target = _memory(dst)
        target.check()
        if nbytes is not None and target.size != nbytes:
            raise invalid_argument(f"the memory must have the {nbytes} bytes of the buffer, got {target.size}")
        if contents is None:
            raise StatusError(ErrorStatus.GENERAL_FAILURE, f"buffer {self.token} is not initialised")
        view = target.map(writable=True)
        data = self._executor.read(contents.memory, contents.memory.nbytes)
        view.store(np.frombuffer(data, np.uint8))
        return ErrorStatus.NONE

    @never_raises()
    def copyFrom(self, src: Memory, dimensions: object = ()) -> ErrorStatus:
        """Fill the buffer from shared memory of exactly its size. ``dimensions`` may be empty if they are known.

        Any failure leaves the buffer uninitialised.
        """
        with self._lock:
            self._contents = None
        self._check_available()
        source = _memory(src)
        shape = self._copied_shape(dimensions)
        nbytes = self._layout.nbytes(shape)
        assert nbytes is not None
        source.check()
        if source.size != nbytes:
            raise invalid_argument(
                f"the memory must have {nbytes} bytes for dimensions {list(shape)}, got {source.size}"
            )
        view = source.map(writable=False)
        data = np.asarray(view)
        if self._layout.storage == np.bool_:
            data = (data != 0).view(np.uint8)  # any non-zero byte is true
        memory = self._room(nbytes)
        self._executor.write(memory, data.data)
        view.confirm()
        self._settle(Contents(memory, shape))
        return ErrorStatus.NONE

    def _check_available(self) -> None:
        if self._executor.status == "OFFLINE":
            raise StatusError(ErrorStatus.DEVICE_UNAVAILABLE, f"the device of buffer {self.token} is gone")

    def _copied_shape(self, dimensions: object) -> Shape:
        try:
            given = integers(dimensions, U32, "dimensions")
        except MalformedError as error:
            raise invalid_argument(str(error)) from None
        if given and 0 in given:
            raise invalid_argument(f"dimensions must be > 0, got {list(given)}")
        dims = merge_dims(self._layout.dims, given or None, f"buffer {self.token}")
        if dims is None or 0 in dims:
            raise invalid_argument(f"buffer {self.token} has unknown dimensions: they must be given")
        return dims

    # Executions

    def static_dims(self, prepared: Prepared, direction: Direction, index: int, given: Dims) -> Dims:
        """Check a use. Raises StatusError (INVALID_ARGUMENT) unless the role was requested and the dimensions are
        possible."""
        if prepared not in self._roles.get((direction, index), ()):
            raise invalid_argument(
                f"buffer {self.token} was not allocated for {direction} {index} of this prepared model"
            )
        return merge_dims(self._layout.dims, given, f"{direction} {index}")

    def read_contents(self, given: Dims, where: str) -> Contents:
        """The contents for an input. Raises StatusError: GENERAL_FAILURE if there are none, INVALID_ARGUMENT if their
        shape differs."""
        contents = self._contents
        if contents is None:
            raise StatusError(ErrorStatus.GENERAL_FAILURE, f"{where}: buffer {self.token} is not initialised")
        merge_dims(contents.shape, given, where)
        return contents

    def begin_write(self) -> None:
        """Mark the buffer as uninitialised, because an execution starts to write it."""
        with self._lock:
            self._contents = None

    def room(self, shape: Shape, nbytes: int, given: Dims) -> DeviceBuffer:
        """Device memory for an output of this shape. Raises StatusError (GENERAL_FAILURE) if the dimensions differ."""
        known = merge_dims(self._layout.dims, given, f"buffer {self.token}") or shape
        if len(known) != len(shape) or any(dim and dim != size for dim, size in zip(known, shape, strict=True)):
            raise StatusError(
                ErrorStatus.GENERAL_FAILURE,
                f"a result of shape {list(shape)} does not fit buffer {self.token} of dimensions {list(known)}",
            )
        return self._room(nbytes)

    def end_write(self, contents: Contents | None) -> None:
        """Store the contents that an execution has written; None if it failed."""
        self._settle(contents)

    def _room(self, nbytes: int) -> DeviceBuffer:
        with self._lock:
            memory = self._memory
            if memory is not None and memory.nbytes == nbytes:
                return memory
            self._memory = self._contents = None
        del memory  # the old memory may be freed before the new one is allocated
        memory = self._executor.buffer(nbytes)
        with self._lock:
            self._memory = memory
        return memory

    def _settle(self, contents: Contents | None) -> None:
        with self._lock:
            self._contents = contents
            if contents is not None:
                self._memory = contents.memory


class InputUse:
    """A buffer as an input of one execution. ``buffer`` and ``shape`` are known once the execution has started."""

    def __init__(self, held: Buffer, given: Dims, where: str) -> None:
        self._held = held
        self._given = given
        self._where = where
        self._contents: Contents | None = None

    def start(self) -> None:
        """Acquire the contents."""
        self._contents = self._held.read_contents(self._given, self._where)

    def release(self) -> None:
        """Release the contents."""
        self._contents = None

    @property
    def shape(self) -> Shape | None:
        """Dimensions of the contents; None before the start."""
        return self._contents.shape if self._contents else None

    @property
    def buffer(self) -> DeviceBuffer:
        """The device memory of the contents."""
        if self._contents is None:
            raise RuntimeError(f"{self._where}: the execution has not started")
        return self._contents.memory


class OutputUse:
    """A buffer as an output of one execution."""

    def __init__(self, held: Buffer, given: Dims) -> None:
        self._held = held
        self._given = given
        self._memory: DeviceBuffer | None = None

    def start(self) -> None:
        """Mark the start of the execution."""
        self._held.begin_write()

    def target(self, shape: Shape, nbytes: int) -> DeviceBuffer:
        """The device memory for an output of this shape. Raises StatusError (GENERAL_FAILURE) if it does not fit."""
        self._memory = self._held.room(shape, nbytes, self._given)
        return self._memory

    def finish(self, shape: Shape | None) -> None:
        """Mark the end of the execution. ``shape``: of the output, None if the execution failed."""
        memory, self._memory = self._memory, None
        if shape is None:
            self._held.end_write(None)
            return
        if memory is None:
            if 0 not in shape:
                raise RuntimeError(f"an output of shape {list(shape)} has nowhere been stored")
            memory = self._held.room(shape, 0, self._given)  # empty outputs are not written
        self._held.end_write(Contents(memory, shape))


def _memory(memory: object) -> Memory:
    try:
        return instance(memory, Memory, "memory")
    except MalformedError as error:
        raise invalid_argument(str(error)) from None
