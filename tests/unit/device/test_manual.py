"""docs/device.md holds the register map and the fault codes as they are declared."""

from __future__ import annotations

from pathlib import Path

from npusim.device.manual import register_table
from npusim.device.ring import ENTRY_MAGIC, MAX_REGIONS
from npusim.sim.machine import COURSES_KEPT
from npusim.sim.sequencer import FETCH_BYTES
from npusim.timeline import FaultCode

MANUAL = (Path(__file__).parents[3] / "docs" / "device.md").read_text()


def test_the_register_table_is_up_to_date() -> None:
    table = MANUAL.split("<!-- registers -->\n")[1].split("<!-- end -->")[0]
    assert table == register_table(), "paste the output of python -m npusim.device.manual"


def test_every_fault_code_is_explained() -> None:
    for code in FaultCode:
        assert (f"| {code.value} | {code.name} |" in MANUAL) == (code is not FaultCode.NONE)


def test_numbers_in_the_text() -> None:
    assert f"magic {ENTRY_MAGIC:#x}".replace("0x4a4f", "0x4A4F") in MANUAL
    assert f"regions, at most {MAX_REGIONS}" in MANUAL
    assert f"two halves of {FETCH_BYTES // 1024} KiB" in MANUAL
    assert f"the last {COURSES_KEPT} programs" in MANUAL
