"""Which nodes of a graph the device runs, in groups that ONNX Runtime can replace by one node each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from npusim.compiler.pipeline import find_unsupported
from npusim.dtypes import DEVICE_DTYPES
from npusim.errors import ModelError, NeedsValueError, NpusimError, UndecidedError, UnsupportedError
from npusim.frontends.onnx.host_steps import DATA_DEPENDENT_SIZE, HOST_STEPS
from npusim.frontends.onnx.importer import Importer
from npusim.frontends.onnx.plausible import NODES, candidates, with_values
from npusim.frontends.onnx.scope import Scope, Value, domain_of, names_read, nested_graphs
from npusim.frontends.onnx.source import Model
from npusim.frontends.onnx.tensors import ELEMENT_TYPES, type_name
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.ops.budget import Budget

Reasons = dict[int, str]
"""Reasons why nodes are refused, by their number."""
Shapes = Mapping[str, Sequence[int]]


def claim(
    model: Model, config: Config, excluded: Iterable[int] = (), *, scalars: bool = False
) -> tuple[list[list[int]], Reasons]:
    """Groups of nodes, by number, and the reasons for the others that are not ``excluded``.

    No path leads from a group through another node back into it. A group is one program, or several with decisions of
    the host between them. ``scalars``: values without a shape are probably scalars.
    """
    search = _Search(model, config, scalars)
    apart = set(excluded)
    while True:
        groups = search.groups(set(range(len(search.nodes))) - apart - search.refused.keys())
        refused = [search.refuses(group) for group in groups]
        if not any(refused):
            return groups, search.refused


class _Search:
    def __init__(self, model: Model, config: Config, scalars: bool) -> None:
        self.model = model
        self.scalars = scalars
        self.config = config
        graph = model.proto.graph
        self.nodes: Sequence[NodeProto] = graph.node
        self.refused: Reasons = {}
        self._accepted: set[tuple[int, ...]] = set()
        self._reads = [names_read(node) for node in self.nodes]
        self._maker = {name: number for number, node in enumerate(self.nodes) for name in node.output if name}
        self._types = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._outputs = {value.name for value in graph.output}
        for number, names in enumerate(self._reads):
            if late := [name for name in names if self._maker.get(name, -1) >= number]:
                raise ModelError(f"node {self.nodes[number].name!r} reads {min(late)!r} before it is produced")

    def groups(self, chosen: set[int]) -> list[list[int]]:
        """The chosen nodes in convex groups: on the way to the nodes of one, paths change equally often between chosen
        nodes and others."""
        level: dict[int, int] = {}
        groups: dict[int, list[int]] = {}
        for number in range(len(self.nodes)):
            mine = number in chosen
            found = 0 if mine else 1
            for name in self._reads[number]:
                before = self._maker.get(name)
                if before is not None:
                    found = max(found, level[before] + ((before in chosen) != mine))
            level[number] = found
            if mine:
                groups.setdefault(found, []).append(number)
        return [groups[each] for each in sorted(groups)]

    def refuses(self, group: Sequence[int]) -> bool:
        """Whether nodes of a group are refused; a program may then be made of the others."""
        key = tuple(group)
        if key in self._accepted:
            return False
        found = self._refused_at_border(group) or self._refused_inside(group)
        self.refused.update(found)
        if not found:
            self._accepted.add(key)
        return bool(found)

    def _border(self, group: Sequence[int]) -> tuple[list[str], list[str]]:
        """The values that a group reads from outside, without constants, and those that others read from it."""
        inside = set(group)
        made = {name for number in group for name in self.nodes[number].output if name}
        read = dict.fromkeys(name for number in group for name in sorted(self._reads[number]))
        inputs = [name for name in read if name in self._types and name not in made and name not in self._weights]
        elsewhere = {name for number in range(len(self.nodes)) if number not in inside for name in self._reads[number]}
        return inputs, [name for name in self._maker if name in made and name in (elsewhere | self._outputs)]

    def _refused_at_border(self, group: Sequence[int]) -> Reasons:
        """Nodes at values that cannot be passed between ONNX Runtime and the device."""
        inputs, outputs = self._border(group)
        bad = {name: problem for name in (*inputs, *outputs) if (problem := _type_problem(self._types[name]))}
        found: Reasons = {}
        if bad:
            for number in group:
                for name in sorted(self._reads[number].union(self.nodes[number].output) & bad.keys()):
                    found.setdefault(number, f"{name!r} is {bad[name]}, which does not pass to or from the device")
        return found

    def _refused_inside(self, group: Sequence[int]) -> Reasons:
        found, undecided = self._tried(group)
        if found or not undecided:
            return found
        # What follows a decision was not read, because its sizes are unknown: the rest is read with plausible ones.
        for segment in self.groups(set(group) - undecided):
            found.update(self._tried(segment, made_up=True)[0])
        return found

    def _tried(self, group: Sequence[int], *, made_up: bool = False) -> tuple[Reasons, set[int]]:
        """Import and rewrite a group: reasons, and nodes that depend on values of a run. ``made_up``: sizes of its
        inputs are guesses, so only operators and types count."""
        model = self._part(group)
        first: Shapes | None = None
        nodes = 0
        for shapes in candidates(model, {}, {}):
            first = first or shapes
            trial = self._trial(model, group, shapes, lenient=made_up)
            nodes += len(group)
            if not trial.misfits:
                return trial.refused, trial.undecided
            if nodes >= NODES:
                break
        trial = self._trial(model, group, first or {}, lenient=made_up)
        return trial.refused, trial.undecided

    def _trial(self, model: Model, group: Sequence[int], shapes: Shapes, *, lenient: bool) -> _Trial:
        places = {self.nodes[number].name: number for number in group}
        bind: Mapping[str, object] = {}
        for _ in range(3):
            trial = _Trial(model.again(), places, shapes, bind, self.config, lenient=lenient)
            try:
                trial.refuse_by_device(trial.run())
            except NeedsValueError as error:
                values = with_values(error, model, shapes, bind).values
                found = {name: value for name, value in values.items() if value is not None}
                if trial.refused or not found:
                    return trial
                bind = {**bind, **found}
                continue
            except UnsupportedError as error:
                trial.finish(error)
            except NpusimError as error:
                trial.refuse_all(error)
            return trial
        return trial

    def _part(self, group: Sequence[int]) -> Model:
        """A group as a model."""
        whole = self.model.proto
        proto = ModelProto(ir_version=whole.ir_version)
        proto.opset_import.extend(whole.opset_import)
        graph: GraphProto = proto.graph
        graph.name = whole.graph.name
        inputs, outputs = self._border(group)
        graph.input.extend(self._types[name] for name in inputs)
        for value in graph.input:
            if self.scalars:
                value.type.tensor_type.shape.SetInParent()
        graph.output.extend(self._types[name] for name in outputs)
        graph.node.extend(self.nodes[number] for number in group)
        read = {name for number in group for name in self._reads[number]}
        graph.initializer.extend(tensor for name, tensor in self._weights.items() if name in read)
        return Model(proto, None, {name: blob for name, blob in self.model.blobs.items() if name in read})


def _type_problem(value: ValueInfoProto) -> str:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return "no tensor"
    code = value.type.tensor_type.elem_type
    return "" if ELEMENT_TYPES.get(code) in DEVICE_DTYPES else type_name(code)


class _Trial(Importer):
    """An importer that finds the reasons of every node.

    ``places``: numbers of the nodes by name. ``lenient``: an operand that does not fit is no reason. ``misfits``: nodes
    with such operands. ``undecided``: nodes that depend on values of a run.
    """

    def __init__(
        self,
        model: Model,
        places: Mapping[str, int],
        shapes: Mapping[str, Sequence[int]],
        bind: Mapping[str, object],
        config: Config,
        *,
        lenient: bool,
    ) -> None:
        super().__init__(model, shapes, bind, Budget.of(config))
        self.refused: Reasons = {}
        self.misfits: set[int] = set()
        self.undecided: set[int] = set()
        self._config = config
        self._lenient = lenient
        self._places = places

    def refuse_by_device(self, graph: Graph) -> None:
        """Add the operators of an imported graph that the device does not execute."""
        try:
            for op, reason in find_unsupported(graph, self._config):
                if op.origin is None:
                    self.refused.update(dict.fromkeys(self._places.values(), f"{op.name} ({op.kind}): {reason}"))
                else:
                    self.refused.setdefault(op.origin, reason)
        except NpusimError as error:
            self.refuse_all(error)

    def refuse_all(self, error: NpusimError) -> None:
        """Add an error that concerns no single node."""
        self.misfits.update(self._places.values())
        if not self._lenient:
            self.refused.update(dict.fromkeys(self._places.values(), str(error)))

    def finish(self, error: UnsupportedError) -> None:
        """Add reasons that the importer states at its end."""
        for name, _, reason in error.reasons:
            number = self._places.get(name)
            if number is not None and number not in self.undecided | self.misfits:
                self.refused.setdefault(number, reason)
        if not (self.refused or self.misfits or self.undecided):
            self.refused.update(dict.fromkeys(self._places.values(), str(error)))

    def _import_node(self, node: NodeProto, name: str, needed: set[str], scope: Scope) -> Sequence[Value]:
        if scope.depth:
            return super()._import_node(node, name, needed, scope)
        number = self._places[node.name]
        self.builder.origin = number
        self._check_bodies(node, name, number, scope)
        reasons, undecided = len(self.reasons), self._undecided
        try:
            outputs = super()._import_node(node, name, needed, scope)
        except UndecidedError as error:
            if error.on_host and HOST_STEPS.get((domain_of(node), node.op_type)) != DATA_DEPENDENT_SIZE:
                self.refused[number] = error.reasons[0][2]
                raise UnsupportedError(error.reasons) from None
            self.undecided.add(number)
            raise
        except UnsupportedError as error:
            self.refused[number] = error.reasons[0][2]
            raise
        except ModelError as error:
            self.misfits.add(number)
            if not self._lenient:
                self.refused[number] = str(error)
            raise UnsupportedError([(name, node.op_type, str(error))]) from error
        added = self.reasons[reasons:]
        if len(added) > self._undecided - undecided:
            inner, kind, reason = added[0]
            self.refused[number] = f"{inner} ({kind}): {reason}"
        elif added:
            self.undecided.add(number)
        return outputs

    def _check_bodies(self, node: NodeProto, name: str, number: int, scope: Scope) -> None:
        """Raise UnsupportedError for an unknown operator in a graph inside a node. A branch is imported only if it is
        taken."""
        for graph in nested_graphs(node):
            for inner in graph.node:
                try:
                    self._check_known(inner, f"{name}/{inner.name}", domain_of(inner), scope)
                    self._check_bodies(inner, f"{name}/{inner.name}", number, scope)
                except UnsupportedError as error:
                    inner_name, kind, reason = error.reasons[0]
                    self.refused[number] = f"{inner_name} ({kind}): {reason}"
                    raise UnsupportedError([(name, node.op_type, self.refused[number])]) from None
