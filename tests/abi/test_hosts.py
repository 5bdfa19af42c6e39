"""The libraries in hosts with scarce resources or abrupt exits: a status or one clear line, and never a crash."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hal import abi
from tests.support.c_compiler import PROGRAMS, gcc, needs_gcc, run
from tests.support.onnxifi.models import IDENTITY, TENTH

pytestmark = needs_gcc

LIBRARY = abi.LIBRARIES[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "identity.onnx"
    path.write_bytes(IDENTITY)
    return path


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("hosts") / "hosts"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", *LIBRARY.cflags.split()]
    gcc(*flags, PROGRAMS / "hostile_host.c", "-o", target, "-ldl", "-lm", "-lpthread")
    return target


Host = tuple[Path, Path]


@pytest.fixture
def ways(host: Path, model: Path) -> Host:
    return host, model


def spoken(ways: Host, *mode: str, **environment: str) -> subprocess.CompletedProcess[str]:
    host, model = ways
    return run(host, LIBRARY.path, model, *mode, MODEL=str(model), **environment)


def goes_well(ways: Host, *mode: str, **environment: str) -> None:
    done = spoken(ways, *mode, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "mode",
    [
        "ended",
        "signals",
        *(
            pytest.param(mode, marks=pytest.mark.slow)
            for mode in ("kill", "fork-start", "cancel", "closed", "exit", "later-files", "contexts")
        ),
    ],
)
def test_a_host(ways: Host, mode: str) -> None:
    goes_well(ways, mode)


@pytest.mark.parametrize(
    "nbytes", [16 << 10, *(pytest.param(size << 10, marks=pytest.mark.slow) for size in (64, 256))]
)
def test_small_stacks(ways: Host, nbytes: int) -> None:
    goes_well(ways, "stack", str(nbytes))


def test_closed_and_loaded_again(ways: Host) -> None:
    goes_well(ways, "again", str(LIBRARY.path))


@pytest.mark.parametrize(
    "how", ["trap", pytest.param("flush", marks=pytest.mark.slow), pytest.param("upward", marks=pytest.mark.slow)]
)
def test_the_floating_point_mode_of_the_host(host: Path, tmp_path: Path, how: str) -> None:
    model = tmp_path / "tenth.onnx"
    model.write_bytes(TENTH)
    goes_well((host, model), "floats", how)


def test_apart_from_the_process(ways: Host) -> None:
    done = spoken(ways, "apart", str(LIBRARY.path))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == ("libonnxifi-npusim: no simulated device: it must be loaded by dlopen, not by dlmopen\n")


def test_symbols_of_its_own(ways: Host) -> None:
    goes_well(ways, "run", DEEPBIND="1")


def test_another_program_in_a_child(ways: Host) -> None:
    goes_well(ways, "exec", str(LIBRARY.path))


def test_the_locale_of_the_host(ways: Host) -> None:
    goes_well(ways, "locale", LC_ALL="C.UTF-8")


def test_loaded_before_everything_else(ways: Host) -> None:
    goes_well(ways, "run", LD_PRELOAD=str(LIBRARY.path))


def test_wrong_settings_are_said_in_a_line(ways: Host) -> None:
    done = spoken(ways, "run", NPUSIM_ONNXIFI_BACKENDS="nonsense")
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("tests") and "client.h" not in line]
    assert len(lines) == 1
    assert "nonsense" in lines[0]


def test_a_client_under_a_sanitizer(ways: Host) -> None:
    asked = ["gcc", "-print-file-name=libasan.so"]
    sanitizer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(sanitizer).is_absolute():
        pytest.skip("gcc has no AddressSanitizer")
    goes_well(ways, "run", LD_PRELOAD=sanitizer, ASAN_OPTIONS="detect_leaks=0")


def test_without_a_home_and_with_one_that_is_no_folder(ways: Host) -> None:
    goes_well(ways, "run", HOME="/dev/null/nowhere", XDG_CONFIG_HOME="/dev/null/config", TMPDIR="/nowhere")


REFUSAL = re.compile(r"libonnxifi-npusim: no simulated device: .+\n\Z")
"""The last line, after any output of Python itself."""


@pytest.mark.parametrize("files", [3, 4, *(pytest.param(count, marks=pytest.mark.slow) for count in (5, 8))])
def test_few_files(ways: Host, files: int) -> None:
    done = spoken(ways, "files", str(files))
    assert done.returncode == 0
    assert done.stderr == "" or REFUSAL.search(done.stderr)


def test_no_room_for_python(ways: Host) -> None:
    done = spoken(ways, "memory", str(200 << 20))
    assert (done.returncode, done.stdout) == (0, "0 devices, status 0x0000\n")
    assert done.stderr == (
        "libonnxifi-npusim: no simulated device: less than 256 MiB of addresses are left for this process\n"
    )


@pytest.mark.parametrize("mebibytes", [0, *(pytest.param(size, marks=pytest.mark.slow) for size in (16, 1200))])
def test_little_memory(ways: Host, mebibytes: int) -> None:
    """The device's memory needs 1 GiB of address space, so either that fails or everything fits."""
    done = spoken(ways, "later-memory", str(mebibytes << 20), NPUSIM_ONNXIFI_BACKENDS="tiny")
    expected = "1 devices, status 0x0000\n" if mebibytes > 1024 else "1 devices, status 0x0402\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_three_libraries_of_one_process(model: Path, tmp_path: Path) -> None:
    """Each has its own devices and handles; objects of one are invalid in another."""
    (tmp_path / "three.c").write_text(THREE)
    gcc("-std=gnu11", "-Wall", "-Werror", tmp_path / "three.c", "-o", tmp_path / "three", "-ldl")
    libraries = [library.path for library in abi.LIBRARIES if library.header]
    done = run(tmp_path / "three", *libraries)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 2 1 257 257\n", "")


THREE = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
static void *find(const char *path, const char *name) { return dlsym(dlopen(path, RTLD_NOW | RTLD_LOCAL), name); }
int main(int argc, char **argv) {
    int32_t (*list[2])(void **, size_t *), (*release[2])(void *);
    int (*devices)(uint32_t *);
    void *ids[2][4];
    size_t counts[2] = {4, 4};
    uint32_t count = 0;
    for (int i = 0; i < 2; i++) {
        *(void **)&list[i] = find(argv[1 + i], "onnxGetBackendIDs");
        *(void **)&release[i] = find(argv[1 + i], "onnxReleaseBackendID");
        list[i](ids[i], &counts[i]);
    }
    *(void **)&devices = find(argv[3], "ANeuralNetworks_getDeviceCount");
    devices(&count);
    int first = release[0](ids[1][0]), second = release[1](ids[0][0]);
    printf("%zu %zu %u %d %d\n", counts[0], counts[1], count, first, second);
    return argc != 4;
}
"""
