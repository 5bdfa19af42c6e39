"""The complete state of a device at one moment as plain data."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from npusim.device.job import DeviceJob
from npusim.device.npu import NpuDevice
from npusim.device.registers import RINGS
from npusim.device.ring import ENTRY, RingEntry
from npusim.hw.units.dma import FETCH_BYTES
from npusim.sim.bandwidth import SharedLink
from npusim.sim.engine import NEVER, Engine
from npusim.sim.machine import Ending
from npusim.sim.memory import AddressError
from npusim.sim.stepper import Stepper
from npusim.sim.steps import Step
from npusim.units import ps_to_cycles

MOST_ENTRIES = 8
"""Number of entries shown per ring."""

_LENGTH = struct.Struct("<4xH")
"""The length of a command in its header; see :mod:`npusim.isa.base`."""
Layer = Callable[[Step], str]


def look(device: NpuDevice, layer: Layer = lambda step: str(step.op)) -> dict[str, Any]:
    """The current state of a device: registers, rings, jobs with their units, queues and buffers, links, memory banks.

    It has no side effects. ``layer``: names operators (:meth:`Debugger.layer <npusim.debug.Debugger.layer>`). Times are
    in ps since power-on, sizes in bytes.
    """
    machine = device.machine
    device.jobs.step_by_step()
    jobs = {job.ring: job for job in device.jobs.begun if job is not None}
    found: dict[str, Any] = {
        "now_ps": device.now_ps,
        "cycle": ps_to_cycles(device.now_ps, device.config.clock_hz),
        "registers": dict(device.registers.values),
        "messages": device.messages,
        "rings": [_ring(device, number) for number in range(len(RINGS))],
        "jobs": [_job(device, job, layer) for job in jobs.values()],
        "links": {name: _link(link) for name, link in machine.links.items()},
        "context": None,
    }
    move = machine.moving
    if move is not None:
        found["context"] = {"kind": move.kind, "address": move.address, "bytes": move.size, "since_ps": move.begun_ps}
    return found


def command_numbers(player: Stepper) -> dict[int, int]:
    """The number of each command in the stream of a job, by its byte offset."""
    ending = player.done
    assert isinstance(ending, Ending)
    code, numbers, at = ending.program.code, dict[int, int](), 0
    while at < len(code):  # the stream was verified, so no length is 0
        numbers[at] = len(numbers)
        at += _LENGTH.unpack_from(code, at)[0]
    return numbers


def _ring(device: NpuDevice, number: int) -> dict[str, Any]:
    values, name = device.registers.values, RINGS[number]
    base = device.registers.get_pair(f"{name}_BASE")
    size, head, tail = values[f"{name}_SIZE"], values[f"{name}_HEAD"], values[f"{name}_TAIL"]
    entries = []
    waiting = tail - head & 0xFFFF_FFFF
    if size and not size & (size - 1) and waiting <= size:
        for at in range(head, head + min(waiting, MOST_ENTRIES)):
            try:
                raw = device.machine.memory.slice(base + at % size * ENTRY.size, ENTRY.size).tobytes()
            except AddressError:
                break
            entry = RingEntry(*ENTRY.unpack(raw))
            entries.append({"seqno": entry.seqno, "program": entry.program_address, "flags": entry.flags})
    return {"priority": name, "base": base, "size": size, "head": head, "tail": tail, "entries": entries}


def _job(device: NpuDevice, job: DeviceJob, layer: Layer) -> dict[str, Any]:
    player, seqno = job.player, None if job.entry is None else job.entry.seqno
    found: dict[str, Any] = {
        "priority": RINGS[job.ring],
        "seqno": seqno,
        "stage": job.stage.name.lower(),
        "started_ps": job.started_ps,
        "on_machine": player is not None and player is device.machine.current,
        "code": job.code,
        "regions": [list(row) for row in job.regions],
        "fault": None if job.fault is None else job.fault.explanation,
    }
    if isinstance(player, Stepper):
        found["preemptions"] = player.preemptions
        found["instructions"] = [len(player.order), len(player.steps) - 1]
        found["sequencer"] = _sequencer(player)
        numbers = command_numbers(player)
        found["units"] = [_unit(player, engine, numbers, layer) for engine in player.engines]
        found["sram"] = [banks.shares() for banks in player.banks]
    return found


def _sequencer(player: Stepper) -> dict[str, Any]:
    sequencer = player.sequencer
    used = player.steps[sequencer.dispatched - 1].end if sequencer.dispatched else 0
    if sequencer.halted:
        state = "halted"
    elif sequencer.blocked is not None:
        state = f"the queue of {sequencer.blocked.name} is full"
    elif sequencer.dispatched < len(player.steps):
        state = "waits for code"
    else:
        state = "has dispatched everything"
    return {
        "state": state,
        "dispatched": [sequencer.dispatched, len(player.steps)],
        "buffer_bytes": [max(0, sequencer.fetched - used), 2 * FETCH_BYTES],
        "fetched_bytes": [sequencer.fetched, sequencer.total],
        "fetching": sequencer.fetching,
    }


def _unit(player: Stepper, engine: Engine, numbers: dict[int, int], layer: Layer) -> dict[str, Any]:
    step = engine.flight[0][0] if engine.flight else engine.step
    queue = [{"arrives_ps": at, "instruction": each.kind, "layer": layer(each)} for at, each in engine.queue]
    found: dict[str, Any] = {"name": engine.name, "state": "idle", "completed": engine.completed, "queue": queue}
    if step is None:
        return found
    found |= {"instruction": step.kind, "layer": layer(step), "command": numbers.get(step.begin)}
    if engine.begin != NEVER:
        found |= {"state": "hangs" if engine.name in player.breaks.hangs else "runs", "since_ps": engine.begin}
        found["in_flight"] = len(engine.flight)
    elif engine.held:
        found["state"] = "held back: the job is to be parked"
    elif engine.blocker is not None:
        unit, count = step.waits[engine.wait_at]
        other = player.engines[unit]
        found |= {"state": "waits", "waits_for": {"unit": other.name, "count": count, "completed": other.completed}}
    else:
        found["state"] = "its command is on the way"
    return found


def _link(link: SharedLink) -> dict[str, Any]:
    return {"bytes_per_s": link.capacity, "busy_ps": link.settle(), "transfers": link.transfers()}
