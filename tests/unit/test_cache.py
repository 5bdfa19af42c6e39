"""Program files: complete or absent, checked before use, and never a reason to fail."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import multiprocessing
import os
import resource
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim import cache
from npusim.cache import Cache, describe, read_program, restore, write_program
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import CacheError, UsageError
from npusim.hw.config import load_config
from npusim.isa.functions import Unary
from npusim.ops.build import GraphBuilder
from npusim.program import FIRST_IO, ConstantData, Program
from npusim.runtime import Session
from npusim.trusted_files import DRAFT
from tests.support.graphs.samples import increment, product, residual_net

TINY = load_config("tiny")
KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def program() -> Program:
    return compile_graph(residual_net(8, 8, 1), TINY, KEY)


@pytest.fixture
def file(program: Program, tmp_path: Path) -> Path:
    path = tmp_path / "program.npu"
    write_program(program, path)
    return path


def same(one: Program, other: Program) -> bool:
    fields = [name for name in Program.__slots__ if name not in ("constants", "from_cache", "emitted", "__weakref__")]
    return bytes(one.constants.joined()) == bytes(other.constants.joined()) and all(
        getattr(one, name) == getattr(other, name) for name in fields
    )


def test_round_trip(program: Program, file: Path) -> None:
    found = read_program(file)
    assert same(found, program)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    session = Session(TINY, cache_dir=False)
    fresh, cached = (session.run(candidate, {"x": x}) for candidate in (program, found))
    assert fresh.timeline.digest() == cached.timeline.digest()
    assert [a.tobytes() for a in fresh.outputs.values()] == [a.tobytes() for a in cached.outputs.values()]


def test_bound_inputs_are_kept(program: Program, tmp_path: Path) -> None:
    bound = replace(program, bound=(("rate", "16000"), ("axes", "[1, 2]")))
    write_program(bound, tmp_path / "bound.npu")
    assert same(read_program(tmp_path / "bound.npu"), bound)


def test_the_file_depends_on_the_program_alone(program: Program, tmp_path: Path) -> None:
    one, other = tmp_path / "one.npu", tmp_path / "deep" / "down" / "other.npu"
    write_program(program, one)
    write_program(program, other)
    assert one.read_bytes() == other.read_bytes()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["deep", "one.npu"]


def test_loading_takes_a_small_part_of_compiling(tmp_path: Path) -> None:
    graph = residual_net(16, 32, 4)
    started = time.process_time()
    program = compile_graph(graph, TINY.with_(**{"sram.bytes": 32768}), KEY)
    compiling = time.process_time() - started
    path = tmp_path / "program.npu"
    write_program(program, path)
    loading = min(_timed(path) for _ in range(5))
    assert loading < compiling / 5, f"{loading:.4f} s of {compiling:.4f} s"


def _timed(path: Path) -> float:
    started = time.process_time()
    read_program(path)
    return time.process_time() - started


# Damage


def test_truncated_anywhere(file: Path) -> None:
    raw = file.read_bytes()
    rng = np.random.default_rng(1)
    ends = {*range(130), len(raw) - 1, len(raw) - 64, *rng.integers(0, len(raw), 60).tolist()}
    for end in sorted(ends):
        file.write_bytes(raw[:end])
        with pytest.raises(CacheError) as caught:
            read_program(file)
        message = str(caught.value)
        assert message.startswith(f"{file}: ")
        assert (
            f"{end} bytes, too short for a program file" in message
            or f"is truncated: {end} bytes, its header says {len(raw)}" in message
        )


def test_altered_anywhere(program: Program, file: Path) -> None:
    """Every meaningful byte is covered by the checksum; changes to padding have no effect."""
    raw = file.read_bytes()
    rng = np.random.default_rng(2)
    positions = {*range(80), len(raw) - 1, *rng.integers(0, len(raw), 150).tolist()}
    refused = 0
    for position in sorted(positions):
        damaged = bytearray(raw)
        damaged[position] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        try:
            found = read_program(file)
        except CacheError:
            refused += 1
        else:
            assert same(found, program), position
            assert raw[position] == 0, position
    assert refused >= 200


def test_trailing_bytes(file: Path) -> None:
    size = file.stat().st_size
    with file.open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(CacheError, match=f"has bytes after its end: {size + 4} bytes, its header says {size}"):
        read_program(file)


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "image.npu"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(500))
    with pytest.raises(CacheError, match=r"image\.npu: is not a program file of npusim$"):
        read_program(path)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.npu: cannot be read: No such file or directory$"):
        read_program(tmp_path / "none.npu")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_program(tmp_path)


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (8, r"program\.npu: has format 77; this npusim reads format \d+$"),
        (12, r"program\.npu: is for instruction set 77, this npusim has instruction set \d+: compile the model again$"),
    ],
)
def test_other_versions(file: Path, offset: int, message: str) -> None:
    """A newer or older file is not called damaged: the error names its version."""
    raw = bytearray(file.read_bytes())
    raw[offset : offset + 4] = struct.pack("<I", 77)
    file.write_bytes(raw)
    with pytest.raises(CacheError, match=message):
        read_program(file)


def test_a_sound_checksum_around_nonsense(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for nonsense in (b"{}", b"[1, 2]", b"null", b"\xff\xfe", b'{"name": "x"'):
        path = tmp_path / "odd.npu"
        monkeypatch.setattr("npusim.cache.json.dumps", lambda *args, value=nonsense, **kwargs: value.decode("latin-1"))
        write_program(program, path)
        monkeypatch.undo()
        with pytest.raises(CacheError, match="the description does not make sense"):
            read_program(path)


def changed(program: Program, *way: Any, to: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(cache.describe(program)))
    owner: Any = document
    for key in way[:-1]:
        owner = owner[key]
    owner[way[-1]] = to
    return document


@pytest.mark.parametrize(
    ("way", "value", "message"),
    [
        (("name",), 5, "name: must be a string of at most 65536 characters, got 5"),
        (("name",), "x" * 65537, "name: must be a string of at most 65536 characters, got 'xxx"),
        (("key",), "\ud800", "key: must be text without half surrogates"),
        (("more",), 1, "the description: must be an object with name, config, .* and nothing else, got an object"),
        (("regions",), {}, "regions: must be a list, got an object"),
        (("regions",), [0], "regions: there must be 2, and one for each of 2 inputs and outputs, got 1"),
        (("regions", 1), -1, r"regions\[1\]: must be an integer from 0 to 2\^48, got -1"),
        (("regions", 1), True, r"regions\[1\]: must be an integer from 0 to 2\^48, got True"),
        (("regions", 1), 2**48 + 1, r"regions\[1\]: must be an integer from 0 to 2\^48, got 281474976710657"),
        (("regions", 0), 0, r"regions\[0\]: must hold \d+ bytes of constants, got 0"),
        (("regions", 2), 1, "'x': takes 768 bytes, but its region has 1"),
        (("inputs", 0, 1), 3, "'x': its region must be 2, got 3"),
        (("outputs", 0, 1), 2, "'.*': its region must be 3, got 2"),
        (("inputs", 0, 2), [2**25, 2**24], r"inputs\[0\]\[2\]: must be at most 32 dimensions with a product"),
        (("inputs", 0, 2), [0, 2**48, 2], r"inputs\[0\]\[2\]: must be at most 32 dimensions with a product"),
        (("inputs", 0, 2), [1] * 33, r"inputs\[0\]\[2\]: must be at most 32 dimensions .* got 33 entries"),
        (("inputs", 0, 3), "Float32", r"inputs\[0\]\[3\]: must be one of bool, int8, .*, got 'Float32'"),
        (("inputs", 0), ["x"], r"inputs\[0\]: must be a list of 4, got 1 entries"),
        (("ops",), [["a", "Conv"]], r"ops: there are 1, but a command is for number \d+$"),
        (("ops", 0), ["a", None], r"ops\[0\]\[1\]: must be a string"),
        (("members", 0), [5], r"members\[0\]\[0\]: must be a string"),
        (("members",), [["a"]] * 99, r"members: there must be a list for each of \d+ operators, got 99"),
        (("results", 0), 5, r"results\[0\]: must be a string"),
        (("results",), ["a"] * 99, r"results: there must be a text for each of \d+ operators, got 99"),
        (("commands",), 1.0, r"commands: must be an integer from 0 to 2\^48, got 1.0"),
        (("bound",), [["rate", 5]], r"bound\[0\]\[1\]: must be a string"),
        (("bound",), [["x", "5"]], "inputs: names must be unique"),
        (("places",), [["rom", 0, "value", "v", 0, 64, 0, 0]], r"places\[0\]\[0\]: must be one of sram, .*, got 'rom'"),
        (("places",), [["sram", -2, "value", "v", 0, 64, 0, 0]], r"places\[0\]\[1\]: must be an integer from 0 to"),
        (("places",), [["sram", -1, "values", "v", 0, 64, 0, 0]], r"places\[0\]\[2\]: must be one of value, "),
        (("places",), [["sram", 0, "value", "v", 0, 64, 1, 0]], r"places\[0\]: must be from one of \d+ operators"),
        (("places",), [["sram", 0, "value", "v", 0, 64, 0, 99]], r"places\[0\]: must be .* a later one, got 0 to 99"),
        (("macs",), [["float32", 2**65]], r"macs\[0\]\[1\]: must be an integer from 0 to 2\^64"),
    ],
)  # fmt: skip
def test_a_description_that_breaks_a_rule(program: Program, way: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(CacheError, match=f"^{message}"):
        cache.restore(changed(program, *way, to=value), program.code, program.constants.joined())


def test_two_inputs_of_one_name(program: Program) -> None:
    ((name, _, shape, kind),) = cache.describe(program)["inputs"]
    document = changed(program, "inputs", to=[[name, 2, shape, kind], [name, 3, shape, kind]])
    document["outputs"][0][1] = 4
    document["regions"].insert(3, document["regions"][2])
    with pytest.raises(CacheError, match=r"^inputs: names must be unique$"):
        cache.restore(document, program.code, program.constants.joined())


@pytest.mark.parametrize(
    "text", ['{"name": 1, "name": 2}', "[" * 100_000, "1" * 5000, '"\\x"'], ids=["twice", "deep", "digits", "escape"]
)
def test_json_that_no_reader_should_take(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "odd.npu"
    monkeypatch.setattr("npusim.cache.json.dumps", lambda *args, **kwargs: text)
    write_program(program, path)
    monkeypatch.undo()
    with pytest.raises(CacheError, match=r"odd\.npu: the description does not make sense: "):
        read_program(path)


def test_a_description_that_is_too_long(program: Program, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.cache.LONGEST_DESCRIPTION", 100)
    with pytest.raises(CacheError, match=r"the description must have at most 100 bytes, got \d+"):
        read_program(file)
    with pytest.raises(CacheError, match=r"the description must have at most 100 bytes, got \d+"):
        write_program(program, file)
    assert Cache(file.parent).entries() == []


def test_a_program_that_could_not_be_read_again_is_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = compile_graph(product(4, 4, 4), TINY, "k" * 70_000)
    with pytest.raises(CacheError, match=r"^key: must be a string"):
        write_program(program, tmp_path / "x.npu")
    program.key, program.name = KEY, "n" * 70_000
    Cache(tmp_path).put(program)
    assert "the program is not kept: name: must be a string" in caplog.text
    assert list(tmp_path.iterdir()) == []


# The directory


def test_hit_and_miss(program: Program, tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    assert store.get(KEY) is None
    store.put(program)
    found = store.get(KEY)
    assert found is not None
    assert found.from_cache
    assert same(found, program)
    assert store.get("another") is None


def test_a_program_under_a_wrong_name(program: Program, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Cache(tmp_path)
    store.put(program)
    shutil.copy(store.path(KEY), store.path("wrong"))
    with caplog.at_level(logging.WARNING, "npusim.cache"):
        assert store.get("wrong") is None
    assert "wrong.npu: holds the program of key 0123456789abcdef" in caplog.text
    assert "compiling again" in caplog.text


def test_entries_leave_out_what_is_no_program(program: Program, tmp_path: Path) -> None:
    assert Cache(tmp_path / "nowhere").entries() == []
    store = Cache(tmp_path)
    store.put(program)
    (tmp_path / "a.npu").write_bytes(b"not a program")
    (tmp_path / "b.npu").write_bytes(store.path(KEY).read_bytes()[:90])
    (tmp_path / "c.txt").write_text("text")
    (entry,) = store.entries()
    assert (entry.path, entry.model, entry.config) == (store.path(KEY), "residual", "tiny")
    assert entry.bytes == store.path(KEY).stat().st_size


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "chosen"))
    assert cache.default_directory() == tmp_path / "chosen"
    monkeypatch.delenv("NPUSIM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.default_directory() == tmp_path / "xdg" / "npusim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.default_directory() == tmp_path / ".cache" / "npusim"


# A session with a cache


def only_file(directory: Path) -> Path:
    (path,) = directory.glob("*.npu")
    return path


def test_a_session_compiles_once(tmp_path: Path) -> None:
    graph = product(8, 32, 8)
    first, second = (Session("tiny", cache_dir=tmp_path).compile(graph) for _ in range(2))
    assert not first.from_cache
    assert second.from_cache
    assert same(first, second)
    assert Session("tiny", cache_dir=False).compile(graph).from_cache is False


def test_another_device_or_model_has_another_key(tmp_path: Path) -> None:
    Session("tiny", cache_dir=tmp_path).compile(product(8, 32, 8))
    others = [
        Session(TINY.with_(cores=2), cache_dir=tmp_path).compile(product(8, 32, 8)),
        Session(TINY.with_(**{"dram.bandwidth": 10**9}), cache_dir=tmp_path).compile(product(8, 32, 8)),
        Session("tiny", cache_dir=tmp_path).compile(product(8, 32, 9)),
    ]
    assert not any(program.from_cache for program in others)
    assert len(list(tmp_path.glob("*.npu"))) == 4


@pytest.mark.parametrize("damage", ["truncated", "altered", "foreign", "version", "empty", "directory"])
def test_damage_is_named_and_compiled_again(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = product(8, 32, 8)
    fresh = Session("tiny", cache_dir=tmp_path).compile(graph)
    path = only_file(tmp_path)
    raw = bytearray(path.read_bytes())
    words = {
        "truncated": "is truncated", "altered": "has been altered", "foreign": "is not a program file of npusim",
        "version": "has format", "empty": "0 bytes, too short", "directory": "cannot be read",
    }[damage]  # fmt: skip
    if damage == "truncated":
        path.write_bytes(raw[:-70])
    elif damage == "altered":
        raw[200] ^= 1
        path.write_bytes(raw)
    elif damage == "foreign":
        path.write_bytes(b"something else" * 20)
    elif damage == "version":
        raw[8] = 99
        path.write_bytes(raw)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        path.mkdir()
    with caplog.at_level(logging.WARNING, "npusim.cache"):
        again = Session("tiny", cache_dir=tmp_path).compile(graph)
    assert not again.from_cache
    assert same(again, fresh)
    assert words in caplog.text
    assert "compiling again" in caplog.text
    assert path.name in caplog.text
    if damage != "directory":
        assert Session("tiny", cache_dir=tmp_path).compile(graph).from_cache, "the damaged file was replaced"


def test_a_directory_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    with caplog.at_level(logging.WARNING, "npusim.cache"):
        program = Session("tiny", cache_dir=blocker / "cache").compile(increment())
    assert program.commands
    assert "the program is not kept: Not a directory" in caplog.text


def test_a_read_only_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:  # root ignores permissions, so refuse explicitly

        def refuse(*args: object, **kwargs: object) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr("npusim.trusted_files._new_draft", refuse)
    tmp_path.chmod(0o555)
    with caplog.at_level(logging.WARNING, "npusim.cache"):
        program = Session("tiny", cache_dir=tmp_path).compile(increment())
    tmp_path.chmod(0o755)
    assert program.commands
    assert f"{tmp_path}: the program is not kept: Permission denied" in caplog.text
    assert list(tmp_path.iterdir()) == []


@contextmanager
def no_room_for(size: int) -> Iterator[None]:
    """Limit files of this process to ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_nothing_behind(program: Program, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Cache(tmp_path)
    with caplog.at_level(logging.WARNING, "npusim.cache"), no_room_for(1000):
        store.put(program)
    assert "the program is not kept: File too large" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_what_was_there(program: Program, tmp_path: Path) -> None:
    store = Cache(tmp_path)
    store.put(program)
    before = store.path(KEY).read_bytes()
    with no_room_for(1000):
        store.put(program)
    assert store.path(KEY).read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == [f"{KEY}.npu"]


# A directory that others can write to


def foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the owner of a file, or pretend so if the user may not change owners."""
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        return
    number, status = path.stat().st_ino, os.fstat

    def seen(descriptor: int) -> os.stat_result:
        found = status(descriptor)
        return found if found.st_ino != number else os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))

    monkeypatch.setattr("npusim.trusted_files.os.fstat", seen)


def plant(kind: str, path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a file of the cache: most kinds contain another program under the right one's key."""
    aside = path.with_name("aside")
    if kind == "plain":
        write_program(program, path)
    elif kind == "forged":
        write_program(program, path)
        path.write_bytes(b"NPUCACHE" + path.read_bytes()[8:])
    elif kind == "another key":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NPUSIM_STATE_DIR", str(path.parent.parent / "their state"))
            Cache(path.parent).put(program)
    elif kind == "writable":
        path.chmod(0o620)
    elif kind == "foreign":
        foreign(path, monkeypatch)
    elif kind == "link":
        path.rename(aside)
        path.symlink_to(aside)
    elif kind == "loop":
        path.unlink()
        path.symlink_to(path)
    elif kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        path.unlink()
        monkeypatch.chdir(path.parent)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name[:20])
        Path(path.name[:20]).rename(path)


PLANTED = {
    "plain": "was not written by a cache",
    "forged": "has been altered: it was not written by npusim of this user",
    "another key": "has been altered: it was not written by npusim of this user",
    "writable": "is open to others (mode 620)",
    "foreign": "belongs to user ",
    "link": "is a symbolic link",
    "loop": "is a symbolic link",
    "pipe": "is not a regular file",
    "socket": "cannot be read: ",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_what_others_plant_is_never_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    fresh = Session("tiny", cache_dir=folder).compile(product(8, 32, 8))
    path = only_file(folder)
    plant(kind, path, compile_graph(product(8, 32, 9), TINY, fresh.key), monkeypatch)
    store = Cache(folder)
    with caplog.at_level(logging.WARNING, "npusim.cache"):
        assert store.entries() == []
        assert store.get(fresh.key) is None
    assert [PLANTED[kind] in record.message for record in caplog.records] == [True, True]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "npusim.cache"):
        again = Session("tiny", cache_dir=folder).compile(product(8, 32, 8))
    assert not again.from_cache
    assert same(again, fresh)
    assert len(caplog.records) == 1, "said once"
    monkeypatch.undo()
    assert Session("tiny", cache_dir=folder).compile(product(8, 32, 8)).from_cache, "its place was taken"


def test_a_pipe_in_the_cache_keeps_no_command_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npu")
    os.mkfifo(tmp_path / f".abcdefgh{DRAFT}")
    for command in ("list", "clear"):
        done = subprocess.run(
            [sys.executable, "-m", "npusim", "cache", command, "--cache-dir", str(tmp_path)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0
        assert done.stderr.count("a.npu") == 1
        assert "is not a regular file" in done.stderr
    assert len(list(tmp_path.iterdir())) == 2


def test_a_pipe_is_no_program_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npu")
    with pytest.raises(UsageError, match=r"a\.npu: cannot be read: is not a regular file$"):
        read_program(tmp_path / "a.npu")


@pytest.mark.parametrize("cached", [True, False])
def test_what_was_checked_stays(program: Program, tmp_path: Path, cached: bool) -> None:
    """Truncating or changing the file afterwards does not change the program."""
    store = Cache(tmp_path)
    store.put(program)
    path = store.path(KEY)
    if not cached:
        write_program(program, path)
    found = store.get(KEY) if cached else read_program(path)
    assert found is not None
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert same(found, program)
    os.truncate(path, 0)
    assert same(found, program)


def test_files_of_the_cache_are_for_this_user(program: Program, tmp_path: Path) -> None:
    store = Cache(tmp_path / "deep" / "cache")
    store.put(program)
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(store.path(KEY).stat().st_mode) == 0o600
    with pytest.raises(CacheError, match="is of a cache; npusim compile -o makes one to give away"):
        read_program(store.path(KEY))
    mask = os.umask(0o027)
    try:
        write_program(program, tmp_path / "given.npu")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "given.npu").stat().st_mode) == 0o640


def test_without_a_safe_place_for_the_key_nothing_is_kept(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("NPUSIM_STATE_DIR", str(shared))
    store = Cache(shared)
    with caplog.at_level(logging.WARNING, "npusim.cache"):
        store.put(program)
        assert store.get(KEY) is None
    assert list(shared.iterdir()) == []
    (record,) = caplog.records
    assert "programs are not kept: its directory is open to others (mode 777)" in record.message


@pytest.mark.parametrize("written", [Cache.put, lambda store, program: store.clear()])
def test_drafts_go_when_nobody_writes_them(
    program: Program, tmp_path: Path, written: Callable[[Cache, Program], object]
) -> None:
    for name in (f".left{DRAFT}", f".held{DRAFT}", ".profile.tmp"):
        (tmp_path / name).write_bytes(b"half")
    with (tmp_path / f".held{DRAFT}").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        written(Cache(tmp_path), program)
    assert {item.name for item in tmp_path.iterdir()} - {f"{KEY}.npu"} == {f".held{DRAFT}", ".profile.tmp"}


def test_clear_takes_what_is_outdated_and_damaged_too(program: Program, tmp_path: Path) -> None:
    store = Cache(tmp_path)
    store.put(program)
    raw = store.path(KEY).read_bytes()
    for name, content in (("cut", raw[:90]), ("old", raw[:8] + b"\x63" + raw[9:]), ("image", b"\x89PNG")):
        store.path(name).write_bytes(content)
        store.path(name).chmod(0o600)
    write_program(program, store.path("plain"))
    assert len(store.clear()) == 4
    assert [item.name for item in tmp_path.iterdir()] == ["image.npu"]


# Several at once


def _write_often(directory: str, times: int) -> None:
    program = compile_graph(product(4, 64, 64), TINY, KEY)
    for _ in range(times):
        write_program(program, Path(directory) / f"{KEY}.npu")


def test_concurrent_writers_never_tear_a_file(tmp_path: Path) -> None:
    """Processes and threads write one file repeatedly; concurrent readers always get a complete one."""
    path = tmp_path / f"{KEY}.npu"
    program = compile_graph(product(4, 64, 64), TINY, KEY)
    write_program(program, path)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(str(tmp_path), 100)) for _ in range(2)]
    threads = [threading.Thread(target=_write_often, args=(str(tmp_path), 50)) for _ in range(2)]
    workers: list[Any] = [*writers, *threads]
    for worker in workers:
        worker.start()
    reads = 0
    while any(worker.is_alive() for worker in workers) or reads < 50:
        assert same(read_program(path), program)
        reads += 1
    for worker in workers:
        worker.join()
    assert [process.exitcode for process in writers] == [0, 0]
    assert [item.name for item in tmp_path.iterdir()] == [path.name], "drafts are gone"


def test_a_file_from_before_inputs_could_be_bound_and_places_told_has_none(tmp_path: Path) -> None:
    program = compile_graph(product(4, 4, 4), TINY)
    meta = describe(program)
    del meta["bound"], meta["states"], meta["places"]
    restored = restore(meta, program.code, program.constants.joined())
    assert restored.bound == restored.states == restored.places == ()


def growing() -> Program:
    """x [2, 3, 4] grows in place to y [2, 5, 4], with room for 8 rows; other and z have separate memory."""
    build = GraphBuilder("growing")
    x, rows = build.input("x", (2, 3, 4), DType.FLOAT32), build.input("rows", (2, 2, 4), DType.FLOAT32)
    graph = build.finish([build.add("concat", [x, rows], {"axis": 1}), build.add("unary", [rows], {"fn": Unary.RELU})])
    graph.cache_rows = 8
    return compile_graph(graph, TINY, KEY)


def test_states_are_kept(tmp_path: Path) -> None:
    program = growing()
    assert [(old.name, old.region, grown.region, old.axis, old.capacity) for old, grown in program.states] == [
        ("x", FIRST_IO, FIRST_IO, 1, 8)
    ]
    write_program(program, tmp_path / "growing.npu")
    assert same(read_program(tmp_path / "growing.npu"), program)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([[0, 0, 1]], r"states\[0\]: must be a list of 4, got 3 entries"),
        ([[2, 0, 1, 8]], r"states\[0\]: there are 2 inputs and 2 outputs, got 2 and 0"),
        ([[0, 2, 1, 8]], r"states\[0\]: there are 2 inputs and 2 outputs, got 0 and 2"),
        ([[0, 0, 3, 8]], r"states\[0\]: x float32\[2, 3, 4\] and .* must be equal except for axis 3"),
        ([[0, 0, 0, 8]], r"states\[0\]: .* must be equal except for axis 0"),
        ([[0, 0, 1, 4]], r"states\[0\]: .* must grow to .* along axis 1, within 4 rows"),
        ([[0, 0, 1, 0]], r"states\[0\]: .* must grow to .* along axis 1, within 0 rows"),
        ([[1, 1, 1, 1]], r"states\[0\]: .* must grow to .* along axis 1, within 1 rows"),
        ([[0, 0, 1, 8], [1, 0, 1, 8]], r"states\[1\]: 'rows' and .* must not share their regions with others"),
        ([[0, 0, 1, 8], [0, 1, 1, 8]], r"states\[1\]: 'x' and .* must not share their regions with others"),
        ([[0, 0, 1, 9]], r"'x': takes 288 bytes, but its region has 256"),
        ([[0, 0, 1, 2**48]], r"'x': takes \d+ bytes, but its region has 256"),
        ([], r"'concat': takes 160 bytes, but its region has 0"),
    ],
)
def test_states_that_cannot_be(state: list[list[int]], message: str) -> None:
    program = growing()
    with pytest.raises(CacheError, match=f"^{message}"):
        cache.restore(changed(program, "states", to=state), program.code, program.constants.joined())


# A limit


def kept_programs(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.npu"))


def test_what_was_not_used_for_longest_makes_room(program: Program, tmp_path: Path) -> None:
    keys = [f"{number:064x}" for number in range(4)]
    Cache(tmp_path / "one").put(replace(program, key=keys[0]))
    size = next((tmp_path / "one").iterdir()).stat().st_size
    kept = Cache(tmp_path / "many", 3 * size + size // 2)
    for number, key in enumerate(keys[:3]):
        kept.put(replace(program, key=key))
        os.utime(kept.path(key), ns=(number, number))
    assert kept.get(keys[0]) is not None  # from now on it is the last to go
    kept.put(replace(program, key=keys[3]))
    assert kept_programs(kept.directory) == [keys[0], keys[2], keys[3]]
    assert kept.prune(size) == [size, size]
    assert kept.prune() == []
    assert kept.prune(0) == [size]


def test_what_is_larger_than_the_cache_may_be_is_not_kept(
    program: Program, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Cache(tmp_path, 100).put(program)
    assert "is not kept: it takes" in caplog.text
    assert not list(tmp_path.iterdir())


def test_pruning_leaves_what_is_no_program_of_this_users(program: Program, tmp_path: Path) -> None:
    kept = Cache(tmp_path)
    kept.put(program)
    (tmp_path / "other.npu").write_bytes(b"not ours")
    (tmp_path / "link.npu").symlink_to(tmp_path / "other.npu")
    os.mkfifo(tmp_path / "pipe.npu")
    kept.prune(0)
    assert kept_programs(tmp_path) == ["link", "other", "pipe"]


def test_a_full_disk_makes_room_by_what_is_kept(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Cache(tmp_path)
    keys = [f"{number:064x}" for number in range(5)]
    for key in keys[:4]:
        kept.put(replace(program, key=key))
    for number, key in enumerate(keys[:4]):
        os.utime(kept.path(key), ns=(number, number))
    written, write = [], cache.replace_file

    def full(path: Path, pieces: Any, **_: Any) -> None:
        written.append(path)
        if len(kept_programs(tmp_path)) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, pieces)

    monkeypatch.setattr(cache, "replace_file", full)
    kept.put(replace(program, key=keys[4]))
    assert len(written) == 2
    left = kept_programs(tmp_path)
    assert left in ([keys[2], keys[3], keys[4]], [keys[3], keys[4]])


@pytest.mark.parametrize(("text", "size"), [("", 4 << 30), ("1000", 1000), ("20 GB", 20 * 10**9), ("1 MiB", 1 << 20)])
def test_the_limit_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, size: int) -> None:
    monkeypatch.setenv("NPUSIM_CACHE_SIZE", text)
    assert Cache(tmp_path).limit == size


def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPUSIM_CACHE_SIZE", "much")
    with pytest.raises(UsageError, match=r"^NPUSIM_CACHE_SIZE: must be a size such as"):
        Cache(tmp_path)


def test_a_program_for_timing_has_no_constants_in_its_file(program: Program, tmp_path: Path) -> None:
    timing = replace(program, constants=ConstantData(program.constants.nbytes, (), left_out=True))
    kept = Cache(tmp_path)
    kept.put(timing)
    found = kept.get(KEY)
    assert found is not None
    assert found.timing_only
    assert found.constants.nbytes == found.region_bytes[0]
    assert found.code == program.code
    assert describe(program).keys() == describe(timing).keys() - {"timing_only"}
    with pytest.raises(CacheError, match=r"^timing_only: there must be no constants then, got 64 bytes"):
        restore(json.loads(json.dumps(describe(timing))), program.code, np.zeros(64, np.uint8))
    with pytest.raises(CacheError, match=r"^timing_only: must be true or false, got 1"):
        restore({**json.loads(json.dumps(describe(timing))), "timing_only": 1}, program.code, np.zeros(0, np.uint8))
