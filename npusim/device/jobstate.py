"""Save and restore the jobs that the device has taken, and their programs."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from npusim.device.job import DeviceJob, JobStage
from npusim.device.registers import RINGS
from npusim.device.ring import ENTRY, MAX_REGIONS, RingEntry
from npusim.errors import CheckpointError
from npusim.sim.fast_forward import FastForward
from npusim.sim.jobstate import (
    fault_of,
    fault_state,
    replayer_state,
    restored_replayer,
    restored_stepper,
    stepper_state,
)
from npusim.sim.machine import DecodedProgram, Ending, Machine, Player, Residents
from npusim.sim.memory import AddressError
from npusim.sim.owner import Owners
from npusim.sim.saved import LONGEST_PS, Saved
from npusim.sim.stepper import Stepper
from npusim.sim.steps import InvalidProgramError

ADDRESS = (1 << 64) - 1
_PLAIN = ("code", "code_bytes", "context", "residents", "started_ps", "tail_ps")
_FLAGS = ("aborted", "arithmetic", "held")


def owner_name(ring: int) -> str:
    """Name of the owner of events of the job of a ring."""
    return f"job {RINGS[ring]}"


class SavedPrograms:
    """The programs of jobs under way, without duplicates. A program that still lies in DRAM is not stored again."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._numbers: dict[tuple[bytes, tuple[int, ...]], int] = {}
        self.state: list[dict[str, Any]] = []

    def number(self, program: DecodedProgram, address: int) -> int:
        """The number of a program that was read from ``address``."""
        key = program.code, program.sizes
        if key not in self._numbers:
            self._numbers[key] = len(self.state)
            try:
                there = self._machine.memory.slice(address, len(program.code)).tobytes() == program.code
            except AddressError:  # a forged checkpoint may name any address for a program that it stores
                there = False
            text = None if there else base64.b64encode(program.code).decode()
            self.state.append(
                {"address": address, "bytes": len(program.code), "code": text, "sizes": list(program.sizes)}
            )
        return self._numbers[key]

    @staticmethod
    def restored(machine: Machine, saved: Saved) -> list[DecodedProgram]:
        """Restore the programs, after DRAM was restored. Raises CheckpointError."""
        return [_decoded(machine, item) for item in saved]


def _decoded(machine: Machine, saved: Saved) -> DecodedProgram:
    sizes = tuple(size.integer(0, ADDRESS) for size in saved["sizes"])
    if len(sizes) > MAX_REGIONS:
        raise saved["sizes"].refuse(f"a list of at most {MAX_REGIONS}")
    try:
        if saved["code"].missing:
            size = saved["bytes"].integer(0, ADDRESS)
            code = machine.memory.slice(saved["address"].integer(0, ADDRESS), size).tobytes()
        else:
            code = base64.b64decode(saved["code"].text(), validate=True)
        return machine.decoded(code, sizes)
    except (AddressError, InvalidProgramError) as error:
        raise CheckpointError(f"{saved.path}: {error.explanation}") from None
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(f"{saved.path}.code: {error}") from None


def residents_state(residents: Residents | None, programs: SavedPrograms, address: int) -> list[Any] | None:
    """The pinned weights in SRAM. ``address``: the address of the code of a job with that program."""
    if residents is None:
        return None
    number = programs.number(residents.program, address)
    return [number, list(residents.constants), residents.number, residents.computed]


def residents_of(saved: Saved, programs: list[DecodedProgram]) -> Residents | None:
    """Inverse of :func:`residents_state`."""
    if saved.missing:
        return None
    program, constants, number, computed = saved.items(4)
    address, size = constants.integers(2, 0, ADDRESS)
    found = programs[program.index(len(programs))]
    return Residents(found, (address, size), number.integer(0, 0xFFFF_FFFF), computed.flag())


def job_state(job: DeviceJob, programs: SavedPrograms, owners: Owners, record_ps: int) -> dict[str, Any]:
    """The state of a job. ``record_ps``: when its record will be written, if it has ended."""
    state: dict[str, Any] = {name: getattr(job, name) for name in (*_PLAIN, *_FLAGS)}
    state |= {"ring": job.ring, "stage": job.stage.name, "regions": [list(row) for row in job.regions]}
    state["entry"] = None if job.entry is None else list(job.entry)
    state["fault"] = fault_state(job.fault)
    state["player"] = None if job.player is None else _player_state(job.player, programs, owners, record_ps)
    return state


def _player_state(player: Player, programs: SavedPrograms, owners: Owners, record_ps: int) -> dict[str, Any]:
    ending = player.done
    assert isinstance(ending, Ending)
    state = {
        "program": programs.number(ending.program, player.job.code),
        "left": residents_state(ending.left, programs, player.job.code),
    }
    if isinstance(player, Stepper):
        return {"kind": "steps", **state, **stepper_state(player, owners)}
    if isinstance(player, FastForward):
        assert player.over  # otherwise it is executed event by event now
        timeline = player.timeline(record_ps, player.machine.config.clock_hz)
    else:
        assert player.course.timeline is not None
        timeline = player.course.timeline
    return {"kind": "replay", **state, **replayer_state(timeline, over=player.over)}


class Told(NamedTuple):
    """Callbacks of the player of a job: the job has ended, or has stopped."""

    played: Callable[[Player], None]
    stopped: Callable[[Stepper], None]


def job_of_state(machine: Machine, saved: Saved, programs: list[DecodedProgram], told: Told) -> DeviceJob:
    """Inverse of :func:`job_state`, except for banks and context, which are restored later. Raises CheckpointError."""
    job = DeviceJob(ring=saved["ring"].index(len(RINGS)))
    for name in _PLAIN:
        setattr(job, name, saved[name].integer(0, ADDRESS))
    saved["started_ps"].integer(0, machine.clock.now)
    saved["tail_ps"].integer(0, LONGEST_PS)
    for name in _FLAGS:
        setattr(job, name, saved[name].flag())
    job.regions = tuple((row.integers(2, 0, ADDRESS)[0], row.integers(2, 0, ADDRESS)[1]) for row in saved["regions"])
    stage = saved["stage"].text()
    if stage not in JobStage.__members__:
        raise saved["stage"].refuse(f"one of {', '.join(JobStage.__members__)}")
    job.stage = JobStage[stage]
    if not saved["entry"].missing:
        job.entry = RingEntry(*saved["entry"].integers(len(RingEntry._fields), 0, ADDRESS))
        try:
            ENTRY.pack(*job.entry)
        except struct.error:
            raise saved["entry"].refuse("the fields of a ring entry, each as wide as it is there") from None
        if job.entry.mistake and job.stage is not JobStage.ENDING:
            raise saved["entry"].refuse(f"a ring entry that is taken: {job.entry.mistake}")
    job.fault = fault_of(saved["fault"])[0]
    if not saved["player"].missing:
        job.player = _player_of(machine, job, saved["player"], programs, told)
    _check(job, saved)
    return job


def _player_of(machine: Machine, job: DeviceJob, saved: Saved, programs: list[DecodedProgram], told: Told) -> Player:
    program = programs[saved["program"].index(len(programs))]
    # Verification bounds accesses by the regions, so they must be the verified ones.
    if tuple(size for _, size in job.regions) != program.sizes:
        raise CheckpointError(f"{saved.path}.program: its regions have other sizes than the job's")
    ending = Ending(machine, program, residents_of(saved["left"], programs), told.played)
    try:
        kind = saved["kind"].text()
        if kind == "replay":
            return restored_replayer(machine, job, ending, saved)
        if kind != "steps":
            raise saved["kind"].refuse("'steps' or 'replay'")
        course = program.courses(arithmetic=job.arithmetic).course(held=job.held)
        return restored_stepper(machine, job, course, ending, told.stopped, saved)
    except AddressError as error:
        raise CheckpointError(f"{saved.path}: {error.explanation}") from None


def _check(job: DeviceJob, saved: Saved) -> None:
    """Check that a job has the attributes of its stage."""
    if job.stage is not JobStage.FETCHING and job.entry is None and job.fault is None:
        raise saved["entry"].refuse("a ring entry, as the job has begun")
    moves = job.stage in (JobStage.LEAVING, JobStage.PARKED, JobStage.RETURNING)
    if moves and not isinstance(job.player, Stepper):
        raise saved["player"].refuse("one executed step by step, as the job is parked or will be")
    if len(job.regions) > MAX_REGIONS or (job.entry and job.regions and len(job.regions) != job.entry.region_count):
        raise saved["regions"].refuse("the number in the ring entry")
    if job.stage is JobStage.RUNNING and job.player is None:
        raise saved["player"].refuse("the executor of a running job")
