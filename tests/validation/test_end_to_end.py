"""Rows of whole chips are replayed or refused with a reason."""

import pytest

from npusim.validate.base import Excluded, Point, read
from npusim.validate.end_to_end import networks
from npusim.validate.replay import carried_folder

FILE = carried_folder() / "end_to_end.csv"


def test_rows_are_replayed_or_refused_with_a_reason():
    wanted = ("NVDLA 512", "STM32", "Google TPU v1", "Arm Ethos")
    records = [record for record in read(FILE) if record.text("machine").startswith(wanted)]
    found = list(networks(records, FILE.parent))
    assert len(found) == len(records)
    points = {row.label.partition(": ")[2]: row for row in found if isinstance(row, Point)}
    assert all(row.reason for row in found if isinstance(row, Excluded))
    assert {"ResNet-50", "MobileNetV2 1.0"} <= set(points)
    assert points["ResNet-50"].measured == pytest.approx(1e6 / 93)  # frames a second as microseconds
    assert points["MobileNetV2 1.0"].measured == pytest.approx(7346172 / 500)  # cycles of 500 MHz
    for row in points.values():
        assert abs(row.predicted / row.measured - 1) < 0.2
