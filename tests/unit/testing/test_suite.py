"""The guide's suite: three networks on three devices, as in a user's project."""

import shutil
from pathlib import Path

import onnx
import pytest

from tests.support.onnx_models.cnn import mobilenet_v1, yolo

pytest_plugins = ["pytester"]
SUITE = Path(__file__).parents[3] / "examples/timing/test_timing.py"


@pytest.fixture
def suite(pytester, flags, warm):
    models = {
        "keyword": mobilenet_v1(image=32, classes=4),
        "denoise": yolo(image=32, classes=4),
        "vision": mobilenet_v1(image=64, classes=10),
    }
    for name, model in models.items():
        onnx.save(model, pytester.path / f"{name}.onnx")
    shutil.copy(SUITE, pytester.path)
    return lambda *further: pytester.runpytest_subprocess(*flags, *further)


def test_the_suite_is_short_and_has_no_helper():
    lines = SUITE.read_text("utf-8").splitlines()
    assert len(lines) <= 60
    assert not [line for line in lines if line.startswith(("def ", "class ")) and not line.startswith("def test_")]


def test_it_writes_its_timelines_and_holds_what_follows_against_them(suite, pytester):
    suite("--npu-update").assert_outcomes(passed=13)
    kept = sorted(path.name for path in pytester.path.rglob("*.npu.txt"))
    assert len(kept) == 9
    suite().assert_outcomes(passed=13)
    # Another network under the same name: three timelines are others, the requirements still hold.
    onnx.save(mobilenet_v1(image=64, classes=20), pytester.path / "vision.onnx")
    result = suite("-k", "nothing_has_changed")
    result.assert_outcomes(passed=6, failed=3)
    result.stdout.fnmatch_lines(["*vision*against*", "*first: layer*", "*likely cause: *"])
