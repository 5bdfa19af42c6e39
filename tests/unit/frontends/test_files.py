"""Files beside a model: which are read, how much of them, and how models with such files are distinguished."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from npusim.errors import CompileError, ModelError
from npusim.frontends.onnx import load
from npusim.frontends.onnx.external import digest_file
from npusim.frontends.onnx.files import Files
from npusim.hw.config import load_config
from npusim.runtime import Session
from tests.support.onnx_models.small import external, ramp, weighted

TINY = load_config("tiny")


def written(path: Path, location: str, count: int = 4, **entries: int) -> Path:
    """Write a model whose only weight, of ``count`` floats, is in a file."""
    weight = external(ramp(4), "w", location, **entries)
    weight.dims[:] = [count]
    path.write_bytes(weighted(weight).SerializeToString())
    return path


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "kernel log", "fifo by a link"])
def test_what_is_no_regular_file_of_the_model_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """By its type, before waiting for its bytes: neither fingerprinting nor loading hangs."""
    target = tmp_path / "w.bin"
    if kind == "fifo":
        os.mkfifo(target)
    elif kind == "directory":
        target.mkdir()
    elif kind == "fifo by a link":
        os.mkfifo(tmp_path / "pipe")
        target.symlink_to("pipe")
    else:
        target.symlink_to("/dev/zero" if kind == "device" else "/proc/kmsg")
    path = written(tmp_path / "m.onnx", "w.bin")
    assert digest_file(path) == digest_file(path)
    with pytest.raises(ModelError, match=r"^initializer 'w': external data "):
        Session(TINY, cache_dir=False).compile(path)


@pytest.mark.parametrize(("location", "problem"), [("loop", "loop"), ("a\0b", "null"), ("n" * 5000, "too long")])
def test_names_that_lead_nowhere_are_the_models_fault(tmp_path: Path, location: str, problem: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = written(tmp_path / "m.onnx", location)
    assert digest_file(path)
    with pytest.raises(ModelError, match=f"(?i){problem}"):
        load(path)


def test_a_pipe_in_the_place_of_the_model_is_no_model(tmp_path: Path) -> None:
    from npusim.errors import UsageError

    os.mkfifo(tmp_path / "m.onnx")
    for read in (load, digest_file):
        with pytest.raises(UsageError, match="is not a regular file"):
            read(tmp_path / "m.onnx")


def test_only_named_bytes_are_read_of_a_sparse_terabyte(tmp_path: Path) -> None:
    weights = tmp_path / "w.bin"
    with weights.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(ramp(1).tobytes())
    path = written(tmp_path / "m.onnx", "w.bin", 1, offset=1 << 39, length=4)
    (weight,) = load(path).constants()
    np.testing.assert_array_equal(weight.data, ramp(1))
    before = digest_file(path)
    with weights.open("r+b") as file:
        file.write(b"elsewhere")
    assert digest_file(path) == before
    with weights.open("r+b") as file:
        file.seek(1 << 39)
        file.write(ramp(2)[1:].tobytes())
    assert digest_file(path) != before


def test_more_than_the_device_holds_is_not_read(tmp_path: Path) -> None:
    """A file as long as its tensor requires, which is cheap to make."""
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(1 << 40)
    path = written(tmp_path / "m.onnx", "w.bin", 1 << 38)
    wanted = rf"^initializer 'w': external data of {1 << 40} bytes makes {1 << 40} in all, the device has {1 << 30}$"
    with pytest.raises(CompileError, match=wanted):
        digest_file(path, TINY.dram.bytes)
    with pytest.raises(CompileError, match=wanted):
        load(path, config=TINY)


def test_many_tensors_may_name_the_same_bytes_but_not_without_end(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(ramp(64).tobytes())
    path = tmp_path / "m.onnx"
    model = weighted(external(ramp(4), "w", "w.bin"))
    for number in range(20):
        model.graph.initializer.append(external(ramp(4), f"w{number}", "w.bin", offset=4 * number))
    onnx.save(model, path)
    assert digest_file(path, 21 * 16)
    with pytest.raises(CompileError, match="external data of 16 bytes makes 336 in all, the device has 335"):
        digest_file(path, 21 * 16 - 1)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "w.bin"
    weights.write_bytes(ramp(4).tobytes())
    opened = Files.open

    def cut(self: Files, *arguments: object) -> object:
        found = opened(self, *arguments)  # type: ignore[arg-type]
        os.truncate(weights, 8)
        return found

    monkeypatch.setattr(Files, "open", cut)
    with pytest.raises(ModelError, match=r"^initializer 'w': external data has been cut to 8 of 16 bytes while it was"):
        load(written(tmp_path / "m.onnx", "w.bin"))
