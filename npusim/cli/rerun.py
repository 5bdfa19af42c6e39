"""``npusim rerun``: repeat a run from its JSON file and compare the results."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.base import Command, json_option
from npusim.cli.output import answer, progress

_MOST_SHOWN = 10


@click.command(cls=Command, short_help="Repeat a run from its JSON file and compare the results.")
@click.argument("record", type=click.Path(path_type=Path, dir_okay=False), metavar="RUN.json")
@click.option(
    "--model",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The model, if its path has changed.",
)
@json_option("the result")
@click.pass_context
def rerun(context: click.Context, record: Path, model: Path | None, json_file: str | None) -> None:
    """Repeat the run of RUN.json, from npusim run --json, with its model, device, shapes and bound values.

    The exit code is 0 if all times, figures, digests and options equal those of the file, else 1. A difference is
    reported with its cause (model, device), the first operator whose times differ, and each figure that differs. Other
    versions of npusim are reported, but do not count as a difference.

    \b
    Examples:
      npusim run model.onnx --config edge --json run.json
      npusim rerun run.json
      npusim rerun run.json --model elsewhere/model.onnx --json -
    """
    from npusim.cli.models import load_run
    from npusim.explore.rerun import rerun as again

    told = load_run(record)
    with progress(f"running {record} again"):
        found = again(told, str(record), model)
    heads = {True: "the same", False: "differs"}
    lines = [f"{record}: {heads[found.same]}: {told['timeline_digest']}"]
    if found.first:
        lines += [f"  now      {found.result.timeline.digest()}", f"  first    {found.first}"]
    lines += [f"  changed  {change}" for change in found.changed]
    lines += [f"  differs  {each}" for each in found.differs[:_MOST_SHOWN]]
    if len(found.differs) > _MOST_SHOWN:
        lines.append(f"  differs  and {len(found.differs) - _MOST_SHOWN} more")
    answer(json_file, found.to_json_dict, lambda: "\n".join(lines))
    context.exit(0 if found.same else 1)
