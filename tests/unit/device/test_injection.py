"""Faults can only be injected into what the device has; anything else is refused where it is written."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from npusim.device.npu import NpuDevice
from npusim.errors import UsageError
from npusim.hw.config import load_config
from npusim.sim.inject import Injection
from npusim.sim.machine import Machine

TINY = load_config("tiny")
DRAM = TINY.dram.bytes
UNITS = "core0.matrix, core0.vector, core0.scalar, core0.dma0"
NO_UNIT = f"hang: unit must be one of {UNITS}, got 'core0.matrx'"
NO_CHANNEL = "dma_error: DMA channel must be one of core0.dma0, got 'core0.vector'"
Change = Callable[[Injection], object]


def assign(name: str, value: object) -> Change:
    return lambda injection: setattr(injection, name, value)


BAD: list[tuple[Change, str]] = [
    (lambda injection: injection.hang.__setitem__("core0.matrx", 1), NO_UNIT),
    (lambda injection: injection.hang.update({"core0.vector": 1, "core0.matrx": 1}), NO_UNIT),
    (lambda injection: injection.hang.setdefault("core0.matrx", 1), NO_UNIT),
    (lambda injection: injection.hang.__ior__({"core0.matrx": 1}), NO_UNIT),
    (assign("hang", {"core0.matrx": 1}), NO_UNIT),
    (assign("hang", {"core1.vector": 1}), f"hang: unit must be one of {UNITS}, got 'core1.vector'"),
    (assign("dma_error", {"core0.vector": 1}), NO_CHANNEL),
    (lambda injection: injection.dma_error.__setitem__("core0.vector", 1), NO_CHANNEL),
    (assign("hang", {"core0.vector": -1}), "hang['core0.vector'] must be a whole number >= 0, got -1"),
    (assign("hang", {"core0.vector": 0.5}), "hang['core0.vector'] must be a whole number >= 0, got 0.5"),
    (assign("dma_error", {"core0.dma0": -1}), "dma_error['core0.dma0'] must be a whole number >= 0, got -1"),
    (assign("lose_interrupts", -1), "lose_interrupts must be a whole number >= 0, got -1"),
    (assign("flips", [(DRAM, 0)]), f"flips: address must be a whole number from 0 to {DRAM - 1:#x}, got {DRAM}"),
    (lambda injection: injection.flips.append((-1, 0)), "flips: address must be a whole number from 0 to 0x3fffffff"),
    (lambda injection: injection.flips.append((0, 8)), "flips: bit must be a whole number from 0 to 0x7, got 8"),
    (lambda injection: injection.flips.extend([(0, 0), (DRAM, 0)]), "flips: address must be"),
    (lambda injection: injection.flips.insert(0, (DRAM, 0)), "flips: address must be"),
    (lambda injection: injection.flips.__iadd__([(DRAM, 0)]), "flips: address must be"),
    (lambda injection: injection.flips.__setitem__(0, (DRAM, 0)), "flips: address must be"),
    (lambda injection: injection.flips.__setitem__(slice(0, 1), [(DRAM, 0)]), "flips: address must be"),
]


@pytest.mark.parametrize(("change", "text"), BAD)
def test_what_the_device_lacks_is_refused_where_it_is_written_and_changes_nothing(change: Change, text: str) -> None:
    device = NpuDevice(TINY, Injection(hang={"core0.scalar": 3}, flips=[(5, 1)]))
    with pytest.raises(UsageError, match=re.escape(text)):
        change(device.injection)
    assert device.injection == Injection(hang={"core0.scalar": 3}, flips=[(5, 1)])


@pytest.mark.parametrize("make", [NpuDevice, Machine])
@pytest.mark.parametrize(
    ("injection", "text"),
    [
        (lambda: Injection(hang={"core0.matrx": 1}), NO_UNIT),
        (lambda: Injection(dma_error={"core0.vector": 1}), NO_CHANNEL),
        (lambda: Injection(flips=[(DRAM, 0)]), "flips: address must be"),
    ],
)
def test_what_was_made_before_the_device_is_held_against_it(
    make: Callable[..., object], injection: Callable[[], Injection], text: str
) -> None:
    wrong = injection()
    with pytest.raises(UsageError, match=re.escape(text)):
        make(TINY, wrong)
    wrong.hang, wrong.dma_error, wrong.flips = {}, {}, []
    make(TINY, wrong)  # and serves when it is right


def test_negative_counts_are_refused_without_a_device_too() -> None:
    with pytest.raises(UsageError, match="lose_interrupts must be a whole number >= 0, got -1"):
        Injection(lose_interrupts=-1)
    with pytest.raises(UsageError, match=re.escape("hang['anything'] must be a whole number >= 0, got -2")):
        Injection(hang={"anything": -2})


def test_all_that_the_device_has_is_taken() -> None:
    injection = NpuDevice(TINY).injection
    for unit in UNITS.split(", "):
        injection.hang[unit] = 0
    injection.hang |= {"core0.vector": 4}
    assert injection.hang.setdefault("core0.vector", 9) == 4
    injection.dma_error["core0.dma0"] = 0
    injection.flips.insert(0, (DRAM - 1, 7))
    injection.flips += [(np.int64(3), 0)]
    injection.flips[1] = (0, 0)
    injection.flips[:0] = [(9, 1)]
    assert injection.hang == {"core0.matrix": 0, "core0.vector": 4, "core0.scalar": 0, "core0.dma0": 0}
    assert injection.flips == [(9, 1), (DRAM - 1, 7), (0, 0)]


def test_a_channel_that_the_config_has_may_fail() -> None:
    config = TINY.with_(**{"dma.channels": 2})
    NpuDevice(config).injection.dma_error["core0.dma1"] = 0


def test_an_injection_is_for_one_device() -> None:
    injection = Injection()
    NpuDevice(TINY, injection)
    with pytest.raises(UsageError, match="this Injection belongs to another device"):
        NpuDevice(TINY, injection)
