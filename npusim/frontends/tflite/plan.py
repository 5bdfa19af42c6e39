"""TflitePlan: the operators of a graph as steps of a plan, for models that decide at run time what is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from npusim.dtypes import DEVICE_DTYPES, DType, to_storage
from npusim.errors import InputError, ModelError, UndecidedError, UnsupportedError
from npusim.frontends.segments import ImportedSegment
from npusim.frontends.tflite import Source, read
from npusim.frontends.tflite.control import Frame
from npusim.frontends.tflite.importer import MAX_DEPTH, TfliteImporter, check_result, input_shape, label, names_of
from npusim.frontends.tflite.reader import ModelRecord, OperatorRecord, SubgraphRecord
from npusim.frontends.tflite.tensors import ELEMENT_TYPES, constant, type_name
from npusim.graph import Tensor
from npusim.hw.config import Config
from npusim.ops.base import Array
from npusim.ops.reference import check_input
from npusim.plan import Compile, Drop, Held, Iterations, PlanSteps, SegmentPlan, Situation, Value, Values, on_host

_BODIES = {
    "IF": ("IfOptions", ("ThenSubgraphIndex", "ElseSubgraphIndex")),
    "WHILE": ("WhileOptions", ("CondSubgraphIndex", "BodySubgraphIndex")),
}
"""The options of operators with graphs, which the host executes."""


@dataclass
class PlannedTflite:
    """What the plans of one model share; see PlannedModel of ONNX. Raises like ``load``, and UnsupportedError for a
    model with variables."""

    source: Source
    config: Config
    shapes: Mapping[str, Sequence[int]]
    bind: Mapping[str, Any]
    compile: Compile
    drop: Drop
    model: ModelRecord = field(init=False)
    held: Mapping[str, DType] = field(default_factory=dict)
    texts: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.model = read(self.source)
        self.names = names_of(self.model)
        kept = [tensor.name for graph in self.model.subgraphs for tensor in graph.tensors if tensor.variable]
        kept += [op.name for graph in self.model.subgraphs for op in graph.operators if op.name == "VAR_HANDLE"]
        if kept:
            reason = "variables are not supported in a model that decides at run time what is computed"
            raise UnsupportedError([(kept[0], "variable", reason)])

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.model.subgraphs[self.names.subgraph].name or "model"

    def inputs(self) -> list[tuple[str, tuple[int, ...], DType]]:
        """(name, shape, type) of each input that is no constant. Raises UnsupportedError."""
        tensors = self.model.subgraphs[self.names.subgraph].tensors
        found = []
        for number, name in self.names.inputs.items():
            dtype = ELEMENT_TYPES.get(tensors[number].type)
            if dtype not in DEVICE_DTYPES:
                reason = f"the device does not compute with {type_name(tensors[number].type)}"
                raise UnsupportedError([(name, "input", reason)])
            if name not in self.bind:
                found.append((name, input_shape(name, tensors[number], self.shapes.get(name)), dtype))
        return found

    @cached_property
    def root(self) -> TflitePlan:
        """The plan of the graph."""
        bound = {}
        tensors = self.model.subgraphs[self.names.subgraph].tensors
        for number, name in self.names.inputs.items():
            if name in self.bind:
                dtype = ELEMENT_TYPES[tensors[number].type]
                shape = input_shape(name, tensors[number], self.shapes.get(name))
                bound[number] = check_input(Tensor(name, shape, dtype), np.asarray(self.bind[name], dtype.storage))
        return TflitePlan(self, self.names.subgraph, "", self.names.inputs, self.names.outputs, bound, 0)


class TflitePlan(SegmentPlan):
    """The plan of a graph. Values have the numbers of its tensors.

    ``given``, ``made``: names of inputs and outputs for a client by number. ``bound``: inputs that are constants.
    ``types``: element types by number.
    """

    children_kept = 4096  # a value that grows in a loop has a shape, and a program, per iteration

    def __init__(
        self,
        shared: PlannedTflite,
        graph: int,
        prefix: str,
        given: Mapping[int, str],
        made: Mapping[int, str],
        bound: Mapping[int, Array],
        depth: int,
    ) -> None:
        if depth > MAX_DEPTH:
            raise ModelError(f"graphs are nested more than {MAX_DEPTH} levels deep")
        self.shared = shared
        self.record: SubgraphRecord = shared.model.subgraphs[graph]
        self.label = prefix
        self.depth = depth
        self.bound = bound
        tensors = enumerate(self.record.tensors)
        self.types = {n: ELEMENT_TYPES[tensor.type] for n, tensor in tensors if tensor.type in ELEMENT_TYPES}
        self.inputs = [name for number, name in given.items() if number not in bound]
        self.outputs = self.result_names = list(made.values())
        self._numbers = {name: number for number, name in (*given.items(), *made.items())}
        self._bodies: dict[int, TflitePlan] = {}
        steps = PlanSteps(
            [number for number in given if number not in bound],
            list(made),
            [[number for number in op.inputs if number >= 0] for op in self.record.operators],
            [op.outputs for op in self.record.operators],
        )
        super().__init__(steps, shared.compile, shared.drop)

    def number(self, name: str) -> int:
        """The number of an input or output."""
        return self._numbers[name]

    def type_of(self, number: int) -> DType:
        """The element type of a tensor. Raises UnsupportedError."""
        record = self.record.tensors[number]
        if record.type not in ELEMENT_TYPES:
            raise UnsupportedError([(record.name, "tensor", f"type {type_name(record.type)} is not supported")])
        return ELEMENT_TYPES[record.type]

    def constant(self, number: int) -> Array | None:
        """The value of a constant tensor; None for others."""
        if number in self.bound:
            return self.bound[number]
        record = self.record.tensors[number]
        return None if record.data is None else to_storage(constant(record, record.data))

    def body(self, step: int, index: int) -> TflitePlan:
        """The plan of a graph of an operator: condition or body, or one of two branches. Raises ModelError."""
        record = self.record.operators[step]
        options, names = _BODIES[record.name]
        graph = int(record.options.get(options, names[index]))
        if graph not in self._bodies:
            graphs = self.shared.model.subgraphs
            if not 0 <= graph < len(graphs) or len(set(graphs[graph].inputs)) != len(graphs[graph].inputs):
                raise ModelError(f"{self.describe(step)[0]} ({record.name}): graph {graph} of {len(graphs)}")
            given = {number: f"input {number}" for number in graphs[graph].inputs}
            made = {number: f"output {number}" for number in graphs[graph].outputs}
            prefix = f"{self.describe(step)[0]}/"
            self._bodies[graph] = TflitePlan(self.shared, graph, prefix, given, made, {}, self.depth + 1)
        return self._bodies[graph]

    def builder(self, start: int, situation: Situation) -> OperatorBuilder:
        """See SegmentPlan."""
        return OperatorBuilder(self, start, situation)

    def describe(self, step: int) -> tuple[str, str]:
        """See SegmentPlan."""
        if step == len(self.record.operators):
            return f"{self.label}end", "end"
        return self.label + label(self.record, step), self.record.operators[step].name

    # Decisions

    def decide(self, values: Values, step: int, loop_timeout_ps: int) -> Sequence[Value]:
        """See SegmentPlan. Raises ModelError, InputError, UnsupportedError."""
        record = self.record.operators[step]
        name, kind = self.describe(step)
        given = [self._value(values, number) for number in record.inputs]
        first = self.body(step, 0)

        def run(body: TflitePlan, backend: Any, inputs: Sequence[Value], targets: Sequence[Any]) -> list[Value]:
            if len(inputs) != len(body.steps.inputs) or len(targets) != len(body.steps.outputs):
                raise ModelError(
                    f"{name} ({kind}): a graph takes {len(body.steps.inputs)} values and returns "
                    f"{len(body.steps.outputs)}, not {len(inputs)} and {len(targets)}"
                )
            return body.execute(backend, inputs, targets, loop_timeout_ps)

        if kind == "IF":
            if not given:
                raise ModelError(f"{name} (IF): has no condition")
            taken = first if _truth(values.host(given[0]), name) else self.body(step, 1)
            values.backend.decide(name, kind, 0)
            targets = [values.target(number, step + 1) for number in record.outputs]
            return self._checked(run(taken, values.backend, given[1:], targets), record, name)
        states, body = given, self.body(step, 1)
        if len(states) != len(record.outputs):
            raise ModelError(f"{name} (WHILE): {len(record.outputs)} outputs for {len(states)} inputs")
        with Iterations(values.backend) as memory:
            while _truth(values.host(run(first, memory, states, [on_host])[0]), name):
                states = run(body, memory, states, [memory.target] * len(states))
                memory.next()
                values.backend.decide(name, kind, 0)
            values.backend.decide(name, kind, 0)
            values.adopt(memory.take())
        return self._checked(states, record, name)

    def _checked(self, results: Sequence[Value], record: OperatorRecord, name: str) -> Sequence[Value]:
        """The results of the graphs of an operator. Raises ModelError for one of another type than declared."""
        for number, value in zip(record.outputs, results, strict=True):
            if isinstance(value, Held) or value.dtype != self.type_of(number).storage:
                raise ModelError(f"{name} ({record.name}): output {number} has another type than its graphs return")
        return results

    def _value(self, values: Values, number: int) -> Value:
        if number in values.values:
            return values.values[number]
        found = self.constant(number) if number >= 0 else None
        if found is None:
            raise ModelError(f"{self.label or 'the graph'}: tensor {number} is read before it is produced")
        return found


def _truth(array: Array, name: str) -> bool:
    if array.dtype != np.bool_ or array.size != 1:
        raise InputError(f"{name}: a condition must be one bool, is {array.dtype}{list(array.shape)}")
    return bool(array.reshape(-1)[0])


class _OperatorImporter(TfliteImporter):
    """Imports single operators into a segment."""

    collects = False


class OperatorBuilder(ImportedSegment):
    """Imports operators of one graph."""

    def __init__(self, plan: TflitePlan, start: int, situation: Situation) -> None:
        super().__init__(plan.steps, plan.describe(start)[0], plan.shared.config, start, situation)
        self._plan = plan
        self._importer = _OperatorImporter(plan.shared.model, budget=self.budget)
        self._importer.builder = self.builder
        self._frame = Frame(plan.record, plan.label, plan.depth)
        for number in plan.steps.outputs if not start else ():
            value = plan.constant(number)
            if value is not None:
                self.define(number, self.builder.const(value, None, plan.type_of(number)))

    def lower(self, step: int) -> bool:
        """See SegmentBuilder. Raises ModelError, UnsupportedError, CompileError."""
        record: OperatorRecord = self._plan.record.operators[step]
        name, frame = self._plan.describe(step)[0], self._frame
        for number in record.inputs:
            if number in frame.values or number < 0:
                continue
            if number in self.shapes:
                where = self._plan.record.tensors[number].name or f"tensor {number}"
                frame.values[number] = self.earlier(number, where, self._plan.type_of(number))
            elif number in self._plan.bound:
                frame.values[number] = self.builder.const(self._plan.bound[number], None, self._plan.type_of(number))
        try:
            found = self._importer.import_operator(record, name, frame)
        except UndecidedError as error:
            if record.name in _BODIES:
                return False
            raise self.ask(error) from None
        except UnsupportedError as error:
            raise UnsupportedError([(name, record.name, reason) for _, _, reason in error.reasons]) from None
        if len(found) != len(record.outputs):
            raise ModelError(f"{name} ({record.name}): has {len(record.outputs)} outputs, needs {len(found)}")
        for number, value in zip(record.outputs, found, strict=True):
            if not isinstance(value, Tensor):
                raise UnsupportedError([(name, record.name, "makes a value that is no tensor")])
            check_result(self._plan.record.tensors[number], value, f"{name} ({record.name})")
            frame.values[number] = value
            self.define(number, value)
        return True
