"""Files of this user's own: whom a file must belong to before it is read, and a key that nobody else knows.

What is found at a path in a directory that others share may be anything: a pipe that never ends, a link, a file of
somebody else's. So a file is opened without waiting, and what was opened is looked at, not the path.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

KEY_BYTES = 32
STATE_VARIABLE = "NPUSIM_STATE_DIR"
OLD_S = 3600
"""A draft that was not touched for so long has no writer any more."""


def state_directory() -> Path:
    """``$NPUSIM_STATE_DIR``, else ``npusim`` in the user's state directory."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "npusim"


def open_regular(path: Path, *, own: bool = False, links: bool = True) -> io.FileIO:
    """Open a regular file for reading, without a buffer; never waits. Raises OSError.

    ``own``: it must be this user's, no link, and nobody else may be able to write to it. ``links``: whether the path
    may be a symbolic link.
    """
    return io.FileIO(open_descriptor(path, os.O_RDONLY, own=own, links=links), "rb")


def open_descriptor(path: Path, flags: int, *, own: bool, links: bool = True, mode: int = 0o600) -> int:
    """A descriptor of a regular file, as for :func:`open_regular`; one that is made is for this user alone, or has
    another ``mode``."""
    links = links and not own
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if not links and error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a symbolic link", str(path)) from None
        raise
    except ValueError:  # a NUL in it
        raise OSError(errno.EINVAL, "is not a path", str(path)) from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if own:
            _check_own(path, status, 0o022)
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _check_own(path: Path, status: os.stat_result, others: int, what: str = "") -> None:
    problem = None
    if status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}"
    elif status.st_mode & others:
        problem = f"is open to others (mode {stat.S_IMODE(status.st_mode):o})"
    if problem:
        raise PermissionError(errno.EACCES, f"{what}{problem}", str(path))


def replace_file(path: Path, pieces: Iterable[Any], *, mode: int = 0o600) -> None:
    """Write a file whole or not at all, whoever else writes it at the same time. Raises OSError.

    A directory that is missing is made for this user alone. Drafts of the file that killed processes left are removed.
    """
    import tempfile  # which takes long to load, as secrets does, and reading needs neither

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_drafts(path.parent, glob.escape(path.name))
    # In the same directory, since a rename is atomic within one file system only.
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            os.fchmod(file.fileno(), mode)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def remove_drafts(directory: Path, names: str) -> None:
    """Remove this user's old drafts of files whose names match a pattern."""
    for draft in directory.glob(f".{names}.????????.tmp"):  # as mkstemp makes them
        with contextlib.suppress(OSError):
            status = draft.lstat()
            regular = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if regular and time.time() - status.st_mtime > OLD_S:
                draft.unlink()


def user_key(path: Path) -> bytes:
    """The key that is kept in a file, made when it is first needed. Raises OSError if it cannot be kept, or if others
    may know it or put another into its place."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700, parents=True)
    _check_own(path.parent, path.parent.stat(), 0o022, "its directory ")
    if not path.exists():
        _make_key(path)
    with open_regular(path, own=True) as file:
        _check_own(path, os.fstat(file.fileno()), 0o077)
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise OSError(errno.EINVAL, f"the key must have {KEY_BYTES} bytes, got {len(key)}", str(path))
    return key


def _make_key(path: Path) -> None:
    """Write a new key, whole or not at all; if another process is quicker, its key is the one."""
    import secrets

    # A draft that is linked into place: another process sees the whole key or none, and never replaces one.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
