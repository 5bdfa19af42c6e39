"""A small part of the fuzz; ``python -m tests.support.fuzz.run`` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fuzz import run as fuzz

SEED = 45
"""With this seed, twelve cases of the faulty library contain each kind of failure."""
FILES = ("spaces", "stores", *fuzz.GIVEN)
"""Libraries that are tested elsewhere: tests/property/test_given_files.py, tests/unit/explore."""
LIBRARIES = [library for library in fuzz.MODULES if library not in FILES]
CASES = {
    "onnxifi": 200,
    "onnxifi-v1": 100,
    "neuralnetworks": 200,
    "programs": 200,
    "npu-files": 80,
    "weight-streams": 50,
    "models": 300,
    "onnxruntime": 60,
    "tflite-models": 100,
    "vfio-user": 50,
    "pci-proxy": 50,
    "uml": 20,
}
MANY = {"npu-files": 5000, "vfio-user": 2000, "pci-proxy": 2000, "uml": 300}
"""Numbers of cases for slow libraries, which execute a program or a session of hundreds of messages per case."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_calls_that_no_sane_client_makes(library: str) -> None:
    assert list(fuzz.run_all(library, 0, 0, CASES[library], workers=1)) == []


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_many_of_them(library: str) -> None:
    assert list(fuzz.run_all(library, 1, 0, MANY.get(library, 15_000))) == []


def test_a_case_is_the_same_each_time() -> None:
    assert fuzz.rng_of("onnxifi", 1, 2).random() == fuzz.rng_of("onnxifi", 1, 2).random()
    assert fuzz.rng_of("onnxifi", 1, 2).random() != fuzz.rng_of("onnxifi", 1, 3).random()


def test_crashes_hangs_and_wrong_answers_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "PATIENCE_S", 1.5)
    library, cases = "tests.support.fuzz.faulty_library", 12
    kinds = [fuzz.rng_of(library, SEED, number).randrange(8) for number in range(cases)]
    assert [kinds.count(kind) for kind in range(3)] == [1, 1, 1]
    words = {0: "the process ended with -11", 1: "hangs", 2: "wrong"}
    found = {problem.split("\n")[0] for problem in fuzz.run_all(library, SEED, 0, cases, workers=1)}
    assert found == {f"case {number}: {words[kind]}" for number, kind in enumerate(kinds) if kind < 3}


def test_a_process_that_has_not_begun_has_more_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "PATIENCE_S", -1.0)
    worker = fuzz.Worker("tests.support.fuzz.faulty_library", SEED, range(7, 12), tmp_path)
    assert worker.poll() is None
    monkeypatch.setattr(fuzz, "START_S", -1.0)
    found = worker.poll()
    assert found is not None
    assert found[0].startswith("case 7: hangs\n")
