"""``npusim fit``: values of a description's keys from measured times."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.base import Command, json_option
from npusim.cli.output import answer, check_destination, progress, replacing
from npusim.errors import UsageError


@click.command(cls=Command, short_help="Fit keys of a description to measured times.")
@click.argument("points", type=click.Path(path_type=Path, dir_okay=False), metavar="POINTS.CSV")
@click.argument("config", metavar="NAME|FILE")
@click.option("--free", required=True, metavar="KEY,KEY", help="The keys to fit: dram.bandwidth,dram.latency.")
@click.option("--allow-sourced", is_flag=True, help="Fit keys whose comment names a source, too.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the description with the fitted values."
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), default=1, help="Processes that compile and simulate.")
@json_option("all keys and points")
def fit(
    points: Path, config: str, free: str, allow_sourced: bool, out: Path | None, jobs: int, json_file: str | None
) -> None:
    """Find the values of some keys with which simulated times agree best with measured ones.

    POINTS.CSV has a row for each measured layer or network, see docs/reference/fit.md. The result has an interval for
    each key, the error on points that were left out, and the keys that the points cannot tell apart. A key whose
    comment names a source is refused; comments that begin with "chosen" or "fitted" name none.

    \b
    Examples:
      npusim fit points.csv my.toml --free dram.latency,dram.efficiency
      npusim fit points.csv my.toml --free vector.cost.transcendental --out fitted.toml
      npusim fit networks.csv my.toml --free dram.bandwidth,dram.efficiency --jobs 2
    """
    from npusim.explore.fit.parameters import free_keys
    from npusim.explore.fit.points import read_points
    from npusim.explore.fit.solve import fit as solve
    from npusim.explore.fit.text import as_json, fitted_toml, text
    from npusim.hw.config import load_config
    from npusim.hw.files import description_file

    device = load_config(config)
    keys = free_keys(device, [name.strip() for name in free.split(",") if name.strip()], allow_sourced=allow_sourced)
    if out is not None:
        check_destination(out)
        if config.endswith(".json"):
            raise UsageError(f"--out: {config} is the JSON of a run; values can be written into a TOML file only")
    measured = read_points(points, device)
    with progress(f"fitting {len(keys)} keys of {device.name} to {len(measured)} points"):
        found = solve(device, measured, keys, jobs)
    if out is not None:
        with replacing(out) as draft:
            draft.write_text(fitted_toml(found, description_file(device.origin), points), encoding="utf-8")
    answer(json_file, lambda: as_json(found), lambda: text(found))
