"""``drivers/qemu/fetch.sh``: it unpacks packages of a made-up archive, and prints one line if something is not
available."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.qemu_kernel import FETCH

NEEDED = (
    "bash", "dirname", "cat", "uname", "mkdir", "mktemp", "rm", "id", "grep", "head", "sed", "mv", "cp", "ln",
)  # fmt: skip
TOOLS = ("apt-get", "apt-cache", "dpkg-deb", "gcc", "make")
FAILS = '#!/bin/sh\necho "E: Unable to locate package" >&2\nexit 100\n'
DEPENDS = """#!/bin/sh
case $2 in
linux-image-cloud-amd64) echo '  Depends: linux-image-9-cloud-amd64' ;;
linux-image-9-cloud-amd64) echo '  Depends: kmod'; echo '  Depends: linux-base' ;;
linux-headers-9-cloud-amd64) printf '  Depends: linux-%s\\n' headers-9-common kbuild-9 compiler-gcc-9-x86 ;;
esac
"""
DOWNLOAD = """#!/bin/sh
shift 2
for name; do echo "$name" >> "$HOME/asked"; : > "$name.deb"; done
"""
UNPACK = """#!/bin/sh
root=$3
mkdir -p "$root/boot" "$root/usr/src/linux-headers-9-cloud-amd64" "$root/usr/src/linux-headers-9-common" "$root/usr/bin"
: > "$root/boot/vmlinuz-9-cloud-amd64"
: > "$root/usr/bin/busybox"
echo 'include /usr/src/linux-headers-9-common/Makefile' > "$root/usr/src/linux-headers-9-cloud-amd64/Makefile"
echo 'CC = $(CROSS_COMPILE)COMPILER' > "$root/usr/src/linux-headers-9-cloud-amd64/.kernelvariables"
"""


def fetch(folder: Path, *arguments: str, **tools: str) -> subprocess.CompletedProcess[str]:
    """Run it with replaced tools; tools that are not given fail, as without a network."""
    place = folder / "bin"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        assert found is not None
        (place / name).symlink_to(found)
    for name in TOOLS:
        if (text := tools.get(name.replace("-", "_"), FAILS)) != "":
            (place / name).write_text(text)
            (place / name).chmod(0o755)
    environment = {"PATH": str(place), "HOME": str(folder), "NPUSIM_QEMU_CACHE": str(folder / "cache")}
    return subprocess.run(
        [place / "bash", FETCH, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def archive(compiler: str) -> dict[str, str]:
    return {"apt_cache": DEPENDS, "apt_get": DOWNLOAD, "dpkg_deb": UNPACK.replace("COMPILER", compiler)}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_is_not_here(tmp_path: Path, tool: str) -> None:
    done = fetch(tmp_path, **{tool.replace("-", "_"): ""})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"kernel for QEMU: skipped, {tool} is not here\n", "")
    assert not (tmp_path / "cache").exists()


def test_packages_that_cannot_be_fetched(tmp_path: Path) -> None:
    done = fetch(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "kernel for QEMU: skipped, apt-get cannot fetch linux-image-cloud-amd64 and its headers: "
        "E: Unable to locate package"
    )
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_newest_kernel_is_unpacked_with_what_modules_need(tmp_path: Path) -> None:
    done = fetch(tmp_path, **archive("sh"))
    place = tmp_path / "cache" / "linux-image-cloud-amd64"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{place}/vmlinuz is there"), done.stderr
    assert sorted((tmp_path / "asked").read_text().split()) == [
        "busybox-static", "linux-compiler-gcc-9-x86", "linux-headers-9-cloud-amd64", "linux-headers-9-common",
        "linux-image-9-cloud-amd64", "linux-kbuild-9",
    ]  # fmt: skip
    assert (place / "busybox").is_file()
    makefile = (place / "build" / "Makefile").read_text()
    assert makefile == f"include {place}/root/usr/src/linux-headers-9-common/Makefile\n"
    # It is left alone from then on, whatever can be had.
    assert fetch(tmp_path).stdout == f"{place}/vmlinuz is there\n"
    assert fetch(tmp_path, "where").stdout == f"{place}/vmlinuz\n"


def test_a_compiler_that_is_not_here(tmp_path: Path) -> None:
    done = fetch(tmp_path, **archive("gcc-9999"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == (
        "kernel for QEMU: skipped, gcc-9999, which modules of linux-image-cloud-amd64 are built with, is not here"
    )
    assert list((tmp_path / "cache").iterdir()) == []


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    done = fetch(tmp_path, "kasan")
    assert (done.returncode, "got kasan" in done.stderr) == (2, True)
