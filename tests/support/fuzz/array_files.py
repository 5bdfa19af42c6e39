"""Arrays in .npy files with other headers, shapes and types: rejected, or the array of the input."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path

import numpy as np

from npusim.cli.tensors import read_inputs
from npusim.dtypes import DType
from npusim.program import Binding
from tests.support.fuzz.given_files import NUMBERS, TEXTS, Kind

BINDINGS = (
    Binding("x", 2, (2, 3), DType.FLOAT32), Binding("i", 3, (4,), DType.INT64), Binding("e", 4, (0, 2), DType.INT8),
)  # fmt: skip
_SHAPES = ((1 << 62, 4), (-1, 3), (1 << 31,) * 3, (1,) * 70, (), None, "x", (True, 2))
_DTYPES = ("<f4", ">f4", "<i8", "|i1", "|O", "<f8", "<c16", "|V7", "<U9", "<M8[ns]", "<f4,<i8", "|S0", "")


class Arrays(Kind):
    """Arrays of numbers and everything else that the .npy format can express."""

    def good(self, rng: random.Random) -> bytes:
        binding = rng.choice(BINDINGS)
        file = io.BytesIO()
        np.save(file, np.ones(binding.shape, binding.dtype.storage))
        return file.getvalue()

    def changed(self, rng: random.Random) -> bytes:
        binding = rng.choice(BINDINGS)
        shape = [*binding.shape]
        descr: object = np.dtype(binding.dtype.storage).str
        fields: dict[str, object] = {"descr": descr, "fortran_order": rng.random() < 0.2, "shape": tuple(shape)}
        for _ in range(rng.choice((0, 1, 1, 2))):
            kind = rng.randrange(5)
            if kind == 0:
                fields["descr"] = rng.choice((*_DTYPES, [("a", "<f4")], [("a", "<f4", (1 << 40,))], None, 5))
            elif kind == 1:
                fields["shape"] = rng.choice(
                    ((1 << 62, 4), (-1, 3), (1 << 31,) * 3, (1,) * 70, (), None, "x", (True, 2))
                )
            elif kind == 2 and shape:
                shape[rng.randrange(len(shape))] = rng.choice(NUMBERS)
                fields["shape"] = tuple(shape)
            elif kind == 3:
                fields.pop(rng.choice(list(fields)), None)
            else:
                fields[rng.choice((*TEXTS[:6], "shape", "fortran_order"))] = rng.choice((*NUMBERS, *TEXTS))
        text = repr(fields)
        if rng.random() < 0.1:
            text = rng.choice(("", "[" * 500, "{" * 90, "__import__('os')", "1" * 9000, text + "," * 70_000, text[:-1]))
        header = text.encode("latin1", "replace") + b"\n"
        version = rng.choice((1, 1, 1, 2, 3, 4, 0))
        length = len(header) if rng.random() < 0.95 else rng.choice((0, 10, 65535, 1 << 31))
        size = struct.pack("<H", length & 0xFFFF) if version == 1 else struct.pack("<I", length)
        data = bytes(rng.choice((24, 32, 0, 23, 48, 4096)))
        return b"\x93NUMPY" + bytes([version, rng.choice((0, 0, 0, 1))]) + size + header + data

    def use(self, path: Path, rng: random.Random) -> str:
        binding = rng.choice(BINDINGS)
        found = read_inputs([f"{binding.name}={path}"], BINDINGS, rng.random() < 0.5, ())[binding.name]
        if found.shape != binding.shape or found.dtype != binding.dtype.storage or found.tobytes() is None:
            raise AssertionError(f"{found.dtype}{list(found.shape)} for {binding}")
        return "an array"


def make() -> Arrays:
    return Arrays()
