"""Firmware: the image that a device with ``[firmware]`` needs before it accepts jobs.

The simulated device does not execute it. It models the part of the driver's work: load the image, start it, wait, read
the status, and repeat this after every loss of power.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import Any, NamedTuple, cast

from npusim.device.port import ControlPort
from npusim.device.registers import BY_NAME, RegisterFile
from npusim.errors import UsageError
from npusim.hw.hostside import FirmwareConfig
from npusim.sim.clock import Clock, Event
from npusim.sim.memory import AddressError
from npusim.sim.owner import EventOwner
from npusim.sim.saved import Saved

MAGIC = 0x4655_504E
"""The letters N P U F."""
HEADER_VERSION = 1
HEADER = struct.Struct("<IHHHHIIIQ")
MAX_BYTES = 16 << 20
_READY, _WAITS = (
    next(field.mask for field in BY_NAME["STATUS"].fields if field.name == name) for name in ("READY", "FIRMWARE")
)
_CHECKED_BYTES = 20
"""Size of the part of the header that its checksum covers."""


class FirmwareState(enum.IntEnum):
    """Values of FW_STATUS.STATE."""

    NONE = 0  # no image
    BOOTING = 1  # an image is being read, checked and started
    RUNNING = 2  # jobs are accepted
    BAD_ADDRESS = 3  # the image cannot be read
    BAD_HEADER = 4  # the header is missing or damaged
    BAD_VERSION = 5  # the version is not supported by this device
    BAD_SIZE = 6  # header and FW_BYTES contradict each other, or the image is too large
    BAD_CHECKSUM = 7  # the bytes after the header are damaged


class Header(NamedTuple):
    """The first 32 bytes of an image. Checksums are CRC-32 (IEEE 802.3): of the bytes after the header, and of the
    first 20 bytes of the header."""

    magic: int
    header_version: int
    header_bytes: int
    major: int
    minor: int
    payload_bytes: int
    payload_checksum: int
    header_checksum: int
    reserved: int


def image(payload: bytes, major: int = 1, minor: int = 0) -> bytes:
    """A firmware image. The device does not inspect ``payload``. Raises UsageError for values that do not fit the
    header."""
    if len(payload) > MAX_BYTES - HEADER.size:
        raise UsageError(f"payload must have at most {MAX_BYTES - HEADER.size} bytes, got {len(payload)}")
    for name, number in (("major", major), ("minor", minor)):
        if not 0 <= number <= 0xFFFF:
            raise UsageError(f"{name} must be 0 to 65535, got {number}")
    header = Header(MAGIC, HEADER_VERSION, HEADER.size, major, minor, len(payload), zlib.crc32(payload), 0, 0)
    checksum = zlib.crc32(HEADER.pack(*header)[:_CHECKED_BYTES])
    return HEADER.pack(*header._replace(header_checksum=checksum)) + payload


class Firmware(EventOwner):
    """The firmware of the device: its state and its start."""

    EVENTS = ("_read", "_run")

    def __init__(self, config: FirmwareConfig, clock: Clock, registers: RegisterFile, port: ControlPort) -> None:
        self._config = config
        self._clock = clock
        self._registers = registers
        self._port = port
        self._epoch = 0
        self.lose()

    @property
    def running(self) -> bool:
        """Whether jobs are accepted."""
        return self._state is FirmwareState.RUNNING

    def lose(self) -> None:
        """Unload the firmware, as at power-on."""
        self._epoch += 1
        self._version = 0
        self._show(FirmwareState.NONE)

    def show(self) -> None:
        """Restore the status registers after a reset of all registers: CONTROL.RESET does not affect firmware."""
        self._show(self._state)

    def boot(self) -> None:
        """Read, check and start the image at FW_ADDR with FW_BYTES bytes."""
        if self._state in (FirmwareState.BOOTING, FirmwareState.RUNNING):
            self._registers.complain(f"write to FW_BOOT: firmware is {self._state.name.lower()} already")
            return
        address, size = self._registers.get_pair("FW_ADDR"), self._registers.get("FW_BYTES")
        self._show(FirmwareState.BOOTING)
        if not HEADER.size <= size <= MAX_BYTES:
            self._show(FirmwareState.BAD_SIZE)
            return
        self._clock.after(self._port.read_ps(address, size), self._read, (self._epoch, address, size))

    def _read(self, event: Event) -> None:
        epoch, address, size = cast("tuple[int, int, int]", event.value)
        if epoch != self._epoch:
            return
        try:
            raw = self._port.load(address, size)
        except AddressError:
            self._show(FirmwareState.BAD_ADDRESS)
            return
        header = Header(*HEADER.unpack_from(raw))
        state = self._judge(header, raw)
        if state is not FirmwareState.RUNNING:
            self._show(state)
            return
        self._clock.after(self._config.boot_ps, self._run, (self._epoch, header.minor, header.major))

    def _judge(self, header: Header, raw: bytes) -> FirmwareState:
        """The state for an image, RUNNING if it is valid. The header is only used after its checksum was verified."""
        sound = header.magic == MAGIC and header.header_checksum == zlib.crc32(raw[:_CHECKED_BYTES])
        if not sound or (header.header_version, header.header_bytes) != (HEADER_VERSION, HEADER.size):
            return FirmwareState.BAD_HEADER
        if header.major != self._config.major or header.minor < self._config.minor:
            return FirmwareState.BAD_VERSION
        if HEADER.size + header.payload_bytes != len(raw):
            return FirmwareState.BAD_SIZE
        good = zlib.crc32(raw[HEADER.size :]) == header.payload_checksum
        return FirmwareState.RUNNING if good else FirmwareState.BAD_CHECKSUM

    def _run(self, event: Event) -> None:
        epoch, minor, major = cast("tuple[int, int, int]", event.value)
        if epoch != self._epoch:
            return
        self._version = minor | major << 16
        self._show(FirmwareState.RUNNING)

    def _show(self, state: FirmwareState) -> None:
        self._state = state
        self._registers.set("FW_STATUS", state)
        self._registers.set("FW_VERSION", self._version)
        others = self._registers.get("STATUS") & ~(_READY | _WAITS)
        self._registers.set("STATUS", others | (_READY if self.running else _WAITS))

    # Its state

    def is_void(self, value: Any) -> bool:
        return cast("tuple[int, int, int]", value)[0] != self._epoch

    def awaits(self) -> list[list[str]]:
        """The event that is pending while an image is being started."""
        return [["_read", "_run"]] * (self._state is FirmwareState.BOOTING)

    def value_state(self, value: Any) -> list[int]:
        return list(cast("tuple[int, int, int]", value)[1:])

    def value_of(self, method: str, saved: Saved) -> tuple[int, int, int]:
        first, second = saved.integers(2, 0, (1 << 64) - 1)
        if method == "_read" and not HEADER.size <= second <= MAX_BYTES:
            raise saved.refuse("address and size of an image")
        return self._epoch, first, second & 0xFFFF if method == "_run" else second

    def state(self) -> list[int]:
        """The state as plain data."""
        return [int(self._state), self._version]

    def restore(self, saved: Saved) -> None:
        """Restore the state, after the registers. Raises CheckpointError."""
        state, version = saved.integers(2)
        if state not in list(FirmwareState):
            raise saved.refuse("a state of firmware and its version")
        self._epoch += 1
        self._state, self._version = FirmwareState(state), version
