"""The text of a device view for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npusim.report.format import counted
from npusim.units import Dimension, show


def view_text(view: Mapping[str, Any]) -> str:
    """The whole of :func:`npusim.debug.look`, as lines."""
    lines = [f"{time_text(view['now_ps'])}, cycle {view['cycle']}"]
    for job in view["jobs"]:
        lines += job_lines(job)
    if view["context"]:
        context = view["context"]
        lines.append(f"{context['kind']}: {context['bytes']} bytes at {context['address']:#x}")
    for name, link in view["links"].items():
        lines += link_lines(name, link)
    for ring in view["rings"]:
        lines += ring_lines(ring)
    lines.append(f"interrupts on the way: {', '.join(map(str, view['messages'])) or 'none'}")
    lines.append("registers: " + ", ".join(f"{name}={value:#x}" for name, value in view["registers"].items() if value))
    return "\n".join(lines)


def time_text(time_ps: int) -> str:
    """A time in picoseconds as text."""
    return f"{time_ps} ps ({show(time_ps, Dimension.TIME)})"


def job_lines(job: Mapping[str, Any]) -> Iterator[str]:
    """A job, its sequencer and its units."""
    seqno = "not read yet" if job["seqno"] is None else job["seqno"]
    machine = ", has the machine" if job["on_machine"] else ""
    yield f"job {job['priority']}: seqno {seqno}, {job['stage']}{machine}, taken at {job['started_ps']} ps"
    if job["fault"]:
        yield f"  fault: {job['fault']}"
    if "units" not in job:
        return
    done, total = job["instructions"]
    yield f"  {done} of {total} instructions done, preempted {job['preemptions']} times"
    yield "  " + sequencer_line(job["sequencer"])
    for unit in job["units"]:
        yield "  " + unit_line(unit)
    for core, works in enumerate(job["sram"]):
        if works:
            shares = ", ".join(f"{share:.0%}" for share in works)
            yield f"  core{core}.sram: {counted(len(works), 'unit')} at work, shares {shares}"


def sequencer_line(sequencer: Mapping[str, Any]) -> str:
    """The sequencer with its fetch buffer."""
    dispatched, total = sequencer["dispatched"]
    held, room = sequencer["buffer_bytes"]
    fetched, size = sequencer["fetched_bytes"]
    fetching = ", fetching" if sequencer["fetching"] else ""
    return (
        f"sequencer: {sequencer['state']}; {dispatched} of {total} commands dispatched; buffer {held} of {room} bytes; "
        f"{fetched} of {size} bytes of code fetched{fetching}"
    )


def unit_line(unit: Mapping[str, Any]) -> str:
    """One unit and its queue."""
    line = f"{unit['name']:14} {unit['state']}"
    if "since_ps" in unit:
        line += f" since {unit['since_ps']} ps"
    if "waits_for" in unit:
        wait = unit["waits_for"]
        line += f" for {wait['unit']} to complete {wait['count']}, it has {wait['completed']}"
    if "instruction" in unit:
        line += f": command {unit['command']} {unit['instruction']}, layer {unit['layer']!r}"
    return f"{line}; {unit['completed']} done, queue {queue_text(unit)}"


def queue_text(unit: Mapping[str, Any]) -> str:
    """The instructions that wait at a unit."""
    queue = unit["queue"]
    return f"{len(queue)}" + (f": {', '.join(each['instruction'] for each in queue)}" if queue else "")


def link_lines(name: str, link: Mapping[str, Any]) -> Iterator[str]:
    """A link to memory and the transfers on it."""
    yield f"link {name}: {len(link['transfers'])} transfers in flight, {show(link['bytes_per_s'], Dimension.BANDWIDTH)}"
    for each in link["transfers"]:
        rate = show(each["bytes_per_s"], Dimension.BANDWIDTH)
        yield f"  {each['of']}: {each['bytes_left']} bytes left at {rate}, rank {each['rank']}"


def ring_lines(ring: Mapping[str, Any]) -> Iterator[str]:
    """A ring and its entries."""
    place = f"{ring['size']} entries at {ring['base']:#x}"
    yield f"ring {ring['priority']}: {place}, head {ring['head']}, tail {ring['tail']}"
    for entry in ring["entries"]:
        yield f"  seqno {entry['seqno']}: program at {entry['program']:#x}, flags {entry['flags']:#x}"
