"""``npusim info``: the capabilities of a device."""

from __future__ import annotations

import click

from npusim.cli.base import Command, config_options, device, json_option
from npusim.cli.output import answer


@click.command(cls=Command, short_help="Show the capabilities of a device.")
@config_options()
@json_option("the capabilities")
def info(config: str, overrides: tuple[str, ...], json_file: str | None) -> None:
    """Show the capabilities of a device: peak rates, bandwidths and types, all derived from its description.

    \b
    Examples:
      npusim info --config edge
      npusim info --config edge --set matrix.rows=64
      npusim info --config my.toml --json -
    """
    from npusim.report.device import as_json, text

    found = device(config, overrides)
    answer(json_file, lambda: as_json(found), lambda: text(found))
