"""Host memory through DMA: rings, tables and records there, copies, and unreachable addresses."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.device.pci import HostWindow, PciHost, space
from npusim.device.ring import (
    COMPLETION,
    COPY_MAGIC,
    DESCRIPTOR,
    ENTRY,
    HOST,
    REGION_ROW,
    Completion,
    CopyFlag,
    Descriptor,
)
from npusim.sim.watch import Watcher
from npusim.timeline import FaultCode
from tests.support.bare_device import QUICK, SECOND, BareDevice
from tests.support.pci_slots import PCI, on_host
from tests.support.programs.streams import round_trip

JOB = round_trip(64)
ENTRIES = 4
RECORD = int(CopyFlag.RECORD)
DONE, FAULT = 1, 2


class Copier:
    """A device on a host, with a copy ring and its records in host memory."""

    def __init__(self, config=PCI) -> None:
        self.bare, self.host = on_host(config)
        self.ring = self.host.map(ENTRIES * DESCRIPTOR.size)
        self.records = self.host.map(4096)
        self.tail = 0
        self.set_up()

    def set_up(self) -> None:
        base = self.ring.address | HOST
        self.bare["COPY_BASE_LO"], self.bare["COPY_BASE_HI"] = base & 0xFFFF_FFFF, base >> 32
        self.bare["COPY_SIZE"] = ENTRIES
        self.bare["INT_MASK"] = 7

    def put(self, source: int, destination: int, size: int, flags: int = RECORD, **changes: int) -> int:
        """Write a descriptor and return its sequence number."""
        seqno = self.tail + 1
        descriptor = Descriptor(
            COPY_MAGIC, flags, source, destination, size, seqno, (self.records.address + 32 * seqno) | HOST
        )._replace(**changes)
        at = self.tail % ENTRIES * DESCRIPTOR.size
        self.ring.data[at : at + DESCRIPTOR.size] = DESCRIPTOR.pack(*descriptor)
        self.tail += 1
        return seqno

    def go(self) -> None:
        self.bare["COPY_TAIL"] = self.tail
        self.bare["COPY_DOORBELL"] = 1

    def copy(self, source: int, destination: int, size: int, **how: int) -> Completion:
        seqno = self.put(source, destination, size, **how)
        self.go()
        assert self.host.wait_irq(SECOND)
        return self.record(seqno)

    def record(self, seqno: int) -> Completion:
        return Completion(*COMPLETION.unpack_from(self.records.data, 32 * seqno))


def lies_in_host(bare: BareDevice, host: PciHost, program) -> tuple[HostWindow, int]:
    """Submit a job whose ring, region table, record and text are in host memory. Returns the window and the record's
    offset."""
    window = host.map(4096)
    table, record, text = 1024, 2048, 3072
    rows = b"".join(REGION_ROW.pack(bare.take(size), size) for size in program.region_bytes)
    window.data[table : table + len(rows)] = rows
    places = {"region_table": table, "completion": record, "log": text}
    entry = bare.put("LOW", program, **{name: (window.address + at) | HOST for name, at in places.items()})
    window.data[: ENTRY.size] = ENTRY.pack(*entry)
    base = window.address | HOST
    bare["LOW_BASE_LO"], bare["LOW_BASE_HI"] = base & 0xFFFF_FFFF, base >> 32
    bare.ring("LOW")
    return window, record


def test_a_job_whose_control_data_lies_in_host_memory() -> None:
    bare, host = on_host()
    window, at = lies_in_host(bare, host, JOB)
    assert host.wait_irq(SECOND) == 1
    record = Completion(*COMPLETION.unpack_from(window.data, at))
    assert (record.seqno, record.status) == (1, DONE)


def test_what_it_takes_to_have_them_there() -> None:
    """Entry and table are read over the link, the record is a posted write: exact configured times."""
    slow, host = on_host()
    lies_in_host(slow, host, JOB)
    began = slow.now_ps
    slow.advance_to_end()
    near = BareDevice(PCI)
    near.submit("LOW", JOB)
    near_began = near.now_ps
    near.advance_to_end()
    pci, control = PCI.pci, near.device.machine.control_ps
    assert pci is not None
    table = REGION_ROW.size * len(JOB.region_bytes)
    reads = 2 * pci.read_latency_ps + pci.flow_ps(64) + pci.flow_ps(table) - control(64) - control(table)
    write = pci.write_latency_ps + pci.flow_ps(32) - control(32)
    assert slow.now_ps - began == near.now_ps - near_began + reads + write
    assert pci.read_latency_ps == 547_000
    assert pci.flow_ps(7200) == 1_000_000


@pytest.mark.parametrize("size", [1, 64, 4096, 1 << 20])
def test_bytes_go_both_ways(size: int) -> None:
    copier = Copier()
    window = copier.host.map(2 * size)
    data = bytes(i * 7 & 0xFF for i in range(size))
    window.data[:size] = data
    assert copier.copy(window.address | HOST, 0x5000, size).status == DONE
    assert bytes(copier.host.read_memory(0x5000, size)) == data
    assert copier.copy(0x5000, (window.address + size) | HOST, size).status == DONE
    assert window.data[size:] == data
    assert copier.copy(0x5000, 0x80_0000, size).status == DONE  # within DRAM
    assert bytes(copier.host.read_memory(0x80_0000, size)) == data
    assert copier.bare["COPY_HEAD"] == 3


def test_a_copy_takes_its_latencies_and_its_bytes() -> None:
    copier = Copier()
    window = copier.host.map(72_000)
    pci, control = PCI.pci, copier.bare.device.machine.control_ps
    assert pci is not None
    copier.put(window.address | HOST, 0, 72_000)
    began = copier.bare.now_ps
    copier.go()
    fetch, record = pci.read_latency_ps + pci.flow_ps(64), pci.write_latency_ps + pci.flow_ps(32)
    move = pci.read_latency_ps + control(0) + 10_000_000  # 72 kB at 7.2 GB/s; the DRAM is quicker
    end = began + fetch + move + record
    copier.bare.advance(end - 1 - copier.bare.now_ps)
    assert (copier.record(1).status, copier.bare["INT_STATUS"]) == (0, 0)
    copier.bare.advance(1)
    assert (copier.record(1).status, copier.bare["INT_STATUS"]) == (DONE, 4)
    assert copier.record(1).cycles == -(-(end - began) // 1000)


def test_copies_and_jobs_go_side_by_side() -> None:
    copier = Copier()
    window = copier.host.map(1 << 20)
    copier.bare.submit("LOW", JOB)
    assert copier.host.wait_irq(SECOND) == 1
    alone = copier.bare.device.last_job
    copier.put(window.address | HOST, 0x80_0000, 1 << 20)
    copier.go()
    copier.bare.submit("LOW", JOB)
    assert copier.host.wait_irq(SECOND) == 1
    assert copier.record(1).status == 0  # still on its way: 146 us
    assert alone is not None
    assert copier.bare.device.last_job is not None
    assert copier.bare.device.last_job.digest() == alone.digest()


def test_of_a_list_the_last_one_tells() -> None:
    copier = Copier()
    window = copier.host.map(300)
    window.data[:] = bytes(range(100)) * 3
    for part in range(3):
        copier.put(window.address + 100 * (2 - part) | HOST, 0x5000 + 100 * part, 100, RECORD if part == 2 else 0)
    copier.go()
    assert copier.host.wait_irq(SECOND) == 1
    assert copier.host.wait_irq(SECOND) == 0
    assert (copier.record(1).status, copier.record(2).status, copier.record(3).status) == (0, 0, DONE)
    assert bytes(copier.host.read_memory(0x5000, 300)) == bytes(range(100)) * 3


def test_outside_of_the_windows_a_copy_faults_with_the_address() -> None:
    copier = Copier()
    window = copier.host.map(4096)
    record = copier.copy(window.address | HOST, 0, 4097)
    assert (record.status, record.fault_code, record.fault_address) == (FAULT, FaultCode.HOST, window.address + 4096)
    assert copier.host.config_read(space.STATUS, 2) & space.STATUS_MASTER_ABORT
    record = copier.copy(0, 0x123_4567 | HOST, 1)
    assert (record.status, record.fault_code, record.fault_address) == (FAULT, FaultCode.HOST, 0x123_4567)
    copier.host.unmap(window)
    assert copier.copy(window.address | HOST, 0, 1).fault_address == window.address
    assert copier.bare["STATUS"] == 1  # the engine has reported the fault and continues
    assert copier.bare["COPY_HEAD"] == 3


def test_addresses_of_more_bits_than_the_device_drives() -> None:
    copier = Copier(PCI.with_(**{"pci.address_bits": 33}))
    last = (1 << 33) - 4
    assert copier.copy(last | HOST, 0, 5).fault_address == last
    assert copier.copy(last | HOST, 0, 4).fault_address == last  # driven, but not mapped
    assert copier.bare["CAP_HOST"] & 0xFF == 33


def test_without_bus_mastering_nothing_is_reached() -> None:
    copier = Copier()
    copier.host.config_write(space.COMMAND, 2, space.COMMAND_MEMORY)
    copier.put(0, 0x1000, 4)
    copier.go()
    copier.bare.advance(SECOND)
    assert copier.bare["STATUS"] == 1 | 1 << 4
    assert copier.bare["COPY_FAULT_CODE"] == FaultCode.HOST
    assert copier.bare["COPY_FAULT_ADDR_HI"] << 32 | copier.bare["COPY_FAULT_ADDR_LO"] == copier.ring.address


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"magic": 1}, "RING"), ({"flags": 2}, "RING"), ({"reserved": 1}, "RING"), ({"completion": 5 | HOST}, "HOST")],
)
def test_where_nobody_can_be_told_the_engine_stops(changes: dict[str, int], code: str) -> None:
    copier = Copier()
    window = copier.host.map(64)
    copier.put(0, window.address | HOST, 4, **changes)
    second = copier.put(0, window.address | HOST, 4)
    copier.go()
    assert copier.host.wait_irq(SECOND) == 1
    assert copier.bare["INT_STATUS"] == 2
    assert copier.bare["STATUS"] == 1 | 1 << 4
    assert copier.bare["COPY_FAULT_CODE"] == FaultCode[code]
    assert copier.bare["COPY_HEAD"] == 0
    copier.bare.submit("LOW", JOB)  # jobs go on
    assert copier.host.wait_irq(SECOND) == 1
    copier.bare["CONTROL"] = 2
    assert copier.host.wait_irq(SECOND) == 1
    assert copier.record(second).status == DONE
    assert (copier.bare["STATUS"], copier.bare["COPY_FAULT_CODE"], copier.bare["COPY_HEAD"]) == (1, 0, 2)


def test_a_ring_of_copies_that_makes_no_sense() -> None:
    copier = Copier()
    copier.bare["COPY_SIZE"] = 3
    copier.put(0, 64, 4)
    copier.go()
    assert copier.host.wait_irq(SECOND) == 1
    assert copier.bare["COPY_FAULT_CODE"] == FaultCode.RING
    copier.bare["COPY_SIZE"] = ENTRIES
    copier.bare["CONTROL"] = 2
    assert copier.bare["COPY_HEAD"] == 1  # copies announced by the doorbell are dropped
    assert copier.copy(0, 64, 4).status == DONE


def test_from_host_to_host_is_refused() -> None:
    copier = Copier()
    window = copier.host.map(64)
    copier.put(window.address | HOST, (window.address + 8) | HOST, 4)
    copier.go()
    copier.bare.advance(SECOND)
    assert copier.bare["COPY_FAULT_CODE"] == FaultCode.RING


@given(
    st.sampled_from([0, HOST]), st.sampled_from([0, HOST]), st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 64) - 1),
)  # fmt: skip
def test_any_descriptor_ends(from_host: int, to_host: int, source: int, destination: int, size: int) -> None:
    copier = Copier()
    seqno = copier.put(source | from_host, destination | to_host, size)
    copier.go()
    copier.bare.advance(10**18)
    status = copier.bare["STATUS"]
    assert (status, copier.record(seqno).status) in ((1, DONE), (1, FAULT), (17, 0))


def test_a_record_that_cannot_be_written_stops_the_device() -> None:
    bare, host = on_host()
    bare.submit("LOW", JOB, completion=0x77_0000 | HOST)
    assert host.wait_irq(SECOND) == 1
    assert (bare["STATUS"], bare["FAULT_CODE"], bare["FAULT_ADDR_LO"]) == (4, FaultCode.HOST, 0x77_0000)
    bare["CONTROL"] = 2
    bare.submit("LOW", JOB)
    assert host.wait_irq(SECOND) == 1
    assert (bare["STATUS"], bare["LOW_HEAD"]) == (1, 2)


@pytest.mark.parametrize("what", ["ring", "table"])
def test_a_ring_or_a_table_that_cannot_be_read(what: str) -> None:
    bare, host = on_host()
    if what == "ring":
        bare["LOW_BASE_HI"] = 1 << 31
        entry = bare.put("LOW", JOB)
        bare.ring("LOW")
    else:
        entry = bare.submit("LOW", JOB, region_table=0x1000 | HOST)
    assert host.wait_irq(SECOND) == 1
    wanted = 0x1000 if what == "table" else bare["LOW_BASE_LO"]
    assert (bare["FAULT_CODE"], bare["FAULT_ADDR_LO"]) == (FaultCode.HOST, wanted)
    if what == "table":
        assert bare.completion(entry)[1:4] == (FAULT, FaultCode.HOST, wanted)
        assert bare.text(entry) == "region table: host memory at 0x1000: the IOMMU has no mapping there"


def test_a_device_without_host_memory_takes_such_an_address_for_its_own() -> None:
    for config in (QUICK, PCI.with_(**{"pci.address_bits": 0})):
        bare = BareDevice(config)
        entry = bare.submit("LOW", JOB, region_table=0x1000 | HOST)
        bare.advance(SECOND)
        assert bare["FAULT_CODE"] == FaultCode.ADDRESS
        assert bare.completion(entry).fault_address == 0x1000 | HOST
        bare["COPY_DOORBELL"] = 1
        assert "there is no register" in bare.device.misuse[-1]


def test_a_bus_without_host_memory_says_so() -> None:
    bare = BareDevice(PCI)
    entry = bare.submit("LOW", JOB, region_table=0x1000 | HOST)
    bare.advance(SECOND)
    assert bare.text(entry) == "region table: host memory at 0x1000: this bus reaches no host memory"


def test_a_host_that_answers_with_too_little() -> None:
    bare, host = on_host()
    host.dma_read = lambda address, size: b"x"  # type: ignore[assignment]
    entry = bare.submit("LOW", JOB, region_table=0x1000 | HOST)
    assert host.wait_irq(SECOND) == 1
    assert bare.text(entry).endswith("at 0x1000 has brought 1")


@pytest.mark.parametrize("part", range(0, 9, 2))
def test_a_reset_drops_the_copy_that_is_under_way(part: int) -> None:
    copier = Copier()
    window = copier.host.map(7200)
    window.data[:] = b"\1" * 7200
    copier.put(window.address | HOST, 0x5000, 7200)
    copier.go()
    copier.bare.advance(part * 200_000)
    copier.bare["CONTROL"] = 1
    copier.bare.advance(SECOND)
    assert copier.record(1).status == 0
    assert not any(copier.host.read_memory(0x5000, 7200))
    copier.tail = 0
    copier.set_up()
    assert copier.copy(window.address | HOST, 0x5000, 7200).status == DONE


def test_the_layout_is_64_bytes() -> None:
    assert DESCRIPTOR.size == 64
    assert struct.calcsize("<IIQQQQQQQ") == 64


class Told(Watcher):
    def __init__(self) -> None:
        self.copies: list[tuple[int, int, int]] = []

    def copied(self, source: int, destination: int, size: int) -> None:
        self.copies.append((source, destination, size))


def test_who_watches_is_told_of_copies() -> None:
    copier, told = Copier(), Told()
    copier.bare.device.watch(told)
    source = copier.host.map(4096)
    assert copier.copy(source.address | HOST, 0x1000, 64).status == DONE
    assert copier.copy(0x1000, 0x2000, 32).status == DONE
    assert copier.copy(0x1000, 1 << 60, 32).status == FAULT
    assert told.copies == [(source.address | HOST, 0x1000, 64), (0x1000, 0x2000, 32)]
