"""The findings of the driver sanitizer: one row for each kind of mistake, and the record of one mistake.

``docs/reference/driver-check.md`` has these rows as a table; ``python -m npusim.device.findings`` prints it.
"""

from __future__ import annotations

from typing import NamedTuple


class FindingKind(NamedTuple):
    """A kind of driver mistake: its meaning and its remedy."""

    meaning: str
    fix: str


KINDS = {
    "no-doorbell": FindingKind(
        "TAIL was written but not its DOORBELL, and the driver waits: the device latches TAIL at the doorbell only",
        "write 1 to the DOORBELL of the same ring, after TAIL",
    ),
    "doorbell-without-tail": FindingKind(
        "a doorbell without new entries: TAIL is unchanged since the previous one",
        "write TAIL first, then DOORBELL",
    ),
    "entry-late": FindingKind(
        "at the doorbell the ring entry is not written yet, or belongs to an earlier job",
        "write the whole entry, then TAIL, then DOORBELL; on a host that reorders writes, use barriers",
    ),
    "changed-in-flight": FindingKind(
        "the driver writes memory that the device owns: entry, table, code, constants, inputs, outputs, scratch or "
        "record of a job that may not have ended, or the context area",
        "write before the doorbell, or after the completion record was seen; use a second buffer for the next input",
    ),
    "output-early": FindingKind(
        "the driver reads an output of a job that may not have ended",
        "read the completion record first; while its status is 0, outputs are not valid",
    ),
    "shared-in-flight": FindingKind(
        "two jobs in flight use the same bytes, one of them writes, and nothing orders the two: they are in "
        "different rings, or it is the completion record; or a job overlaps a ring or the context area",
        "give each job its own outputs, scratch, record and fault log; jobs of one ring may share the first two",
    ),
    "freed-in-flight": FindingKind(
        "memory is freed while the device uses it: by a job in flight, a ring, the context area",
        "free it after reading the completion record; free rings and context area after a reset",
    ),
    "used-after-free": FindingKind(
        "the driver, or a job, uses memory that the driver has freed and not allocated again",
        "allocate memory before use; look for a second owner of the address",
    ),
    "record-not-cleared": FindingKind(
        "at the doorbell the status in the completion record is not 0, so the job seems to have ended",
        "write a record with status 0 before each doorbell",
    ),
    "seqno-reused": FindingKind(
        "two jobs in flight have the same seqno: records and ABORT are ambiguous",
        "use one increasing counter for all rings",
    ),
    "ring-overrun": FindingKind(
        "TAIL is more than SIZE entries ahead of HEAD: the oldest are overwritten, and the device reports RING",
        "do not let TAIL - HEAD exceed SIZE",
    ),
    "tail-back": FindingKind(
        "TAIL was decreased: the device may have taken the removed entries already",
        "only increase TAIL, and set the flag CANCELLED in the entry of a job to be cancelled",
    ),
    "ring-changed": FindingKind(
        "BASE or SIZE of a ring is changed while jobs are in it",
        "set up rings after a reset, before the first job",
    ),
    "ring-not-set-up": FindingKind(
        "a doorbell for a ring whose SIZE is 0 or not a power of two, or the first doorbell without a RESET before",
        "RESET, then BASE and SIZE, then jobs; repeat this after each RESET",
    ),
    "interrupt-unacknowledged": FindingKind(
        "interrupts are taken but INT_STATUS is not cleared: a level-triggered interrupt would never end",
        "write the bits to INT_STATUS first, then read the completion records",
    ),
    "wait-masked": FindingKind(
        "the driver waits for an interrupt, but INT_MASK is 0",
        "write INT_MASK after each RESET, which clears it, and before waiting",
    ),
    "uninitialised": FindingKind(
        "a job reads bytes that neither the driver nor a job has ever written",
        "write the whole table, code, constants and inputs before the doorbell; check offsets and sizes",
    ),
    "preempt-without-context": FindingKind(
        "PREEMPT is enabled without a context area: CONTEXT_BASE is 0 or leaves too little room",
        "allocate CAP_CONTEXT bytes, write CONTEXT_BASE_LO and _HI, then PREEMPT",
    ),
    "reset-in-flight": FindingKind(
        "RESET with jobs in flight whose records were not read just before: these may have ended",
        "read the records once more, then reset, then fail the jobs that had not ended",
    ),
    "stale-residents": FindingKind(
        "the constants were written again, but a job has the old number: the weights pinned in SRAM are stale",
        "use another number in the field residents of the ring entry whenever region 0 is written",
    ),
    "register-misuse": FindingKind(
        "an access without effect: a reserved bit, a read-only register, a wrong width, an address outside of memory",
        "see the table of registers; NpuDevice.misuse has the list",
    ),
    "fault-ignored": FindingKind(
        "the device was halted by a fault until it was powered off",
        "on bit FAULT of STATUS write CONTINUE, or RESET, to CONTROL",
    ),
    "never-looked-at": FindingKind(
        "a job has ended, but its completion record was never read",
        "read the records of all jobs in flight at each interrupt: one message may serve several",
    ),
    "left-in-flight": FindingKind(
        "the device was powered off with a job in flight",
        "wait for the jobs or RESET before the end, then free their memory",
    ),
    "leaked": FindingKind(
        "memory was allocated but not freed when the driver was done",
        "free memory on every path, including errors",
    ),
}


class ConflictSide(NamedTuple):
    """One of two conflicting actions, and its time."""

    time_ps: int
    what: str

    def __str__(self) -> str:
        return f"{self.what} at {self.time_ps} ps"


class Finding(NamedTuple):
    """A mistake of the driver. ``kind``: a key of KINDS. ``seqno``: of the job concerned, if there is one. ``first``:
    the earlier action that makes ``second`` a mistake."""

    kind: str
    time_ps: int
    seqno: int | None
    first: ConflictSide | None
    second: ConflictSide
    text: str

    def __str__(self) -> str:
        job = "" if self.seqno is None else f", seqno {self.seqno}"
        before = "" if self.first is None else f"; before it: {self.first}"
        fix = KINDS[self.kind].fix
        return f"{self.kind} at {self.time_ps} ps{job}: {self.text}\n  {self.second}{before}\n  fix: {fix}"

    def to_json_dict(self) -> dict[str, object]:
        """As JSON values."""
        sides = {"first": self.first, "second": self.second}
        named = {side: None if access is None else access._asdict() for side, access in sides.items()}
        return {"kind": self.kind, "time_ps": self.time_ps, "seqno": self.seqno, **named, "text": self.text}


def table() -> str:
    """The table of kinds for the manual."""
    rows = [f"| `{name}` | {kind.meaning} | {kind.fix} |" for name, kind in KINDS.items()]
    return "\n".join(["| kind | what it means | how to fix it |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())  # noqa: T201
