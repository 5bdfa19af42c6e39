"""``npusim demo``, ``doctor``, ``cache`` and ``completion``: try, check and tidy an installation."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.base import Command, CommandGroup, config_options, device, json_option
from npusim.cli.output import answer, check_destination, progress, replacing, say, write_json
from npusim.errors import NpusimError, UsageError


@click.command(cls=Command, short_help="Run a small built-in network and check its outputs.")
@config_options()
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE.onnx",
    help="Also write the network as an ONNX model, and its input as image.npy beside it.",
)
@json_option("the result")
def demo(config: str, overrides: tuple[str, ...], save: Path | None, json_file: str | None) -> None:
    """Run a small built-in network on a device, check its outputs against the reference, and report.

    The network is built in memory: no file is needed, and the package onnx only for --save.

    \b
    Examples:
      npusim demo
      npusim demo --config tiny
      npusim demo --save model.onnx         a model to try npusim run with, and image.npy
    """
    found = device(config, overrides)

    from npusim.cli.tensors import write_arrays
    from npusim.demo import TOLERANCE, as_onnx, inputs, run
    from npusim.report.run import text

    written: list[Path] = []
    if save is not None:
        check_destination(save)
        model = as_onnx()
        with replacing(save) as draft:
            draft.write_bytes(model)
        written = [save, *write_arrays(save.parent, inputs())]
    with progress(f"running the demo on {found.name}"):
        outcome = run(found)
    if json_file is not None:
        write_json(json_file, {**outcome.result.to_json_dict(), "difference": outcome.difference})
    if json_file != "-":
        say(text(outcome.result, found, "image float32[1, 3, 32, 32], random with seed 1"))
    if not outcome.correct:
        raise NpusimError(
            f"the outputs differ from the reference by {outcome.difference:.2e} of the largest output; "
            f"at most {TOLERANCE:.0e} is allowed"
        )
    if json_file != "-":
        say(f"\nThe outputs agree with the reference within {outcome.difference:.1e} of the largest output.")
        if written:
            say(f"wrote {', '.join(map(str, written))}")


@click.command(cls=Command, short_help="Check this installation.")
@json_option("the findings")
def doctor(json_file: str | None) -> None:
    """Check this installation: versions, compiled kernels, configs, cache, conflicts."""
    from npusim.cache import default_directory
    from npusim.doctor import Severity, examine
    from npusim.report.format import table

    found = examine(default_directory())
    rows = [(finding.subject, finding.verdict.value, finding.detail) for finding in found]
    answer(
        json_file,
        lambda: [dict(zip(("subject", "verdict", "detail"), row, strict=True)) for row in rows],
        lambda: "\n".join(table(("what", "verdict", "found"), rows)),
    )
    failed = [finding.subject for finding in found if finding.verdict is Severity.FAILED]
    if failed:
        raise NpusimError(f"this installation does not work: {', '.join(failed)}")


@click.group(cls=CommandGroup, short_help="List, prune or clear cached programs.")
def cache() -> None:
    """List, prune or clear the cached programs.

    The cache holds at most 4 GiB, or $NPUSIM_CACHE_SIZE; the least recently used programs are evicted first.

    \b
    Examples:
      npusim cache list
      npusim cache prune --size '500 MB'
      npusim cache clear
    """


_DIRECTORY = click.option(
    "--cache-dir", type=click.Path(path_type=Path), metavar="DIR", help="Use this cache directory."
)


@cache.command("list")
@_DIRECTORY
@json_option("the list")
def list_(cache_dir: Path | None, json_file: str | None) -> None:
    """List the cached programs with their sizes."""
    from npusim.cache import Cache, default_directory
    from npusim.report.format import capacity, table

    directory = cache_dir if cache_dir is not None else default_directory()
    kept_in = Cache(directory)
    found = kept_in.entries()
    kept = [{"file": str(e.path), "model": e.model, "config": e.config, "bytes": e.bytes} for e in found]
    rows = [(e.model, e.config, capacity(e.bytes), e.path.name) for e in found]
    lines = table(("model", "config", "size", "file"), rows, right="<<><")
    lines.append(f"{capacity(sum(e.bytes for e in found))} of at most {capacity(kept_in.limit)} in {directory}")
    answer(json_file, lambda: kept, lambda: "\n".join(lines))


@cache.command()
@_DIRECTORY
@click.option("--size", metavar="SIZE", help="Size to keep, such as '500 MB'; default: the limit of the cache.")
def prune(cache_dir: Path | None, size: str | None) -> None:
    """Remove the least recently used programs until the cache is small enough.

    \b
    Examples:
      npusim cache prune
      npusim cache prune --size '500 MB'
    """
    from npusim.cache import Cache, default_directory
    from npusim.report.format import capacity, counted
    from npusim.units import Dimension, parse

    directory = cache_dir if cache_dir is not None else default_directory()
    try:
        limit = None if size is None else parse(size, Dimension.SIZE)
    except UsageError as error:
        raise UsageError(f"--size: {error}") from None
    sizes = Cache(directory).prune(limit)
    say(f"removed {counted(len(sizes), 'program')}, {capacity(sum(sizes))}, from {directory}")


@cache.command()
@_DIRECTORY
def clear(cache_dir: Path | None) -> None:
    """Remove all cached programs and results of whatif; other files in the directory stay."""
    from npusim.cache import Cache, default_directory
    from npusim.explore.store import clear_whatif
    from npusim.report.format import capacity, counted

    directory = cache_dir if cache_dir is not None else default_directory()
    sizes, results = Cache(directory).clear(), clear_whatif(directory)
    more = f" and {counted(len(results), 'store')} of whatif" if results else ""
    say(f"removed {counted(len(sizes), 'program')}{more}, {capacity(sum(sizes) + sum(results))}, from {directory}")


@click.command(cls=Command, short_help="Print shell completion for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options, configs and files in SHELL.

    \b
    Examples:
      eval "$(npusim completion bash)"                                      in ~/.bashrc
      eval "$(npusim completion zsh)"                                       in ~/.zshrc
      npusim completion fish > ~/.config/fish/completions/npusim.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise NpusimError(f"the installed click cannot complete in {shell}")
    say(kind(click.get_current_context().find_root().command, {}, "npusim", "_NPUSIM_COMPLETE").source(), whole=True)
