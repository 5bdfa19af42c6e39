"""The union Memory of the AIDL interface and the memory of HAL 1.3, both ways."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator

import pytest

from hal.nnapi.aidl.memory import (
    AidlMemory,
    Ashmem,
    HardwareBuffer,
    HardwareBufferDescription,
    MappableFile,
    NativeHandle,
    from_memory,
    to_memory,
)
from hal.nnapi.errors import StatusError
from hal.nnapi.memory import BLOB, FORMAT_BLOB, HARDWARE_BUFFER, Memory, allocate_ashmem, from_fd, hardware_buffer
from hal.nnapi.types import ErrorStatus

READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
FAR = (5 << 32) + 7
"""An offset that needs both of its words in HAL 1.3."""


@pytest.fixture
def descriptor() -> Iterator[int]:
    """A long sparse file."""
    made = os.memfd_create("far")
    os.ftruncate(made, FAR + 64)
    os.pwrite(made, b"here", FAR)
    yield made
    os.close(made)


def refused(memory: object, words: str) -> None:
    with pytest.raises(StatusError, match=re.escape(words)) as caught:
        to_memory(memory)  # type: ignore[arg-type]
    assert caught.value.status is ErrorStatus.INVALID_ARGUMENT


def test_a_file_keeps_its_offset_in_both_directions(descriptor: int) -> None:
    with to_memory(AidlMemory(mappableFile=MappableFile(8, READ, descriptor, FAR))) as memory:
        assert (memory.size, memory.protection, memory.offset) == (8, READ, FAR)
        assert memory.ints == (READ, 7, 5)
        assert bytes(memory.map()) == b"here\0\0\0\0"
        assert from_memory(memory) == AidlMemory(mappableFile=MappableFile(8, READ, memory.handle[0], FAR))
    with from_fd(4, READ | WRITE, descriptor, FAR) as memory:
        union = from_memory(memory)
        assert union.mappableFile == MappableFile(4, READ | WRITE, memory.handle[0], FAR)
        with to_memory(union) as again:
            assert bytes(again.map()) == b"here"


def test_anonymous_memory_has_a_size_alone() -> None:
    with allocate_ashmem(12) as memory:
        memory.map()[:3] = b"abc"
        union = from_memory(memory)
        assert union == AidlMemory(ashmem=Ashmem(memory.handle[0], 12))
        with to_memory(union) as again:
            assert again.size == 12
            assert bytes(again.map()[:4]) == b"abc\0"
            assert again.handle != memory.handle  # its own descriptor


def test_a_description_keeps_every_number() -> None:
    usage = (9 << 32) + 3
    about = HardwareBufferDescription(64, 2, 3, 1, usage, 80)
    memory = to_memory(AidlMemory(hardwareBuffer=HardwareBuffer(about, NativeHandle((), ()))))
    assert (memory.name, memory.size) == (HARDWARE_BUFFER, 0)
    assert memory.ints == (64, 2, 3, 1, 3, 9, 80)
    assert from_memory(memory) == AidlMemory(hardwareBuffer=HardwareBuffer(about, NativeHandle([], ())))
    assert from_memory(hardware_buffer(8, 4, usage=usage)).hardwareBuffer is not None


def test_the_width_of_a_blob_is_its_size(descriptor: int) -> None:
    about = HardwareBufferDescription(48, 1, 1, FORMAT_BLOB, 0, 48)
    with to_memory(AidlMemory(hardwareBuffer=HardwareBuffer(about, NativeHandle((descriptor,), ())))) as memory:
        assert (memory.name, memory.size) == (BLOB, 48)
        handle = NativeHandle(memory.handle, ())
        assert from_memory(memory) == AidlMemory(hardwareBuffer=HardwareBuffer(about, handle))


def test_what_is_no_memory_of_the_interface(descriptor: int) -> None:
    ashmem, file = Ashmem(descriptor, 4), MappableFile(4, READ, descriptor, 0)
    refused(None, "a memory must be an AidlMemory, got None")
    refused(AidlMemory(), "exactly one of ashmem, mappableFile, hardwareBuffer must be set, got []")
    refused(AidlMemory(ashmem, file), "got ['ashmem', 'mappableFile']")
    for prot, offset in ((READ, -1), (READ, "0"), (None, 0)):
        wrong = MappableFile(4, prot, descriptor, offset)  # type: ignore[arg-type]
        refused(AidlMemory(mappableFile=wrong), "protection and offset must be integers >= 0")


@pytest.mark.parametrize(
    ("name", "descriptors", "ints", "words"),
    [
        ("mmap_fd", 0, (1, 0, 0), "memory 'mmap_fd' with 0 descriptors"),
        ("ashmem", 2, (), "memory 'ashmem' with 2 descriptors"),
        ("hardware_buffer", 0, (1,) * 6, "memory 'hardware_buffer' with 0 descriptors"),
        ("other", 1, (1,) * 7, "memory 'other' with 1 descriptors"),
    ],
)
def test_memory_without_a_counterpart(
    descriptor: int, name: str, descriptors: int, ints: tuple[int, ...], words: str
) -> None:
    with Memory(name, (descriptor,) * descriptors, 4, ints) as memory:
        with pytest.raises(StatusError, match=words) as caught:
            from_memory(memory)
        assert caught.value.status is ErrorStatus.INVALID_ARGUMENT
