"""A script reaches the device through every interface, and a fault that does not happen fails the run."""

from __future__ import annotations

import gc
import json
import logging
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.types import ErrorStatus
from npusim.cli.app import main
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, Priority
from npusim.errors import ConfigError, DeviceFaultError, DeviceGoneError, UsageError
from npusim.faults import (
    AtCommand,
    AtDoorbell,
    AtInterrupt,
    AtJob,
    AtLabel,
    AtTime,
    Ecc,
    Fail,
    Fault,
    Flip,
    Hang,
    LoseWrite,
    MessageFault,
    Throttle,
    Unplug,
)
from npusim.faults.script import ENVIRONMENT
from npusim.runtime import Executor, Session
from tests.support.graphs.samples import residual_net
from tests.support.nnapi.client import prepared_model
from tests.support.nnapi.models import add, add_case
from tests.support.programs.executor_jobs import TINY, adder, request, run, values

LOST = Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="lose"))
NEVER = Fault(AtTime(time_ps=10**18), Flip(flip="dram", address=0, bit=0), "too late")
HANG = Fault(AtCommand(command=2, unit="core0.dma0"), Hang(hang="core0.dma0"))
LOST_TOML = "[[fault]]\nwhen = { interrupt = 1 }\nwhat = { interrupt = 'lose' }\n"
NEVER_TOML = "[[fault]]\nwhen = { time = '1000000 s' }\nwhat = { flip = 'dram', address = 0, bit = 0 }\n"


def inputs(program: Any) -> dict[str, Any]:
    return {each.name: np.ones(each.shape, each.dtype.storage) for each in program.inputs}


def test_a_session_with_faults() -> None:
    graph = residual_net()
    with Session(TINY, cache_dir=False) as plain:
        program = plain.compile(graph)
        usual = plain.run(program, inputs(program))
    with Session(
        TINY, cache_dir=False, faults=[HANG, Fault(AtJob(job=2), Fail(fail="core0.dma0"))], timeout="10 ms"
    ) as session:
        for code in ("TIMEOUT", "DMA"):
            with pytest.raises(DeviceFaultError) as caught:
                session.run(graph, inputs(program))
            assert caught.value.code == code
        again = session.run(graph, inputs(program))
        assert again.timeline.digest() == usual.timeline.digest()
        for name, array in usual.outputs.items():
            assert np.array_equal(again.outputs[name], array)
        assert again.timeline.injected == ()
        assert [each.what for each in session.device.faults.happened] == ["hang", "fail"]


def test_a_label_is_an_operator_of_the_model() -> None:
    graph = residual_net()
    with Session(TINY, cache_dir=False) as plain:
        program = plain.compile(graph)
        usual = plain.run(program, timing_only=True).timeline
    for op, entry in enumerate(program.ops):
        spans = [span for span in usual.spans if span.op == op]
        for edge, moment in (("begins", min(s.start_ps for s in spans)), ("ends", max(s.end_ps for s in spans))):
            fault = Fault(AtLabel(label=entry.name, edge=edge), Ecc(ecc="corrected", address=0))
            with Session(TINY, cache_dir=False, faults=[fault]) as session:
                found = session.run(program, timing_only=True).timeline
            assert found.spans == usual.spans
            assert [each.at_ps - found.started_ps for each in found.injected] == [moment]


def test_a_label_that_there_is_not_fails_the_session() -> None:
    graph = residual_net()
    fault = Fault(AtLabel(label="convv1"), Throttle(throttle=Fraction(2)))
    session = Session(TINY, cache_dir=False, faults=[fault])
    session.run(graph, timing_only=True)
    with pytest.raises(UsageError, match=r"fault 1: when.label: no operator is called 'convv1'; there are "):
        session.close()


def test_a_session_whose_fault_did_not_happen_says_so_at_its_end() -> None:
    with (
        pytest.raises(UsageError, match=r"fault 1 \(too late\): when.time is"),
        Session(TINY, cache_dir=False, faults=[NEVER]),
    ):
        pass
    with pytest.raises(ZeroDivisionError), Session(TINY, cache_dir=False, faults=[NEVER]):
        raise ZeroDivisionError  # this is what must be reported
    with pytest.raises(ConfigError, match=r"what.hang: must be one of"):
        Session(TINY, faults=[Fault(AtJob(job=1), Hang(hang="core9.matrix"))])
    for timeout in (0, -1, "0 s", "1 parsec", True, 1.5):
        with pytest.raises(UsageError, match=r"^timeout: "):
            Session(TINY, timeout=timeout)  # type: ignore[arg-type]


def test_a_device_that_was_away_is_gone_for_its_session_and_not_for_the_next() -> None:
    graph = residual_net()
    away = Fault(AtJob(job=2, stage="runs"), Unplug(unplug=True, lasts=10**9))
    session = Session(TINY, cache_dir=False, faults=[away], timeout="1 s")
    usual = session.run(graph, timing_only=True)
    for _ in range(2):
        with pytest.raises(DeviceGoneError, match=r"device fault (UNPLUGGED|POWER_LOST)"):
            session.run(graph, timing_only=True)
    session.close()
    assert session.run(graph, timing_only=True).cycles == usual.cycles


def test_a_storm_of_interrupts_does_not_use_up_the_time_of_a_job() -> None:
    device = NpuDevice(TINY, [Fault(AtJob(job=1), MessageFault(interrupt="storm", count=50, delay_ps=10**6))])
    driver = Driver(device.bus)
    slow = driver.load(adder(slow=100))
    job = driver.run(slow, {"x0": values()}, timeout_ps=10**9)  # it takes 60 us, and 50 interrupts come
    assert np.array_equal(job.outputs["y0"], values() + 1)
    device.faults.check()


def test_a_session_with_faults_is_pickled_with_them() -> None:
    again = pickle.loads(pickle.dumps(Session(TINY, cache_dir=False, faults=[LOST], timeout=5 * 10**12)))
    program = again.compile(residual_net())
    assert again.run(program, timing_only=True).total_ps > 10**11
    again.close()
    with pytest.raises(UsageError, match="on: not allowed with faults"):
        Session(TINY, cache_dir=False, faults=[LOST]).run(program, timing_only=True, on=TINY)


def test_an_executor_with_faults() -> None:
    program = adder()
    with Executor(TINY, faults=[HANG], timeout_ps=10**10) as executor:
        with pytest.raises(DeviceFaultError, match="TIMEOUT"):
            run(executor, program, values())
        assert np.array_equal(run(executor, program, values()).outputs["y0"], values() + 1)
        executor.faults.add([LOST])
        with pytest.raises(UsageError, match="did not happen"):
            executor.faults.check()
        executor.faults.clear()
    with pytest.raises(UsageError, match="too late"), Executor(TINY, faults=[NEVER]):
        pass


@pytest.mark.parametrize("what", [LoseWrite(lose_write="MEDIUM_DOORBELL"), Hang(hang="core0.vector", lasts="reset")])
def test_a_job_that_nobody_hears_of_does_not_hold_up_others_for_ever(what: Any) -> None:
    fault = Fault(AtDoorbell(doorbell=1), what)
    with Executor(TINY, faults=[fault], timeout_ps=10**12) as executor:
        program = adder()
        with executor.paused():
            jobs = [executor.submit(request(program, values(), priority)) for priority in Priority]
        outcomes = []
        for job in jobs:
            try:
                outcomes.append(bool(np.array_equal(job.wait(60).outputs["y0"], values() + 1)))
            except DeviceFaultError as error:
                outcomes.append(error.code)
        assert set(outcomes) <= {True, "TIMEOUT"}
        assert "TIMEOUT" in outcomes
        assert np.array_equal(run(executor, program, values()).outputs["y0"], values() + 1)


def test_an_abort_that_a_hung_job_was_given_ends_it_and_no_other() -> None:
    with Executor(TINY, faults=[HANG]) as executor:
        program = adder()
        job = executor.submit(request(program, values(), budget_ps=10**9))
        with pytest.raises(Exception, match="not done within"):
            job.wait(60)
        assert np.array_equal(run(executor, program, values()).outputs["y0"], values() + 1)


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    code = main(["run", *arguments, "--config", "tiny", "--timing-only", "--no-cache"])
    written = capsys.readouterr()
    return code, written.out + written.err


@pytest.fixture
def model(tmp_path: Path) -> str:
    from npusim.demo import as_onnx

    path = tmp_path / "m.onnx"
    path.write_bytes(as_onnx())
    return str(path)


def test_the_command_line(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    script, out = tmp_path / "f.toml", tmp_path / "r.json"
    script.write_text(LOST_TOML.replace("interrupt = 1", "job = 1").replace("interrupt = 'lose'", "throttle = 2"))
    code, told = invoke(capsys, model, "--faults", str(script), "--json", str(out))
    assert code == 0, told
    assert "fault 1: throttle, " in told
    assert [each["what"] for each in json.loads(out.read_text())["faults"]] == ["throttle"]
    script.write_text(LOST_TOML)
    assert invoke(capsys, model, "--faults", str(script))[0] == 0
    script.write_text(NEVER_TOML)
    code, told = invoke(capsys, model, "--faults", str(script))
    assert code != 0
    assert f"{script}: fault 1: when.time is 1000000 s, and it is" in told
    script.write_text(NEVER_TOML.replace("flip = 'dram', address = 0, bit = 0", "hang = 'core7.dma0'"))
    code, told = invoke(capsys, model, "--faults", str(script))
    assert code != 0
    assert "what.hang: must be one of core0.matrix" in told
    script.write_text(
        LOST_TOML.replace("interrupt = 1", "label = 'gemm', nth = 1").replace("interrupt = 'lose'", "x = 1")
    )
    assert "fault 1.what: must have one of flip, hang" in invoke(capsys, model, "--faults", str(script))[1]
    script.write_text("[[fault]]\nwhen = { job = 1 }\nwhat = { hang = 'sequencer' }\n")
    code, told = invoke(capsys, model, "--faults", str(script), "--timeout", "1 ms")
    assert code != 0
    assert "device fault TIMEOUT" in told


def test_the_nnapi_driver_takes_a_script_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "f.toml"
    script.write_text("[[fault]]\nwhen = { command = 1, unit = 'core0.dma0' }\nwhat = { fail = 'core0.dma0' }\n")
    monkeypatch.setenv(ENVIRONMENT, str(script))
    with open_device("tiny") as device:
        prepared, case = prepared_model(device, add()), add_case()
        statuses = [prepared.executeSynchronously_1_3(case.request, 0, None, None)[0] for _ in range(2)]
    assert statuses == [ErrorStatus.GENERAL_FAILURE, ErrorStatus.NONE]
    np.testing.assert_array_equal(case.output(), [10, 11, 12, 13])
    monkeypatch.setenv(ENVIRONMENT, "")
    device = open_device("tiny", faults=[NEVER])
    with pytest.raises(UsageError, match="too late"):
        device.close()


def test_an_executor_that_nobody_closes_leaves_it_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    executor = Executor(TINY, faults=[NEVER])
    thread = executor._worker._thread
    with caplog.at_level(logging.ERROR, "npusim.runtime"):
        del executor
        gc.collect()
        thread.join(30)
    assert "fault 1 (too late): when.time is" in caplog.text
