"""A listening Unix socket in the file system, for its owner only."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from npusim.errors import UsageError

_WAITING = 8
"""Clients that may wait while one is served."""


@contextlib.contextmanager
def door(path: Path) -> Iterator[socket.socket]:
    """A listening socket at a path, removed afterwards. A stale socket of a killed server is replaced.

    Raises UsageError if something else is there, or a server that listens; OSError if it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_way(path)
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        except OSError as error:
            problem = "the path is too long for a socket" if "too long" in str(error) else error.strerror
            raise UsageError(f"{path}: {problem}") from None
        finally:
            os.umask(mask)
        made = path.lstat()
        listener.listen(_WAITING)
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                # Not the socket of a server that was started at this path meanwhile.
                if os.path.samestat(made, path.lstat()):
                    path.unlink()
    finally:
        listener.close()


def _make_way(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path}: exists and is not a socket")
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise UsageError(f"{path}: {error.strerror}") from None
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.setblocking(False)  # a busy server has a queue, which may be full
        try:
            knock.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
    raise UsageError(f"{path}: a server listens there already")
