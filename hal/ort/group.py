"""A group of nodes on the device, in place of one node of ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from npusim.errors import UndecidedError, UsageError
from npusim.frontends.onnx.signature import declared_dims, free_inputs
from npusim.frontends.onnx.source import Model
from npusim.program import Program
from npusim.runtime import Result, Session

Array = npt.NDArray[Any]

PROGRAMS_KEPT = 64
"""Programs of one group for different shapes, or for different values that decide what is computed."""


class Runner(Protocol):
    """The device and the options of a session of ONNX Runtime."""

    session: Session
    timing_only: bool

    def finished(self, group: Group, result: Result, started_ns: int) -> None:
        """Record a run."""


class Group:
    """``source``: a model, from which a program is compiled for each set of shapes, or the only program. ``inputs``,
    ``outputs``: names, in the order of ONNX Runtime. Several threads may run it."""

    def __init__(
        self, provider: Runner, name: str, source: Model | Program, inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        self.name = name
        self.source = source
        self.runs = 0
        self._provider = provider
        self._inputs, self._outputs = inputs, outputs
        self._deciding: tuple[str, ...] = ()
        self._programs: dict[tuple[object, ...], Program] = {}

    def compile_fixed(self) -> None:
        """Compile now if the shapes of all inputs are known, so that errors occur while the session is made. If nothing
        but the shapes determines the program, the model is not needed any more. Raises errors of the compiler."""
        assert isinstance(self.source, Model)
        dims = [declared_dims(value) for value in free_inputs(self.source.proto.graph)]
        if not all(each is not None and all(isinstance(dim, int) for dim in each) for each in dims):
            return
        session = self._provider.session
        try:
            program = session.compile(self.source, decisions=True)
        except UndecidedError:
            return  # values of inputs decide
        if type(program) is Program and not program.host.deciding:
            self.source = program
        else:
            self._programs[tuple(tuple(each or ()) for each in dims)] = program

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run once. Raises errors of the compiler and of the device."""
        started_ns = time.monotonic_ns()
        provider = self._provider
        inputs = dict(zip(self._inputs, arrays, strict=True))
        source = self.source
        program = source if isinstance(source, Program) else self._program(source, inputs)
        if provider.timing_only:
            result = provider.session.run(program, timing_only=True)
            shapes = {each.name: (each.shape, each.dtype.storage) for each in program.outputs}
            outputs = [np.zeros(*shapes[name]) for name in self._outputs]
        else:
            result = provider.session.run(program, inputs)
            outputs = [_stored(result, name) for name in self._outputs]
        provider.finished(self, result, started_ns)
        return outputs

    def _program(self, model: Model, inputs: dict[str, Array]) -> Program:
        """The program for these shapes, and for these values of inputs that decide what is computed."""
        shapes = tuple(array.shape for array in inputs.values())
        program = self._programs.get((*shapes, *(inputs[name].tobytes() for name in self._deciding)))
        if program is None:
            program = self._provider.session.compile(model, inputs=inputs, decisions=True)
            if new := set(program.host.deciding).difference(self._deciding):
                self._deciding = (*self._deciding, *sorted(new))
            if len(self._programs) >= PROGRAMS_KEPT:
                self._drop(self._programs.pop(next(iter(self._programs))))
            self._programs[(*shapes, *(inputs[name].tobytes() for name in self._deciding))] = program
        return program

    def _drop(self, program: Program) -> None:
        self._provider.session.unload(program)

    def __del__(self) -> None:
        """Release the device memory. Sessions keep programs with decisions, so they are told."""
        for program in self._programs.values():
            self._drop(program)


def _stored(result: Result, name: str) -> Array:
    """An output as an array. Raises UsageError for a sequence."""
    value = result.outputs[name]
    if not isinstance(value, np.ndarray):
        raise UsageError(f"output {name!r} is no tensor")
    return value
