"""The plugin in a user's project: a folder with tests, run by pytest."""

import pytest

pytest_plugins = ["pytester"]


def test_pytest_finds_the_plugin_of_an_installed_npusim():
    from importlib.metadata import distribution

    points = [point for point in distribution("npusim").entry_points if point.group == "pytest11"]
    if not points:
        pytest.skip("npusim was installed here before it had a plugin")
    assert points[0].load().__name__ == "npusim.testing.plugin"


def test_a_model_is_timed_once_and_its_cycles_are_exact(project):
    result = project("""
def test_one(npu):
    run = npu.run(MODEL)
    assert run.cycles > 0
    assert npu.run(MODEL) is run

def test_two(npu):
    one = npu.run(MODEL)
    assert one is npu.run(MODEL, config="edge")
    assert one.cycles < npu.run(MODEL, set={"dram.latency": "10 us"}).cycles
""")
    result.assert_outcomes(passed=2)


def test_the_marker_says_which_device(project):
    result = project("""
pytestmark = pytest.mark.npu(config="tiny", set={"dram.latency": "1 us"})

@pytest.mark.npu(set={"dma.setup_cycles": 99})
def test_nearest_first(npu):
    found = npu.run(MODEL).result.device
    assert (found.dram.latency_ps, found.dma.setup_cycles) == (10**6, 99)
    assert npu.run(MODEL, "edge").result.device.dma.setup_cycles != 99

@pytest.mark.npu(confg="edge")
def test_misspelt(npu):
    pass

@pytest.mark.npu(faults=[{"when": {"job": 1}, "what": {"throttle": 2}}])
def test_faults(npu):
    assert npu.run(MODEL).cycles > npu.run(MODEL, faults=[]).cycles
    assert [each.what for each in npu.run(MODEL).result.timeline.injected] == ["throttle"]

@pytest.mark.npu(faults=[{"when": {"job": 2}, "what": {"throttle": 2}}])
def test_a_fault_that_does_not_happen(npu):
    npu.run(MODEL)
""")
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*faults: fault 1: when.job: not reached by*"])
    result.stdout.fnmatch_lines(["*marker npu: takes config=..., set={...} and faults=..., got 'confg'*"])


def test_failures_say_how_far_off(project):
    result = project("""
def test_end(npu):
    assert npu.run(MODEL).ends_before("1 ns")

def test_layers(npu):
    first, second = npu.run(MODEL).layers
    assert first.starts_after(second)

def test_share(npu):
    assert npu.run(MODEL).idle("core0.matrix") < "0.01 %"

def test_unit(npu):
    npu.run(MODEL).idle("core7.matrix")

def test_layer(npu):
    npu.run(MODEL).layer("conv")

def test_within(npu):
    npu.run(MODEL, set={"dram.latency": "10 us"}).assert_within(npu.run(MODEL), "2 %")
""")
    result.assert_outcomes(failed=6)
    result.stdout.fnmatch_lines(
        [
            "E*takes * more than 1 ns; slowest layer: matmul*",
            "E*layer matmul*starts * before the end of layer matmul_1*",
            "E*the time that core0.matrix is idle is * %*",
            "E*no unit is called 'core7.matrix'; there are core0.dma0, *",
            "E*no layer is called 'conv'; * matmul*",
            "E*is not within 2 % of*",
            "E*likely cause: *core0.dma*",
        ]
    )


GOLDEN = """
def test_golden(npu, npu_golden):
    npu_golden(npu.run(MODEL, set=SET))
"""


def test_golden_timelines_are_written_compared_and_told_apart(project, pytester):
    missing = project("SET = {}\n" + GOLDEN)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*there is no golden timeline *", "*pytest --npu-update writes it*"])
    project("SET = {}\n" + GOLDEN, "--npu-update").assert_outcomes(passed=1)
    path = pytester.path / "golden" / "test_it" / "test_golden.npu.txt"
    written = path.read_text("utf-8")
    project("SET = {}\n" + GOLDEN).assert_outcomes(passed=1)
    slower = project("SET = {'dma.setup_cycles': 99}\n" + GOLDEN)
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(
        ["E*against test_golden.npu.txt*", "E*first: layer matmul*", "E*likely cause: *core0.dma*"]
    )
    assert path.read_text("utf-8") == written
    assert sorted(path.parent.iterdir()) == [path]


def test_each_test_id_has_a_file_of_its_own(project, pytester):
    """Ids with similar file names: by parameter, class, name of the run, and all of them."""
    tests = """
@pytest.mark.parametrize("rows", [1, 2, 3, 4], ids=["a/b", "a b", "a_b", "A_b"])
def test_it(npu, npu_golden, rows):
    npu_golden(npu.run(perceptron(rows, (64, 64), 2)))

def test_it_a_b(npu, npu_golden):
    npu_golden(npu.run(perceptron(5, (64, 64), 2)))
    npu_golden(npu.run(perceptron(6, (64, 64), 2)), "x/y")
    npu_golden(npu.run(perceptron(7, (64, 64), 2)), "x y")

class TestOne:
    def test_it_a_b(self, npu, npu_golden):
        npu_golden(npu.run(perceptron(8, (64, 64), 2)))

class TestTwo:
    def test_it_a_b(self, npu, npu_golden):
        npu_golden(npu.run(perceptron(9, (64, 64), 2)))

    class TestOne:
        def test_it_a_b(self, npu, npu_golden):
            npu_golden(npu.run(perceptron(10, (64, 64), 2)))
"""
    project(tests, "--npu-update").assert_outcomes(passed=8)
    names = [path.name for path in (pytester.path / "golden" / "test_it").iterdir()]
    assert len({name.lower() for name in names}) == 10
    assert "test_it_a_b.npu.txt" in names
    project(tests).assert_outcomes(passed=8)


def test_a_file_with_the_name_of_an_earlier_version_is_not_believed(project, pytester):
    tests = """
@pytest.mark.parametrize("rows", [1, 2], ids=["a/b", "a_b"])
def test_it(npu, npu_golden, rows):
    npu_golden(npu.run(perceptron(rows, (64, 64), 2)))
"""
    project(tests, "--npu-update").assert_outcomes(passed=2)
    first, second = sorted((pytester.path / "golden" / "test_it").iterdir())
    first.rename(first.with_name("test_it_a_b.npu.txt"))
    result = project(tests)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"E*test_it_a_b.npu.txt, named by an earlier version, *rename it to {first.name}; *"])
    assert second.exists()


def test_another_device_is_not_no_later(project):
    tests = """
def test_it(npu, npu_golden):
    npu_golden(npu.run(MODEL, DEVICE), no_later=True)
"""
    project("DEVICE = 'tiny'\n" + tests, "--npu-update").assert_outcomes(passed=1)
    project("DEVICE = 'tiny'\n" + tests).assert_outcomes(passed=1)
    project("DEVICE = 'mobile'\n" + tests).assert_outcomes(failed=1)


def test_faster_is_no_later(project):
    tests = """
def test_it(npu, npu_golden):
    npu_golden(npu.run(MODEL, set=SET), no_later=True)
"""
    project("SET = {}\n" + tests, "--npu-update").assert_outcomes(passed=1)
    project("SET = {'dma.setup_cycles': 1}\n" + tests).assert_outcomes(passed=1)
    project("SET = {'dma.setup_cycles': 99}\n" + tests).assert_outcomes(failed=1)


def test_two_runs_of_a_test_have_names(project):
    result = project(
        """
def test_it(npu, npu_golden):
    npu_golden(npu.run(MODEL), "one")
    npu_golden(npu.run(MODEL, "tiny"), "other")
    npu_golden(npu.run(MODEL), "one")
""",
        "--npu-update",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*test_it-one.npu.txt is compared twice in this test; give each run a name"])


def test_an_update_that_is_interrupted_leaves_what_was_there(project, pytester):
    project("SET = {}\n" + GOLDEN, "--npu-update").assert_outcomes(passed=1)
    path = pytester.path / "golden" / "test_it" / "test_golden.npu.txt"
    written = path.read_text("utf-8")
    result = project(
        "SET = {'dma.setup_cycles': 99}\n"
        + """
@pytest.fixture(autouse=True)
def _interrupted(monkeypatch):
    import os
    def replace(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(os, "replace", replace)
"""
        + GOLDEN,
        "--npu-update",
    )
    assert result.ret != 0
    assert path.read_text("utf-8") == written
    assert sorted(path.parent.iterdir()) == [path]


@pytest.mark.slow
def test_workers_share_nothing_and_agree(project, pytester):
    tests = """
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_it(npu, npu_golden, rows):
    npu_golden(npu.run(perceptron(rows, (64, 64), 2)))
"""
    project(tests, "--npu-update", "-n", "2").assert_outcomes(passed=4)
    assert len(list((pytester.path / "golden" / "test_it").iterdir())) == 4
    project(tests, "-n", "2").assert_outcomes(passed=4)


def test_cycles_are_properties_in_the_xml(project, pytester):
    project("def test_it(npu):\n    npu.run(MODEL)\n", "--junitxml", "out.xml", "-o", "junit_family=xunit1")
    assert 'name="npu_cycles[' in (pytester.path / "out.xml").read_text("utf-8")


def test_failures_are_annotations_on_github(project, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = project(
        "def test_it(npu):\n    assert npu.run(MODEL).ends_before('1 ns')\n\ndef test_other():\n    assert 0\n"
    )
    lines = [line for line in result.outlines if line.startswith("::error")]
    assert len(lines) == 1
    assert lines[0].startswith("::error file=test_it.py,line=6::")
    assert "more than 1 ns" in lines[0]


def test_nothing_of_npusim_is_imported_before_it_is_asked_for(pytester, flags):
    alone = """
import sys

def test_it(request):
    assert request.config.pluginmanager.has_plugin("npusim") or "npusim.testing.plugin" in sys.modules
    assert not {"numpy", "simpy", "npusim.runtime", "npusim.testing.npu"} & set(sys.modules)
"""
    pytester.makepyfile(test_alone=alone)
    pytester.runpytest_subprocess(*flags, "-p", "no:hypothesispytest", "test_alone.py").assert_outcomes(passed=1)


def test_outputs_are_computed_where_inputs_are_given(project):
    project("""
import numpy as np

def test_it(npu):
    info = npu.run(MODEL).result.program.inputs[0]
    run = npu.run(MODEL, inputs={info.name: np.zeros(info.shape, info.dtype.label)})
    assert run.outputs
    assert not npu.run(MODEL).outputs
    assert run.digest == npu.run(MODEL).digest
""").assert_outcomes(passed=1)
