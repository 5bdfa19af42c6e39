"""A Python process with slow imports already done, which forks for each program that a test starts.

It provides a command that acts like ``python``: ``-c``, ``-m`` and files work as usual, with the caller's directory,
environment and descriptors 0 to 2, and its exit code or signal. Killing the command kills the program. It is for tests
of what a program does. Tests of how a program starts (its imports, their order, the hash seed), of signal handling, or
of process IDs must use ``sys.executable``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

IMPORTED = ("npusim.cli.app", "npusim.runtime", "npusim.frontends.onnx", "npusim.validate.networks", "pytest")
ROOT = Path(__file__).resolve().parents[2]
COMMAND = """#!{python} -IS
import json, os, socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect({address!r})
name = os.path.basename(sys.argv[0])
arguments = sys.argv[1:] if name == "python" else ["-m", name, *sys.argv[1:]]
words = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(peer, [len(words).to_bytes(4, "little")], [0, 1, 2])
peer.sendall(words)
code = int.from_bytes(peer.recv(4), "little", signed=True)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextlib.contextmanager
def interpreter(folder: Path) -> Iterator[Path]:
    """Yield the command in its folder, beside ``npusim`` and ``pytest``, which stand for ``python -m npusim`` and
    ``python -m pytest``. They work until the context ends."""
    command, address = folder / "python", folder / "socket"
    command.write_text(COMMAND.format(python=sys.executable, address=os.fspath(address)))
    command.chmod(0o755)
    for name in ("npusim", "pytest"):
        (folder / name).symlink_to(command)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm", address], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"\n", "it has not begun"
        yield command
        process.communicate()


def main(address: str) -> None:
    """Fork for each connection until standard input ends. Returns only in forked processes."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen()
        os.write(1, b"\n")
        while True:
            if 0 in (ready[0] for ready in _ready(0, door.fileno())):
                os._exit(0)
            peer, _ = door.accept()
            with peer:
                if os.fork() == 0:
                    door.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    return _program(peer)


def _program(peer: socket.socket) -> None:
    """Become the program that a connection requests. A process stays behind that reports how it ended."""
    size, (stdin, stdout, stderr), _, _ = socket.recv_fds(peer, 4, 3)
    with peer.makefile("rb") as words:
        arguments, folder, environment = json.loads(words.read(int.from_bytes(size, "little")))
    program = os.fork()
    if program:
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        with open(os.devnull, "r+b") as nothing:
            for descriptor in range(3):
                os.dup2(nothing.fileno(), descriptor)
        ended = os.pidfd_open(program)
        if ended not in (ready[0] for ready in _ready(ended, peer.fileno())):
            os.kill(program, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        with contextlib.suppress(OSError):
            peer.sendall(code.to_bytes(4, "little", signed=True))
        os._exit(0)
    peer.close()
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = arguments


def _ready(*descriptors: int) -> list[tuple[int, int]]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll.poll()


def begin() -> None:
    """Do what ``python`` does with its arguments, which are those of this process."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, paths), *(path for path in sys.path if path not in ("", str(ROOT), *paths))]
    option, *rest = sys.argv
    if option.startswith("-m"):
        sys.path.insert(0, os.getcwd())
        module, *sys.argv[1:] = [option[2:], *rest] if option[2:] else rest
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.path.insert(0, "")
        code, *sys.argv[1:] = rest
        sys.argv[0] = "-c"
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.path.insert(0, os.path.dirname(option))
        runpy.run_path(option, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
    begin()
