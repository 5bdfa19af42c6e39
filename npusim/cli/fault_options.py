"""Options of commands that connect a driver to a device: faults, driver sanitizer, adversary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npusim.errors import DriverCheckError

if TYPE_CHECKING:
    from npusim.device.npu import NpuDevice

_OPTIONS = (
    click.option(
        "--faults",
        type=click.Path(path_type=Path),
        metavar="FILE.toml",
        help="Inject the faults of this script. A fault that does not happen fails the command.",
    ),
    click.option("--check-driver", is_flag=True, help="Run the driver sanitizer; a driver mistake is an error."),
    click.option(
        "--adversary",
        type=click.IntRange(min=0),
        metavar="SEED",
        help="Vary the times that the device specification leaves open.",
    ),
)


def driven_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options ``faults``, ``check_driver`` and ``adversary``, which are arguments of a device."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def judge(device: NpuDevice) -> None:
    """Check the device after the driver has finished.

    Raises UsageError for a fault of the script that has not happened, DriverCheckError for mistakes of the driver.
    """
    device.faults.check()
    if device.checker is not None and device.checker.findings:
        raise DriverCheckError([str(finding) for finding in device.checker.findings])
