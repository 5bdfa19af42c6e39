"""Files in a client's cache directory: used if written by this user's driver, never waited for, reported once."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hal.nnapi.capi import caching, devices
from hal.nnapi.capi import compilation as compiling
from tests.support.nnapi.c_api import Api, add_model, address, device, handles, set_inputs
from tests.support.planted_files import DAMAGED, REASONS, STRANGE, plant, promptly

KINDS = (*DAMAGED, *STRANGE, "hard link")
REFUSED = {**REASONS, "hard link": "has another name"}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return a list that gets an entry per preparation that does not come from the cache."""
    found: list[int] = []
    prepare = compiling._prepare_fresh
    monkeypatch.setattr(compiling, "_prepare_fresh", lambda *given: found.append(1) or prepare(*given))
    return found


def sums(api: Api, model: int, folder: Path) -> bool:
    """Compile with that cache and compute."""
    compilation = api.make("Compilation_createForDevices", model, handles([device(api)]), 1)
    api.ok("Compilation_setCaching", compilation, str(folder).encode(), (ctypes.c_uint8 * 32)())
    api.ok("Compilation_finish", compilation)
    execution = api.make("Execution_create", compilation)
    a, b, y = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32), np.empty(4, np.float32)
    set_inputs(api, execution, a, b)
    api.ok("Execution_setOutput", execution, 0, None, address(y), 16)
    api.ok("Execution_compute", execution)
    return y.tolist() == [10, 11, 12, 13]


def warned(caplog: pytest.LogCaptureFixture, path: Path, kind: str) -> None:
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith(f"{path}: ")
    assert REFUSED.get(kind, "") in record.getMessage()


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_prepared_anew(
    api: Api, fresh: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    model = add_model(api)
    assert sums(api, model, tmp_path)
    (path,) = tmp_path.glob("*.model0")
    plant(kind, path)
    aside = path.with_name(f"{path.name}.aside")
    before = aside.read_bytes() if aside.exists() and kind != "socket" else None
    with promptly():
        assert sums(api, model, tmp_path)
    assert len(fresh) == 2, "not from the cache"
    warned(caplog, path, kind)
    assert before is None or aside.read_bytes() == before, "what a link leads to is not written to"
    caplog.clear()
    if kind != "directory":  # nothing takes its place
        assert path.is_file()
        assert not path.is_symlink()
        assert sums(api, model, tmp_path)
        assert len(fresh) == 2, "its place was taken"
        assert caplog.records == []


@pytest.mark.parametrize("kind", STRANGE)
def test_data_are_prepared_anew(
    api: Api, fresh: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    model = add_model(api)
    assert sums(api, model, tmp_path)
    (path,) = tmp_path.glob("*.data0")
    plant(kind, path)
    with promptly():
        assert sums(api, model, tmp_path)
    assert len(fresh) == 2
    warned(caplog, path, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_note_of_a_cut_is_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    one, two = devices.devices()
    stretches = [(one, range(2)), (two, range(2, 40))]
    kept = caching.CachedCompilation(caching.Cache(str(tmp_path), bytes(32)), [one, two], 40)
    kept.note(stretches)
    (path,) = tmp_path.glob("*.cut")
    path.write_text(path.read_text() + " " * 200)
    plant(kind, path)
    harmless = kind in ("hard link", "cut")  # the same content, or less blanks at its end
    with promptly():
        assert list(kept.candidates())[2:] == ([stretches] if harmless else [])
    if not harmless:
        (record,) = caplog.records
        assert record.getMessage().startswith(f"{path}: how the model was cut is forgotten: ")
    with promptly():
        kept.note(stretches)
    if kind != "directory":
        assert list(kept.candidates())[2:] == [stretches]
        assert not path.is_symlink()


@pytest.mark.parametrize("note", ["[" * 100_000, "9" * 5000, "[[0, 1e999]]", "[[0, 40], [1, " + "9" * 4000 + "]]"])
def test_a_note_that_nobody_can_read(tmp_path: Path, caplog: pytest.LogCaptureFixture, note: str) -> None:
    one, two = devices.devices()
    kept = caching.CachedCompilation(caching.Cache(str(tmp_path), bytes(32)), [one, two], 40)
    kept.note([(one, range(2)), (two, range(2, 40))])
    (path,) = tmp_path.glob("*.cut")
    path.write_text(note)
    assert len(list(kept.candidates())) == 2
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", ["missing", "file", "pipe", "loop"])
def test_a_directory_that_is_none(
    api: Api, fresh: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    folder = tmp_path / "cache"
    if kind != "missing":
        folder.write_text("in the way")
    if kind not in ("missing", "file"):
        plant(kind, folder)
    with promptly():
        assert sums(api, add_model(api), folder)
    assert len(fresh) == 1
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "the compilation is not cached: " in record.getMessage()


def test_a_lack_of_descriptors_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model0"
    path.write_bytes(b"good")
    path.chmod(0o600)

    def refuse(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    entry = caching.CacheEntry([str(path)], [], bytes(32))
    for create in (False, True):
        with entry.opened(create=create) as files:
            assert files is None
    monkeypatch.undo()
    assert path.read_bytes() == b"good"
