"""Whole messages over a stream socket, from a peer that may stop, lie or be gone at any byte."""

from __future__ import annotations

import os
import socket
import struct

from npusim.errors import NpusimError

MOST_DESCRIPTORS = 8
"""That are taken with one message; more never reach this process."""


class PeerError(NpusimError):
    """Whoever is at the other end of a carrier's protocol breaks it, or is gone in the midst of it."""


class Channel:
    """A stream socket of which whole messages are read. ``patience_s``: how long the peer may take for a message."""

    def __init__(self, name: str, sock: socket.socket, patience_s: float) -> None:
        self.name = name
        self.sock = sock
        sock.settimeout(patience_s)
        self.descriptors: list[int] = []  # that came with the last message, and are its reader's

    def receive(self, size: int) -> bytes:
        """``size`` bytes; none if the peer has closed. Raises PeerError where it stops in the midst of them."""
        data = b""
        while len(data) < size:
            try:
                part, sent, _flags, _address = self.sock.recvmsg(
                    size - len(data), socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
                )
            except TimeoutError:
                raise PeerError(
                    f"{self.name}: the kernel has not finished a message: {len(data)} of {size} bytes"
                ) from None
            except OSError:  # the connection is reset
                part, sent = b"", []
            for level, kind, content in sent:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self.descriptors += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
            if not part and data:
                raise PeerError(f"{self.name}: closed after {len(data)} of {size} bytes of a message")
            if not part:
                return b""
            data += part
        return data

    def send(self, message: bytes) -> None:
        """Raises PeerError if the peer is gone or does not read."""
        try:
            self.sock.sendall(message)
        except OSError as error:
            raise PeerError(f"{self.name}: the kernel takes no answer: {error.strerror or error}") from None

    def fileno(self) -> int:
        """For those who wait for a message."""
        return self.sock.fileno()

    def drop_descriptors(self) -> None:
        """Close what came and is not wanted."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def close(self) -> None:
        self.drop_descriptors()
        self.sock.close()
