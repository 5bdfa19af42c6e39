"""npusim device-server: a device for one client, and its errors."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import qemu
from tests.support.cli.interruptible import started
from tests.support.vfio_client import Client
from tests.support.waits_and_leaks import until
from tests.unit.cli.conftest import Cli

SMALL = ("tiny", "--set", "dram.bytes='64 MiB'")


def connected(path: Path) -> Client:
    """Return a client once a server listens; the socket file exists slightly earlier."""
    sock = socket.socket(socket.AF_UNIX)

    def listens() -> bool:
        return sock.connect_ex(str(path)) == 0

    until(listens)
    return Client(sock)


def test_a_client_is_served_and_the_socket_goes(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "s"
    served: list[int] = []
    thread = threading.Thread(
        target=lambda: served.append(
            cli("device-server", *SMALL, "--vfio-user", path, "--clients", 1, "--lockstep").code
        )
    )
    thread.start()
    client = connected(path)
    assert path.stat().st_mode & 0o777 == 0o600
    client.agree()
    client.enable()
    assert client.read(0, 0, 4) == (0x3155504E).to_bytes(4, "little")
    client.close()
    thread.join(60)
    assert (served, path.exists()) == ([0], False)


def test_the_end_tells_what_the_client_did_wrong_and_which_fault_did_not_happen(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('[[fault]]\nwhen = { doorbell = 9 }\nwhat = { hang = "core0.dma0" }\n')
    for options, said in (
        (("--check-driver",), "register-misuse"),
        (("--faults", tmp_path / "f.toml"), "a fault of the script did not happen"),
    ):
        path, done = tmp_path / "s", []
        thread = threading.Thread(
            target=lambda path=path, done=done, options=options: done.append(
                cli("device-server", *SMALL, "--vfio-user", path, "--clients", 1, "--lockstep", *options)
            )
        )
        thread.start()
        client = connected(path)
        client.agree()
        client.enable()
        client.write(0, 0x048, (0xFF).to_bytes(4, "little"))  # reserved bits of INT_STATUS
        client.read(0, 0, 4)
        client.close()
        thread.join(60)
        assert done[0].code != 0
        assert said in done[0].err


def test_without_a_way_the_ways_are_named(cli: Cli) -> None:
    done = cli("device-server", "tiny")
    assert done.code == 2
    assert done.message.splitlines()[0] == "npusim device-server: needs one way for software to access the device:"
    assert "--vfio-user SOCKET" in done.message
    assert "--pci-proxy -- QEMU OPTIONS" in done.message


@pytest.mark.parametrize("arguments", [("--pci-proxy",), ("--vfio-user", "s", "--", "qemu")])
def test_a_qemu_and_its_way_go_together(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli("device-server", *SMALL, *arguments)
    assert done.code == 2
    assert done.message.startswith("--pci-proxy and the command of a QEMU behind -- go together")


def test_a_path_that_is_taken(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cli("device-server", *SMALL, "--vfio-user", tmp_path / "file")
    assert (done.code, done.message) == (2, f"{tmp_path}/file: exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        done = cli("device-server", *SMALL, "--vfio-user", tmp_path / "s")
        assert (done.code, done.message) == (2, f"{tmp_path}/s: a server listens there already")
    done = cli("device-server", *SMALL, "--vfio-user", tmp_path / ("x" * 200))
    assert (done.code, done.message) == (2, f"{tmp_path}/{'x' * 200}: the path is too long for a socket")
    done = cli("device-server", *SMALL, "--vfio-user", tmp_path / "none/s")
    assert (done.code, done.message) == (2, f"{tmp_path}/none/s: No such file or directory")


def test_what_a_killed_server_left_is_replaced_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [sys.executable, "-m", "npusim", "device-server", *SMALL, "--vfio-user", str(path)]
    for end in ("kill", "interrupt"):
        process = started(command)
        assert process.stdout is not None
        assert process.stdout.readline() == f"serving tiny at {path}\n"
        if end == "kill":
            process.kill()
            process.communicate()
            assert path.exists()
        else:
            process.send_signal(2)
            assert process.communicate(timeout=60)[1] == "npusim: interrupted\n"
            assert process.returncode == 130
    assert not path.exists()


def _full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def _blocked() -> int:
    """Return a pipe that is full and stays so because this process keeps the read end open."""
    _, end = os.pipe()
    os.set_blocking(end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(end, bytes(4096))
    os.set_blocking(end, True)
    return end


def _unread() -> int:
    reader, end = os.pipe()
    os.close(reader)
    return end


@pytest.mark.parametrize("stderr", [_full, _blocked, _unread, None])
def test_nobody_reads_the_warnings(tmp_path: Path, stderr: Callable[[], int] | None) -> None:
    """Each client is dropped with a warning."""
    path = tmp_path / "s"
    command = [sys.executable, "-m", "npusim", "device-server", *SMALL, "--vfio-user", str(path), "--clients", "4"]
    end = os.open(os.devnull, os.O_WRONLY) if stderr is None else stderr()
    if stderr is None:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, text=True) as process:
        os.close(end)
        assert process.stdout is not None
        assert process.stdout.readline() == f"serving tiny at {path}\n"
        for _ in range(4):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(os.fspath(path))
                client.sendall(bytes(64))
                with contextlib.suppress(ConnectionError):
                    while client.recv(64):
                        pass
        try:
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "4 clients, 0 ps of simulated time\n")


def test_a_qemu_that_is_not_there(cli: Cli) -> None:
    done = cli("device-server", *SMALL, "--pci-proxy", "--", "/none/qemu")
    assert (done.code, done.message) == (2, "/none/qemu: cannot be started: No such file or directory")


def test_more_dram_than_the_proxy_can_show(cli: Cli) -> None:
    done = cli("device-server", "tiny", "--set", "dram.bytes='2 GiB'", "--pci-proxy", "--", "true")
    assert done.code == 2
    assert done.message.startswith("dram.bytes: x-pci-proxy-dev has BARs of at most 1 GiB")


@pytest.mark.skipif(shutil.which("true") is None, reason="no program that ends at once")
def test_a_qemu_that_ends_at_once(cli: Cli) -> None:
    before = len(os.listdir("/proc/self/fd"))
    done = cli("device-server", *SMALL, "--pci-proxy", "--", "true")
    assert done.code == 0
    assert done.out == "QEMU ended with 0, after 0 ps of simulated time\n"
    assert len(os.listdir("/proc/self/fd")) <= before


@qemu.needs("x-pci-proxy-dev")
@pytest.mark.skipif(qemu.has_device("vfio-user-pci"), reason="that of QEMU 11.1 ends by a signal where there is no KVM")
def test_a_qemu_with_both_channels() -> None:
    """It starts, sees the device, and ends when told by its monitor."""
    options = [*qemu.COMMAND, *qemu.arguments(), "-monitor", "stdio"]
    command = [sys.executable, "-m", "npusim", "device-server", *SMALL, "--pci-proxy", "--", *options]
    done = subprocess.run(command, input="info pci\nquit\n", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'id "npusim"' in done.stdout
    assert "BAR2: 32 bit memory at 0xffffffffffffffff [0x03fffffe]" in done.stdout  # while it queries the size
    assert "QEMU ended with 0" in done.stdout
