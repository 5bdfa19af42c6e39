"""The compilation cache under attack, as in the vendor test suite and beyond it: with any content and any type of the
files, the driver gives a model that computes the right result, or none."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.types import ErrorStatus, Model, OperationType
from tests.support.nnapi.client import PreparedCallback
from tests.support.nnapi.models import add_case, chain

NONE, FAILURE, INVALID = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE, ErrorStatus.INVALID_ARGUMENT
TOKEN = bytes(range(32))
ADDS, PRODUCTS = chain(100), chain(100, function=OperationType.MUL)
MODELS = pytest.mark.parametrize("model", [ADDS, PRODUCTS], ids=["add", "mul"])
SEEDS = pytest.mark.parametrize("seed", range(10))


class Cache:
    """A model file and a data file, and device calls that use them."""

    def __init__(self, device: Any, directory: Path) -> None:
        self.device = device
        self.files = [directory / "model", directory / "data"]
        for file in self.files:
            file.write_bytes(b"")

    def save(self, model: Model, token: bytes = TOKEN) -> tuple[ErrorStatus, Any]:
        return self.call(lambda *rest: self.device.prepareModel_1_3(model, 1, 1, None, *rest), token)

    def load(self, token: bytes = TOKEN) -> tuple[ErrorStatus, Any]:
        return self.call(lambda *rest: self.device.prepareModelFromCache_1_3(None, *rest), token)

    def call(self, method: Callable[..., ErrorStatus], token: bytes) -> tuple[ErrorStatus, Any]:
        """Open the files, make the call, and return the callback's arguments."""
        descriptors = [os.open(file, os.O_RDWR) for file in self.files]
        callback = PreparedCallback()
        launched = method([[descriptors[0]]], [[descriptors[1]]], token, callback)
        for descriptor in descriptors:
            os.close(descriptor)
        status, prepared = callback.wait()
        assert launched in (NONE, status)
        assert (prepared is not None) == (status is NONE)
        return status, prepared


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_device("tiny", state_dir=tmp_path_factory.mktemp("state")) as opened:
        yield opened


@pytest.fixture
def cache(device: Any, tmp_path: Path) -> Cache:
    return Cache(device, tmp_path)


def right(prepared: Any, model: Model) -> bool:
    """Return whether a model computes the right result."""
    case = add_case()
    assert prepared.executeSynchronously_1_3(case.request, 0, None, None)[0] is NONE
    a, b = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
    with np.errstate(over="ignore"):
        for _ in range(100):
            a = a + b if model is ADDS else a * b
    return np.array_equal(case.output(), a)


@MODELS
def test_what_was_kept_computes_the_same(cache: Cache, model: Model) -> None:
    assert right(cache.save(model)[1], model)
    status, prepared = cache.load()
    assert status is NONE
    assert right(prepared, model)


@MODELS
@SEEDS
def test_one_bit_of_the_model_file(cache: Cache, model: Model, seed: int) -> None:
    cache.save(model)
    rng, content = np.random.default_rng(seed), bytearray(cache.files[0].read_bytes())
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    cache.files[0].write_bytes(content)
    assert cache.load() == (FAILURE, None)


@MODELS
@SEEDS
def test_bytes_behind_the_model_file(cache: Cache, model: Model, seed: int) -> None:
    cache.save(model)
    rng = np.random.default_rng(seed)
    with cache.files[0].open("ab") as file:
        file.write(rng.bytes(int(rng.integers(1, 257))))
    assert cache.load() == (FAILURE, None)


@MODELS
@SEEDS
def test_one_bit_of_the_token(cache: Cache, model: Model, seed: int) -> None:
    cache.save(model)
    rng, token = np.random.default_rng(seed), bytearray(TOKEN)
    token[int(rng.integers(32))] ^= 1 << int(rng.integers(8))
    assert cache.load(bytes(token)) == (FAILURE, None)


@MODELS
@SEEDS
def test_the_data_file(cache: Cache, model: Model, seed: int) -> None:
    """A truncated, changed or extended data file gives no model; an empty one is valid for a model without data."""
    cache.save(model)
    rng, content = np.random.default_rng(seed), bytearray(cache.files[1].read_bytes())
    kind = seed % 3
    if kind == 0 and content:
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    elif kind == 1 and content:
        del content[int(rng.integers(len(content))) :]
    else:
        content += rng.bytes(int(rng.integers(1, 257)))
    cache.files[1].write_bytes(content)
    assert cache.load() == (FAILURE, None)


def test_files_of_two_models(cache: Cache) -> None:
    cache.save(ADDS)
    kept = [file.read_bytes() for file in cache.files]
    cache.save(PRODUCTS, bytes(32))
    for file, content in zip(cache.files, kept, strict=True):
        other = file.read_bytes()
        file.write_bytes(content)
        status, prepared = cache.load()
        assert status is FAILURE or right(prepared, ADDS)  # NONE if that was all in which they differ
        assert cache.load(bytes(32))[0] is FAILURE or file is cache.files[1]
        file.write_bytes(other)
    assert right(cache.load(bytes(32))[1], PRODUCTS)


# What is no file


def _pipe() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


def _socket() -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


def _sparse(size: int) -> int:
    descriptor = os.memfd_create("huge")
    os.ftruncate(descriptor, size)
    return descriptor


ODD: dict[str, Callable[[], int]] = {
    "endless": lambda: os.open("/dev/zero", os.O_RDWR),
    "nothing": lambda: os.open("/dev/null", os.O_RDWR),
    "full": lambda: os.open("/dev/full", os.O_RDWR),
    "pipe": _pipe,
    "socket": _socket,
    "event": lambda: os.eventfd(0),
    "directory": lambda: os.open("/", os.O_RDONLY),
    "path": lambda: os.open("/dev/null", os.O_PATH),
    "large": lambda: _sparse(3 << 30),
    "huge": lambda: _sparse(1 << 40),
}


@pytest.mark.parametrize("saving", [True, False], ids=["saving", "loading"])
@pytest.mark.parametrize("which", [0, 1], ids=["model", "data"])
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_keeps_no_model(cache: Cache, odd: str, which: int, saving: bool) -> None:
    """The preparation and the device are not affected, and endless or very long files are not read."""
    cache.save(ADDS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handles = [[os.open(file, os.O_RDWR)] for file in cache.files]
    os.close(handles[which][0])
    handles[which] = [ODD[odd]()]
    callback = PreparedCallback()
    rest = [handles[0]], [handles[1]], TOKEN, callback
    if saving:
        launched = cache.device.prepareModel_1_3(ADDS, 1, 1, None, *rest)
    else:
        launched = cache.device.prepareModelFromCache_1_3(None, *rest)
    status, prepared = callback.wait()
    assert launched in (NONE, status)
    if saving:
        assert right(prepared, ADDS)
    else:
        assert (status, prepared) in ((FAILURE, None), (INVALID, None))
    for handle in handles:
        os.close(handle[0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


def test_a_full_disk_keeps_no_model(device: Any, tmp_path: Path) -> None:
    """A file cannot grow: the model is prepared, and the incomplete file is not accepted as a model."""
    cache = Cache(device, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        status, prepared = cache.save(ADDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status is NONE
    assert right(prepared, ADDS)
    assert cache.load() == (FAILURE, None)
