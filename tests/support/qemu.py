"""QEMU as a machine with the test as its processor: qtest commands access ports and memory, including PCI."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from types import TracebackType
from typing import Self

import pytest

COMMAND = shlex.split(os.environ.get("NPUSIM_QEMU", "qemu-system-x86_64"))
"""``$NPUSIM_QEMU`` selects another QEMU than the one on the path, optionally with options."""
SLOT = 5
RAM_BYTES = 128 << 20


@functools.cache
def has_device(name: str) -> bool:
    """Return whether QEMU is installed and has such a device."""
    if shutil.which(COMMAND[0]) is None:
        return False
    done = subprocess.run([*COMMAND, "-device", f"{name},help"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and f"{name} options" in done.stdout


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has_device(name), reason=f"no QEMU with {name}; $NPUSIM_QEMU may name one")


def arguments() -> list[str]:
    """Return options for a machine with RAM in a file that devices can share, a stopped processor, and nothing else."""
    memory = f"memory-backend-memfd,id=ram,size={RAM_BYTES},share=on"
    return ["-machine", "pc,memory-backend=ram", "-object", memory, "-m", str(RAM_BYTES >> 20), "-accel", "tcg", "-S",
            "-nodefaults", "-nographic", "-vga", "none", "-net", "none", "-no-user-config"]  # fmt: skip


class Machine:
    """A QEMU process whose processor accesses come through qtest."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @classmethod
    def start(cls, *more: str, pass_fds: tuple[int, ...] = ()) -> Self:
        command = [*COMMAND, *arguments(), "-qtest", "stdio", "-qtest-log", "none", *more]
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, pass_fds=pass_fds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def say(self, *words: str | int) -> list[str]:
        """Send one command and return the words of the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = " ".join(word if isinstance(word, str) else hex(word) for word in words)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        while (answer := self.process.stdout.readline()).startswith("IRQ"):
            pass
        if not answer.startswith("OK"):
            self.process.kill()
            raise AssertionError(f"{line}: {answer!r}; {self.process.communicate()[1]}")
        return answer.split()[1:]

    def config_read(self, offset: int) -> int:
        self.say("outl", 0xCF8, 1 << 31 | SLOT << 11 | offset & 0xFC)
        return int(self.say("inl", 0xCFC)[0], 16)

    def config_write(self, offset: int, value: int, size: int = 4) -> None:
        self.say("outl", 0xCF8, 1 << 31 | SLOT << 11 | offset & 0xFC)
        self.say({1: "outb", 2: "outw", 4: "outl"}[size], 0xCFC + offset % 4, value)

    def read(self, address: int) -> int:
        return int(self.say("readl", address)[0], 16)

    def write(self, address: int, value: int) -> None:
        self.say("writel", address, value)

    def read_bytes(self, address: int, size: int) -> bytes:
        return bytes.fromhex(self.say("read", address, size)[0].removeprefix("0x"))

    def write_bytes(self, address: int, data: bytes) -> None:
        self.say("write", address, len(data), "0x" + data.hex())
