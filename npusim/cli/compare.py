"""``npusim compare``: two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from npusim.cli.base import (
    Command,
    cache_options,
    complete_config,
    config_options,
    device,
    json_option,
    shape_options,
)
from npusim.cli.output import answer, check_destination, progress, write_text
from npusim.errors import UsageError


@click.command(cls=Command, short_help="Compare two runs by layer, unit and cause.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="A.json B.json | MODEL"
)
@config_options(default=None)
@click.option(
    "--with", "changes", multiple=True, metavar="KEY=VALUE", help="With MODEL: change one value for the second run."
)
@click.option(
    "--with-config",
    metavar="NAME|FILE",
    shell_complete=complete_config,
    help="With MODEL: the device of the second run.",
)
@shape_options
@click.option("--top", type=click.IntRange(min=0), default=10, help="Number of layers to list.")
@json_option("the comparison")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a self-contained HTML page with charts.",
)
@cache_options
def compare(
    files: tuple[Path, ...],
    config: str | None,
    overrides: tuple[str, ...],
    changes: tuple[str, ...],
    with_config: str | None,
    input_shapes: tuple[str, ...],
    bound: tuple[str, ...],
    top: int,
    json_file: str | None,
    page: Path | None,
    cache_dir: Path | None,
    no_cache: bool,
) -> None:
    """Show the difference of the times of two runs by unit, by cause and by layer.

    The runs come from files of npusim run --json, or from MODEL: then the second run uses the device of --with or
    --with-config. Each picosecond of the critical path belongs to one unit, cause and layer, so each table adds up to
    the difference exactly. Layers match if they contain the same operators of the model.

    \b
    Examples:
      npusim compare before.json after.json
      npusim compare model.onnx --config edge --with dram.bandwidth='8 GB/s'
      npusim compare model.onnx --config edge --with-config mobile --json -
      npusim compare before.json after.json --html difference.html
    """
    from npusim.cli.models import load_run
    from npusim.explore.compare import compare as compared
    from npusim.explore.compare_text import text, totals

    if page is not None:
        check_destination(page)
    given = {
        "--config": config,
        "--set": overrides,
        "--with": changes,
        "--with-config": with_config,
        "--input-shape": input_shapes,
        "--bind": bound,
    }
    if len(files) == 2:
        for option, value in given.items():
            if value:
                raise UsageError(f"{option}: only valid with a MODEL; {files[0]} and {files[1]} are finished runs")
        first, second = (load_run(file) for file in files)
        found = compared(first, second, (str(files[0]), str(files[1])))
    elif len(files) == 1:
        if not changes and not with_config:
            raise UsageError("compare: needs --with KEY=VALUE, --with-config NAME, or the JSON of a second run")
        devices = [(config, overrides), (with_config or config, (*overrides, *changes))]
        first, second = (_run(files[0], *each, (input_shapes, bound), cache_dir, no_cache) for each in devices)
        found = compared(first, second, _labels(devices))
    else:
        raise UsageError(f"compare: takes two files of runs or one MODEL, got {len(files)} files")
    if page is not None:
        from npusim.report.html import compare_page

        write_text(page, compare_page(found.to_json_dict(), notes=totals(found)))
    answer(json_file, found.to_json_dict, lambda: text(found, top))


def _run(
    model: Path,
    config: str | None,
    overrides: tuple[str, ...],
    given: tuple[tuple[str, ...], tuple[str, ...]],
    cache_dir: Path | None,
    no_cache: bool,
) -> dict[str, Any]:
    """The JSON of a run without arithmetic. With pinned weights, of the run that finds them in SRAM."""
    from npusim.cli.run import prepare

    session, program, found = prepare(model, config, overrides, given, cache_dir, no_cache)
    with session, progress(f"simulating {program.name} on {found.name}"):
        if program.resident_bytes:
            session.run(program, timing_only=True)
        told: dict[str, Any] = session.run(program, timing_only=True).to_json_dict()
    return told


def _labels(devices: list[tuple[str | None, tuple[str, ...]]]) -> tuple[str, str]:
    from npusim.report.device import changes

    first, second = (device(name if name is not None else "edge", overrides) for name, overrides in devices)
    return f"{first.name}{changes(first)}", f"{second.name}{changes(second)}"
