"""Coverage as a self-contained HTML page."""

from __future__ import annotations

from npusim.report.html.page import page, section, text
from npusim.testing.coverage.measure import Measured
from npusim.testing.coverage.universe import GROUPS

_NOTES = {
    "instructions": "Counted when a job with them completes: instructions, and values of enumerable fields.",
    "stalls": "Resources that a kind of unit has waited for.",
    "jobs": "Events and ends of jobs.",
    "faults": "Fault codes of jobs and of the device.",
    "registers": "Accesses by software, and bits of fields of one or two bits.",
}


def coverage_page(measured: Measured) -> str:
    """The text of the HTML file: groups with the missing points of each subject, most missing first."""
    parts = [f"<p>{measured.percent:.1f} % of all points were covered.</p>"]
    for name in GROUPS:
        done, total = measured.group(name)
        rows = sorted(measured.subjects(name), key=lambda row: (-len(row[3]), row[0]))
        parts.append(section(name, f"{name.capitalize()}: {done} of {total}", _table(rows), _NOTES[name]))
    return page("Coverage of the hardware", "".join(parts), {}, ["base"])


def _table(rows: list[tuple[str, int, list[str], list[str]]]) -> str:
    head = "<tr><th>what</th><th>hits, maximum</th><th>covered</th><th>not covered</th></tr>"
    body = "".join(
        f"<tr><th>{text(subject)}</th><td>{times}</td><td>{text(', '.join(done))}</td>"
        f"<td><strong>{text(', '.join(missing))}</strong></td></tr>"
        for subject, times, done, missing in rows
    )
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
