"""The kernel module recovers from every device fault or reports it: nothing hangs, and the next job is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from npusim.device.npu import NpuDevice
from npusim.faults import script_of
from tests.support.kernel_module import COUNTERS, Run, Workshop, cases, device_config

pytestmark = pytest.mark.slow

DONE, FAULT, ABORTED, TIMEOUT, RESET, GONE = range(1, 7)
Faults = list[dict[str, Any]]


def _second(**what: Any) -> dict[str, Any]:
    """Return a fault at the second doorbell."""
    return {"when": {"doorbell": 2}, "what": what}


RECOVERED: dict[str, tuple[Faults, int]] = {
    "a unit hangs": ([_second(hang="core0.matrix", lasts="job")], TIMEOUT),
    "a channel hangs": ([_second(hang="core0.dma0", lasts="job")], TIMEOUT),
    "the sequencer hangs": ([_second(hang="sequencer", lasts="job")], TIMEOUT),
    "a unit is slow": ([_second(slow="core0.vector", factor=100, lasts="job")], DONE),
    "a transfer fails": ([_second(fail="core0.dma0")], FAULT),
    "an interrupt is lost": ([_second(interrupt="lose")], DONE),
    "an interrupt is late": ([_second(interrupt="delay", delay="20 ms")], DONE),
    "an interrupt comes twice": ([_second(interrupt="double")], DONE),
    "interrupts for nothing": ([_second(interrupt="spurious", count=5)], DONE),
    "a storm of interrupts": ([_second(interrupt="storm", count=500, delay="1 us")], DONE),
    "READY is lost": ([_second(stuck="STATUS", value=0, lasts="10 ms")], DONE),
    "a fault that is none": ([_second(wrong="STATUS", invert=4, count=1)], DONE),
    "a wrong INT_STATUS": ([_second(wrong="INT_STATUS", invert=3, count=1)], DONE),
    "a doorbell is lost": (
        [{"when": {"write": "MEDIUM_TAIL", "nth": 2}, "what": {"lose_write": "MEDIUM_DOORBELL"}}],
        TIMEOUT,
    ),
    "a TAIL is lost": ([{"when": {"write": "MEDIUM_TAIL", "nth": 2}, "what": {"lose_write": "MEDIUM_TAIL"}}], TIMEOUT),
    "INT_STATUS is not cleared": ([_second(lose_write="INT_STATUS")], DONE),
    "an error is corrected": ([_second(ecc="corrected", address=0x8000)], DONE),
    "an error is not": (
        [{"when": {"job": 2, "stage": "runs"}, "what": {"ecc": "uncorrected", "address": 0x8000}}],
        FAULT,
    ),
    "the clock is slower": ([_second(throttle=8, lasts="1 ms")], DONE),
    "a ring entry breaks": ([_second(flip="dram", address=0x2040, bit=0)], RESET),
    "a unit hangs until a reset": ([_second(hang="core0.matrix", lasts="reset")], TIMEOUT),
    "a reset is late": (
        [_second(hang="core0.matrix", lasts="reset"), _second(reset="late", delay="100 ms")],
        TIMEOUT,
    ),
}
"""By fault: the script, and how the second of four jobs ends. The others succeed."""

REPORTED: dict[str, Faults] = {
    "it is gone": [_second(unplug=True)],
    "a reset does not come back": [
        _second(lose_write="MEDIUM_DOORBELL"),
        _second(lose_write="ABORT", count=9),
        _second(reset="never"),
    ],
}


def _four_jobs(shop: Workshop, module: Path, faults: Faults) -> tuple[Run, list[int]]:
    device = NpuDevice(device_config(), faults=script_of(faults))
    job = cases("job")
    done = shop.run(module, f"{job}\n{job}\n{job}\n{job}\n{COUNTERS}", device)
    return done, [int(status) for status in re.findall(r"job \d+: status (\d)", done.log)]


@pytest.mark.parametrize("name", sorted(RECOVERED))
def test_it_recovers(shop: Workshop, module: Path, name: str) -> None:
    faults, status = RECOVERED[name]
    done, ended = _four_jobs(shop, module, faults)
    assert ended == [DONE, status, DONE, DONE], done.log[-3000:]
    assert done.log.count("case job: passed") == 4, done.log[-3000:]
    assert done.complaints == []


@pytest.mark.parametrize("name", sorted(REPORTED))
def test_it_reports(shop: Workshop, module: Path, name: str) -> None:
    done, ended = _four_jobs(shop, module, REPORTED[name])
    assert ended[0] == DONE
    assert all(status in (TIMEOUT, RESET, GONE) for status in ended[1:]), done.log[-3000:]
    assert len(ended) < 4  # the later ones were refused
    assert done.complaints == []


def test_one_that_comes_back_is_used_again(shop: Workshop, module: Path) -> None:
    done, ended = _four_jobs(shop, module, [_second(unplug=True, lasts="50 ms")])
    assert ended == [DONE, GONE, DONE, DONE], done.log[-3000:]
    assert "the device is back" in done.log
