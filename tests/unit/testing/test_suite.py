"""The guide's suite: three networks on three devices, as in a user's project."""

import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
FOLDER = Path(__file__).parents[3] / "examples/timing"


@pytest.fixture
def suite(pytester, flags, warm):
    for path in FOLDER.rglob("*"):
        if path.suffix in (".py", ".txt"):
            target = pytester.path / path.relative_to(FOLDER)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return lambda *further: pytester.runpytest_subprocess(*flags, *further)


def test_the_suite_is_short_and_has_no_helper():
    lines = (FOLDER / "test_timing.py").read_text("utf-8").splitlines()
    assert len(lines) <= 60
    assert not [line for line in lines if line.startswith(("def ", "class ")) and not line.startswith("def test_")]


def test_it_passes_as_shipped_and_finds_another_network(suite, pytester):
    """If cycles have changed as intended: ``pytest examples/timing --npu-update``."""
    assert len(list(FOLDER.rglob("*.npu.txt"))) == 9
    suite().assert_outcomes(passed=13)
    # Another network under the same name: three timelines are others, the requirements still hold.
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text("utf-8").replace('("vision", 48, 64)', '("vision", 64, 64)'), "utf-8")
    (pytester.path / "vision.onnx").unlink()
    result = suite("-k", "nothing_has_changed")
    result.assert_outcomes(passed=6, failed=3)
    result.stdout.fnmatch_lines(["*vision*against*", "*first: layer*", "*likely cause: *"])
