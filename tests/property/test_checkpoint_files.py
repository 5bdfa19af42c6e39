"""Checkpoint files from anyone give a clear error or a device that continues, whatever they contain."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device.checkpoint import Checkpoint
from npusim.device.npu import NpuDevice
from npusim.errors import CheckpointError, NpusimError, UsageError
from npusim.sim.memory import sizes_of
from tests.support.examples import examples
from tests.support.programs.stopped_jobs import AFTER_PS, Course, seen


@functools.cache
def _file(moment: int) -> bytes:
    """Return a checkpoint within several jobs, at one of a few moments."""
    course = Course("demo")
    device, timelines = course.begin()
    begin = device.now_ps
    device.run_until(begin + AFTER_PS)
    moments = course.moments(begin, timelines, 6, seed=5)
    device, _ = course.begin()
    device.run_until(moments[moment])
    path = Path.cwd() / f"{moment}.npuckpt"
    device.checkpoint().write(path)
    device.close()
    return path.read_bytes()


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with contextlib.chdir(tmp_path_factory.mktemp("checkpoints")):
        yield
        _file.cache_clear()


def _read(data: bytes) -> Checkpoint:
    path = Path("read.npuckpt")
    path.write_bytes(data)
    return Checkpoint.read(path)


@given(moment=st.integers(0, 5), at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=examples(30))
def test_a_flipped_bit_is_seen(moment: int, at: float, bit: int) -> None:
    data = bytearray(_file(moment))
    data[int(at * len(data))] ^= 1 << bit
    with pytest.raises(CheckpointError):
        _read(bytes(data))


@given(moment=st.integers(0, 5), part=st.floats(0, 1, exclude_max=True))
@settings(max_examples=30)
def test_a_file_that_was_cut_is_seen(moment: int, part: float) -> None:
    data = _file(moment)
    with pytest.raises(CheckpointError, match=r"truncated|too short"):
        _read(data[: int(part * len(data))])


def test_bytes_behind_the_end_are_seen() -> None:
    with pytest.raises(CheckpointError, match="has bytes after its end"):
        _read(_file(0) + b"x")


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        _read(data)


def test_a_file_that_is_not_there_or_no_file() -> None:
    for path in ("nothing.npuckpt", "/dev/zero", "."):
        with pytest.raises(UsageError, match="cannot be read"):
            Checkpoint.read(path)


def _sealed(raw: bytes, packed: bytes, raw_size: int | None = None, pages_size: int = 0) -> bytes:
    """Return a file with a valid checksum. ``packed``: its compressed pages; ``pages_size``: their claimed size."""
    parts = [zlib.compress(raw), packed]
    lengths = [len(parts[0]), len(raw) if raw_size is None else raw_size, len(parts[1]), pages_size]
    versions = struct.unpack_from("<II", _file(0), 8)
    digest = hashlib.sha256(struct.pack("<IIQQQQ", *versions, *lengths) + parts[0] + parts[1]).digest()
    return struct.pack("<8sIIQQQQ32s", b"NPUCKPT\x1a", *versions, *lengths, digest) + parts[0] + parts[1]


def test_a_file_that_would_fill_memory_is_refused() -> None:
    bomb = b" " * 10_000_000
    with pytest.raises(CheckpointError, match="does not decompress to"):
        _read(_sealed(bomb, b"", 100))
    with pytest.raises(CheckpointError, match="at most"):
        _read(_sealed(b"{}", b"", 1 << 40))


def test_pages_inflate_to_no_more_than_the_device_has_and_its_state_names() -> None:
    """Checked before inflating: a mebibyte of zeros is a kilobyte in the file."""
    checkpoint = _read(_file(0))
    state = json.dumps(checkpoint.state).encode()
    memory = sum(sizes_of(checkpoint.config()).values())
    packed = zlib.compress(bytes(1 << 20))
    tracemalloc.start()
    try:
        for size in (memory + 1, 1 << 40, (1 << 64) - 1):
            with pytest.raises(CheckpointError, match=f"its pages have {size} bytes, its device has {memory}"):
                _read(_sealed(state, packed, pages_size=size))
        device = NpuDevice(checkpoint.config())
        with pytest.raises(CheckpointError, match=r"name [0-9]+ bytes, there are 1048576"):
            device.restore(_read(_sealed(state, packed, pages_size=1 << 20)))
        named = checkpoint.pages.size
        for size in (0, named - 1, named + 1, named + (1 << 24)):
            with pytest.raises(CheckpointError, match=f"do not decompress to the {named} bytes"):
                device.restore(_read(_sealed(state, zlib.compress(bytes(size)), pages_size=named)))
        device.close()
        assert tracemalloc.get_traced_memory()[1] < memory / 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"[" * 100_000, b'{"a": ' + b"9" * 10_000 + b"}", b"\xff"])
def test_a_state_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(CheckpointError):
        _read(_sealed(raw, b"")).config()


# Content that a checksum does not protect

_NONSENSE = st.sampled_from(
    [None, True, -1, 0, 1, 2, 3, 7, 255, 2**31, 2**32, 2**63, 2**70, 2**200, "", "x", [], {}, [[]], 1.5]
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to each value in a state."""
    found = [path] if path else []
    if isinstance(value, dict):
        for name, item in value.items():
            found += _places(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value[:40]):
            found += _places(item, (*path, number))
    return found


@functools.cache
def _state(moment: int) -> tuple[Checkpoint, list[tuple[Any, ...]]]:
    checkpoint = _read(_file(moment))
    places = [place for place in _places(checkpoint.state) if place[0] != "config"]
    # Of the spans there are many, and they are all alike.
    return checkpoint, [place for place in places if "spans" not in place[:-2]]


@given(st.data())
@settings(max_examples=examples(50))
def test_a_state_of_a_stranger_is_refused_or_goes_on(data: st.DataObject) -> None:
    checkpoint, places = _state(data.draw(st.integers(0, 5)))
    state = copy.deepcopy(dict(checkpoint.state))
    for _ in range(data.draw(st.integers(1, 3))):
        *above, last = data.draw(st.sampled_from(places))
        inside: Any = state
        try:
            for step in above:
                inside = inside[step]
            old = inside[last]
        except (KeyError, IndexError, TypeError):
            continue  # it is below a value that was just changed
        near = st.integers(-3, 3).map(lambda by, old=old: old + by) if type(old) is int else _NONSENSE
        inside[last] = data.draw(_NONSENSE | near)
    device = NpuDevice(checkpoint.config())
    try:
        device.restore(Checkpoint(json.loads(json.dumps(state)), checkpoint.pages))
    except CheckpointError:
        assert device.machine.clock.coming is None
        assert not device.machine.memory.dram[: 1 << 20].any()
    else:
        with contextlib.suppress(NpusimError):
            _goes_on(device)
    finally:
        device.close()


def _goes_on(device: NpuDevice) -> None:
    """The device may behave in any valid way, but the process must survive and end."""
    events = 0

    def enough() -> bool:
        nonlocal events
        events += 1
        return events > 3000

    device.run_until(enough)


def test_pages_that_are_not_those_of_the_state() -> None:
    checkpoint, _ = _state(0)
    device = NpuDevice(checkpoint.config())
    with pytest.raises(CheckpointError, match=r"name [0-9]+ bytes, there are"):
        device.restore(Checkpoint(checkpoint.state, np.zeros(checkpoint.pages.size - 1, np.uint8)))
    with pytest.raises(CheckpointError, match=r"name [0-9]+ bytes, there are"):
        device.restore(Checkpoint(checkpoint.state, np.zeros(0, np.uint8)))
    device.restore(checkpoint)
    assert seen(device, {})["registers"] == checkpoint.state["registers"]
