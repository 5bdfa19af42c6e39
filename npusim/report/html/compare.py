"""A page that compares two runs: the difference of their times by unit, by cause and by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npusim.report.energy import joules
from npusim.report.format import change, duration, percent, quantity, signed
from npusim.report.html import page
from npusim.report.html.columns import coded
from npusim.report.layers import kind_text

SCRIPTS = ("base", "axes", "table", "compare")


def compare_page(found: Mapping[str, Any], *, notes: Sequence[tuple[str, str]] = ()) -> str:
    """One HTML file about two runs. The same comparison gives the same bytes.

    ``found``: the JSON of ``npusim compare --json``: ``labels`` and ``time_ps`` of both runs, ``delta_ps``, ``units``
    and ``causes`` ({name: ps}), and ``layers``, each with ``name``, ``kind``, ``in`` (both, first, second), ``time_ps``
    in each run, ``delta_ps`` and ``parts`` ({unit, cause, delta_ps}). Times are picoseconds of the critical path, so
    units, causes and layers each add up to the difference. ``notes``: names and values for the summary.
    """
    first, second = map(str, found["labels"])
    layers = found["layers"]
    data = {
        "labels": [page.label(first), page.label(second)],
        "time": found["time_ps"],
        "delta": found["delta_ps"],
        "shares": [
            {
                "title": title,
                "names": [page.label(name) for name in values],
                "values": list(values.values()),
                "unit": unit,
            }
            for title, values, unit in (
                ("time by unit", found["units"], "ps"),
                ("time by cause", found["causes"], "ps"),
                ("energy by action", found.get("energy_fj", {}), "fJ"),
                ("DRAM traffic by direction", _traffic(found), "B"),
            )
            if values or unit == "ps"
        ],
        "layers": {
            "name": [page.label(layer["name"]) for layer in layers],
            "kind": coded([kind_text(layer["kind"]) for layer in layers]),
            "in": coded([layer["in"] for layer in layers]),
            "first": [layer["time_ps"][0] for layer in layers],
            "second": [layer["time_ps"][1] for layer in layers],
            "parts": [
                [[page.label(part["unit"]), page.label(part["cause"]), part["delta_ps"]] for part in layer["parts"]]
                for layer in layers
            ],
        },
    }
    told = [("first", first), ("second", second), *notes]
    body = [
        page.tiles(_headline(found)),
        page.section(
            "shares", "Differences", note="Time is that on the critical path. Each picture adds up to the difference."
        ),
        '<div class="pair">' + page.section("bars", "By layer") + page.section("layer", "Selected layer") + "</div>",
        page.section("table", "Layers"),
        page.section("summary", "Details", page.facts(told)),
    ]
    return page.page(f"{first} and {second}", "\n".join(body), data, SCRIPTS)


def _headline(found: Mapping[str, Any]) -> list[page.Tile]:
    """Time, energy, DRAM traffic, the cause of most of the difference, and what binds each run."""
    amounts = found.get("amounts", {})
    traffic = zip(*(amounts.get(f"dram_{way}_bytes", (None, None)) for way in ("read", "write")), strict=True)
    moved = [None if None in each else sum(each) for each in traffic]
    cause, spent = max(found["causes"].items(), key=lambda item: (abs(item[1]), item[0]), default=("none", 0))
    told = f"{signed(spent)} of {signed(found['delta_ps'])}"
    bound = [each or page.NOT_KNOWN for each in found.get("bound", ("", ""))]
    first, second = (
        f"{percent(next(iter(each.values())), sum(each.values()))}" if each else "the run does not record it"
        for each in found.get("resources", ({}, {}))
    )
    return [
        _tile("time", found["time_ps"], duration),
        _tile("energy", amounts.get("energy_fj", (None, None)), joules),
        _tile("DRAM traffic", moved, lambda count: quantity(count, "B")),
        ("largest cause", cause, told if found["causes"] else "the times are equal"),
        ("bound by", bound[1], f"{second}; before: {bound[0]}, {first}"),
    ]


def _traffic(found: Mapping[str, Any]) -> dict[str, int]:
    """Additional bytes that the second run reads and writes, without zeros; empty if unknown."""
    amounts = found.get("amounts", {})
    pairs = {name: amounts.get(f"dram_{name}_bytes", (None, None)) for name in ("read", "write")}
    if any(None in pair for pair in pairs.values()):
        return {}
    return {name: after - before for name, (before, after) in pairs.items() if after != before}


def _tile(name: str, values: Sequence[int | None], shown: Callable[[int], str]) -> page.Tile:
    before, after = values
    if before is None or after is None:
        return (name, page.NOT_KNOWN, "not recorded by both runs")
    return (name, change(before, after), f"{shown(before)} -> {shown(after)}")
