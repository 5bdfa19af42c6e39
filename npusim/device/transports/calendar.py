"""The kernel's clock protocol: ``include/uapi/linux/um_timetravel.h``, without free running and broadcasts."""

from __future__ import annotations

import struct
from collections.abc import Callable

from npusim.device.transports.wire import PeerError, Wire, close_all

PS_PER_NS = 1000
EPOCH_NS = 1_700_000_000 * 10**9
"""Date at power-on: 14 November 2023, 22:13:20 UTC."""

_ACK, _START, _REQUEST, _WAIT, _GET, _UPDATE, _RUN, _FREE_UNTIL, _GET_TOD = range(9)
_MESSAGE = struct.Struct("<IIQ")  # operation, sequence number, nanoseconds


class Calendar:
    """The kernel's clock. ``now_ps()``: the processor's time, which the time of the kernel never exceeds.
    ``await_message()``: returns when the kernel has sent a message here. Raises PeerGoneError if the kernel has closed
    the connection."""

    def __init__(self, wire: Wire, now_ps: Callable[[], int], await_message: Callable[[], None]) -> None:
        self.wire = wire
        self._await_message = await_message
        self._now_ps = now_ps
        self.kernel_ns = 0
        self.wanted_ns: int | None = None
        """Time of the kernel's next timer, or a lower bound of it; None until the kernel has sent it."""
        self.waiting = False
        self._sequence = 0

    def handle(self) -> None:
        """Process one message of the kernel."""
        operation, sequence, time = _MESSAGE.unpack(self._receive())
        answer = 0
        if operation == _REQUEST:
            self.wanted_ns = time
            self.catch_up()
        elif operation == _WAIT:
            self.waiting = True
        elif operation == _GET:
            answer = self.kernel_ns
        elif operation == _GET_TOD:
            answer = EPOCH_NS + self.kernel_ns
        elif operation == _UPDATE:
            if time != self.kernel_ns:
                raise PeerError(f"calendar: the kernel reports a time of {time} ns, and was told {self.kernel_ns} ns")
        elif operation != _START:
            raise PeerError(f"calendar: an operation must be one of 1 to 5 and 8, got {operation}")
        self.wire.send(_MESSAGE.pack(_ACK, sequence, answer))

    def catch_up(self) -> None:
        """Send the current time to a kernel that is not waiting, as far as its next timer allows."""
        if self.wanted_ns is None or self.waiting:
            return
        time = min(self._now_ps() // PS_PER_NS, self.wanted_ns)
        if time > self.kernel_ns:
            self._tell(time)

    def run(self, time_ns: int) -> None:
        """Let the kernel run at a time that it has requested."""
        self._tell(max(time_ns, self.kernel_ns))
        self.waiting, self.wanted_ns = False, None

    def _tell(self, time_ns: int) -> None:
        self.kernel_ns = time_ns
        self._sequence = self._sequence + 1 & 0xFFFF_FFFF
        self.wire.send(_MESSAGE.pack(_RUN, self._sequence, time_ns))
        self._await_message()
        operation, sequence, _ = _MESSAGE.unpack(self._receive())
        if (operation, sequence) != (_ACK, self._sequence):
            raise PeerError(
                f"calendar: the kernel must acknowledge message {self._sequence}, got operation {operation} "
                f"of message {sequence}"
            )

    def _receive(self) -> bytearray:
        message = self.wire.receive(_MESSAGE.size)
        close_all(self.wire.take_fds())
        return message
