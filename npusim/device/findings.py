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
        "TAIL was moved, its doorbell not rung, and the driver waits: the device looks at TAIL at the doorbell only",
        "write 1 to the DOORBELL of the same ring, after TAIL",
    ),
    "doorbell-without-tail": FindingKind(
        "a doorbell that announces nothing: TAIL is where it was at the one before",
        "write TAIL first, then DOORBELL",
    ),
    "entry-late": FindingKind(
        "at the doorbell the ring entry is not there yet, or is that of an earlier job",
        "write the whole entry, then TAIL, then DOORBELL; on a host that reorders writes with a barrier between them",
    ),
    "changed-in-flight": FindingKind(
        "the driver writes what belongs to the device: the entry, table, code, constants, inputs, outputs, scratch or "
        "record of a job that it does not know to have ended, or the context area",
        "write before the doorbell, or after the completion record was seen; use a second buffer for the next input",
    ),
    "output-early": FindingKind(
        "the driver reads what a job writes without knowing that the job has ended; if it has, that was luck",
        "read the completion record first; a status of 0 means that nothing may be read yet",
    ),
    "shared-in-flight": FindingKind(
        "two jobs in flight use the same bytes, one of them writes, and nothing orders the two: they are in "
        "different rings, or it is the completion record; or a job lies over a ring or the context area",
        "give each job outputs, scratch, record and text of its own; jobs of one ring may share the first two",
    ),
    "freed-in-flight": FindingKind(
        "memory is freed that the device still uses: of a job in flight, a ring, the context area",
        "free when the completion record was seen, and rings and context area after a reset",
    ),
    "used-after-free": FindingKind(
        "the driver, or a job, uses memory that the driver has freed and not allocated again",
        "allocate before you use; look for a second owner of the address",
    ),
    "record-not-cleared": FindingKind(
        "at the doorbell the status in the completion record is not 0: the job would seem to have ended",
        "write a record with status 0 before each doorbell",
    ),
    "seqno-reused": FindingKind(
        "the seqno of a job in flight is given to another one: records and ABORT cannot tell them apart",
        "use one increasing counter for all rings",
    ),
    "ring-overrun": FindingKind(
        "more entries are announced than the ring has: the oldest are overwritten, the device stops with fault RING",
        "do not let TAIL - HEAD exceed SIZE",
    ),
    "tail-back": FindingKind(
        "TAIL was moved back: entries that were announced are no longer, and the device may have taken them already",
        "only count TAIL up, and set the flag CANCELLED in the entry of a job that is not to run",
    ),
    "ring-changed": FindingKind(
        "BASE or SIZE of a ring is changed while jobs are in it",
        "set rings up after a reset, before the first job",
    ),
    "ring-not-set-up": FindingKind(
        "a doorbell for a ring whose SIZE is 0 or no power of two, or the first one without a RESET before",
        "RESET, then BASE and SIZE, then jobs; after each later RESET again",
    ),
    "interrupt-unacknowledged": FindingKind(
        "interrupts are taken and INT_STATUS is never cleared: with a level-triggered line the host would hang in it",
        "write the bits to INT_STATUS first, then look at the completion records",
    ),
    "wait-masked": FindingKind(
        "the driver waits for an interrupt, and INT_MASK lets none through",
        "open INT_MASK after each RESET, which closes it, and before you wait",
    ),
    "uninitialised": FindingKind(
        "a job reads bytes that neither the driver nor a job has ever written",
        "write the whole table, code, constants and inputs before the doorbell; check offsets and sizes",
    ),
    "preempt-without-context": FindingKind(
        "PREEMPT is enabled without memory to park jobs in: CONTEXT_BASE is 0 or leaves too little room",
        "allocate CAP_CONTEXT bytes, write CONTEXT_BASE_LO and _HI, then PREEMPT",
    ),
    "reset-in-flight": FindingKind(
        "RESET with jobs in flight, no look at their records just before, and the driver goes on: they may be done",
        "look at the records once more, then reset, then fail the jobs that had not ended",
    ),
    "stale-residents": FindingKind(
        "the constants were written again, and a job comes with the number of before: what is in SRAM is stale",
        "another number in the ring entry's field residents whenever region 0 is written",
    ),
    "register-misuse": FindingKind(
        "an access that has no effect: a reserved bit, a read-only register, a wrong width, memory that is not there",
        "see the table of registers; NpuDevice.misuse has the list",
    ),
    "fault-ignored": FindingKind(
        "the device has stopped with a fault, and stood still until it was switched off",
        "on bit FAULT of STATUS write CONTINUE, or RESET, to CONTROL",
    ),
    "never-looked-at": FindingKind(
        "a job has ended, and nobody has ever looked at its completion record",
        "look at the records of all jobs in flight at each interrupt: one message may be for several",
    ),
    "left-in-flight": FindingKind(
        "the device was switched off with a job in flight",
        "at the end wait for the jobs or RESET, then free their memory",
    ),
    "leaked": FindingKind(
        "memory that was allocated and not freed when the driver was done",
        "free on every way out, that of errors too",
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
