"""The NNAPI conformance examples through the driver, with every way to execute; run if they are installed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hal.nnapi import aidl, open_device
from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import ErrorStatus, Model, OptionalTimeoutDuration
from tests.support.nnapi.client import EXECUTORS, Frame, aidl_model, aidl_prepare, prepare, prepared_model
from tests.support.nnapi_examples.examples import (
    AIDL_VERSIONS,
    VERSIONS,
    Array,
    Get,
    Record,
    available,
    build_model,
    examples,
)
from tests.support.nnapi_examples.running import differences
from tests.support.nnapi_examples.variants import VARIANTS, attempt

pytestmark = pytest.mark.skipif(not available(), reason="the NNAPI conformance examples are not here")

KNOWN_TO_DIFFER = {
    ("half", "lsh_projection"): "hashes the bytes of its weights, which are others as FLOAT16",
    ("signed", "pad_v2"): "the value to pad with is a number of the quantised range, and the example's is not changed",
}

SAMPLE = 24
"""By default one example in this many runs in each way of execution other than the plain one, one in half as many in
each variant, and one in an eighth as many in the plain way. The slow tests run all of them."""

WITHOUT_LOOP_TIMEOUT = ("burst", "aidl burst", "aidl reusable")
"""Ways that run an endless loop until the interface's default time limit, which takes seconds to simulate."""


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with open_device("edge") as opened:
        yield opened


def problems(device: Any, rec: Record, get: Get, ways: Sequence[str]) -> list[str]:
    """Return what is wrong with an example, with the way of execution."""
    model, inputs, expected = build_model(rec, get)
    if rec["version"] in AIDL_VERSIONS:
        supported = aidl.device(device).getSupportedOperations(aidl_model(model))
    else:
        status, supported = device.getSupportedOperations_1_3(model)
        assert status is ErrorStatus.NONE
    if not all(supported):
        return [f"support: {supported}"]
    prepared = aidl_prepared(device, model) if rec["version"] in AIDL_VERSIONS else prepared_model(device, model)
    found = []
    endless = "infinite" in rec["test"]
    for way in ways:
        if endless and way in WITHOUT_LOOP_TIMEOUT:
            continue
        try:
            options = {"loop": OptionalTimeoutDuration(1_000_000)} if endless else {}
            problem = _execute(prepared, rec, model, inputs, expected, way, options)
        except AssertionError as error:
            problem = f"the client: {error}"
        if bool(problem) != bool(rec["expectFailure"]):
            found.append(f"{way}: {problem or 'must fail'}")
    return found


def aidl_prepared(device: Any, model: Model) -> Any:
    """The prepared model of HAL 1.3 that the AIDL interface made."""
    launched, status, prepared = aidl_prepare(device, model)
    assert (launched, status) == (ErrorStatus.NONE, ErrorStatus.NONE)
    return prepared.prepared


@pytest.mark.parametrize("version", AIDL_VERSIONS)
def test_hal_1_3_refuses_what_came_later(device: Any, version: str) -> None:
    for rec, get in examples([version]):
        model, _, _ = build_model(rec, get)
        assert device.getSupportedOperations_1_3(model) == (ErrorStatus.INVALID_ARGUMENT, []), rec["test"]
        assert prepare(device, model) == (ErrorStatus.INVALID_ARGUMENT, ErrorStatus.INVALID_ARGUMENT, None)


def _execute(
    prepared: Any,
    rec: Record,
    model: Model,
    inputs: Sequence[Array | None],
    expected: Sequence[Array | None],
    way: str,
    options: Mapping[str, Any],
) -> str:
    operands = [model.main.operands[number] for number in model.main.outputIndexes]
    sizes = [_size(rec, index, STORAGE[operand.type]) for index, operand in enumerate(operands)]
    frame = Frame(inputs, sizes, [list(operand.dimensions) for operand in operands])
    try:
        outcome = EXECUTORS[way](prepared, frame, **options)
        if way == "fenced" and not all(sizes):  # an output that may be empty is not fully specified
            return (
                "" if outcome.status == ErrorStatus.INVALID_ARGUMENT else f"{outcome.status.name} for an empty output"
            )
        if outcome.status != ErrorStatus.NONE:
            return outcome.status.name
        arrays = [outcome.array(index, STORAGE[operand.type]) for index, operand in enumerate(operands)]
    finally:
        frame.close()
    return "; ".join(differences(rec, model, inputs, expected, arrays))


def _size(rec: Record, index: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes of an output in the example."""
    operand = rec["main"]["operands"][rec["main"]["outputs"][index]]
    return int(np.prod(operand["dims"], dtype=np.int64)) * dtype.itemsize


def failures(device: Any, version: str, ways: Sequence[str], part: slice) -> dict[str, list[str]]:
    """Return the failures in a part of the examples by name; of the newest versions, which have few, all are run."""
    chosen = list(examples([version]))[slice(None) if version in AIDL_VERSIONS else part]
    return {rec["test"]: found for rec, get in chosen if (found := problems(device, rec, get, ways))}


@pytest.mark.parametrize("version", VERSIONS)
def test_examples_through_the_driver(device: Any, version: str) -> None:
    assert not failures(device, version, ["sync"], slice(None, None, SAMPLE // 4))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("number", "way"), list(enumerate(EXECUTORS))[1:])
def test_a_sample_in_the_other_ways(device: Any, version: str, number: int, way: str) -> None:
    assert not failures(device, version, [way], slice(number, None, SAMPLE))


@pytest.mark.parametrize("config", ["rk3588_core", "intel_npu27", "edge"])
@pytest.mark.parametrize("step", [SAMPLE, pytest.param(1, marks=pytest.mark.slow)])
def test_relaxed_examples_within_their_tolerance(config: str, step: int) -> None:
    """The first two devices multiply no float32."""
    with open_device(config) as opened:
        chosen = [(rec, get) for rec, get in examples() if rec["relaxed"]][::step]
        failed = {rec["test"]: found for rec, get in chosen if (found := problems(opened, rec, get, ["sync"]))}
    assert not failed
    assert len(chosen) > 300 // step


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_all_in_every_way(device: Any, version: str) -> None:
    assert not failures(device, version, list(EXECUTORS), slice(None))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("step", [SAMPLE // 2, pytest.param(1, marks=pytest.mark.slow)])
def test_other_forms_of_the_examples(variant: str, step: int) -> None:
    failed = {}
    counts: Counter[str] = Counter()
    for rec, get in list(examples())[::step]:
        verdict = attempt(rec, get, VARIANTS[variant])
        counts[verdict.partition(":")[0]] += 1
        excused = any(variant == name and part in rec["test"] for name, part in KNOWN_TO_DIFFER)
        if verdict.startswith("failed") and not excused:
            failed[rec["test"]] = verdict
    assert not failed
    assert counts["passed"] > 200 // step


def main(words: Sequence[str]) -> int:
    """Entry point of the command line: run every example in every way, or those whose name contains a word. Prints
    failures."""
    config = words[0] if words else "edge"
    failures = 0
    with open_device(config) as opened:
        for rec, get in examples():
            if words[1:] and not any(word in rec["test"] for word in words[1:]):
                continue
            found = problems(opened, rec, get, list(EXECUTORS))
            failures += bool(found)
            if found:
                print(rec["version"], rec["test"], found)  # noqa: T201
    print(failures, "examples failed")  # noqa: T201
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
