"""PyTorch models on the device.

``torch.compile(model, backend="npusim")`` compiles each graph that Dynamo finds; :func:`run` runs a whole module once.
The results of both are collected by :func:`trace`, because tensors have no place for times. Needs ``npusim[torch]``.
"""

from npusim.torch.backend import backend
from npusim.torch.run import run
from npusim.torch.tracing import RunTrace, trace

__all__ = ["RunTrace", "backend", "run", "trace"]
