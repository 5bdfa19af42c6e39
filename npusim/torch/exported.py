"""Exports graphs of PyTorch as ONNX models: ``torch.export``, then the exporter of ``torch.onnx``."""

from __future__ import annotations

import concurrent.futures
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from onnx import ModelProto
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from npusim.errors import ModelError

T = TypeVar("T")

# The thread of a compiled function has dispatch keys of PyTorch switched off, without which torch.export fails.
_THREAD = concurrent.futures.ThreadPoolExecutor(1, "npusim-torch-export")


def elsewhere(task: Callable[..., T], *arguments: Any) -> T:
    """The result of a function on the thread for exports."""
    return _THREAD.submit(task, *arguments).result()


@dataclass(frozen=True)
class Exported:
    """An ONNX model. ``inputs``: names of its inputs, in the order of the arguments. ``outputs``: for each output of
    the graph, the name of a tensor, or a 1-tuple with a value that is no tensor. ``writes``: numbers of the arguments
    to which the first outputs are copied, because the graph writes them."""

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str | tuple[Any], ...]
    writes: tuple[int, ...] = ()


def export(graph: torch.nn.Module, tensors: Sequence[torch.Tensor], *, functional: bool) -> Exported:
    """Export a graph for the shapes of these arguments. ``functional``: it writes none of them.

    Raises ModelError for a graph that writes its own buffers, and errors of PyTorch.
    """
    with torch.no_grad():
        program = torch.export.export(graph, tuple(tensors), strict=False)
        writes: tuple[int, ...] = ()
        if not functional:
            program, writes = _without_mutation(program, tensors)
        proto = as_onnx(program)
    names = iter(value.name for value in proto.graph.output)
    arguments = [spec.arg for spec in program.graph_signature.output_specs]
    outputs = tuple((each.value,) if isinstance(each, ConstantArgument) else next(names) for each in arguments)
    inputs = tuple(value.name for value in proto.graph.input)
    if len(inputs) != len(tensors):
        raise ModelError(f"the exported model has {len(inputs)} inputs for {len(tensors)} arguments")
    return Exported(proto.SerializeToString(), inputs, outputs, writes)


def as_onnx(program: torch.export.ExportedProgram) -> ModelProto:
    """An exported program as an ONNX model. Raises errors of PyTorch."""
    made = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
    if made is None:
        raise ModelError("PyTorch exported no ONNX model")
    proto: ModelProto = made.model_proto
    return proto


def _without_mutation(
    program: torch.export.ExportedProgram, tensors: Sequence[torch.Tensor]
) -> tuple[torch.export.ExportedProgram, tuple[int, ...]]:
    """A program that returns what the given one writes, first, and the numbers of the arguments that it writes."""
    plain = program.run_decompositions({})
    signature = plain.graph_signature
    kinds = {OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION}
    if any(spec.kind not in kinds for spec in signature.output_specs):
        raise ModelError("the graph writes its own buffers")
    user = list(signature.user_inputs)
    writes = tuple(
        user.index(spec.target) for spec in signature.output_specs if spec.kind == OutputKind.USER_INPUT_MUTATION
    )
    state = {**plain.state_dict, **plain.constants}
    held = [state[spec.target] for spec in signature.input_specs if spec.kind != InputKind.USER_INPUT]
    return torch.export.export(_Held(plain.graph_module, held), tuple(tensors), strict=False), writes


class _Held(torch.nn.Module):
    """A graph whose first inputs are held here."""

    def __init__(self, graph: torch.nn.Module, held: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.graph = graph
        self.count = len(held)
        for number, value in enumerate(held):
            self.register_buffer(f"held_{number}", value.detach())

    def forward(self, *arguments: torch.Tensor) -> Any:
        return self.graph(*(getattr(self, f"held_{number}") for number in range(self.count)), *arguments)


def with_values(graph: fx.GraphModule, values: Mapping[int, Any]) -> fx.GraphModule:
    """A copy of a graph in which the inputs with these numbers are constants: tensors, which are shared, or numbers."""
    made = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    inputs = [node for node in made.graph.nodes if node.op == "placeholder"]
    for number, value in values.items():
        node = inputs[number]
        if isinstance(value, torch.Tensor):
            made.register_buffer(f"constant_{number}", value)
            with made.graph.inserting_before(node):
                node.replace_all_uses_with(made.graph.get_attr(f"constant_{number}"))
        else:
            for user in list(node.users):
                user.args, user.kwargs = fx.map_arg(
                    (user.args, user.kwargs), lambda each, node=node, value=value: value if each is node else each
                )
        made.graph.erase_node(node)
    made.recompile()
    return made
