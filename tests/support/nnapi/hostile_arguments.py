"""Invalid arguments for every parameter of the NNAPI driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hal.nnapi import memory, v1_0
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.fmq import MessageQueue
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    MemoryPool,
    Model,
    Operand,
    OptionalTimeoutDuration,
    OptionalTimePoint,
    Request,
    RequestArgument,
)
from tests.support.nnapi.models import add, add_case

TOKEN = bytes(32)
ANYTHING: Any = None


class Chameleon:
    """Has every attribute, and each has an unexpected value."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Chameleon()

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return Chameleon()

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: object) -> Any:
        return Chameleon()


class Explosive:
    """Raises on any access, even repr."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not touch")

    def __repr__(self) -> str:
        raise RuntimeError("do not look")

    def __len__(self) -> int:
        raise RuntimeError("do not measure")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare")

    __hash__ = None  # type: ignore[assignment]


class Endless(Sequence[Any]):
    """A sequence that claims a huge length."""

    def __len__(self) -> int:
        return 1 << 60

    def __getitem__(self, index: Any) -> Any:
        return 0


def _closed() -> memory.Memory:
    pool = memory.allocate_ashmem(64)
    pool.close()
    return pool


def _wrong(**fields: Any) -> memory.Memory:
    pool = memory.allocate_ashmem(64)
    for name, value in fields.items():
        setattr(pool, name, value)
    return pool


def _knot() -> list[Any]:
    knot: list[Any] = []
    knot.append(knot)
    return knot


MEMORIES = [
    _closed(), _wrong(size=1 << 62), _wrong(size=-1), _wrong(size=None), _wrong(size="64"), _wrong(name=None),
    _wrong(name="mmap_fd"), _wrong(name="mmap_fd", ints=(3, 0, 0)), _wrong(name="mmap_fd", ints=(3, -1, 1 << 40)),
    _wrong(name="mmap_fd", ints=None), _wrong(name="hardware_buffer"), memory.hardware_buffer(2, 2),
    memory.Memory("ashmem", [-1], 64), memory.Memory("ashmem", [1 << 70], 64), memory.Memory("ashmem", [], 64),
]  # fmt: skip
_ONE, _TWO = [RequestArgument()], [RequestArgument()] * 2
_FAR = [RequestArgument(location=DataLocation(0, 1 << 63, 1 << 63))] * 2
_LONG: Any = [RequestArgument(dimensions=range(1 << 40))] * 2
_WORDS: Any = "now"

NUMBERS: list[Any] = [
    None, True, 0, 1, -1, 2, 3, 4, 99, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    1 << 64, 1 << 200, -(1 << 200), 0.5, float("nan"), float("inf"), 1j, np.int64(3), np.float32(3),
]  # fmt: skip
THINGS: list[Any] = [
    "", "x", b"", TOKEN, bytes(31), bytearray(32), {}, {1}, object(), object, len, iter(()), np.zeros(3), np.zeros(()),
    memoryview(b"abc"), Chameleon(), Explosive(), *MEMORIES,
]  # fmt: skip
LISTS: list[Any] = [
    [], (), [None], [[]], [[-1]], [[1 << 40]], [[0]], [[1, 2]], [()], range(1 << 40), range(1 << 70), Endless(),
    _knot(), [Chameleon()], [Explosive()], [BufferRole(0, 0)], [BufferRole(-1, 1 << 64, float("nan"))],
    [BufferRole(ANYTHING, ANYTHING, ANYTHING)], [Operand(1)],
]  # fmt: skip
STRUCTURES: list[Any] = [
    Model(ANYTHING), add(), v1_0.Model([], [], [], []), aidl_types.Model(ANYTHING),
    Request(ANYTHING, ANYTHING, ANYTHING), Request([], [], []), Request(_TWO, _ONE, [1 << 40]),
    Request(_TWO, _ONE, MEMORIES), Request(_FAR, _ONE, [MEMORIES[1]]), Request(_LONG, _ONE, [7]),
    Request(Endless(), Endless(), Endless()), add_case().request, v1_0.Request([], [], []),
    aidl_types.Request([], [], [aidl_types.RequestMemoryPool()]), BufferDesc([4]), BufferDesc([1 << 31] * 4),
    BufferDesc(Endless()), OptionalTimePoint(-1), OptionalTimePoint((1 << 64) - 1), OptionalTimePoint(_WORDS),
    OptionalTimeoutDuration(1 << 63), OptionalTimeoutDuration(1), MemoryPool(), MemoryPool(MEMORIES[0], 7),
    MessageQueue(0), MessageQueue(4), MessageQueue(-1), aidl_types.ExecutionConfig(ANYTHING, ANYTHING),
    aidl_types.PrepareModelConfig(ANYTHING, ANYTHING, ANYTHING),
]  # fmt: skip
JUNK = [*NUMBERS, *THINGS, *LISTS, *STRUCTURES]
