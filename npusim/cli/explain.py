"""``npusim explain``: the equations behind the time of an operator, and the reasons for memory areas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npusim.cli.base import (
    Command,
    cache_options,
    config_options,
    device,
    json_option,
    model_argument,
    schedule_option,
    shape_options,
    shapes,
    values,
)
from npusim.cli.models import open_session
from npusim.cli.output import answer, check_destination, progress, write_text
from npusim.cli.run import prepare
from npusim.errors import NeedsValueError, UndecidedError, UsageError

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.program import Program


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
@click.option(
    "--schedule-out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the schedule as JSON: a file for --schedule with every choice of the compiler.",
)
@shape_options
@schedule_option
@json_option("the equations' terms, or the values,")
@cache_options
def explain(
    model: Path,
    config: str | None,
    overrides: tuple[str, ...],
    op: str | None,
    memory: bool,
    schedule_out: Path | None,
    input_shapes: tuple[str, ...],
    bound: tuple[str, ...],
    schedule: Path | None,
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

    if op is None and not memory and schedule_out is None:
        raise UsageError("explain: needs --op NAME (time of an operator) or --memory (memory areas)")
    if op is not None and memory:
        raise UsageError("--op: not used with --memory, which covers the whole model")
    if op is None:
        _explain_memory(model, config, overrides, (input_shapes, bound), schedule, schedule_out, json_file)
        return
    arguments = (model, config, overrides, (input_shapes, bound), cache_dir, no_cache)
    try:
        session, program, found = prepare(*arguments, timing_only=True, schedule=schedule)
    except NeedsValueError:
        raise
    except UndecidedError:
        session, program, found = prepare(*arguments, schedule=schedule, decisions=True)
        _explain_planned(session, program, found, op, json_file)
        return
    candidates = find_operators(program, op)
    with progress(f"simulating {program.name} on {found.name}"):
        if program.resident_bytes:
            session.run(program, timing_only=True)  # it loads the pinned weights; the explained run finds them in SRAM
        result = session.run(program, timing_only=True)
    index, *rest = slowest_first(program, result, candidates)
    explanation, others = explained(program, result, found, index), [program.ops[other].name for other in rest]
    answer(json_file, lambda: {**as_json(explanation), "others": others}, lambda: text(explanation, found, others))


def _explain_planned(session: Any, program: Program, found: Config, op: str, json_file: str | None) -> None:
    """Explain an operator or a decision of a model that decides at run time, in a run with random inputs."""
    from npusim.cli.tensors import random_inputs
    from npusim.report.explain import as_json, explain, find_operators, host_json, host_text, slowest_first, text

    with progress(f"simulating {program.name} on {found.name}"):
        result = session.run(program, random_inputs(program.inputs, 0))
    index, *rest = slowest_first(result.program, result, find_operators(result.program, op))
    others = [result.program.ops[other].name for other in rest]
    part = result.part_of(index)
    if part is None:
        name = result.program.ops[index].name
        [layer] = [layer for layer in result.ops if (layer.name, layer.kind) == (name, result.program.ops[index].kind)]
        spans = [span for span in result.timeline.spans if span.op == index]
        answer(json_file, lambda: host_json(layer, spans), lambda: host_text(layer, spans, found, others))
        return
    run, place = part
    explanation = explain(run.program, run, found, place)
    answer(json_file, lambda: {**as_json(explanation), "others": others}, lambda: text(explanation, found, others))


def _explain_memory(
    model: Path,
    config: str | None,
    overrides: tuple[str, ...],
    given: tuple[tuple[str, ...], tuple[str, ...]],
    schedule: Path | None,
    schedule_out: Path | None,
    json_file: str | None,
) -> None:
    from npusim.cache import is_program
    from npusim.compiler.schedule.schedule_file import schedule_text
    from npusim.report.memory import as_json, text

    if model.suffix == ".npu" or is_program(model):
        raise UsageError(f"{model}: a compiled program has no reasons; --memory needs its model")
    if schedule_out is not None:
        check_destination(schedule_out)
    found = device(config if config is not None else "edge", overrides)
    with open_session(found, None, no_cache=True) as session:
        with progress(f"compiling {model.name} for {found.name}"):
            explained = session.explain_memory(model, shapes(given[0]), bind=values(given[1]), schedule=schedule)
        result = session.run(explained.program, timing_only=True)
    if schedule_out is not None:
        write_text(schedule_out, schedule_text(explained.schedule))
    answer(json_file, lambda: as_json(explained, result), lambda: text(explained, result))
