"""The methods of a bus over a UNIX stream socket, for drivers in another process without another transport.

docs/reference/driver-test.md has the protocol. Simulated time passes as in one process.
"""

from __future__ import annotations

import socket
import struct

from npusim.device.bus import Bus

READ, WRITE, READ_MEMORY, WRITE_MEMORY, WAIT_IRQ = range(1, 6)
REQUEST = struct.Struct("<BBHIQQ")
"""Kind, BAR, zero, bytes, offset, value."""
ANSWER = struct.Struct("<Q")
MOST_BYTES = 16 << 20
_SIZES = (1, 2, 4, 8)


class BrokenError(Exception):
    """The peer has closed the connection, or has sent an invalid message."""


def receive(peer: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes. Raises BrokenError if the connection is closed before."""
    data = bytearray()
    while len(data) < size:
        try:
            piece = peer.recv(min(size - len(data), 1 << 20))
        except OSError as error:
            raise BrokenError(str(error)) from None
        if not piece:
            raise BrokenError("the peer has closed the connection")
        data += piece
    return bytes(data)


def serve(bus: Bus, peer: socket.socket) -> None:
    """Execute the requests of a client until it closes. Raises BrokenError for an invalid request."""
    while True:
        try:
            head = receive(peer, REQUEST.size)
        except BrokenError:
            return
        try:
            peer.sendall(_answer(bus, peer, *REQUEST.unpack(head)))
        except OSError:
            return


def _answer(bus: Bus, peer: socket.socket, kind: int, bar: int, zero: int, size: int, offset: int, value: int) -> bytes:
    if zero or not READ <= kind <= WAIT_IRQ:
        raise BrokenError(f"request of kind {kind} with {zero:#x} in the reserved bits")
    if kind in (READ, WRITE):
        if size not in _SIZES:
            raise BrokenError(f"an access has 1, 2, 4 or 8 bytes, got {size}")
        if kind == READ:
            return ANSWER.pack(bus.read(bar, offset, size))
        bus.write(bar, offset, size, value)
        return ANSWER.pack(0)
    if kind == WAIT_IRQ:
        return ANSWER.pack(bus.wait_irq(value))
    if size > MOST_BYTES:
        raise BrokenError(f"a bulk copy has at most {MOST_BYTES} bytes, got {size}")
    if kind == READ_MEMORY:
        return ANSWER.pack(size) + bytes(bus.read_memory(offset, size))
    bus.write_memory(offset, receive(peer, size))
    return ANSWER.pack(0)


class SocketBus(Bus):
    """The client side: a device in another process. Raises BrokenError once the connection is closed."""

    def __init__(self, path: str) -> None:
        self._peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peer.connect(path)

    def close(self) -> None:
        self._peer.close()

    def read(self, bar: int, offset: int, size: int) -> int:
        return self._ask(READ, bar, size, offset)

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        self._ask(WRITE, bar, size, offset, value)

    def read_memory(self, address: int, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            count = min(size - len(data), MOST_BYTES)
            self._ask(READ_MEMORY, 2, count, address + len(data))
            data += receive(self._peer, count)
        return data

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        for at in range(0, len(view), MOST_BYTES):
            piece = view[at : at + MOST_BYTES]
            self._ask(WRITE_MEMORY, 2, len(piece), address + at, data=piece)

    def wait_irq(self, timeout_ps: int) -> int:
        return self._ask(WAIT_IRQ, 0, 0, 0, timeout_ps)

    def host_work(self, kind: str) -> None:
        """No effect: host time is not sent over this socket."""

    def _ask(self, kind: int, bar: int, size: int, offset: int, value: int = 0, data: bytes | memoryview = b"") -> int:
        try:
            self._peer.sendall(REQUEST.pack(kind, bar, 0, size, offset, value))
            self._peer.sendall(data)
        except OSError as error:
            raise BrokenError(str(error)) from None
        return int(ANSWER.unpack(receive(self._peer, ANSWER.size))[0])
