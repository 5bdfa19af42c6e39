"""The Linux kernel module on the simulated device: its guarantees, recovery, and behaviour with random calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.device.npu import NpuDevice
from tests.support.kernel_module import COUNTERS, Workshop, cases, device_config

JOB = cases("job")


@pytest.mark.slow
def test_every_case_passes_and_nobody_complains(shop: Workshop, module: Path) -> None:
    script = f"{cases('all')} || exit 1\n{COUNTERS}\ncat /sys/kernel/debug/npu0/memory"
    done = shop.run(module, script)
    done.check_good()
    assert done.log.count(": passed") == 11
    counters = done.counters()
    assert counters["jobs"] == counters["done"] + counters["faults"] + counters["aborts"] + counters["lost"]
    # What remains is the driver's own: rings and the area for parked jobs.
    assert done.log.count("nobody's or the driver's") == 2
    assert "a client's" not in done.log
    assert shop.run(module, script).log == done.log, "two runs are not equal to the byte"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_calls_do_no_harm(shop: Workshop, module: Path, seed: int) -> None:
    done = shop.run(module, f"npu_test fuzz /t/demo.npu 2000 {seed} && {cases('good')}", NpuDevice(device_config()))
    done.check_good()
    assert "2000 calls" in done.log


@pytest.mark.slow
def test_an_interrupt_that_is_lost_is_made_up_for(shop: Workshop, module: Path) -> None:
    lost = {"when": {"doorbell": 2}, "what": {"interrupt": "lose"}}
    device = NpuDevice(device_config(), check=True, faults=[lost])
    done = shop.run(module, f"{JOB} && {JOB} && {JOB}\n{COUNTERS}", device)
    done.check_good()
    assert done.log.count("status 1,") == 3
    assert done.counters()["irqs_lost"] == 1


@pytest.mark.slow
def test_a_device_that_is_gone_is_reported(shop: Workshop, module: Path) -> None:
    device = NpuDevice(device_config(), faults=[{"when": {"doorbell": 2}, "what": {"unplug": True}}])
    done = shop.run(module, f"{JOB} && {JOB}\n{JOB}\n{COUNTERS}", device)
    assert done.log.count("status 1,") == 1
    assert "status 6, fault 0 at 0, 0 cycles, 'the device is gone'" in done.log
    assert "/dev/npu0: No such device" in done.log
    assert done.complaints == []


@pytest.mark.slow
def test_jobs_that_take_too_long_are_aborted(shop: Workshop, module: Path) -> None:
    # At a thousandth of its clock the device takes 93 ms for a job.
    device = NpuDevice(device_config(clock=10**6), check=True)
    done = shop.run(module, f"{JOB}\n{COUNTERS}", device, {"timeout_ms": 30})
    done.check_good()
    assert "status 4" in done.log
    assert "'no job ended for 30 ms: aborted'" in done.log
    counters = done.counters()
    assert (counters["timeouts"], counters["resets"]) == (1, 2)


@pytest.mark.slow
def test_it_sleeps_when_nobody_uses_it(shop: Workshop, module: Path) -> None:
    place = "/sys/bus/pci/devices/0000:00:00.0"
    script = f"""
        echo auto > {place}/power/control
        sleep 1
        cat {place}/power/runtime_status
        {cases("good")}
        cat {place}/power/runtime_status
        sleep 1
        {COUNTERS}"""
    done = shop.run(module, script)
    done.check_good()
    assert done.log.index("suspended\n") < done.log.index("case good: passed") < done.log.index("active\n")
    assert done.counters()["suspends"] == 2


@pytest.mark.slow
def test_a_reset_of_the_function_is_survived(shop: Workshop, module: Path) -> None:
    done = shop.run(module, f"echo 1 > /sys/bus/pci/devices/0000:00:00.0/reset && {cases('all')}")
    done.check_good()


@pytest.mark.slow
def test_parameters_that_make_no_sense_are_refused(shop: Workshop, module: Path) -> None:
    for parameters, text in (({"ring_entries": 3}, "must be a power of two"), ({"timeout_ms": 0}, "more than 0")):
        done = shop.run(module, "true", parameters=parameters)
        assert done.status != 0
        assert text in done.log


@pytest.mark.slow
def test_without_preemption_and_with_one_entry(shop: Workshop, module: Path) -> None:
    done = shop.run(module, f"{cases('good')} && {cases('full')}", parameters={"preempt": 0, "ring_entries": 1})
    done.check_good()
    assert "preemption off" in done.log
