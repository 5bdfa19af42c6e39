"""The libraries in every kind of host: C with an empty environment, threads, forks, exits, and various Pythons."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from hal import abi, onnxifi
from hal.onnxifi.status import RETURNS
from tests.support.c_compiler import PROGRAMS, ROOT, compile_client, gcc, needs_gcc, run
from tests.support.onnxifi import models

pytestmark = needs_gcc

SEED, V1 = abi.LIBRARIES[:2]
FLAVOURS = {library.name: library for library in (SEED, V1)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "identity.onnx"
    path.write_bytes(models.IDENTITY)
    return path


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compile client.c for each flavour. It links none of our libraries."""
    folder = tmp_path_factory.mktemp("client")
    made = {}
    for name, library in FLAVOURS.items():
        made[name] = folder / name
        flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", *library.cflags.split()]
        gcc(*flags, PROGRAMS / "dlopen_client.c", "-o", made[name], "-ldl", "-lpthread")
    return made


# ------------------------------------------------------------------------------------------------------- C hosts


MODES = ["run", "threads", "fork", "early", "leak"]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((SEED.name, mode) for mode in MODES[:3]),
        *(pytest.param(SEED.name, mode, marks=pytest.mark.slow) for mode in MODES[3:]),
        (V1.name, "run"),
        *(pytest.param(V1.name, mode, marks=pytest.mark.slow) for mode in MODES[1:]),
    ],
)
def test_in_an_empty_environment(clients: dict[str, Path], model: Path, name: str, mode: str) -> None:
    done = run(clients[name], FLAVOURS[name].path, model, mode)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 devices\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAVOURS)
def test_8_threads_with_1000_runs_each(clients: dict[str, Path], model: Path, name: str) -> None:
    done = run(clients[name], FLAVOURS[name].path, model, "threads", RUNS="1000")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 devices\n", "")


def test_after_main(clients: dict[str, Path], model: Path) -> None:
    done = run(clients[SEED.name], SEED.path, model, "atexit")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 devices\nended\n", "")


def test_through_a_link_from_elsewhere(clients: dict[str, Path], model: Path, tmp_path: Path) -> None:
    link = tmp_path / "libonnxifi.so"
    link.symlink_to(SEED.path)
    done = run(clients[SEED.name], link, model, "run")
    assert (done.returncode, done.stdout) == (0, "2 devices\n"), done.stderr


def test_by_bare_name(clients: dict[str, Path], model: Path) -> None:
    path = os.pathsep.join(dict.fromkeys(str(library.folder) for library in abi.LIBRARIES))
    for name, library in FLAVOURS.items():
        done = run(clients[name], library.path.name, model, "run", LD_LIBRARY_PATH=path)
        assert (done.returncode, done.stdout) == (0, "2 devices\n"), done.stderr


def test_variables_for_another_python_are_not_ours(clients: dict[str, Path], model: Path) -> None:
    done = run(clients[SEED.name], SEED.path, model, "run", PYTHONHOME="/nowhere", PYTHONPATH="/nowhere", LC_ALL="C")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 devices\n", "")


def test_the_configured_devices(clients: dict[str, Path], model: Path) -> None:
    done = run(clients[SEED.name], SEED.path, model, "run", NPUSIM_ONNXIFI_BACKENDS="tiny")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 devices\n", "")


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("NPUSIM_LIBPYTHON", "/nowhere/libpython.so", "libpython cannot be loaded"),
        ("NPUSIM_PYTHON", "/nowhere/python", "that is no executable file"),
    ],
)
def test_no_python(clients: dict[str, Path], model: Path, variable: str, value: str, reason: str) -> None:
    done = run(clients[SEED.name], SEED.path, model, "count", **{variable: value})
    assert (done.returncode, done.stdout) == (0, "0 devices\n")
    refused(done.stderr, reason)


def test_a_traceback_gives_a_terminal_no_orders(clients: dict[str, Path], tmp_path: Path) -> None:
    strange = onnx.load_from_string(models.IDENTITY)
    strange.graph.node[0].op_type, strange.graph.node[0].name = "Frobnicate", "evil\x1b[2J"
    (tmp_path / "strange.onnx").write_bytes(strange.SerializeToString())
    done = run(clients[SEED.name], SEED.path, tmp_path / "strange.onnx", "run", NPUSIM_DEBUG="1")
    assert done.returncode != 0
    assert "UnsupportedError: evil\\x1b[2J (Frobnicate)" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program a group that it has not itself")
def test_who_calls_a_privileged_program_does_not_say_what_it_loads(clients: dict[str, Path], model: Path) -> None:
    client = clients[SEED.name]
    program = Path(shutil.copy(client, client.with_name("privileged")))
    os.chown(program, 0, 12345)
    program.chmod(0o2755)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        pytest.skip("programs here get no other rights")
    chosen = {"NPUSIM_LIBPYTHON": "/nowhere/libpython.so", "NPUSIM_PYTHON": "/nowhere/python"}
    done = run(program, SEED.path, model, "run", **chosen)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 devices\n", "")


def refused(text: str, reason: str) -> None:
    """Check for one line that names the library and the reason."""
    assert text.startswith("libonnxifi-npusim: no simulated device: ")
    assert reason in text
    assert text.count("\n") == 1


def test_both_interfaces_at_once(model: Path, tmp_path: Path) -> None:
    """Two libraries start Python at the same time in two threads, and each finds its devices."""
    (tmp_path / "both.c").write_text(BOTH)
    gcc("-std=gnu11", "-Wall", "-Werror", tmp_path / "both.c", "-o", tmp_path / "both", "-ldl", "-lpthread")
    nnapi = next(library for library in abi.LIBRARIES if library.name == "neuralnetworks")
    done = run(tmp_path / "both", SEED.path, nnapi.path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 1\n", "")


BOTH = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
static pthread_barrier_t barrier;
static void *onnxifi(void *path) {
    int32_t (*call)(void *, size_t *);
    size_t count = 0;
    *(void **)&call = dlsym(dlopen(path, RTLD_NOW), "onnxGetBackendIDs");
    pthread_barrier_wait(&barrier);
    call(NULL, &count);
    return (void *)count;
}
static void *nnapi(void *path) {
    int (*call)(uint32_t *);
    uint32_t count = 0;
    *(void **)&call = dlsym(dlopen(path, RTLD_NOW), "ANeuralNetworks_getDeviceCount");
    pthread_barrier_wait(&barrier);
    call(&count);
    return (void *)(uintptr_t)count;
}
int main(int argc, char **argv) {
    pthread_t a, b;
    void *first, *second;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&a, NULL, onnxifi, argv[1]);
    pthread_create(&b, NULL, nnapi, argv[2]);
    pthread_join(a, &first);
    pthread_join(b, &second);
    printf("%zu %zu\n", (size_t)first, (size_t)second);
    return argc != 3;
}
"""


def test_example(tmp_path: Path) -> None:
    """examples/onnxifi_conv.c, built as its comment says, on the device edge: it computes what the reference does."""
    onnxruntime = pytest.importorskip("onnxruntime")
    source = ROOT / "examples/onnxifi_conv.c"
    assert len(source.read_text("utf-8").splitlines()) <= 80
    network = models.convolution()
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16), np.float32)
    (tmp_path / "model.onnx").write_bytes(network)
    x.tofile(tmp_path / "x.bin")
    program = compile_client(source, tmp_path / "conv", SEED)
    done = run(program, tmp_path / "model.onnx", tmp_path / "x.bin", NPUSIM_ONNXIFI_BACKENDS="edge")
    assert (done.returncode, done.stderr) == (0, "")
    expected = onnxruntime.InferenceSession(network).run(None, {"x": x})[0]
    np.testing.assert_allclose(np.array(done.stdout.split(), np.float32), expected[0], atol=2e-5)


# -------------------------------------------------------------------------------------------------- Python hosts


def python(script: str, *arguments: str | Path, executable: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run a script with ctypes and the library as C."""
    text = f"import ctypes, os, sys\nC = ctypes.CDLL({str(SEED.path)!r})\n{script}"
    command = [executable, "-c", text, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)


BEGIN = """
from tests.support.onnxifi.models import IDENTITY
from tests.support.onnxifi.c_library import CDoor
from hal import abi
from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1
import numpy as np
door = CDoor(abi.LIBRARIES[0])
_, ids, _ = door.onnxGetBackendIDs(16)
_, backend = door.onnxInitBackend(ids[0])
_, graph = door.onnxInitGraph(backend, None, IDENTITY)
x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
assert door.onnxSetGraphIO(graph, [TensorDescriptorV1.of("x", x)], [TensorDescriptorV1.of("y", y)]) == 0
start, end = MemoryFenceV1(door.onnxInitEvent(backend)[1]), MemoryFenceV1()
assert door.onnxRunGraph(graph, start, end) == 0
"""


def test_other_threads_of_python_run_while_one_waits() -> None:
    done = python(
        BEGIN
        + """
import threading
done = threading.Event()
def later():
    for _ in range(1000):
        sum(range(100))  # only possible while the wait holds no lock of Python
    assert not y.any()
    assert door.onnxSignalEvent(start.event) == 0
threading.Thread(target=later).start()
assert door.onnxWaitEvent(end.event) == 0
assert (x == y).all()
print("ok")
"""
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_both_doors_in_one_process_have_handles_of_their_own() -> None:
    done = python(
        BEGIN
        + """
from hal import onnxifi
assert onnxifi.onnxReleaseGraph(graph) == 0x107
assert onnxifi.onnxWaitEvent(end.event) == 0x108
assert onnxifi.onnxGetBackendIDs()[2] == 2
assert door.onnxSignalEvent(start.event) == 0 and door.onnxWaitEvent(end.event) == 0
print("ok")
"""
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_python_ends_with_a_run_that_waits() -> None:
    done = python(BEGIN + "print('ok')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_python_ends_and_then_the_library_is_called(tmp_path: Path) -> None:
    """From the destructor of another library, after the interpreter has ended."""
    (tmp_path / "late.c").write_text(LATE)
    late = tmp_path / "late.so"
    gcc("-std=gnu11", "-shared", "-fPIC", f"-I{abi.INCLUDE}", tmp_path / "late.c", "-o", late, SEED.path)
    done = python(
        BEGIN
        + """
late = ctypes.CDLL(sys.argv[1])
late.keep(ctypes.c_void_p(backend), ctypes.c_void_p(graph), ctypes.c_void_p(end.event))
""",
        late,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "late 0x405 0x405 0x0 0x0 0x0 0 devices\n", "")


LATE = r"""
#include <stdio.h>
#include "onnxifi.h"
static void *backend, *graph, *event;
void keep(void *b, void *g, void *e) { backend = b, graph = g, event = e; }
__attribute__((destructor)) static void end(void) {
    onnxEvent made;
    size_t count = 9;
    onnxStatus waited = onnxWaitEvent(event), init = onnxInitEvent(backend, &made);
    printf("late 0x%x 0x%x 0x%x 0x%x 0x%x", waited, init, onnxReleaseEvent(event), onnxReleaseGraph(graph),
           onnxReleaseBackend(backend));
    onnxGetBackendIDs(NULL, &count);
    printf(" %zu devices\n", count);
}
"""


def test_the_first_call_comes_from_a_subinterpreter() -> None:
    """From its main thread or another one: started objects belong to the process and outlive the subinterpreter."""
    pytest.importorskip("_xxsubinterpreters", reason="made through a module of Python 3.8 to 3.12")
    calls = "count = ctypes.c_size_t(9); assert C.onnxGetBackendIDs(None, ctypes.byref(count)) == 1, count"
    threaded = f"thread = threading.Thread(target=lambda: exec({calls!r}, globals())); thread.start(); thread.join()"
    for body in (calls, threaded):
        done = python(
            f"""
import _xxsubinterpreters as interpreters
inner = interpreters.create(isolated=False)
interpreters.run_string(inner, {f"import ctypes, threading; C = ctypes.CDLL({str(SEED.path)!r}); " + body!r})
interpreters.destroy(inner)
{BEGIN}
assert door.onnxSignalEvent(start.event) == 0 and door.onnxWaitEvent(end.event) == 0
print((x == y).all())
"""
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_forked_python_is_refused() -> None:
    done = python(
        BEGIN
        + """
child = os.fork()
if child == 0:
    assert door.onnxInitEvent(backend) == (0x405, 0)
    assert door.onnxWaitEvent(end.event) == 0x405
    assert door.onnxGetBackendIDs(4) == (0, [], 0)
    assert door.onnxReleaseGraph(graph) == 0
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert door.onnxSignalEvent(start.event) == 0 and door.onnxWaitEvent(end.event) == 0
assert (x == y).all()
print("ok")
"""
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def other_pythons() -> list[str]:
    """Return interpreters of other versions on this machine."""
    folders = sorted(Path.home().glob(".pyenv/versions/*"))
    ours = f"{sys.version_info.major}.{sys.version_info.minor}."
    return [
        str(each / "bin/python") for each in folders if each.name.startswith("3.") and not each.name.startswith(ours)
    ]


@pytest.mark.skipif(not other_pythons(), reason="no Python of another version")
def test_a_host_with_another_python() -> None:
    for executable in (other_pythons()[0], other_pythons()[-1]):
        script = "n = ctypes.c_size_t(9)\nprint(C.onnxGetBackendIDs(None, ctypes.byref(n)), n.value)"
        done = python(script, executable=executable)
        assert (done.returncode, done.stdout) == (0, "1 0\n")
        refused(done.stderr, "is built for Python")


# ---------------------------------------------------------------------------------------------------- the file


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
@pytest.mark.parametrize("library", FLAVOURS.values(), ids=lambda library: library.name)
def test_the_library_itself(library: abi.Library) -> None:
    dynamic = run("readelf", "--dynamic", "--wide", library.path, PATH=os.environ["PATH"]).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert set(needed) <= {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    assert f"soname: [lib{library.name}.so]" in dynamic
    assert "NODELETE" in dynamic
    assert exported(library.path) == {*RETURNS, "onnxGetExtensionFunctionAddress"}


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
def test_the_module_exports_nothing_that_a_host_could_replace() -> None:
    assert exported(Path(onnxifi._core.__file__)) == {"PyInit__core"}


def exported(path: Path) -> set[str]:
    """Return the symbols that a shared library exports."""
    lines = run("readelf", "--dyn-syms", "--wide", path, PATH=os.environ["PATH"]).stdout.splitlines()
    words = [line.split() for line in lines]
    return {each[7] for each in words if len(each) == 8 and each[4] == "GLOBAL" and each[6].isdigit()}
