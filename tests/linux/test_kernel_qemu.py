"""The Linux kernel module in a Debian kernel under QEMU, with two processors if QEMU is new enough.

Only tests that do not depend on the relative speed of device and processor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.demo import network
from npusim.device.npu import NpuDevice
from npusim.sim.watch import Watcher
from tests.support.kernel_module import COUNTERS, INTERRUPTS, cases, device_config
from tests.support.qemu_kernel import QemuShop, chosen

pytestmark = pytest.mark.slow

JOB = cases("job")
CASES = ("job", "good", "faulty", "closes", "isolation")
FAST = ("mappings", "clients")
"""Where memory is mapped; otherwise they take half a minute. Each of the other cases needs an active job, which may
have ended by then."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> QemuShop:
    return QemuShop(tmp_path_factory.mktemp("q"), vfio_user=chosen())


@pytest.fixture(scope="module")
def module(shop: QemuShop) -> Path:
    return shop.module()


def device(*faults: dict[str, Any], **keys: Any) -> NpuDevice:
    return NpuDevice(device_config(**keys), check=True, shared_memory=chosen(), faults=list(faults))


def second(**what: Any) -> dict[str, Any]:
    """Return a fault at the second doorbell."""
    return {"when": {"doorbell": 2}, "what": what}


def test_cases_pass_and_nobody_complains(shop: QemuShop, module: Path) -> None:
    """The cases compare outputs bit for bit with those of a device in this process."""
    wanted = CASES + FAST if chosen() else CASES
    script = " && ".join(map(cases, wanted))
    done = shop.run(module, f"uname -m\n{script} || exit 1\n{COUNTERS}\ncat /sys/kernel/debug/npu0/memory", device())
    done.check_good()
    assert "x86_64" in done.log
    assert [name for name in wanted if f"case {name}: passed" not in done.log] == []
    counters = done.counters()
    assert counters["jobs"] == counters["done"] + counters["faults"] + counters["aborts"] + counters["lost"]
    assert counters["faults"] == counters["continues"] == 2
    assert (counters["timeouts"], counters["resets"]) == (0, 1)
    # What remains is the driver's own.
    assert "a client's" not in done.log


class Writes(Watcher):
    """The processor's writes to device memory."""

    def __init__(self) -> None:
        self.count = self.bytes = 0

    def memory_written(self, address: int, size: int) -> None:
        self.count += 1
        self.bytes += size


def test_memory_is_written_in_few_accesses(shop: QemuShop, module: Path) -> None:
    """Each access is a message if memory is not mapped, so memory that only the device uses is not written, and zeros
    are written in units of 8 bytes. If it is mapped, no accesses are seen."""
    machine, loading, working = device(), Writes(), Writes()
    machine.watch(loading)
    shop.run(module, "true", machine).check_good()
    assert loading.bytes < machine.machine.context_bytes
    machine = device()
    machine.watch(working)
    shop.run(module, JOB, machine).check_good()
    assert working.bytes >= 7.5 * working.count


def test_jobs_take_the_same_cycles_and_an_interrupt_each(shop: QemuShop, module: Path) -> None:
    machine = device()
    done = shop.run(module, f"{JOB} && {JOB} && {cases('good')}\n{COUNTERS}", machine)
    done.check_good()
    assert done.log.count(f"status 1, fault 0 at 0, {_cycles()} cycles") == 2
    counters = done.counters()
    assert counters["jobs"] == counters["done"] == 22
    # Where the watchdog has overtaken a message, the next one may have become one with it.
    assert counters["irqs"] <= 22 <= counters["irqs"] + counters["irqs_lost"]


def test_each_ring_and_the_faults_have_a_vector(shop: QemuShop, module: Path) -> None:
    done = shop.run(module, f"{cases('classes')}\n{INTERRUPTS}", device(**{"pci.vectors": 4}))
    done.check_good()
    # Two of a vector may have become one, where the watchdog has overtaken the first.
    low, medium, high, fault = done.interrupts()
    assert (low, fault) == (1, 1)
    assert (1 <= medium <= 2, 1 <= high <= 4) == (True, True)


def test_a_device_of_the_command_is_the_same(shop: QemuShop, module: Path) -> None:
    done = shop.run_served(module, f"{JOB} && {cases('faulty')}")
    done.check_good()
    assert f"status 1, fault 0 at 0, {_cycles()} cycles" in done.log
    assert "case faulty: passed" in done.log


def test_a_planted_mistake_is_found(shop: QemuShop) -> None:
    """Shows that the checks work, for a device in this process and for one of the command."""
    mask = "NPU_INT_MASK_DONE | NPU_INT_MASK_FAULT);"
    planted = shop.module("planted", [("npu_hw.c", mask, "0xff);")])
    assert shop.run(planted, JOB, device()).findings == ["register-misuse"]
    (finding,) = shop.run_served(planted, JOB).findings
    assert "register-misuse" in finding


def test_an_interrupt_that_is_lost_is_made_up_for(shop: QemuShop, module: Path) -> None:
    done = shop.run(module, f"{JOB} && {JOB} && {JOB}\n{COUNTERS}", device(second(interrupt="lose")))
    done.check_good()
    assert done.log.count("status 1,") == 3
    counters = done.counters()
    assert counters["irqs"] <= 2
    assert counters["irqs"] + counters["irqs_lost"] >= 3


def test_a_job_that_hangs_is_aborted_and_the_next_one_is_right(shop: QemuShop, module: Path) -> None:
    hangs = device(second(hang="core0.matrix", lasts="job"))
    done = shop.run(module, f"{JOB} && {JOB} && {JOB}\n{COUNTERS}", hangs, {"timeout_ms": 1000})
    done.check_good()
    assert done.log.count("status 1,") == 2
    assert "'no job ended for 1000 ms: aborted'" in done.log
    counters = done.counters()
    assert (counters["timeouts"], counters["resets"]) == (1, 2)


def test_a_device_that_does_not_even_stop_is_reset(shop: QemuShop, module: Path) -> None:
    hangs = device(second(hang="sequencer", lasts="reset"))
    done = shop.run(module, f"{JOB} && {JOB} && {JOB}\n{COUNTERS}", hangs, {"timeout_ms": 1000})
    done.check_good()
    assert done.log.count("status 1,") == 2
    counters = done.counters()
    assert (counters["timeouts"], counters["resets"]) == (1, 2)


def test_random_calls_do_no_harm(shop: QemuShop, module: Path) -> None:
    calls = 1000 if chosen() else 150  # a tenth of a second each where memory is not mapped
    unchecked = NpuDevice(device_config(), shared_memory=chosen())
    done = shop.run(module, f"npu_test fuzz /t/demo.npu {calls} 1 && {cases('good')}", unchecked)
    done.check_good()
    assert f"{calls} calls" in done.log


def _cycles() -> int:
    """Return the cycles of the job without a Linux driver. They do not depend on the values."""
    session = npusim.Session(device_config(), cache_dir=False)
    program = session.compile(network())
    (given,) = program.inputs
    return session.run(program, {given.name: np.zeros(given.shape, given.dtype.storage)}).cycles
