"""Conformance examples in equivalent structures: other layouts, results used again, control flow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import OperandType
from tests.support.nnapi_examples.examples import Array, Get, Record

Example = tuple[Record, Get]
Group = dict[str, Any]
"""A subgraph of a record."""
Values = dict[tuple[str, int], Array | None]
"""Values added to an example, by subgraph and operand."""

_NCHW = (0, 3, 1, 2)
_IMAGES = {
    "GENERATE_PROPOSALS": ((0, 1), ()), "HEATMAP_MAX_KEYPOINT": ((0,), ()),
    **dict.fromkeys(
        (
            "AVERAGE_POOL_2D", "BATCH_TO_SPACE_ND", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "GROUPED_CONV_2D",
            "INSTANCE_NORMALIZATION", "L2_POOL_2D", "MAX_POOL_2D", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR",
            "ROI_ALIGN", "ROI_POOLING", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH", "TRANSPOSE_CONV_2D",
        ),
        ((0,), (0,)),
    ),
}  # fmt: skip
"""Operations with a layout, and which inputs and outputs have it. The layout is their first BOOL, or omitted at the
end."""


def channels_first(rec: Record, get: Get) -> Example | None:
    """Convert images from channels last to channels first."""
    rec = copy.deepcopy(rec)
    main = rec["main"]
    if len(main["operations"]) != 1 or main["operations"][0]["type"] not in _IMAGES:
        return None
    [operation] = main["operations"]
    values: Values = {}
    layout = next((i for i in operation["inputs"] if main["operands"][i]["type"] == "BOOL"), None)
    if layout is None:
        layout = added(main, type="BOOL")
        operation["inputs"].append(layout)
    elif (given := get("main", layout)) is None or given[0]:
        return None
    values["main", layout] = np.array([True])
    reads, writes = _IMAGES[operation["type"]]
    for index in [*(operation["inputs"][i] for i in reads), *(operation["outputs"][i] for i in writes)]:
        operand, data = main["operands"][index], get("main", index)
        if data is not None:
            values["main", index] = data.reshape(operand["dims"]).transpose(_NCHW).reshape(-1)
        operand["dims"] = [operand["dims"][place] for place in _NCHW]
    if operation["type"] == "TRANSPOSE_CONV_2D" and len(operation["inputs"]) == 9:
        wanted = get("main", operation["inputs"][3])
        assert wanted is not None
        values["main", operation["inputs"][3]] = wanted[list(_NCHW)]
    return rec, over(get, values)


def scalars(rec: Record, get: Get) -> Example | None:
    """Turn constant scalars of the main subgraph into inputs."""
    rec = copy.deepcopy(rec)
    main, count = rec["main"], len(rec["main"]["inputs"])
    for index, operand in enumerate(main["operands"]):
        if operand["lifetime"].startswith("CONSTANT") and not operand["dims"]:
            operand["lifetime"] = "SUBGRAPH_INPUT"
            main["inputs"].append(index)
    return (rec, get) if len(main["inputs"]) > count else None


def doubled(rec: Record, get: Get) -> Example | None:
    """Repeat every operation with the same inputs; the outputs of both are model outputs, in reverse order."""
    if rec["referenced"]:
        return None
    rec = copy.deepcopy(rec)
    main = rec["main"]
    values: Values = {}
    twin: dict[int, int] = {}
    for operation in list(main["operations"]):
        inputs = [twin.get(index, index) for index in operation["inputs"]]
        for index in inputs:
            main["operands"][index]["consumers"] += index not in twin.values()
        for index in operation["outputs"]:
            twin[index] = added(main, **main["operands"][index])
            values["main", twin[index]] = get("main", index)
        main["operations"].append({**operation, "inputs": inputs, "outputs": [twin[i] for i in operation["outputs"]]})
    main["outputs"] = [*main["outputs"], *(twin[index] for index in main["outputs"])][::-1]
    return rec, over(get, values)


def passed_on(rec: Record, get: Get) -> Example | None:
    """Read the outputs as well: each output plus zero is another output."""
    rec = copy.deepcopy(rec)
    main = rec["main"]
    values: Values = {}
    for index in list(main["outputs"]):
        operand = main["operands"][index]
        if operand["type"] not in _ADDED or not 1 <= len(operand["dims"]) <= 4:
            continue
        again = added(main, **{**operand, "consumers": 0})
        zero = added(main, **{**_BLANK, **_kind(operand), "dims": [1]})
        none = added(main)
        values["main", again] = get("main", index)
        values["main", zero] = np.array([operand["zeroPoint"]], _storage(operand))
        values["main", none] = np.zeros(1, np.int32)
        operand["consumers"] += 1
        main["operations"].append({"type": "ADD", "inputs": [index, zero, none], "outputs": [again]})
        main["outputs"].append(again)
    return (rec, over(get, values)) if values else None


def branch(rec: Record, get: Get) -> Example | None:
    """Use the main subgraph as both branches of an IF."""
    if rec["referenced"] or not _all_given(rec, get):
        return None
    inner = copy.deepcopy(rec["main"])
    main = _group()
    values: Values = {}
    main["inputs"] = _copies(main, inner, inner["inputs"], values, get)
    main["outputs"] = _copies(main, inner, inner["outputs"], values, get)
    condition = added(main, type="TENSOR_BOOL8", dims=[1])
    values["main", condition] = np.array([True])
    branches = [_subgraph(main, 0), _subgraph(main, 0)]
    main["operations"] = [
        {"type": "IF", "inputs": [condition, *branches, *main["inputs"]], "outputs": list(main["outputs"])}
    ]
    return {**rec, "main": main, "referenced": [inner]}, _moved(get, values, "ref0")


def loop(rec: Record, get: Get) -> Example | None:
    """Use the main subgraph as the body of a WHILE with two iterations; its inputs are only read."""
    outputs = [rec["main"]["operands"][index] for index in rec["main"]["outputs"]]
    if rec["referenced"] or not _all_given(rec, get) or any(0 in operand["dims"] for operand in outputs):
        return None
    body, condition, main = copy.deepcopy(rec["main"]), _group(), _group()
    values: Values = {}
    given, made = list(body["inputs"]), list(body["outputs"])

    before = added(body, **_COUNTER, lifetime="SUBGRAPH_INPUT")
    one, none = added(body, **_COUNTER), added(body)
    after = added(body, **_COUNTER, lifetime="SUBGRAPH_OUTPUT", consumers=0)
    values["ref1", one], values["ref1", none] = np.ones(1, np.int32), np.zeros(1, np.int32)
    body["operations"].append({"type": "ADD", "inputs": [before, one, none], "outputs": [after]})
    former = [added(body, **{**o, "lifetime": "SUBGRAPH_INPUT", "consumers": 0}) for o in outputs]
    body["inputs"], body["outputs"] = [before, *former, *given], [after, *made]

    condition["inputs"] = [
        added(condition, **{**body["operands"][i], "consumers": int(i == before)}) for i in body["inputs"]
    ]
    limit = added(condition, **_COUNTER)
    values["ref0", limit] = np.array([2], np.int32)
    verdict = added(condition, type="TENSOR_BOOL8", dims=[1], lifetime="SUBGRAPH_OUTPUT", consumers=0)
    condition["operations"] = [{"type": "LESS", "inputs": [condition["inputs"][0], limit], "outputs": [verdict]}]
    condition["outputs"] = [verdict]

    subgraphs, start = [_subgraph(main, 0), _subgraph(main, 1)], added(main, **_COUNTER)
    values["main", start] = np.zeros(1, np.int32)
    first = [added(main, **{**o, "lifetime": "CONSTANT_COPY", "consumers": 1}) for o in outputs]
    for index, operand in zip(first, outputs, strict=True):
        values["main", index] = np.zeros(int(np.prod(operand["dims"])), _storage(operand))
    main["inputs"] = _copies(main, body, given, values, get)
    count = added(main, **_COUNTER, lifetime="TEMPORARY_VARIABLE", consumers=0)
    main["outputs"] = _copies(main, body, made, values, get)
    inputs = [*subgraphs, start, *first, *main["inputs"]]
    main["operations"] = [{"type": "WHILE", "inputs": inputs, "outputs": [count, *main["outputs"]]}]
    return {**rec, "main": main, "referenced": [condition, body]}, _moved(get, values, "ref1")


STRUCTURES: tuple[Callable[[Record, Get], Example | None], ...] = (
    channels_first, scalars, doubled, passed_on, branch, loop,
)  # fmt: skip

_ADDED = ("TENSOR_FLOAT32", "TENSOR_FLOAT16", "TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED", "TENSOR_INT32")
_BLANK = {
    "name": "added", "type": "INT32", "dims": [], "scale": 0.0, "zeroPoint": 0, "lifetime": "CONSTANT_COPY",
    "consumers": 1, "ignored": False,
}  # fmt: skip
_COUNTER: dict[str, Any] = {"type": "TENSOR_INT32", "dims": [1]}


def _group() -> Group:
    return {"operands": [], "operations": [], "inputs": [], "outputs": []}


def added(group: Group, **fields: Any) -> int:
    """Add an operand and return its index."""
    group["operands"].append({**copy.deepcopy(_BLANK), **copy.deepcopy(fields)})
    return len(group["operands"]) - 1


def _subgraph(group: Group, index: int) -> int:
    return added(group, type="SUBGRAPH", lifetime="SUBGRAPH", subgraphIndex=index)


def _copies(group: Group, source: Group, indexes: Sequence[int], values: Values, get: Get) -> list[int]:
    """Copy operands with their values to the main subgraph; an input is read only once."""
    made = []
    for index in indexes:
        operand = source["operands"][index]
        made.append(added(group, **{**operand, "consumers": int(operand["lifetime"] == "SUBGRAPH_INPUT")}))
        values["main", made[-1]] = get("main", index)
    return made


def _kind(operand: Record) -> Record:
    return {key: operand[key] for key in ("type", "scale", "zeroPoint")}


def _storage(operand: Record) -> np.dtype[Any]:
    return STORAGE[OperandType[operand["type"]]]


def _all_given(rec: Record, get: Get) -> bool:
    """Return whether no input is omitted, because IF and WHILE only pass operands with values."""
    return all(get("main", index) is not None for index in rec["main"]["inputs"])


def over(get: Get, values: Values) -> Get:
    return lambda name, index: values[name, index] if (name, index) in values else get(name, index)


def _moved(get: Get, values: Values, name: str) -> Get:
    """Return the values, with those of the example's main subgraph moved to the subgraph ``name``."""

    def moved(group: str, index: int) -> Array | None:
        return values.get((group, index), get("main", index) if group == name else None)

    return moved
