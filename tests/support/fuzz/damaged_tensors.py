"""Tensor descriptors for fuzzing ONNXIFI: valid ones, and ones with a field or two changed."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from ctypes import c_int32, c_uint32, c_uint64
from typing import Any

from hal.onnxifi.constants import TAG_TENSOR_DESCRIPTOR_V1
from tests.support.fuzz.damaged_models import NAMES

ARENA_BYTES = 1 << 20
U64 = (0, 1, 2, 3, 4, 5, 7, 64, 65, 2**16, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)


class Descriptors:
    """``kind``: descriptor structure of the API version. The older one has no quantisation fields; ctypes keeps such
    values in the Python object only."""

    def __init__(self, kind: type[ctypes.Structure]) -> None:
        self.kind: Any = kind
        self.kept: list[Any] = []
        self.arena = (ctypes.c_uint8 * ARENA_BYTES)()

    def tensor(self, rng: random.Random, name: str, dims: tuple[int, ...], tag: int) -> Any:
        """Return a valid descriptor, or one with a field or two changed. Buffers have room for all small shapes."""
        changes = rng.sample(range(9), rng.choice((0, 0, 0, 1, 1, 2)))
        if 2 in changes:
            dims = tuple(rng.choice((*U64, *dims)) for _ in range(rng.randrange(8)))
        made = self.kind(tag, name.encode(), 1, 0, len(dims), (c_uint64 * 8)(*dims[:8]))
        made.buffer = ctypes.addressof(self.arena)
        values: tuple[Callable[[], None], ...] = (
            lambda: setattr(made, "tag", rng.choice((0, 1, -1, tag + 1))),
            lambda: setattr(made, "name", rng.choice((None, *(each.encode() for each in NAMES), b"\xff\xfe"))),
            lambda: None,
            lambda: setattr(made, "dataType", rng.choice((*range(18), *U64))),
            lambda: setattr(made, "memoryType", rng.choice(U64)),
            lambda: setattr(made, "shape", None),
            lambda: setattr(made, "dimensions", rng.choice((0, 1, 2, 8, 65, 1000, 2**31, 2**32 - 1))),
            lambda: setattr(made, "buffer", 0),
            lambda: self.quantize(made, rng),
        )
        for change in changes:
            values[change]()
        self.kept.append(made)
        return made

    def quantize(self, made: Any, rng: random.Random) -> None:
        made.quantizationAxis = rng.choice((0, 1, 2, 64, 2**32 - 1))
        made.quantizationParams = rng.choice((0, 1, 2, 4, 64, 2**20 + 1, 2**63))
        made.dataType = rng.choice((1, 2, 3, 6))
        scales = [rng.choice((0.5, 1.0, 0.0, -1.0, float("nan"), float("inf"), 1e-40)) for _ in range(64)]
        made.scales = None if rng.random() < 0.2 else (ctypes.c_float * 64)(*scales)
        made.biases = (
            None if rng.random() < 0.2 else (c_int32 * 64)(*(rng.choice((0, 1, -1, 2**31 - 1)) for _ in scales))
        )
        made.isOffline = rng.choice((0, 0, 1, 2, 255))

    def tensors(self, rng: random.Random, tensors: list[tuple[str, tuple[int, ...]]]) -> tuple[c_uint32, Any]:
        """Return valid descriptors with some missing or duplicated; or NULL."""
        chosen = [item for item in tensors for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 0, 2)))]
        if rng.random() < 0.03:
            return c_uint32(rng.choice((0, 1, len(chosen), 2**32 - 1))), None
        if not chosen:
            return c_uint32(0), rng.choice((None, (self.kind * 1)()))
        return c_uint32(len(chosen)), (self.kind * len(chosen))(
            *(self.tensor(rng, *item, TAG_TENSOR_DESCRIPTOR_V1) for item in chosen)
        )
