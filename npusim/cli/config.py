"""``npusim config``: the device descriptions."""

from __future__ import annotations

import click

from npusim.cli.base import CommandGroup, complete_config, device, json_option
from npusim.cli.output import answer, say, write_json
from npusim.errors import ConfigError


@click.group(cls=CommandGroup, short_help="List, show and check device descriptions.")
def config() -> None:
    """List, show and check device descriptions.

    \b
    Examples:
      npusim config list
      npusim config show edge > my.toml      a complete file to start from
      npusim config check my.toml
      npusim run model.onnx --config my.toml
    """


@config.command("list")
@json_option("the list")
def list_(json_file: str | None) -> None:
    """List the device descriptions that come with npusim."""
    from npusim.hw.config import list_configs, load_config
    from npusim.report.device import summary
    from npusim.report.format import table

    configs = [load_config(name) for name in list_configs()]
    rows = [(found.name, summary(found), found.description) for found in configs]
    answer(
        json_file,
        lambda: [{"name": c.name, "description": c.description, "origin": c.origin} for c in configs],
        lambda: "\n".join(table(("name", "device", "description"), rows)),
    )


@config.command()
@click.argument("name", shell_complete=complete_config, metavar="NAME|FILE")
@click.option("--keys", is_flag=True, help="A table of every key with its value, origin and meaning, instead of TOML.")
@json_option("the values in base units and where each comes from")
def show(name: str, keys: bool, json_file: str | None) -> None:
    """Show every value of a description, including defaults, and its origin.

    The output is TOML that describes the same device. Keys that only another dram.kind uses are left out.
    """
    from npusim.hw.build import sections
    from npusim.hw.keys import unused
    from npusim.report.format import table

    found = device(name, ())
    others = {f"{part}.{entry.name}" for part, section in sections(found) for _, entry, _ in unused(section)}
    if json_file is not None:
        origins = {key: origin for key, _, origin, _ in found.resolved()}
        facts = {"name": found.name, "origin": found.origin, "fingerprint": found.fingerprint()}
        write_json(json_file, {**facts, "values": found.to_table(), "origins": origins})
    if json_file == "-":
        return
    if keys:
        rows = [row for row in found.resolved() if row[0] not in others]
        say("\n".join(table(("key", "value", "from", "meaning"), rows)))
    else:
        say(f"# every value of {found.origin}\n{found.to_toml().rstrip()}", whole=True)


@config.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_config, metavar="NAME|FILE...")
@json_option("the problems of each file")
def check(names: tuple[str, ...], json_file: str | None) -> None:
    """Check descriptions; report all problems of all files."""
    problems: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        try:
            device(name, ())
        except ConfigError as error:
            problems[name] = list(error.problems)
    if json_file is not None:
        write_json(json_file, problems)
    if json_file != "-":
        for name, found in problems.items():
            say("\n".join(found) if found else f"{name}: ok")
    bad = [name for name, found in problems.items() if found]
    if bad:
        count = sum(map(len, problems.values()))
        raise ConfigError(f"{count} problem{'s' * (count > 1)} in {', '.join(bad)}")
