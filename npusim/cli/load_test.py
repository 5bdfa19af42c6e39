"""``npusim load-test``: latency and throughput of requests that arrive over time."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.base import Command, complete_config, device, json_option
from npusim.cli.output import answer, check_destination, progress, write_text


@click.command("load-test", cls=Command, short_help="Simulate requests that arrive over time: latency, throughput.")
@click.argument("scenario", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.toml")
@click.option(
    "--config",
    "-c",
    metavar="NAME|FILE",
    shell_complete=complete_config,
    help="Override the device of the file.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one value of the device.")
@click.option("--seed", type=click.IntRange(min=0), help="Override the seed of the file.")
@click.option(
    "--times",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Write the time of each operator of each program.",
)
@json_option("all figures")
def load_test(
    scenario: Path,
    config: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    times: Path | None,
    json_file: str | None,
) -> None:
    """Simulate the requests of a scenario on a device: several models with priorities, or a decoder.

    Each distinct program is compiled and simulated once. Requests for several models then pass through the rings of
    the device. Requests to a decoder are events with the simulated times of its programs.

    \b
    Examples:
      npusim load-test cameras.toml
      npusim load-test llm.toml --config server --json load.json --times times.csv
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
