"""``npusim driver-test``: run the conformance suite against a driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npusim.cli.base import Command, config_options, device
from npusim.cli.output import check_destination, say, write_text
from npusim.errors import UsageError

if TYPE_CHECKING:
    from npusim.conformance.subject import Subject

_FORMS = "must be python:MODULE:CLASS or exec:COMMAND LINE"


@click.command("driver-test", cls=Command, short_help="Run the conformance suite against a driver.")
@click.option("--connect", required=True, metavar="DRIVER", help="python:MODULE:CLASS, or exec:COMMAND LINE.")
@click.option(
    "--endpoint", metavar="KIND", help="The transport by which a program reaches the device.", show_default="bus"
)
@config_options(default="tiny")
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Only this case; may be given several times.")
@click.option(
    "--seeds",
    type=click.IntRange(min=0),
    default=20,
    help="Number of adversary seeds, one run each, and of moments at which the device is removed.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0.1),
    default=60.0,
    metavar="S",
    help="Timeout of one answer of a program, in seconds.",
)
@click.option("--computes-nothing", is_flag=True, help="The driver computes nothing, like the template.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write a report as JSON.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write a report as JUnit XML.")
def driver_test(
    connect: str,
    endpoint: str | None,
    config: str,
    overrides: tuple[str, ...],
    cases: tuple[str, ...],
    seeds: int,
    patience: float,
    computes_nothing: bool,
    json_file: Path | None,
    junit: Path | None,
) -> int:
    """Run the conformance suite against a driver, with injected faults and the driver sanitizer, and report violations.

    The exit code is 1 if a case failed or no case passed. docs/reference/driver-test.md describes the protocol.

    \b
    Examples:
      npusim driver-test --connect python:npusim.driver:Driver
      npusim driver-test --connect exec:./npu-driver --endpoint vfio-user --junit report.xml
      npusim driver-test --connect exec:./npu-driver --case aborts --case a-reset
    """
    from npusim.conformance import run

    for file in (json_file, junit):
        if file is not None:
            check_destination(file)
    subject, kind = _subject(connect, endpoint, patience)
    report = run(
        subject,
        device(config, overrides),
        name=connect,
        endpoint=kind,
        seeds=seeds,
        computes=not computes_nothing,
        cases=cases or None,
    )
    if json_file is not None:
        write_text(json_file, report.to_json())
    if junit is not None:
        write_text(junit, report.to_junit())
    say(report.text())
    return 0 if report.kept else 1


def _subject(connect: str, endpoint: str | None, patience_s: float) -> tuple[Subject, str]:
    """The driver, and the kind of its endpoint."""
    from npusim.conformance.subject import ProgramSubject, PythonSubject

    form, colon, rest = connect.partition(":")
    if form == "python" and colon:
        if endpoint not in (None, "in-process"):
            raise UsageError(f"--endpoint {endpoint}: a Python driver is given the bus in this process")
        return PythonSubject.named(rest), "in-process"
    if form == "exec" and colon:
        if endpoint == "in-process":
            raise UsageError("--endpoint in-process: a program is another process")
        return ProgramSubject(rest, patience_s), endpoint or "bus"
    raise UsageError(f"--connect {connect}: {_FORMS}")
