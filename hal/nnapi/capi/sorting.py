"""Sort operations into an executable order."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from .codes import bad_data


@dataclass(frozen=True, slots=True)
class BuiltOperation:
    """One operation: its type, and indexes of operands."""

    type: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def sort_operations(operations: Sequence[BuiltOperation], operands: int) -> list[int]:
    """Numbers of the operations, each after those whose results it reads; otherwise in the order in which they were
    added.

    Raises ApiError (BAD_DATA) for a cycle.
    """
    writer = [-1] * operands
    for number, operation in enumerate(operations):
        for index in operation.outputs:
            writer[index] = number
    waits = [{writer[index] for index in operation.inputs if writer[index] >= 0} for operation in operations]
    readers: list[list[int]] = [[] for _ in operations]
    for number, before in enumerate(waits):
        for other in before:
            readers[other].append(number)
    left = [len(before) for before in waits]
    ready = [number for number, count in enumerate(left) if not count]
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for reader in readers[number]:
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(operations):
        stuck = next(number for number, count in enumerate(left) if count)
        raise bad_data(f"operation {stuck} depends on its own results: the operations form a cycle")
    return order
