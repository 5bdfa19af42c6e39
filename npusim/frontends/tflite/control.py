"""Variables, and operators with graphs: CALL, CALL_ONCE, IF, WHILE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from npusim.dtypes import DType
from npusim.frontends.tflite.operation import Operation
from npusim.frontends.tflite.reader import SubgraphRecord
from npusim.graph import Tensor
from npusim.ops.base import Array
from npusim.ops.build import GraphBuilder


@dataclass(eq=False)
class Variable:
    """A tensor that keeps its value between runs.

    ``initial``: its value in the first run, in storage form. ``source``: the input of the program that it is.
    ``current``: its value at this point of the import. ``feed``: the output that becomes its next value.
    """

    name: str
    initial: Array | None = None
    source: Tensor | None = None
    current: Tensor | None = None
    feed: str | None = None


@dataclass(eq=False)
class Frame:
    """One graph during import. ``values``: its tensors that are known so far, by number."""

    record: SubgraphRecord
    prefix: str = ""
    depth: int = 0
    values: dict[int, Any] = field(default_factory=dict)


class Graphs(Protocol):
    """The importer of a model, for operators with graphs or variables."""

    builder: GraphBuilder
    variables: dict[str, Variable]

    def variable(self, name: str) -> Variable:
        """The variable of a name."""

    def read_variable(self, variable: Variable, dtype: DType) -> Tensor:
        """The current value of a variable."""

    def body(self, op: Operation, number: int, values: Sequence[Any], frame: Frame) -> list[Any]:
        """Import a graph of the model in place of an operation; returns its outputs."""


def _call_once(graphs: Graphs, op: Operation, values: Sequence[Any], frame: Frame) -> list[Any]:
    """Initialise variables with constants, before the first run."""
    graphs.body(op, int(op.option("CallOnceOptions", "InitSubgraphIndex")), [], frame)
    for variable in graphs.variables.values():
        if variable.current is not None and variable.source is None:
            if variable.current.data is None:
                op.refuse(f"the first value of variable {variable.name!r} is not a constant")
            variable.initial, variable.current = variable.current.data, None
    return []


def _var_handle(graphs: Graphs, op: Operation, values: Sequence[Any], frame: Frame) -> list[Any]:
    container, name = (op.option("VarHandleOptions", field) or b"" for field in ("Container", "SharedName"))
    return [graphs.variable("/".join(part.decode("utf-8", "replace") for part in (container, name) if part))]


def _variable(op: Operation, value: Any) -> Variable:
    if not isinstance(value, Variable):
        op.damaged("input 0 must be a variable")
    return value


def _read_variable(graphs: Graphs, op: Operation, values: Sequence[Any], frame: Frame) -> list[Any]:
    return [graphs.read_variable(_variable(op, values[0] if values else None), op.dtype_of(op.results[0]))]


def _assign_variable(graphs: Graphs, op: Operation, values: Sequence[Any], frame: Frame) -> list[Any]:
    variable, tensor = _variable(op, values[0] if values else None), op.input(1)
    if variable.initial is not None and variable.initial.shape != tensor.shape:
        op.refuse(f"variable {variable.name!r} is {list(variable.initial.shape)}, the new value {list(tensor.shape)}")
    if variable.current is None and variable.initial is not None:
        # Its old value is an input all the same, because the new one becomes its value in the next run.
        graphs.read_variable(variable, tensor.dtype)
    variable.current = tensor
    return []


def _if(graphs: Graphs, op: Operation, values: Sequence[Any], frame: Frame) -> list[Any]:
    """The taken branch of a known condition. Otherwise both are computed and the results are selected."""
    condition = op.input(0)
    if condition.dtype is not DType.BOOL or condition.size != 1:
        op.damaged(f"the condition must be one bool, is {condition.dtype.label}{list(condition.shape)}")
    bodies = [int(op.option("IfOptions", f"{name}SubgraphIndex")) for name in ("Then", "Else")]
    known = graphs.builder.value_of(condition)
    if known is not None:
        return graphs.body(op, bodies[0 if known.reshape(-1)[0] else 1], values[1:], frame)
    before = {name: variable.current for name, variable in graphs.variables.items()}
    branches = [graphs.body(op, body, values[1:], frame) for body in bodies]
    if {name: variable.current for name, variable in graphs.variables.items()} != before:
        op.refuse("a branch that assigns a variable needs a condition that is known before the run")
    results: list[Any] = []
    for a, b in zip(*branches, strict=True):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            results.append(b if isinstance(a, Tensor) else a)  # of an operation that is refused
            continue
        if a.shape != b.shape or a.dtype is not b.dtype:
            shapes = f"branches with outputs of shapes {list(a.shape)} and {list(b.shape)} need a known condition"
            return branches[0 if op.decided(condition, "the condition", shapes).reshape(-1)[0] else 1]
        results.append(op.add("select", op.reshape(condition, ()), a, b))
    return results


def _call(graphs: Graphs, op: Operation, values: Sequence[Any], frame: Frame) -> list[Any]:
    return graphs.body(op, int(op.option("CallOptions", "Subgraph")), values, frame)


def _while(graphs: Graphs, op: Operation, values: Sequence[Any], frame: Frame) -> list[Any]:
    """A loop with conditions that are known before the run, unrolled."""
    condition, body = (int(op.option("WhileOptions", f"{name}SubgraphIndex")) for name in ("Cond", "Body"))
    current = list(values)
    for _ in range(MAX_ITERATIONS):
        found = graphs.body(op, condition, current, frame)
        if len(found) != 1 or not isinstance(found[0], Tensor):
            op.refuse("its condition is not supported")
        if found[0].dtype is not DType.BOOL or found[0].size != 1:
            op.damaged(f"the condition must be one bool, is {found[0].dtype.label}{list(found[0].shape)}")
        if not op.decided(found[0], "the condition", "the condition must be known before the run").reshape(-1)[0]:
            return current
        current = graphs.body(op, body, current, frame)
        if len(current) != len(values):
            op.damaged(f"the body makes {len(current)} values of {len(values)}")
    return op.refuse(f"it runs at least {MAX_ITERATIONS} times")


MAX_ITERATIONS = 4096
"""Limit of the iterations of an unrolled loop."""
Control = Callable[["Graphs", Operation, Sequence[Any], "Frame"], list[Any]]
CONTROL: Mapping[str, Control] = {
    "ASSIGN_VARIABLE": _assign_variable,
    "CALL": _call,
    "CALL_ONCE": _call_once,
    "IF": _if,
    "READ_VARIABLE": _read_variable,
    "VAR_HANDLE": _var_handle,
    "WHILE": _while,
}
"""Importers of operators that need more than tensors."""
