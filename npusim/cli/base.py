"""The command and group classes of the command line, and the options that several commands share."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from npusim.cli.output import fitted
from npusim.errors import UsageError

if TYPE_CHECKING:
    from npusim.hw.config import Config

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class CliState:
    """The values of the options that every command has."""

    debug: bool = False


class Interrupted(Exception):  # noqa: N818 it is no error
    """Ctrl-C. Not a KeyboardInterrupt, because click adds an empty line to that."""


def _set_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(CliState).debug = True


class Command(click.Command):
    """A command with the options that all commands share."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        text = "Show the Python traceback of an error."
        self.params.append(click.Option(["--debug"], is_flag=True, expose_value=False, callback=_set_debug, help=text))

    def get_help(self, ctx: click.Context) -> str:
        """The help text, wrapped to the terminal."""
        return fitted(super().get_help(ctx))  # examples may exceed the width


RENAMED = {"serve": "device-server", "serving": "load-test"}
"""Former names of commands, and the names that replaced them."""


class CommandGroup(click.Group):
    """A group of such commands, listed in the order in which they were added."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of this name. Raises UsageError with the new name for a former one."""
        if args[0] in RENAMED and args[0] not in self.commands:
            raise click.UsageError(f"the command {args[0]} is now called {RENAMED[args[0]]}", ctx)
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        """The help text, wrapped to the terminal."""
        return fitted(super().get_help(ctx))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands in the order in which they were added."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, show the help."""
        # Without a command, show the help. Newer versions of click raise an error instead.
        return super().parse_args(ctx, args or ["--help"])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises Interrupted for Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


def complete_config(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completion of a device: the shipped names, then files."""
    from npusim.hw.config import list_configs

    names = [CompletionItem(name) for name in list_configs() if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


model_argument = click.argument("model", type=click.Path(path_type=Path, dir_okay=False), metavar="MODEL")
"""The model file. The reader checks that it exists and raises npusim's own error."""


def config_options(
    default: str | None = "edge", without: str = "the one the program was compiled for, else edge"
) -> Callable[[F], F]:
    """The options --config and --set. ``without``: the text that the help shows if there is no default."""
    shown = default if default is not None else without

    def decorate(function: F) -> F:
        function = click.option(
            "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one value: dram.bandwidth='8 GB/s'."
        )(function)
        return click.option(
            "--config",
            "-c",
            "config",
            shell_complete=complete_config,
            default=default,
            show_default=shown,
            metavar="NAME|FILE",
            help="The device: a name (see npusim config list) or a TOML file.",
        )(function)

    return decorate


def json_option(what: str) -> Callable[[F], F]:
    """--json FILE, '-' for standard output."""
    return click.option("--json", "json_file", metavar="FILE", help=f"Write {what} as JSON; - is standard output.")


def cache_options(function: F) -> F:
    """The options --cache-dir and --no-cache."""
    function = click.option("--no-cache", is_flag=True, help="Compile without reading or writing the cache.")(function)
    return click.option(
        "--cache-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Directory of compiled programs.",
        show_default="~/.cache/npusim, or $NPUSIM_CACHE_DIR",
    )(function)


def shape_options(function: F) -> F:
    """The options --input-shape and --bind."""
    function = click.option(
        "--bind",
        "bound",
        multiple=True,
        metavar="NAME=VALUE",
        help="Make an input a constant: sr=16000, or comma-separated numbers.",
    )(function)
    return click.option(
        "--input-shape",
        "input_shapes",
        multiple=True,
        metavar="NAME=N,N,...",
        help="The shape of an input with open dimensions.",
    )(function)


def schedule_option(function: F) -> F:
    """The option --schedule: given choices of the compiler."""
    return click.option(
        "--schedule",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="A JSON file with choices of the compiler, such as cascades; the others are searched.",
    )(function)


def device(name: str | Config, overrides: tuple[str, ...]) -> Config:
    """A device description by name, or a given one, with all KEY=VALUE of --set applied and checked together."""
    from npusim.hw.config import load_config

    config = load_config(name)
    changes: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text}: must be KEY=VALUE such as dram.bandwidth='8 GB/s'")
        try:
            changes[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            changes[key.strip()] = value.strip()  # a quantity whose quotes the shell has removed
    return config.with_(**changes) if changes else config


def shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]] | None:
    """``("x=1,3,224,224",)`` as a mapping. An empty list of dimensions is a scalar. None if no option is given."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        try:
            shape = tuple(int(dim) for dim in dims.split(",")) if dims.strip() else ()
        except ValueError:
            equals, shape = "", ()
        if not equals or not name or any(dim < 0 for dim in shape):
            raise UsageError(f"--input-shape {text}: must be NAME=N,N,... with integers >= 0, such as x=1,3,224,224")
        if name in found:
            raise UsageError(f"--input-shape {text}: input {name!r} has a shape already")
        found[name] = shape
    return found or None


def values(texts: tuple[str, ...]) -> dict[str, Any]:
    """``("sr=16000", "axes=1,2")`` as numbers, booleans and lists of them, by name."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        try:
            numbers = [_number(number.strip()) for number in value.split(",")] if value.strip() else []
        except (ValueError, RecursionError):
            name = ""
        if not equals or not name:
            raise UsageError(f"--bind {text}: must be NAME=VALUE with a number, several with commas, true or false")
        if name in found:
            raise UsageError(f"--bind {text}: input {name!r} has a value already")
        found[name] = numbers[0] if len(numbers) == 1 else numbers
    return found


def _number(text: str) -> float:
    """A number or a boolean. Raises ValueError."""
    if text.lower() in ("nan", "inf", "-inf"):
        return float(text)
    number = json.loads(text.lower())
    if not isinstance(number, int | float):
        raise ValueError(text)
    return number


def given_options(shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any]) -> list[str]:
    """The options that :func:`shape_options` reads as these shapes and values."""
    options = [f"--input-shape={name}={','.join(map(str, shape))}" for name, shape in shapes.items()]
    return [*options, *(f"--bind={name}={','.join(map(_literal, _flat(value)))}" for name, value in values.items())]


def _flat(value: Any) -> list[Any]:
    return [number for each in value for number in _flat(each)] if isinstance(value, list) else [value]


def _literal(number: float) -> str:
    return str(number).lower() if isinstance(number, bool) else repr(number)
