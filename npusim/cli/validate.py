"""``npusim validate``: compare measured points with the predictions of the models."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.base import Command, json_option
from npusim.cli.output import answer, check_destination, progress, replacing
from npusim.errors import UsageError


@click.command(cls=Command, short_help="Compare the timing models with measurements.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the data sets.",
    show_default="the data sets of npusim",
)
@json_option("every row and every error")
@click.option(
    "--plot", "plot_file", type=click.Path(path_type=Path), metavar="FILE", help="Draw predictions over measurements."
)
def validate(data: Path | None, json_file: str | None, plot_file: Path | None) -> None:
    """Replay measured points of RTL, simulators and chips, and report the error of each prediction.

    Data sets whose file is missing are skipped and reported.

    \b
    Examples:
      npusim validate
      npusim validate --data ../truth --json errors.json --plot errors.svg
    """
    from npusim.validate.replay import carried_folder, find, replay
    from npusim.validate.report import plot, text

    if data is not None and not data.is_dir():
        raise UsageError(f"--data {data}: must be a directory")
    if json_file not in (None, "-"):
        check_destination(Path(str(json_file)))
    if plot_file is not None:
        check_destination(plot_file)
    found, missing = find(data if data is not None else carried_folder())
    if not found:
        raise UsageError(
            f"--data {data or carried_folder()}: has none of the files {', '.join(d.filename for d in missing)}"
        )
    with progress(f"replaying {len(found)} data sets"):
        outcomes = list(replay(found))
    if plot_file is not None:
        with replacing(plot_file) as draft:
            plot(draft, outcomes, plot_file.suffix.removeprefix(".") or "png")
    found_sets = {"unit": "percent", "datasets": [outcome.to_json_dict() for outcome in outcomes]}
    skipped = [data_set.name for data_set in missing]
    answer(json_file, lambda: {**found_sets, "skipped": skipped}, lambda: text(outcomes, missing))
