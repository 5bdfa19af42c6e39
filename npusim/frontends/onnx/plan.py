"""NodePlan: the nodes of a graph as steps of a plan, for models that decide at run time what is computed.

The longest sequence of nodes that can be imported becomes one program. A plan of a body is made when it is first
executed: a branch that is never taken is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from npusim.dtypes import DType
from npusim.errors import InputError, ModelError, UndecidedError, UnsupportedError
from npusim.frontends.onnx.decisions import decide
from npusim.frontends.onnx.held_sequences import HELD
from npusim.frontends.onnx.importer import Importer
from npusim.frontends.onnx.narrow_formats import FLOATS
from npusim.frontends.onnx.scope import Scope, Value, needed_nodes, nested_graphs, opset_imports
from npusim.frontends.onnx.signature import bound_array, declared_inputs, free_inputs, held_type, is_text
from npusim.frontends.onnx.source import Model, Source, read
from npusim.frontends.onnx.tensors import ELEMENT_TYPES, TEXT, element_type, read_strings, read_tensor, type_name
from npusim.frontends.onnx.versions import OLDEST_OPSET, upgraded
from npusim.frontends.segments import Constant, ImportedSegment
from npusim.graph import Tensor
from npusim.hw.config import Config
from npusim.plan import (
    Compile,
    Drop,
    PlanSteps,
    SegmentPlan,
    Situation,
    Strings,
    Values,
)
from npusim.plan import Value as PlanValue

_STRINGS = Strings(np.empty(0, object)).shape[0]


@dataclass
class PlannedModel:
    """What the plans of one model share.

    ``shapes``: dimensions that the model leaves open. ``bind``: inputs that are constants. ``compile`` makes programs;
    ``drop`` is called with those that are no longer needed. Raises like ``load``.
    """

    source: Source
    config: Config
    shapes: Mapping[str, Sequence[int]]
    bind: Mapping[str, Any]
    compile: Compile
    drop: Drop
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        self.model = read(self.source, self.config.dram.bytes)
        proto = self.model.proto
        if proto.functions:
            # A function may contain a decision, so its nodes become steps.
            from onnx.inliner import inline_local_functions

            self.model = Model(inline_local_functions(proto), self.model.files, self.model.blobs)
        self.model = upgraded(self.model, self.shapes, self.bind)
        self.opsets = opset_imports(self.model.proto.opset_import)

    @cached_property
    def held(self) -> dict[str, DType]:
        """Element types of the inputs that the host holds, by name."""
        found = {value.name: held_type(value) for value in free_inputs(self.model.proto.graph)}
        return {name: dtype for name, dtype in found.items() if dtype is not None}

    @cached_property
    def texts(self) -> frozenset[str]:
        """Inputs that are tensors of strings."""
        return frozenset(value.name for value in free_inputs(self.model.proto.graph) if is_text(value))

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.model.proto.graph.name or "model"

    def inputs(self) -> list[tuple[str, tuple[int, ...], DType]]:
        """(name, shape, type) of each input that is no constant. Raises OpenInputsError, UnsupportedError."""
        values = [value for value in free_inputs(self.model.proto.graph) if value.name not in self.bind]
        values = [value for value in values if value.name not in self.held]
        for value in values:
            _refuse_format(value.name, value.type.tensor_type.elem_type)
        reasons: list[tuple[str, str, str]] = []
        shapes = {name: shape for name, shape in self.shapes.items() if name not in self.bind}
        found = declared_inputs(values, shapes, reasons, self.name)
        if reasons:
            raise UnsupportedError(reasons)
        return found

    @cached_property
    def root(self) -> NodePlan:
        """The plan of the graph."""
        return NodePlan(self, self.model.proto.graph, None, "")


class NodePlan(SegmentPlan):
    """The plan of a graph or of a body inside a node.

    ``parent``: the plan of the graph around a body. ``types``: element types by number of a value, known once it is
    computed. ``captured``: values of enclosing graphs that a body reads, by name; they follow the inputs of the graph.
    """

    children_kept = 4096  # a value that grows in a loop has a shape, and a program, per iteration

    def __init__(self, shared: PlannedModel, graph: GraphProto, parent: NodePlan | None, label: str) -> None:
        self.shared = shared
        self.parent = parent
        self.graph = graph
        self.label = label
        self.types: dict[int, DType] = {}
        self._bodies: dict[tuple[int, str], NodePlan] = {}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._constants: dict[str, Constant] = {}
        outputs = [value.name for value in graph.output]
        nodes, _ = needed_nodes(graph.node, outputs)
        kept = [(place, node) for place, node in enumerate(nodes) if not self._is_constant(node)]
        self.nodes = [node for _, node in kept]
        self._places = [place for place, _ in kept]
        self.inputs = [value.name for value in free_inputs(graph) if value.name not in self.bound]
        made = {name for node in self.nodes for name in node.output}
        for place, name in enumerate(outputs):
            if name not in made and self.constant(name) is not None:
                outputs[place] = f"{name}/returned"
                self.nodes.append(helper.make_node("Identity", [name], [outputs[place]]))
        reads = [_names_read(node) for node in self.nodes]
        known = {*made, *self.inputs, *(name for node in self.nodes[len(kept) :] for name in node.output)}
        free = dict.fromkeys(name for names in (*reads, outputs) for name in names if name and name not in known)
        self.captured = [name for name in free if parent is not None and parent.offers(name)]
        for name in outputs:
            if name not in known and name not in self.captured:
                raise ModelError(f"{label or 'graph '}output {name!r} is not produced")
        self._numbers: dict[str, int] = {}
        steps = PlanSteps(
            [self.number(name) for name in (*self.inputs, *self.captured)],
            [self.number(name) for name in outputs],
            [[self.number(name) for name in names] for names in reads],
            [[self.number(name) for name in node.output] for node in self.nodes],
        )
        self.outputs = outputs
        super().__init__(steps, shared.compile, shared.drop)

    # Names

    @property
    def bound(self) -> Mapping[str, Any]:
        """Inputs that are constants."""
        return self.shared.bind if self.parent is None else {}

    def number(self, name: str) -> int:
        """The number of a value."""
        return self._numbers.setdefault(name, len(self._numbers))

    def number_of(self, name: str) -> int | None:
        """The number of a value of this graph; None if it has none."""
        return self._numbers.get(name)

    def offers(self, name: str) -> bool:
        """Whether bodies can capture a value with this name that is no constant."""
        if self.constant(name) is not None:
            return False
        own = name in self._made or name in self.inputs
        return own or (self.parent is not None and self.parent.offers(name))

    @property
    def result_names(self) -> list[str]:
        """The names of the outputs for a client."""
        return [value.name for value in self.graph.output]

    @cached_property
    def _made(self) -> frozenset[str]:
        return frozenset(name for node in self.nodes for name in node.output if name)

    def _is_constant(self, node: NodeProto) -> bool:
        """Whether a node is a constant tensor; it is then known as one."""
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            return False
        found = [a.t for a in node.attribute if a.name == "value" and a.type == AttributeProto.TENSOR]
        if len(found) != 1 or len(node.attribute) != 1 or found[0].data_type not in ELEMENT_TYPES:
            return False
        self._initializers.setdefault(node.output[0], found[0])
        return True

    def constant(self, name: str) -> Constant | None:
        """The value of an initializer of this or an enclosing graph."""
        if name in self._constants:
            return self._constants[name]
        if name in self.bound:
            value = next(value for value in free_inputs(self.graph) if value.name == name)
            data = bound_array(value, self.bound[name])
            found = data, ELEMENT_TYPES[value.type.tensor_type.elem_type]
        elif name in self._initializers:
            proto, model = self._initializers[name], self.shared.model
            _refuse_format(name, proto.data_type)
            if proto.data_type == TensorProto.STRING:
                self._constants[name] = read_strings(proto, f"initializer {name!r}"), TEXT
                return self._constants[name]
            blob = model.blobs.get(name) if self.parent is None else None
            found = read_tensor(proto, model.files, f"initializer {name!r}", blob)
        else:
            return None if self.parent is None or name in self._shadowed else self.parent.constant(name)
        self._constants[name] = found
        return found

    @cached_property
    def _shadowed(self) -> frozenset[str]:
        return frozenset(name for node in self.graph.node for name in node.output) | {
            value.name for value in self.graph.input
        }

    # Segments

    def builder(self, start: int, situation: Situation) -> NodeBuilder:
        """See SegmentPlan."""
        return NodeBuilder(self, start, situation)

    def body(self, step: int, attribute: str) -> NodePlan:
        """The plan of a body of a node. Raises ModelError."""
        key = (step, attribute)
        if key not in self._bodies:
            graphs = [each.g for each in self.nodes[step].attribute if each.name == attribute]
            if len(graphs) != 1:
                raise ModelError(f"{self.name_of(step)}: attribute {attribute} is required")
            self._bodies[key] = NodePlan(self.shared, graphs[0], self, f"{self.name_of(step)}/{attribute}/")
        return self._bodies[key]

    def extra(self, step: int, name: str, make: Callable[[], GraphProto]) -> NodePlan:
        """The plan of a graph that a decision needs for its arithmetic, made at the first use."""
        key = (step, f"*{name}")
        if key not in self._bodies:
            self._bodies[key] = NodePlan(self.shared, make(), self, f"{self.name_of(step)}/{name}/")
        return self._bodies[key]

    def name_of(self, step: int) -> str:
        """The name of a node, for people."""
        node = self.nodes[step]
        place = self._places[step] if step < len(self._places) else step  # an unnamed node has its place in the graph
        return self.label + (node.name or f"{node.op_type}_{place}")

    # Decisions

    def version(self, domain: str = "") -> int:
        """The version of an operator set."""
        return self.shared.opsets.get(domain, 1 if domain else OLDEST_OPSET)

    def decide(self, values: Values, step: int, loop_timeout_ps: int) -> Sequence[PlanValue]:
        """See SegmentPlan. Raises ModelError, InputError, UnsupportedError."""
        try:
            return decide(self, values, step, loop_timeout_ps)
        except InputError as error:
            raise InputError(f"{self.name_of(step)} ({self.nodes[step].op_type}): {error}") from error

    def describe(self, step: int) -> tuple[str, str]:
        """See SegmentPlan."""
        return self.name_of(step), self.nodes[step].op_type

    def value(self, values: Values, name: str) -> PlanValue:
        """A value that exists in an execution. Raises ModelError if nothing has produced it."""
        constant = self.constant(name)
        if constant is not None:
            self.types[self.number(name)] = constant[1]
            return Strings(constant[0]) if constant[0].dtype == object else constant[0]
        number = self.number_of(name)
        if number is None or number not in values.values:
            raise ModelError(f"{self.label}{name!r} is read before it is produced")
        return values.values[number]


def _refuse_format(name: str, code: int) -> None:
    """Raise UnsupportedError for a float of 8 bits or less: plans know the types of the device alone."""
    if code in FLOATS:
        reason = f"{type_name(code)} is not supported in a model that is several programs"
        raise UnsupportedError([(name, "tensor", reason)])


def _names_read(node: NodeProto) -> list[str]:
    """The names that a node reads, and those that graphs inside it read from outside."""
    names = dict.fromkeys(name for name in node.input if name)
    for graph in nested_graphs(node):
        names.update(dict.fromkeys(_free_names(graph)))
    return list(names)


def _free_names(graph: GraphProto) -> list[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    read = [name for node in graph.node for name in _names_read(node)]
    return [name for name in (*read, *(value.name for value in graph.output)) if name not in own]


@dataclass
class _PlanScope(Scope):
    """The names of a segment. Values from before are defined when they are read first."""

    source: NodeBuilder | None = None

    def find(self, name: str) -> Value:
        """See Scope."""
        try:
            return super().find(name)
        except KeyError:
            assert self.source is not None
            return self.source.read_name(name)


class _NodeImporter(Importer):
    """Imports single nodes into a segment."""

    collects = False


class NodeBuilder(ImportedSegment):
    """Imports nodes of one graph."""

    def __init__(self, plan: NodePlan, start: int, situation: Situation) -> None:
        name = plan.name_of(start) if start < len(plan.nodes) else plan.label or "end"
        super().__init__(plan.steps, name, plan.shared.config, start, situation)
        self._plan = plan
        self._importer = _NodeImporter(plan.shared.model, None, None, self.budget)
        self._importer.builder = self.builder
        self._scope = _PlanScope(plan.shared.opsets, prefix=plan.label, source=self)

    def lower(self, step: int) -> bool:
        """See SegmentBuilder. Raises ModelError, UnsupportedError, CompileError."""
        node, name = self._plan.nodes[step], self._plan.name_of(step)
        if node.op_type in HELD and (node.op_type != "Identity" or self._is_held(node.input[0])):
            return False
        needed = {each for each in node.output if each and self.steps.needed_after(self._plan.number(each), step + 1)}
        try:
            outputs = self._importer.import_one(node, name, needed, self._scope)
        except UndecidedError as error:
            if error.on_host or nested_graphs(node):
                return False
            if error.value is None:
                raise
            raise self.ask(error) from None
        for output, value in zip(node.output, outputs, strict=False):
            if output and isinstance(value, Tensor):
                _refuse_format(name, self._importer.formats.get(value, 0))
                number = self._plan.number(output)
                self._scope.define(output, value, name)
                self.define(number, value)
                self._plan.types[number] = value.dtype
        return True

    def _is_held(self, name: str) -> bool:
        """Whether a value from before the segment is a sequence or an optional value."""
        return tuple(map(type, self.shapes.get(self._plan.number(name), ())[:1])) == (str,)

    def read_name(self, name: str) -> Value:
        """A value from before the segment. Raises KeyError if there is none."""
        constant = self._plan.constant(name)
        if constant is not None:
            if constant[0].dtype == object:
                element_type(TensorProto.STRING, name, "initializer")
            tensor = self.builder.const(constant[0], name, constant[1])
            self._scope.values[name] = tensor
            return tensor
        number = self._plan.number_of(name)
        if number is None or number not in self.shapes:
            raise KeyError(name)
        if self._is_held(name):
            error = UndecidedError([(name, "value", "the host holds it")])
            error.on_host = self.shapes[number][0] == _STRINGS
            raise error
        tensor = self._scope.values[name] = self.earlier(number, name, self._plan.types[number])
        return tensor
