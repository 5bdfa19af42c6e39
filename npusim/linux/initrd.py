"""The initial file system of a kernel: a cpio archive with busybox, modules, a program, and a script that runs them.

The format is "newc" of Linux' ``Documentation/driver-api/early-userspace/buffer-format.rst``. Equal files give equal
bytes.
"""

from __future__ import annotations

import gzip
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from npusim.errors import UsageError
from npusim.untrusted import FileKind

FILE = FileKind("file for a kernel", 1 << 30)
_FOLDERS = ("bin", "dev", "etc", "lib", "lib/firmware", "modules", "proc", "program", "sys", "tmp")
_DIRECTORY, _PROGRAM, _FILE = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFREG | 0o644

READY = "npusim: the kernel is up"
"""Log line before the first module is loaded."""

ENDED = "npusim: the kernel ends with status"
"""Log line of a kernel that cannot exit with a status, as on real hardware and in QEMU; the status follows."""

_INIT = """\
#!/bin/busybox sh
# User Mode Linux ends with the exit status that was written to /proc/exitcode.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t debugfs debugfs /sys/kernel/debug 2> /dev/null
mount -t tmpfs tmpfs /tmp
echo "{ready}" > /dev/kmsg
status=0
{load}
[ $status -ne 0 ] || {{ {run}; status=$?; }}
{unload}
if [ -e /proc/exitcode ]; then echo $status > /proc/exitcode; else echo "{ended} $status" > /dev/kmsg; fi
poweroff -f
"""


@dataclass
class Initrd:
    """The contents. ``modules``: files and parameters, loaded in this order and removed at the end. ``program``: file
    and arguments, a static binary or a busybox script. ``files``: other files, by their path in the archive."""

    busybox: Path
    modules: Sequence[Sequence[str]] = ()
    program: Sequence[str] = ()
    files: Mapping[str, Path] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The compressed archive. Raises UsageError for a file that cannot be read, or two of one name."""
        contents: dict[str, tuple[int, bytes]] = dict.fromkeys(_FOLDERS, (_DIRECTORY, b""))
        contents["bin/busybox"] = (_PROGRAM, FILE.read(self.busybox))
        contents["init"] = (_PROGRAM, self._script().encode())
        for name, source, mode in self._given():
            if name in contents:
                raise UsageError(f"two files of the initramfs have the path /{name}")
            for folder in reversed(PurePosixPath(name).parents[:-1]):
                if contents.setdefault(str(folder), (_DIRECTORY, b""))[0] != _DIRECTORY:
                    raise UsageError(f"/{folder} cannot be a file and the folder of /{name}")
            contents[name] = (mode, FILE.read(source))
        archive = b"".join(_entry(number, *entry) for number, entry in enumerate(_listed(contents), 1))
        return gzip.compress(archive, 1, mtime=0)

    def _given(self) -> list[tuple[str, Path, int]]:
        given = [(f"modules/{Path(file).name}", Path(file), _FILE) for file, *_ in self.modules]
        if self.program:
            given.append((f"program/{Path(self.program[0]).name}", Path(self.program[0]), _PROGRAM))
        for name, source in self.files.items():
            place = PurePosixPath("/", name)
            if ".." in place.parts or len(place.parts) < 2:
                raise UsageError(f"a file of the kernel must have a path such as /data/model.npu, got {name!r}")
            given.append((str(place)[1:], source, _PROGRAM if os.access(source, os.X_OK) else _FILE))
        return given

    def _script(self) -> str:
        names = [Path(file).name for file, *_ in self.modules]
        load = [
            f"[ $status -ne 0 ] || insmod {shlex.join([f'/modules/{name}', *module[1:]])} || status=$?"
            for name, module in zip(names, self.modules, strict=True)
        ]
        # A module that was not loaded, because an earlier one failed, must not be removed.
        unload = [
            f"[ ! -d /sys/module/{_module(name)} ] || rmmod {_module(name)} || {{ [ $status -ne 0 ] || status=1; }}"
            for name in reversed(names)
        ]
        run = shlex.join([f"/program/{Path(self.program[0]).name}", *self.program[1:]]) if self.program else "true"
        return _INIT.format(ready=READY, ended=ENDED, load="\n".join(load), run=run, unload="\n".join(unload))


def _module(file: str) -> str:
    """The kernel's name of the module in a file."""
    return file.removesuffix(".ko").replace("-", "_")


def _listed(contents: Mapping[str, tuple[int, bytes]]) -> list[tuple[str, int, int, bytes]]:
    """Names, modes, device numbers and bytes in the order of the archive, with the console and the final entry."""
    listed = [(name, mode, 0, data) for name, (mode, data) in sorted(contents.items())]
    console = ("dev/console", stat.S_IFCHR | 0o600, 1, b"")
    return [*listed, console, ("TRAILER!!!", 0, 0, b"")]


def _entry(number: int, name: str, mode: int, minor: int, data: bytes) -> bytes:
    """One archive entry. The console is device 5:1; all files belong to root and have the date 1970."""
    links = 2 if stat.S_ISDIR(mode) else 1
    major = 5 if minor else 0
    fields = (number, mode, 0, 0, links, 0, len(data), 0, 0, major, minor, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % each for each in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
