"""onnx's node tests through ONNXIFI: passed, skipped with a status as the reason, or failed.

A case that is skipped because an operand's value must be known is run again as ``<name>:bound``, with all inputs but
the first as weight descriptors.

``python -m tests.support.onnx_node_tests.through_onnxifi`` counts them on the first backend; with ``--library`` through
a C library.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hal.onnxifi.constants import DataType
from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1
from hal.onnxifi.status import Status
from npusim.dtypes import dtype_of
from npusim.frontends.onnx.tensors import TO_ONNX
from tests.support.onnx_node_tests.cases import BOUND, NodeCase, judge, node_cases
from tests.support.onnxifi.client import Door

Array = npt.NDArray[Any]
SKIPS = frozenset(status for status in Status if status.name.startswith("UNSUPPORTED_"))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case; ``reason`` is the status of a skip, or the failure."""

    case: str
    result: Literal["passed", "skipped", "failed"]
    reason: str = ""


class StatusError(Exception):
    """A call failed."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(call, status)
        self.call = call
        self.status = Status(status)

    def __str__(self) -> str:
        return f"{self.call}: {self.status.name}"


def check(call: str, status: int, also: Sequence[Status] = ()) -> None:
    if status not in (Status.SUCCESS, *also):
        raise StatusError(call, status)


class Runner:
    """One backend of an implementation ("door"). A context manager."""

    def __init__(self, door: Door, number: int = 0) -> None:
        self.door = door
        _, _, count = door.onnxGetBackendIDs()
        _, self.ids, _ = door.onnxGetBackendIDs(count)
        self.id = self.ids[number]
        status, self.backend = door.onnxInitBackend(self.id)
        check("onnxInitBackend", status)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        self.door.onnxReleaseBackend(self.backend)
        for identifier in self.ids:
            self.door.onnxReleaseBackendID(identifier)

    def run(self, case: NodeCase, weights: Sequence[str] = ()) -> list[Array]:
        """Return the outputs of a case; the inputs named by ``weights`` are static. Raises StatusError."""
        data = case.model.SerializeToString()
        check("onnxGetBackendCompatibility", self.door.onnxGetBackendCompatibility(self.id, data), [Status.FALLBACK])
        arrays = {name: np.array(value, order="C") for name, value in case.inputs.items()}
        static = [describe(name, arrays[name]) for name in weights]
        status, graph = self.door.onnxInitGraph(self.backend, None, data, static or None)
        check("onnxInitGraph", status, [Status.FALLBACK])
        for name in weights:
            arrays.pop(name)[...] = 0  # the graph must have its own copy
        try:
            return self._compute(graph, case, arrays)
        finally:
            check("onnxReleaseGraph", self.door.onnxReleaseGraph(graph))

    def _compute(self, graph: int, case: NodeCase, inputs: Mapping[str, Array]) -> list[Array]:
        names = [value.name for value in case.model.graph.output]
        outputs = [np.zeros(array.shape, array.dtype) for array in case.expected]
        status = self.door.onnxSetGraphIO(
            graph,
            [describe(name, array) for name, array in inputs.items()],
            [describe(name, array) for name, array in zip(names, outputs, strict=True)],
        )
        check("onnxSetGraphIO", status)
        status, start = self.door.onnxInitEvent(self.backend)
        check("onnxInitEvent", status)
        end = MemoryFenceV1()
        check("onnxRunGraph", self.door.onnxRunGraph(graph, MemoryFenceV1(start), end))
        check("onnxSignalEvent", self.door.onnxSignalEvent(start))
        status = self.door.onnxWaitEvent(end.event)
        for event in (start, end.event):
            check("onnxReleaseEvent", self.door.onnxReleaseEvent(event))
        check("onnxWaitEvent", status)
        return outputs


def describe(name: str, array: Array) -> TensorDescriptorV1:
    """Return a descriptor; types unknown to ONNXIFI, such as text, get ONNX's number for text."""
    try:
        code = TO_ONNX[dtype_of(array)]
    except TypeError:
        code = 8
    return TensorDescriptorV1(name, code, array.shape, array.ctypes.data, owner=array)


def all_tensors(case: NodeCase) -> bool:
    """Return whether every value is a tensor: no sequences, no absent outputs."""
    return all(isinstance(value, np.ndarray) for value in (*case.inputs.values(), *case.expected))


def classify(runner: Runner, case: NodeCase, weights: Sequence[str] = ()) -> Outcome:
    """Run a case. A status for "not supported" is a skip."""
    tensors = all_tensors(case)
    try:
        # Values that are not tensors cannot be bound, so such a model must be refused earlier.
        outputs = runner.run(case, weights) if tensors else _refused(runner, case)
    except StatusError as error:
        return Outcome(case.name, "skipped" if error.status in SKIPS else "failed", str(error))
    verdict = judge(case, lambda model, inputs: outputs)
    return Outcome(case.name, "passed" if verdict.outcome == "passed" else "failed", verdict.reason)


def _refused(runner: Runner, case: NodeCase) -> list[Array]:
    data = case.model.SerializeToString()
    check("onnxGetBackendCompatibility", runner.door.onnxGetBackendCompatibility(runner.id, data))
    raise AssertionError(f"{case.name}: a model over sequences must not be compatible")


def outcomes(runner: Runner, cases: Iterable[NodeCase]) -> list[Outcome]:
    """Run every case; those that need values are run again with weights."""
    found = []
    for case in cases:
        found.append(classify(runner, case))
        waits = found[-1].result == "skipped" and found[-1].reason == "onnxInitGraph: UNSUPPORTED_SHAPE"
        if waits and len(case.inputs) > 1:
            found.append(classify(runner, replace(case, name=case.name + BOUND), list(case.inputs)[1:]))
    return found


def supported_types(case: NodeCase) -> bool:
    """Return whether descriptors can express every type of the case."""
    arrays = [value for value in (*case.inputs.values(), *case.expected) if isinstance(value, np.ndarray)]
    codes = {describe("x", array).dataType for array in arrays}
    return all_tensors(case) and codes <= {int(item) for item in DataType}


def summary(found: Sequence[Outcome]) -> str:
    counts = Counter(outcome.result for outcome in found)
    lines = [f"{counts['passed']} passed, {counts['skipped']} skipped, {counts['failed']} failed of {len(found)}"]
    lines += [f"FAILED {outcome.case}: {outcome.reason}" for outcome in found if outcome.result == "failed"]
    skips = Counter(outcome.reason for outcome in found if outcome.result == "skipped")
    lines += [f"{count:5} skipped: {reason}" for reason, count in skips.most_common()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases and report. Returns 1 if any failed."""
    from hal import abi, onnxifi
    from tests.support.onnxifi.c_library import CDoor

    libraries = {library.name: library for library in abi.LIBRARIES if "onnxifi" in library.name}
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.onnx_node_tests.through_onnxifi", description=__doc__
    )
    parser.add_argument("--library", choices=sorted(libraries), help="a C library instead of hal.onnxifi")
    chosen = parser.parse_args(arguments).library
    start = time.perf_counter()
    with Runner(CDoor(libraries[chosen]) if chosen else onnxifi) as runner:
        found = outcomes(runner, node_cases())
    sys.stdout.write(f"{summary(found)}\n{time.perf_counter() - start:.1f} s\n")
    return int(any(outcome.result == "failed" for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
