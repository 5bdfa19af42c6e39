"""One computation: the steps of a compilation in sequence, on their devices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..aidl.types import OMITTED, ExecutionConfig, ExecutionResult, Request, ServiceSpecificException, Timing
from ..border import said, status_of
from ..types import OutputShape
from . import extensions
from .arguments import Argument, AtMemory, Omitted
from .codes import ApiError, ResultCode, bad_data, code_of
from .compilation import Compilation
from .kinds import nbytes
from .memory import RoleMemory, anonymous
from .requests import RequestBuilder, Staging

INT64_MAX = (1 << 63) - 1

RunStep = Callable[[int, Request, list[int], ExecutionConfig, int], ExecutionResult]
"""Runs a step. Arguments: its number, the request, the keys of a burst's pools, the config, the deadline in ns."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a computation."""

    code: ResultCode
    message: str = ""
    shapes: Sequence[OutputShape] = ()
    timing: Timing = field(default_factory=Timing)

    def check(self) -> None:
        """Raise ApiError with the result code unless the computation succeeded."""
        if self.code is not ResultCode.NO_ERROR:
            raise ApiError(self.code, self.message or "the computation has failed; the log of hal.nnapi says why")


class Computation:
    """The arguments of an execution, which can be run any number of times, but only once at a time."""

    def __init__(
        self, compilation: Compilation, inputs: Sequence[Argument], outputs: Sequence[Argument], config: ExecutionConfig
    ) -> None:
        self._compilation = compilation
        self._inputs, self._outputs = inputs, outputs
        self._config = config
        self._staging = Staging(inputs, outputs)
        self._places = [self._staging.place(argument) for argument in outputs]
        self._temporaries: dict[int, AtMemory] = {}
        for number, step in enumerate(compilation.steps):
            # A result that no later step reads needs no memory of its own: it goes to the client, or is dropped.
            later = {index for other in compilation.steps[number + 1 :] for index in other.part.inputs}
            self._make_room([index for index in step.part.outputs if index in later])

    def run(self, deadline_ns: int = OMITTED, run_step: RunStep | None = None) -> Outcome:
        """Compute. Never raises. ``run_step``: that of a burst, instead of separate executions."""
        try:
            self._check_inputs()
            self._staging.take_in()
            outcome = self._run_steps(deadline_ns, run_step)
        except ApiError as error:
            outcome = Outcome(error.code, error.message)
        except ServiceSpecificException as error:
            outcome = Outcome(code_of(error.errorCode), error.message)
        except MemoryError:
            outcome = Outcome(ResultCode.OUT_OF_MEMORY, "the host has no memory left")
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            outcome = Outcome(code_of(status_of(error, "computation")), said(error))
        # In any case: output memory has contents after success, and none otherwise.
        self._settle(outcome)
        return outcome

    def _run_steps(self, deadline_ns: int, run_step: RunStep | None) -> Outcome:
        shapes: dict[int, OutputShape] = {}
        device = driver = 0
        enough = True
        config, model = self._config, self._compilation.model
        given = {index: self._staging.place(each) for index, each in zip(model.inputs, self._inputs, strict=True)}
        for number, step in enumerate(self._compilation.steps):
            inputs = [given.get(index) or self._target(index) for index in step.part.inputs]
            outputs = [self._target(index) for index in step.part.outputs]
            builder = RequestBuilder()
            request = builder.build(inputs, outputs)
            if run_step is None:
                # Every step has the whole deadline, which is a point in time, not a duration.
                result = step.prepared.executeSynchronouslyWithConfig(request, config, deadline_ns)
            else:
                result = run_step(number, request, builder.tokens, config, deadline_ns)
            for place, index in enumerate(step.part.outputs):
                told = place < len(result.outputShapes)  # the driver may omit shapes that were known before
                shapes[index] = result.outputShapes[place] if told else OutputShape(outputs[place].dims, True)
            device, driver = device + result.timing.timeOnDeviceNs, driver + result.timing.timeInDriverNs
            enough = enough and result.outputSufficientSize
            if not enough:
                break
        found = [shapes.get(index, OutputShape((), False)) for index in model.outputs]
        if not enough:
            message = "an output has more bytes than there is room for"
            return Outcome(ResultCode.OUTPUT_INSUFFICIENT_SIZE, message, found)
        sizes: list[int | None] = []
        for index, shape in zip(model.outputs, found, strict=True):  # known by now, and possibly 0
            element = extensions.context().element_bytes(model.operands[index].type)
            sizes.append(None if element is None else element * math.prod(shape.dimensions))
        self._staging.give_out(sizes)
        return Outcome(ResultCode.NO_ERROR, "", found, Timing(device, driver) if config.measureTiming else Timing())

    # Places of the operands of steps

    def _target(self, index: int) -> Argument:
        model = self._compilation.model
        if index in self._temporaries:
            return self._temporaries[index]
        return self._places[model.outputs.index(index)]

    def _make_room(self, passed_on: Sequence[int]) -> None:
        """Allocate memory for values that pass between steps."""
        model = self._compilation.model
        for index in passed_on:
            operand = model.operands[index]
            size = nbytes(operand.type, operand.dimensions)
            if index not in model.outputs:
                assert size is not None, "the model was cut where dimensions are not known"
                self._temporaries[index] = AtMemory(anonymous(size), 0, size, size, operand.dimensions)
            elif isinstance(self._places[model.outputs.index(index)], Omitted):
                raise bad_data(f"output {model.outputs.index(index)} is needed by another device: it cannot be omitted")

    # Memory created from descriptors

    def _check_inputs(self) -> None:
        for number, argument in enumerate(self._inputs):
            memory = argument.memory if isinstance(argument, AtMemory) else None
            if isinstance(memory, RoleMemory):
                if memory.contents is None:
                    raise ApiError(ResultCode.OP_FAILED, f"input {number}: its memory is not initialised")
                if argument.dims and tuple(argument.dims) != memory.contents and 0 not in argument.dims:
                    raise bad_data(
                        f"input {number}: must have the dimensions of its memory's contents, "
                        f"{list(memory.contents)}, has {list(argument.dims)}"
                    )

    def _settle(self, outcome: Outcome) -> None:
        for number, argument in enumerate(self._outputs):
            if isinstance(argument, AtMemory) and isinstance(argument.memory, RoleMemory):
                ok = outcome.code is ResultCode.NO_ERROR
                argument.memory.contents = tuple(outcome.shapes[number].dimensions) if ok else None


def deadline_after(nanoseconds: int) -> int:
    """The deadline on the steady clock, ``nanoseconds`` from now; none for 0."""
    return min(time.monotonic_ns() + nanoseconds, INT64_MAX) if nanoseconds else OMITTED
