"""The device side of vhost-user, as used by User Mode Linux: ``docs/interop/vhost-user.rst`` of QEMU.

Only the required part: two queues with in-band kicks and calls, each answered before the next message.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from npusim.device.transports.host_memory import DmaWindow, HostMemory
from npusim.device.transports.virtio import Queue
from npusim.device.transports.wire import MOST_FDS, PeerError, Wire, close_all

_HEADER = struct.Struct("<III")  # request, flags, bytes of payload
_VERSION, _REPLY, _NEED_REPLY = 1, 1 << 2, 1 << 3
_FEATURES = 1 << 30 | 1 << 32  # the protocol has its own features; virtio 1
_PROTOCOL_FEATURES = 1 << 3 | 1 << 5 | 1 << 14  # answers to all requests; a back channel; kicks and calls in band
_PAYLOAD_BYTES = 4096
_CALL = 4  # on the back channel: a queue has entries


class VhostUser:
    """The virtio device: its memory, two queues, and the back channel. ``kicked(queue)`` processes a queue. Raises
    PeerGoneError if the kernel has closed."""

    def __init__(self, wire: Wire, patience_s: float, kicked: Callable[[int], None]) -> None:
        self.wire = wire
        self.back: Wire | None = None
        self.memory = HostMemory()
        self.queues = (Queue(self.memory), Queue(self.memory))
        self._patience_s = patience_s
        self._kicked = kicked
        self._fds: list[int] = []  # received with the current message
        self._requests: dict[int, Callable[[bytes], bytes | None]] = {
            1: self._get_features,
            2: self._set_features,
            3: self._nothing,  # SET_OWNER
            4: self._nothing,  # RESET_OWNER
            5: self._share,  # SET_MEM_TABLE
            8: self._set_size,  # SET_VRING_NUM
            9: self._set_addresses,  # SET_VRING_ADDR
            10: self._set_base,  # SET_VRING_BASE
            11: self._get_base,  # GET_VRING_BASE
            12: self._nothing,  # SET_VRING_KICK
            13: self._nothing,  # SET_VRING_CALL
            14: self._nothing,  # SET_VRING_ERR
            15: self._get_protocol_features,
            16: self._set_protocol_features,
            18: self._enable,  # SET_VRING_ENABLE
            21: self._set_back,  # SET_SLAVE_REQ_FD
            35: self._kick,  # VRING_KICK
        }

    def handle(self) -> None:
        """One message of the kernel. Raises PeerError."""
        request, flags, size = _HEADER.unpack(self.wire.receive(_HEADER.size))
        if flags & 3 != _VERSION or size > _PAYLOAD_BYTES:
            raise PeerError(
                f"vhost-user: a message must have version 1 and at most {_PAYLOAD_BYTES} bytes, "
                f"got flags {flags:#x} and {size} bytes"
            )
        payload = bytes(self.wire.receive(size, begun=True))
        self._fds = self.wire.take_fds()
        try:
            answer = self._serve(request, payload)
        except struct.error:
            raise PeerError(f"vhost-user: request {request} cannot have {size} bytes") from None
        finally:
            close_all(self._fds)
        if answer is not None or flags & _NEED_REPLY:
            answer = struct.pack("<Q", 0) if answer is None else answer
            self.wire.send(_HEADER.pack(request, _VERSION | _REPLY, len(answer)), answer)

    def _serve(self, request: int, payload: bytes) -> bytes | None:
        """The answer of a request with a specific answer."""
        if request not in self._requests:
            raise PeerError(f"vhost-user: request {request} was not offered")
        return self._requests[request](payload)

    def _get_features(self, _payload: bytes) -> bytes:
        return struct.pack("<Q", _FEATURES)

    def _get_protocol_features(self, _payload: bytes) -> bytes:
        return struct.pack("<Q", _PROTOCOL_FEATURES)

    def _set_features(self, payload: bytes) -> None:
        _accept(payload, _FEATURES)

    def _set_protocol_features(self, payload: bytes) -> None:
        _accept(payload, _PROTOCOL_FEATURES)

    def _nothing(self, _payload: bytes) -> None:
        """For requests without effect here: owner, and descriptors of notifications that are in-band."""

    def _set_size(self, payload: bytes) -> None:
        index, size = struct.unpack("<II", payload)
        self._queue(index).set_size(size)

    def _set_addresses(self, payload: bytes) -> None:
        index, _flags, descriptors, used, available, _log = struct.unpack("<IIQQQQ", payload)
        queue = self._queue(index)
        # The kernel uses the same numbers as its own addresses and as bus addresses.
        queue.descriptors, queue.used, queue.available = descriptors, used, available

    def _set_base(self, payload: bytes) -> None:
        index, base = struct.unpack("<II", payload)
        if base:
            raise PeerError(f"vhost-user: a queue must begin at 0, got {base}")
        self._queue(index).taken = 0

    def _get_base(self, payload: bytes) -> bytes:
        """Also stops the queue."""
        index, _ = struct.unpack("<II", payload)
        queue = self._queue(index)
        answer = struct.pack("<II", index, queue.taken)
        queue.reset()
        return answer

    def _enable(self, payload: bytes) -> None:
        index, enable = struct.unpack("<II", payload)
        queue = self._queue(index)
        if not enable:
            queue.reset()

    def _kick(self, payload: bytes) -> None:
        index, _ = struct.unpack("<II", payload)
        self._queue(index)
        self._kicked(index)

    def _queue(self, index: int) -> Queue:
        if index >= len(self.queues):
            raise PeerError(f"vhost-user: a queue must be 0 or 1, got {index}")
        return self.queues[index]

    def _share(self, payload: bytes) -> None:
        (count,) = struct.unpack_from("<I", payload)
        if count > MOST_FDS or count != len(self._fds) or len(payload) < 8 + 32 * count:
            raise PeerError(
                f"vhost-user: {count} regions of memory with {len(self._fds)} files in {len(payload)} bytes: "
                f"must be {MOST_FDS} at most, each with one file and 32 bytes"
            )
        self.memory.clear()
        for number in range(count):
            address, size, _user_address, offset = struct.unpack_from("<QQQQ", payload, 8 + 32 * number)
            try:
                self.memory.add(DmaWindow(address, size, True, True, self._fds[0], offset))
            except OSError as error:
                raise PeerError(f"vhost-user: {size:#x} bytes of memory at {address:#x}: {error.strerror}") from None
            del self._fds[0]  # owned by the memory from here on

    def _set_back(self, _payload: bytes) -> None:
        if len(self._fds) != 1:
            raise PeerError(f"vhost-user: the back channel must be one socket, got {len(self._fds)} descriptors")
        try:
            sock = socket.socket(fileno=self._fds[0])
        except OSError:
            raise PeerError("vhost-user: the back channel must be a socket") from None
        self._fds.clear()
        if self.back is not None:
            self.back.close()
        self.back = Wire(sock, self._patience_s)

    def call(self, index: int, until_readable: Callable[[Wire], None]) -> None:
        """Notify the kernel of a queue; it has processed the notification when this returns. ``until_readable`` waits
        for a wire and processes messages of others meanwhile."""
        if self.back is None:
            raise PeerError("vhost-user: interrupts need a back channel, which the kernel has not set up")
        self.back.send(_HEADER.pack(_CALL, _VERSION | _NEED_REPLY, 8), struct.pack("<II", index, 0))
        until_readable(self.back)
        answer = self.back.receive(_HEADER.size + 8)
        close_all(self.back.take_fds())
        if answer[: _HEADER.size] != _HEADER.pack(_CALL, _VERSION | _REPLY, 8):
            raise PeerError(f"back channel: the kernel must acknowledge the call, got {answer.hex()}")

    def close(self) -> None:
        self.memory.clear()
        self.wire.close()
        if self.back is not None:
            self.back.close()


def _accept(payload: bytes, offered: int) -> None:
    (wanted,) = struct.unpack("<Q", payload)
    if wanted & ~offered:
        raise PeerError(f"vhost-user: features must be among {offered:#x}, got {wanted:#x}")
