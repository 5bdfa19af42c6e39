"""What may be in the place of a cache file, whoever put it there: each kind is made from a valid file."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

DAMAGED = ("empty", "cut", "longer", "rewritten", "sparse")
STRANGE = ("foreign", "writable", "link", "dangling", "loop", "pipe", "socket", "device", "directory")
REASONS = {
    "foreign": "belongs to user 12345", "writable": "is open to others", "link": "is a symbolic link",
    "dangling": "is a symbolic link", "loop": "is a symbolic link", "pipe": "is not a regular file",
    "socket": "No such device or address", "device": "is not a regular file", "directory": "Is a directory",
}  # fmt: skip
"""Error texts for files of a wrong type."""


def plant(kind: str, path: Path) -> None:
    """Replace a file. If the kind is a link, the content is kept in a file beside it."""
    aside = path.with_name(f"{path.name}.aside")
    if kind in DAMAGED:
        _damage(kind, path)
    elif kind == "writable":
        path.chmod(0o622)
    elif kind == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(path, 12345, 12345)
    else:
        path.rename(aside)
        if kind == "hard link":
            os.link(aside, path)
        elif kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):  # socket paths must be short
                listener.bind("s")
            path.with_name("s").rename(path)
        elif kind == "device":
            try:
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero has no end
            except PermissionError:
                pytest.skip("devices cannot be made here")
        else:
            path.symlink_to({"link": aside, "dangling": "nowhere", "loop": path}[kind])


def _damage(kind: str, path: Path) -> None:
    size = path.stat().st_size
    if kind == "rewritten":
        content = bytearray(path.read_bytes())
        content[size * 3 // 4] ^= 1
        path.write_bytes(content)
    else:
        os.truncate(path, {"empty": 0, "cut": size - 65, "longer": size + 64, "sparse": 1 << 40}[kind])


@contextlib.contextmanager
def promptly(seconds: float = 60) -> Iterator[None]:
    """Turn endless waiting into a TimeoutError. For the main thread."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
