"""A model on a backend: copies of the model and its weights, and a program for every set of shapes that it runs
with."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim.frontends.onnx.source import Model
from npusim.frontends.onnx.tensors import ELEMENT_TYPES
from npusim.plan.recent import Recent
from npusim.program import Program
from npusim.runtime import Priority

from .backend import Backend, graph_priority
from .compatibility import check_capacity, dynamic_inputs, try_symbolic
from .descriptor import Descriptor
from .importing import Outside, compile_nodes, import_graph
from .model import Weight, add_weights, parse
from .quantization import Quantization
from .status import OnnxifiError, Status
from .tensors import Declared, check_against, check_descriptor, declared, match_names

MAX_VARIANTS = 16
"""Programs that a graph keeps; the least recently used one is removed."""

ShapeTable = tuple[tuple[str, tuple[int, ...]], ...]
QuantizationTable = tuple[tuple[str, Quantization], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """The key of a compiled program: shapes of inputs with open dimensions, and quantised tensors."""

    shapes: ShapeTable = ()
    inputs: QuantizationTable = ()
    outputs: QuantizationTable = ()


class Graph:
    """One graph. ``inputs``, ``outputs``: the tensors that the client binds. Created by :func:`init_graph`."""

    def __init__(
        self, backend: Backend, model: Model, quantized: Mapping[str, Quantization], priority: Priority
    ) -> None:
        self.backend = backend
        self.power = backend.power
        self.priority = priority
        self.inputs = {value.name: value for value in dynamic_inputs(model.proto.graph)}
        self.outputs = {value.name: declared(value) for value in model.proto.graph.output}
        self.decomposed = False
        self._model = model
        self._quantized = dict(quantized)
        self._programs: Recent[Form, Program] = Recent(MAX_VARIANTS, self.power.executor.unload)
        self._lock = threading.Lock()
        self._released = False

    @property
    def is_static(self) -> bool:
        """Whether the model specifies the shape of every input."""
        return all(value.is_static for value in self.inputs.values())

    def build(self) -> None:
        """Compile a graph with known shapes; check a graph with open shapes as far as possible."""
        if self.is_static:
            self.program(Form())
        else:
            self.decomposed = try_symbolic(self._model, list(self.inputs.values()), self.backend.device.config)

    def program(self, form: Form) -> Program:
        """Return the program for a form, loaded onto the device with its constants."""
        with self._lock:
            # Under the lock; otherwise two bindings with equal shapes would compile the same program concurrently.
            return self._programs.find(form, lambda: self._compile(form))

    def release(self) -> None:
        """Free the device memory; no run is active."""
        with self._lock:
            if self._released:
                return
            self._released = True
            while self._programs:
                self.power.executor.unload(self._programs.popitem()[1])
        self.power.give_graph()

    def _compile(self, form: Form) -> Program:
        outside = Outside(self._quantized, dict(form.inputs), dict(form.outputs))
        config = self.backend.device.config
        graph, decomposed = import_graph(self._model, config, dict(form.shapes), outside)
        check_capacity(graph, config, Status.NO_DEVICE_MEMORY)
        program, several = compile_nodes(graph, config)
        self.decomposed = self.decomposed or decomposed or several
        self.power.executor.pin(program, to_run=True)
        return program


def init_graph(
    backend: Backend, properties: Sequence[int], data: bytes, weights: Sequence[Descriptor] | None, *, lenient: bool
) -> tuple[Status, Graph]:
    """Return (SUCCESS or FALLBACK, graph). Raises OnnxifiError, and exceptions that :func:`edge.status_of` converts."""
    priority = graph_priority(properties)
    model = parse(data, lenient=lenient)
    quantized: dict[str, Quantization] = {}
    if weights is not None:
        found, quantized = read_weights(model, weights, lenient)
        add_weights(model, found)
    graph = Graph(backend, model, quantized, priority)
    # Counted before it is built, because release() decrements the count in any case.
    backend.power.take_graph()
    try:
        graph.build()
    except BaseException:
        graph.release()
        raise
    return Status.FALLBACK if graph.decomposed else Status.SUCCESS, graph


def read_weights(
    model: Model, descriptors: Sequence[Descriptor], lenient: bool
) -> tuple[list[Weight], dict[str, Quantization]]:
    """Return (copies of the weights, the quantised ones). If lenient, the descriptor's type replaces the declared
    type."""
    proto = model.proto.graph
    if proto.initializer:
        raise OnnxifiError(Status.INVALID_MODEL, "weights must be initializers or descriptors, not both")
    inputs: dict[str, Declared] = {value.name: declared(value) for value in proto.input}
    found = match_names(descriptors, inputs, "graph input")
    weights, quantized = [], {}
    for name, descriptor in found.items():
        check_descriptor(descriptor)
        quantization = check_against(descriptor, inputs[name], any_type=lenient)
        if quantization is not None:
            quantized[name] = quantization
        code, shape = descriptor.data_type, descriptor.shape or ()
        dtype = ELEMENT_TYPES.get(code)
        if dtype is None:
            raise OnnxifiError(Status.UNSUPPORTED_DATATYPE, f"{name!r}: data type {code} is not supported")
        # copied, because the client may free its weights when onnxInitGraph returns
        data = ctypes.string_at(descriptor.buffer, math.prod(shape) * dtype.itemsize)
        weights.append(Weight(name, code, shape, data))
    return weights, quantized
