"""Options of commands that give a device to a driver: how it misbehaves, and whether the driver is watched."""

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
        help="Let the device misbehave as a script says; a fault that does not happen fails the command.",
    ),
    click.option(
        "--check-driver", is_flag=True, help="Watch what the driver does with the device; a mistake is an error."
    ),
    click.option(
        "--adversary",
        type=click.IntRange(min=0),
        metavar="SEED",
        help="Vary the times that the device's contract leaves open.",
    ),
)


def driven_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``faults``, ``check_driver`` and ``adversary``: arguments of a device."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def judge(device: NpuDevice) -> None:
    """After the driver has done its work: raises UsageError for a fault of the script that has not happened, and
    DriverCheckError for what the driver did wrong."""
    device.faults.check()
    if device.checker is not None and device.checker.findings:
        raise DriverCheckError([str(finding) for finding in device.checker.findings])
