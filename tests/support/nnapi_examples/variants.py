"""Conformance examples in equivalent forms: other types, constants as inputs, open dimensions, and the forms of
``structures`` and ``without_images``.

As a command: ``python -m tests.support.nnapi_examples.variants [variant ...] [-- arguments of running]``.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hal.nnapi.errors import InvalidModelError
from hal.nnapi.validation import validate_model
from tests.support.nnapi_examples.examples import Array, Get, Record, build_model, examples
from tests.support.nnapi_examples.running import HostBackend, run_example
from tests.support.nnapi_examples.structures import STRUCTURES, Example
from tests.support.nnapi_examples.without_images import empty

Variant = Callable[[Record, Get], Example | None]
"""Returns the example in another form; None if there is nothing to change."""

_HALF = {"TENSOR_FLOAT32": "TENSOR_FLOAT16", "FLOAT32": "FLOAT16"}
_DUMMY = ("TENSOR_FLOAT32", "TENSOR_FLOAT16", "TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED", "TENSOR_INT32")


def half(rec: Record, get: Get) -> Example | None:
    """Change every FLOAT32 to FLOAT16."""
    rec = copy.deepcopy(rec)
    floats = set()
    for name, operand, index in _operands(rec):
        if operand["type"] in _HALF:
            operand["type"] = _HALF[operand["type"]]
            floats.add((name, index))
    return (rec, _mapped(get, floats, _to_half)) if floats else None


def _to_half(array: Array) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def relaxed(rec: Record, get: Get) -> Example | None:
    """Allow computing FLOAT32 as FLOAT16."""
    return ({**rec, "relaxed": True}, get) if not rec["relaxed"] else None


def signed(rec: Record, get: Get) -> Example | None:
    """Change TENSOR_QUANT8_ASYMM to TENSOR_QUANT8_ASYMM_SIGNED, minus 128."""
    rec = copy.deepcopy(rec)
    changed = set()
    for name, operand, index in _operands(rec):
        if operand["type"] == "TENSOR_QUANT8_ASYMM":
            operand["type"], operand["zeroPoint"] = "TENSOR_QUANT8_ASYMM_SIGNED", operand["zeroPoint"] - 128
            changed.add((name, index))
    return (rec, _mapped(get, changed, lambda array: (array.astype(int) - 128).astype(np.int8))) if changed else None


def inputs(rec: Record, get: Get) -> Example | None:
    """Turn constant tensors of the main subgraph into inputs."""
    rec = copy.deepcopy(rec)
    main = rec["main"]
    for index, operand in enumerate(main["operands"]):
        if operand["lifetime"].startswith("CONSTANT") and operand["dims"]:
            operand["lifetime"] = "SUBGRAPH_INPUT"
            main["inputs"].append(index)
    return (rec, get) if main["inputs"] != [] else None


def internal(rec: Record, get: Get) -> Example | None:
    """Let inputs come from an addition of zero."""
    rec = copy.deepcopy(rec)
    main, extra = rec["main"], {}
    for place, index in enumerate(list(main["inputs"])):
        operand = main["operands"][index]
        data = get("main", index)
        if operand["type"] not in _DUMMY or data is None or not 1 <= len(operand["dims"]) <= 4:
            continue
        fresh = len(main["operands"])
        zero = {**operand, "name": "zero", "dims": [1], "lifetime": "CONSTANT_COPY", "consumers": 1, "hasData": True}
        none = {**_INT32, "name": "none"}
        main["operands"] += [{**operand, "name": "given", "consumers": 1}, zero, none]
        extra[fresh] = data
        extra[fresh + 1] = np.array([operand["zeroPoint"]], data.dtype)
        extra[fresh + 2] = np.zeros(1, np.int32)
        operand["lifetime"] = "TEMPORARY_VARIABLE"
        main["operations"].insert(0, {"type": "ADD", "inputs": [fresh, fresh + 1, fresh + 2], "outputs": [index]})
        main["inputs"][place] = fresh
    if not extra:
        return None
    return rec, lambda name, index: extra[index] if name == "main" and index in extra else get(name, index)


_INT32 = {
    "type": "INT32", "dims": [], "scale": 0.0, "zeroPoint": 0, "lifetime": "CONSTANT_COPY", "consumers": 1,
    "ignored": False,
}  # fmt: skip


def open_dimensions(rec: Record, get: Get) -> Example | None:
    """Set every dimension of non-constant operands to 0."""
    return _opened(rec, lambda dims: [0] * len(dims)), get


def open_ranks(rec: Record, get: Get) -> Example | None:
    """Remove the dimensions of non-constant tensors."""
    return _opened(rec, lambda dims: []), get


def _opened(rec: Record, dims: Callable[[list[int]], list[int]]) -> Record:
    rec = copy.deepcopy(rec)
    for _, operand, _ in _operands(rec):
        if operand["lifetime"] in ("TEMPORARY_VARIABLE", "SUBGRAPH_INPUT", "SUBGRAPH_OUTPUT"):
            operand["shape"] = operand["dims"]
            operand["dims"] = dims(operand["dims"])
    return rec


def _operands(rec: Record) -> list[tuple[str, dict[str, Any], int]]:
    groups = [("main", rec["main"]), *((f"ref{i}", group) for i, group in enumerate(rec["referenced"]))]
    return [(name, operand, i) for name, group in groups for i, operand in enumerate(group["operands"])]


def _mapped(get: Get, which: set[tuple[str, int]], change: Callable[[Array], Array]) -> Get:
    def changed(name: str, index: int) -> Array | None:
        array = get(name, index)
        return change(array) if array is not None and (name, index) in which else array

    return changed


VARIANTS: dict[str, Variant] = {
    each.__name__: each
    for each in (half, relaxed, signed, inputs, internal, open_dimensions, open_ranks, *STRUCTURES, empty)
}


def attempt(rec: Record, get: Get, variant: Variant) -> str:
    """Return the outcome of a variant: "passed", "nothing to change", "refused: ..." or "failed: ..."."""
    changed = variant(rec, get)
    if changed is None:
        return "nothing to change"
    try:
        validate_model(build_model(*changed)[0])
    except InvalidModelError as error:
        return f"refused: {error}"
    try:
        problems = run_example(*changed, HostBackend())
    except Exception as error:  # noqa: BLE001 - a report of everything that fails
        problems = [f"{type(error).__name__}: {error}"]
    if bool(problems) == bool(rec["expectFailure"]):
        return "passed"
    return f"failed: {problems[0] if problems else 'must fail'}"


def main(words: Sequence[str]) -> int:
    """Entry point of the command line."""
    failures = 0
    verbose = "-v" in words
    for name, variant in VARIANTS.items():
        if [word for word in words if word in VARIANTS] and name not in words:
            continue
        counts: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        for rec, get in examples():
            verdict = attempt(rec, get, variant)
            counts[verdict.partition(":")[0]] += 1
            if verdict.startswith("failed"):
                failures += 1
                print(f"{name} {rec['version']} {rec['test']} ({rec['spec']}): {verdict}")  # noqa: T201
            elif verdict.startswith("refused"):
                refused[" ".join(sorted({o["type"] for o in rec["main"]["operations"]})) + ": " + verdict] += 1
        print(f"== {name}: {dict(counts)}")  # noqa: T201
        for text, count in sorted(refused.items()) if verbose else ():
            print(f"   {count} {text}")  # noqa: T201
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
