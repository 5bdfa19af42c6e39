"""Every way in which a job can fail, seen on the bus; the device works again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from npusim.device.bus import BAR_REGISTERS
from npusim.device.npu import NpuDevice
from npusim.device.ring import ENTRY, ENTRY_MAGIC, RingEntry
from npusim.driver import Driver, LoadedProgram, Priority, header
from npusim.driver.rings import SLICE_PS
from npusim.errors import DeviceFaultError, JobAbortedError
from npusim.faults import AtCommand, AtInterrupt, AtJob, Fail, Fault, Flip, Hang, MessageFault
from npusim.hw.config import load_config
from npusim.isa.base import Command, Unit, Wait, encode, region
from npusim.isa.control import Halt
from npusim.isa.dma import Copy
from npusim.program import CONSTANTS, FIRST_IO, Program
from tests.support.programs.streams import Stream, add, copy, fill, gather, round_trip

RING = header.RINGS[Priority.MEDIUM]
TINY = load_config("tiny")
HALT = Command(0, Unit.CONTROL, 0, (), Halt())


class Bench:
    """A device with its driver, and a correct program."""

    def __init__(self) -> None:
        self.device = NpuDevice(TINY)
        self.driver = Driver(self.device.bus)
        self.good = self.driver.load(round_trip(64))

    def works(self) -> bool:
        values = np.arange(64, dtype=np.uint8) + 7
        return np.array_equal(self.driver.run(self.good, {"x0": values}).outputs["y0"], values)

    def register(self, offset: int) -> int:
        return self.device.bus.read(BAR_REGISTERS, offset, 4)

    def submit(self, entry: RingEntry, tail: int = 1) -> None:
        """Write an entry to the start of the ring and ring the doorbell."""
        bus = self.device.bus
        base = self.register(RING + header.BASE_LO)
        bus.write_memory(base, ENTRY.pack(*entry))
        bus.write(BAR_REGISTERS, RING + header.TAIL, 4, tail)
        bus.write(BAR_REGISTERS, RING + header.DOORBELL, 4, 1)

    def entry(self, loaded: LoadedProgram | None = None) -> RingEntry:
        loaded = loaded or self.good
        return RingEntry(
            ENTRY_MAGIC, 0, loaded.code, len(loaded.program.code), len(loaded.regions), loaded.slot.table, 99,
            loaded.slot.completion, loaded.slot.log, 512,
        )  # fmt: skip

    def fault(self) -> tuple[str, int]:
        """Return (name, address) of the fault after the interrupt."""
        assert self.device.bus.wait_irq(10**12)
        assert self.register(header.STATUS) == header.STATUS_FAULT
        assert self.register(header.INT_STATUS) == header.INT_DONE | header.INT_FAULT
        address = self.register(header.FAULT_ADDR_HI) << 32 | self.register(header.FAULT_ADDR_LO)
        return header.FAULT_NAMES[self.register(header.FAULT_CODE)], address


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    assert bench.works()
    yield bench
    bench.device.faults.check()
    bench.driver.reset()
    assert bench.works()


def run(bench: Bench, program: Program) -> DeviceFaultError:
    """Return the fault of a program that the driver runs; the driver can continue at once."""
    loaded = bench.driver.load(program)
    with pytest.raises(DeviceFaultError) as caught:
        bench.driver.run(loaded, timing_only=False)
    assert bench.works()
    return caught.value


# The ring


@pytest.mark.parametrize(
    "spoil",
    [
        lambda entry: entry._replace(magic=0),
        lambda entry: entry._replace(flags=4),
        lambda entry: entry._replace(flags=1 << 31),
        lambda entry: entry._replace(region_count=1 << 20),
    ],
)
def test_a_bad_entry_is_a_ring_fault(bench: Bench, spoil: Callable[[RingEntry], RingEntry]) -> None:
    bench.driver.reset()
    bench.submit(spoil(bench.entry()))
    assert bench.fault() == ("RING", bench.register(RING + header.BASE_LO))


@pytest.mark.parametrize(("size", "tail"), [(0, 1), (3, 1), (4, 5), (4, 0xFFFF_FFFF)])
def test_a_bad_ring_is_a_ring_fault(bench: Bench, size: int, tail: int) -> None:
    bench.driver.reset()
    bench.device.bus.write(BAR_REGISTERS, RING + header.SIZE, 4, size)
    bench.submit(bench.entry(), tail)
    assert bench.fault()[0] == "RING"


def test_a_faulted_device_takes_no_jobs_until_it_is_reset(bench: Bench) -> None:
    bench.driver.reset()
    bench.submit(bench.entry()._replace(magic=0))
    bench.fault()
    bench.submit(bench.entry(), tail=2)
    assert bench.device.bus.wait_irq(10**9) == 0
    assert bench.register(RING + header.HEAD) == 0


def test_a_doorbell_without_an_entry_does_nothing(bench: Bench) -> None:
    bench.driver.reset()
    bench.device.bus.write(BAR_REGISTERS, RING + header.DOORBELL, 4, 1)
    assert bench.device.bus.wait_irq(10**9) == 0
    assert bench.register(header.STATUS) == header.STATUS_READY


def test_entries_run_one_after_another_and_the_ring_wraps(bench: Bench) -> None:
    bench.driver.reset()
    bus = bench.device.bus
    bus.write(BAR_REGISTERS, RING + header.SIZE, 4, 2)
    base = bench.register(RING + header.BASE_LO)
    for tail in (1, 2, 3, 4, 5):
        bus.write_memory(base + (tail - 1) % 2 * ENTRY.size, ENTRY.pack(*bench.entry()._replace(seqno=100 + tail)))
        if tail != 1:
            bus.write(BAR_REGISTERS, RING + header.TAIL, 4, tail)
            bus.write(BAR_REGISTERS, RING + header.DOORBELL, 4, 1)
            while bench.register(RING + header.HEAD) != tail:
                assert bus.wait_irq(10**12)
            assert bus.read(BAR_REGISTERS, 0x0A0, 4) == 100 + tail


# Addresses


@pytest.mark.parametrize("field", ["program_address", "region_table"])
def test_an_entry_that_points_outside_of_dram(bench: Bench, field: str) -> None:
    bench.driver.reset()
    outside = TINY.dram.bytes - 8
    bench.submit(bench.entry()._replace(**{field: outside}))
    assert bench.fault() == ("ADDRESS", outside)


@pytest.mark.parametrize("log_bytes", [512, 24, 1, 0])
def test_a_region_table_outside_of_dram_leaves_a_record_and_a_text(bench: Bench, log_bytes: int) -> None:
    bench.driver.reset()
    bus, slot, outside = bench.device.bus, bench.good.slot, TINY.dram.bytes - 8
    bus.write_memory(slot.log, b"\xee" * 512)
    bench.submit(bench.entry()._replace(region_table=outside, log_bytes=log_bytes))
    assert bench.fault() == ("ADDRESS", outside)
    raw = bus.read_memory(slot.completion, header.COMPLETION.size)
    seqno, status, code, address, cycles = header.COMPLETION.unpack(raw)
    assert (seqno, status, header.FAULT_NAMES[code], address) == (99, header.JOB_FAULT, "ADDRESS", outside)
    text = b"region table: 64 bytes at 0x3ffffff8: DRAM has 0x40000000 bytes"
    wanted = text[: log_bytes - 1] + b"\0" if log_bytes else b""
    assert bus.read_memory(slot.log, 512) == wanted + b"\xee" * (512 - len(wanted))
    assert bench.device.last_job is not None
    assert bench.device.last_job.cycles == cycles == 3 * 100 + (64 + 64 + 32) // 8  # entry, table, record
    go_on(bench)
    assert bench.register(RING + header.HEAD) == 1


def test_the_driver_fails_the_job_of_a_lost_region_table_and_no_other(bench: Bench) -> None:
    lost = bench.driver.load(round_trip(64))
    lost.slot.table = 1 << 40
    loaded = (bench.good, lost, bench.good)
    seqnos = [bench.driver.submit(item, {"x0": np.full(64, n, np.uint8)}) for n, item in enumerate(loaded)]
    assert bench.driver.wait(seqnos[0]).outputs["y0"][0] == 0
    with pytest.raises(DeviceFaultError, match="device fault ADDRESS at 0x10000000000: region table: 64 bytes"):
        bench.driver.wait(seqnos[1])
    assert bench.driver.wait(seqnos[2]).outputs["y0"][0] == 2


def test_a_job_that_is_aborted_while_its_lost_region_table_is_read_is_aborted(bench: Bench) -> None:
    bench.driver.reset()
    bench.submit(bench.entry()._replace(region_table=1 << 40))
    bench.device.bus.write(BAR_REGISTERS, header.ABORT_SEQNO_LO, 4, 99)
    bench.device.bus.write(BAR_REGISTERS, header.ABORT, 4, header.ABORT_GO)  # after 200 ns: the entry takes 108
    assert bench.device.bus.wait_irq(10**12)
    raw = bench.device.bus.read_memory(bench.good.slot.completion, header.COMPLETION.size)
    assert header.COMPLETION.unpack(raw)[:3] == (99, header.JOB_ABORTED, 0)
    assert bench.register(header.STATUS) == header.STATUS_READY


def test_a_ring_outside_of_dram(bench: Bench) -> None:
    bench.driver.reset()
    bus = bench.device.bus
    bus.write(BAR_REGISTERS, RING + header.BASE_HI, 4, 0x10)
    bus.write(BAR_REGISTERS, RING + header.TAIL, 4, 1)
    bus.write(BAR_REGISTERS, RING + header.DOORBELL, 4, 1)
    assert bench.fault() == ("ADDRESS", 0x10 << 32 | bench.register(RING + header.BASE_LO))


def test_a_region_outside_of_dram(bench: Bench) -> None:
    loaded = bench.driver.load(round_trip(64))
    rows = b"".join(header.REGION_ROW.pack(1 << 40, size) for size in (0, 0, 64, 64))
    bench.device.bus.write_memory(loaded.slot.table, rows)
    with pytest.raises(DeviceFaultError, match="DRAM has 0x40000000 bytes") as caught:
        bench.driver.run(loaded, timing_only=True)
    assert (caught.value.code, caught.value.address) == ("ADDRESS", 1 << 40)


def test_a_completion_record_outside_of_dram_hurts_nobody(bench: Bench) -> None:
    bench.driver.reset()
    bench.submit(bench.entry()._replace(completion=1 << 50))
    assert bench.device.bus.wait_irq(10**12)
    assert bench.register(header.STATUS) == header.STATUS_READY


# Programs


def test_garbage_is_a_program_fault(bench: Bench) -> None:
    error = run(bench, Stream().program(code=b"\xff" * 40))
    assert error.code == "PROGRAM"
    assert "command at byte 0: unknown opcode 0xff" in str(error)


def test_an_empty_stream_is_a_program_fault(bench: Bench) -> None:
    assert "does not end in halt" in str(run(bench, Stream().program(code=b"")))


def test_the_fault_address_is_the_offending_command(bench: Bench) -> None:
    stream = Stream()
    stream.dma(fill(0, 8, 1))
    stream.dma(fill(TINY.sram.bytes - 4, 8, 1))
    loaded = bench.driver.load(stream.program())
    with pytest.raises(DeviceFaultError, match=r"command 1 \(dma.fill\): writes bytes") as caught:
        bench.driver.run(loaded, timing_only=True)
    assert caught.value.code == "PROGRAM"
    assert caught.value.address == loaded.code + stream.commands[0].size


def test_truncated_code_faults_behind_the_last_whole_command(bench: Bench) -> None:
    stream = Stream()
    stream.dma(fill(0, 8, 1))
    loaded = bench.driver.load(stream.program(code=stream.code()[:-4]))
    with pytest.raises(DeviceFaultError, match="8 bytes left, a header takes 12") as caught:
        bench.driver.run(loaded, timing_only=True)
    assert caught.value.address == loaded.code + stream.commands[0].size


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (Command(0, Unit.DMA, 0, (Wait(0, Unit.DMA, 1),), fill(0, 8, 1)), "waits for 1 commands of core0.dma0"),
        (Command(1, Unit.DMA, 0, (), fill(0, 8, 1)), "core 1: the device has 1"),
        (Command(0, Unit.DMA + 1, 0, (), fill(0, 8, 1)), "DMA channel 1: the device has 1"),
        (Command(0, Unit.VECTOR, 0, (), fill(0, 8, 1)), "is for unit dma"),
        (Command(0, Unit.DMA, 0, (), copy(0, region(40), 8)), "region 40: the job has 2"),
        (Command(0, Unit.DMA, 0, (), copy(region(1), 0, 9)), "the memory has 8"),
        (Command(0, Unit.DMA, 0, (), copy(region(CONSTANTS), 0, 8)), "read only"),
        (Command(0, Unit.DMA, 0, (), fill(5 << 48, 8, 1)), "there is no memory space 5"),
        (Command(0, Unit.DMA, 0, (), fill(1 << 48, 8, 1)), "the memory has 0"),  # tiny has no accumulators
    ],
)
def test_a_stream_that_breaks_a_rule_is_a_program_fault(bench: Bench, command: Command, text: str) -> None:
    code = encode([command, HALT])
    error = run(bench, Stream().program(scratch=8, constants=bytes(8), code=code))
    assert error.code == "PROGRAM"
    assert text in str(error)


def test_a_unit_that_the_device_lacks() -> None:
    device = NpuDevice(TINY.with_(vector=None))
    driver = Driver(device.bus)
    stream = Stream()
    stream.vector(add(0, 0, 0, 8))
    with pytest.raises(DeviceFaultError, match=r"core0.vector: the device has no such unit"):
        driver.run(driver.load(stream.program()), timing_only=True)


# Data


def test_an_index_outside_its_axis_is_a_data_fault(bench: Bench) -> None:
    stream = Stream()
    index = stream.dma(copy(0, region(FIRST_IO), 4))
    stream.dma(gather(64, region(CONSTANTS), 0, 1, 8), index)
    program = stream.program([4], constants=bytes(8))
    loaded = bench.driver.load(program)
    bench.driver.run(loaded, {"x0": np.array([7, 0, 0, 0], np.uint8)})
    with pytest.raises(DeviceFaultError, match="is outside the axis of 8") as caught:
        bench.driver.run(loaded, {"x0": np.array([8, 0, 0, 0], np.uint8)})
    assert caught.value.code == "DATA"
    assert caught.value.address == loaded.code + stream.commands[0].size


def test_a_bug_in_the_model_is_an_internal_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError("kernel")

    bench.device.machine.forget()  # a job of a known program does not ask the instructions again
    with monkeypatch.context() as patch:
        patch.setattr(Copy, "execute", explode)
        with pytest.raises(DeviceFaultError, match=r"dma.copy: ZeroDivisionError: kernel") as caught:
            bench.driver.run(bench.good, {"x0": np.zeros(64, np.uint8)})
    assert caught.value.code == "INTERNAL"
    assert bench.device.last_job is not None
    assert isinstance(bench.device.last_job.error, ZeroDivisionError)


# Injected


def test_a_hung_unit_is_silent(bench: Bench) -> None:
    bench.device.faults.add([Fault(AtCommand(command=2, unit="core0.dma0"), Hang(hang="core0.dma0"))])
    job = bench.driver.submit(bench.good, timing_only=True)
    assert not bench.driver.poll(10**15)  # for a thousand seconds
    assert bench.register(header.STATUS) == header.STATUS_READY | 2  # busy
    bench.driver.abort(job)
    with pytest.raises(JobAbortedError):
        bench.driver.wait(job)
    assert bench.device.last_job is not None
    assert len(bench.device.last_job.spans) == 1
    counters = bench.device.last_job.counters  # every picosecond is accounted for in such a job too
    for unit in counters.units.values():
        assert unit.busy_ps + unit.idle_ps + sum(unit.stalls.values()) == counters.duration_ps


def test_a_dma_error(bench: Bench) -> None:
    bench.device.faults.add([Fault(AtCommand(command=2, unit="core0.dma0"), Fail(fail="core0.dma0"))])
    with pytest.raises(DeviceFaultError, match=r"core0.dma0: dma.copy: bus error") as caught:
        bench.driver.run(bench.driver.load(round_trip(64)), timing_only=True)
    assert caught.value.code == "DMA"


def test_a_lost_interrupt_costs_time_but_no_job(bench: Bench) -> None:
    bench.device.faults.add([Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="lose"))])
    before = bench.device.now_ps
    assert bench.works()
    assert SLICE_PS <= bench.device.now_ps - before < 2 * SLICE_PS


def test_a_flipped_bit_is_seen_in_the_result(bench: Bench) -> None:
    address = bench.good.regions[FIRST_IO] + 5
    bench.device.faults.add([Fault(AtJob(job=1), Flip(flip="dram", address=address, bit=3))])
    values = np.zeros(64, np.uint8)
    output = bench.driver.run(bench.good, {"x0": values}).outputs["y0"]
    assert output.nonzero()[0].tolist() == [5]
    assert output[5] == 8


def test_an_unplugged_device_reads_as_all_ones() -> None:
    bench = Bench()
    bench.device.unplug()
    assert bench.register(header.STATUS) == 0xFFFF_FFFF
    assert bench.device.bus.read(2, 0, 8) == 0xFFFF_FFFF_FFFF_FFFF
    assert bench.device.bus.read_memory(0, 4) == b"\xff" * 4
    bench.device.bus.write(BAR_REGISTERS, header.INT_MASK, 4, 3)
    bench.device.bus.write_memory(0, b"1234")
    with pytest.raises(DeviceFaultError, match="the device is gone from the bus") as caught:
        bench.driver.run(bench.good, timing_only=True)
    assert caught.value.code == "UNPLUGGED"
    with pytest.raises(DeviceFaultError, match="there is no device on the bus"):
        Driver(bench.device.bus)


def test_a_closed_device_is_gone_for_good() -> None:
    bench = Bench()
    bench.device.close()
    with pytest.raises(DeviceFaultError, match="the device is gone from the bus"):
        bench.driver.run(bench.good, timing_only=True)


def test_a_device_unplugged_in_the_middle_of_a_job() -> None:
    bench = Bench()
    bench.device.machine.clock.after(5 * 10**6, lambda _: bench.device.unplug())  # while the driver waits
    with pytest.raises(DeviceFaultError, match="gone from the bus"):
        bench.driver.run(bench.good, timing_only=True)


# Reset


def test_a_reset_in_the_middle_of_a_job_drops_it(bench: Bench) -> None:
    bench.driver.reset()
    for delay in range(0, 900_000, 90_000):  # at every stage: entry, table, fetch, copies, completion
        bench.submit(bench.entry(), tail=1)
        bench.device.machine.clock.advance(delay)
        bench.driver.reset()
        assert bench.device.bus.wait_irq(10**9) == 0
        assert bench.works()
        bench.driver.reset()


def test_misuse_of_the_aperture_is_harmless(bench: Bench) -> None:
    bus = bench.device.bus
    assert bus.read(2, TINY.dram.bytes - 4, 8) == 0xFFFF_FFFF_FFFF_FFFF
    assert bus.read(5, 0, 4) == 0xFFFF_FFFF
    assert bus.read(0, 0, 3) == 0xFF_FFFF
    bus.write(2, TINY.dram.bytes, 4, 1)
    bus.write(5, 0, 4, 1)
    assert bus.read_memory(TINY.dram.bytes - 4, 8) == b"\xff" * 8
    bus.write_memory(TINY.dram.bytes - 4, bytes(8))
    bus.write(2, 1 << 20, 4, 0x0403_0201)
    assert bus.read_memory(1 << 20, 4) == b"\1\2\3\4"
    assert bus.read(2, (1 << 20) + 1, 2) == 0x0302


# CONTINUE: the device goes on without a reset


def go_on(bench: Bench) -> None:
    bench.device.bus.write(BAR_REGISTERS, header.INT_STATUS, 4, header.INT_DONE | header.INT_FAULT)
    bench.device.bus.write(BAR_REGISTERS, header.CONTROL, 4, header.CONTROL_CONTINUE)


def test_continue_drops_an_entry_that_makes_no_sense(bench: Bench) -> None:
    bench.driver.reset()
    base = bench.register(RING + header.BASE_LO)
    bench.device.bus.write_memory(base + ENTRY.size, ENTRY.pack(*bench.entry()))
    bench.submit(bench.entry()._replace(magic=0), tail=2)
    assert bench.fault() == ("RING", base)
    go_on(bench)
    assert bench.register(header.FAULT_CODE) == bench.register(header.FAULT_ADDR_LO) == 0
    assert bench.device.bus.wait_irq(10**12)
    assert bench.register(RING + header.HEAD) == 2
    assert bench.register(header.STATUS) == header.STATUS_READY


def test_continue_drops_a_ring_that_makes_no_sense(bench: Bench) -> None:
    bench.driver.reset()
    bench.device.bus.write(BAR_REGISTERS, RING + header.SIZE, 4, 3)
    bench.submit(bench.entry(), tail=2)
    assert bench.fault()[0] == "RING"
    go_on(bench)
    assert bench.device.bus.wait_irq(10**9) == 0
    assert bench.register(RING + header.HEAD) == 2
    bench.device.bus.write(BAR_REGISTERS, RING + header.SIZE, 4, 4)
    base = bench.register(RING + header.BASE_LO)
    bench.device.bus.write_memory(base + 2 * ENTRY.size, ENTRY.pack(*bench.entry()))
    bench.device.bus.write(BAR_REGISTERS, RING + header.TAIL, 4, 3)
    bench.device.bus.write(BAR_REGISTERS, RING + header.DOORBELL, 4, 1)
    assert bench.device.bus.wait_irq(10**12)
    assert bench.register(RING + header.HEAD) == 3


def test_continue_without_a_fault_does_nothing(bench: Bench) -> None:
    before = bench.register(RING + header.HEAD)
    go_on(bench)
    assert bench.register(RING + header.HEAD) == before
    assert bench.works()


def test_an_entry_that_is_cancelled_ends_as_aborted(bench: Bench) -> None:
    bench.driver.reset()
    bench.submit(bench.entry()._replace(flags=header.FLAG_CANCELLED))
    assert bench.device.bus.wait_irq(10**12)
    raw = bench.device.bus.read_memory(bench.good.slot.completion, header.COMPLETION.size)
    assert header.COMPLETION.unpack(raw)[:2] == (99, header.JOB_ABORTED)
    assert bench.register(0x0A0) != 99  # SEQNO: of jobs that ended well
