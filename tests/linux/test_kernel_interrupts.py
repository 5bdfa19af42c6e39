"""The kernel module with every interrupt type of a PCI function: vectors by source, one message, the pin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from npusim.device.npu import NpuDevice
from tests.support.kernel_module import COUNTERS, INTERRUPTS, Workshop, cases, device_config

pytestmark = pytest.mark.slow

JOB = cases("job")
PLACE = "/sys/bus/pci/devices/0000:00:00.0"
RESET, IDLE = f"echo 1 > {PLACE}/reset", f"echo auto > {PLACE}/power/control; sleep 1"
ASLEEP = "echo +10 > /sys/class/rtc/rtc0/wakealarm; echo mem > /sys/power/state"


def device(vectors: int = 1, kind: str = "msix", **more: Any) -> NpuDevice:
    config = device_config(**{"pci.vectors": vectors, "pci.interrupts": kind})
    return NpuDevice(config, check=True, **more)


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [(1, [7]), (2, [1, 6]), (3, [1, 2, 4]), (4, [1, 2, 4, 1]), (16, [1, 2, 4, 1])],
)
def test_each_ring_and_the_faults_have_a_vector(
    shop: Workshop, module: Path, vectors: int, expected: list[int]
) -> None:
    """One job with priority LOW, two with MEDIUM, four with HIGH. The last one ends with a fault, which sends a message
    for its ring and one for faults if these have separate vectors."""
    done = shop.run(module, f"{cases('classes')}\n{INTERRUPTS}", device(vectors))
    done.check_good()
    assert done.interrupts() == expected


@pytest.mark.parametrize(("vectors", "kind"), [(5, "msix"), (4, "msi"), (1, "msi")])
def test_every_case_passes_with_messages(shop: Workshop, module: Path, vectors: int, kind: str) -> None:
    done = shop.run(module, f"{cases('all')}\n{INTERRUPTS}\n{COUNTERS}", device(vectors, kind))
    done.check_good()
    assert sum(done.interrupts()) == done.counters()["irqs"] > 0


def test_every_case_passes_with_the_pin(shop: Workshop, module: Path, pin: Path) -> None:
    done = shop.run(module, f"{cases('all')}\n{INTERRUPTS}\n{COUNTERS}", device(kind="intx"), before=[pin])
    done.check_good()
    assert done.interrupts() == [done.counters()["irqs"]] > [0]


@pytest.mark.parametrize(("vectors", "kind"), [(4, "msix"), (4, "msi"), (1, "intx")])
@pytest.mark.parametrize("meanwhile", [RESET, IDLE, ASLEEP])
def test_they_come_after_resets_and_sleep(
    shop: Workshop, module: Path, pin: Path, vectors: int, kind: str, meanwhile: str
) -> None:
    """The device has lost its routes, and the function its messages and masks."""
    if meanwhile == ASLEEP:
        shop.needs_sleep()
    classes = cases("classes")
    done = shop.run(module, f"{classes}; {meanwhile}; {classes} && {COUNTERS}", device(vectors, kind), before=[pin])
    done.check_good()
    assert done.log.count(": passed") == 2
    counters = done.counters()
    assert counters["irqs_lost"] == 0
    assert counters["resets"] >= 2


def test_a_pin_that_is_not_cleared_calls_again(shop: Workshop, module: Path, pin: Path) -> None:
    """A message would be lost; the level of the pin remains."""
    lost = {"when": {"doorbell": 2}, "what": {"lose_write": "INT_STATUS", "count": 50}}
    machine = device(kind="intx", faults=[lost])
    done = shop.run(module, f"{JOB} && {JOB} && {JOB}\n{COUNTERS}", machine, before=[pin])
    assert (done.status, done.complaints) == (0, [])
    assert done.log.count("status 1,") == 3
    assert done.counters()["irqs"] >= 3 + 50


def test_without_a_controller_the_pin_is_refused(shop: Workshop, module: Path) -> None:
    done = shop.run(module, "test -e /dev/npu0 || echo no device", device(kind="intx"))
    assert "no device" in done.log
    assert re.search(r"npu.*probe.*failed with error -38", done.log)
