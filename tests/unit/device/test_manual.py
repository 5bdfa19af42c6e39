"""docs/device.md, the C header and the JSON file contain the device's declared interface."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from npusim.device.manual import description, header, register_table
from npusim.device.registers import REGISTERS
from npusim.device.ring import COMPLETION, ENTRY, ENTRY_MAGIC, MAX_REGIONS, REGION_ROW, JobStatus
from npusim.hw.units.dma import FETCH_BYTES
from npusim.sim.machine import COURSES_KEPT
from npusim.timeline import FaultCode
from tests.support.c_compiler import WARNINGS, gcc, needs_gcc

ROOT = Path(__file__).parents[3]
MANUAL = (ROOT / "docs" / "device.md").read_text()


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


@pytest.mark.parametrize(
    ("option", "made", "file"),
    [("--header", header, "drivers/include/npusim.h"), ("--json", description, "docs/reference/device.json")],
)
def test_files_are_up_to_date(option, made, file) -> None:
    assert (ROOT / file).read_text() == made(), f"write the output of python -m npusim.device.manual {option}"


def test_no_name_of_the_header_is_defined_twice() -> None:
    names = re.findall(r"#define (NPU_\w+)", header())
    twice = {name for name in names if names.count(name) > 1} - {"NPU_U16", "NPU_U32", "NPU_U64"}
    assert not twice


@needs_gcc
@pytest.mark.parametrize("language", ["c", "c++"])
def test_a_compiler_lays_records_out_as_the_device_does(tmp_path: Path, language: str) -> None:
    """Every offset, size, register and value as computed by the compiler."""
    found = json.loads(description())
    checks = [
        f'_Static_assert(offsetof(struct npu_{record["name"]}, {member["name"]}) == {member["offset"]}, "");'
        for record in found["records"]
        for member in record["members"]
    ]
    checks += [
        f'_Static_assert(sizeof(struct npu_{name}) == {layout.size}, "");'
        for name, layout in (("ring_entry", ENTRY), ("region_row", REGION_ROW), ("completion", COMPLETION))
    ]
    checks += [f'_Static_assert(NPU_{each.name} == {each.offset}, "");' for each in REGISTERS]
    checks += [f'_Static_assert(NPU_JOB_{each.name} == {int(each)}, "");' for each in JobStatus]
    source = tmp_path / f"client.{'c' if language == 'c' else 'cc'}"
    text = "#include <stddef.h>\n#include <npusim.h>\n" + "\n".join(checks) + "\n"
    source.write_text(text if language == "c" else text.replace("_Static_assert", "static_assert"))
    gcc("-x", language, *WARNINGS, "-I", ROOT / "drivers/include", "-c", source, "-o", tmp_path / "client.o")


def test_a_wrong_option_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "npusim.device.manual", "--pdf"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "usage: python -m npusim.device.manual [--header | --json]\n"
