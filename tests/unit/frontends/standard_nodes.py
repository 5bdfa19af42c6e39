"""onnx's node tests with frontend and reference operators, with shape-deciding operands as constants.

The package's node tests provide everything as a graph input: axes, shapes, sizes, depths. In models these are
constants, and a device with static programs accepts them only as such. A case refused because of a missing constant is
run again with operands baked into the model, first all but the first, then all.

``python -m tests.unit.frontends.standard_nodes`` records again which operators each node becomes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from npusim.errors import UnsupportedError
from npusim.frontends.onnx import load
from npusim.graph import Op
from npusim.ops.reference import run
from tests.support.onnx_node_tests.adapters import dynamic_shapes
from tests.support.onnx_node_tests.cases import BOUND, NodeCase, Verdict, judge, node_cases, recorded

Array = npt.NDArray[Any]
PATH = Path(__file__).with_name("standard_nodes.txt")
WANTS_CONSTANT = "must be a constant"


def baked(model: onnx.ModelProto, inputs: Mapping[str, Array], first: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return the model with its inputs from number ``first`` on as initializers, and the remaining inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names = [info.name for info in model.graph.input if info.name in inputs]
    for name in names[first:]:
        if isinstance(inputs[name], np.ndarray):
            copy.graph.initializer.append(numpy_helper.from_array(inputs[name], name))
    weights = {tensor.name for tensor in copy.graph.initializer}
    return copy, {name: array for name, array in inputs.items() if name not in weights}


def widened(case: NodeCase) -> NodeCase:
    """Return the case with two units in the last place for float16, whose expected values are rounded after every
    step."""
    half = any(isinstance(value, np.ndarray) and value.dtype == np.float16 for value in case.expected)
    tolerance = max(case.rtol, 2.0**-9) if half else case.rtol
    return NodeCase(case.name, case.model, case.inputs, case.expected, tolerance, case.atol)


def _label(op: Op) -> str:
    fn = op.attrs.get("fn")
    return op.kind if fn is None else f"{op.kind}.{getattr(fn, 'name', fn)}".lower()


class Judged:
    """A case, its outcome, and the operators that it became (empty if it was refused)."""

    def __init__(self, case: NodeCase) -> None:
        self.operators = ""
        self.verdict: Verdict = judge(widened(case), self._compute)

    def _compute(self, model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
        """Compute with operands baked where the frontend requires constants."""
        for first in (len(inputs), 1):
            try:
                return self._once(*baked(model, inputs, first))
            except UnsupportedError as error:
                if not any(WANTS_CONSTANT in reason for _, _, reason in error.reasons):
                    raise
        return self._once(*baked(model, inputs, 0))

    def _once(self, model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
        graph = load(model, input_shapes=dynamic_shapes(model, inputs))
        counts = Counter(map(_label, graph.ops))
        self.operators = " ".join(f"{count}*{kind}" for kind, count in counts.items()) or "nothing"
        outputs = run(graph, inputs)
        return [outputs[info.name] for info in model.graph.output]


@functools.cache
def judged() -> tuple[Judged, ...]:
    """Run every case."""
    return tuple(map(Judged, node_cases()))


def operators() -> dict[str, set[str]]:
    """Return what each ONNX operator becomes in recorded single-node cases, by name."""
    found: dict[str, set[str]] = {}
    names = {name.removesuffix(BOUND) for name in recorded()}
    for case, each in zip(node_cases(), judged(), strict=True):
        nodes = case.model.graph.node
        if each.operators and len(nodes) == 1 and case.name in names:
            found.setdefault(nodes[0].op_type, set()).add(each.operators)
    return found


def on_record() -> dict[str, set[str]]:
    """Return the recorded operators."""
    rows = (line.split(": ") for line in PATH.read_text(encoding="utf-8").splitlines())
    return {name: set(kinds.split("; ")) for name, kinds in rows}


if __name__ == "__main__":
    LINES = (f"{name}: {'; '.join(sorted(kinds))}\n" for name, kinds in sorted(operators().items()))
    PATH.write_text("".join(LINES), encoding="utf-8")
