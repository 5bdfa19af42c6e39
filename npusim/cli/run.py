"""``npusim run``: compute and time a model on a device."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
from npusim.cli.fault_options import driven_options
from npusim.cli.models import load_program, open_session
from npusim.cli.output import check_destination, progress, replacing, say, write_json, write_text
from npusim.errors import UsageError

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.program import Program
    from npusim.report.arrivals import Arrivals
    from npusim.runtime import Result
    from npusim.runtime.provenance import Origin


@click.command(cls=Command, short_help="Compute and time a model on a device.")
@model_argument
@config_options(default=None)
@click.option("--input", "-i", "inputs", multiple=True, metavar="NAME=FILE.npy", help="The data of one input.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, help="Seed of the random inputs, used when no --input is given."
)
@click.option("--allow-nan", is_flag=True, help="Accept inputs that hold NaN.")
@shape_options
@schedule_option
@click.option(
    "--resident-weights", is_flag=True, help="Keep weights in SRAM between runs: --set compiler.resident_weights=true."
)
@click.option(
    "--timing-only",
    is_flag=True,
    help="Compute times but no outputs. Faster; files of weights may be missing.",
)
@click.option(
    "--output-dir", "-o", type=click.Path(path_type=Path), metavar="DIR", help="Write each output as DIR/NAME.npy."
)
@json_option("the result")
@click.option(
    "--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write a trace that opens in ui.perfetto.dev."
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a self-contained HTML page with charts.",
)
@driven_options
@click.option(
    "--bus-trace",
    type=click.Path(path_type=Path),
    metavar="FILE.npt",
    help="Record all accesses between driver and device, for npusim replay.",
)
@click.option(
    "--timeout",
    metavar="TIME",
    help="Simulated time after which the driver aborts a run, such as '2 s'; by default when the device has stopped.",
)
@click.option("--top", type=click.IntRange(min=0), default=10, help="Number of slowest layers to list.")
@click.option("--no-host", is_flag=True, help="Refuse models that need the host to decide what is computed.")
@cache_options
def run(
    model: Path,
    config: str | None,
    overrides: tuple[str, ...],
    inputs: tuple[str, ...],
    seed: int,
    allow_nan: bool,
    input_shapes: tuple[str, ...],
    bound: tuple[str, ...],
    schedule: Path | None,
    resident_weights: bool,
    timing_only: bool,
    output_dir: Path | None,
    json_file: str | None,
    trace: Path | None,
    page: Path | None,
    check_driver: bool,
    adversary: int | None,
    faults: Path | None,
    timeout: str | None,
    bus_trace: Path | None,
    top: int,
    no_host: bool,
    cache_dir: Path | None,
    no_cache: bool,
) -> None:
    """Run MODEL (.onnx, .tflite, or .npu from npusim compile) on a device and report outputs, times and traffic.

    Without --input, the inputs are random numbers from --seed. With it, the arrays also define the open dimensions of
    the model, and the values of small inputs that determine shapes or branches. Other values that determine shapes,
    branches or the number of iterations are read by the host between programs; --no-host refuses such models.

    If weights stay in SRAM between runs, the model runs twice. The report shows the time of the first run, which loads
    the weights, on a line of its own; all other figures are those of the second run.

    \b
    Examples:
      npusim run resnet50.onnx --config edge
      npusim run m.onnx --config my.toml --input x=x.npy --output-dir out --json run.json
      npusim run m.onnx --set dram.bandwidth='8 GB/s' --timing-only --trace m.perfetto-trace
      npusim run m.onnx --config edge --timing-only --html m.html
      npusim run m.onnx --input-shape ids=1,128 --bind steps=4
      npusim run m.onnx --config edge --faults faults.toml --timeout '1 s'
    """
    from npusim.cli.tensors import arrays_of_run, describe_inputs
    from npusim.device.check import VARIABLE
    from npusim.report.arrivals import Arrivals
    from npusim.report.run import first_run, text

    _check_destinations(json_file, (trace, page, bus_trace), output_dir, timing_only)
    if timing_only and inputs:
        raise UsageError("--input: not used with --timing-only")
    if resident_weights:
        overrides = (*overrides, "compiler.resident_weights=true")
    session, program, found = prepare(
        model,
        config,
        overrides,
        (input_shapes, bound),
        cache_dir,
        no_cache,
        inputs,
        timing_only=timing_only,
        schedule=schedule,
        options=_session_options(faults, timeout, check_driver, adversary, bus_trace),
        decisions=not no_host,
    )
    arrays = None
    if not timing_only:
        arrays = arrays_of_run(model, program, inputs, seed, allow_nan)
    note = describe_inputs(program, inputs, None if timing_only else seed)
    first: Result | None = None
    arrivals = Arrivals()
    with progress(f"simulating {program.name} on {found.name}"):
        if program.resident_bytes:
            first = session.run(program, arrays, timing_only=timing_only)
        if trace is not None:
            session.device.watch(arrivals)
        result: Result = session.run(program, arrays, timing_only=timing_only)
    session.device.faults.check()
    result.seed = seed if arrays is not None and not inputs else None
    if result.origin is None:
        result.origin = _file_origin(model)
    written = _write_files(result, program, found, output_dir, trace, arrivals)
    if page is not None:
        _write_page(page, result, [("inputs", note), *first_run(first, found)])
        written.append(str(page))
    if json_file is not None:
        alone = {"first": first.costs()} if first is not None else {}
        write_json(json_file, {**result.to_json_dict(), **alone, "inputs": note})
        written.append(json_file)
    if bus_trace is not None:
        written.append(str(bus_trace))
    if json_file != "-":
        say("\n".join([text(result, found, note, top=top, first=first), *(f"wrote {file}" for file in written)]))
    if check_driver or os.environ.get(VARIABLE) or bus_trace is not None:
        session.close()  # raises driver mistakes and completes the trace


def _session_options(
    faults: Path | None, timeout: str | None, check_driver: bool, adversary: int | None, bus_trace: Path | None
) -> dict[str, Any]:
    """The options that are arguments of the session, by argument name."""
    given = {
        "faults": faults,
        "timeout": timeout,
        "check_driver": check_driver or None,
        "adversary": adversary,
        "bus_trace": bus_trace,
    }
    return {name: value for name, value in given.items() if value is not None}


def _file_origin(model: Path) -> Origin:
    """The origin of a compiled program."""
    from npusim.frontends.models import digest_file
    from npusim.runtime.provenance import Origin

    return Origin("program", str(model), digest_file(model))


def _check_destinations(
    json_file: str | None, files: tuple[Path | None, ...], output_dir: Path | None, timing_only: bool
) -> None:
    """Raise UsageError before the run for output files that cannot be written."""
    if json_file not in (None, "-"):
        check_destination(Path(str(json_file)))
    for file in files:
        if file is not None:
            check_destination(file)
    if output_dir is not None and timing_only:
        raise UsageError("--output-dir: there are no outputs with --timing-only")
    if output_dir is not None and output_dir.exists() and not output_dir.is_dir():
        raise UsageError(f"--output-dir {output_dir}: is a file; a directory is needed")


def _write_files(
    result: Result, program: Program, found: Config, output_dir: Path | None, trace: Path | None, arrivals: Arrivals
) -> list[str]:
    from npusim.cli.tensors import write_arrays
    from npusim.report.flows import flows, queues
    from npusim.report.perfetto import write_trace
    from npusim.report.result import flattened

    written = [] if output_dir is None else list(map(str, write_arrays(output_dir, flattened(result.outputs))))
    if trace is not None:
        with replacing(trace) as draft:
            write_trace(
                draft,
                result.timeline,
                result.program.ops,
                found.clock_hz,
                result.memory,
                result.provenance,
                flows(result.program, result.timeline),
                queues(result.timeline, arrivals.of_units),
            )
        written.append(str(trace))
    return written


def _write_page(path: Path, result: Result, notes: list[tuple[str, str]]) -> None:
    from npusim.report.html import run_page

    write_text(path, run_page(result, notes=notes))


def prepare(
    model: Path,
    config: str | None,
    overrides: tuple[str, ...],
    given: tuple[tuple[str, ...], tuple[str, ...]],
    cache_dir: Path | None,
    no_cache: bool,
    inputs: tuple[str, ...] = (),
    *,
    timing_only: bool = False,
    schedule: Path | None = None,
    options: Mapping[str, Any] | None = None,
    decisions: bool = False,
) -> tuple[Any, Program, Config]:
    """Open a session and compile a model file, as all commands that simulate do first.

    ``given``: the texts of --input-shape and --bind. ``inputs``: those of --input, which define open dimensions.
    ``schedule``: the file of --schedule. ``options``: further arguments of the session.
    ``decisions``: whether models that decide at run time what is computed are accepted.
    """
    from npusim.cache import is_program
    from npusim.hw.config import list_configs

    if model.suffix == ".npu" or is_program(model):
        for option, texts in zip(("--input-shape", "--bind"), given, strict=True):
            if texts:
                raise UsageError(f"{option}: the inputs of a compiled program are fixed")
        if schedule is not None:
            raise UsageError(f"--schedule: {model} is compiled already; give its model, or compile it with a schedule")
        program = load_program(model)
        name = program.config_name if config is None else config
        if config is None and name not in list_configs():
            raise UsageError(
                f"{model}: was compiled for a device called {name!r}, which does not come with npusim; "
                "give its description with --config FILE"
            )
        found = device(name, overrides)
        if program.config_fingerprint != found.fingerprint():
            raise UsageError(
                f"{model}: was compiled for a device called {program.config_name!r} that is not this {found.name!r}; "
                "give the --config and --set that it was compiled with"
            )
        needed = sum(program.region_bytes)
        if needed > found.dram.bytes:  # checked before inputs are created, because a file may claim terabytes
            raise UsageError(f"{model}: needs {needed} bytes of DRAM, {found.name} has {found.dram.bytes}")
        return open_session(found, None, True, options), program, found
    found = device(config if config is not None else "edge", overrides)
    session = open_session(found, cache_dir, no_cache, options)
    arrays = None
    if inputs:
        from npusim.cli.tensors import input_files, mapped
        from npusim.frontends.models import input_names

        arrays = {name: mapped(name, file) for name, file in input_files(inputs, input_names(model)).items()}
        for name in arrays.keys() & values(given[1]).keys():
            raise UsageError(f"--bind {name}=...: input {name!r} has an array already")
    with progress(f"compiling {model.name} for {found.name}"):
        dims, bound = shapes(given[0]), values(given[1])
        program = session.compile(
            model,
            dims,
            bind=bound,
            inputs=arrays,
            timing_only=timing_only,
            schedule=schedule,
            decisions=decisions and not timing_only,
        )
        return session, program, found
