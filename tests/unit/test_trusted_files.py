"""The user's own files: what is opened, what is refused, and that files are complete or absent."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from npusim.trusted_files import (
    DRAFT,
    KEY_BYTES,
    STATE_VARIABLE,
    open_descriptor,
    open_regular,
    remove_drafts,
    replace_file,
    replacement,
    state_directory,
    user_key,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    path.chmod(0o600)
    return path


def refusal(path: Path, **how: bool) -> tuple[int | None, str | None]:
    """Return number and text of the error. Fails if a descriptor stays open."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError) as found:
        open_regular(path, **how)
    assert os.listdir("/proc/self/fd") == before
    return found.value.errno, found.value.strerror


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == (errno.EINVAL, "is not a regular file")
    assert refusal(tmp_path)[0] == errno.EISDIR
    assert refusal(tmp_path / "nothing")[0] == errno.ENOENT
    assert refusal(Path("a\0b")) == (errno.EINVAL, "is not a path")


def test_links_are_followed_unless_that_is_forbidden(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    with open_regular(link) as opened:
        assert opened.read() == b"abc"
    for how in ({"links": False}, {"own": True}):
        assert refusal(link, **how) == (errno.ELOOP, "is a symbolic link")
    with open_regular(file, links=False) as opened:
        assert opened.read() == b"abc"
        assert not os.get_inheritable(opened.fileno())
        assert not os.get_blocking(opened.fileno())


@pytest.mark.parametrize("mode", [0o600 | 1 << bit for bit in range(9)])
def test_own_files_are_those_that_nobody_else_may_write(file: Path, mode: int) -> None:
    file.chmod(mode)
    if mode & 0o022:
        assert refusal(file, own=True) == (errno.EACCES, f"is open to others (mode {mode:o})")
    else:
        open_regular(file, own=True).close()
    open_regular(file).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_another_user_are_not_own(file: Path) -> None:
    os.chown(file, 12345, -1)
    assert refusal(file, own=True) == (errno.EACCES, "belongs to user 12345")


def test_a_file_that_is_made_has_the_mode(tmp_path: Path) -> None:
    for mode in (0o600, 0o640):
        path = tmp_path / f"{mode:o}"
        os.close(open_descriptor(path, os.O_CREAT | os.O_WRONLY, own=True, mode=mode))
        assert stat.S_IMODE(path.stat().st_mode) == mode & ~_umask()
    os.close(open_descriptor(tmp_path / "plain", os.O_CREAT | os.O_WRONLY, own=True))
    assert stat.S_IMODE((tmp_path / "plain").stat().st_mode) == 0o600


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    replace_file(path, [b"ab", b"", b"c"])
    assert path.read_bytes() == b"abc"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    replace_file(path, [b"d"], mode=0o666, durable=False)
    assert path.read_bytes() == b"d"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_replacement_is_closed(tmp_path: Path, fails: bool) -> None:
    with contextlib.suppress(ZeroDivisionError), replacement(tmp_path / "file") as file:
        file.write(b"abc")
        assert not fails or 1 // 0
    assert file.closed


@pytest.mark.parametrize("durable", [True, False])
def test_it_is_flushed_to_the_disk_where_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    replace_file(tmp_path / "file", [b"a"], durable=durable)
    assert len(flushed) == durable


def test_after_an_error_the_old_file_is_there_and_no_draft(file: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replace_file(file, pieces())
    assert file.read_bytes() == b"abc"
    assert os.listdir(file.parent) == ["file"]


def test_drafts_without_a_writer_are_removed(tmp_path: Path) -> None:
    left, other = tmp_path / f"left{DRAFT}", tmp_path / "other"
    for path in (left, other):
        path.touch()
    (tmp_path / f"link{DRAFT}").symlink_to(other)
    with replacement(tmp_path / "file") as file:  # which removes the first of them
        drafts = [name for name in os.listdir(tmp_path) if name.endswith(DRAFT)]
        assert len(drafts) == 2
        remove_drafts(tmp_path)
        assert os.path.exists(file.name)
    assert sorted(os.listdir(tmp_path)) == ["file", f"link{DRAFT}", "other"]
    remove_drafts(tmp_path / "nowhere")


def test_a_draft_is_locked_while_it_is_written(tmp_path: Path) -> None:
    with replacement(tmp_path / "file") as file, open(file.name, "rb") as second, pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "key"
    key = user_key(path)
    assert len(key) == KEY_BYTES == 32
    assert user_key(path) == key == path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert user_key(tmp_path / "another") != key
    assert os.listdir(path.parent) == ["key"]


@pytest.mark.parametrize("mode", [0o600 | 1 << bit for bit in range(6)])
def test_a_key_that_others_may_know_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    user_key(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(PermissionError, match=f"is open to others .mode {mode:o}"):
        user_key(tmp_path / "key")


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_key_in_a_folder_that_others_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match=f"its directory is open to others .mode {mode:o}"):
        user_key(tmp_path / "key")


@pytest.mark.parametrize("size", [0, 31, 33, 100])
def test_a_key_of_another_length_is_refused(file: Path, size: int) -> None:
    file.write_bytes(bytes(size))
    with pytest.raises(OSError, match=f"the key must have 32 bytes, got {min(size, 33)}"):
        user_key(file)


def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "own"))
    assert state_directory() == tmp_path / "own"
    monkeypatch.delenv(STATE_VARIABLE)
    assert state_directory() == tmp_path / "xdg" / "npusim"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_directory() == tmp_path / ".local/state/npusim"
