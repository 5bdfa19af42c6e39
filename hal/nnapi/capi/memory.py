"""ANeuralNetworksMemory: shared memory of a file, and device-managed memory for given roles."""

from __future__ import annotations

import itertools
from typing import Any

from .. import memory as shared
from ..aidl.types import DeviceBuffer
from ..errors import StatusError
from ..types import ErrorStatus
from .codes import ApiError, ResultCode, bad_data
from .kinds import Dims, merged, nbytes

_serials = itertools.count(1)


class SharedMemory:
    """Mapped bytes of a file. ``serial`` identifies it in bursts, unless it belongs to the runtime (``internal``)."""

    def __init__(self, memory: shared.Memory, *, internal: bool = False) -> None:
        self.shared = memory
        self.internal = internal
        self.serial = next(_serials)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.shared.size

    def check_range(self, offset: int, length: int) -> None:
        """Raise ApiError (BAD_DATA) for a range outside of the memory, and for offset 0 and length 0."""
        if not offset and not length:
            raise bad_data("offset and length must not both be 0 for memory of a file")
        if offset + length > self.size:
            raise bad_data(f"{length} bytes at offset {offset} do not lie in the memory of {self.size} bytes")


def from_fd(size: int, protect: int, fd: int, offset: int) -> SharedMemory:
    """Memory of a file. Raises ApiError: BAD_DATA for a range outside of it, UNMAPPABLE if it cannot be mapped."""
    if fd < 0 or not size:
        raise bad_data(f"memory needs a descriptor >= 0 and a size > 0, got descriptor {fd} and {size} bytes")
    try:
        memory = shared.from_fd(size, protect, fd, offset)
        memory.map()
    except StatusError as error:
        unmappable = error.status is ErrorStatus.GENERAL_FAILURE
        raise ApiError(ResultCode.UNMAPPABLE if unmappable else ResultCode.BAD_DATA, error.message) from None
    return SharedMemory(memory)


def anonymous(size: int) -> SharedMemory:
    """Anonymous memory of zeros, for the runtime itself."""
    return SharedMemory(shared.allocate_ashmem(max(size, 1)), internal=True)


class RoleMemory:
    """Memory created from a descriptor: in a device, or shared memory if the roles are on several devices.

    ``device``: the driver's buffer or None. ``backing``: the shared memory or None. ``dims``: permanently known
    dimensions. ``contents``: dimensions of the current contents, None while uninitialised.
    """

    def __init__(
        self,
        roles: frozenset[tuple[int, str, int]],
        kind: int,
        dims: Dims,
        device: DeviceBuffer | None,
        backing: SharedMemory | None,
    ) -> None:
        self.roles = roles
        self.type = kind
        self.dims = dims
        self.device = device
        self.backing = backing
        self.contents: Dims | None = None
        self.serial = next(_serials)

    def check_role(self, compilation: int, direction: str, index: int, offset: int, length: int) -> None:
        """Raise ApiError (BAD_DATA) for a use that the descriptor does not include."""
        if offset or length:
            raise bad_data("offset and length must be 0 for memory made from a descriptor")
        if (compilation, direction, index) not in self.roles:
            raise bad_data(f"the memory's descriptor has no role as {direction} {index} of this compilation")


AnyMemory = SharedMemory | RoleMemory


def copy(src: AnyMemory, dst: AnyMemory) -> None:
    """Copy the contents of one memory to another. Raises ApiError, ServiceSpecificException."""
    if src is dst:
        return
    dims: Dims | None = None  # bytes of a file
    if isinstance(src, RoleMemory):
        dims = src.contents
        if dims is None:
            raise bad_data("the source is not initialised: no execution or copy has filled it")
    nbytes = _logical_size(src, dims)
    try:
        if isinstance(dst, RoleMemory):
            dims = merged(dst.dims, dims or (), "the destination")
            if _logical_size(dst, dims) != nbytes:
                raise bad_data(f"the source has {nbytes} bytes, the destination has dimensions {list(dims)}")
        elif dst.size != nbytes:
            raise bad_data(f"the source has {nbytes} bytes, the destination {dst.size}")
        _transfer(src, dst, dims or (), nbytes)
    except BaseException:
        if isinstance(dst, RoleMemory):
            # A failed copy may have written a part, so the destination has no contents, as after IBuffer.copyFrom.
            dst.contents = None
        raise
    if isinstance(dst, RoleMemory):
        dst.contents = dims or ()


def _logical_size(memory: AnyMemory, dims: Dims | None) -> int:
    if isinstance(memory, SharedMemory):
        return memory.size
    size = nbytes(memory.type, dims or ())
    if size is None:
        raise bad_data(f"the number of elements is not known: dimensions {list(dims or ())}")
    return size


def _transfer(source: AnyMemory, target: AnyMemory, dims: Dims, nbytes: int) -> None:
    """Copy between memories. Between two device buffers, the bytes go through the host."""
    middle = _backing(source)
    if middle is None:
        middle = _backing(target) or anonymous(nbytes)
        _device(source).copyTo(middle.shared)
    into = _backing(target)
    if into is None:
        _device(target).copyFrom(middle.shared, dims)
    elif into is not middle:
        given = middle.shared.map(writable=False)
        into.shared.map(writable=True).store(given.part(0, nbytes))
        given.confirm()


def _backing(memory: AnyMemory) -> SharedMemory | None:
    return memory if isinstance(memory, SharedMemory) else memory.backing


def _device(memory: AnyMemory) -> Any:
    """The driver's IBuffer."""
    assert isinstance(memory, RoleMemory)
    assert memory.device is not None
    return memory.device.buffer
