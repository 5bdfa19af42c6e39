"""``npusim serve``: a device for software outside of this process."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.base import Command, complete_config, device
from npusim.cli.output import say
from npusim.errors import UsageError

_WAYS = """npusim serve: say how software reaches the device:
  --vfio-user SOCKET      QEMU 10.1 or newer (-device vfio-user-pci) and C programs such as drivers/c"""


@click.command(cls=Command, short_help="A device for QEMU and for drivers in C.")
@click.argument("config", metavar="NAME|FILE", shell_complete=complete_config)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one value of the device.")
@click.option(
    "--vfio-user",
    "socket",
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    help="Listen there for clients that speak the vfio-user protocol; device DRAM is mapped into them.",
)
@click.option("--clients", type=click.IntRange(min=1), metavar="N", help="End after so many clients.")
@click.option(
    "--lockstep",
    is_flag=True,
    help="The device comes to rest after each access: the same accesses give the same simulated times.",
)
def serve(config: str, overrides: tuple[str, ...], socket: Path | None, clients: int | None, lockstep: bool) -> None:
    """Serve a simulated device to software in another process, until Ctrl-C.

    One client at a time; the next one finds the device as the last one left it, and resets it.

    \b
    Examples:
      npusim serve tiny --vfio-user npu.sock
      npusim serve edge --set dram.bytes='64 MiB' --vfio-user npu.sock --clients 1
    """
    from npusim.device.carriers.door import door
    from npusim.device.carriers.vfio_user import VfioUser
    from npusim.device.npu import NpuDevice

    if socket is None:
        raise UsageError(_WAYS)
    found = device(config, overrides)
    served = NpuDevice(found, shared_memory=True)
    server = VfioUser(served, lockstep=lockstep)
    with door(socket) as listener:
        say(f"serving {found.name} at {socket}")
        count = 0
        while clients is None or count < clients:
            peer, _ = listener.accept()
            server.serve(peer)
            count += 1
    served.close()
    say(f"{count} clients, {served.now_ps} ps of simulated time")
