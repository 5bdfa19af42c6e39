"""A timeline as a Perfetto trace, for ui.perfetto.dev: one track per unit, arrows for dependencies, counters for DRAM
traffic, MACs, queues and memory occupancy.

The format is protocol buffers. The few messages needed for a trace are encoded here, so that no other package is
required. Field numbers are from perfetto/protos/perfetto/trace/**/*.proto.

Timestamps are whole nanoseconds in this format. Begin and end of a span are rounded down, so that adjacent spans stay
adjacent. The exact picoseconds are among the arguments. Packets are written in compressed bundles, as by the service of
Perfetto. The same timeline gives the same packets, and with the same zlib the same bytes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO

from npusim.occupancy import KINDS, Occupancy
from npusim.program import OpEntry
from npusim.report.flows import Queue
from npusim.timeline import Span, Timeline
from npusim.units import cycles_spanned

_SEQUENCE = 1
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_EXPLICIT_ORDER = 3
_PROVENANCE = "provenance"
_CATEGORY, _EVENT, _NOTE = 1, 2, 3  # fields of InternedData
_FLOW, _LAST_OF_FLOW = 47, 48
_BUNDLE_BYTES = 1 << 19
"""Bytes of packets that are compressed together."""


def write_trace(
    path: str | os.PathLike[str],
    timeline: Timeline,
    ops: Sequence[OpEntry] = (),
    clock_hz: int = 0,
    memory: Sequence[Occupancy] = (),
    provenance: Mapping[str, Any] | None = None,
    flows: Sequence[tuple[int, int]] = (),
    queues: Mapping[str, Queue] | None = None,
) -> None:
    """Write the spans of ``timeline`` to ``path``.

    ``ops``: the operator table of the program; without it, spans have the names of their instructions. ``clock_hz``:
    the clock of the device; with it, spans have their cycles. ``memory``: one counter per memory and kind of contents.
    ``provenance``: JSON values, as arguments of a mark at the beginning. ``flows``: (from, to) of arrows between spans,
    as indices into the timeline. ``queues``: queue lengths by unit. Both come from :mod:`npusim.report.flows`. Raises
    OSError.
    """
    arrows = _arrows(flows)
    slices, tracks = _Slices(ops, clock_hz), _Tracks()
    with open(path, "wb") as opened:
        file = _Bundles(opened)
        # Interned names are state of the sequence. A viewer ignores all packets that use them until it has seen the
        # state cleared.
        file.write(_packet(_uint(13, _STATE_CLEARED)))
        if provenance:
            track = tracks.unit(_PROVENANCE)
            file.write(tracks.take() + slices.mark(_PROVENANCE, provenance, track))
        # By unit, not by time: viewers sort by themselves, and each track is described just before its first slice.
        by_unit = sorted(enumerate(timeline.spans), key=lambda each: (each[1].unit, each[1].start_ps, each[1].end_ps))
        for unit, group in groupby(by_unit, key=lambda each: each[1].unit):
            track = tracks.unit(unit)
            file.write(tracks.take())
            for index, span in group:
                file.write(slices.packets(span, track, arrows.get(index, b"")))
        for process, name, unit_name, steps in (*_counters(timeline.spans), *_held(memory), *_queued(queues or {})):
            track = tracks.counter(process, name, unit_name)
            file.write(tracks.take())
            for time, value in steps:
                event = _uint(9, _COUNTER) + _uint(11, track) + _uint(30, value)
                file.write(_packet(_uint(8, time) + _message(11, event)))
        file.end()


class _Bundles:
    """Writes packets in compressed bundles: each bundle is a packet that contains a trace."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._held: list[bytes] = []
        self._size = 0

    def write(self, packets: bytes) -> None:
        """Add whole packets."""
        self._held.append(packets)
        self._size += len(packets)
        if self._size >= _BUNDLE_BYTES:
            self.end()

    def end(self) -> None:
        """Write the buffered packets."""
        if self._held:
            self._file.write(_message(1, _message(50, zlib.compress(b"".join(self._held)))))
            self._held, self._size = [], 0


def _arrows(flows: Sequence[tuple[int, int]]) -> dict[int, bytes]:
    """The fields of the event of a span for the arrows from and to it. Each arrow has a number."""
    found: dict[int, bytes] = {}
    for number, (producer, consumer) in enumerate(flows, 1):
        found[producer] = found.get(producer, b"") + _fixed(_FLOW, number)
        found[consumer] = found.get(consumer, b"") + _fixed(_LAST_OF_FLOW, number)
    return found


class _Slices:
    """Spans as packets: a begin and an end. Common parts are encoded once."""

    def __init__(self, ops: Sequence[OpEntry], clock_hz: int) -> None:
        self._ops = ops
        self._clock_hz = clock_hz
        self._strings = _Strings()
        self._common: dict[tuple[int, str, int, int, str], bytes] = {}

    def packets(self, span: Span, track: int, arrows: bytes) -> bytes:
        start, duration = span.start_ps, span.end_ps - span.start_ps
        where = _uint(11, track)
        event = _uint(9, _BEGIN) + where + self._shared(span) + self._note("start_ps", start)
        event += self._note("duration_ps", duration)
        if self._clock_hz:
            event += self._note("cycles", cycles_spanned(duration, self._clock_hz))
        event += arrows
        begin = _packet(_uint(8, start // 1000) + _message(11, event) + self._strings.take())
        return begin + _packet(_uint(8, span.end_ps // 1000) + _message(11, _uint(9, _END) + where))

    def mark(self, name: str, notes: Mapping[str, Any], track: int) -> bytes:
        """An instant event at the beginning, with information about the whole trace."""
        event = _uint(9, _INSTANT) + _uint(11, track) + _uint(10, self._strings.number(_EVENT, name))
        for key, value in notes.items():
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            event += self._note(key, text)
        return _packet(_uint(8, 0) + _message(11, event) + self._strings.take())

    def _shared(self, span: Span) -> bytes:
        """Name, category and the arguments that do not depend on time."""
        key = (span.op, span.kind, span.macs, span.bytes, span.bound)
        encoded = self._common.get(key)
        if encoded is None:
            entry = self._ops[span.op] if span.op < len(self._ops) else None
            name = self._strings.number(_EVENT, entry.name if entry else span.kind)
            encoded = _uint(3, self._strings.number(_CATEGORY, span.kind)) + _uint(10, name)
            encoded += self._note("instruction", span.kind) + self._note("op", span.op)
            if entry:
                encoded += self._note("op_kind", entry.kind)
            encoded += self._note("macs", span.macs) + self._note("bytes", span.bytes) + self._note("bound", span.bound)
            self._common[key] = encoded
        return encoded

    def _note(self, name: str, value: int | str) -> bytes:
        """A debug annotation. Viewers show it as an argument of the slice."""
        field = _uint(3, value) if isinstance(value, int) else _text(6, value)
        return _message(4, _uint(1, self._strings.number(_NOTE, name)) + field)


_Counter = tuple[str, str, str, Iterable[tuple[int, int]]]
"""(process, name, unit, [(ns, value)])."""


def _held(memories: Sequence[Occupancy]) -> Iterator[_Counter]:
    """Bytes of each kind in each memory over time. Of several changes within a nanosecond, the last one."""
    for each in memories:
        process, _, memory = each.memory.rpartition(".")
        for kind in KINDS:
            changes: dict[int, int] = {}
            value = 0
            for time, held in each.steps:
                if held.get(kind, 0) != value:
                    value = changes[time // 1000] = held.get(kind, 0)
            if changes:
                yield process or "device", f"{memory}: {kind}", "B", sorted({0: 0, **changes}.items())


def _queued(queues: Mapping[str, Queue]) -> Iterator[_Counter]:
    """Commands in the queue of each unit. Of several changes within a nanosecond, the last one."""
    for unit, steps in sorted(queues.items()):
        core, _, name = unit.partition(".")
        yield core, f"{name}: queue", "commands", sorted({time // 1000: value for time, value in steps}.items())


def _counters(spans: Sequence[Span]) -> Iterator[_Counter]:
    """Counters over time, from the mean rate of each span."""
    transfers = [span for span in spans if span.dram_bytes]
    yield "device", "DRAM traffic", "MB/s", _rate(transfers, [span.dram_bytes for span in transfers], 10**6)
    products = [span for span in spans if span.macs]
    yield "device", "MACs", "GMAC/s", _rate(products, [span.macs for span in products], 10**3)


def _rate(spans: Sequence[Span], amounts: Sequence[int], scale: int) -> Iterator[tuple[int, int]]:
    """(ns, sum of amount * scale / ps over the spans that run) at each change, and 0 at the start."""
    changes = [(0, 0)]
    for span, amount in zip(spans, amounts, strict=True):
        if span.end_ps > span.start_ps:
            # Integers, so that the increments and decrements of all spans cancel exactly at the end.
            rate = amount * scale // (span.end_ps - span.start_ps)
            changes += [(span.start_ps // 1000, rate), (span.end_ps // 1000, -rate)]
    changes.sort()
    value = 0
    for time, group in groupby(changes, key=lambda change: change[0]):
        value += sum(change for _, change in group)
        yield time, value


class _Strings:
    """Interned names: packets refer to a name by number once an earlier packet has contained it."""

    def __init__(self) -> None:
        self._tables: dict[int, dict[str, int]] = {_CATEGORY: {}, _EVENT: {}, _NOTE: {}}  # name -> number
        self._new = b""

    def take(self) -> bytes:
        """Return and clear the fields of the next packet."""
        new, self._new = self._new, b""
        return _message(12, new) if new else b""

    def number(self, field: int, name: str) -> int:
        table = self._tables[field]
        number = table.get(name)
        if number is None:
            number = table[name] = len(table) + 1
            self._new += _message(field, _uint(1, number) + _text(2, name))
        return number


class _Tracks:
    """Descriptions of tracks: a process per core and one for the device, with tracks of units and counters below."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._last = 0
        self._new = b""

    def unit(self, unit: str) -> int:
        """The track of a unit such as ``core0.matrix``."""
        core, _, name = unit.partition(".")
        parent = self._process(core)
        return self._describe(_text(2, name or core) + _uint(5, parent) + _uint(12, self._last))

    def counter(self, process: str, name: str, unit: str) -> int:
        parent = self._process(process)
        return self._describe(_text(2, name) + _uint(5, parent) + _message(8, _text(6, unit)))

    def take(self) -> bytes:
        """Packets that define the new names since the last call."""
        new, self._new = self._new, b""
        return new

    def _process(self, name: str) -> int:
        track = self._processes.get(name)
        if track is None:
            process = _uint(1, len(self._processes) + 1) + _text(6, name)
            track = self._processes[name] = self._describe(_message(3, process) + _uint(11, _EXPLICIT_ORDER))
        return track

    def _describe(self, fields: bytes) -> int:
        self._last += 1
        self._new += _packet(_message(60, _uint(1, self._last) + fields))
        return self._last


def _packet(fields: bytes) -> bytes:
    """A packet of the trace. All packets belong to one sequence and use its interned names."""
    cleared = fields.startswith(_uint(13, _STATE_CLEARED))
    return _message(1, _uint(10, _SEQUENCE) + (b"" if cleared else _uint(13, _NEEDS_STATE)) + fields)


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _uint(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    """A fixed64."""
    return _varint(field << 3 | 1) + value.to_bytes(8, "little")


def _message(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())
