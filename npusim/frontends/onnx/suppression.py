"""NonMaxSuppression: the device compares the boxes, the host selects."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from npusim.ops.base import Array

LEAST_CANDIDATES = 16
MOST_CANDIDATES = 2048
"""Limit of the boxes that are compared with each other on the device, because the result has their number squared.
With more of them, the host compares those that it selects."""
BOX_OPERATIONS = 12
"""Elements that the host reads and writes to compare two boxes itself."""


def padded(count: int) -> int:
    """The number of candidates in a program: a power of two, so that few numbers need a program."""
    return max(LEAST_CANDIDATES, 1 << (count - 1).bit_length())


def overlap_graph(batches: int, candidates: int, centers: bool) -> GraphProto:
    """Which candidates overlap: bool[batches, candidates, candidates].

    Inputs: ``boxes``, float[batches, n, 4]; ``places``, int64[batches * candidates], rows of all boxes; ``limit``, the
    intersection over union above which two boxes overlap. ``centers``: boxes are [x, y, width, height] instead of two
    corners [y, x, y, x] in any order.
    """
    nodes: list[NodeProto] = []
    constants: list[TensorProto] = []

    def constant(name: str, value: object) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    rows = add("Reshape", "boxes", constant("rows", np.array([-1, 4], np.int64)))
    columns = add("Transpose", add("Gather", rows, "places", axis=0), perm=[1, 0])
    parts = [add("Gather", columns, constant(f"part{i}", np.int64(i)), axis=0) for i in range(4)]
    if centers:
        half = constant("half", np.float32(0.5))
        low, high = [], []
        for center, size in ((parts[0], parts[2]), (parts[1], parts[3])):
            reach = add("Mul", size, half)
            low.append(add("Sub", center, reach))
            high.append(add("Add", center, reach))
    else:
        low = [add("Min", parts[i], parts[i + 2]) for i in range(2)]
        high = [add("Max", parts[i], parts[i + 2]) for i in range(2)]
    area = add("Mul", *(add("Sub", above, below) for above, below in zip(high, low, strict=True)))
    column = constant("column", np.array([batches, candidates, 1], np.int64))
    row = constant("row", np.array([batches, 1, candidates], np.int64))

    def both(value: str) -> tuple[str, str]:
        return add("Reshape", value, column), add("Reshape", value, row)

    sides = [
        add("Relu", add("Sub", add("Min", *both(above)), add("Max", *both(below))))
        for above, below in zip(high, low, strict=True)
    ]
    shared = add("Mul", *sides)
    union = add("Sub", add("Add", *both(area)), shared)
    over = add("Greater", add("Div", shared, union), "limit")
    values = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("places", TensorProto.INT64, None),
        helper.make_tensor_value_info("limit", TensorProto.FLOAT, None),
    ]
    outputs = [helper.make_tensor_value_info(over, TensorProto.BOOL, None)]
    return helper.make_graph(nodes, "overlaps", values, outputs, constants)


class HostOverlaps:
    """The same for one batch on the host, a row at a time: only for boxes that are selected.

    ``boxes``: float32[n, 4]. ``operations``: elements read and written so far.
    """

    def __init__(self, boxes: Array, limit: float, centers: bool) -> None:
        if centers:
            reach = boxes[:, 2:] * np.float32(0.5)
            self._low, self._high = boxes[:, :2] - reach, boxes[:, :2] + reach
        else:
            self._low, self._high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
        self._area = np.prod(self._high - self._low, axis=1)
        self._limit = np.float32(limit)
        self.operations = BOX_OPERATIONS * len(boxes)

    def __getitem__(self, candidate: int) -> Array:
        self.operations += BOX_OPERATIONS * len(self._area)
        sides = np.minimum(self._high, self._high[candidate]) - np.maximum(self._low, self._low[candidate])
        shared = np.prod(np.maximum(sides, 0), axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = shared / (self._area + self._area[candidate] - shared) > self._limit
        return found


def candidates_of(scores: Array, threshold: float | None) -> list[npt.NDArray[np.int64]]:
    """For each batch, the boxes that have a score above the threshold in any class. ``scores``: [batches, classes,
    boxes]."""
    if threshold is None:
        return [np.arange(scores.shape[2]) for _ in scores]
    return [np.nonzero((batch > threshold).any(axis=0))[0] for batch in scores]


def selection(
    scores: Array, places: npt.NDArray[np.int64], overlaps: Array | HostOverlaps, threshold: float | None, most: int
) -> tuple[list[tuple[int, int]], int]:
    """The (class, box) of each selected box of one batch, and the number of values that the host has compared.

    ``scores``: [classes, boxes]. ``places``: the candidates. ``overlaps``: [candidates, candidates].
    """
    found, compared = [], 0
    for number, row in enumerate(scores):
        own = row[places]
        order = np.argsort(-own, kind="stable")
        if threshold is not None:
            order = order[own[order] > threshold]
        compared += len(order)
        free = np.ones(len(places), np.bool_)
        kept = 0
        for candidate in order:
            if kept == most:
                break
            if free[candidate]:
                found.append((number, int(places[candidate])))
                free &= ~overlaps[candidate][: len(places)]
                compared += len(places)
                kept += 1
    return found, compared
