"""Shared memory between a client and the driver: creation, checks and mapping."""

from .shared import (
    ASHMEM,
    BLOB,
    FORMAT_BLOB,
    FORMAT_R8G8B8A8_UNORM,
    HARDWARE_BUFFER,
    MAPPABLE,
    MMAP_FD,
    Memory,
    allocate_ashmem,
    allocate_blob,
    from_fd,
    hardware_buffer,
)

__all__ = [
    "ASHMEM",
    "BLOB",
    "FORMAT_BLOB",
    "FORMAT_R8G8B8A8_UNORM",
    "HARDWARE_BUFFER",
    "MAPPABLE",
    "MMAP_FD",
    "Memory",
    "allocate_ashmem",
    "allocate_blob",
    "from_fd",
    "hardware_buffer",
]
