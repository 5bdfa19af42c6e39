"""Planted errors in the C driver are found by the driver sanitizer over vfio-user."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from npusim.conformance import run
from npusim.conformance.subject import ProgramSubject
from npusim.hw.config import load_config
from tests.support.c_compiler import gcc, needs_gcc

pytestmark = [needs_gcc, pytest.mark.slow]

SOURCES = Path(__file__).parents[3] / "drivers" / "c"
FLAGS = ["-std=c11", "-O1", f"-I{SOURCES}", f"-I{SOURCES.parent / 'include'}"]
DOORBELL = "	write_register(npu, NPU_LOW_DOORBELL + ring * RING_STRIDE, NPU_LOW_DOORBELL_RING);\n"
TAIL = "	write_register(npu, NPU_LOW_TAIL + ring * RING_STRIDE, npu->tail[ring]);\n"
RECORD = "	memcpy(npu->memory + job->block, &record, sizeof(record));\n"
ENTRY = "	memcpy(npu->memory + job->entry, &entry, sizeof(entry));\n"
MASK = "	write_register(npu, NPU_INT_MASK, ALL_INTERRUPTS);\n"
ACKNOWLEDGE = (
    "		write_register(npu, NPU_INT_STATUS, ALL_INTERRUPTS); "
    "/* before the records: what comes now is seen again */\n"
)


class Plant(NamedTuple):
    kind: str
    old: str
    new: str
    case: str = "a-full-ring"
    says: str = ""


PLANTS = {
    "no doorbell": Plant("no-doorbell", DOORBELL, "", "computes"),
    "doorbell before TAIL": Plant("doorbell-without-tail", TAIL + DOORBELL, DOORBELL + TAIL, "computes"),
    "doorbell before the entry": Plant(
        "entry-late", ENTRY,
        "	memset(npu->memory + job->entry, 0, sizeof(entry));\n", "computes", "begins with 00000000"
    ),
    "input written late": Plant(
        "changed-in-flight", DOORBELL, DOORBELL + "	npu->memory[job->address[2]] ^= 1;\n", says="input, region 2"
    ),
    "code written late": Plant(
        "changed-in-flight", DOORBELL, DOORBELL + "	npu->memory[job->program->code + 20] ^= 1;\n", says="code"
    ),
    "table written late": Plant(
        "changed-in-flight", DOORBELL,
        DOORBELL + "	npu->memory[job->block + ALIGNMENT + LOG_BYTES + 8] ^= 1;\n", says="region table",
    ),
    "entry written late": Plant(
        "changed-in-flight", DOORBELL, DOORBELL + "	npu->memory[job->entry + 60] ^= 1;\n", says="ring entry"
    ),
    "one record for all": Plant("shared-in-flight", ".completion = job->block,", ".completion = npu->bytes - 64,"),
    "one text for all": Plant("shared-in-flight", ".log = job->block + ALIGNMENT,", ".log = npu->bytes - 4096,"),
    "an output over a ring": Plant(
        "shared-in-flight", ".completion = job->block,", ".completion = npu->ring[0] + 64,", says="ring LOW"
    ),
    "the record is not cleared": Plant("record-not-cleared", ".status = NPU_JOB_PENDING", ".status = NPU_JOB_DONE"),
    "one seqno for all": Plant("seqno-reused", "job->seqno = ++npu->seqno;", "job->seqno = npu->seqno + 1;"),
    "always room in a ring": Plant("ring-overrun", "if (inside == ENTRIES)", "if (inside == 4 * ENTRIES)"),
    "a ring is set up again": Plant(
        "ring-changed", TAIL, "	write_register(npu, NPU_LOW_SIZE + ring * RING_STRIDE, ENTRIES);\n" + TAIL
    ),
    "rings without a size": Plant(
        "ring-not-set-up", "		write_register(npu, NPU_LOW_SIZE + ring * RING_STRIDE, ENTRIES);\n", "", "computes"
    ),
    "interrupts are not acknowledged": Plant("interrupt-unacknowledged", ACKNOWLEDGE, "			;\n", "computes-again"),
    "reserved bits": Plant("register-misuse", MASK, "	write_register(npu, NPU_INT_MASK, 0xff);\n", "computes"),
    "PREEMPT without a context": Plant(
        "preempt-without-context", MASK, MASK + "	write_register(npu, NPU_PREEMPT, 1);\n", "computes"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, made = tmp_path_factory.mktemp("objects"), []
    for name in ("vfio", "image", "driver_test"):
        made.append(str(folder / f"{name}.o"))
        gcc(*FLAGS, "-c", str(SOURCES / f"{name}.c"), "-o", made[-1])
    return made


def built(folder: Path, objects: list[str], *changes: tuple[str, str]) -> Path:
    text = (SOURCES / "npu.c").read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "npu.c").write_text(text)
    gcc(*FLAGS, str(folder / "npu.c"), *objects, "-o", str(folder / "driver"))
    return folder / "driver"


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_found(name: str, objects: list[str], tmp_path: Path) -> None:
    plant = PLANTS[name]
    driver = built(tmp_path, objects, (plant.old, plant.new))
    report = run(
        ProgramSubject(str(driver), 30), load_config("tiny"), name=name, endpoint="vfio-user", cases=[plant.case]
    )
    found = [(each["kind"], each["text"]) for outcome in report.outcomes for each in outcome.findings]
    assert [text for kind, text in found if kind == plant.kind and plant.says in str(text)], (found, report.text())
    assert report.failed


def test_the_driver_itself_keeps_every_promise(objects: list[str], tmp_path: Path) -> None:
    subject = ProgramSubject(str(built(tmp_path, objects)), 60)
    report = run(subject, load_config("tiny"), name="drivers/c", endpoint="vfio-user", seeds=20)
    assert [(outcome.name, outcome.text) for outcome in report.outcomes if outcome.state != "passed"] == []
