"""Mistakes that are planted into the kernel module are found: by the driver sanitizer, or by the kernel's lockdep."""

from __future__ import annotations

import pytest

from npusim.device.findings import KINDS
from tests.support.kernel_module import Workshop, cases

pytestmark = pytest.mark.slow

_DOORBELL = "	npu_write(npu, RING(job->priority, DOORBELL), NPU_LOW_DOORBELL_RING);\n"
_TAIL = "	npu_write(npu, RING(job->priority, TAIL), ring->tail);\n"
_ENTRY = "	err = npu_copy_to(npu, job->entry, &entry, sizeof(entry));\n"
_BEFORE_STATUS = "	if (status != NPU_JOB_DONE && status != NPU_JOB_FAULT"
_COLLECT_THEN_RESET = "	npu_collect(npu);\n	dev_warn("

PLANTS: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "no-doorbell": ("a doorbell is not rung", [("npu_ring.c", _DOORBELL, "")]),
    "doorbell-without-tail": ("doorbell and TAIL in the wrong order", [("npu_ring.c", _TAIL, ""), ("npu_ring.c", _DOORBELL, _DOORBELL + _TAIL)]),
    "entry-late": (
        "the entry is written behind the doorbell",
        [("npu_ring.c", _ENTRY, "	err = 0;\n"), ("npu_ring.c", _DOORBELL, _DOORBELL + _ENTRY)],
    ),
    "changed-in-flight": (
        "the region table is written once more",
        [("npu_ring.c", "		err = enter_ring(npu, job, client, args);\n", "		err = enter_ring(npu, job, client, args) ?: npu_zero(npu, work->address, 64);\n")],
    ),
    "output-early": (
        "the text of a fault is read before the record",
        [("npu_ring.c", _BEFORE_STATUS, "	npu_copy_from(npu, job->text, job->text_at, 8);\n" + _BEFORE_STATUS)],
    ),
    "shared-in-flight": (
        "all jobs have one record",
        [("npu_ring.c", "	job->record = work->address + table;\n", "	job->record = npu->context->address;\n")],
    ),
    "record-not-cleared": (
        "memory for records is not cleared",
        [("npu_mem.c", "	err = npu_zero(npu, block->address, block->bytes);\n", "	err = owner ? npu_zero(npu, block->address, block->bytes) : 0;\n")],
    ),
    "fence-reused": ("all jobs have one number", [("npu_ring.c", "		job->fence = npu->fence + 1;\n", "		job->fence = 1;\n")]),
    "interrupt-unacknowledged": (
        "INT_STATUS is not cleared",
        [("npu_hw.c", "	npu_write(npu, NPU_INT_STATUS, status);\n", "")],
    ),
    "wait-masked": (
        "the mask stays closed",
        [("npu_hw.c", "	npu_write(npu, NPU_INT_MASK, NPU_INT_MASK_DONE | NPU_INT_MASK_FAULT);\n", "")],
    ),
    "ring-not-set-up": ("rings have no size", [("npu_hw.c", "		npu_write(npu, RING(i, SIZE), npu->ring_entries);\n", "")]),
    "ring-overrun": (
        "there is always room in a ring",
        [("npu_ring.c", "npu->rings[priority].count < npu->ring_entries ? 0 : -EAGAIN", "npu->rings[priority].count < 2 * npu->ring_entries ? 0 : -EAGAIN")],
    ),
    "ring-changed": ("a ring is set up for each job", [("npu_ring.c", _TAIL, "	npu_write(npu, RING(job->priority, SIZE), npu->ring_entries);\n" + _TAIL)]),
    "preempt-without-context": (
        "the context area is not told",
        [("npu_hw.c", "		npu_write_pair(npu, NPU_CONTEXT_BASE_LO, npu->context->address);\n", "")],
    ),
    "fault-ignored": ("no CONTINUE after a fault", [("npu_ring.c", "		npu_write(npu, NPU_CONTROL, NPU_CONTROL_CONTINUE);\n", "")]),
    "reset-in-flight": ("a reset without a last look", [("npu_recover.c", _COLLECT_THEN_RESET, "	dev_warn(")]),
    "register-misuse": ("reserved bits of the mask", [("npu_hw.c", "NPU_INT_MASK_DONE | NPU_INT_MASK_FAULT);", "0xff);")]),
    "stale-residents": (
        "all clients' weights have one number",
        [("npu_ring.c", "	return number ? client->resident_base | number : 0;", "	return number;")],
    ),
    "left-in-flight": (
        "the driver leaves with jobs in the device",
        [("npu_main.c", "	npu_collect(npu);\n	npu_quiet(npu);\n	npu_jobs_lose(npu, NPU_ENDED_GONE", "	npu_jobs_lose(npu, NPU_ENDED_GONE")],
    ),
}  # fmt: skip
"""By the kind that the sanitizer must find: what was planted, and how."""

LOCKS = [
    (
        "npu_file.c",
        "		if (copy_to_user(user, args, sizeof(*args)))\n			err = -EFAULT;\n",
        "		mutex_lock(&npu->lock);\n		if (copy_to_user(user, args, sizeof(*args)))\n			err = -EFAULT;\n"
        "		mutex_unlock(&npu->lock);\n",
    )
]
"""User memory is touched with the driver's lock held, which the fault handler of a mapping takes, too."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("plants"))


def test_they_are_of_the_sanitizers_kinds() -> None:
    assert set(PLANTS) <= set(KINDS)
    assert len(PLANTS) >= 16


@pytest.mark.parametrize("kind", sorted(PLANTS))
def test_the_sanitizer_finds_it(shop: Workshop, kind: str) -> None:
    _, changes = PLANTS[kind]
    done = shop.run(shop.module(kind, changes), cases("all"), parameters={"timeout_ms": 100})
    assert kind in done.findings, done.log[-2000:]


def test_lockdep_finds_an_inversion(shop: Workshop) -> None:
    done = shop.run(shop.module("locks", LOCKS), cases("good"))
    assert any("possible circular locking dependency" in line for line in done.complaints), done.log[-2000:]
