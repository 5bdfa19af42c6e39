"""A server of the vfio-user protocol, version 0.1, for QEMU 10.1 and newer and for clients of libvfio-user.

One client at a time. Requests are processed in order; an invalid request is answered with an errno, and a protocol
violation ends the connection. As specified, the device keeps its state when a client disconnects, and the next one
resets it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from npusim.device.bus import BAR_MEMORY
from npusim.device.npu import NpuDevice
from npusim.device.pci import DmaError
from npusim.device.traces.function import function_of
from npusim.device.transports.host_memory import MOST_WINDOWS, DmaWindow, HostMemory
from npusim.device.transports.interrupts import INTX, EventfdInterrupts
from npusim.device.transports.pace import Pace
from npusim.device.transports.wire import MOST_FDS, PATIENCE_S, PeerError, PeerGoneError, Wire, close_all

(
    VERSION,
    DMA_MAP,
    DMA_UNMAP,
    DEVICE_INFO,
    REGION_INFO,
    REGION_IO_FDS,
    IRQ_INFO,
    SET_IRQS,
    REGION_READ,
    REGION_WRITE,
    DMA_READ,
    DMA_WRITE,
    DEVICE_RESET,
) = range(1, 14)
REGION_WRITE_MULTI, DEVICE_FEATURE = 15, 16
Answer = tuple[bytes, int | None]
"""The answer of a request: bytes, and a descriptor."""
_NOT_OURS = (REGION_IO_FDS, DEVICE_FEATURE)
"""Optional requests that are not supported."""

MAJOR, MINOR = 0, 1
HEADER = struct.Struct("<HHIII")
"""Message number, command, bytes including this header, flags, errno."""
TYPE, REPLY, NO_REPLY, ERROR = 0xF, 1, 1 << 4, 1 << 5
MOST_DATA = 1 << 16
"""Bytes that one message may read or write."""
MOST_BYTES = HEADER.size + 16 + MOST_DATA
"""Of a message."""
LINGER_S = 50e-6
"""A polling driver repeats its read within this host time."""
MOST_WAITING = 32
"""Most messages of a client that are queued while we wait for its answer."""

CONFIG_REGION, CONFIG_BYTES = 7, 4096
REGIONS, IRQS = 9, 5
PAGE_BYTES = 4096
_READ, _WRITE, _MMAP, _CAPS = 1, 2, 4, 8
_SPARSE = 1
_CAN_RESET, _IS_PCI = 1, 2
_EVENTFD, _MASKABLE, _AUTOMASKED, _NORESIZE = 1, 2, 4, 8
_DATA_NONE, _DATA_BOOL, _DATA_EVENTFD, _MASK, _UNMASK, _TRIGGER = 1, 2, 4, 8, 16, 32
_UNMAP_ALL = 2
_IRQ_SET = struct.Struct("<IIIII")
_WITH_FDS = (DMA_MAP, SET_IRQS)
_ACCESS = struct.Struct("<QII")
"""Offset, region, bytes."""
_REGION_INFO = struct.Struct("<IIIIQQ")
_DMA = struct.Struct("<QQ")

_log = logging.getLogger("npusim.device")


class _Message(NamedTuple):
    number: int
    command: int
    flags: int
    code: int
    body: bytes
    fds: list[int]


class VfioUser:
    """Serves a device, which must have been made with ``shared_memory``; see :class:`Pace` for ``lockstep``."""

    def __init__(self, device: NpuDevice, *, lockstep: bool = False, patience_s: float = PATIENCE_S) -> None:
        self._memory = device.machine.memory
        if self._memory.dram_file is None:
            raise ValueError("the device must be made with shared_memory=True")
        if device.checker is not None:
            device.checker.carried(mapped=True)
        self._pace = Pace(device, lockstep=lockstep)
        self._patience_s = patience_s
        self._session: _Session | None = None
        self.function = function_of(device, self, host_masks=True)
        self.sizes = {bar.number: bar.size for bar in self.function.bars} | {CONFIG_REGION: CONFIG_BYTES}
        self.interrupts = EventfdInterrupts((1, self.function.vectors, self.function.vectors))

    def serve(self, peer: socket.socket) -> None:
        """Serve one client until it disconnects or violates the protocol; closes the socket."""
        self._session = session = _Session(self, peer, self._pace, self._patience_s)
        try:
            session.run()
        except PeerGoneError:
            pass
        except PeerError as error:
            _log.warning("vfio-user: the client is dropped: %s", error)
        finally:
            self._session = None
            session.close()
            self.interrupts.clear()

    # The function's host side

    def interrupt(self, vector: int) -> None:
        self.interrupts.message(vector, self.function.interrupts)

    def intx(self, asserted: bool) -> None:
        self.interrupts.level(asserted)

    def dma_read(self, address: int, size: int) -> bytes:
        return self._client_of(address).host.read(address, size)

    def dma_write(self, address: int, data: bytes) -> None:
        self._client_of(address).host.write(address, data)

    def _client_of(self, address: int) -> _Session:
        if self._session is None:
            raise DmaError(address, "no client is connected")
        return self._session

    # Regions

    def region_info(self, index: int) -> tuple[int, int, bytes, int | None]:
        """Flags, bytes, capabilities and file of a region."""
        size = self.sizes.get(index, 0)
        if not size:
            return 0, 0, b"", None
        mapped = self._memory.dram_bytes // PAGE_BYTES * PAGE_BYTES
        if index != BAR_MEMORY or not mapped or self.function.traced:
            return _READ | _WRITE, size, b"", None
        if mapped == size:
            return _READ | _WRITE | _MMAP, size, b"", self._memory.dram_file
        sparse = struct.pack("<HHIIIQQ", _SPARSE, 1, 0, 1, 0, 0, mapped)
        return _READ | _WRITE | _MMAP | _CAPS, size, sparse, self._memory.dram_file

    def read(self, region: int, offset: int, size: int) -> bytes:
        """Bytes of a region, in accesses as a processor would make them."""
        data = bytearray()
        for place, count in self._accesses(region, offset, size):
            if region == CONFIG_REGION:
                value = self.function.config_read(place, count)
            else:
                value = self.function.read(region, place, count)
            data += value.to_bytes(count, "little")
        return bytes(data)

    def write(self, region: int, offset: int, data: bytes) -> None:
        for place, count in self._accesses(region, offset, len(data)):
            value = int.from_bytes(data[place - offset : place - offset + count], "little")
            if region == CONFIG_REGION:
                self.function.config_write(place, count, value)
            else:
                self.function.write(region, place, count, value)

    def check(self, region: int, offset: int, size: int) -> None:
        """Raise OSError for an access that is invalid for a region."""
        if region not in self.sizes:
            raise OSError(errno.EINVAL, f"there is no region {region}")
        if not 0 < size <= MOST_DATA or offset + size > self.sizes[region]:
            raise OSError(errno.EINVAL, f"region {region}: {size} bytes at {offset:#x}")
        if region not in (BAR_MEMORY, CONFIG_REGION) and size not in (1, 2, 4, 8):
            raise OSError(errno.EINVAL, f"region {region}: an access of {size} bytes")

    def _accesses(self, region: int, offset: int, size: int) -> list[tuple[int, int]]:
        """Offset and size of each access; an access to registers is not split, and is a misuse if it is not of 4
        bytes."""
        if region == BAR_MEMORY and size > 8:
            self._pace.copy(size)
        else:
            self._pace.access()
        if region not in (BAR_MEMORY, CONFIG_REGION):
            return [(offset, size)]
        largest = 4 if region == CONFIG_REGION else 8
        found, place, end = [], offset, offset + size
        while place < end:
            count = min(place & -place or largest, largest, 1 << (end - place).bit_length() - 1)
            found.append((place, count))
            place += count
        return found


class _Session:
    """The state of one connection."""

    def __init__(self, server: VfioUser, peer: socket.socket, pace: Pace, patience_s: float) -> None:
        self._server = server
        self._pace = pace
        self._wire = self._commands = Wire(peer, patience_s)
        self._patience_s = patience_s
        self._waiting: deque[_Message] = deque()  # received while waiting for an answer
        self._number = 0  # number of our last command
        self._most_data = MOST_DATA
        self._broken: PeerError | PeerGoneError | None = None
        self.host = HostMemory(self)
        poll = select.poll()
        poll.register(self._wire.fileno(), select.POLLIN)
        self._poll = poll
        self._actions: dict[int, Callable[[_Message], Answer]] = {
            DMA_MAP: self._dma_map,
            DMA_UNMAP: self._dma_unmap,
            DEVICE_INFO: self._device_info,
            REGION_INFO: self._region_info,
            IRQ_INFO: self._irq_info,
            SET_IRQS: self._set_irqs,
            REGION_READ: self._region_read,
            REGION_WRITE: self._region_write,
            DEVICE_RESET: self._reset,
            REGION_WRITE_MULTI: self._write_multi,
        }

    def close(self) -> None:
        for message in self._waiting:
            close_all(message.fds)
        self.host.clear()
        self._wire.close()
        self._commands.close()

    def run(self) -> None:
        self._agree(self._receive(self._wire, within_patience=True))
        while True:
            self._pace.until(self._speaks)
            if self._broken is not None:
                raise self._broken
            self._linger()
            message = self._waiting.popleft() if self._waiting else self._receive(self._wire)
            self._answer(message)
            self._pace.settle()

    def _speaks(self) -> bool:
        return bool(self._waiting or self._broken or self._poll.poll(0))

    def _linger(self) -> None:
        """Poll for the next message for a short time before sleeping, because a wake-up takes longer than an answer."""
        end = time.perf_counter() + LINGER_S
        while not self._speaks() and time.perf_counter() < end:
            pass

    # Messages

    def _receive(self, wire: Wire, *, within_patience: bool = False) -> _Message:
        number, command, size, flags, code = HEADER.unpack(wire.receive(HEADER.size, begun=within_patience))
        if not HEADER.size <= size <= MOST_BYTES:
            raise PeerError(f"command {command}: a message of {size} bytes; {HEADER.size} to {MOST_BYTES} may be")
        if flags & TYPE not in (0, REPLY):
            raise PeerError(f"command {command}: flags {flags:#x}")
        body = wire.receive(size - HEADER.size, begun=True) if size > HEADER.size else b""
        return _Message(number, command, flags, code, bytes(body), wire.take_fds())

    def _answer(self, message: _Message) -> None:
        """Execute a message and return the status. Unused descriptors are closed."""
        body, code, file = b"", 0, None
        try:
            if message.flags & TYPE == REPLY:
                raise PeerError(f"an answer to command {message.command}, which was not sent")
            if message.command in _NOT_OURS:
                raise OSError(errno.EOPNOTSUPP, "not offered")
            action = self._actions.get(message.command)
            if action is None or (message.fds and message.command not in _WITH_FDS):
                raise OSError(errno.EINVAL, f"with {len(message.fds)} descriptors")
            body, file = action(message)
        except OSError as error:
            _log.debug("vfio-user: command %d: %s", message.command, error.strerror)
            code = error.errno or errno.EIO
        except struct.error:
            code = errno.EINVAL
        finally:
            close_all(message.fds)
        if not message.flags & NO_REPLY:
            self._reply(message, body, code, [] if file is None else [file])

    def _reply(self, message: _Message, body: bytes, code: int, fds: list[int]) -> None:
        flags = REPLY | (ERROR if code else 0)
        self._wire.send(
            HEADER.pack(message.number, message.command, HEADER.size + len(body), flags, code), body, fds=fds
        )

    def _agree(self, message: _Message) -> None:
        """The first message: version and capabilities."""
        close_all(message.fds)
        if message.command != VERSION or message.flags & TYPE or len(message.body) < 4:
            raise PeerError(f"the first message must be VERSION, got command {message.command}")
        major, minor = struct.unpack_from("<HH", message.body)
        if major != MAJOR:
            raise PeerError(f"version {major}.{minor} was proposed; {MAJOR}.{MINOR} is spoken here")
        asked = _capabilities(message.body[4:])
        self._most_data = min(asked.get("max_data_xfer_size", 1 << 20), MOST_DATA)
        given: dict[str, Any] = {"max_msg_fds": MOST_FDS, "max_data_xfer_size": MOST_DATA}
        # In addition to these two, only capabilities that the client knows.
        ours = {"max_dma_maps": MOST_WINDOWS, "pgsizes": PAGE_BYTES, "write_multiple": True}
        given |= {name: value for name, value in ours.items() if name in asked}
        fds: list[socket.socket] = []
        if asked.get("twin_socket", {}).get("supported") is True:
            ours_end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self._commands = Wire(ours_end, self._patience_s)
            fds.append(theirs)
            given["twin_socket"] = {"supported": True, "fd_index": 0}
        body = struct.pack("<HH", MAJOR, min(minor, MINOR)) + json.dumps({"capabilities": given}).encode() + b"\0"
        try:
            self._reply(message, body, 0, [end.fileno() for end in fds])
        finally:
            for end in fds:
                end.close()

    # Memory of the client

    def _dma_map(self, message: _Message) -> Answer:
        _, flags, offset, address, size = struct.unpack("<IIQQQ", message.body)
        if len(message.fds) > 1 or not flags & 3 or flags & ~3:
            raise OSError(errno.EINVAL, f"{len(message.fds)} descriptors, flags {flags:#x}")
        file = message.fds[0] if message.fds else None
        self.host.add(DmaWindow(address, size, bool(flags & 1), bool(flags & 2), file, offset))
        message.fds.clear()
        return b"", None

    def _dma_unmap(self, message: _Message) -> Answer:
        _, flags, address, size = struct.unpack("<IIQQ", message.body)
        if flags == _UNMAP_ALL:
            self.host.clear()
        elif not flags:
            self.host.remove(address, size)
        else:
            raise OSError(errno.EINVAL, f"flags {flags:#x}")
        return message.body, None

    def read(self, address: int, size: int) -> bytes:
        """Read memory without a file."""
        parts = []
        for begin in range(address, address + size, self._most_data):
            count = min(self._most_data, address + size - begin)
            body = self._ask(DMA_READ, _DMA.pack(begin, count))
            if len(body) != _DMA.size + count:
                raise DmaError(begin, f"the host has answered {len(body)} bytes to a read of {count}")
            parts.append(body[_DMA.size :])
        return b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        for place in range(0, len(data), self._most_data):
            part = data[place : place + self._most_data]
            self._ask(DMA_WRITE, _DMA.pack(address + place, len(part)) + part)

    def _ask(self, command: int, body: bytes) -> bytes:
        """Send a command and wait for its answer; requests received meanwhile are executed afterwards.

        Only raises DmaError, because the device is processing a job: a client with a broken connection is dropped
        afterwards.
        """
        address, _ = _DMA.unpack_from(body)
        try:
            if self._broken is None:
                return self._answer_to(command, body, address)
        except (PeerError, PeerGoneError) as error:
            self._broken = error
        raise DmaError(address, "the host does not answer")

    def _answer_to(self, command: int, body: bytes, address: int) -> bytes:
        self._number = self._number + 1 & 0xFFFF
        self._commands.send(HEADER.pack(self._number, command, HEADER.size + len(body), 0, 0), body)
        while True:
            message = self._receive(self._commands, within_patience=True)
            if message.flags & TYPE == REPLY:
                close_all(message.fds)
                if (message.number, message.command) != (self._number, command):
                    raise PeerError(f"an answer to command {message.command}, which was not sent")
                if message.flags & ERROR:
                    raise DmaError(address, f"the host refuses: {os.strerror(message.code)}")
                return message.body
            self._waiting.append(message)
            if len(self._waiting) > MOST_WAITING:
                raise PeerError(f"more than {MOST_WAITING} messages and no answer to a DMA command")

    # The device

    def _device_info(self, message: _Message) -> Answer:
        (argsz,) = struct.unpack("<I12x", message.body)
        return _fitting(argsz, struct.pack("<IIII", 16, _CAN_RESET | _IS_PCI, REGIONS, IRQS)), None

    def _region_info(self, message: _Message) -> Answer:
        argsz, _, index, _, _, _ = _REGION_INFO.unpack(message.body)
        if index >= REGIONS:
            raise OSError(errno.EINVAL, f"there is no region {index}")
        flags, size, capabilities, file = self._server.region_info(index)
        size_of_all = _REGION_INFO.size + len(capabilities)
        if argsz < size_of_all:  # it repeats the request with a larger buffer
            capabilities = b""
        info = _REGION_INFO.pack(size_of_all, flags, index, _REGION_INFO.size if capabilities else 0, size, 0)
        return _fitting(argsz, info) + capabilities, file

    def _irq_info(self, message: _Message) -> Answer:
        argsz, _, index, _ = struct.unpack("<IIII", message.body)
        if index >= IRQS:
            raise OSError(errno.EINVAL, f"there is no kind {index} of interrupts")
        count = dict(enumerate(self._server.interrupts.counts)).get(index, 0)
        flags = _MASKABLE | _AUTOMASKED if index == INTX else _NORESIZE
        return _fitting(argsz, struct.pack("<IIII", 16, (_EVENTFD | flags) if count else 0, index, count)), None

    def _set_irqs(self, message: _Message) -> Answer:
        _, flags, kind, first, count = _IRQ_SET.unpack_from(message.body)
        data, action, interrupts = flags & 7, flags & ~7, self._server.interrupts
        chosen = message.body[_IRQ_SET.size :]
        if len(chosen) != (count if data == _DATA_BOOL else 0) or (message.fds and data != _DATA_EVENTFD):
            raise OSError(errno.EINVAL, f"{len(chosen)} bytes, {len(message.fds)} descriptors, flags {flags:#x}")
        interrupts.check(kind, first, count)
        vectors = [first + n for n in range(count) if data == _DATA_NONE or (data == _DATA_BOOL and chosen[n])]
        if data not in (_DATA_NONE, _DATA_BOOL, _DATA_EVENTFD) or action not in (_MASK, _UNMASK, _TRIGGER):
            raise OSError(errno.EINVAL, f"flags {flags:#x}")
        if data == _DATA_EVENTFD:
            if action != _TRIGGER:
                raise OSError(errno.EOPNOTSUPP, "masks are not signalled")
            interrupts.assign(kind, first, count, message.fds)
            message.fds.clear()
        elif action != _TRIGGER:
            interrupts.mask(kind, action == _MASK, vectors)
        elif data == _DATA_NONE and not count:
            interrupts.disable(kind)
        else:
            interrupts.trigger(kind, vectors)
        return b"", None

    def _region_read(self, message: _Message) -> Answer:
        offset, region, count = _ACCESS.unpack(message.body)
        self._server.check(region, offset, count)
        return message.body + self._server.read(region, offset, count), None

    def _region_write(self, message: _Message) -> Answer:
        offset, region, count = _ACCESS.unpack_from(message.body)
        data = message.body[_ACCESS.size :]
        if len(data) != count:
            raise OSError(errno.EINVAL, f"{len(data)} bytes for a write of {count}")
        self._server.check(region, offset, count)
        self._server.write(region, offset, data)
        return message.body[: _ACCESS.size], None

    def _write_multi(self, message: _Message) -> Answer:
        (count,) = struct.unpack_from("<Q", message.body)
        row = _ACCESS.size + 8
        if len(message.body) != 8 + count * row:
            raise OSError(errno.EINVAL, f"{len(message.body)} bytes for {count} writes")
        writes = [(place, *_ACCESS.unpack_from(message.body, place)) for place in range(8, len(message.body), row)]
        for _, offset, region, size in writes:  # all are checked before the first is done
            if size > 8:
                raise OSError(errno.EINVAL, f"a write of {size} bytes")
            self._server.check(region, offset, size)
        for place, offset, region, size in writes:
            begin = place + _ACCESS.size
            self._server.write(region, offset, message.body[begin : begin + size])
        return message.body[:8], None

    def _reset(self, message: _Message) -> Answer:
        if message.body:
            raise OSError(errno.EINVAL, f"{len(message.body)} bytes for a reset")
        self._server.function.restart()
        return b"", None


def _fitting(argsz: int, reply: bytes) -> bytes:
    """The reply cut to the buffer of a client. Raises OSError if the buffer is too small."""
    if argsz < len(reply):
        raise OSError(errno.EINVAL, f"room for {argsz} bytes of {len(reply)}")
    return reply


def _capabilities(text: bytes) -> dict[str, Any]:
    """The capabilities of a client, validated. Raises PeerError."""
    try:
        found = json.loads(text.rstrip(b"\0").decode() or "{}")
        proposed = found.get("capabilities", {})
        most, twin = proposed.get("max_data_xfer_size", 1), proposed.get("twin_socket", {})
        if not isinstance(most, int) or most < 1 or not isinstance(twin, dict):
            raise ValueError(f"capabilities {proposed}"[:200])
    except (ValueError, AttributeError, RecursionError) as error:
        raise PeerError(f"invalid version data: {error}") from None
    return dict(proposed)
