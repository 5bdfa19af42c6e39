"""Bytes and descriptors over a Unix socket, from a peer that may die, send wrong data or stall."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import time
from collections.abc import Sequence

MOST_FDS = 8
"""Maximum descriptors of one message."""
PATIENCE_S = 10.0
"""A message that has begun must be complete within this host time, and the peer must read one of ours within it."""

# Plain integers, because operators of Python enumerations take as long as a system call, once per message.
_FLAGS = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # programs started meanwhile do not inherit descriptors
_TRUNCATED = int(socket.MSG_CTRUNC)
_GLANCE = int(socket.MSG_PEEK)
_ROOM = socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize)


class PeerGoneError(Exception):
    """The peer has closed the connection, or was killed."""


class PeerError(Exception):
    """The peer has violated the protocol, so its messages cannot be trusted any more. The argument describes the
    violation."""


class Wire:
    """One connection. It owns received descriptors until they are taken; :meth:`close` closes the others.

    ``patience_s``: see PATIENCE_S. Between two messages a peer may be silent for any time.
    """

    def __init__(self, peer: socket.socket, patience_s: float = PATIENCE_S) -> None:
        self._peer = peer
        self._fds: list[int] = []
        self._patience_s = patience_s
        peer.setblocking(True)
        # Timeouts of the kernel: those of Python would add a system call per message.
        limit = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def fileno(self) -> int:
        return self._peer.fileno()

    def receive(self, size: int, *, begun: bool = False) -> bytearray:
        """The next ``size`` bytes. ``begun``: they belong to a message of which a part has been received.

        Raises PeerGoneError if the peer has closed, and PeerError if it stops inside a message.
        """
        data = bytearray(size)
        rest = memoryview(data)
        end = 0.0
        while rest:
            if len(rest) < size:  # it arrives in pieces, of which there may be many
                end = end or time.monotonic() + self._patience_s
                if time.monotonic() > end:
                    raise PeerError(f"a message takes more than {self._patience_s:g} s")
            try:
                count, ancillary, flags, _ = self._peer.recvmsg_into([rest], _ROOM, _FLAGS)
            except BlockingIOError:
                if begun or len(rest) < size:
                    raise PeerError(f"no more bytes of a message within {self._patience_s:g} s") from None
                continue
            except OSError as error:
                raise PeerGoneError(error.strerror) from None
            if ancillary:
                self._keep(ancillary)
            if flags & _TRUNCATED or len(self._fds) > MOST_FDS:
                raise PeerError(f"more than {MOST_FDS} descriptors with a message")
            if not count:
                if begun or len(rest) < size:
                    raise PeerError("the connection was closed inside a message")
                raise PeerGoneError("closed")
            rest = rest[count:]
        return data

    def glance(self, size: int) -> bytes:
        """The received part of the next ``size`` bytes, which stays in the socket; empty if descriptors came with them,
        or the peer is gone. Waits only for the first byte."""
        try:
            data, _, flags, _ = self._peer.recvmsg(size, 0, _GLANCE)
        except OSError:  # the next receive reports it
            return b""
        return b"" if flags & _TRUNCATED else data

    def drain(self) -> None:
        """Discard received bytes. Raises PeerGoneError."""
        try:
            if not self._peer.recv(1 << 16, socket.MSG_DONTWAIT):
                raise PeerGoneError("closed")
        except BlockingIOError:
            pass
        except OSError as error:
            raise PeerGoneError(error.strerror) from None

    def take_fds(self) -> list[int]:
        """The descriptors received since the last call; the caller closes them."""
        fds, self._fds = self._fds, []
        return fds

    def send(self, *parts: bytes | bytearray | memoryview, fds: Sequence[int] = ()) -> None:
        """Send bytes, the descriptors with the first of them. Raises PeerGoneError, and PeerError if the peer does not
        read."""
        data = b"".join(parts)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._peer.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
            while sent < len(data):  # the rest of a large message waits until the peer has read
                sent += self._peer.send(memoryview(data)[sent:], socket.MSG_NOSIGNAL)
        except BlockingIOError:
            raise PeerError(f"the peer has not read for {self._patience_s:g} s") from None
        except OSError as error:
            raise PeerGoneError(error.strerror) from None

    def close(self) -> None:
        close_all(self.take_fds())
        self._peer.close()

    def _keep(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds += fds


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors and ignore errors."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
