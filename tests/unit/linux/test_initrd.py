"""The initial file system of a kernel, and the search for a kernel."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from npusim.cli.app import main
from npusim.errors import UsageError
from npusim.linux import Initrd, find_kernel
from npusim.linux.initrd import ENDED


@pytest.fixture
def busybox(tmp_path: Path) -> Path:
    (tmp_path / "busybox").write_bytes(b"static")
    return tmp_path / "busybox"


def unpacked(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Return modes and contents by name of a cpio archive in the format "newc"."""
    data, place = gzip.decompress(archive), 0
    found = {}
    while True:
        assert data[place : place + 6] == b"070701"
        fields = [int(data[place + 6 + 8 * each : place + 14 + 8 * each], 16) for each in range(13)]
        mode, size, length = fields[1], fields[6], fields[11]
        name = data[place + 110 : place + 109 + length].decode()
        place += -(-(110 + length) // 4) * 4
        if name == "TRAILER!!!":
            assert len(data) == place
            return found
        found[name] = (mode, data[place : place + size])
        place += -(-size // 4) * 4


def test_what_a_kernel_finds(tmp_path: Path, busybox: Path) -> None:
    for name, content in (("npu.ko", b"a module"), ("my-other.ko", b"another"), ("test", b"ELF"), ("x.npu", b"x")):
        (tmp_path / name).write_bytes(content)
    modules = [[str(tmp_path / "npu.ko"), "timeout_ms=100"], [str(tmp_path / "my-other.ko")]]
    program = [str(tmp_path / "test"), "a b", "$c"]
    initrd = Initrd(busybox, modules, program, {"/data/deep/x.npu": tmp_path / "x.npu"})
    found = unpacked(initrd.pack())
    assert found["bin/busybox"] == (0o100755, b"static")
    assert found["modules/npu.ko"] == (0o100644, b"a module")
    assert found["program/test"] == (0o100755, b"ELF")
    assert found["data"][0] == found["data/deep"][0] == 0o040755
    assert found["data/deep/x.npu"] == (0o100644, b"x")
    assert found["dev/console"] == (0o020600, b"")
    script = found["init"][1].decode()
    assert "insmod /modules/npu.ko timeout_ms=100 ||" in script
    assert "{ /program/test 'a b' '$c'; status=$?; }" in script
    assert script.index("rmmod my_other") < script.index("rmmod npu")
    assert list(found) == [*sorted(name for name in found if name != "dev/console"), "dev/console"]


def test_the_same_files_make_the_same_bytes(busybox: Path) -> None:
    assert Initrd(busybox).pack() == Initrd(busybox).pack()


def test_how_it_ends_is_told_to_a_kernel_that_can_say_it_else_to_the_log(busybox: Path) -> None:
    _, init = unpacked(Initrd(busybox).pack())["init"]
    *_, told, power = init.decode().splitlines()
    assert told.startswith("if [ -e /proc/exitcode ]; then echo $status > /proc/exitcode; else")
    assert f'"{ENDED} $status" > /dev/kmsg' in told
    assert power == "poweroff -f"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/", "must have a path such as /data/model.npu, got '/'"),
        ("/a/../init", "must have a path such as"),
        ("/init", "two files of the initramfs have the path /init"),
        ("bin/busybox", "two files of the initramfs have the path /bin/busybox"),
        ("/init/x", "/init cannot be a file and the folder of /init/x"),
    ],
)
def test_a_place_that_cannot_be(busybox: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Initrd(busybox, files={name: busybox}).pack()


def test_a_file_that_is_not_there(tmp_path: Path, busybox: Path) -> None:
    none = tmp_path / "none"
    for initrd in (
        Initrd(none),
        Initrd(busybox, [[str(none)]]),
        Initrd(busybox, (), [str(none)]),
        Initrd(busybox, files={"/x": none}),
    ):
        with pytest.raises(UsageError, match=r"none: no such file"):
            initrd.pack()


def test_where_a_kernel_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPUSIM_UML_KERNEL", raising=False)
    monkeypatch.delenv("NPUSIM_UML_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_kernel() is None
    built = tmp_path / "npusim-uml" / "kasan" / "linux"
    built.parent.mkdir(parents=True)
    built.touch()
    assert find_kernel() == built
    monkeypatch.setenv("NPUSIM_UML_CACHE", str(tmp_path / "other"))
    assert find_kernel() is None
    monkeypatch.setenv("NPUSIM_UML_KERNEL", "/somewhere/linux")
    assert find_kernel() == Path("/somewhere/linux")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "there is no kernel: build one with make uml"),
        (["--kernel", "/none"], "busybox: no such file"),
        (["--kernel", "/none", "--initrd", "/none"], "/none: no such file"),
        (["--kernel", "/none", "--initrd", "/none", "--run", "x"], "--initrd has its own files"),
        (["--kernel", "/none", "--run", "'x"], "--run 'x: No closing quotation"),
        (["--kernel", "/none", "--file", "x"], "--file x: must be FILE:PATH such as"),
        (["--kernel", "/none", "--limit", "5"], "must be"),
    ],
)
def test_calls_that_are_refused(
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("NPUSIM_UML_KERNEL", raising=False)
    monkeypatch.setenv("NPUSIM_UML_CACHE", str(tmp_path))
    assert main(["uml", "tiny", *options]) == 2
    assert message in capsys.readouterr().err
