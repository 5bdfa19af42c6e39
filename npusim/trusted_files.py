"""Files of the user: checks of ownership before reading, atomic writes, and a secret key.

A path in a shared directory may be anything: a pipe, a link, a file of another user. So files are opened without
blocking, and the opened file is checked, not its path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

KEY_BYTES = 32
STATE_VARIABLE = "NPUSIM_STATE_DIR"
DRAFT = ".npusim-draft"
"""Suffix of the names of files that are being written."""
_ATTEMPTS = 100


def state_directory() -> Path:
    """``$NPUSIM_STATE_DIR``, or ``npusim`` in the state directory of the user."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "npusim"


def open_regular(path: Path, *, own: bool = False, links: bool = True) -> io.FileIO:
    """Open a regular file for unbuffered reading without blocking. Raises OSError.

    ``own``: it must belong to the user, be no link, and not be writable by others. ``links``: whether the path may be a
    symbolic link.
    """
    return io.FileIO(open_descriptor(path, os.O_RDONLY, own=own, links=links), "rb")


def open_descriptor(path: Path, flags: int, *, own: bool, links: bool = True, mode: int = 0o600) -> int:
    """A descriptor of a regular file, as for :func:`open_regular`; a new file is accessible to the user only, unless
    ``mode`` is given."""
    links = links and not own
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if not links and error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a symbolic link", str(path)) from None
        raise
    except ValueError:  # a NUL in the path
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


def replace_file(path: Path, pieces: Iterable[Any], *, mode: int = 0o600, durable: bool = True) -> None:
    """Write a file atomically, as :func:`replacement` does. Raises OSError.

    A missing directory is created for the user only.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacement(path, mode=mode, durable=durable) as file:
        for piece in pieces:
            file.write(piece)


@contextlib.contextmanager
def replacement(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[io.BufferedWriter]:
    """A new file in the same directory, which replaces ``path`` when the block succeeds, and is removed otherwise.
    Raises OSError.

    ``mode``: less the umask. ``durable``: after a power failure the file has the old or the new contents; otherwise
    they may be lost. Drafts of killed processes in the directory are removed.
    """
    remove_drafts(path.parent)
    # In the same directory, because a rename is only atomic within a file system.
    file = _new_draft(path.parent, mode)
    try:
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(file.name)
        with contextlib.suppress(OSError):  # buffered data of a file on a full disk
            file.close()
        raise
    file.close()


def _new_draft(directory: Path, mode: int) -> io.BufferedWriter:
    """A draft that is locked while it is open: one without a lock has no writer any more."""
    for _ in range(_ATTEMPTS):
        path = directory / f".{os.urandom(8).hex()}{DRAFT}"
        file = open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115 the caller's
        if _lock(file):
            return file
        file.close()  # another process has opened it for removal before it was locked
        path.unlink(missing_ok=True)
    raise OSError(errno.EAGAIN, "every draft is locked by another process", str(directory))


def _lock(draft: io.BufferedWriter) -> bool:
    try:
        fcntl.flock(draft, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, on which drafts are not removed
        return True
    return os.fstat(draft.fileno()).st_nlink > 0


def remove_drafts(directory: Path) -> None:
    """Remove drafts of the user in a directory that have no writer."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(DRAFT):
                with contextlib.suppress(OSError):
                    _remove_draft(Path(entry.path))


def _remove_draft(path: Path) -> None:
    descriptor = open_descriptor(path, os.O_RDONLY, own=False, links=False)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    finally:
        os.close(descriptor)


def user_key(path: Path) -> bytes:
    """The key in a file, created on first use. Raises OSError if it cannot be stored, or if other users may read or
    replace it."""
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
    """Write a new key atomically; if another process is faster, its key is used."""
    import secrets

    # A draft is linked to the path: other processes see the whole key or none, and it is never replaced.
    remove_drafts(path.parent)
    with _new_draft(path.parent, 0o600) as file:
        try:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(file.name, path)
        finally:
            os.unlink(file.name)
