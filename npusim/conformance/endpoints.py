"""Transports by which a driver under test accesses the device of the suite."""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from npusim.device.npu import NpuDevice
from npusim.device.transports import bus_socket
from npusim.device.transports.door import door
from npusim.device.transports.vfio_user import VfioUser
from npusim.errors import UsageError

_log = logging.getLogger("npusim.device")
PATIENCE_S = 10.0
"""Time limit for a server to end after its client has gone."""

Serve = Callable[[socket.socket], None]


@contextlib.contextmanager
def in_process(device: NpuDevice) -> Iterator[Any]:
    """The bus itself."""
    yield device.bus


@contextlib.contextmanager
def bus(device: NpuDevice) -> Iterator[str]:
    """Endpoint ``bus:SOCKET``."""

    def serve(peer: socket.socket) -> None:
        try:
            bus_socket.serve(device.bus, peer)
        except bus_socket.BrokenError as error:
            _log.warning("bus: the client is dropped: %s", error)

    with _served(serve) as path:
        yield f"bus:{path}"


@contextlib.contextmanager
def vfio_user(device: NpuDevice) -> Iterator[str]:
    """Endpoint ``vfio-user:SOCKET``. Its client maps device DRAM."""
    with _served(VfioUser(device).serve) as path:
        yield f"vfio-user:{path}"


@contextlib.contextmanager
def _served(serve: Serve) -> Iterator[Path]:
    """A socket at which clients are served one after the other, in a thread."""
    with tempfile.TemporaryDirectory(prefix="npusim-") as folder:
        path, over, peers = Path(folder, "npu.sock"), threading.Event(), list[socket.socket]()
        with door(path) as listener:
            listener.settimeout(0.1)

            def work() -> None:
                while not over.is_set():
                    with contextlib.suppress(TimeoutError):
                        peer, _ = listener.accept()
                        peer.setblocking(True)
                        peers[:] = [peer]
                        with contextlib.closing(peer):
                            serve(peer)

            thread = threading.Thread(target=work, name="npusim-endpoint", daemon=True)
            thread.start()
            try:
                yield path
            finally:
                over.set()
                for peer in peers:  # the server may still wait for a driver that did not close
                    with contextlib.suppress(OSError):
                        peer.shutdown(socket.SHUT_RDWR)
                thread.join(PATIENCE_S)


KINDS: dict[str, Callable[[NpuDevice], contextlib.AbstractContextManager[Any]]] = {
    "in-process": in_process,
    "bus": bus,
    "vfio-user": vfio_user,
}
MAPPED = frozenset({"vfio-user"})
"""Endpoints whose devices share memory with other processes."""


def check_kind(kind: str) -> None:
    """Raise UsageError for an unknown kind of endpoint."""
    if kind not in KINDS:
        raise UsageError(f"--endpoint: must be one of {', '.join(KINDS)}, got {kind!r}")
