"""``npusim debug``: stop a job, inspect it, and continue or step back."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click

from npusim.cli.base import Command, cache_options, config_options, model_argument, shape_options
from npusim.cli.output import say
from npusim.untrusted import FileKind

SCRIPT = FileKind("debugger script", 1 << 20)


@click.command(cls=Command, short_help="Step through a run: breakpoints, watchpoints, reverse stepping.")
@model_argument
@config_options(default=None)
@click.option("--input", "-i", "inputs", multiple=True, metavar="NAME=FILE.npy", help="The data of one input.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, help="Seed of the random inputs, used when no --input is given."
)
@click.option("--allow-nan", is_flag=True, help="Accept inputs that hold NaN.")
@shape_options
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Debugger commands, one per line; - is standard input.",
)
@cache_options
def debug(
    model: Path,
    config: str | None,
    overrides: tuple[str, ...],
    inputs: tuple[str, ...],
    seed: int,
    allow_nan: bool,
    input_shapes: tuple[str, ...],
    bound: tuple[str, ...],
    script: Path | None,
    cache_dir: Path | None,
    no_cache: bool,
) -> None:
    """Load MODEL (.onnx, or .npu from npusim compile) onto a device and stop its clock.

    Commands come from a terminal, from --script, or from standard input: break, watch, step, continue, until, back,
    where, print, list, layers, regions, checkpoint, restore; help lists them, help NAME explains one. A script ends
    at the first command that fails, with exit code 2. All times are simulated.

    \b
    Examples:
      npusim debug model.onnx --config tiny
      npusim debug model.npu --script commands.txt
      printf 'break layer conv0\\ncontinue\\nwhere\\n' | npusim debug model.onnx
    """
    from npusim.cli.run import prepare
    from npusim.cli.tensors import arrays_of_run
    from npusim.debug.bench import Bench, JobRequest
    from npusim.debug.shell import Shell

    session, program, found = prepare(
        model, config, overrides, (input_shapes, bound), cache_dir, no_cache, inputs, timing_only=False
    )
    arrays = arrays_of_run(model, program, inputs, seed, allow_nan)
    session.close()  # the debugger opens its own device
    strict = script is not None or not sys.stdin.isatty()
    source = sys.stdin if script is None or str(script) == "-" else io.StringIO(SCRIPT.text(script))
    with Bench(found) as bench:
        request = JobRequest(program, None, arrays)
        shell = Shell(bench, request, lambda text: say(text, whole=True), stdin=source, strict=strict)
        shell.cmdloop()
        if shell.failed is not None:
            raise shell.failed
