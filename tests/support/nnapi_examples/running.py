"""Run NNAPI conformance examples through plans, with the reference operators or on a device.

As a command: ``python -m tests.support.nnapi_examples.running [--device CONFIG] [V1_0 ...] [part of a name ...]``.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.constants import Constants
from hal.nnapi.operations.view import STORAGE, Array
from hal.nnapi.plan import DeviceValue, Plan, Value, Vocabulary
from hal.nnapi.types import Model, OperandType
from npusim.graph import Graph
from npusim.ops import reference
from npusim.program import CONSTANTS, FIRST_IO, Binding, ConstantData, Program
from npusim.runtime import Session
from tests.support.nnapi_examples.examples import VERSIONS, Get, Record, build_model, examples

F16_EPSILON = 2.0**-10
F32_EPSILON = 2.0**-23


class HostBuffer:
    """Device memory of a backend without a device."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.data: bytes | None = None

    def release(self) -> None:
        """Free the buffer; it must not be read afterwards."""
        self.data = None


class HostBackend:
    """Runs "programs" that contain their graph with the reference operators; each run takes 1 us."""

    limited = staticmethod(contextlib.nullcontext)

    def __init__(self) -> None:
        self.graphs: dict[Program, Graph] = {}
        self.runs = 0

    def compile(self, graph: Graph) -> Program:
        """Return a program without code that stands for the graph."""
        tensors = (*graph.inputs, *graph.outputs)
        bindings = tuple(Binding(t.name, FIRST_IO + i, t.shape, t.dtype) for i, t in enumerate(tensors))
        split = len(graph.inputs)
        inputs, outputs, nothing = bindings[:split], bindings[split:], ConstantData(0, [])
        program = Program(graph.name, "", "", "", b"", nothing, (CONSTANTS,), inputs, outputs, (), 0, ())
        self.graphs[program] = graph
        return program

    def run(self, program: Program, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Array]:
        """See Backend."""
        self.runs += 1
        arrays = {binding.name: self._array(binding, inputs[binding.name]) for binding in program.inputs}
        results = reference.run(self.graphs[program], arrays)
        for name, buffer in outputs.items():
            buffer.data = results[name].tobytes()
        return {name: array for name, array in results.items() if name not in outputs}

    @staticmethod
    def _array(binding: Binding, value: Any) -> Array:
        if not isinstance(value, HostBuffer):
            return np.asarray(value)
        assert value.data is not None, f"{binding.name} is read from released or unwritten memory"
        return np.frombuffer(value.data[: binding.nbytes], binding.dtype.storage).reshape(binding.shape)

    def allocate(self, nbytes: int) -> HostBuffer:
        """See Backend."""
        return HostBuffer(nbytes)

    def read(self, buffer: Any, nbytes: int) -> bytes:
        """See Backend."""
        assert buffer.data is not None
        return bytes(buffer.data[:nbytes])

    def write(self, buffer: Any, data: Array) -> None:
        """See Backend."""
        buffer.data = data.tobytes()

    def again(self, limit_ps: int) -> int:
        """See Backend."""
        return 0

    def decide(self, name: str, kind: str, elements: int) -> None:
        """No time."""

    def elapsed_ps(self) -> int:
        """See Backend."""
        return self.runs * 1_000_000


class SessionBackend(HostBackend):
    """Runs programs on a simulated device; values pass between programs through the host."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.time_ps = 0

    def compile(self, graph: Graph) -> Program:
        """Compile for the session's device."""
        return self.session.compile(graph)

    def run(self, program: Program, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Array]:
        """See Backend."""
        arrays = {binding.name: self._array(binding, inputs[binding.name]) for binding in program.inputs}
        result = self.session.run(program, arrays)
        self.session.unload(program)
        self.time_ps += result.time_ps
        for name, buffer in outputs.items():
            buffer.data = result.outputs[name].tobytes()
        return {name: array for name, array in result.outputs.items() if name not in outputs}

    def elapsed_ps(self) -> int:
        """See Backend."""
        return self.time_ps


def run_example(rec: Record, get: Get, backend: HostBackend, *, half: bool = False) -> list[str]:
    """Execute an example and return the differences of its outputs. ``half``: compute FLOAT32 as FLOAT16."""
    model, inputs, expected = build_model(rec, get)
    times = itertools.count()  # a plan asks for the time of the program with FLOAT16 first
    time_ps = (lambda program: next(times)) if half else None
    plan = Plan(model, Constants(model), Vocabulary(REGISTRY, STORAGE), backend.compile, time_ps=time_ps)
    kinds = [model.main.operands[number].type for number in model.main.inputIndexes]
    given = [None if a is None else a.astype(STORAGE[kind]) for a, kind in zip(inputs, kinds, strict=True)]
    results = plan.execute(backend, given, [lambda shape, dtype: None] * len(expected), 10**9)
    return differences(rec, model, inputs, expected, results)


def differences(
    rec: Record, model: Model, inputs: Sequence[Array | None], expected: Sequence[Array | None], found: Sequence[Value]
) -> list[str]:
    """Return the differences of the outputs; outputs expected to be None are not compared."""
    if rec["multinomialTol"]:
        return list(filter(None, [compare_classes(rec, np.asarray(inputs[0]), np.asarray(found[0]))]))
    return [
        f"output {index}: {problem}"
        for index, (value, wanted) in enumerate(zip(found, expected, strict=True))
        if wanted is not None and (problem := compare(rec, model, index, wanted, value))
    ]


def compare(rec: Record, model: Model, index: int, wanted: Array, value: Value) -> str:
    """Return why an output differs from the example beyond the suite's tolerances; empty if it does not."""
    assert not isinstance(value, DeviceValue)
    kind = model.main.operands[model.main.outputIndexes[index]].type
    if wanted.shape != value.shape and wanted.size != value.size:
        return f"shape must be {list(wanted.shape)}, got {list(value.shape)}"
    absolute, relative = tolerance(rec, kind)
    e, a = wanted.astype(np.float64).reshape(-1), value.astype(np.float64).reshape(-1)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        bad = ~(np.abs(e - a) <= absolute + relative * np.abs(e)) & ~(np.isnan(e) & np.isnan(a)) & (e != a)
    if not bad.any():
        return ""
    place = int(np.argmax(bad))
    return f"{int(bad.sum())} of {bad.size} differ, first at {place}: expected {e[place]}, got {a[place]}"


def tolerance(rec: Record, kind: int) -> tuple[float, float]:
    """Return the absolute and relative tolerance for an output type."""
    groups = [rec["main"], *rec["referenced"]]
    half = rec["relaxed"] or any(o["type"] == "TENSOR_FLOAT16" for group in groups for o in group["operands"])
    if kind == OperandType.TENSOR_BOOL8:
        return 0.0, 0.0
    if kind in (OperandType.TENSOR_FLOAT16, OperandType.TENSOR_FLOAT32):
        return (5 * F16_EPSILON,) * 2 if half or kind == OperandType.TENSOR_FLOAT16 else (1e-5, 5 * F32_EPSILON)
    return (3.0 if "mobilenet" in rec["test"] and kind != OperandType.TENSOR_INT32 else 1.0), 0.0


def compare_classes(rec: Record, logits: Array, value: Array) -> str:
    """RANDOM_MULTINOMIAL: compare the frequency of each class with its probability from the logits."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    wanted = weights / weights.sum(axis=1, keepdims=True)
    got = np.stack([np.bincount(row, minlength=logits.shape[1]) / row.size for row in value])
    worst = float(np.abs(wanted - got).max())
    return "" if worst <= rec["multinomialTol"] else f"a class's frequency is off by {worst}"


def main(words: Sequence[str]) -> int:
    """Entry point of the command line. Returns 1 if an example fails."""
    words = list(words)
    session = Session(words.pop(words.index("--device") + 1), cache_dir=False) if "--device" in words else None
    words = [word for word in words if word != "--device"]
    versions = [word for word in words if word in VERSIONS] or VERSIONS
    parts = [word for word in words if word not in VERSIONS]
    known = {definition.type.name for definition in REGISTRY.values()} | {"IF", "WHILE"}
    counts: Counter[str] = Counter()
    begin = time.perf_counter()
    for rec, get in examples(versions):
        if parts and not any(part in rec["test"] or part in rec["spec"] for part in parts):
            continue
        missing = {o["type"] for g in (rec["main"], *rec["referenced"]) for o in g["operations"]} - known
        if missing:
            counts["operation missing: " + ", ".join(sorted(missing))] += 1
            continue
        try:
            problems = run_example(rec, get, SessionBackend(session) if session else HostBackend())
        except Exception as error:  # noqa: BLE001 - a report of everything that fails
            problems = [f"{type(error).__name__}: {error}"]
            if parts:
                traceback.print_exc()
        if bool(problems) == bool(rec["expectFailure"]):
            counts["passed"] += 1
        else:
            counts["failed"] += 1
            print(f"{rec['version']} {rec['test']} ({rec['spec']}): {problems[0] if problems else 'must fail'}")  # noqa: T201
    for text, count in sorted(counts.items()):
        print(f"{count:5d} {text}")  # noqa: T201
    print(f"{time.perf_counter() - begin:.1f} s")  # noqa: T201
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
