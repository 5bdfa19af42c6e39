"""Hardware coverage: the items are what a device can execute, and what was exercised is counted."""

import json

import pytest

from npusim.device import npu
from npusim.driver import Priority
from npusim.faults import AtCommand, Fail, Fault
from npusim.isa.base import INSTRUCTIONS
from npusim.runtime import Session
from npusim.testing.coverage import Collector, CoveragePoint, Measured, universe
from npusim.testing.coverage.measure import FORMAT, added, flat
from npusim.testing.coverage.universe import listed
from npusim.timeline import FaultCode
from tests.support.graphs.every_kind import CASES
from tests.support.programs.timed_jobs import NS, Bench, long_job

pytest_plugins = ["pytester"]


@pytest.fixture
def collector():
    made = Collector()
    made.start()
    yield made
    made.stop()


def test_every_instruction_can_be_issued_and_no_point_is_twice():
    points = universe()
    assert len(set(points)) == len(points)
    issued = {point.subject for point in points if point.item == "issued"}
    assert issued == {cls.mnemonic for cls in INSTRUCTIONS.values()}
    empty = [
        (cls.mnemonic, name) for cls in INSTRUCTIONS.values() for name, values in listed(cls).items() if not values
    ]
    assert not empty


def test_what_is_executed_is_in_what_there_is():
    """If a value were ignored or a field forgotten, its count would have no item."""
    collector = Collector()
    for case in CASES.values():
        with Session(case.config, cache_dir=False) as session:
            collector.program(session.compile(case.graph()[0]).code)
    counted = {point for program in collector._programs.values() for point in program}
    assert counted <= set(universe())
    assert len({point.subject for point in counted}) > 20


def test_jobs_stalls_and_registers_are_counted(collector):
    bench = Bench()
    low = bench.submit(long_job(4), Priority.LOW, 2000 * NS)
    high = bench.submit(long_job(2), Priority.HIGH, 1000 * NS)
    bench.finish(low, high)
    counts = collector.counts
    assert counts[CoveragePoint("jobs", "LOW", "done")] == counts[CoveragePoint("jobs", "HIGH", "done")] == 1
    assert (
        counts[CoveragePoint("jobs", "job", "done")] == counts[CoveragePoint("jobs", "job", "without arithmetic")] == 2
    )
    assert counts[CoveragePoint("jobs", "job", "preempted")] == 1
    assert CoveragePoint("jobs", "job", "preempted again") not in counts
    assert counts[CoveragePoint("instructions", "dma.copy", "issued")] == 6
    assert counts[CoveragePoint("instructions", "dma.copy", "src in dram")] == 6
    assert CoveragePoint("instructions", "dma.copy", "src in sram") not in counts
    assert counts[CoveragePoint("registers", "PREEMPT", "ENABLE[0] written 1")] == 1
    assert counts[CoveragePoint("registers", "HIGH_DOORBELL", "written")] == 1
    assert counts[CoveragePoint("stalls", "dma", "on preempted")] == 1


def test_a_fault_counts_and_its_commands_do_not(collector):
    bench = Bench(preempt=False)
    bench.device.faults.add([Fault(AtCommand(command=2, unit="core0.dma0"), Fail(fail="core0.dma0"))])
    job = bench.submit(long_job(4), Priority.MEDIUM)
    with pytest.raises(Exception, match="bus error"):
        bench.finish(job)
    assert collector.counts[CoveragePoint("faults", "DMA", "happened")] == 1
    assert CoveragePoint("instructions", "dma.copy", "issued") not in collector.counts


def test_nothing_is_counted_before_and_after(collector):
    collector.stop()
    try:
        bench = Bench(preempt=False)
        bench.finish(bench.submit(long_job(), Priority.MEDIUM))
        assert not collector.counts
        assert not npu.switched_on
    finally:
        collector.start()


def test_parts_add_up_and_unknown_points_are_left_out():
    one, two = CoveragePoint("jobs", "job", "done"), CoveragePoint("faults", "DMA", "happened")
    measured = added([flat({one: 2}), flat({one: 1, two: 4}), [["jobs", "job", "of another version", 3]]])
    assert measured.counts == {one: 3, two: 4}
    assert measured.percent == pytest.approx(200 / len(universe()))
    assert measured.group("faults") == (1, len(FaultCode) - 1)
    assert Measured({}).percent == 0
    assert not Measured(dict.fromkeys(universe(), 1)).missing


TESTS = """
def test_one(npu):
    assert npu.run(MODEL).cycles

def test_two(npu):
    assert npu.run(MODEL, inputs={"x": __import__("numpy").ones((8, 64), "int8")}).cycles
"""


def test_the_option_reports_as_text_page_and_json(project, pytester):
    result = project(TESTS, "--npu-cov", "--npu-cov-html", "c.html", "--npu-cov-json", "c.json")
    result.stdout.fnmatch_lines(
        ["*coverage of the hardware*", "instructions *of*%", "*matrix.depthwise: not issued", "all *%"]
    )
    found = json.loads((pytester.path / "c.json").read_text())
    assert found["format"] == FORMAT
    assert found["groups"]["instructions"]["matrix.conv"]["issued"] > 0
    page = (pytester.path / "c.html").read_text()
    assert "matrix.conv" in page


@pytest.mark.slow
def test_workers_are_added_up(project, pytester):
    pytest.importorskip("xdist")
    project(TESTS, "--npu-cov-json", "alone.json")
    result = project(TESTS, "--npu-cov-json", "spread.json", "-n", "2")
    result.assert_outcomes(passed=2)
    alone, spread = (json.loads((pytester.path / f"{name}.json").read_text()) for name in ("alone", "spread"))
    assert spread["percent"] == alone["percent"]
    issued = [each["groups"]["instructions"]["matrix.conv"]["issued"] for each in (alone, spread)]
    assert issued[0] == issued[1]


def test_too_little_fails(project):
    result = project(TESTS, "--npu-cov-fail-under", "99")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*is less than --npu-cov-fail-under 99"])
    assert project(TESTS, "--npu-cov-fail-under", "1").ret == 0


def test_a_page_that_cannot_be_written_is_named(project):
    result = project(TESTS, "--npu-cov-html", "nowhere/c.html")
    assert result.ret != 0
    assert "nowhere/c.html: cannot be written" in result.stdout.str() + result.stderr.str()


def test_nothing_is_imported_without_the_option(project):
    result = project(
        """
import sys

def test_it(npu):
    npu.run(MODEL)
    assert "npusim.testing.coverage" not in sys.modules
"""
    )
    result.assert_outcomes(passed=1)
