"""The kernel module passes the suite of ``npusim driver-test``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernel_module import Workshop, device_config
from tests.support.kernel_subject import KernelSubject, report_of


@pytest.mark.slow
def test_it_keeps_the_promises_of_drivers(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    if "CONFIG_HOSTFS=y" not in (shop.kernel.parent / "build" / ".config").read_text().splitlines():
        pytest.skip("the kernel shares no folder with its host: make uml builds one that does")
    subject = KernelSubject(shop.kernel, shop.module(), shop.program)
    report = report_of(subject, device_config(), seeds=5)
    assert report.failed == [], report.text()
