"""The pytest plugin: fixtures ``npu`` and ``npu_golden``, marker ``npu``, options ``--npu-update`` and ``--npu-cov``.

Every pytest in an environment with npusim loads it, so it imports npusim only when a test uses a fixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from npusim.testing.golden import Golden
    from npusim.testing.npu import Npu, SharedRuns

_COVER = ("npu_cov", "npu_cov_html", "npu_cov_json", "npu_cov_fail_under")
_MARKER = "npu(config=..., set={...}, faults=...): the device of the npu fixture in this test, and its faults"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options --npu-update and --npu-cov."""
    group = parser.getgroup("npusim")
    group.addoption("--npu-update", action="store_true", help="write golden timelines instead of comparing with them")
    group.addoption("--npu-cov", action="store_true", help="report the coverage of the hardware by the tests")
    group.addoption("--npu-cov-html", metavar="FILE", help="write the coverage as an HTML page")
    group.addoption("--npu-cov-json", metavar="FILE", help="write the coverage as JSON, with numbers of hits")
    group.addoption("--npu-cov-fail-under", metavar="PERCENT", type=float, help="fail if the coverage is lower")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and start the coverage."""
    config.addinivalue_line("markers", _MARKER)
    if any(config.getoption(name) not in (None, False) for name in _COVER):
        from npusim.testing.cover import NAME, Cover

        config.pluginmanager.register(Cover(config), NAME)


@pytest.fixture(scope="session")
def _npu_runs() -> SharedRuns:
    from npusim.testing.npu import SharedRuns

    return SharedRuns()


@pytest.fixture
def npu(request: pytest.FixtureRequest, _npu_runs: SharedRuns, record_property: Any) -> Npu:
    """``npu.run(model, config=..., set=...)``: run a model on a device. Equal runs are compiled and timed once per
    session."""
    from npusim.testing.npu import Npu, defaults

    return Npu(_npu_runs, defaults(request.node), request.path.parent, record_property)


@pytest.fixture
def npu_golden(request: pytest.FixtureRequest) -> Golden:
    """Compare the timeline of a run with the golden file next to the test. ``--npu-update`` writes the file."""
    from npusim.testing.golden import Golden

    test = request.node.nodeid.partition("::")[2] or request.node.name
    return Golden(request.path, test, bool(request.config.getoption("--npu-update")))


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """The explanation of a Share for a failed comparison, instead of both sides."""
    if type(left).__module__ != "npusim.testing.quantity" or type(left).__name__ != "Share":
        return None
    return [f"{left!r}, required: {op} {right}"]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the cycles of a test to its report."""
    outcome: Any = yield
    report = outcome.get_result()
    report.npu = call.when == "call" and bool({"npu", "npu_golden"} & set(getattr(item, "fixturenames", ())))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """On GitHub, print failures as annotations of the test lines."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    for report in terminalreporter.stats.get("failed", []):
        if getattr(report, "npu", False):
            path, line, _ = report.location
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash else str(report.longrepr)
            line = crash.lineno if crash and crash.path.endswith(path) else (line or 0) + 1
            terminalreporter.write_line(f"::error file={path},line={line}::{_escaped(message)}")


def _escaped(message: str) -> str:
    return message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
