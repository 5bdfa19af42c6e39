"""The command group, and the only place that converts errors to messages and exit codes.

0: success; 1: failure; 2: wrong options, device description or input; 130: interrupted;
143: terminated by SIGTERM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

import click

from npusim.cli import (
    compare,
    config,
    debug,
    device,
    device_server,
    driver_test,
    explore,
    fit,
    libs,
    load_test,
    replay,
    rerun,
    run,
    setup,
    signals,
    uml,
    validate,
    whatif,
)
from npusim.cli import compile as compiling
from npusim.cli import explain as explaining
from npusim.cli.base import CliState, CommandGroup, Interrupted, given_options
from npusim.cli.output import Warnings, abandon, command_line, say, terminal_width
from npusim.errors import ConfigError, InputError, NeedsValueError, NpusimError, OpenInputsError, UsageError
from npusim.report.format import LogFormatter, lines_of

MOST_LINES = 25
DONE, FAILED, USAGE = 0, 1, 2

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True}


@click.group(cls=CommandGroup, context_settings=SETTINGS)
@click.version_option(package_name="npusim", prog_name="npusim")
def app() -> None:
    """Run ONNX models on a simulated neural processing unit.

    The device is described by a TOML file; every instruction does its real arithmetic and takes modelled time.

    \b
    Examples:
      npusim demo                               a small network, no file needed
      npusim run resnet50.onnx --config edge    outputs, cycles, traffic, the slowest layers and the reasons
      npusim info --config edge                 the capabilities of that device
      npusim config check my.toml               all problems of a description
    """


for _command in (
    run.run,
    debug.debug,
    compare.compare,
    whatif.whatif,
    fit.fit,
    rerun.rerun,
    replay.replay,
    load_test.load_test,
    device_server.device_server,
    uml.uml,
    compiling.compile_,
    compiling.disasm,
    device.info,
    driver_test.driver_test,
    explaining.explain,
    config.config,
    explore.explore,
    validate.validate,
    libs.libs,
    setup.demo,
    setup.doctor,
    setup.cache,
    setup.completion,
):
    app.add_command(_command)


def main(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Every error is one paragraph on standard error."""
    state = CliState()
    with _warnings(), lines_of(terminal_width(sys.stdout)):
        try:
            code = app.main(list(arguments), prog_name="npusim", standalone_mode=False, obj=state)
            if sys.stdout is not None:  # None if the descriptor is closed
                sys.stdout.flush()  # report a full disk now, not at the shutdown of the interpreter
            return code if isinstance(code, int) else DONE
        except (Interrupted, KeyboardInterrupt, click.Abort):
            say(signals.message(), err=True)
            return signals.code()
        except BrokenPipeError:  # the reader (head, less) has ended
            abandon(sys.stdout)
            return FAILED
        except Exception as error:  # noqa: BLE001 the last handler: a person gets a sentence, --debug the traceback
            if state.debug:
                say(traceback.format_exc().rstrip(), err=True)
            code, message = explain(error, arguments)
            say(f"npusim: error: {message}", err=True)
            abandon(sys.stdout)
            return code


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    """Print warnings of the library as lines on standard error."""
    logger, handler = logging.getLogger("npusim"), Warnings()
    handler.setFormatter(LogFormatter("npusim: %(levelname)s: %(message)s"))
    handler.addFilter(_lower_level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _lower_level(record: logging.LogRecord) -> bool:
    record.levelname = record.levelname.lower()
    return record.levelno >= logging.WARNING


def explain(error: Exception, arguments: Sequence[str] = ()) -> tuple[int, str]:
    """The exit code and the paragraph for an error of a command line."""
    match error:
        case OpenInputsError() | NeedsValueError():
            return USAGE, _shorten(error.problem) + _advice(error, arguments)
        case click.UsageError():
            hint = f"; see {error.ctx.command_path} --help" if error.ctx else ""
            return USAGE, error.format_message().rstrip(".") + hint
        case click.ClickException():
            return error.exit_code, error.format_message()
        case UsageError() | ConfigError() | InputError():
            return USAGE, _shorten(str(error))
        case NpusimError():
            return FAILED, _shorten(str(error))
        case MemoryError():
            return FAILED, "this machine has too little memory for that"
        case OSError():
            where = f"{os.fspath(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
            return FAILED, f"{where}{error.strerror or error}"
        case _:
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            return FAILED, f"a defect of npusim, please report it with the output of --debug: {text}"


def _advice(error: OpenInputsError | NeedsValueError, arguments: Sequence[str]) -> str:
    """Advice for a model with open dimensions or values: a complete command, if one is known."""
    command = app.commands.get(arguments[0]) if arguments else None
    takes = {parameter.name for parameter in command.params} if command is not None else set()
    if "bound" not in takes:  # for example a space file, which has keys with these names
        return str(error).removeprefix(error.problem)
    arrays = "inputs" in takes and "--timing-only" not in arguments
    if None in error.values.values() or not (error.shapes or error.values):
        names = " ".join(f"--bind {name}=..." for name in error.values)
        return f"\nGive {'arrays (--input NAME=FILE.npy), or ' * arrays}values: {names}" * bool(names)
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    words[end:end] = given_options(error.shapes, error.values)
    advice = "Give arrays (--input NAME=FILE.npy), or set it" if arrays else "Set it"
    return f"\n{advice} by hand:\n  {command_line(['npusim', *words])}"


def _shorten(message: str) -> str:
    """The first lines of a very long list of problems."""
    lines = message.splitlines()
    if len(lines) <= MOST_LINES:
        return message
    return "\n".join([*lines[: MOST_LINES - 1], f"... and {len(lines) - MOST_LINES + 1} more; --debug shows them all"])
