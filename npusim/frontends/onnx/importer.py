"""Imports an ONNX graph: scopes, functions, branches, names, and all reasons if it is not supported."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from npusim.dtypes import DEVICE_DTYPES, DType, bfloat16_to_float32, from_storage, value_text
from npusim.errors import InputError, ModelError, NeedsValueError, UndecidedError, UnsupportedError
from npusim.frontends.onnx import operators  # noqa: F401  (registers the importers)
from npusim.frontends.onnx.blocked_layout import channel_block
from npusim.frontends.onnx.control import CONTROL, MAX_DEPTH
from npusim.frontends.onnx.functions import is_function, schema_function
from npusim.frontends.onnx.host_steps import HOST_STEPS, compute
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import Handler, lookup
from npusim.frontends.onnx.schema import Parameter, parameters, type_problems
from npusim.frontends.onnx.scope import Scope, Value, domain_of, needed_nodes, opset_imports
from npusim.frontends.onnx.sequences import SEQUENCES, is_held, tensors_of
from npusim.frontends.onnx.signature import (
    bound_array,
    check_names,
    contradiction,
    declared_inputs,
    free_inputs,
    held_type,
)
from npusim.frontends.onnx.source import Model
from npusim.frontends.onnx.tensors import PACKED, read_tensor
from npusim.frontends.onnx.versions import FIRST_OPSET, OLDEST_OPSET, upgraded
from npusim.frontends.operation import MOST_DECIDING, POISON, PRINCIPAL, STUMBLES, settle
from npusim.graph import Graph, Op, Tensor, live
from npusim.isa.functions import Binary
from npusim.ops.base import Array
from npusim.ops.budget import OPERATOR_STEPS, Budget
from npusim.ops.build import GraphBuilder
from npusim.ops.reference import check_input

_log = logging.getLogger("npusim.frontends.onnx")


class Importer:
    """Builds one Graph from one model."""

    collects = True
    """Whether it collects the reasons of all unsupported nodes; otherwise the first one is raised."""

    def __init__(
        self,
        model: Model,
        input_shapes: Mapping[str, Sequence[int]] | None,
        bind: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> None:
        self.input_shapes = dict(input_shapes or {})
        self.bind = dict(bind or {})
        self.arrays = dict(arrays or {})
        self.budget = budget or Budget()
        self.model = upgraded(model, self.input_shapes, self.bind)
        self.graph = self.model.proto.graph
        self.builder = GraphBuilder(self.graph.name or "model", fold=True, budget=self.budget)
        self.reasons: list[tuple[str, str, str]] = []
        self._foreign: dict[Op, tuple[str, str, str]] = {}
        self._wanted: set[str] = set()
        self._wants = 0  # number of reasons that values of these inputs would resolve
        self._undecided = 0  # number of reasons that decisions at run time would resolve
        self.decomposed: list[tuple[str, str]] = []
        """(node, operator) of nodes that became several operators: bodies of schemas, branches, unrolled loops."""
        self.functions = {(domain_of(f), f.name, getattr(f, "overload", "")): f for f in self.model.proto.functions}
        self._sizes: dict[tuple[str, str, str], int] = {}
        self._named: dict[Tensor, int] = {}
        self.formats: dict[Tensor, int] = {}
        """ONNX's codes of the types of tensors that the device stores in bytes, see narrow_formats."""
        self._channel_block = channel_block(self.graph)
        self._nodes = 0

    def run(self) -> Graph:
        """Import the graph. Raises ModelError, UnsupportedError with every reason, or CompileError beyond the
        limits."""
        self.budget.grant(operators=len(self.graph.node))
        try:
            scope = Scope(self._opsets())
            nodes, needed = needed_nodes(self.graph.node, (output.name for output in self.graph.output))
            self._reserve(nodes)
            self._define_inputs(scope)
            self._define_initializers(scope, needed)
            self._import_nodes(nodes, needed, scope)
            outputs = self._outputs(scope)
            beyond = self._beyond_the_device(outputs)
            self.reasons.extend(beyond)
            self._undecided += len(beyond)  # the host computes with these types
            if self._wants and self._wants == len(self.reasons):
                raise NeedsValueError(self.reasons, self._likely())
            if self.reasons and self._undecided == len(self.reasons):
                raise UndecidedError(self.reasons)
            if self.reasons:
                raise UnsupportedError(self.reasons)
            for output in self.graph.output:
                assert scope.values[output.name] is not POISON, f"{output.name!r} is unknown for an unknown reason"
            graph = self.builder.finish(outputs)
            settle(graph, self.builder, self.arrays, self._bound)
            return graph
        except STUMBLES as error:
            raise ModelError(f"the model cannot be understood: {error}") from error

    def _beyond_the_device(self, outputs: Sequence[Tensor]) -> list[tuple[str, str, str]]:
        """Reasons why operators that an output needs cannot run on the device. In a chain of such operators, only the
        first."""
        ops = live(self.builder.ops_since(0), outputs) if self._foreign else ()
        made = {tensor for op in self._foreign for tensor in op.outputs if tensor.dtype not in DEVICE_DTYPES}
        found = [self._foreign[op] for op in ops if op in self._foreign and not made.intersection(op.inputs)]
        return list(dict.fromkeys(found))

    def _likely(self) -> dict[str, Any]:
        """A plausible value for each input whose value is needed: a value that the model compares it with, or 1."""
        numbers: dict[str, Any] = {}
        for op in self.builder.ops_since(0):
            if op.attrs.get("fn") is Binary.EQ:
                x, y = sorted(op.inputs, key=lambda operand: operand is not None and operand.is_constant)
                sources = self.builder.inputs_of(x) if x is not None else []
                if len(sources) == 1 and y is not None and y.data is not None and y.size:
                    first = y.data.flat[:1]
                    number = (bfloat16_to_float32(first) if y.dtype is DType.BFLOAT16 else first)[0].item()
                    numbers.setdefault(sources[0].name, number)
        wanted = [tensor for tensor in self.builder.inputs if tensor.name in self._wanted]
        return {tensor.name: self._one_like(tensor, numbers.get(tensor.name)).tolist() for tensor in wanted}

    def _one_like(self, tensor: Tensor, number: float | None) -> Array:
        """A value for an input, filled with a number if its type can hold it, otherwise with 1."""
        storage = np.dtype(np.float32) if tensor.dtype is DType.BFLOAT16 else tensor.dtype.storage
        with np.errstate(all="ignore"):
            value = np.full(tensor.shape, 1 if number is None or not math.isfinite(number) else number)
            stored = value.astype(storage)
        return stored if np.array_equal(stored, value) else np.ones(tensor.shape, storage)

    def _opsets(self) -> dict[str, int]:
        opsets = opset_imports(self.model.proto.opset_import)
        if not opsets:
            raise ModelError("the model names no operator set: it is damaged or truncated")
        version = opsets.setdefault("", OLDEST_OPSET)
        newest = onnx.defs.onnx_opset_version()
        if self.graph.node and not OLDEST_OPSET <= version <= newest:
            reason = f"operator set {version} is not supported: {FIRST_OPSET} to {newest} are"
            raise UnsupportedError([(self.graph.name, "model", reason)])
        return opsets

    def _reserve(self, nodes: Sequence[NodeProto]) -> None:
        check_text(value.name for value in (*self.graph.input, *self.graph.output, *self.graph.initializer))
        defined = [name for node in nodes for name in node.output if name]
        weights = {tensor.name for tensor in self.graph.initializer}
        produced = weights.union(defined)
        self._inputs = free_inputs(self.graph)
        self._input_names = {value.name for value in self._inputs}
        for value in self._inputs:
            if value.name in produced:
                raise ModelError(f"graph input {value.name!r} is also the output of a node")
        # Names of the model are reserved: tensors that importers add must not take a name that occurs later.
        self.builder.reserve(dict.fromkeys([*weights, *defined]))

    def _define_inputs(self, scope: Scope) -> None:
        check_names(self._inputs, self.bind, "a value")
        bound = {
            v.name: bound_array(v, self.bind[v.name], self.input_shapes.get(v.name))
            for v in self._inputs
            if v.name in self.bind
        }
        shapes = {**self.input_shapes, **{name: array.shape for name, array in bound.items()}}
        self._bound: dict[str, str] = {}
        codes = {value.name: value.type.tensor_type.elem_type for value in self._inputs}
        for name, shape, dtype in declared_inputs(self._inputs, shapes, self.reasons, self.graph.name):
            if name in bound:
                tensor = self.builder.const(bound[name], name, dtype)
                self.builder.mark(tensor)
                self._bound[name] = value_text(from_storage(bound[name], dtype))
            else:
                tensor = self.builder.input(name, shape, dtype, self._array(name, shape, dtype))
                if dtype not in DEVICE_DTYPES:
                    self.reasons.append((name, "input", f"the device does not compute with {dtype.label}"))
                    self._undecided += 1
            self._named[tensor] = 0
            if codes[name] in PACKED:
                self.formats[tensor] = codes[name]
            scope.define(name, tensor, "graph inputs")
        self._undecided += sum(held_type(value) is not None for value in self._inputs)
        for value in self._inputs:
            # A refused node counts as known, so that its readers are not reported.
            scope.values.setdefault(value.name, POISON)

    def _array(self, name: str, shape: tuple[int, ...], dtype: DType) -> Array | None:
        """The value of an input that may determine the graph. Raises InputError for an impossible value."""
        if name not in self.arrays or math.prod(shape) > MOST_DECIDING:
            return None
        return check_input(Tensor(name, shape, dtype), self.arrays[name])

    def _define_initializers(self, scope: Scope, needed: set[str]) -> None:
        for sparse in self.graph.sparse_initializer:
            self.reasons.append((sparse.values.name, "initializer", "sparse tensors are not supported"))
            scope.define(sparse.values.name, POISON, "initializers")
        for proto in self.graph.initializer:
            if proto.name not in needed:
                continue
            where = f"initializer {proto.name!r}"
            try:
                data, dtype = read_tensor(proto, self.model.files, where, self.model.blobs.get(proto.name))
            except UnsupportedError as error:
                self.reasons.extend(error.reasons)
                self._undecided += len(error.reasons) * isinstance(error, UndecidedError)
                scope.define(proto.name, POISON, where)
                continue
            self.budget.grant(nbytes=data.nbytes)
            tensor = self.builder.const(data, None, dtype)
            self.builder.rename(tensor, proto.name, reserved=True)
            self._named[tensor] = 0
            scope.define(proto.name, tensor, where)
            if proto.data_type in PACKED:
                self.formats[tensor] = proto.data_type
        # Constants are views of the bytes that were read, or copies, so the message is no longer needed.
        self.model.release()

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _import_nodes(self, nodes: Sequence[NodeProto], needed: set[str], scope: Scope) -> None:
        for node in nodes:
            check_text((node.name, node.op_type, node.domain, *node.input, *node.output))
            check_text(attribute.name for attribute in node.attribute)
            name = scope.prefix + (node.name or f"{node.op_type}_{self._nodes}")
            self._nodes += 1
            # Counted on expansion, because a few functions that call each other twice become exponentially many nodes.
            self.budget.take_steps(OPERATOR_STEPS, name)
            outputs: Sequence[Value]
            try:
                outputs = self._import_node(node, name, needed, scope)
            except UnsupportedError as error:
                if not self.collects:
                    raise
                self.reasons.extend((name, node.op_type, reason) for _, _, reason in error.reasons)
                self._undecided += len(error.reasons) * isinstance(error, UndecidedError)
                if isinstance(error, NeedsValueError):
                    self._wanted.update(error.values)
                    self._wants += len(error.reasons)
                outputs = [POISON] * len(node.output)
            for index, output in enumerate(node.output):
                value = outputs[index] if index < len(outputs) else None
                if not output or value is None:
                    continue
                scope.define(output, value, name)
                # A value that passes through functions has a name in each. Users know the outermost name.
                if isinstance(value, Tensor) and self._named.get(value, MAX_DEPTH) > scope.depth:
                    self.builder.rename(value, scope.prefix + output, reserved=scope.depth == 0)
                    self._named[value] = scope.depth

    def _import_node(self, node: NodeProto, name: str, needed: set[str], scope: Scope) -> Sequence[Value]:
        try:
            values = [scope.find(operand) if operand else None for operand in node.input]
        except KeyError as missing:
            problem = f"reads {missing.args[0]!r} before it is produced"
            raise ModelError(f"{name} ({node.op_type}): {problem}") from None
        poisoned = any(value is POISON for value in values)
        inputs = [value if isinstance(value, Tensor) else None for value in values]
        domain = domain_of(node)
        function = self.functions.get((domain, node.op_type, getattr(node, "overload", "")))
        if function is not None:
            return [POISON] * len(node.output) if poisoned else self._call(function, node, name, values, scope)
        if poisoned:
            # Missing values affect whether it can be computed, but not whether the operator exists.
            self._check_known(node, name, domain, scope)
            return [POISON] * len(node.output)
        attributes = self._attributes(node, scope)
        version = scope.opsets.get(domain)
        if version is None:
            raise ModelError(f"{name} ({node.op_type}): the model does not import operator set {domain!r}")
        # Operators on sequences check their operands, because types of tensors do not describe them.
        checked = None if node.op_type in SEQUENCES else parameters(domain, node.op_type, version)
        formal, bound = checked or ((), ()), dict[str, DType]()
        self._check_types(f"{name} ({node.op_type}): input", formal[0], inputs, bound, scope)
        region = CONTROL.get(node.op_type) if not domain else None
        handler = lookup(domain, node.op_type, version)
        self._check_types_of_device(name, node, inputs)
        # The definition of the schema comes last, because an importer makes fewer and better operators.
        if handler is None and region is None:
            return self._defined(node, name, version, values, attributes, needed, scope)
        if is_held(values) and handler is not None:
            if node.op_type == "Identity":
                return values
            raise UnsupportedError([(name, node.op_type, "does not take sequences or optional values")])
        wanted = [bool(output) and output in needed for output in node.output]
        files = self.model.files
        block = self._channel_block
        context = Node(node, name, version, self.builder, inputs, attributes, wanted, files, self.formats, block)
        try:
            if handler is not None:
                outputs = self._handle(handler, context)
                self._keep_formats(formal, inputs, outputs)
                # Except for Constant: models of operator sets in which it had to be floats use integers.
                if inputs:
                    self._check_types(f"{name} ({node.op_type}): output", formal[1], outputs, bound, scope)
                return outputs
            assert region is not None  # otherwise the schema was used
            context.values = values
            self.decomposed.append((name, node.op_type))
            return region(self._body, context, scope)
        except InputError as error:
            raise ModelError(f"{name} ({node.op_type}): {error}") from error
        except STUMBLES as error:
            # The model is not trusted: any exception of an importer is reported, with its cause.
            raise ModelError(f"{name} ({node.op_type}): cannot be understood: {error}") from error

    def _defined(
        self,
        node: NodeProto,
        name: str,
        version: int,
        values: Sequence[Value],
        attributes: Mapping[str, AttributeProto],
        needed: set[str],
        scope: Scope,
    ) -> Sequence[Value]:
        """Import an operator on sequences, or one without an importer by the body in its schema."""
        domain, inputs = domain_of(node), tensors_of(values)
        if (domain, node.op_type) in HOST_STEPS:
            return self._host_step(node, name, version, inputs)
        if not domain and node.op_type in SEQUENCES:
            wanted = [bool(output) and output in needed for output in node.output]
            context = Node(node, name, version, self.builder, inputs, attributes, wanted, self.model.files)
            context.values = values
            try:
                return [SEQUENCES[node.op_type](context)]
            except STUMBLES as error:
                raise ModelError(f"{name} ({node.op_type}): cannot be understood: {error}") from error
        try:
            body = schema_function(node, version, inputs, attributes)
        except STUMBLES as error:
            raise ModelError(f"{name} ({node.op_type}): cannot be understood: {error}") from error
        if body is None:
            raise UnsupportedError([(name, node.op_type, unknown(node, domain, version))])
        function, defaults = body
        self.decomposed.append((name, node.op_type))
        return self._call(function, node, name, values, scope, defaults)

    def import_one(self, node: NodeProto, name: str, needed: set[str], scope: Scope) -> Sequence[Value]:
        """Import one node and return its outputs. Raises ModelError, and UnsupportedError with the name of the node."""
        self._nodes += 1
        self.budget.take_steps(OPERATOR_STEPS, name)
        try:
            return self._import_node(node, name, needed, scope)
        except UndecidedError:
            raise
        except UnsupportedError as error:
            raise UnsupportedError([(name, node.op_type, reason) for _, _, reason in error.reasons]) from None

    def _host_step(
        self, node: NodeProto, name: str, version: int, inputs: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """The results of an operator that the host executes, on constants. Raises UndecidedError for other inputs."""
        arrays = [None if tensor is None else self.builder.value_of(tensor) for tensor in inputs]
        if any(tensor is not None and array is None for tensor, array in zip(inputs, arrays, strict=True)):
            raise _on_host(name, node.op_type, HOST_STEPS[domain_of(node), node.op_type])
        self.budget.take_bytes(sum(tensor.nbytes for tensor in inputs if tensor is not None), name)
        try:
            found = compute(node, version, arrays)
        except STUMBLES as error:
            raise ModelError(f"{name} ({node.op_type}): cannot be understood: {error}") from error
        return [self.builder.const(array, name) for array in found]

    def _handle(self, handler: Handler, node: Node) -> Sequence[Value]:
        """Call the importer of an operator and check the operators that it has added."""
        before = self.builder.op_count
        result = handler(node)
        node.check_all_read()
        added = self.builder.ops_since(before)
        for op in added:
            for tensor in (*op.inputs, *op.outputs):
                if tensor is not None and tensor.dtype not in DEVICE_DTYPES:
                    reason = f"the device does not compute with {tensor.dtype.label}"
                    if not self.arrays:
                        raise _on_host(op.name, op.kind, reason)
                    # The host may compute it if only shapes depend on it.
                    self._foreign[op] = (node.name, node.op_type, reason)
        if added:
            # The main operator of a node gets the name of the node; helpers have longer names.
            self.builder.rename_op(next((op for op in added if op.kind in PRINCIPAL), added[-1]), node.name)
        return [result] if isinstance(result, Tensor) else list(result)

    def _check_types(
        self, what: str, formal: Sequence[Parameter], operands: Sequence[Value], bound: dict[str, DType], scope: Scope
    ) -> None:
        """Raise ModelError for types that the definition of the operator does not allow."""
        for differs, problem in type_problems(formal, operands, bound, self.formats):
            if differs and (scope.is_definition or what.endswith("output")):
                raise UnsupportedError([(what, "", f"{problem}: operands of two types are not supported")])
            # Definitions by ONNX are not the model's fault, and some of them are inaccurate.
            if not scope.is_definition:
                raise ModelError(f"{what} {problem}")

    def _keep_formats(
        self, formal: tuple[Sequence[Parameter], ...], inputs: Sequence[Tensor | None], outputs: Sequence[Value]
    ) -> None:
        """Record that outputs which have the type of an input have its format, too."""
        if not self.formats or len(formal[0]) == 0:
            return
        named = {}
        for index, tensor in enumerate(inputs):
            if tensor in self.formats:
                named[formal[0][min(index, len(formal[0]) - 1)].variable] = self.formats[tensor]
        for parameter, output in zip(formal[1], outputs, strict=False):
            if isinstance(output, Tensor) and parameter.variable in named:
                self.formats.setdefault(output, named[parameter.variable])

    def _check_types_of_device(self, name: str, node: NodeProto, inputs: Sequence[Tensor | None]) -> None:
        """Raise UndecidedError for a computed operand of a type that only the host computes with. In a model that may
        be one program, this is not known before it has been read."""
        kinds = {t.dtype for t in inputs if t is not None and not t.is_constant} - DEVICE_DTYPES
        if kinds and not self.collects:
            raise _on_host(name, node.op_type, f"the device does not compute with {min(kinds).label}")

    def _check_known(self, node: NodeProto, name: str, domain: str, scope: Scope) -> None:
        """Report an operator that is unknown for all inputs."""
        version = scope.opsets.get(domain, 1)
        own = not domain and (node.op_type in CONTROL or node.op_type in SEQUENCES)
        own = own or (domain, node.op_type) in HOST_STEPS
        if not (own or lookup(domain, node.op_type, version) or is_function(node, version)):
            raise UnsupportedError([(name, node.op_type, unknown(node, domain, version))])

    def _attributes(self, node: NodeProto, scope: Scope) -> dict[str, AttributeProto]:
        """The attributes of the node by name, with references to attributes of a function resolved."""
        resolved: dict[str, AttributeProto] = {}
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                resolved[attribute.name] = attribute
            elif attribute.ref_attr_name in scope.attributes:
                copy = AttributeProto()
                copy.CopyFrom(scope.attributes[attribute.ref_attr_name])
                copy.name = attribute.name
                resolved[attribute.name] = copy
        return resolved

    # -- functions and branches ---------------------------------------------------------------------------------------

    def _call(
        self,
        function: FunctionProto,
        node: NodeProto,
        name: str,
        inputs: Sequence[Value],
        scope: Scope,
        defaults: Mapping[str, AttributeProto] | None = None,
    ) -> Sequence[Value]:
        """Import the body of a function in place of the node that calls it."""
        key = f"{function.domain}.{function.name}"
        if scope.depth + 1 >= MAX_DEPTH or (defaults is None and key in scope.calls):
            raise ModelError(f"{name} ({node.op_type}): recursive function calls")
        attributes = dict(defaults or {})
        attributes.update({attribute.name: attribute for attribute in function.attribute_proto})
        attributes.update(self._attributes(node, scope))
        opsets = {**scope.opsets, **opset_imports(function.opset_import)}
        calls = (*scope.calls, key)
        self.budget.take_steps(OPERATOR_STEPS, name)
        if defaults is None:
            self.budget.expect_steps(self._size(function, scope.depth) * OPERATOR_STEPS, name)
        is_definition = scope.is_definition or defaults is not None
        inner = Scope(opsets, None, f"{name}/", scope.depth + 1, attributes, calls=calls, is_definition=is_definition)
        if len(inputs) > len(function.input):
            raise ModelError(f"{name}: {key} has {len(function.input)} inputs, the call passes {len(inputs)}")
        for index, parameter in enumerate(function.input):
            inner.define(parameter, inputs[index] if index < len(inputs) else None, name)
        wanted = [output for output, asked in zip(function.output, node.output, strict=False) if asked]
        nodes, needed = needed_nodes(function.node, wanted)
        self._import_nodes(nodes, needed, inner)
        return [inner.result(output, name) if output in wanted else None for output in function.output]

    def _size(self, function: FunctionProto, depth: int) -> int:
        """Number of nodes that a call of a function of the model expands to. Nodes in branches and loops do not
        count."""
        key = (domain_of(function), function.name, getattr(function, "overload", ""))
        if key not in self._sizes:
            self._sizes[key] = 0  # for recursive functions, which the import of the call refuses
            calls = [(domain_of(node), node.op_type, getattr(node, "overload", "")) for node in function.node]
            inner = [self.functions[call] for call in calls if call in self.functions] if depth < MAX_DEPTH else []
            self._sizes[key] = len(calls) + sum(self._size(each, depth + 1) for each in inner)
        return self._sizes[key]

    def _body(self, graph: GraphProto, label: str, values: Mapping[str, Value], scope: Scope) -> list[Value]:
        """Import a graph inside a node and return its outputs. It can use names of the enclosing scopes."""
        self.budget.take_steps(OPERATOR_STEPS, label)
        inner = replace(scope, parent=scope, prefix=f"{label}/", depth=scope.depth + 1, values={})
        for name, value in values.items():
            inner.define(name, value, label)
        for proto in graph.initializer:
            data, dtype = read_tensor(proto, self.model.files, f"initializer {proto.name!r}")
            inner.define(proto.name, self.builder.const(data, f"{label}/{proto.name}", dtype), label)
        nodes, needed = needed_nodes(graph.node, (output.name for output in graph.output))
        self._import_nodes(nodes, needed, inner)
        return [inner.result(output.name, label) for output in graph.output]

    # -- outputs ------------------------------------------------------------------------------------------------------

    def _outputs(self, scope: Scope) -> list[Tensor]:
        """The outputs of the graph. Each becomes a separate tensor with its own name."""
        found = []
        for value in (*self.graph.value_info, *self.graph.output):
            tensor = scope.values.get(value.name)
            problem = contradiction(value, tensor) if isinstance(tensor, Tensor) else None
            found += [problem] if problem else []
        if found:
            self._contradicted(found)
        names = {output.name for output in self.graph.output}
        if len(names) != len(self.graph.output):
            raise ModelError("two graph outputs have the same name")
        outputs = []
        for output in self.graph.output:
            tensor = scope.values.get(output.name)
            if tensor is None:
                raise ModelError(f"graph output {output.name!r} is not produced")
            if isinstance(tensor, Tensor):
                outputs.append(self._output(tensor, output.name, names))
            elif tensor is not POISON:
                self.reasons.append((output.name, "output", "outputs that are no tensors are not supported"))
                self._undecided += 1
        return outputs

    def _contradicted(self, problems: Sequence[str]) -> None:
        """Warn about declared shapes that differ from the computed shapes, which are used."""
        more = f" (and {len(problems) - 1} more)" * (len(problems) > 1)
        _log.warning("%s: %s%s; the computed shape is used", self.graph.name or "model", problems[0], more)

    def _output(self, tensor: Tensor, name: str, names: set[str]) -> Tensor:
        if tensor.name == name and not self.builder.is_input(tensor):
            return tensor
        if tensor.data is not None:
            return Tensor(name, tensor.shape, tensor.dtype, tensor.data)
        # If it is an input or has two output names, it needs a second tensor, because each output is a separate buffer.
        if tensor.name in names or self.builder.is_input(tensor):
            copy = self.builder.add("reshape", [tensor], {"shape": tensor.shape}, name)
            if name not in self._input_names:
                self.builder.rename(copy, name, reserved=True)
            return copy
        self.builder.rename(tensor, name, reserved=True)
        return tensor


def _on_host(name: str, kind: str, reason: str) -> UndecidedError:
    """The error for an operator that the host can execute."""
    error = UndecidedError([(name, kind, reason)])
    error.on_host = True
    return error


def check_text(names: Iterable[object]) -> None:
    """Raise ModelError for names that are not UTF-8, which protobuf returns as bytes."""
    for name in names:
        if isinstance(name, bytes):
            raise ModelError(f"the model is damaged: {name!r} is not a name in UTF-8")


def unknown(node: NodeProto, domain: str, version: int) -> str:
    """The reason for an operator without importer."""
    where = f"domain {domain!r}" if domain else "the standard domain"
    return f"npusim has no operator {node.op_type} of version {version} of {where}"
