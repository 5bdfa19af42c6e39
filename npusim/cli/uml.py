"""``npusim uml``: a User Mode Linux kernel on the simulated device."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import BinaryIO

import click

from npusim.cli.base import Command, complete_config, device
from npusim.cli.fault_options import driven_options, judge
from npusim.cli.output import check_destination, say
from npusim.errors import NpusimError, UsageError

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command(cls=Command, short_help="Run a User Mode Linux kernel on simulated time.")
@click.argument("config", metavar="[NAME|FILE]", shell_complete=complete_config, default="tiny")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one value of the device.")
@click.option(
    "--kernel",
    type=_PATH,
    metavar="FILE",
    show_default="$NPUSIM_UML_KERNEL, else what make uml has built",
    help="The User Mode Linux kernel.",
)
@click.option("--initrd", type=_PATH, metavar="FILE", help="An initramfs; replaces the next four options.")
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="'FILE.ko [NAME=VALUE ...]'",
    help="A module to load; modules load in the given order.",
)
@click.option("--run", "program", metavar="'FILE [ARGUMENT ...]'", help="A static binary or busybox script to run.")
@click.option("--file", "files", multiple=True, metavar="FILE:PATH", help="Copy FILE to PATH in the initramfs.")
@click.option("--busybox", type=_PATH, metavar="FILE", show_default="beside the kernel", help="A static busybox.")
@driven_options
@click.option("--append", default="", metavar="'ARGUMENT ...'", help="Append to the kernel command line.")
@click.option("--memory", default="128M", metavar="SIZE", help="Memory size of the kernel.")
@click.option(
    "--log", type=_PATH, metavar="FILE", show_default="standard output", help="Write the kernel console to this file."
)
@click.option("--limit", default="1000 s", metavar="TIME", help="Limit of simulated time.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=60,
    metavar="SECONDS",
    help="Host time without progress after which the kernel counts as hung.",
)
@click.option("--tolerant", is_flag=True, help="Do not fail on warnings in the kernel log.")
def uml(
    config: str,
    overrides: tuple[str, ...],
    kernel: Path | None,
    initrd: Path | None,
    modules: tuple[str, ...],
    program: str | None,
    files: tuple[str, ...],
    busybox: Path | None,
    faults: Path | None,
    check_driver: bool,
    adversary: int | None,
    append: str,
    memory: str,
    log: Path | None,
    limit: str,
    patience: float,
    tolerant: bool,
) -> int:
    """Run a User Mode Linux kernel with the device on its PCI bus; the kernel's clock is simulated time.

    The command ends with the kernel; its exit code is that of the program. An exit code of 0 becomes 1 if the kernel
    log has warnings, a test in the log (KUnit, kselftest) failed or is missing, a fault did not happen, the driver made
    a mistake, or the kernel never connected to the device.

    \b
    Examples:
      make uml                                            builds a kernel, once
      npusim uml tiny --run check.sh                      a shell script in the kernel
      npusim uml tiny --module npu.ko --run './npu_test /m.npu' --file m.npu:/m.npu --log kernel.log
    """
    from npusim.device.npu import NpuDevice
    from npusim.linux import Initrd, find_kernel, run
    from npusim.linux.initrd import FILE
    from npusim.units import Dimension, parse

    found = device(config, overrides)
    limit_ps = parse(limit, Dimension.TIME)
    kernel = kernel or find_kernel()
    if kernel is None:
        raise UsageError("there is no kernel: build one with make uml, or name one with --kernel or $NPUSIM_UML_KERNEL")
    if initrd is not None:
        if modules or program or files or busybox:
            raise UsageError("--initrd has its own files: do not combine it with --module, --run, --file or --busybox")
        archive = FILE.read(initrd)
    else:
        archive = Initrd(
            busybox or kernel.resolve().parent / "busybox",
            [_words("--module", text) for text in modules],
            _words("--run", program) if program else (),
            dict(map(_place, files)),
        ).pack()
    with contextlib.ExitStack() as stack:
        served = NpuDevice(found, faults, check=check_driver or None, adversary=adversary)
        stack.callback(served.close)
        console = stack.enter_context(_console(log))
        outcome = run(
            served,
            kernel,
            archive,
            console,
            memory=memory,
            arguments=_words("--append", append) if append else (),
            patience_s=patience,
            limit_ps=limit_ps,
        )
    say(
        f"npusim uml: status {outcome.status} after {outcome.simulated_ps / 1e12:.6f} s of simulated time, "
        f"{outcome.accesses} accesses",
        err=True,
    )
    if outcome.status:
        return outcome.status
    judge(served)
    if outcome.failures:
        count = len(outcome.failures)
        raise NpusimError(f"tests in the kernel's log failed, {count} lines; the first: {outcome.failures[0]}")
    if not outcome.connected:
        raise NpusimError(f"{kernel.name} has ended without connecting to the device")
    if outcome.complaints and not tolerant:
        count = len(outcome.complaints)
        raise NpusimError(f"the kernel complains in its log, {count} lines; the first: {outcome.complaints[0]}")
    return 0


def _words(option: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from None
    if not words:
        raise UsageError(f"{option}: must not be empty")
    return words


def _place(text: str) -> tuple[str, Path]:
    source, colon, place = text.rpartition(":")
    if not colon or not source:
        raise UsageError(f"--file {text}: must be FILE:PATH such as model.npu:/data/model.npu")
    return place, Path(source)


def _console(log: Path | None) -> contextlib.AbstractContextManager[BinaryIO]:
    if log is None:
        return contextlib.nullcontext(sys.stdout.buffer)
    check_destination(log)
    return log.open("wb")
