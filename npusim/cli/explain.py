"""``npusim explain``: the equation behind an operator's time, and why values live where they live."""

from __future__ import annotations

from pathlib import Path

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
from npusim.cli.models import open_session
from npusim.cli.output import answer, progress
from npusim.cli.run import prepare
from npusim.errors import UsageError


@click.command(cls=Command, short_help="Explain the time of an operator and the memory area of each value.")
@model_argument
@config_options(default=None)
@click.option(
    "--op",
    metavar="NAME",
    help="Name, part of the name, or kind of the operator; the slowest match is shown.",
)
@click.option(
    "--memory", is_flag=True, help="Show the memory area of each value, the reason, and the cost of the next best area."
)
@shape_options
@json_option("the equations' terms, or the values,")
@cache_options
def explain(
    model: Path,
    config: str | None,
    overrides: tuple[str, ...],
    op: str | None,
    memory: bool,
    input_shapes: tuple[str, ...],
    bound: tuple[str, ...],
    json_file: str | None,
    cache_dir: Path | None,
    no_cache: bool,
) -> None:
    """Show the cost equations of one operator of MODEL: the terms of each unit, and the largest term.

    With --memory: the SRAM contents by layer, and for each value its memory area, its lifetime, the reason, and the
    estimated time that the next best memory area would add.

    \b
    Examples:
      npusim explain m.onnx --config edge --op conv3
      npusim explain m.npu --op classifier --json -
      npusim explain m.onnx --config edge --memory
    """
    from npusim.report.explain import as_json, find_operators, slowest_first, text
    from npusim.report.explain import explain as explained

    if op is None and not memory:
        raise UsageError("explain: say what: --op NAME is an operator's time, --memory where values live")
    if op is not None and memory:
        raise UsageError("--op: is not used with --memory, which is about all of the model")
    if op is None:
        _explain_memory(model, config, overrides, input_shapes, bound, json_file)
        return
    session, program, found = prepare(
        model, config, overrides, (input_shapes, bound), cache_dir, no_cache, timing_only=True
    )
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


def _explain_memory(
    model: Path,
    config: str | None,
    overrides: tuple[str, ...],
    input_shapes: tuple[str, ...],
    bound: tuple[str, ...],
    json_file: str | None,
) -> None:
    from npusim.cache import is_program
    from npusim.report.memory import as_json, text

    if model.suffix == ".npu" or is_program(model):
        raise UsageError(f"{model}: a compiled program does not say why; --memory needs the model that it was made of")
    found = device(config if config is not None else "edge", overrides)
    with open_session(found, None, no_cache=True) as session:
        with progress(f"compiling {model.name} for {found.name}"):
            explained = session.explain_memory(model, shapes(input_shapes), bind=values(bound))
        result = session.run(explained.program, timing_only=True)
    answer(json_file, lambda: as_json(explained, result), lambda: text(explained, result))
