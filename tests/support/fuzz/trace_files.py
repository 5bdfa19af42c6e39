"""Bus traces with other rows, contents and headers, and with blocks that contradict their headers."""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

from npusim.device.npu import NpuDevice
from npusim.device.traces import RecordKind, TracedBus, TraceRecord, read_trace, replay
from npusim.device.traces.format import FROM_DEVICE, Writer
from npusim.driver import Driver
from npusim.hw.config import config_of
from npusim.report.bus import Lanes
from tests.support.bare_device import TINY
from tests.support.driven_jobs import drive
from tests.support.fuzz.given_files import NUMBERS, altered
from tests.support.fuzz.given_files import Kind as FileKind
from tests.support.pci_recordings import COSTLY, record

_BLOCK = struct.Struct("<BIII")
_START_BYTES = 12


class Traces(FileKind):
    """Traces of a bus and of a PCI function."""

    def __init__(self) -> None:
        super().__init__()
        self._samples = []
        small = TINY.with_(**{"dram.bytes": 1 << 20, "sram.bytes": "16 KiB"})
        for number, faults in enumerate((None, [{"when": {"interrupt": 2}, "what": {"interrupt": "lose"}}])):
            path = self.folder / f"{number}.npt"
            device = NpuDevice(small, faults)
            bus = TracedBus(device, path)
            drive(Driver(bus), 1)
            bus.close()
            self._samples.append(path)
        path = self.folder / "function.npt"
        record(path, COSTLY.with_(**{"dram.bytes": 1 << 20, "sram.bytes": "16 KiB"}))
        self._samples.append(path)
        self._raw = [each.read_bytes() for each in self._samples]
        self._traces = [read_trace(each) for each in self._samples]

    def good(self, rng: random.Random) -> bytes:
        return rng.choice(self._raw)

    def changed(self, rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return _other_blocks(rng.choice(self._raw), rng)
        trace = rng.choice(self._traces)
        head = altered(trace.head, rng) if rng.random() < 0.15 else trace.head
        rows, contents = list(trace.accesses), [bytes(data) for data in trace.contents]
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            self._change(rows, contents, rng)
        file = io.BytesIO()
        writer = Writer(file, head)
        for number, data in enumerate(contents):
            writer.contents(data if rng.random() < 0.99 else data + bytes([number]))
        for row in rows:
            writer.access(row)
        if rng.random() < 0.9:
            writer.end()
        else:
            writer.flush()
        return file.getvalue()

    def _change(self, rows: list[TraceRecord], contents: list[bytes], rng: random.Random) -> None:
        at, kind = rng.randrange(max(len(rows), 1)), rng.randrange(8)
        if not rows:
            return
        row = rows[at]
        if kind == 0:
            del rows[at]
        elif kind == 1:
            del rows[at:]
        elif kind == 2:
            rows.insert(rng.randrange(len(rows)), row)
        elif kind == 3 and contents:
            place = rng.randrange(len(contents))
            contents[place] = rng.choice((b"", bytes(1 << 16), contents[place][:-1], rng.randbytes(64)))
        elif kind == 4:
            rows[at] = row._replace(kind=rng.choice(list(RecordKind)))  # with the numbers of the old kind
        elif kind == 5:
            rows[at] = row._replace(gap_ps=_number(row.gap_ps, rng), spent_ps=row.spent_ps)
        elif row.numbers:
            numbers = list(row.numbers)
            place = rng.randrange(len(numbers))
            numbers[place] = _number(numbers[place], rng)
            rows[at] = row._replace(numbers=tuple(numbers))

    def use(self, path: Path, rng: random.Random) -> str:
        trace = read_trace(path)
        device = NpuDevice(
            config_of(trace.head["config"], str(path)), trace.head.get("faults"), adversary=trace.head.get("adversary")
        )
        try:
            lanes: Any = Lanes(device) if rng.random() < 0.1 else None
            found = replay(trace, device, lanes and lanes.accessed)
        finally:
            device.close()
        if not any(row.kind not in FROM_DEVICE and row.kind is not RecordKind.PASS for row in trace.accesses):
            raise AssertionError("a trace without accesses has been compared")
        return "the same" if found is None and trace.complete else "cut" if found is None else "differs"


def _number(value: int, rng: random.Random) -> int:
    near = value + rng.choice((-1, 1, 8, -8, 4096))
    return max(0, rng.choice((near, near, rng.choice(NUMBERS))))


def _other_blocks(raw: bytes, rng: random.Random) -> bytes:
    """Reorder or duplicate blocks, or change their kinds, sizes and bytes, some with matching checksums."""
    blocks, at = [], _START_BYTES
    while at < len(raw):
        kind, packed, size, checksum = _BLOCK.unpack_from(raw, at)
        at += _BLOCK.size
        blocks.append([kind, raw[at : at + packed], size, checksum])
        at += packed
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(blocks))
        block: list[Any] = blocks[place]
        match rng.randrange(6):
            case 0:
                blocks.insert(rng.randrange(len(blocks) + 1), list(block))
            case 1:
                del blocks[place]
                if not blocks:
                    return raw[:_START_BYTES]
            case 2:
                rng.shuffle(blocks)
            case 3:
                block[0] = rng.choice((0, 1, 2, 3, 4, 5, 255))
            case 4:
                block[2] = rng.choice((0, 1, 1 << 16, 1 << 20, 1 << 26, (1 << 32) - 1))
            case _:
                data = rng.choice((b"", b"{}", bytes(1 << 18), rng.randbytes(40), bytes([13, 0, 0]) * 5000))
                block[1:] = [zlib.compress(data), len(data), zlib.crc32(data)]
    return raw[:_START_BYTES] + b"".join(
        _BLOCK.pack(kind, len(packed), size, checksum) + packed for kind, packed, size, checksum in blocks
    )


def make() -> Traces:
    return Traces()
