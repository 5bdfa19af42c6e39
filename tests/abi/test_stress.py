"""C threads on the whole library, including the simulated device: runs, chains and releases at random.

The C core alone, under AddressSanitizer, ThreadSanitizer and valgrind, is tested in test_core.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hal import abi
from tests.support.c_compiler import PROGRAMS, compile_client, needs_gcc, run
from tests.support.onnxifi import models

pytestmark = needs_gcc


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled program, beside the model that it runs."""
    folder = tmp_path_factory.mktemp("stress")
    (folder / "tiny.onnx").write_bytes(models.unary(shape=(4,)))
    return compile_client(PROGRAMS / "client_stress.c", folder / "stress", abi.LIBRARIES[0], "-pthread")


def stress(client: Path, threads: int, runs: int, seed: int, timeout: float) -> None:
    model = client.parent / "tiny.onnx"
    done = run(client, model, threads, runs, seed, timeout=timeout, NPUSIM_ONNXIFI_BACKENDS="tiny,edge")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ok {threads * runs}\n", "")


def test_threads_that_run_and_release_at_random(client: Path) -> None:
    stress(client, 8, 60, 1, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_for_long(client: Path, seed: int) -> None:
    stress(client, 8, 1000, seed, timeout=300)
