"""``npusim serving``: requests that arrive over time."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.base import Command, complete_config, device, json_option
from npusim.cli.output import answer, check_destination, progress, write_text


@click.command(cls=Command, short_help="Latencies and throughput of requests that arrive over time.")
@click.argument("scenario", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.toml")
@click.option(
    "--config", "-c", metavar="NAME|FILE", shell_complete=complete_config, help="Another device than the file says."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one value of the device.")
@click.option("--seed", type=click.IntRange(min=0), help="Another seed than the file says.")
@click.option(
    "--times",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Write what each operator of each program takes.",
)
@json_option("all figures")
def serving(
    scenario: Path,
    config: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    times: Path | None,
    json_file: str | None,
) -> None:
    """Serve the requests of a scenario on a simulated device: several models with priorities, or a decoder.

    Each distinct program is compiled and simulated once. Requests for several models then go through the rings of the
    device; those to a decoder are events with the times of its programs.

    \b
    Examples:
      npusim serving cameras.toml
      npusim serving llm.toml --config server --json serving.json --times times.csv
    """
    from npusim.explore.serving.scenario import read_scenario
    from npusim.explore.serving.serve import serve
    from npusim.explore.serving.text import text
    from npusim.explore.serving.times import table

    for file in (times, None if json_file in (None, "-") else Path(str(json_file))):
        if file is not None:
            check_destination(file)
    told = read_scenario(scenario)
    found_device = device(config or told.device, overrides)
    with progress(f"serving {scenario.name} on {found_device.name}"):
        found = serve(told, found_device, seed)
    if times is not None:
        write_text(times, table(found.timed))
    answer(json_file, found.to_json_dict, lambda: text(found))
