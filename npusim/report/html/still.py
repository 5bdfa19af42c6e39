"""Two small charts of a run for a notebook: static SVG without scripts or styles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from npusim.report.format import duration, quantity
from npusim.report.html.lanes import lanes
from npusim.report.html.page import text
from npusim.report.html.roofs import roofs
from npusim.report.layers import LayerReport, layers

if TYPE_CHECKING:
    from npusim.report.html.run import ReportedTrace

COLOURS = {"compute": "#0072b2", "memory": "#e08a00", "latency": "#009e73"}
"""Colours by bottleneck of a layer, as on the page, for any background."""
MOST_BARS = 1_500
WIDTH, ROW, LEFT = 640, 16, 96


def pictures(result: ReportedTrace) -> str:
    """The units over time and the roofline as SVG; empty for a run without instructions."""
    found = layers(result)
    if not found or not result.timeline.time_ps:
        return ""
    return f"{_units(result, found)}{_roofline(result, found)}"


def _units(result: ReportedTrace, found: Sequence[LayerReport]) -> str:
    rows = lanes(result.timeline.spans, {layer.op: number for number, layer in enumerate(found)}, MOST_BARS)
    scale = (WIDTH - LEFT - 8) / result.timeline.time_ps
    parts = []
    for number, row in enumerate(rows):
        top = 4 + number * ROW
        parts.append(_label(LEFT - 6, top + 11, row["unit"], "end"))
        paths: dict[str, str] = {}
        at = 0
        for by, length, layer in zip(row["start"], row["length"], row["layer"], strict=True):
            at += by
            bound = found[layer].bound if layer >= 0 else ""
            bar = f"M{LEFT + at * scale:.1f} {top}h{max(length * scale, 0.4):.1f}v{ROW - 4}H{LEFT + at * scale:.1f}z"
            paths[bound] = paths.get(bound, "") + bar
        parts += [f'<path d="{path}" fill="{COLOURS.get(bound, "#888")}"/>' for bound, path in sorted(paths.items())]
    bottom = 4 + len(rows) * ROW + 14
    parts.append(_label(LEFT, bottom, "0 s"))
    parts.append(_label(WIDTH - 8, bottom, duration(result.timeline.time_ps), "end"))
    parts += _legend(bottom + 18)
    return _svg(bottom + 24, f"units of {result.config} over time", parts)


def _legend(y: int) -> Iterator[str]:
    for number, (bound, colour) in enumerate(COLOURS.items()):
        x = LEFT + number * 150
        yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        yield _label(x + 14, y, f"bound by {bound}")


def _roofline(result: ReportedTrace, found: Sequence[LayerReport]) -> str:
    tops = roofs(result.device, result.program)
    points = [
        (layer.timing.macs / layer.timing.dram_bytes, layer.timing.macs * 1e12 / layer.window_ps, layer.bound)
        for layer in found
        if layer.timing.macs and layer.timing.dram_bytes and layer.window_ps
    ]
    if not points or not tops["compute"]:
        return ""
    peak, slope = max(row["rate"] for row in tops["compute"]), tops["bandwidth"][0]["rate"]
    ridge = peak / slope
    across = (min(ridge, *(p[0] for p in points)) / 3, max(ridge, *(p[0] for p in points)) * 3)
    up = (min(p[1] for p in points) / 2, peak * 2)

    def x(value: float) -> float:
        return LEFT + _share(value, across) * (WIDTH - LEFT - 8)

    def y(value: float) -> float:
        return 186 - _share(value, up) * 178

    low = max(across[0], up[0] / slope)
    roof = f"M{x(low):.1f} {y(low * slope):.1f}L{x(ridge):.1f} {y(peak):.1f}H{WIDTH - 8}"
    parts = [
        f'<path d="M{LEFT} 8V186H{WIDTH - 8}" fill="none" stroke="#888"/>',
        f'<path d="{roof}" fill="none" stroke="currentColor" stroke-width="1.5"/>',
        _label(WIDTH - 8, round(y(peak)) - 5, quantity(peak, "MAC/s"), "end"),
        _label(
            LEFT + 6,
            200,
            f"{quantity(slope, 'B/s')} of DRAM; arithmetic intensity in MAC/B, {across[0]:.2g} to {across[1]:.2g}",
        ),
        _label(LEFT - 6, 186, quantity(up[0], "MAC/s"), "end"),
    ]
    parts += [
        f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5" fill="{COLOURS[bound]}" fill-opacity="0.8"/>'
        for a, b, bound in points
    ]
    return _svg(206, f"roofline of {len(points)} layers", parts)


def _share(value: float, bounds: tuple[float, float]) -> float:
    """Position of a value between the bounds, on a logarithmic scale."""
    return (math.log(value) - math.log(bounds[0])) / (math.log(bounds[1]) - math.log(bounds[0]))


def _label(x: int, y: int, words: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor" font-size="11">{text(words)}</text>'


def _svg(height: int, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{text(label)}" font-family="sans-serif">{"".join(parts)}</svg>'
    )
