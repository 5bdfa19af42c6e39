"""The AIDL interface's union Memory, and conversions to and from the ``memory`` of HAL 1.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import invalid_argument
from ..memory import ASHMEM, BLOB, FORMAT_BLOB, HARDWARE_BUFFER, MMAP_FD, Memory


@dataclass(slots=True)
class Ashmem:
    """Anonymous shared memory of ``size`` bytes."""

    fd: int
    size: int


@dataclass(slots=True)
class MappableFile:
    """``length`` bytes of a file from ``offset`` on, to be mapped with protection ``prot``."""

    length: int
    prot: int
    fd: int
    offset: int


@dataclass(slots=True)
class HardwareBufferDescription:
    """AHardwareBuffer_Desc: width in pixels (bytes for the BLOB format), stride in pixels."""

    width: int
    height: int
    layers: int
    format: int
    usage: int
    stride: int


@dataclass(slots=True)
class NativeHandle:
    """Descriptors and integers."""

    fds: Sequence[int]
    ints: Sequence[int]


@dataclass(slots=True)
class HardwareBuffer:
    """A buffer of the graphics allocator."""

    description: HardwareBufferDescription
    handle: NativeHandle


@dataclass(slots=True)
class AidlMemory:
    """The union: exactly one is set."""

    ashmem: Ashmem | None = None
    mappableFile: MappableFile | None = None
    hardwareBuffer: HardwareBuffer | None = None


_WORD = 0xFFFF_FFFF
_TAGS = ("ashmem", "mappableFile", "hardwareBuffer")


def to_memory(memory: AidlMemory) -> Memory:
    """The ``memory`` of HAL 1.3 with duplicated descriptors; INVALID_ARGUMENT for a union without exactly one member.

    ``Memory.check`` validates the result.
    """
    if not isinstance(memory, AidlMemory):
        raise invalid_argument(f"a memory must be an AidlMemory, got {memory!r}")
    given = [tag for tag in _TAGS if getattr(memory, tag) is not None]
    if len(given) != 1:
        raise invalid_argument(f"exactly one of {', '.join(_TAGS)} must be set, got {given}")
    if memory.ashmem is not None:
        return Memory(ASHMEM, (memory.ashmem.fd,), memory.ashmem.size)
    if memory.mappableFile is not None:
        file = memory.mappableFile
        if not all(isinstance(value, int) for value in (file.offset, file.prot)) or file.offset < 0:
            got = f"{file.prot!r} and {file.offset!r}"
            raise invalid_argument(f"protection and offset must be integers >= 0, got {got}")
        return Memory(MMAP_FD, (file.fd,), file.length, (file.prot, file.offset & _WORD, file.offset >> 32))
    assert memory.hardwareBuffer is not None
    return _from_buffer(memory.hardwareBuffer)


def from_memory(memory: Memory) -> AidlMemory:
    """The union for a ``memory``. The descriptors still belong to the Memory, which must outlive their use."""
    handle = memory.handle
    if memory.name == ASHMEM and len(handle) == 1:
        return AidlMemory(ashmem=Ashmem(handle[0], memory.size))
    if memory.name == MMAP_FD and len(handle) == 1:
        return AidlMemory(mappableFile=MappableFile(memory.size, memory.protection, handle[0], memory.offset))
    if memory.name in {BLOB, HARDWARE_BUFFER} and len(memory.ints) == 7:
        width, height, layers, pixel_format, usage_low, usage_high, stride = memory.ints
        usage = (usage_low & _WORD) | (usage_high & _WORD) << 32
        description = HardwareBufferDescription(width, height, layers, pixel_format, usage, stride)
        return AidlMemory(hardwareBuffer=HardwareBuffer(description, NativeHandle(handle, ())))
    raise invalid_argument(
        f"memory {memory.name!r} with {len(handle)} descriptors has no counterpart in the AIDL interface"
    )


def _from_buffer(buffer: HardwareBuffer) -> Memory:
    about = buffer.description
    blob = about.format == FORMAT_BLOB
    ints = (
        about.width,
        about.height,
        about.layers,
        about.format,
        about.usage & _WORD,
        about.usage >> 32,
        about.stride,
    )
    return Memory(BLOB if blob else HARDWARE_BUFFER, tuple(buffer.handle.fds), about.width if blob else 0, ints)
