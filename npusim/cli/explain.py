"""``npusim explain``: the equation behind an operator's time."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.base import Command, cache_options, config_options, json_option, model_argument, shape_options
from npusim.cli.output import answer, progress
from npusim.cli.run import prepare


@click.command(cls=Command, short_help="Why an operator takes the time it takes.")
@model_argument
@config_options(default=None)
@click.option(
    "--op",
    required=True,
    metavar="NAME",
    help="The operator's name, a part of it, or its kind; of several, the slowest.",
)
@shape_options
@json_option("the equations' terms")
@cache_options
def explain(
    model: Path,
    config: str | None,
    overrides: tuple[str, ...],
    op: str,
    input_shapes: tuple[str, ...],
    bound: tuple[str, ...],
    json_file: str | None,
    cache_dir: Path | None,
    no_cache: bool,
) -> None:
    """Show for one operator of MODEL the equations of every unit it uses, their terms, and the term that binds.

    \b
    Examples:
      npusim explain m.onnx --config edge --op conv3
      npusim explain m.npu --op classifier --json -
    """
    from npusim.report.explain import as_json, find_operators, slowest_first, text
    from npusim.report.explain import explain as explained

    session, program, found = prepare(model, config, overrides, (input_shapes, bound), cache_dir, no_cache)
    candidates = find_operators(program, op)
    with progress(f"simulating {program.name} on {found.name}"):
        if program.resident_bytes:
            session.run(
                program, timing_only=True
            )  # it loads what stays in SRAM; what is explained is one that finds it
        result = session.run(program, timing_only=True)
    index, *rest = slowest_first(program, result, candidates)
    explanation, others = explained(program, result, found, index), [program.ops[other].name for other in rest]
    answer(json_file, lambda: {**as_json(explanation), "others": others}, lambda: text(explanation, found, others))
