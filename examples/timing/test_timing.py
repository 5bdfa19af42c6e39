"""Timing requirements of three networks, whose files are in this folder, on three devices."""

import pytest

from npusim.debug import Bench, JobRequest
from npusim.driver import Priority
from npusim.errors import DeviceFaultError

MODELS = ("keyword.onnx", "denoise.onnx", "vision.onnx")
DEVICES = ("tiny", "edge", "mobile")
US = 10**6  # picoseconds


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_nothing_has_changed_unnoticed(npu, npu_golden, model, device):
    npu_golden(npu.run(model, device))


@pytest.mark.npu(config="edge")
def test_a_picture_in_two_milliseconds(npu):
    run = npu.run("vision.onnx")
    assert run.ends_before("2 ms")
    assert run.idle("core0.matrix") < "95 %"


@pytest.mark.npu(config="edge", set={"dma.setup_cycles": 40})
def test_slower_descriptors_cost_two_percent_at_most(npu):
    npu.run("keyword.onnx").assert_within(npu.run("keyword.onnx", "edge"), "2 %")


def test_an_urgent_job_begins_within_its_latency(npu):
    with Bench("edge") as bench:
        bench.submit(JobRequest(npu.compile("vision.onnx", "edge"), priority=Priority.LOW, timing_only=True))
        keyword = npu.compile("keyword.onnx", "edge")
        at = bench.device.now_ps + 100 * US
        urgent = bench.submit(JobRequest(keyword, at, priority=Priority.HIGH, timing_only=True))
        bench.finish()
    assert urgent.timeline.started_ps <= at + 200 * US


@pytest.mark.npu(config="edge", faults=[{"when": {"command": 3, "unit": "core0.dma0"}, "what": {"hang": "core0.dma0"}}])
def test_a_device_that_hangs_is_given_up_in_time(npu):
    with pytest.raises(DeviceFaultError):
        npu.run("keyword.onnx", timeout="5 ms")
