"""``npusim explore``: a space of designs, searched for the best ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npusim.cli.base import Command, json_option
from npusim.cli.output import again, answer, check_destination, progress_bar, replacing, say, write_text
from npusim.errors import UsageError

if TYPE_CHECKING:
    from npusim.explore.study import Study

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(cls=Command, short_help="Search a design space for its Pareto front.")
@click.argument("space", type=_FILE, metavar="SPACE")
@click.argument("stores", type=_FILE, nargs=-1, metavar="[STORE...]")
@click.option(
    "--workers",
    "-w",
    type=click.IntRange(min=0),
    metavar="N",
    show_default="one per processor",
    help="Number of worker processes; 0: simulate in this process.",
)
@click.option("--cluster", metavar="ADDRESS", help="Simulate on the Dask cluster with this scheduler.")
@click.option(
    "--store",
    type=_FILE,
    metavar="FILE",
    show_default="SPACE with the suffix .study, for a shard .I-of-N.study",
    help="File of results; a study continues from it.",
)
@click.option(
    "--trust-store",
    is_flag=True,
    help="Accept a store that another user or machine wrote, and sign it as yours.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=0),
    metavar="N",
    show_default="search.budget of SPACE",
    help="Maximum number of simulated designs; 0: only report the store, also while another process writes to it.",
)
@click.option("--shard", metavar="I/N", help="Simulate only part I of N parts of the space, into a store of its own.")
@click.option("--merge", is_flag=True, help="Join STORE..., such as those of shards, into the store, and report it.")
@click.option(
    "--top", type=click.IntRange(min=0), default=20, help="Number of designs of the Pareto front to list; 0: all."
)
@json_option("the Pareto front, the best designs, and the reasons of infeasible ones")
@click.option("--csv", "csv_file", type=_FILE, metavar="FILE", help="Write every simulated design as CSV.")
@click.option("--parquet", "parquet_file", type=_FILE, metavar="FILE", help="Write every simulated design as Parquet.")
@click.option(
    "--html",
    "html_file",
    type=_FILE,
    metavar="FILE",
    help="Write the designs as a self-contained HTML page with charts.",
)
@click.option(
    "--write",
    "write",
    nargs=2,
    type=(click.IntRange(min=0), _FILE),
    metavar="N FILE",
    help="Write design N as a device description, without a search.",
)
@click.pass_context
def explore(
    context: click.Context,
    space: Path,
    stores: tuple[Path, ...],
    workers: int | None,
    cluster: str | None,
    store: Path | None,
    trust_store: bool,
    budget: int | None,
    shard: str | None,
    merge: bool,
    top: int,
    json_file: str | None,
    csv_file: Path | None,
    parquet_file: Path | None,
    html_file: Path | None,
    write: tuple[int, Path] | None,
) -> None:
    """Search a design space for its Pareto front. SPACE is a TOML file with axes, models, objectives and limits.

    Small spaces are simulated completely. In large spaces, all designs are estimated and promising designs are
    simulated. Results are kept in the store: after Ctrl-C or a crash, the same command continues.

    \b
    Examples:
      npusim explore space.toml
      npusim explore space.toml --workers 8 --budget 200 --csv all.csv
      npusim explore space.toml --cluster tcp://scheduler:8786
      npusim explore space.toml --budget 0 --top 0
      npusim explore space.toml --shard 3/10
      npusim explore space.toml --merge space.*-of-10.study
      npusim explore space.toml --write 17 design.toml
    """
    _check_options(context.params)
    if write is not None:
        _write_design(space, *write)
        return
    for file in (csv_file, parquet_file, html_file, Path(json_file) if json_file not in (None, "-") else None):
        if file is not None:
            check_destination(file)
    from npusim.explore.report import text, to_json_dict, write_csv, write_parquet
    from npusim.explore.shards import StudyShard
    from npusim.explore.study import SUFFIX, Study

    part = None if shard is None else StudyShard.parse(shard)
    if part is not None and store is None:
        store = space.with_suffix(f".{part}{SUFFIX}")
    with Study(space, store=store, trust=trust_store, reading=budget == 0 and not trust_store) as study:
        if merge:
            study.merge(stores)
            budget = 0
        try:
            with progress_bar(f"exploring {study.space.name}") as show:
                study.run(workers=workers, cluster=cluster, budget=budget, shard=part, progress=show)
        except KeyboardInterrupt:
            count = len(study.rows)
            say(f"stopped with {count} designs in the store; continue with:\n  {again(context)}", err=True)
            raise
        answer(json_file, lambda: to_json_dict(study), lambda: text(study, top))
        for path, writer in ((csv_file, write_csv), (parquet_file, write_parquet), (html_file, _write_html)):
            if path is not None:
                with replacing(path) as draft:
                    writer(study, draft)
                if json_file != "-":
                    say(f"wrote {path}")


def _check_options(given: dict[str, Any]) -> None:
    """Refuse options that exclude each other."""
    merge, stores = given["merge"], given["stores"]
    if given["cluster"] is not None and given["workers"] is not None:
        raise UsageError("--cluster: not used with --workers; the cluster has its own workers")
    if merge != bool(stores):
        raise UsageError("--merge: needs the stores to join" if merge else f"{stores[0]}: stores need --merge")
    if merge and (given["shard"] is not None or given["budget"] is not None):
        raise UsageError("--merge: only joins and reports; not used with --shard or --budget")


def _write_design(space: Path, number: int, path: Path) -> None:
    """Write a design as a complete description. Needs neither models nor store."""
    from npusim.explore.reading import read_space

    check_destination(path)
    design = read_space(space).config(number)
    write_text(path, f"# design {number} of {space.name}\n{design.to_toml().lstrip()}")
    say(f"wrote {path}")


def _write_html(study: Study, path: Path) -> None:
    from npusim.explore.page import page

    path.write_text(page(study), "utf-8")
