"""A device for a User Mode Linux kernel: the two protocols, and time travel. The kernel is simulated in Python."""

import contextlib
import logging
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from npusim.device.bus import BAR_MEMORY, BAR_REGISTERS
from npusim.device.npu import NpuDevice
from npusim.device.pci import DmaError
from npusim.device.registers import BY_NAME
from npusim.device.transports.uml import APERTURE_BYTES, KEPT, MOST_POSTED, EndlessError, UmlTransport
from npusim.device.transports.wire import PeerError
from tests.support.bare_device import SECOND, TINY, BareDevice
from tests.support.programs.streams import round_trip
from tests.support.uml_kernel import (
    CFG_WRITE,
    FAR,
    GET,
    HEADER,
    MEMORY,
    MMIO_MEMSET,
    MMIO_READ,
    MMIO_WRITE,
    MSI_DATA,
    REQUEST,
    RUN,
    TIME,
    UPDATE,
    WAIT,
    Kernel,
    KernelBus,
    Served,
    error_of,
    kernel_of,
)  # fmt: skip
from tests.support.waits_and_leaks import PATIENCE_S

MMIO_NS = TINY.host.mmio_ps // 1000
IRQ_PS = TINY.host.irq_ps
JOB = round_trip(64)
INT_MASK = BY_NAME["INT_MASK"].offset


@pytest.fixture
def transport() -> UmlTransport:
    return UmlTransport(NpuDevice(TINY), PATIENCE_S, 10 * SECOND)


def ready(kernel: Kernel) -> KernelBus:
    """Return the bus of a kernel whose driver has found the device."""
    kernel.say(REQUEST, FAR)
    kernel.enable()
    return KernelBus(kernel)


# Time


def test_an_access_takes_its_time_on_both_clocks(transport: UmlTransport, tmp_path: Path) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        before, device_before = kernel.now, transport.function.device.now_ps
        bus.read(BAR_REGISTERS, 0, 4)
        assert kernel.now == before + MMIO_NS
        bus.write(BAR_REGISTERS, INT_MASK, 4, 1)
        assert kernel.now == before + 2 * MMIO_NS
        bus.write_memory(0x1000, bytes(1 << 16))
        took = 2 * TINY.host.mmio_ps + TINY.host.copy_ps(1 << 16)
        assert transport.function.device.now_ps == device_before + took
        assert kernel.now == (device_before + took) // 1000


def test_no_time_behind_the_kernels_timer_is_told_and_what_is_left_out_follows(
    transport: UmlTransport, tmp_path: Path
) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        start = kernel.now
        kernel.say(REQUEST, start + MMIO_NS - 1)
        bus.read(BAR_REGISTERS, 0, 4)
        bus.read(BAR_REGISTERS, 0, 4)
        assert kernel.now == start + MMIO_NS - 1  # the timer has not run
        kernel.wait()
        assert kernel.now == start + MMIO_NS - 1
        kernel.say(REQUEST, FAR)
        assert kernel.now == start + 2 * MMIO_NS


def test_while_the_next_timer_is_not_known_the_kernels_clock_stands(transport: UmlTransport, tmp_path: Path) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        kernel.say(REQUEST, kernel.now)
        kernel.wait()  # it may have timers that it has not announced
        start = kernel.now
        for _ in range(3):
            bus.read(BAR_REGISTERS, 0, 4)
        assert kernel.now == start
        kernel.say(REQUEST, start + 2 * MMIO_NS)
        assert kernel.now == start + 2 * MMIO_NS
        kernel.wait()
        kernel.say(REQUEST, FAR)
        assert kernel.now == start + 3 * MMIO_NS


def test_a_loop_that_reads_without_a_pause_meets_the_end_of_a_job(transport: UmlTransport, tmp_path: Path) -> None:
    """The kernel's clock stays at its timer, which cannot expire during the loop; the device's clock advances."""
    with kernel_of(transport, tmp_path) as kernel:
        bare = BareDevice(device=transport.function.device, transport=lambda _: ready(kernel))
        bare.submit("LOW", JOB)
        kernel.say(REQUEST, kernel.now + 1)
        reads = 0
        while not bare["INT_STATUS"]:
            reads += 1
            assert reads < 10_000
        assert reads > 5


def script(bare: BareDevice) -> tuple[list[object], list[int]]:
    """Run jobs as software does. Returns what it saw, and when."""
    seen: list[object] = []
    times = []
    for program in (JOB, round_trip(4096), JOB):
        entry = bare.submit("MEDIUM", program)
        seen += [bare.wait(), bare.completion(entry)]
        times.append(bare.now_ps)
    faulty = bare.submit("HIGH", JOB, magic=0)
    seen += [bare.wait(), bare.completion(faulty), bare["FAULT_CODE"]]
    return seen, [*times, bare.now_ps]


def test_jobs_take_the_same_cycles_as_in_this_process_and_the_same_time(
    transport: UmlTransport, tmp_path: Path
) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        start = transport.function.device.now_ps
        seen, times = script(BareDevice(device=transport.function.device, transport=lambda _: bus))
    device = NpuDevice(TINY)
    device.machine.clock.advance(start)  # the time of the probe
    expected, when = script(BareDevice(device=device))
    assert seen == expected
    # A kernel wakes up at whole nanoseconds.
    late = [found - right for found, right in zip(times, when, strict=True)]
    assert all(0 <= ps < 1000 * interrupts for interrupts, ps in enumerate(late, 1)), late


def test_an_interrupt_is_heard_after_its_time_and_not_before(transport: UmlTransport, tmp_path: Path) -> None:
    raised: list[int] = []
    function = transport.function
    interrupt = transport.interrupt

    def noted(vector: int) -> None:
        raised.append(function.device.now_ps)
        interrupt(vector)

    transport.interrupt = noted  # type: ignore[method-assign]
    with kernel_of(transport, tmp_path) as kernel:
        bare = BareDevice(device=function.device, transport=lambda _: ready(kernel))
        bare.submit("LOW", JOB)
        kernel.say(REQUEST, FAR)
        kernel.wait()
        assert kernel.now == -(-(raised[0] + IRQ_PS) // 1000)
        assert kernel.messages == [struct.pack("<BBHIQI", 7, 0, 0, 4, 0xA0000, MSI_DATA)]


@pytest.mark.parametrize(("late", "heard"), [(0, False), (1, True)])
def test_a_timer_at_the_very_time_goes_first(transport: UmlTransport, tmp_path: Path, late: int, heard: bool) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        transport.interrupt(0)
        arrives = -(-(transport.function.device.now_ps + IRQ_PS) // 1000)
        kernel.say(REQUEST, arrives + late)
        kernel.wait()
        assert kernel.now == arrives
        assert bool(kernel.messages) == heard
        if not heard:
            kernel.say(REQUEST, FAR)
            kernel.wait()
            assert kernel.messages
            assert kernel.now == arrives
        del bus


def _ticks(kernel: Kernel) -> None:
    for number in range(1, 20):
        kernel.say(REQUEST, number * 10**9)
        kernel.wait()


def _polls(kernel: Kernel) -> None:
    bus = ready(kernel)
    while True:
        bus.read(BAR_REGISTERS, 0, 4)


def _sleeps(kernel: Kernel) -> None:
    ready(kernel)
    kernel.say(REQUEST, (1 << 63) - 1)
    kernel.wait()


@pytest.mark.parametrize(
    ("limit_ps", "never_ends", "message"),
    [
        (10 * SECOND, _ticks, r"the kernel still runs after 10 s of simulated time"),
        (10**8, _polls, r"the kernel still runs after 0.0001 s of simulated time"),
        (10 * SECOND, _sleeps, r"no event is possible after 0.\d{6} s of simulated time"),
    ],
)
def test_a_kernel_that_would_never_end_is_stopped(
    tmp_path: Path, limit_ps: int, never_ends: Callable[[Kernel], None], message: str
) -> None:
    error = error_of(UmlTransport(NpuDevice(TINY), PATIENCE_S, limit_ps), tmp_path, never_ends)
    assert isinstance(error, EndlessError)
    assert re.match(message, str(error))


# Interrupts


def test_messages_of_one_vector_that_were_not_heard_are_one(transport: UmlTransport, tmp_path: Path) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        ready(kernel)
        for _ in range(3):
            transport.interrupt(0)
        kernel.say(REQUEST, FAR)
        kernel.wait()
        assert len(kernel.messages) == 1


def test_the_pin_comes_again_and_again_until_its_cause_is_cleared(transport: UmlTransport, tmp_path: Path) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        kernel.say(REQUEST, FAR)
        transport.intx(True)
        times = []
        for _ in range(3):
            kernel.say(REQUEST, FAR)
            kernel.wait()
            times.append(kernel.now)
        assert times[2] - times[1] == times[1] - times[0] == IRQ_PS // 1000
        assert kernel.messages == [struct.pack("<BBHIQ", 6, 0, 0, 0, 1)] * 3
        transport.intx(False)
        kernel.say(REQUEST, kernel.now + 10**6)
        kernel.wait()
        assert len(kernel.messages) == 4  # those in flight
        kernel.say(REQUEST, kernel.now + 10**6)
        kernel.wait()
        assert len(kernel.messages) == 4


def test_interrupts_wait_for_room(transport: UmlTransport, tmp_path: Path) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        ready(kernel)
        kernel.offer = lambda head, kick=True: None  # type: ignore[method-assign]  # a driver that is slow
        for number in range(12):  # of ten, and two that wait
            transport._arrive(bytes([number]) * 20)
        kernel.say(REQUEST, FAR)
        kernel.wait()
        assert len(kernel.messages) == 10
        kernel.say(REQUEST, kernel.now + 10**6)
        kernel.wait()
        assert len(kernel.messages) == 10
        del kernel.offer  # type: ignore[attr-defined]
        kernel.offer(0)
        kernel.offer(1)
        kernel.say(REQUEST, FAR)
        kernel.wait()
        assert [message[0] for message in kernel.messages] == list(range(12))


# Accesses


def test_configuration_space_and_bars_are_the_functions(transport: UmlTransport, tmp_path: Path) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        assert kernel.config_read(0, 4) == 0x00421E4E
        assert bus.read(BAR_REGISTERS, 0, 4) == transport.function.device.read(BAR_REGISTERS, 0, 4)
        bus.write_memory(0x100, bytes(range(200)))
        assert bus.read_memory(0x101, 100) == bytes(range(1, 101))
        assert bus.read(BAR_MEMORY, 0x108, 8) == int.from_bytes(bytes(range(8, 16)), "little")
        # A copy of registers is made of words.
        words = kernel.access(MMIO_READ, BAR_REGISTERS, 0, 16, room=16)
        assert words == b"".join(bus.read(BAR_REGISTERS, place, 4).to_bytes(4, "little") for place in range(0, 16, 4))
        assert kernel.access(MMIO_READ, 5, 0, 16, room=16) == b"\xff" * 16
        assert kernel.access(MMIO_READ, BAR_REGISTERS, 1 << 40, 3, room=3) == b"\xff" * 3


def test_of_large_memory_the_aperture_shows_the_beginning(transport: UmlTransport, tmp_path: Path) -> None:
    assert TINY.dram.bytes > APERTURE_BYTES
    with kernel_of(transport, tmp_path) as kernel:
        kernel.config_write(0x18, 4, 0xFFFF_FFFF)
        assert kernel.config_read(0x18, 4) & ~0xF == 0x1_0000_0000 - APERTURE_BYTES


@pytest.mark.parametrize("operation", [MMIO_MEMSET, CFG_WRITE])
def test_memset_io_also_as_linux_6_1_sends_it(transport: UmlTransport, tmp_path: Path, operation: int) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        bus.write_memory(0x100, bytes(range(100)))
        kernel.access(operation, BAR_MEMORY, 0x104, 8, b"\xab" + bytes(7))
        assert bus.read_memory(0x100, 16) == bytes(range(4)) + b"\xab" * 8 + bytes(range(12, 16))


def test_an_answer_comes_before_the_writes_that_were_posted(transport: UmlTransport, tmp_path: Path) -> None:
    """Linux 6.1 would wait 1 us for each of them otherwise. Reads and writes take the configured time in any order."""
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        start = kernel.now
        for _ in range(20):
            bus.write(BAR_REGISTERS, INT_MASK, 4, 1)
        assert bus.read(BAR_REGISTERS, INT_MASK, 4) == 1  # the fake asserts it
        assert kernel.now == start + 21 * MMIO_NS


def test_writes_that_the_kernel_has_no_place_for_are_told_of(
    transport: UmlTransport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with kernel_of(transport, tmp_path) as kernel, caplog.at_level(logging.WARNING, "npusim.device"):
        bus = ready(kernel)
        for _ in range(KEPT):  # so that none is left
            bus.write(BAR_MEMORY, 0, 4, 0)
        kernel.say(REQUEST, kernel.now + 1000)
        kernel.wait()
        kernel.say(REQUEST, FAR)
        for _ in range(MOST_POSTED - 1):
            bus.write(BAR_MEMORY, 0, 4, 0)
        assert not caplog.records
        bus.write(BAR_MEMORY, 0, 4, 0)
        assert f"written to the device {MOST_POSTED} times without reading" in caplog.text


def test_a_kernel_that_waits_takes_back_what_it_has_written(transport: UmlTransport, tmp_path: Path) -> None:
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        for number in range(20 * MOST_POSTED):
            if number % KEPT == 0:
                kernel.say(REQUEST, kernel.now + 100)
                kernel.wait()
                kernel.say(REQUEST, FAR)
            bus.write(BAR_MEMORY, 4 * number, 4, number)
        assert bus.read(BAR_MEMORY, 4 * number, 4) == number
        assert not kernel.messages


def test_the_devices_dma_reaches_what_the_kernel_shares_and_no_more(transport: UmlTransport, tmp_path: Path) -> None:
    with pytest.raises(DmaError, match="no kernel shares its memory"):
        transport.dma_read(MEMORY, 1)
    with kernel_of(transport, tmp_path) as kernel:
        transport.dma_write(MEMORY + 0x20_0000, b"hello")
        assert kernel.peek(MEMORY + 0x20_0000, 5) == b"hello"
        assert transport.dma_read(MEMORY + 0x20_0001, 4) == b"ello"
        with pytest.raises(DmaError):
            transport.dma_read(MEMORY - 1, 2)


# A kernel that lies, stops or dies


def _shorten(kernel: Kernel) -> None:
    os.truncate(kernel.file, 0x1000)
    kernel.kick(0)


def _circle(kernel: Kernel) -> None:
    kernel.describe(0, 0, MEMORY, 16, 1, 0)
    kernel.make_available(0, 0)
    kernel.kick(0)


def _far_chain(kernel: Kernel) -> None:
    kernel.describe(0, 0, 0x7000_0000, 16, 0)
    kernel.make_available(0, 0)
    kernel.kick(0)


def _nowhere_for_interrupts(kernel: Kernel) -> None:
    ready(kernel)
    kernel.request(9, struct.pack("<IIQQQQ", 1, 0, 0x5000_0000, 0x5000_0000, 0x5000_0000, 0))
    kernel.access(MMIO_WRITE, BAR_REGISTERS, INT_MASK, 4, struct.pack("<I", 3))
    BareDevice(TINY, lambda _: KernelBus(kernel), device=NpuDevice(TINY)).submit("LOW", JOB)
    kernel.say(REQUEST, FAR)
    kernel.wait()


LIES: dict[str, tuple[Callable[[Kernel], object], str]] = {
    "an operation": (lambda kernel: kernel.say(9), "calendar: an operation must be one of 1 to 5 and 8, got 9"),
    "a time": (lambda kernel: kernel.say(UPDATE, 5), "the kernel reports a time of 5 ns, and was told 0 ns"),
    "a request": (lambda kernel: kernel.request(99), "vhost-user: request 99 was not offered"),
    "a payload": (lambda kernel: kernel.request(8, b"1"), "vhost-user: request 8 cannot have 1 bytes"),
    "a feature": (lambda kernel: kernel.request(2, b"\xff" * 8), "features must be among 0x140000000, got 0xf"),
    "a queue": (lambda kernel: kernel.request(35, struct.pack("<II", 2, 0)), "a queue must be 0 or 1, got 2"),
    "a size": (lambda kernel: kernel.request(8, struct.pack("<II", 0, 3)), "must be a power of two up to 1024, got 3"),
    "a base": (lambda kernel: kernel.request(10, struct.pack("<II", 0, 3)), "a queue must begin at 0, got 3"),
    "regions": (lambda kernel: kernel.request(5, bytes(40)[:8] + bytes(32), (0,)), "0 regions of memory with 1 files"),
    "a pipe": (
        lambda kernel: kernel.request(5, struct.pack("<II4Q", 1, 0, 0, 64, 0, 0), (os.pipe()[0],)),
        "memory must be a file",
    ),
    "a region": (
        lambda kernel: kernel.request(5, struct.pack("<II4Q", 1, 0, 0, 1 << 40, 0, 0), (kernel.file,)),
        "the file ends before the window",
    ),
    "no wire": (lambda kernel: kernel.request(21), "the back channel must be one socket, got 0 descriptors"),
    "a file": (lambda kernel: kernel.request(21, files=(kernel.file,)), "the back channel must be a socket"),
    "a shorter file": (_shorten, "truncated the file"),
    "a circle": (_circle, "a chain must end within the 256 descriptors"),
    "a far chain": (_far_chain, "no memory for the device there: 0x70000000"),
    "nowhere for interrupts": (_nowhere_for_interrupts, "no memory for the device there: 0x50000002"),
    "an access": (lambda kernel: kernel.access(9, 0, 0, 4, room=4), "operation 9 must be 1 to 5"),
    "a short access": (lambda kernel: kernel.access(MMIO_WRITE, 2, 0, 99, b"1"), "99 bytes at most 1"),
    "a large answer": (lambda kernel: kernel.access(MMIO_READ, 2, 0, 1 << 31, room=8), "bytes at most 8"),
    "chains": (
        lambda kernel: (
            kernel.poke(MEMORY + 0x1002, struct.pack("<H", 300)),
            kernel.kick(0),
        ),
        "a virtqueue of 256 cannot have 300 chains available",
    ),
    "a version": (lambda kernel: kernel.device.sendall(HEADER.pack(1, 0, 0)), "must have version 1"),
    "a long message": (lambda kernel: kernel.device.sendall(HEADER.pack(1, 1, 1 << 31)), "at most 4096 bytes"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_it_and_is_named(transport: UmlTransport, tmp_path: Path, lie: str) -> None:
    tell, message = LIES[lie]

    def tell_and_ask(kernel: Kernel) -> None:
        tell(kernel)
        kernel.say(GET)

    error = error_of(transport, tmp_path, tell_and_ask)
    assert isinstance(error, PeerError)
    assert message in str(error)


@pytest.mark.parametrize("bytes_sent", [0, 5])
def test_a_kernel_that_says_nothing_is_given_up(tmp_path: Path, bytes_sent: int) -> None:
    transport = UmlTransport(NpuDevice(TINY), 0.2, SECOND)
    served = Served(transport, tmp_path)
    calendar, device = served.connect()
    calendar.sendall(bytes(bytes_sent))
    error = served.join()
    assert isinstance(error, PeerError)
    assert "0.2 s" in str(error)
    calendar.close()
    device.close()


def test_a_kernel_that_does_not_take_the_time_is_given_up(tmp_path: Path) -> None:
    def stop(kernel: Kernel) -> None:
        kernel.say(REQUEST, 1000)
        kernel.calendar.sendall(TIME.pack(WAIT, 77, 0))
        assert TIME.unpack(kernel.calendar.recv(16)) == (0, 77, 0)
        assert TIME.unpack(kernel.calendar.recv(16))[0] == RUN
        assert not kernel.calendar.recv(1)

    error = error_of(UmlTransport(NpuDevice(TINY), 0.2, SECOND), tmp_path, stop)
    assert "has sent nothing" in str(error)


class DiesError(Exception):
    """A kernel was killed."""


@pytest.mark.parametrize("after", [*range(1, 40, 3), 60, 100, 140])
def test_a_kernel_may_die_at_any_message(transport: UmlTransport, tmp_path: Path, after: int) -> None:
    """Nothing is raised, nothing leaks, and the next kernel is served."""
    files = set(os.listdir("/proc/self/fd"))
    served = Served(transport, tmp_path)
    kernel = Kernel(*served.connect())
    left = after

    def dying(operation: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            nonlocal left
            left -= 1
            if not left:
                raise DiesError
            return operation(*arguments, **more)

        return call

    kernel.say, kernel.request = dying(kernel.say), dying(kernel.request)  # type: ignore[method-assign]
    with contextlib.suppress(DiesError):
        kernel.boot()
        script(BareDevice(device=transport.function.device, transport=lambda _: ready(kernel)))
    assert left <= 0
    kernel.close()
    assert served.join() is None
    assert set(os.listdir("/proc/self/fd")) == files
    with kernel_of(transport, tmp_path) as again:
        assert again.config_read(0, 4) == 0x00421E4E


def test_each_vector_of_msi_x_is_a_message_of_its_own(tmp_path: Path) -> None:
    transport = UmlTransport(NpuDevice(TINY.with_(**{"pci.vectors": 4})), PATIENCE_S, 10 * SECOND)
    with kernel_of(transport, tmp_path) as kernel:
        bus = ready(kernel)
        capability = kernel.capability(0x11)
        table = kernel.config_read(capability + 4, 4)  # in BAR 0
        for vector in range(4):
            for place, value in ((0, 0xA0000), (4, 0), (8, 100 + vector), (12, 0)):
                bus.write(BAR_REGISTERS, table + 16 * vector + place, 4, value)
        kernel.config_write(capability + 2, 2, kernel.config_read(capability + 2, 2) | 1 << 15)
        for vector in (2, 0, 3, 2):
            transport.function.irq(vector)
        kernel.say(REQUEST, FAR)
        kernel.wait()
        assert [struct.unpack("<QI", message[8:]) for message in kernel.messages] == [
            (0xA0000, 100 + vector) for vector in (2, 0, 3)
        ]
