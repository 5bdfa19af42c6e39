"""``npusim rerun``: what a JSON says of a run, checked by running it again."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.base import Command, json_option
from npusim.cli.output import answer, progress

_MOST_SHOWN = 10


@click.command(cls=Command, short_help="Run again what a JSON of a run describes.")
@click.argument("record", type=click.Path(path_type=Path, dir_okay=False), metavar="RUN.json")
@click.option(
    "--model",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The model, if it lies elsewhere now.",
)
@json_option("what came of it")
@click.pass_context
def rerun(context: click.Context, record: Path, model: Path | None, json_file: str | None) -> None:
    """Run again what RUN.json, from npusim run --json, describes: its model, device, shapes and bound values.

    Ends with 0 if every instruction takes the same times as then, and every other figure, digest and option that the
    file tells is the same, too; with 1 if not. Then it says what has changed (model, device), the operator at which the
    runs part, and each figure that differs. Other versions are told, and are no difference by themselves.

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
