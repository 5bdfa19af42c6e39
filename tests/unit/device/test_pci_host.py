"""A host with one PCI slot: the guarantees of every driver hold when it reaches its device through the slot."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.conformance import run
from npusim.conformance.subject import PythonSubject
from npusim.device.npu import NpuDevice
from npusim.device.pci import PciHost
from npusim.driver.reference import Driver
from tests.support.bare_device import TINY
from tests.support.driven_jobs import drive

FULL = TINY.with_(**{"pci.vectors": 5})


MIXED = [("msix", FULL), ("intx", TINY)]
"""Several vectors and the pin; the other combinations of interrupt types and vectors are slow."""


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        pytest.param(kind, config, id=f"{kind}-{name}", marks=[] if (kind, config) in MIXED else [pytest.mark.slow])
        for kind in ("msix", "msi", "intx")
        for name, config in (("tiny", TINY), ("full", FULL))
    ],
)
def test_the_reference_driver_keeps_its_promises(kind: str, config: Any) -> None:
    class OverPci(Driver):
        def __init__(self, bus: Any) -> None:
            super().__init__(PciHost(bus._device, kind))

    report = run(PythonSubject(OverPci), config, name=kind, seeds=5)
    assert [(each.name, each.text) for each in report.outcomes if each.state != "passed"] == []
    assert len(report.outcomes) > 20


@pytest.mark.parametrize("kind", ["msix", "msi", "intx"])
def test_a_device_without_pci_takes_the_same_time_and_gives_the_same(kind: str) -> None:
    """Except for the set-up, which a kernel does before the driver starts."""
    found = []
    for make in (lambda device: device.bus, lambda device: PciHost(device, kind)):
        device = NpuDevice(TINY)
        bus = make(device)
        before = device.now_ps
        found.append((drive(Driver(bus)), device.now_ps - before))
    assert found[0] == found[1]


def test_an_empty_slot() -> None:
    device = NpuDevice(TINY)
    device.unplug()
    host = PciHost(device)
    assert (host.bar_sizes, host.capabilities(), host.read(0, 0, 4)) == ({}, {}, 0xFFFF_FFFF)
