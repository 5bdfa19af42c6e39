"""The plugin in a user's project: a folder with tests, run by pytest."""

import os
import sys

import pytest

SMALL = """
import pytest
from npusim.validate.networks.small import perceptron

MODEL = perceptron(8, (64, 64), 2)
"""
# Hypothesis takes a second to report that it was not used; npusim's own modules need no assertion rewriting.
FLAGS = (
    "-p", "npusim.testing.plugin", "-p", "no:cacheprovider", "-p", "no:hypothesispytest",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip


@pytest.fixture
def flags(monkeypatch):
    """Options that make pytest load the plugin if npusim is not installed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    installed = any(point.name == "npusim" for point in _entry_points())
    return FLAGS[2:] if installed else FLAGS


@pytest.fixture
def warm(monkeypatch, warm_python):
    """pytester's processes start with npusim already imported."""
    monkeypatch.setattr(sys, "executable", str(warm_python))


@pytest.fixture
def project(pytester, flags, warm):
    """``project(tests)`` runs a file of tests; further flags are passed to pytest."""

    def run(tests, *further, name="test_it"):
        pytester.makepyfile(**{name: SMALL + tests})
        return pytester.runpytest_subprocess(*flags, *further)

    return run


def _entry_points():
    from importlib.metadata import entry_points

    return entry_points(group="pytest11")
