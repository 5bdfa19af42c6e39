"""``npusim whatif``: the effect of each resource of a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from npusim.cli.base import (
    Command,
    cache_options,
    config_options,
    device,
    json_option,
    model_argument,
    shape_options,
    shapes,
    values,
)
from npusim.cli.output import again, answer, progress_bar, say
from npusim.errors import UsageError


@click.command(cls=Command, short_help="Show the effect of each device resource on the time of a model.")
@model_argument
@config_options()
@click.option("--only", multiple=True, metavar="KEY", help="Only this key or section, such as dram.")
@click.option("--jobs", "-j", type=click.IntRange(min=1), default=1, help="Processes that compile and simulate.")
@click.option("--top", type=click.IntRange(min=0), default=20, help="Number of resources to list.")
@shape_options
@cache_options
@json_option("all results")
@click.pass_context
def whatif(
    context: click.Context,
    model: Path,
    config: str,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    jobs: int,
    top: int,
    input_shapes: tuple[str, ...],
    bound: tuple[str, ...],
    cache_dir: Path | None,
    no_cache: bool,
    json_file: str | None,
) -> None:
    """Compile and time MODEL with each numeric key of the device infinite, doubled and halved, one at a time.

    Infinite means 1024 times the value or the largest legal value; for times and cycle counts it means zero. The model
    is recompiled for each change. Resources are sorted by the time that they save. Results are kept in the cache
    directory: after Ctrl-C, the same command continues, and calls that share devices share results.

    \b
    Examples:
      npusim whatif model.onnx --config edge
      npusim whatif model.onnx --config edge --only dram --only sram.bytes
      npusim whatif model.onnx --config my.toml --jobs 2 --json whatif.json
    """
    from npusim.cache import default_directory, is_program
    from npusim.explore.measure import Measurer
    from npusim.explore.whatif import what_if
    from npusim.explore.whatif_store import KeptMeasurer
    from npusim.explore.whatif_text import text
    from npusim.runtime.provenance import of_device

    if model.suffix == ".npu" or is_program(model):
        raise UsageError(f"{model}: a compiled program is for one device; whatif needs its model")
    found = device(config, overrides)
    measure = Measurer(model, shapes(input_shapes), values(bound), jobs)
    folder = None if no_cache else cache_dir or default_directory()
    kept = KeptMeasurer(measure, folder)
    try:
        with progress_bar(f"trying {model.name} on variants of {found.name}") as kept.progress:
            table = what_if(found, kept, model.stem, only)
    except KeyboardInterrupt:
        if kept.kept:
            say(f"stopped with results of {kept.kept} devices; continue with:\n  {again(context)}", err=True)
        raise

    def as_json() -> dict[str, Any]:
        return {**table.to_json_dict(), "provenance": {**of_device(found), "model": measure.described(found)}}

    answer(json_file, as_json, lambda: text(table, top))
