"""Bus traces: a recording replays the same, differences are named, and invalid files are refused."""

from __future__ import annotations

import gc
import json
import re
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.device.npu import NpuDevice
from npusim.device.traces import RecordKind, Trace, TracedBus, TraceRecord, read_trace, replay
from npusim.device.traces import format as format_
from npusim.device.traces.format import _NUMBERS, Writer, digest
from npusim.driver.reference import Driver
from npusim.errors import InputError, UsageError
from npusim.faults import AtInterrupt, Fault, MessageFault
from npusim.hw.config import config_of
from npusim.runtime import Session
from tests.support.bare_device import QUICK, SECOND, TINY, BareDevice
from tests.support.driven_jobs import drive
from tests.support.programs.streams import round_trip

JOB = round_trip(64)
HEAD = {"config": TINY.to_table()}


def record(path: Path, config=TINY) -> tuple[bytes, int]:
    """Record the reference driver; return its outputs and end time."""
    device = NpuDevice(config)
    bus = TracedBus(device, path)
    out = drive(Driver(bus))
    bus.close()
    return out, device.now_ps


def write(
    path: Path, accesses: list[TraceRecord], contents: tuple[bytes, ...] = (), end: bool = True, head=HEAD
) -> Path:
    with open(path, "wb") as file:
        writer = Writer(file, head)
        for data in contents:
            writer.contents(data)
        for access in accesses:
            writer.access(access)
        if end:
            writer.end()
        else:
            writer.flush()
    return path


def test_recording_changes_nothing(tmp_path: Path) -> None:
    plain = NpuDevice(TINY)
    assert record(tmp_path / "f.npt") == (drive(Driver(plain.bus)), plain.now_ps)


def test_a_recorded_run_goes_the_same_way_again(tmp_path: Path) -> None:
    _, ended = record(tmp_path / "f.npt")
    trace = read_trace(tmp_path / "f.npt")
    assert trace.complete
    assert {access.kind.value for access in trace.accesses} == {0, 1, 2, 3, 4, 5, 6, 13}
    device = NpuDevice(config_of(trace.head["config"], "trace"))
    assert replay(trace, device) is None
    assert device.now_ps == ended
    assert trace.head["fingerprint"] == TINY.fingerprint()


@pytest.mark.parametrize(
    ("key", "value", "access", "expected", "came"),
    [
        ("host.mmio", "101 ns", "read of 4 bytes at 0x0 of BAR 0 (ID)", "100000 ps", "101000 ps"),
        ("host.submit", "2 us", "host work 'submit'", "1000000 ps", "2000000 ps"),
        ("host.irq", "1001 ns", "wait for an interrupt", "ps", "ps"),
        ("host.link_latency", "900 ns", "copy of 318 bytes to", "1039750 ps", "939750 ps"),
        ("dram.latency", "101 ns", "wait for an interrupt", "interrupt 0 at", "interrupt 0 at"),
        ("dram.bytes", "512 MiB", "(CAP_DRAM_LO)", "0x40000000", "0x20000000"),
        ("dma.setup_cycles", 11, "wait for an interrupt", "interrupt 0 at", "interrupt 0 at"),
    ],
)
def test_what_costs_otherwise_is_named_at_the_first_access(
    tmp_path: Path, key: str, value: object, access: str, expected: str, came: str
) -> None:
    record(tmp_path / "f.npt")
    trace = read_trace(tmp_path / "f.npt")
    found = replay(trace, NpuDevice(TINY.with_(**{key: value})))
    assert found is not None
    assert access in found.access
    assert expected in found.expected
    assert came in found.came
    assert found.expected != found.came
    # Everything before it is the same, on either device.
    before = Trace(trace.head, trace.accesses[: found.number])
    before.contents = trace.contents
    if found.number:
        assert replay(before, NpuDevice(TINY.with_(**{key: value}))) is None
    assert str(found).startswith(f"access {found.number} at {found.at_ps} ps: {found.access}: expected")


LOSE = [Fault(AtInterrupt(interrupt=2), MessageFault(interrupt="lose"))]


def test_bytes_that_come_out_otherwise_are_named(tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    bus = TracedBus(device, tmp_path / "f.npt")
    bus.write_memory(0, bytes(64))
    bus.read(0, 0, 4)
    bus.read_memory(0, 64)
    bus.close()
    trace = read_trace(tmp_path / "f.npt")
    trace.contents[0] = b"1" + bytes(63)
    found = replay(trace, NpuDevice(TINY))
    assert found is not None
    assert (found.number, found.access) == (2, "copy of 64 bytes from 0x0")
    assert found.expected.startswith("bytes with digest ")


def test_what_somebody_told_the_device_meanwhile_is_no_access(tmp_path: Path) -> None:
    """So the first affected access is named."""
    device = NpuDevice(TINY)
    bus = TracedBus(device, tmp_path / "f.npt")
    device.faults.add(LOSE)
    drive(Driver(bus))
    bus.close()
    found = replay(read_trace(tmp_path / "f.npt"), NpuDevice(TINY))
    assert found is not None
    assert found.expected == "no more of the device"
    assert found.came.startswith("interrupt 0 at")


def test_faults_of_a_script_are_in_the_trace(tmp_path: Path) -> None:
    device = NpuDevice(TINY, LOSE)
    bus = TracedBus(device, tmp_path / "f.npt")
    drive(Driver(bus))
    bus.close()
    trace = read_trace(tmp_path / "f.npt")
    assert replay(trace, NpuDevice(TINY, trace.head["faults"])) is None
    assert replay(trace, NpuDevice(TINY)) is not None
    assert len(device.faults.happened) == 1


def test_time_between_accesses_is_kept(tmp_path: Path) -> None:
    """A host that does other work in between, and a driver that polls."""
    bare = BareDevice(QUICK, lambda device: TracedBus(device, tmp_path / "f.npt"))
    bare["INT_MASK"] = 0
    bare.submit("LOW", JOB)
    while not bare["INT_STATUS"]:
        bare.advance(100_000)
    bare.advance(SECOND)
    assert isinstance(bare.bus, TracedBus)
    bare.bus.close()
    trace = read_trace(tmp_path / "f.npt")
    device = NpuDevice(QUICK)
    assert replay(trace, device) is None
    slower = NpuDevice(QUICK.with_(**{"dram.latency": "1 us"}))
    found = replay(trace, slower)
    assert found is not None
    assert (found.access, found.expected, found.came) == ("read of 4 bytes at 0x48 of BAR 0 (INT_STATUS)", "0x1", "0x0")


def test_what_is_copied_again_is_kept_once(tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    bus = TracedBus(device, tmp_path / "f.npt")
    data = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8).tobytes()
    for place in range(10):
        bus.write_memory(place << 20, data)
        assert bus.read_memory(place << 20, len(data)) == data
    bus.close()
    assert (tmp_path / "f.npt").stat().st_size < 110_000
    trace = read_trace(tmp_path / "f.npt")
    assert trace.contents == [data]
    assert replay(trace, NpuDevice(TINY)) is None


def test_after_its_end_nothing_is_written(tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    bus = TracedBus(device, tmp_path / "f.npt")
    driver = Driver(bus)
    bus.close()
    bus.close()
    size = (tmp_path / "f.npt").stat().st_size
    drive(driver)
    assert (tmp_path / "f.npt").stat().st_size == size
    assert read_trace(tmp_path / "f.npt").complete


def test_a_bus_that_nobody_closes_is_complete_when_it_goes(tmp_path: Path) -> None:
    bus = TracedBus(NpuDevice(TINY), tmp_path / "f.npt")
    bus.read(0, 0, 4)
    del bus
    gc.collect()
    assert read_trace(tmp_path / "f.npt").complete


def test_a_session_writes_one(tmp_path: Path) -> None:
    with Session(TINY, cache_dir=False, bus_trace=tmp_path / "f.npt") as session:
        out = drive(session.driver)
    assert out
    trace = read_trace(tmp_path / "f.npt")
    assert trace.complete
    assert replay(trace, NpuDevice(TINY)) is None


def test_with_an_adversary_it_goes_the_same_way_with_the_same_seed(tmp_path: Path) -> None:
    with Session(TINY, cache_dir=False, bus_trace=tmp_path / "f.npt", adversary=3) as session:
        drive(session.driver)
    trace = read_trace(tmp_path / "f.npt")
    assert trace.head["adversary"] == 3
    assert replay(trace, NpuDevice(TINY, adversary=3)) is None


def test_the_environment_asks_for_one_for_each_device(tmp_path: Path) -> None:
    """In a separate process, and nothing is closed explicitly."""
    code = """
import npusim, numpy as np
from tests.support.bare_device import TINY
from tests.support.driven_jobs import drive
for _ in range(2):
    drive(npusim.Session(TINY, cache_dir=False).driver)
"""
    environment = {"NPUSIM_BUS_TRACE": str(tmp_path / "f.npt"), "PYTHONPATH": ":".join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    for name in ("f.npt", "f-2.npt"):
        trace = read_trace(tmp_path / name)
        assert trace.complete, name
        assert replay(trace, NpuDevice(TINY)) is None


def test_a_place_where_nothing_can_be_written() -> None:
    with pytest.raises(UsageError, match=r"bus trace /nowhere/f.npt: No such file or directory"):
        Session(TINY, cache_dir=False, bus_trace="/nowhere/f.npt").driver  # noqa: B018


def test_a_trace_that_was_cut_off_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    record(tmp_path / "f.npt")
    whole = (tmp_path / "f.npt").read_bytes()
    full = read_trace(tmp_path / "f.npt")
    seen, refused = set(), set()
    for size in range(12, len(whole), 7):
        (tmp_path / "f.npt").write_bytes(whole[:size])
        try:
            trace = read_trace(tmp_path / "f.npt")
        except InputError as error:
            refused.add(str(error).partition(": ")[2])
            continue
        assert not trace.complete
        assert trace.accesses == full.accesses[: len(trace.accesses)]
        seen.add(len(trace.accesses))
    assert len(seen) >= 2
    assert refused == {"was cut off before the description of its device"}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not a bus trace; its first bytes must be NPUTRACE"),
        (b"ELF" * 10, "is not a bus trace"),
        (struct.pack("<8sHH", b"NPUTRACE", 2, 0), "version must be 1, got 2"),
        (struct.pack("<8sHH", b"NPUTRACE", 1, 0), "was cut off before the description"),
        (struct.pack("<8sHHBIII", b"NPUTRACE", 1, 0, 9, 0, 0, 0), "block at 12: kind must be 1 to 4, got 9"),
        (
            struct.pack("<8sHHBIII", b"NPUTRACE", 1, 0, 1, 10, 1 << 30, 0),
            "block at 12: must inflate to at most 1048576 bytes, its header says 1073741824",
        ),
        (struct.pack("<8sHHBIII", b"NPUTRACE", 1, 0, 1, 3, 3, 0) + b"abc", "block at 12: is damaged"),
    ],
)
def test_files_that_are_none(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "f.npt").write_bytes(raw)
    with pytest.raises(InputError, match=message):
        read_trace(tmp_path / "f.npt")


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (TraceRecord(RecordKind.READ, 0, 0, (0, 3, 0, 0)), "access 0: size must be 1, 2, 4 or 8, got 3"),
        (
            TraceRecord(RecordKind.WRITE_MEMORY, 0, 0, (0, 0)),
            "access 0: refers to contents 0, and there are 0 before it",
        ),
        (TraceRecord(RecordKind.WORK, 0, 0, (2,)), "access 0: kind of host work must be 0 to 1, got 2"),
        (
            TraceRecord(RecordKind.WAIT, 0, 0, (1 << 200, 0)),
            "access 0: ends inside a number, or has a number that is too long",
        ),
        (TraceRecord(RecordKind.READ_MEMORY, 0, 0, (0, 1 << 33, 0)), "access 0: copies 8589934592 bytes"),
        (TraceRecord(RecordKind.WAIT, 1 << 100, 0, (0, 0)), "access 0: a time of 1267650600228229401496703205376 ps"),
    ],
)
def test_accesses_that_cannot_be(tmp_path: Path, access: TraceRecord, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(write(tmp_path / "f.npt", [access]))


def test_heads_that_describe_no_device(tmp_path: Path) -> None:
    for head in ([], {}, {"config": 1}):
        with pytest.raises(InputError, match="its first block must describe the device"):
            read_trace(write(tmp_path / "f.npt", [], head=head))


def test_an_end_that_counts_wrong_and_what_follows_an_end(tmp_path: Path) -> None:
    raw = write(tmp_path / "f.npt", [TraceRecord(RecordKind.WORK, 0, 0, (0,))]).read_bytes()
    (tmp_path / "f.npt").write_bytes(raw + b"x")
    with pytest.raises(InputError, match="has data after its end"):
        read_trace(tmp_path / "f.npt")
    packed = zlib.compress(bytes(8), 1)
    end = struct.pack("<BIII", 4, len(packed), 8, zlib.crc32(bytes(8))) + packed
    cut = write(tmp_path / "f.npt", [TraceRecord(RecordKind.WORK, 0, 0, (0,))], end=False).read_bytes()
    (tmp_path / "f.npt").write_bytes(cut + end)
    with pytest.raises(InputError, match="its end does not count the 1 accesses before it"):
        read_trace(tmp_path / "f.npt")


@given(st.data())
def test_any_damage_is_seen(tmp_path_factory, data) -> None:
    """In a file without contents, read to its end: no change is accepted as an unchanged trace."""
    path = tmp_path_factory.mktemp("traces") / "f.npt"
    accesses = [
        TraceRecord(RecordKind.READ, 5, 100_000, (0, 4, 0, 0x3155_504E)),
        TraceRecord(RecordKind.WAIT, 0, 7, (7, 0)),
    ]
    raw = bytearray(write(path, accesses).read_bytes())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    try:
        trace = read_trace(path)
    except InputError:
        return
    # A length beyond the end: a truncated file.
    assert not trace.complete


@pytest.mark.parametrize("row", [b"", b"\x0d\0\0"])
def test_no_number_of_blocks_inflates_to_much_more_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: bytes
) -> None:
    """Checked before anything is allocated: blocks of the largest size, until one is refused."""
    more = 1 << 17
    monkeypatch.setattr(format_, "MOST_ROWS", more)
    monkeypatch.setattr(format_, "MOST_CONTENTS", more)
    data = row * ((1 << 16) // 3) or bytes(1 << 16)
    packed = zlib.compress(data)
    block = struct.pack("<BIII", 2 if row else 3, len(packed), len(data), zlib.crc32(data)) + packed
    path = write(tmp_path / "f.npt", [], end=False)
    path.write_bytes(path.read_bytes() + block * 100)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"must inflate to at most [0-9]+ bytes, its header says 65"):
            read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < (50 if row else 2) * more
    finally:
        tracemalloc.stop()


def test_what_is_recorded_can_be_read_however_well_it_compresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format_, "MOST_ROWS", 1 << 12)
    monkeypatch.setattr(format_, "MOST_CONTENTS", 1 << 12)
    accesses = [TraceRecord(RecordKind.PASS, 0, 0, ())] * 100_000
    contents = [bytes([number]) * 3000 for number in range(20)]
    trace = read_trace(write(tmp_path / "f.npt", accesses, contents))
    assert (trace.accesses, trace.contents, trace.complete) == (accesses, contents, True)


_NUMBER = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))


@given(st.lists(st.tuples(st.sampled_from(RecordKind), _NUMBER, _NUMBER, st.tuples(*[_NUMBER] * 4)), max_size=20))
def test_any_accesses_replay_to_an_end(tmp_path_factory, rows) -> None:
    """For any accepted file, the device survives, and the first difference is named."""
    count = _NUMBERS
    accesses = [TraceRecord(kind, gap, spent, numbers[: count[kind]]) for kind, gap, spent, numbers in rows]
    accesses.append(TraceRecord(RecordKind.PASS, 0, 0, ()))
    path = write(tmp_path_factory.mktemp("traces") / "f.npt", accesses, (b"some", b"contents"))
    try:
        trace = read_trace(path)
    except InputError:
        return
    assert trace.accesses == accesses
    small = TINY.with_(**{"dram.bytes": 1 << 20, "sram.bytes": "16 KiB"})
    try:
        found = replay(trace, NpuDevice(small))
    except InputError as error:
        said = "is not allowed in a trace of this kind|nothing was compared, because it has no accesses"
        assert re.search(said, str(error))  # noqa: PT017 - or nothing is raised
        return
    assert found is None or str(found)


def test_a_trace_opens_in_a_viewer(tmp_path: Path) -> None:
    """One track for the bus, one for interrupts, and those of the units, in time since power-on."""
    from npusim.report.bus import Lanes

    record(tmp_path / "f.npt")
    device = NpuDevice(TINY)
    lanes = Lanes(device)
    assert replay(read_trace(tmp_path / "f.npt"), device, lanes.accessed) is None
    spans = lanes._spans
    assert {span.unit for span in spans} >= {"bus", "interrupts", "core0.dma0"}
    interrupts = [span for span in spans if span.unit == "interrupts"]
    assert [span.kind for span in interrupts] == ["interrupt 0"] * 2
    waits = [span for span in spans if span.kind.startswith("wait for an interrupt")]
    # A job runs while software waits for it, and its interrupt comes right before the wait is over.
    work = [span for span in spans if span.unit == "core0.dma0"]
    assert all(any(wait.start_ps <= span.start_ps and span.end_ps <= wait.end_ps for wait in waits) for span in work)
    for interrupt, wait in zip(interrupts, waits[-2:], strict=True):
        assert interrupt.start_ps == wait.end_ps - TINY.host.irq_ps
    lanes.write(tmp_path / "f.perfetto-trace")
    assert (tmp_path / "f.perfetto-trace").stat().st_size > 500


def test_digests_tell_bytes_apart() -> None:
    assert digest(b"a") != digest(b"b")
    assert json.dumps(digest(b"a"))
