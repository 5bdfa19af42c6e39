"""Different programs for one product - whole, or cut along M, K or N - have the same order in RTL and model."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from npusim.validate.base import DataPoint
from tests.support.carried import replayed

SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)")
Shape = tuple[int, ...]


def programs(points: list[DataPoint]) -> dict[tuple[str, Shape], list[tuple[str, float, float]]]:
    """Return for each product measured whole and in two parts: (cut, measured, predicted) of each program."""
    known: dict[tuple[str, Shape], DataPoint] = {}
    for point in points:
        found = SHAPE.search(point.label)
        if found:
            known.setdefault((point.label.replace(found[0], "*"), tuple(map(int, found.groups()))), point)
    ways: dict[tuple[str, Shape], list[tuple[str, float, float]]] = {}
    for (rest, whole), point in known.items():
        ways[rest, whole] = [("whole", point.measured, point.predicted)]
        for axis in range(3):
            for size in range(1, whole[axis] // 2 + 1):
                parts = [tuple(s if a == axis else d for a, d in enumerate(whole)) for s in (size, whole[axis] - size)]
                found_parts = [known.get((rest, part)) for part in parts]
                if all(found_parts):
                    measured = sum(part.measured for part in found_parts if part)
                    predicted = sum(part.predicted for part in found_parts if part)
                    ways[rest, whole].append((f"axis {axis} at {size}", measured, predicted))
    return {key: found for key, found in ways.items() if len(found) > 1}


@pytest.mark.parametrize("name", ["gemmini_mesh16_rtl", "nvdla_nv_small_rtl_gemm"])
def test_the_order_of_merit_is_that_of_the_rtl(name: str) -> None:
    compared = 0
    for key, ways in programs(list(replayed(name).points)).items():
        for (one, measured, predicted), (other, measured_too, predicted_too) in combinations(ways, 2):
            if abs(measured - measured_too) > 0.01 * measured:
                compared += 1
                assert (measured < measured_too) == (predicted < predicted_too), (key, one, other)
    assert compared >= 50
