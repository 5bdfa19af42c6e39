"""``npusim replay``: replay a bus trace on a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npusim.cli.base import Command, config_options, device, json_option
from npusim.cli.output import answer, check_destination, progress, replacing

if TYPE_CHECKING:
    from npusim.hw.config import Config


@click.command(cls=Command, short_help="Replay a bus trace and report the first difference.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.npt")
@config_options(default=None, without="the one that was recorded")
@click.option(
    "--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write a trace that opens in ui.perfetto.dev."
)
@click.option("--allow-cut", is_flag=True, help="Accept a truncated trace, such as that of a killed process.")
@json_option("the result")
@click.pass_context
def replay(
    context: click.Context,
    file: Path,
    config: str | None,
    overrides: tuple[str, ...],
    trace: Path | None,
    allow_cut: bool,
    json_file: str | None,
) -> None:
    """Replay the accesses of FILE.npt, from --bus-trace or $NPUSIM_BUS_TRACE, on the recorded or another device.

    The exit code is 0 if every access has the recorded result and time, else 1 with the first access that differs: its
    expected and its actual result. A truncated trace ends with 1 unless --allow-cut is given. A trace without accesses
    is an error, because there is nothing to compare.

    \b
    Examples:
      npusim run model.onnx --config edge --bus-trace run.npt
      npusim replay run.npt
      npusim replay run.npt --set host.mmio='300 ns'
      npusim replay run.npt --trace run.perfetto-trace
    """
    from npusim.device.npu import NpuDevice
    from npusim.device.traces import read_trace
    from npusim.device.traces import replay as play
    from npusim.hw.config import config_of
    from npusim.report.bus import Lanes

    if trace is not None:
        check_destination(trace)
    recorded = read_trace(file)
    found: Config = device(config, ()) if config is not None else config_of(recorded.head["config"], str(file))
    if overrides:
        found = device(found, overrides)
    npu = NpuDevice(found, recorded.head.get("faults"), adversary=recorded.head.get("adversary"))
    lanes = Lanes(npu)
    with progress(f"replaying {file}"):
        difference = play(recorded, npu, lanes.accessed)
    if trace is not None:
        with replacing(trace) as draft:
            lanes.write(draft)
    count = recorded.compared
    same = difference is None and recorded.complete
    head = "differs" if difference else "the same" if same else "incomplete, the same as far as it goes"
    lines = [f"{file}: {head}: {count} accesses in {npu.now_ps} ps"]
    if not recorded.complete:
        lines.append("  the file was cut off: its end is missing")
    if difference:
        lines.append(f"  first    {difference}")
    if trace is not None:
        lines.append(f"wrote {trace}")
    answer(
        json_file,
        lambda: {
            "same": same,
            "complete": recorded.complete,
            "accesses": count,
            "time_ps": npu.now_ps,
            "first": difference and difference.to_json_dict(),
        },
        lambda: "\n".join(lines),
    )
    context.exit(0 if same or (allow_cut and difference is None) else 1)
