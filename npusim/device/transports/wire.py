"""Bytes and descriptors over a Unix socket, from a peer that may die, lie or stall."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import time
from collections.abc import Sequence

MOST_FDS = 8
"""Descriptors that one message may bring."""
PATIENCE_S = 10.0
"""A message that has begun must be complete within this time of the host's, and one of ours be taken."""

# As plain numbers: an operator of Python's enumerations takes as long as a system call, and here each message pays it.
_FLAGS = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # a program that the host starts meanwhile gets none of them
_TRUNCATED = int(socket.MSG_CTRUNC)
_GLANCE = int(socket.MSG_PEEK)
_ROOM = socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize)


class PeerGoneError(Exception):
    """The peer has closed the connection, or was killed."""


class PeerError(Exception):
    """The peer has broken the protocol so that nothing it says can be believed any more; the argument says how."""


class Wire:
    """One connection. Descriptors that came belong to this until they are taken; :meth:`close` closes the others.

    ``patience_s``: see PATIENCE_S; between two messages a peer may be silent for as long as it likes.
    """

    def __init__(self, peer: socket.socket, patience_s: float = PATIENCE_S) -> None:
        self._peer = peer
        self._fds: list[int] = []
        self._patience_s = patience_s
        peer.setblocking(True)
        # The kernel's own limits: Python's would be a further system call for each message.
        limit = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def fileno(self) -> int:
        return self._peer.fileno()

    def receive(self, size: int, *, begun: bool = False) -> bytearray:
        """The next ``size`` bytes. ``begun``: they belong to a message of which a part has been received.

        Raises PeerGoneError, and PeerError for a peer that stops inside a message.
        """
        data = bytearray(size)
        rest = memoryview(data)
        end = 0.0
        while rest:
            if len(rest) < size:  # it comes in pieces, of which there may be many
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
                    raise PeerError("the connection was closed in the midst of a message")
                raise PeerGoneError("closed")
            rest = rest[count:]
        return data

    def glance(self, size: int) -> bytes:
        """The received part of the next ``size`` bytes, which stays in the socket; empty if descriptors came with them,
        or the peer is gone. Waits only for the first byte."""
        try:
            data, _, flags, _ = self._peer.recvmsg(size, 0, _GLANCE)
        except OSError:  # whoever receives finds it, too
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
            while sent < len(data):  # of a large one: the rest has to wait until the peer has read
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
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
