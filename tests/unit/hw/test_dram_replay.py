"""The drivers of the DRAM replays: the addresses of a pattern, and what is not replayed."""

from pathlib import Path

import numpy as np
import pytest

from npusim.validate.base import DataPoint, DataRow, Excluded
from npusim.validate.dram import OFFSET, SETS, AccessPattern, dramsim3, patterns, ramulator2
from npusim.validate.replay import carried_folder

MIB = 1 << 20


def addresses(pattern, parameter=0, count=6, capacity=MIB):
    return patterns(AccessPattern(pattern, parameter, count, 64, capacity)).tolist()


def splitmix(count):
    """The same with Python integers."""
    word = (1 << 64) - 1
    z = count * 0x9E3779B97F4A7C15 & word
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & word
    z = (z ^ z >> 27) * 0x94D049BB133111EB & word
    return z ^ z >> 31


def test_patterns_walk_as_documented():
    assert addresses("seq") == [0, 64, 128, 192, 256, 320]
    assert addresses("stride", 4096) == [0, 4096, 8192, 12288, 16384, 20480]
    assert addresses("stride", MIB // 2) == [0, MIB // 2, 0, MIB // 2, 0, MIB // 2]  # around the end of the memory
    assert addresses("streams", 2) == [0, MIB // 2, 64, MIB // 2 + 64, 128, MIB // 2 + 128]
    assert addresses("streamsoff", 2)[1] == MIB // 2 + OFFSET
    assert addresses("tile2d", 2048, 17)[14:] == [14 * 64, 15 * 64, 2048]


def test_streams_keep_to_bursts():
    assert all(address % 64 == 0 for address in addresses("streams", 3, 100))


def test_random_places_are_the_same_on_every_machine():
    assert addresses("rand") == [splitmix(place + 1 + (1 << 32)) % (MIB // 64) * 64 for place in range(6)]
    blocks = np.array(addresses("rblk", 256, 40)).reshape(10, 4)
    assert (blocks[:, 0] % 256 == 0).all()
    assert (np.diff(blocks) == 64).all()
    assert len(set(blocks[:, 0])) == 10


def record(**cells):
    return DataRow(Path("points.csv"), 2, {name: str(cell) for name, cell in cells.items()})


ROW = {
    "cfg": "DDR4_8Gb_x8_3200__rochracobabg", "channels": 1, "pattern": "seq", "param": 0, "read_pct": 100,
    "outstanding": 64, "achieved_gbs": 24.209,
}  # fmt: skip


def test_a_row_is_a_point():
    [point] = dramsim3([record(**ROW)], Path())
    assert isinstance(point, DataPoint)
    assert (point.measured, point.group) == (24.209, "seq")
    assert point.predicted == pytest.approx(24.209, rel=0.02)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cfg": "DDR9__rochracobabg"}, "no timings of DDR9"),
        ({"pattern": "spiral"}, "how spiral walks is not documented"),
    ],
)
def test_what_is_not_known_is_left_out_and_said(change, reason):
    [row] = dramsim3([record(**{**ROW, **change})], Path())
    assert isinstance(row, Excluded)
    assert row.reason == reason
    [row] = ramulator2([record(timing_preset="DDR9", mode="stream", refresh=1, read_pct=0, nop=1)], Path())
    assert isinstance(row, Excluded)


def test_the_sets_are_carried():
    assert all((carried_folder() / data.filename).is_file() for data in SETS)
