"""``--npu-cov``: coverage of the hardware over a run of pytest, including runs that xdist distributes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npusim.testing.coverage import Collector, Measured
from npusim.testing.coverage.measure import added, flat
from npusim.testing.coverage.page import coverage_page

NAME = "npusim-coverage"
_SENT = "npusim_coverage"


class Cover:
    """Collects coverage in this process, adds that of xdist workers, and reports at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._collector = Collector()
        self._collector.start()
        self._parts: list[list[list[Any]]] = []
        self._measured: Measured | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take the coverage of an xdist worker that has ended. A worker that crashed has sent none."""
        self._parts.append(getattr(node, "workeroutput", {}).get(_SENT, []))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the coverage files, or send the counts to the controlling process of xdist."""
        self._collector.stop()
        own = flat(self._collector.counts)
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_SENT] = own
            return
        self._measured = added([own, *self._parts])
        self._write("npu_cov_html", coverage_page)
        self._write("npu_cov_json", lambda measured: json.dumps(measured.to_json_dict(), indent=1) + "\n")
        if self._too_little and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write(self, option: str, render: Callable[[Measured], str]) -> None:
        path = self._config.getoption(option)
        if path and self._measured is not None:
            try:
                Path(path).write_text(render(self._measured), "utf-8")
            except OSError as error:
                flag = f"--{option.replace('_', '-')}"
                raise pytest.UsageError(f"{flag} {path}: cannot be written: {error.strerror}") from None

    @property
    def _too_little(self) -> bool:
        least = self._config.getoption("npu_cov_fail_under")
        return least is not None and self._measured is not None and self._measured.percent < least

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the coverage."""
        if self._measured is None:
            return
        terminalreporter.section("coverage of the hardware")
        for line in self._measured.to_text():
            terminalreporter.write_line(line)
        if self._too_little:
            least = self._config.getoption("npu_cov_fail_under")
            terminalreporter.write_line(f"{self._measured.percent:.1f} % is less than --npu-cov-fail-under {least:g}")
