"""The backend of torch.compile.

Graphs go through aot_autograd, which makes writes to inputs and views of them explicit. Graphs with recurrent layers
are exported as Dynamo made them, because aot_autograd would replace the layers by operators of the CPU. A graph that
cannot run on the device runs in eager mode, with one line in the log ``npusim.torch``; with ``strict`` it is an error.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._guards import TracingContext

from npusim.errors import ModelError, NpusimError, UsageError
from npusim.program import Program
from npusim.runtime import Session
from npusim.torch.arrays import to_array, to_tensor
from npusim.torch.decompositions import DECOMPOSITIONS
from npusim.torch.exported import Exported, elsewhere, export, with_values
from npusim.torch.tracing import noted

_log = logging.getLogger("npusim.torch")

Call = Callable[..., Any]


@dataclass(frozen=True)
class BackendOptions:
    """``options`` of torch.compile. ``config``: name or path of a device. ``cache_dir``: as for a Session. ``strict``:
    raise ModelError for a graph that cannot run on the device."""

    config: str = "edge"
    cache_dir: str | bool | None = None
    strict: bool = False


@functools.lru_cache(maxsize=16)
def session(config: str, cache_dir: str | bool | None) -> Session:
    """The session that all graphs for a device share. It may be used by several threads."""
    return Session(config, cache_dir=cache_dir)


def backend(graph: fx.GraphModule, example: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Call:
    """Compile a graph of Dynamo: ``torch.compile(model, backend="npusim", options={"config": "edge"})``.

    Raises UsageError for an unknown option.
    """
    known = [field.name for field in fields(BackendOptions)]
    if unknown := set(options or {}) - set(known):
        raise UsageError(f"options: {', '.join(sorted(unknown))}: unknown; there are {', '.join(known)}")
    chosen = BackendOptions(**(options or {}))
    if torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in example):
        return _eager(graph, "it needs gradients: call it under torch.no_grad()", chosen)
    constants = _parts_of_modules(graph, example)
    if any(node.op == "call_function" and node.target in _RECURRENT for node in graph.graph.nodes):
        kept = {number: value for number, value in constants.items() if not _is_written(graph, number)}
        return _Compiled(graph, kept, chosen, functional=False)
    # Detached here, because no real tensor may be touched while aot_autograd compiles.
    detached = {number: value.detach() for number, value in constants.items()}

    def compiled(functional: fx.GraphModule, fake: Sequence[Any]) -> Call:
        context = TracingContext.try_get()
        written = {
            number
            for number, info in enumerate(context.fw_metadata.input_info if context and context.fw_metadata else ())
            if info.mutates_data
        }
        same = len(fake) == len(example)  # the inputs are those of Dynamo's graph
        kept = {number: value for number, value in detached.items() if same and number not in written}
        boxed: Call = make_boxed_func(_Compiled(functional, kept, chosen, functional=True))
        return boxed

    with torch.no_grad():
        made: Call = aot_module_simplified(
            graph,
            example,
            fw_compiler=compiled,
            inference_compiler=compiled,
            decompositions=DECOMPOSITIONS,
            keep_inference_input_mutations=False,
        )
    return made


_RECURRENT = frozenset(
    function for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") if (function := getattr(torch, name, None)) is not None
)


def _eager(graph: fx.GraphModule, reason: str, options: BackendOptions) -> Call:
    if options.strict:
        raise ModelError(f"a graph cannot run on {options.config}: {reason}")
    _log.warning("a graph of %d nodes runs in eager mode: %s", len(graph.graph.nodes), reason)
    forward: Call = graph.forward
    return forward


def _parts_of_modules(graph: fx.GraphModule, example: Sequence[Any]) -> dict[int, torch.Tensor]:
    """The inputs of Dynamo's graph that are parameters or buffers of modules, by number."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return {
        number: value
        for number, (node, value) in enumerate(zip(inputs, example, strict=True))
        if isinstance(value, torch.nn.Parameter)
        or (isinstance(value, torch.Tensor) and "_dynamo_static_input_type" in node.meta.get("tensor_dict", {}))
    }


def _is_written(graph: fx.GraphModule, number: int) -> bool:
    """Whether an operation of Dynamo's graph may write an input: one whose name ends with an underscore, as PyTorch
    names them, or an operator such as ``+=``."""
    node = [node for node in graph.graph.nodes if node.op == "placeholder"][number]
    names = [str(getattr(user.target, "__name__", user.target)) for user in node.users]
    return any(name.endswith("_") or (name.startswith("i") and hasattr(torch.Tensor, f"__{name}__")) for name in names)


class _Form:
    """A graph for inputs of certain shapes and types: a program, or the graph itself where that must run in eager."""

    def __init__(self, graph: fx.GraphModule, tensors: Sequence[int]) -> None:
        self.graph = graph
        self.tensors = tensors
        self.exported: Exported | None = None
        self.program: Program | None = None


class _Compiled:
    """A graph, with a program for each form of its inputs.

    ``constants``: inputs that are parts of modules, by number. Their values are in the programs; after a change all
    programs are made anew.
    """

    def __init__(
        self, graph: fx.GraphModule, constants: Mapping[int, torch.Tensor], options: BackendOptions, *, functional: bool
    ) -> None:
        self._graph = graph
        self._constants = constants
        self._options = options
        self._functional = functional
        self._versions = self._seen()
        self._forms: dict[tuple[Any, ...], _Form] = {}
        self._lock = threading.Lock()

    def _seen(self) -> list[tuple[int, int]]:
        return [(value._version, value.data_ptr()) for value in self._constants.values()]

    def __call__(self, *arguments: Any) -> Any:
        given = [each for number, each in enumerate(arguments) if number not in self._constants]
        key = tuple((each.shape, each.dtype) if isinstance(each, torch.Tensor) else each for each in given)
        with self._lock:
            if (versions := self._seen()) != self._versions:
                self._forms.clear()
                self._versions = versions
            form = self._forms.get(key)
            if form is None:
                form = self._forms[key] = elsewhere(self._made, given)
        if form.exported is None or form.program is None:
            return tuple(form.graph(*(given[number] for number in form.tensors)))
        exported = form.exported
        tensors = [given[number] for number in form.tensors]
        arrays = dict(zip(exported.inputs, map(to_array, tensors), strict=True))
        result = noted(session(self._options.config, self._options.cache_dir).run(form.program, arrays))
        outputs = [to_tensor(result.outputs[each]) if isinstance(each, str) else each[0] for each in exported.outputs]
        for number, value in zip(exported.writes, outputs, strict=False):
            tensors[number].copy_(value)
        return tuple(outputs[len(exported.writes) :])

    def _made(self, given: Sequence[Any]) -> _Form:
        """The form of arguments. One that cannot run on the device has no program."""
        numbers = {number: value for number, value in enumerate(given) if not isinstance(value, torch.Tensor)}
        graph = with_values(with_values(self._graph, self._constants), numbers)
        form = _Form(graph, [number for number in range(len(given)) if number not in numbers])
        tensors = [given[number].detach().clone() for number in form.tensors]
        if not tensors or not any(node.op.startswith("call_") for node in graph.graph.nodes):
            return form  # nothing but numbers
        try:
            if any(each.device.type != "cpu" for each in tensors):
                raise ModelError("its tensors are not in the memory of the CPU")
            exported = export(graph, tensors, functional=self._functional)
            program = session(self._options.config, self._options.cache_dir).compile(exported.model)
        except (NpusimError, torch.onnx.errors.OnnxExporterError, RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().partition("\n")[0]
            _eager(graph, f"{type(error).__name__}: {reason}", self._options)
            return form
        form.exported, form.program = exported, program
        return form
