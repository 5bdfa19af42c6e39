"""``npusim device-server``: a device for software in another process."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npusim.cli.base import Command, complete_config, device
from npusim.cli.fault_options import driven_options, judge
from npusim.cli.output import say
from npusim.errors import UsageError

if TYPE_CHECKING:
    from npusim.device.npu import NpuDevice

_WAYS = """npusim device-server: needs one way for software to access the device:
  --vfio-user SOCKET            for QEMU 10.1 and newer, and for programs in C such as drivers/c
  --pci-proxy -- QEMU OPTIONS   starts a QEMU that is older, such as Debian 12's 7.2
docs/guide/transports.md shows both"""
_GRACE_S = 5
"""Time in which QEMU must end after the server."""


@click.command("device-server", cls=Command, short_help="Offer a device to QEMU and to drivers in C.")
@click.argument("config", metavar="NAME|FILE", shell_complete=complete_config)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- QEMU OPTIONS]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one value of the device.")
@click.option(
    "--vfio-user",
    "path",
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    help="Listen at this socket for vfio-user clients; device DRAM is mapped into them.",
)
@click.option(
    "--pci-proxy",
    is_flag=True,
    help="Start the QEMU behind --, with the device as its x-pci-proxy-dev and a channel for interrupts.",
)
@click.option("--clients", type=click.IntRange(min=1), metavar="N", help="Exit after this number of clients.")
@click.option(
    "--lockstep",
    is_flag=True,
    help="Let the device become idle after each access: equal accesses then give equal simulated times.",
)
@driven_options
def device_server(
    config: str,
    command: tuple[str, ...],
    overrides: tuple[str, ...],
    path: Path | None,
    pci_proxy: bool,
    clients: int | None,
    lockstep: bool,
    faults: Path | None,
    check_driver: bool,
    adversary: int | None,
) -> None:
    """Offer a simulated device to software in another process, until Ctrl-C.

    The server takes one client at a time. The next client gets the device as the previous one left it, and resets it.
    At the end the command reports driver mistakes, and faults of the script that did not happen.

    \b
    Examples:
      npusim device-server tiny --vfio-user npu.sock
      npusim device-server edge --set dram.bytes='64 MiB' --vfio-user npu.sock --clients 1 --check-driver
      npusim device-server tiny --set dram.bytes='64 MiB' --pci-proxy -- qemu-system-x86_64 -machine q35 disk.img
    """
    from npusim.device.npu import NpuDevice

    if (path is None) == (not pci_proxy):
        raise UsageError(_WAYS)
    if pci_proxy != bool(command):
        raise UsageError(f"--pci-proxy and the command of a QEMU behind -- go together\n{_WAYS}")
    found = device(config, overrides)
    served = NpuDevice(found, faults, check=check_driver or None, adversary=adversary, shared_memory=path is not None)
    if path is None:
        _start_qemu(served, command, lockstep)
        return
    from npusim.device.transports.door import door
    from npusim.device.transports.vfio_user import VfioUser

    server = VfioUser(served, lockstep=lockstep)
    with door(path) as listener:
        say(f"serving {found.name} at {path}", whole=True)  # scripts wait for this line
        count = 0
        while clients is None or count < clients:
            peer, _ = listener.accept()
            server.serve(peer)
            count += 1
    served.close()
    say(f"{count} clients, {served.now_ps} ps of simulated time")
    judge(served)


def _start_qemu(served: NpuDevice, command: tuple[str, ...], lockstep: bool) -> None:
    """Run a QEMU with the device until it ends."""
    from npusim.device.transports.pci_proxy import PciProxy

    server = PciProxy(served, lockstep=lockstep)
    ours, theirs = socket.socketpair()
    channel, far = socket.socketpair()
    with theirs, far:
        options = ["-device", f"x-pci-proxy-dev,id=npusim,fd={theirs.fileno()}"]
        options += ["-chardev", f"socket,id=npusim-messages,fd={far.fileno()}"]
        options += ["-object", "qtest,id=npusim-qtest,chardev=npusim-messages,log=/dev/null"]
        try:
            qemu = subprocess.Popen([*command, *options], pass_fds=(theirs.fileno(), far.fileno()))
        except OSError as error:
            raise UsageError(f"{command[0]}: cannot be started: {error.strerror}") from None
    try:
        server.serve(ours, channel)
        code = qemu.wait()
    finally:
        if qemu.poll() is None:
            qemu.terminate()
            try:
                qemu.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                qemu.kill()
                qemu.wait()
    served.close()
    say(f"QEMU ended with {code}, after {served.now_ps} ps of simulated time")
    judge(served)
