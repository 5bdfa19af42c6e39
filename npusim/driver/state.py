"""Save and restore the state of a driver: device memory, loaded programs, jobs under way.

It belongs to a checkpoint of the device. In another process, programs are compiled or read again; the state only has
digests of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npusim.driver import header
from npusim.driver.alloc import whole
from npusim.driver.jobs import DriverJob, LoadedProgram, Priority, Slot, region_sizes
from npusim.errors import CheckpointError, shown
from npusim.program import CONSTANTS, Program

if TYPE_CHECKING:
    from npusim.driver.reference import Driver

_PLAIN = ("code", "constants", "number", "running", "resident")
_JOB = ("priority", "timing_only", "seqno", "flags", "entry", "ended")


def driver_state(driver: Driver, loaded: Sequence[LoadedProgram], jobs: Sequence[DriverJob]) -> dict[str, Any]:
    """The state of a driver, its loaded programs, and its jobs that were started and not finished."""
    for job in jobs:
        if job.error is not None or job.loaded not in loaded:
            raise CheckpointError(f"job {job.seqno} has failed, or its program is not among those that are loaded")
    return {
        **driver.state(jobs),
        "programs": [_program_state(each) for each in loaded],
        "jobs": [_job_state(job, loaded) for job in jobs],
    }


def resume_driver(
    driver: Driver, state: Mapping[str, Any], programs: Sequence[Program]
) -> tuple[list[LoadedProgram], list[DriverJob]]:
    """Restore a state into a new driver on a restored device. Returns its programs and jobs, in order.

    Raises CheckpointError for an invalid state, or if a program is missing.
    """
    known = {_digest(program): program for program in programs}
    try:
        for each in state["programs"]:
            if each["digest"] not in known:
                raise CheckpointError(f"program {each['name']!r} is in the checkpoint, but was not given")
        loaded = [_loaded(each, known[each["digest"]]) for each in state["programs"]]
        jobs = [_job(each, loaded) for each in state["jobs"]]
        slots = [slot for each in loaded for slot in each.idle] + [job.slot for job in jobs if job.slot is not None]
        own = [block for each in loaded for block in (each.code, each.constants)]
        driver.resume(state, loaded, jobs, [*own, *(block for slot in slots for block in slot.blocks())])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"invalid state of the driver: {type(error).__name__}: {error}") from None
    return loaded, jobs


def _digest(program: Program) -> str:
    return hashlib.sha256(program.code).hexdigest()


def _program_state(loaded: LoadedProgram) -> dict[str, Any]:
    plain = {name: getattr(loaded, name) for name in _PLAIN}
    named = {"digest": _digest(loaded.program), "name": loaded.program.name}
    return {**plain, **named, "sizes": list(loaded.sizes), "idle": [_slot_state(slot) for slot in loaded.idle]}


def _loaded(state: Mapping[str, Any], program: Program) -> LoadedProgram:
    sizes = tuple(map(whole, state["sizes"]))
    if sizes != region_sizes(program):
        raise ValueError(f"the regions of program {program.name!r} must have its sizes")
    if whole(state["number"]) > header.MOST_RESIDENTS:
        raise ValueError(f"a program's number must be at most {header.MOST_RESIDENTS}, got {state['number']}")
    made = LoadedProgram(program, whole(state["code"]), whole(state["constants"]), sizes, whole(state["number"]))
    made.idle = [_slot(each, sizes, {}) for each in state["idle"]]
    made.running, made.resident = whole(state["running"]), _flag(state["resident"])
    return made


def _slot_state(slot: Slot) -> dict[str, Any]:
    return {
        "blocks": [slot.table, slot.completion, slot.log],
        "own": list(slot.own.items()),
        "rows": slot.rows.hex(),
        "usual": list(slot.usual.items()),
    }


def _slot(state: Mapping[str, Any], sizes: Sequence[int], bound: Mapping[int, int]) -> Slot:
    table, completion, log = map(whole, state["blocks"])
    own, usual, rows = _pairs(state["own"]), _pairs(state["usual"]), bytes.fromhex(state["rows"])
    regions = range(CONSTANTS + 1, len(sizes))
    if not set(own) <= set(regions) or not set(regions) <= own.keys() | bound.keys():
        raise ValueError("a slot must have a block for each region that is not bound")
    if usual and sorted(usual) != list(range(len(sizes))):
        raise ValueError("the addresses of a slot must be those of all regions")
    return Slot(table, completion, log, own, rows, usual)


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"must be true or false, got {shown(value)}")
    return value


def _pairs(rows: Sequence[Sequence[int]]) -> dict[int, int]:
    found = {whole(region): whole(address) for region, address in rows}
    if len(found) != len(rows):
        raise ValueError("a region occurs twice")
    return found


def _job_state(job: DriverJob, loaded: Sequence[LoadedProgram]) -> dict[str, Any]:
    assert job.loaded is not None
    assert job.slot is not None
    plain = {name: getattr(job, name) for name in _JOB}
    rows = {"bound": list(job.bound.items()), "addresses": list(job.addresses.items())}
    return {**plain, **rows, "program": loaded.index(job.loaded), "slot": _slot_state(job.slot)}


def _job(state: Mapping[str, Any], loaded: Sequence[LoadedProgram]) -> DriverJob:
    program, bound = loaded[whole(state["program"])], _pairs(state["bound"])
    # Its inputs are on the device and not needed here.
    job = DriverJob(program.program, bound=bound, priority=Priority(whole(state["priority"])), timing_only=True)
    job.timing_only, job.ended = _flag(state["timing_only"]), _flag(state["ended"])
    job.seqno, job.flags, job.entry = (whole(state[name]) for name in ("seqno", "flags", "entry"))
    job.loaded, job.slot, job.addresses = (
        program,
        _slot(state["slot"], program.sizes, bound),
        _pairs(state["addresses"]),
    )
    if sorted(job.addresses) != list(range(len(program.sizes))):
        raise ValueError("the addresses of a job must be those of all regions")
    return job
