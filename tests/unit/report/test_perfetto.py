"""The trace decoded with Perfetto's own message definitions."""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.occupancy import Occupancy
from npusim.program import OpEntry
from npusim.report.perfetto import write_trace
from npusim.timeline import ORDER, Span, Timeline

SPANS = [
    Span("core0.dma0", 0, 100_500, 0, "dma.copy", 0, 4608, "memory", 4096),
    Span("core0.matrix", 100_500, 200_000, 1, "matrix.conv", 1 << 40, 0, "compute"),
    Span("core0.matrix", 200_000, 200_400, 1, "matrix.conv", 7, 0, "latency"),
    Span("core1.dma0", 50_000, 300_000, 0, "dma.copy", 0, 2048, "memory", 2048),
]
OPS = [OpEntry("conv1/weights é", "Load"), OpEntry("conv1", "Conv")]


def read(path: Path) -> Any:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    bundles, trace = protos.Trace(), protos.Trace()
    bundles.ParseFromString(path.read_bytes())
    for bundle in bundles.packet:
        assert bundle.compressed_packets
        trace.MergeFromString(zlib.decompress(bundle.compressed_packets))
    size = trace.ByteSize()
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == size, "a field that Perfetto does not know"
    return trace


class Decoded:
    """A trace as a viewer reads it: interning, track parents and slice nesting."""

    def __init__(self, trace: Any) -> None:
        self.tracks: dict[int, Any] = {}
        self.slices: dict[str, list[tuple[str, str, int, int, dict[str, Any]]]] = defaultdict(list)
        self.counters: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.arrows: dict[int, list[tuple[str, int]]] = defaultdict(list)
        names: dict[str, dict[int, str]] = {"event_names": {}, "event_categories": {}, "debug_annotation_names": {}}
        open_slices: dict[int, tuple[str, str, int, dict[str, Any]]] = {}
        assert trace.packet[0].sequence_flags == 1
        for packet in trace.packet[1:]:
            assert packet.sequence_flags == 2
            assert packet.trusted_packet_sequence_id == 1
            for table, known in names.items():
                known.update({entry.iid: entry.name for entry in getattr(packet.interned_data, table)})
            if packet.HasField("track_descriptor"):
                assert packet.track_descriptor.uuid not in self.tracks
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            if not packet.HasField("track_event"):
                continue
            event = packet.track_event
            track = self.path(event.track_uuid)
            if event.type == 4:
                self.counters[track].append((packet.timestamp, event.counter_value))
            elif event.type == 1:
                assert event.track_uuid not in open_slices, "slices of a unit must not nest"
                notes = {
                    names["debug_annotation_names"][note.name_iid]: getattr(note, note.WhichOneof("value"))
                    for note in event.debug_annotations
                }
                [category] = event.category_iids
                for flow in (*event.flow_ids, *event.terminating_flow_ids):
                    self.arrows[flow].append((track, packet.timestamp))
                open_slices[event.track_uuid] = (
                    names["event_names"][event.name_iid], names["event_categories"][category], packet.timestamp, notes
                )  # fmt: skip
            else:
                assert event.type == 2
                name, category_name, start, notes = open_slices.pop(event.track_uuid)
                self.slices[track].append((name, category_name, start, packet.timestamp, notes))
        assert not open_slices

    def path(self, uuid: int) -> str:
        track = self.tracks[uuid]
        if track.HasField("process"):
            return str(track.process.process_name)
        return f"{self.path(track.parent_uuid)}.{track.name}"


def test_every_span_is_a_slice_on_its_units_track(tmp_path: Path) -> None:
    write_trace(tmp_path / "t", Timeline(SPANS), OPS, 10**9)
    decoded = Decoded(read(tmp_path / "t"))
    assert set(decoded.slices) == {"core0.dma0", "core0.matrix", "core1.dma0"}
    assert decoded.slices["core0.dma0"] == [
        (
            "conv1/weights é", "dma.copy", 0, 100,
            {"instruction": "dma.copy", "op": 0, "start_ps": 0, "duration_ps": 100_500, "macs": 0, "bytes": 4608,
             "bound": "memory", "op_kind": "Load", "cycles": 101},
        )
    ]  # fmt: skip
    first, second = decoded.slices["core0.matrix"]
    assert (first[2:4], second[2:4]) == ((100, 200), (200, 200))
    assert first[4]["macs"] == 1 << 40


def test_without_names_a_slice_is_called_by_its_instruction(tmp_path: Path) -> None:
    write_trace(tmp_path / "t", Timeline(SPANS))
    decoded = Decoded(read(tmp_path / "t"))
    assert decoded.slices["core1.dma0"][0][0] == "dma.copy"
    assert "cycles" not in decoded.slices["core1.dma0"][0][4]


def test_counters_add_up_what_runs(tmp_path: Path) -> None:
    write_trace(tmp_path / "t", Timeline(SPANS))
    counters = Decoded(read(tmp_path / "t")).counters
    one, two = 4096 * 10**6 // 100_500, 2048 * 10**6 // 250_000  # MB/s
    assert counters["device.DRAM traffic"] == [(0, one), (50, one + two), (100, two), (300, 0)]
    assert counters["device.MACs"][0] == (0, 0)
    assert counters["device.MACs"][-1][1] == 0


def test_an_empty_timeline_is_a_trace(tmp_path: Path) -> None:
    write_trace(tmp_path / "t", Timeline())
    decoded = Decoded(read(tmp_path / "t"))
    assert not decoded.slices
    assert decoded.counters["device.MACs"] == [(0, 0)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 50), st.integers(0, 1 << 40), st.integers(0, 5))))
def test_any_spans_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int, int]]) -> None:
    spans, busy = [], [0] * 4
    for unit, size, duration, op in rows:
        start, busy[unit] = busy[unit], busy[unit] + duration
        spans.append(Span(f"core{unit // 2}.dma{unit}", start, busy[unit], op, f"kind{op}", 0, size, "memory"))
    path = tmp_path_factory.getbasetemp() / "trace"
    write_trace(path, Timeline(spans))
    first = path.read_bytes()
    decoded = Decoded(read(path))
    found = sorted(
        (track, notes["start_ps"], notes["duration_ps"], notes["op"], notes["bytes"], name)
        for track, slices in decoded.slices.items()
        for name, _, _, _, notes in slices
    )
    wanted = sorted((s.unit, s.start_ps, s.end_ps - s.start_ps, s.op, s.bytes, s.kind) for s in spans)
    assert found == wanted
    assert all(value >= 0 for steps in decoded.counters.values() for _, value in steps)
    write_trace(path, Timeline(spans))
    assert path.read_bytes() == first


def test_what_is_in_memories_is_a_counter_of_each_kind(tmp_path: Path) -> None:
    """Of two changes in one nanosecond the later one counts, and kinds that never occur have no track."""
    held = {"tile": 32, "value": 64}
    steps = [(1_000, {"value": 64}), (3_000, held), (3_400, {"tile": 16}), (5_000, {})]
    memories = [
        Occupancy("core0.sram", 128, [], steps, 3_000, held),
        Occupancy("dram", 1024, [], [(0, {"constants": 99})], 0, {"constants": 99}),
    ]
    write_trace(tmp_path / "t", Timeline(SPANS), OPS, 10**9, memories)
    counters = Decoded(read(tmp_path / "t")).counters
    assert counters["core0.sram: value"] == [(0, 0), (1, 64), (3, 0)]
    assert counters["core0.sram: tile"] == [(0, 0), (3, 16), (5, 0)]
    assert counters["device.dram: constants"] == [(0, 99)]
    assert len(counters) == 2 + 3


def test_arrows_go_from_what_was_waited_for(tmp_path: Path) -> None:
    """One span may have several arrows; each has a unique number, so that no two are joined to one chain."""
    write_trace(tmp_path / "t", Timeline(SPANS), OPS, 10**9, flows=[(0, 1), (0, 3), (1, 2)])
    arrows = Decoded(read(tmp_path / "t")).arrows
    load, product, drain, other = ("core0.dma0", 0), ("core0.matrix", 100), ("core0.matrix", 200), ("core1.dma0", 50)
    assert sorted(sorted(ends) for ends in arrows.values()) == [[load, product], [load, other], [product, drain]]


def test_queues_are_counters_of_their_cores(tmp_path: Path) -> None:
    queues = {"core0.matrix": [(0, 0), (1_000, 1), (1_900, 2), (4_000, 0)]}
    write_trace(tmp_path / "t", Timeline(SPANS), OPS, 10**9, queues=queues)
    assert Decoded(read(tmp_path / "t")).counters["core0.matrix: queue"] == [(0, 0), (1, 2), (4, 0)]


def test_a_long_run_is_a_small_file(tmp_path: Path) -> None:
    """47 000 commands at irregular times, as in 250 layers, each with an arrow."""
    rng, spans, free = random.Random(3), [], dict.fromkeys(("core0.dma0", "core0.matrix", "core0.vector"), 0)
    durations = [rng.randrange(10**6) for _ in range(250)]
    for number in range(47_000):
        unit = rng.choice(list(free))
        start = free[unit] + rng.randrange(10**5)
        free[unit] = start + durations[number * 250 // 47_000]
        moved = 4096 if "dma" in unit else 0
        spans.append(Span(unit, start, free[unit], number // 300, "matrix.conv", moved << 8, moved, "memory", moved))
    spans.sort(key=ORDER)
    ops = [OpEntry(f"/model/layers.{number}/attention/MatMul", "MatMul") for number in range(157)]
    write_trace(tmp_path / "t", Timeline(spans), ops, 10**9, flows=[(at - 1, at) for at in range(1, len(spans))])
    assert (tmp_path / "t").stat().st_size <= 2_000_000
