"""The kernel module during system suspend, and after a resume in another state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npusim.device.npu import NpuDevice
from tests.support.kernel_module import COUNTERS, Workshop, cases, device_config

pytestmark = pytest.mark.slow

PLACE = "/sys/bus/pci/devices/0000:00:00.0"
ALARM = "echo +10 > /sys/class/rtc/rtc0/wakealarm"
SLEEPS = cases("sleeps")


@pytest.fixture(autouse=True)
def _can_sleep(shop: Workshop) -> None:
    shop.needs_sleep()


@pytest.mark.parametrize("power", ["on", "auto"])
def test_the_system_turns_back_before_it_sleeps(shop: Workshop, module: Path, power: str) -> None:
    """At each step of suspend; from ``devices`` on the device has been in D3hot."""
    steps = "".join(
        f"echo {level} > /sys/power/pm_test; {SLEEPS} || exit 1; echo after {level}; {COUNTERS}; "
        for level in ("freezer", "devices", "platform", "core")
    )
    done = shop.run(module, f"echo {power} > {PLACE}/power/control; {steps} {SLEEPS}")
    done.check_good()
    assert done.log.count("case sleeps: passed") == 5
    suspends = [int(count) for count in re.findall(r"^suspends (\d+)$", done.log, re.MULTILINE)]
    assert suspends == sorted(set(suspends)), "no suspend at one of the steps"
    assert len(suspends) == 4


def test_the_system_sleeps_and_an_alarm_wakes_it(shop: Workshop, module: Path) -> None:
    done = shop.run(module, f"{ALARM}; cat /proc/uptime; {SLEEPS} || exit 1; date; {COUNTERS}")
    done.check_good()
    assert done.log.count("case sleeps: passed") == 1
    assert done.simulated_ps >= 10 * 10**12
    assert done.counters()["suspends"] == 1


def test_a_job_that_hangs_does_not_keep_the_system_awake(shop: Workshop, module: Path) -> None:
    hang = {"when": {"doorbell": 1}, "what": {"hang": "sequencer", "lasts": "reset"}}
    device = NpuDevice(device_config(), check=True, faults=[hang])
    done = shop.run(module, f"{ALARM}; {SLEEPS}; {cases('good')}; {COUNTERS}", device, {"timeout_ms": 1000})
    done.check_good()
    assert "case sleeps: FAILED" in done.log  # its job has not ended well
    assert "case good: passed" in done.log
    counters = done.counters()
    assert (counters["lost"], counters["suspends"]) == (1, 1)


def test_memory_that_was_lost_in_sleep_is_noticed(shop: Workshop, module: Path) -> None:
    """The slot has no power during suspend: programs in device memory must not run on zeros."""
    unplug = {"when": {"time": "3 s"}, "what": {"unplug": True, "lasts": "3 s"}}
    device = NpuDevice(device_config(), check=True, faults=[unplug])
    done = shop.run(module, f"{ALARM}; {cases('loses')} && {cases('good')}", device)
    done.check_good()
    assert "the device is gone, and all that was in it" in done.log
    assert "the device is back" in done.log
    assert done.log.count(": passed") == 2
