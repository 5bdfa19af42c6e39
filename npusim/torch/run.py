"""Runs a module of PyTorch once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export.graph_signature import OutputKind

from npusim.errors import ModelError
from npusim.runtime import Result
from npusim.torch.arrays import to_array
from npusim.torch.backend import session
from npusim.torch.exported import as_onnx
from npusim.torch.tracing import noted


def run(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    config: str = "edge",
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    timing_only: bool = False,
) -> Result:
    """Export a module for these arguments and run it on a device.

    ``config``: name or path of a device. ``dynamic_shapes``: as for ``torch.export.export``; the model of one export is
    compiled for each set of shapes. The outputs of the result have the names that the exporter gives them. Raises
    ModelError for a module that writes its buffers or arguments: :func:`torch.compile` runs these. Errors of
    PyTorch are passed on.
    """
    with torch.no_grad():
        program = torch.export.export(model, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False)
        # Writes are explicit only after the decomposition.
        specs = program.run_decompositions({}).graph_signature.output_specs
        if any(spec.kind != OutputKind.USER_OUTPUT for spec in specs):
            raise ModelError("the module writes its buffers or arguments: use torch.compile(backend='npusim')")
        proto = as_onnx(program)
    tensors = [each for each in torch.utils._pytree.tree_leaves((args, dict(kwargs or {}))) if torch.is_tensor(each)]
    arrays = {value.name: to_array(tensor) for value, tensor in zip(proto.graph.input, tensors, strict=True)}
    return noted(session(config, None).run(proto.SerializeToString(), arrays, timing_only=timing_only))
