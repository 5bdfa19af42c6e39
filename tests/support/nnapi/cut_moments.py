"""A process whose weights and arguments are in a file that is truncated just before a certain step of the driver.

``python -m tests.support.nnapi.cut_moments`` prints a line per moment: its name, the outcomes of preparation, execution
and copies, and the outcomes of the same steps after the file was restored. An access to missing pages would kill the
process.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hal.nnapi import memory, open_device
from hal.nnapi.cache import files as cache
from hal.nnapi.driver import preparation
from hal.nnapi.memory.mapping import Mapping
from hal.nnapi.operations.definition import Definition
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    ErrorStatus,
    MemoryPool,
    Model,
    OperandLifeTime,
    Request,
    RequestArgument,
)
from npusim.compiler import pipeline
from npusim.device.host import HostBus
from npusim.graph import Graph
from npusim.program import ConstantData
from npusim.runtime import Executor
from tests.support.nnapi.client import TOKEN, Burst, PreparedCallback
from tests.support.nnapi.models import dense

UNITS, INPUTS = 64, 4096
WEIGHTS, BIAS = UNITS * INPUTS * 4, UNITS * 4
ARGUMENTS = WEIGHTS + (1 << 16)
SIZE = ARGUMENTS + 2 * INPUTS * 4
LEFT = 8192
"""Bytes left in the truncated file."""


class World:
    """A device, a file with weights, input and output, and a model and request that use it."""

    def __init__(self, device: Any, directory: Path) -> None:
        self.device = device
        self.file = os.open(directory / "pool", os.O_RDWR | os.O_CREAT)
        self.model_cache = os.open(directory / "model", os.O_RDWR | os.O_CREAT)
        self.data_cache = os.open(directory / "data", os.O_RDWR | os.O_CREAT)
        self.content = np.random.default_rng(1).integers(1, 3, SIZE // 4).astype(np.float32).tobytes()
        self.restore()
        self.pool = memory.from_fd(SIZE, mmap.PROT_READ | mmap.PROT_WRITE, self.file)
        self.prepared: Any = None

    def restore(self) -> None:
        """Restore the file."""
        os.pwrite(self.file, self.content, 0)

    def cut(self) -> None:
        """Truncate most of the file."""
        os.ftruncate(self.file, LEFT)

    @property
    def model(self) -> Model:
        """Return a matrix product with weights in the file."""
        model = dense(INPUTS, UNITS)
        place = DataLocation(0, 0, WEIGHTS)
        weights = replace(model.main.operands[1], lifetime=OperandLifeTime.CONSTANT_REFERENCE, location=place)
        model.main.operands[1] = weights
        return replace(model, pools=[self.pool])

    @property
    def request(self) -> Request:
        """Return a request with input and output in the file."""
        places = DataLocation(0, ARGUMENTS, INPUTS * 4), DataLocation(0, ARGUMENTS + INPUTS * 4, BIAS)
        given, result = (RequestArgument(False, place) for place in places)
        return Request([given], [result], [MemoryPool(self.pool)])

    def explain(self) -> str:
        """Query the supported operations."""
        status, supported = self.device.getSupportedOperations_1_3(self.model)
        assert status is not ErrorStatus.NONE or supported == [True]
        return str(status.name)

    def prepare(self) -> str:
        """Prepare the model and store it in the cache."""
        callback = PreparedCallback()
        caches = [[self.model_cache]], [[self.data_cache]]
        self.device.prepareModel_1_3(self.model, 1, 1, None, *caches, TOKEN, callback)
        status, self.prepared = callback.wait()
        assert (self.prepared is None) == (status is not ErrorStatus.NONE)
        return status.name

    def execute(self) -> str:
        """Execute once; a result must be right."""
        if self.prepared is None:
            return "-"
        status = self.prepared.executeSynchronously_1_3(self.request, 0, None, None)[0]
        assert status is not ErrorStatus.NONE or self.is_right()
        return str(status.name)

    def burst(self) -> str:
        """Execute in a burst, which keeps mappings and weights."""
        if self.prepared is None:
            return "-"
        burst = Burst(self.prepared)
        status = burst.execute(self.request)[0]
        burst.close()
        assert status is not ErrorStatus.NONE or self.is_right()
        return str(status.name)

    def is_right(self) -> bool:
        """Return whether the output is the product."""
        values = np.frombuffer(self.content, np.float32)
        weights, given = values[: WEIGHTS // 4].reshape(UNITS, INPUTS), values[ARGUMENTS // 4 :][:INPUTS]
        found = np.frombuffer(os.pread(self.file, BIAS, ARGUMENTS + INPUTS * 4), np.float32)
        return bool(np.array_equal(found, weights @ given))

    def copies(self) -> str:
        """Copy to and from device memory."""
        if self.prepared is None:
            return "-"
        _, buffer, _ = self.device.allocate(BufferDesc(), [self.prepared], [BufferRole(0, 0)], [])
        part = memory.from_fd(INPUTS * 4, mmap.PROT_READ | mmap.PROT_WRITE, self.file)
        statuses = buffer.copyFrom(part, []), buffer.copyTo(part)
        part.close()
        return "+".join(status.name for status in statuses)

    def cached(self) -> str:
        """Load the model from the cache."""
        callback = PreparedCallback()
        self.device.prepareModelFromCache_1_3(None, [[self.model_cache]], [[self.data_cache]], TOKEN, callback)
        return callback.wait()[0].name

    def close(self) -> None:
        self.pool.close()
        for descriptor in (self.file, self.model_cache, self.data_cache):
            os.close(descriptor)


MOMENTS: dict[str, tuple[Any, str]] = {
    "rules": (Definition, "problem"),
    "fingerprint": (Graph, "fingerprint"),
    "compile": (pipeline, "compile_graph"),
    "mapped": (preparation, "own_model"),
    "save": (cache, "encode"),
    "write": (cache, "_rewrite"),
    "weights": (ConstantData, "fill"),
    "input": (HostBus, "write_memory"),
    "job": (Executor, "submit"),
    "store": (Mapping, "__setitem__"),
    "never": (World, "close"),
}
"""The step of the driver before which the file is truncated."""


@contextmanager
def cut_before(world: World, owner: Any, name: str) -> Iterator[list[str]]:
    """Truncate the file at every call of a function, before the function runs."""
    original: Callable[..., Any] = getattr(owner, name)
    seen: list[str] = []

    def cut(*args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        world.cut()
        return original(*args, **kwargs)

    with mock.patch.object(owner, name, cut):
        yield seen


def steps(world: World, before: Callable[[], object]) -> list[str]:
    """Return the outcome of each step; the file is restored before each."""
    found = []
    for step in (world.explain, world.prepare, world.execute, world.burst, world.copies):
        before()
        found.append(step())
    return found


def main() -> None:
    """Run every moment, each on a new device."""
    logging.disable(logging.CRITICAL)
    for moment, (owner, name) in MOMENTS.items():
        with tempfile.TemporaryDirectory() as directory, open_device("edge", state_dir=directory) as device:
            world = World(device, Path(directory))
            with cut_before(world, owner, name) as seen:
                during = steps(world, world.restore)
            kept = world.cached()
            after = steps(world, world.restore)
            print(moment, bool(seen), *during, kept, *after)  # noqa: T201
            world.close()


if __name__ == "__main__":
    main()
