"""Traces recorded at a PCI function: host memory, interrupts, resets, over any transport."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest

from npusim.device.npu import NpuDevice
from npusim.device.pci import PciFunction, PciHost
from npusim.device.traces import RecordKind, Trace, read_trace, replay
from npusim.device.traces.function import TracedFunction, function_of
from npusim.driver.reference import Driver
from npusim.errors import InputError, UsageError
from tests.support.bare_device import TINY
from tests.support.driven_jobs import drive
from tests.support.pci_accesses import CONFIG, access
from tests.support.pci_recordings import COSTLY, record
from tests.support.pci_slots import PCI, Slot


@pytest.mark.parametrize("kind", ["msix", "msi", "intx"])
def test_what_a_host_did_goes_the_same_way_without_it(tmp_path: Path, kind: str) -> None:
    assert record(tmp_path / "f.npt", kind=kind)
    trace = read_trace(tmp_path / "f.npt")
    kinds = {each.kind for each in trace.accesses}
    assert kinds >= {
        RecordKind.DMA_READ,
        RecordKind.DMA_WRITE,
        RecordKind.DMA_REFUSED,
        RecordKind.CONFIG_READ,
        RecordKind.CONFIG_WRITE,
        RecordKind.RESTART,
    }
    assert (RecordKind.PIN if kind == "intx" else RecordKind.INTERRUPT) in kinds
    assert replay(trace, NpuDevice(COSTLY)) is None


@pytest.mark.parametrize(
    ("key", "value", "expected", "came"),
    [
        ("pci.write_latency", "300 ns", "interrupt 0 at", "interrupt 0 at"),
        ("pci.read_latency", "548 ns", "DMA read of 64 bytes at", "DMA read of 64 bytes at"),
        ("pci.bandwidth", "8 GB/s", "DMA read of 64 bytes at", "DMA read of 64 bytes at"),
        ("pci.interrupts", "msi", "0x70", "0x80"),
        ("pci.reset", "1 ms", "0x", "0xffff"),
        ("dram.latency", "101 ns", "interrupt 0 at", "interrupt 0 at"),
    ],
)
def test_what_costs_otherwise_is_named(tmp_path: Path, key: str, value: str, expected: str, came: str) -> None:
    record(tmp_path / "f.npt")
    found = replay(read_trace(tmp_path / "f.npt"), NpuDevice(COSTLY.with_(**{key: value})))
    assert found is not None
    assert expected in found.expected
    assert came in found.came
    assert found.expected != found.came


def test_bytes_of_host_memory_that_are_others_are_seen(tmp_path: Path) -> None:
    record(tmp_path / "f.npt")
    trace = read_trace(tmp_path / "f.npt")
    number = next(n for n, data in enumerate(trace.contents) if data == bytes(range(256)) * 4)
    trace.contents[number] = bytes(1024)
    found = replay(trace, NpuDevice(COSTLY))
    assert found is not None
    assert found.access == "copy of 1024 bytes from 0x5000"


def test_any_accesses_are_recorded_and_go_the_same_way(tmp_path: Path) -> None:
    """The accesses of the fuzzer, which a transport forwards unchecked."""
    for seed in range(20):
        random = Random(seed)
        function = TracedFunction(NpuDevice(CONFIG), Slot(), tmp_path / "f.npt")
        for _ in range(500):
            access(function, random)
        function.close()
        assert replay(read_trace(tmp_path / "f.npt"), NpuDevice(CONFIG)) is None, seed


def test_recording_changes_nothing(tmp_path: Path) -> None:
    ends = []
    for make in (PciFunction, partial(TracedFunction, path=tmp_path / "f.npt")):
        device = NpuDevice(PCI)
        ends.append((drive(Driver(PciHost(device, make=make))), device.now_ps))
    assert ends[0] == ends[1]


def test_transports_are_traced_when_the_environment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPUSIM_BUS_TRACE", raising=False)
    assert not function_of(NpuDevice(TINY), Slot()).traced
    monkeypatch.setenv("NPUSIM_BUS_TRACE", str(tmp_path / "f.npt"))
    function = function_of(NpuDevice(TINY), Slot(), aperture=1 << 20)
    assert function.traced
    assert function.config_read(0, 4) == 0x0042_1E4E
    assert isinstance(function, TracedFunction)
    function.close()
    (path,) = tmp_path.glob("f*.npt")
    assert replay(read_trace(path), NpuDevice(TINY)) is None
    monkeypatch.setenv("NPUSIM_BUS_TRACE", "/nowhere/f.npt")
    with pytest.raises(UsageError, match="bus trace /nowhere/f"):
        function_of(NpuDevice(TINY), Slot())


@pytest.mark.parametrize("how", [None, {"aperture": "x"}, {"host_masks": 1}, {"more": 1}, {"aperture": -1}])
def test_heads_that_do_not_say_how(how: object) -> None:
    with pytest.raises(InputError, match="its head lacks the parameters of the function"):
        replay(Trace({"seam": "function", "function": how}), NpuDevice(TINY))
