"""The figures of a load test as text."""

from __future__ import annotations

from npusim.explore.serving.serve import METHODS, Serving
from npusim.explore.serving.served import Class, LatencySpread
from npusim.report.energy import joules
from npusim.report.format import counted, duration, facts, grouped, percent, table
from npusim.units import PS_PER_S


def text(found: Serving) -> str:
    """The method, totals, a row per class of requests, and the programs."""
    requests = sum(each.requests for each in found.classes)
    head = f"{counted(requests, 'request')} on {found.device.name} in {duration(found.elapsed_ps)}, seed {found.seed}"
    blocks = [[head, *facts(_facts(found))], _classes(found), _tokens(found), _programs(found)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _facts(found: Serving) -> list[tuple[str, str]]:
    rows = [
        ("method", METHODS[found.method]),
        ("times", "simulated, with the host's part; inputs and outputs are taken to lie on the device"),
        ("device", f"busy {percent(found.utilisation, 1)} of the time"),
    ]
    if found.energy_fj is None:
        rows.append(("energy", "unknown: some prices are missing"))
    else:
        each = [f"{joules(found.energy_fj // found.tokens)} a token"] if found.tokens else []
        idle = found.idle_fj or 0
        parts = f"{joules(found.energy_fj - idle)} for jobs and {joules(idle)} for the time between"
        rows.append(("energy", ", ".join([f"{joules(found.energy_fj)}: {parts}", *each])))
    if found.tokens:
        rate = found.tokens * PS_PER_S / found.elapsed_ps
        rows.append(("tokens", f"{grouped(found.tokens)}, {grouped(round(rate))} a second"))
        most, room = found.cache_tokens
        rows.append(("cache", f"{grouped(most)} tokens promised at most, room for {grouped(room)}"))
        rows.append(("programs", ", ".join(f"{grouped(count)} times {phase}" for phase, count in found.steps)))
    return rows


def _classes(found: Serving) -> list[str]:
    rows = [_row(each) for each in found.classes]
    header = (
        "requests for",
        "count",
        "a second",
        "mean",
        "p50",
        "p90",
        "p99",
        "most",
        "waiting",
        "queue",
        "most",
        "preempted",
    )
    return ["latency, from arrival to the end", *table(header, rows, right="<>>>>>>>>>>>")]


def _row(each: Class) -> tuple[str, ...]:
    spread = each.latency
    waiting = duration(each.waiting.mean) if each.waiting else "-"
    queue = (f"{each.queued[0]:.2f}", str(each.queued[1]), str(each.preemptions))
    return (each.name, grouped(each.requests), f"{each.rate:.1f}", *_times(spread), waiting, *queue)


def _times(spread: LatencySpread | None) -> list[str]:
    """The cells of a row; '-' without values."""
    return [duration(getattr(spread, name)) if spread else "-" for name in ("mean", "p50", "p90", "p99", "most")]


def _tokens(found: Serving) -> list[str]:
    rows = [
        (label, *_times(spread))
        for each in found.classes
        if each.tokens
        for label, spread in (("to the first token", each.first), ("between tokens", each.each))
    ]
    return table(("time", "mean", "p50", "p90", "p99", "most"), rows, right="<>>>>>") if rows else []


def _programs(found: Serving) -> list[str]:
    rows = [
        (
            each.model,
            " ".join([each.phase, *(f"{name} {size}" for name, size in each.sizes.items())]).strip(),
            duration(each.time_ps),
            duration(each.total_ps),
            "-" if each.energy_fj is None else joules(each.energy_fj),
        )
        for each in found.timed
    ]
    head = "programs, each compiled and simulated once"
    return [head, *table(("model", "for", "on the device", "with the host", "energy"), rows, right="<<>>>")]
