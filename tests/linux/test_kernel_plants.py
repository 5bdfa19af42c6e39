"""Planted errors in the kernel module are found by the driver sanitizer or by the kernel's lockdep."""

from __future__ import annotations

import pytest

from npusim.device.findings import KINDS
from tests.support.kernel_module import Workshop, cases

pytestmark = pytest.mark.slow

_DOORBELL = "	npu_write(npu, RING(job->priority, DOORBELL), NPU_LOW_DOORBELL_RING);\n"
_TAIL = "	npu_write(npu, RING(job->priority, TAIL), ring->tail);\n"
_SIZE = "	npu_write(npu, RING(job->priority, SIZE), npu->ring_entries);\n"
_SIZES = "		npu_write(npu, RING(i, SIZE), npu->ring_entries);\n"
_ENTRY = "	err = npu_copy_to(npu, job->entry, &entry, sizeof(entry));\n"
_STATUS = "	if (status != NPU_JOB_DONE && status != NPU_JOB_FAULT"
_CLEAR = "err = npu_zero(npu, block->address, block->bytes);"
_SUBMIT = "err = enter_ring(npu, job, client, args);"
_EARLY = "	npu_copy_from(npu, job->text, job->blocks[job->block_count - 1]->address, 8);\n"

_Plant = tuple[str, str, str]

PLANTS: dict[str, list[_Plant]] = {
    # A doorbell is not rung.
    "no-doorbell": [("npu_ring.c", _DOORBELL, "")],
    # Doorbell and TAIL in the wrong order.
    "doorbell-without-tail": [("npu_ring.c", _TAIL, ""), ("npu_ring.c", _DOORBELL, _DOORBELL + _TAIL)],
    # The entry is written after the doorbell.
    "entry-late": [("npu_ring.c", _ENTRY, "	err = 0;\n"), ("npu_ring.c", _DOORBELL, _DOORBELL + _ENTRY)],
    # The region table is written once more.
    "changed-in-flight": [
        ("npu_ring.c", _SUBMIT, "err = enter_ring(npu, job, client, args) ?: npu_zero(npu, work->address, 64);"),
    ],
    # An output is read before the record.
    "output-early": [("npu_ring.c", _STATUS, _EARLY + _STATUS)],
    # All jobs have one record.
    "shared-in-flight": [
        ("npu_ring.c", "job->record = work->address + table;", "job->record = npu->context->address;")
    ],
    # Memory for records is not cleared.
    "record-not-cleared": [("npu_mem.c", _CLEAR, f"err = 0;\n	if (owner)\n		{_CLEAR}")],
    # All jobs have one number.
    "seqno-reused": [("npu_ring.c", "job->seqno = npu->seqno + 1;", "job->seqno = 1;")],
    "interrupt-unacknowledged": [("npu_hw.c", "	npu_write(npu, NPU_INT_STATUS, status);\n", "")],
    "wait-masked": [("npu_hw.c", "NPU_INT_MASK_DONE | NPU_INT_MASK_FAULT);", "0);")],
    # Only one ring has a size.
    "ring-not-set-up": [("npu_hw.c", _SIZES, f"		if (!i)\n	{_SIZES}")],
    "ring-overrun": [("npu_ring.c", "count < npu->ring_entries ?", "count < 2 * npu->ring_entries ?")],
    # A ring is set up again for each job.
    "ring-changed": [("npu_ring.c", _TAIL, _SIZE + _TAIL)],
    "preempt-without-context": [
        ("npu_hw.c", "		npu_write_pair(npu, NPU_CONTEXT_BASE_LO, npu->context->address);\n", ""),
    ],
    # A reset without a last look.
    "reset-in-flight": [("npu_recover.c", "	npu_collect(npu);\n	npu->suspicious", "	npu->suspicious")],
    # Reserved bits of the mask.
    "register-misuse": [("npu_hw.c", "NPU_INT_MASK_DONE | NPU_INT_MASK_FAULT);", "0xff);")],
}
"""By the kind that the sanitizer must find: file, text that occurs once, its replacement."""

_COPY = "		if (copy_to_user(user, args, sizeof(*args)))\n			err = -EFAULT;\n"
LOCKS = [("npu_file.c", _COPY, f"		mutex_lock(&npu->lock);\n{_COPY}		mutex_unlock(&npu->lock);\n")]
"""User memory is accessed with the driver's lock held; the fault handler of a mapping takes the same lock."""


def test_they_are_of_the_sanitizers_kinds() -> None:
    assert set(PLANTS) <= set(KINDS)
    assert len(PLANTS) >= 16


@pytest.mark.parametrize("kind", sorted(PLANTS))
def test_the_sanitizer_finds_it(shop: Workshop, kind: str) -> None:
    done = shop.run(shop.module(kind, PLANTS[kind]), cases("all"), parameters={"timeout_ms": 100})
    assert kind in done.findings, done.log[-2000:]


def test_lockdep_finds_an_inversion(shop: Workshop) -> None:
    done = shop.run(shop.module("locks", LOCKS), cases("good"))
    assert any("possible circular locking dependency" in line for line in done.complaints), done.log[-2000:]
