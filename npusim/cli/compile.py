"""``npusim compile`` and ``npusim disasm``: programs as files and as text."""

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
    schedule_option,
    shape_options,
    shapes,
    values,
)
from npusim.cli.models import load_program, open_session, save_program
from npusim.cli.output import answer, check_destination, progress, say, write_json


@click.command("compile", cls=Command, short_help="Compile a model into a program file.")
@model_argument
@config_options()
@shape_options
@schedule_option
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The program file; default: MODEL with the suffix .npu.",
)
@json_option("the program's sizes, inputs and outputs")
@cache_options
def compile_(
    model: Path,
    config: str,
    overrides: tuple[str, ...],
    input_shapes: tuple[str, ...],
    bound: tuple[str, ...],
    schedule: Path | None,
    output: Path | None,
    json_file: str | None,
    cache_dir: Path | None,
    no_cache: bool,
) -> None:
    """Compile MODEL for one device into a program file.

    The program runs only on the device that it was compiled for.

    \b
    Examples:
      npusim compile resnet50.onnx --config edge -o resnet50.npu
      npusim disasm resnet50.npu | less
      npusim run resnet50.npu
    """
    from npusim.report.program import as_json, text

    target = output if output is not None else model.with_suffix(".npu")
    check_destination(target)
    found = device(config, overrides)
    with progress(f"compiling {model.name} for {found.name}"):
        session = open_session(found, cache_dir, no_cache)
        program = session.compile(model, shapes(input_shapes), bind=values(bound), schedule=schedule)
    save_program(program, target)
    answer(json_file, lambda: {"file": str(target), **as_json(program)}, lambda: text(program, str(target)))


@click.command(cls=Command, short_help="Show the instructions of a program.")
@click.argument("program", type=click.Path(path_type=Path), metavar="PROGRAM")
@click.option("--op", metavar="TEXT", help="Only the commands of operators whose name contains TEXT.")
@json_option("the commands")
def disasm(program: Path, op: str | None, json_file: str | None) -> None:
    """Show the instructions of PROGRAM (.npu), one line each.

    \b
    Examples:
      npusim disasm resnet50.npu
      npusim disasm resnet50.npu --op conv1
    """
    from npusim.isa import decode
    from npusim.isa.disassemble import disassemble

    loaded = load_program(program)
    names = [entry.name for entry in loaded.ops]
    commands = list(decode(loaded.code))
    lines = [
        line
        for command, line in zip(commands, disassemble(commands, names), strict=True)
        if op is None or (command.op < len(names) and op in names[command.op])
    ]
    if json_file is not None:
        write_json(json_file, {"name": loaded.name, "config": loaded.config_name, "commands": lines})
    if json_file != "-":
        for line in lines:
            say(line, whole=True)
