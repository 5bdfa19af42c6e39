"""Imports a TFLite model: graphs, constants, variables, branches, names, and all reasons if it is not supported."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npusim.dtypes import DEVICE_DTYPES, DType, from_storage, value_text
from npusim.errors import ModelError, NeedsValueError, UndecidedError, UnsupportedError, UsageError
from npusim.frontends.operation import MOST_DECIDING, POISON, PRINCIPAL, STUMBLES, Poison, settle
from npusim.frontends.tflite import operators  # noqa: F401  (registers the importers)
from npusim.frontends.tflite.control import CONTROL, Frame, Variable
from npusim.frontends.tflite.operation import Operation
from npusim.frontends.tflite.reader import ModelRecord, OperatorRecord, SignatureRecord, SubgraphRecord, TensorRecord
from npusim.frontends.tflite.registry import HANDLERS
from npusim.frontends.tflite.tensors import ELEMENT_TYPES, TYPES, constant, type_name
from npusim.graph import Graph, Tensor
from npusim.ops.base import Array
from npusim.ops.budget import OPERATOR_STEPS, Budget
from npusim.ops.build import GraphBuilder
from npusim.ops.names import Names
from npusim.ops.reference import check_input

MAX_DEPTH = 32
"""Limit of nested graphs: bodies and calls."""


Value = Tensor | Variable | Poison | None


class TfliteImporter:
    """Builds one Graph from one signature of a model, or from its first graph."""

    collects = True
    """Whether it collects the reasons of all unsupported operators; otherwise the first one is raised."""

    def __init__(
        self,
        model: ModelRecord,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        bind: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.names = names_of(model)
        self.graph = model.subgraphs[self.names.subgraph]
        self.input_shapes = dict(input_shapes or {})
        self.bind = dict(bind or {})
        self.arrays = dict(arrays or {})
        self.budget = budget or Budget()
        self.builder = GraphBuilder(self.graph.name or "model", fold=True, budget=self.budget)
        self.reasons: list[tuple[str, str, str]] = []
        self.variables: dict[str, Variable] = {}
        """Variables of the model by name, in the order of their first use."""
        self._undecided = 0  # number of reasons that decisions at run time would resolve
        self._constants: dict[int, Tensor] = {}
        self._states: dict[TensorRecord, Variable] = {}
        self._bound: dict[str, str] = {}

    def run(self) -> Graph:
        """Import the graph. Raises ModelError, UnsupportedError with every reason, CompileError beyond the limits."""
        self.budget.grant(operators=sum(len(graph.operators) for graph in self.model.subgraphs))
        try:
            frame = Frame(self.graph)
            # Names of the model are reserved: tensors that importers add must not take a name that occurs later.
            self.builder.reserve(dict.fromkeys([*self.names.outputs.values()]))
            self._define_inputs(frame)
            self.import_graph(frame)
            outputs = self._outputs(frame)
            if self.reasons and self._undecided == len(self.reasons):
                raise UndecidedError(self.reasons)
            if self.reasons:
                raise UnsupportedError(self.reasons)
            graph = self.builder.finish(outputs)
            settle(graph, self.builder, self.arrays, self._bound)
            return graph
        except STUMBLES as error:
            raise ModelError(f"the model cannot be understood: {error}") from error

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _define_inputs(self, frame: Frame) -> None:
        for name in (*self.input_shapes, *self.bind):
            if name not in self.names.inputs.values():
                known = ", ".join(self.names.inputs.values()) or "none"
                raise UsageError(f"there is no input {name!r}; the model has {known}")
        for number, name in self.names.inputs.items():
            record = self.graph.tensors[number]
            dtype = ELEMENT_TYPES.get(record.type)
            if dtype is None or dtype not in DEVICE_DTYPES or record.type == TYPES.INT4:
                self.reasons.append((name, "input", f"the device does not compute with {type_name(record.type)}"))
                frame.values[number] = POISON
                continue
            shape = input_shape(name, record, self.input_shapes.get(name))
            if name in self.bind:
                array = check_input(Tensor(name, shape, dtype), np.asarray(self.bind[name], dtype.storage))
                tensor = self.builder.const(array, name, dtype)
                self.builder.mark(tensor)
                self._bound[name] = value_text(from_storage(array, dtype))
            else:
                tensor = self.builder.input(name, shape, dtype, self._array(name, shape, dtype))
            frame.values[number] = tensor

    def _array(self, name: str, shape: tuple[int, ...], dtype: DType) -> Array | None:
        """The value of an input that may determine the graph. Raises InputError for an impossible value."""
        if name not in self.arrays or math.prod(shape) > MOST_DECIDING:
            return None
        return check_input(Tensor(name, shape, dtype), self.arrays[name])

    # -- graphs -------------------------------------------------------------------------------------------------------

    def import_graph(self, frame: Frame) -> None:
        """Import the operators of a graph whose inputs are defined."""
        if frame.depth > MAX_DEPTH:
            raise ModelError(f"graphs are nested more than {MAX_DEPTH} levels deep")
        for index, record in enumerate(frame.record.operators):
            name = frame.prefix + label(frame.record, index)
            self.budget.take_steps(OPERATOR_STEPS, name)
            values: Sequence[Value]
            try:
                values = self.import_operator(record, name, frame)
            except UnsupportedError as error:
                if not self.collects:
                    raise
                self.reasons.extend((name, record.name, reason) for _, _, reason in error.reasons)
                if isinstance(error, NeedsValueError):
                    raise
                self._undecided += len(error.reasons) * isinstance(error, UndecidedError)
                values = [POISON] * len(record.outputs)
            if len(values) != len(record.outputs):
                raise ModelError(f"{name} ({record.name}): has {len(record.outputs)} outputs, needs {len(values)}")
            for number, value in zip(record.outputs, values, strict=True):
                if number in frame.values:
                    raise ModelError(f"{name} ({record.name}): tensor {number} is produced twice")
                if isinstance(value, Tensor):
                    check_result(frame.record.tensors[number], value, f"{name} ({record.name})")
                frame.values[number] = value

    def body(self, op: Operation, number: int, values: Sequence[Any], frame: Frame) -> list[Any]:
        """Import a graph of the model in place of an operation; returns its outputs."""
        graphs = self.model.subgraphs
        if not 0 <= number < len(graphs):
            op.damaged(f"graph {number} of {len(graphs)}")
        record = graphs[number]
        if len(values) != len(record.inputs) or len(set(record.inputs)) != len(record.inputs):
            op.damaged(f"graph {number} takes {len(record.inputs)} inputs, gets {len(values)}")
        inner = Frame(record, f"{op.name}/", frame.depth + 1, dict(zip(record.inputs, values, strict=True)))
        self.import_graph(inner)
        return [self.value(inner, output, op.name, op.op_type) for output in record.outputs]

    def import_operator(self, record: OperatorRecord, name: str, frame: Frame) -> Sequence[Value]:
        """Import one operator and return its outputs. Raises ModelError, UnsupportedError."""
        tensors = frame.record.tensors
        values = [None if number < 0 else self.value(frame, number, name, record.name) for number in record.inputs]
        control = CONTROL.get(record.name)
        handler = HANDLERS.get(record.name)
        if control is None and handler is None:
            what = "custom operators are not supported" if record.name.startswith("CUSTOM:") else "is not supported"
            raise UnsupportedError([(name, record.name, what)])
        if any(value is POISON for value in values):
            return [POISON] * len(record.outputs)
        inputs = [value if isinstance(value, Tensor) else None for value in values]
        op = Operation(self.builder, name, record, tensors, inputs)
        before = self.builder.op_count
        try:
            if control is not None:
                return control(self, op, values, frame)
            assert handler is not None
            result = handler(op)
        except STUMBLES as error:
            # The model is not trusted: any exception of an importer is reported, with its cause.
            raise ModelError(f"{name} ({record.name}): cannot be understood: {error}") from error
        for index, update in op.updates.items():
            self._update(frame, record.inputs[index], update, op)
        added = self.builder.ops_since(before)
        for each in added:
            for tensor in (*each.inputs, *each.outputs):
                if tensor is not None and tensor.dtype not in DEVICE_DTYPES:
                    raise UnsupportedError(
                        [(name, each.kind, f"the device does not compute with {tensor.dtype.label}")]
                    )
        if added:
            # The main operator of an operation gets its name; helpers have longer names.
            self.builder.rename_op(next((each for each in added if each.kind in PRINCIPAL), added[-1]), name)
        return [result] if isinstance(result, Tensor) else list(result)

    def value(self, frame: Frame, number: int, name: str = "", op_type: str = "output") -> Value:
        """A tensor of a graph: computed, a constant, or a variable tensor."""
        value: Value = frame.values.get(number)
        if value is not None:
            return value
        record = frame.record.tensors[number]
        if record.variable:
            value = self.variable_tensor(frame, number, record)
        elif record.data is None and 0 not in record.shape:
            raise ModelError(f"{name} ({op_type}): reads tensor {number} ({record.name!r}) before it is produced")
        elif record.type not in ELEMENT_TYPES:
            raise UnsupportedError([(name, op_type, f"a constant of type {type_name(record.type)}")])
        else:
            value = self._constant(record)
        frame.values[number] = value
        return value

    def _constant(self, record: TensorRecord) -> Tensor:
        key = id(record)
        if key not in self._constants:
            data = constant(record, record.data if record.data is not None else memoryview(b""))
            self.budget.grant(nbytes=data.nbytes)
            self._constants[key] = self.builder.const(data, record.name or None, ELEMENT_TYPES[record.type])
        return self._constants[key]

    # -- variables ----------------------------------------------------------------------------------------------------

    def variable(self, name: str) -> Variable:
        """The variable of a name. Its value is unknown until it is initialised."""
        return self.variables.setdefault(name, Variable(name))

    def variable_tensor(self, frame: Frame, number: int, record: TensorRecord) -> Tensor:
        """A tensor that keeps its value between runs, such as the state of an LSTM; zero at first."""
        dtype = ELEMENT_TYPES.get(record.type)
        if dtype is None:
            raise UnsupportedError([(record.name, "variable", f"type {type_name(record.type)} is not supported")])
        variable = self._states[record] = self.variable(record.name or f"{frame.prefix}variable_{number}")
        zero = int(record.quantization.zero[0]) if record.quantization is not None else 0
        variable.initial = np.broadcast_to(np.asarray(zero, dtype.storage), record.shape)
        return self.read_variable(variable, dtype)

    def _update(self, frame: Frame, number: int, tensor: Tensor, op: Operation) -> None:
        """An operation has changed a variable tensor."""
        record = frame.record.tensors[number]
        if record in self._states and tensor.shape != record.shape:
            op.damaged(f"tensor {record.name!r} is {list(record.shape)}, its new value {list(tensor.shape)}")
        stored = op.from_real(tensor, record)
        frame.values[number] = stored
        # A state that is no variable, but a constant or a value, is not kept.
        if record in self._states:
            self._states[record].current = stored

    def read_variable(self, variable: Variable, dtype: DType) -> Tensor:
        """The current value of a variable: assigned before in this run, or an input of the program."""
        if variable.current is None:
            if variable.initial is None:
                raise ModelError(f"variable {variable.name!r} is read before it has a value")
            name = self._input_name(variable.name)
            variable.source = variable.current = self.builder.input(name, variable.initial.shape, dtype)
        return variable.current

    def _input_name(self, name: str) -> str:
        taken = {tensor.name for tensor in self.builder.inputs} | {*self.names.inputs.values()}
        names = Names()
        for each in taken:
            names.unique(each)
        return names.unique(name)

    # -- outputs ------------------------------------------------------------------------------------------------------

    def _outputs(self, frame: Frame) -> list[Tensor]:
        """The outputs of the graph, then the new values of variables. Each is a separate tensor with its own name."""
        outputs, taken = [], set(self.names.outputs.values())
        for number, name in self.names.outputs.items():
            value = self.value(frame, number, name)
            if isinstance(value, Tensor):
                outputs.append(self._output(value, name, taken))
        for variable in self.variables.values():
            if variable.source is not None and variable.current not in (None, variable.source):
                assert variable.current is not None
                name = self.names_free(f"{variable.source.name}.next", taken)
                outputs.append(self._output(variable.current, name, taken))
                variable.feed = name
        return outputs

    def names_free(self, name: str, taken: set[str]) -> str:
        """A name that no output and no input has; added to ``taken``."""
        names = Names()
        for each in (*taken, *(tensor.name for tensor in self.builder.inputs)):
            names.unique(each)
        found = names.unique(name)
        taken.add(found)
        self.builder.reserve([found])
        return found

    def _output(self, tensor: Tensor, name: str, taken: set[str]) -> Tensor:
        if tensor.data is not None:
            return Tensor(name, tensor.shape, tensor.dtype, tensor.data)
        # If it is an input or has two output names, it needs a second tensor, because each output is a separate buffer.
        if tensor.name in taken or self.builder.is_input(tensor):
            tensor = self.builder.add("reshape", [tensor], {"shape": tensor.shape}, f"{name}.copy")
        self.builder.rename(tensor, name, reserved=True)
        return tensor


def check_result(record: TensorRecord, value: Tensor, where: str) -> None:
    """Raise ModelError for a result of another type than declared."""
    if value.dtype is not ELEMENT_TYPES.get(record.type):
        raise ModelError(f"{where}: output is {type_name(record.type)}, the operator makes {value.dtype.label}")


def label(graph: SubgraphRecord, index: int) -> str:
    """The name of an operator, which the format does not have: that of its first output without fused ones."""
    record = graph.operators[index]
    name = graph.tensors[record.outputs[0]].name.partition(";")[0] if record.outputs else ""
    return name or f"{record.name}_{index}"


def names_of(model: ModelRecord) -> SignatureRecord:
    """The names of inputs and outputs of the default entry point: those of the first signature of graph 0, otherwise
    of its tensors. Names are made unique."""
    graph = model.subgraphs[0]
    signature = next((each for each in model.signatures if each.subgraph == 0), None)
    taken = Names()

    def named(numbers: Sequence[int], given: Mapping[int, str], what: str) -> dict[int, str]:
        found: dict[int, str] = {}
        for place, number in enumerate(numbers):
            if number not in found:
                name = given.get(number) or graph.tensors[number].name or f"{what}_{place}"
                found[number] = taken.unique(name)
        return found

    inputs = named(graph.inputs, signature.inputs if signature else {}, "input")
    outputs = named(graph.outputs, signature.outputs if signature else {}, "output")
    return SignatureRecord(signature.key if signature else "", 0, inputs, outputs)


def input_shape(name: str, record: TensorRecord, given: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of an input: as given if the model leaves those dimensions open, otherwise as declared."""
    if given is None:
        return record.shape
    fixed = all(
        axis in record.open or size == dim for axis, (size, dim) in enumerate(zip(given, record.shape, strict=False))
    )
    if len(given) != len(record.shape) or not fixed or min(given, default=0) < 0:
        allowed = ["any" if axis in record.open else dim for axis, dim in enumerate(record.shape)]
        raise UsageError(f"input {name!r}: shape must be {allowed}, got {list(given)}")
    return tuple(int(size) for size in given)
