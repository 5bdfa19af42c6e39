"""ANeuralNetworksExecution: preparation, computation, completed."""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence

from ..aidl.types import OMITTED, ExecutionConfig, Operand, TokenValuePair
from ..types import LoopTimeoutDurationNs, OutputShape
from . import diagnostics, extensions
from .arguments import Argument, AtMemory, at_memory, at_pointer
from .codes import NOT_AVAILABLE, ApiError, DurationCode, ResultCode, bad_data, bad_state
from .compilation import Compilation
from .diagnostics import Mode
from .kinds import is_specified
from .memory import AnyMemory, RoleMemory
from .pointers import OperandTypeValue
from .running import Computation, Outcome, RunStep, deadline_after


class State(enum.Enum):
    """The states of an execution."""

    PREPARATION = "is being prepared"
    COMPUTATION = "is computing"
    COMPLETED = "has been computed"


class Execution:
    """An execution. Settings are made in preparation; results are read when it is completed."""

    def __init__(self, compilation: Compilation) -> None:
        compilation.check_finished()
        self.compilation = compilation
        main = compilation.model.composed.main
        self._input_operands = [main.operands[index] for index in main.inputIndexes]
        self._output_operands = [main.operands[index] for index in main.outputIndexes]
        self._inputs: list[Argument | None] = [None] * len(self._input_operands)
        self._outputs: list[Argument | None] = [None] * len(self._output_operands)
        self._state = State.PREPARATION
        self._reusable = self._padded = self._measure = self._touched = False
        self.timeout_ns = 0
        """How long a computation may take, 0 without a limit."""
        self._loop_timeout_ns = int(LoopTimeoutDurationNs.DEFAULT)
        self._hints: list[TokenValuePair] = []
        self._computation: Computation | None = None
        self._outcome: Outcome | None = None
        self._waited_ns = 0
        self._mode, self._began_ns = Mode.SYNC, 0
        self._lock = threading.Lock()

    # Arguments

    def set_input(self, index: int, type: OperandTypeValue | None, address: int, length: int) -> None:
        """An input in the client's memory; NULL and 0 omit it."""
        operand = self._begin_argument("setInput", self._input_operands, index)
        _put(
            self._inputs,
            index,
            at_pointer(operand, type, address, length, f"input {index}", written=False, padded=self._padded),
        )

    def set_output(self, index: int, type: OperandTypeValue | None, address: int, length: int) -> None:
        """An output in the client's memory; NULL and 0 omit it."""
        operand = self._begin_argument("setOutput", self._output_operands, index)
        _put(
            self._outputs,
            index,
            at_pointer(operand, type, address, length, f"output {index}", written=True, padded=self._padded),
        )

    def set_input_memory(
        self, index: int, type: OperandTypeValue | None, memory: AnyMemory, offset: int, length: int
    ) -> None:
        """An input in a memory object."""
        operand = self._begin_argument("setInputFromMemory", self._input_operands, index)
        role = (self.compilation.serial, "input", index)
        _put(self._inputs, index, at_memory(operand, type, memory, (offset, length), role, padded=self._padded))

    def set_output_memory(
        self, index: int, type: OperandTypeValue | None, memory: AnyMemory, offset: int, length: int
    ) -> None:
        """An output in a memory object."""
        operand = self._begin_argument("setOutputFromMemory", self._output_operands, index)
        role = (self.compilation.serial, "output", index)
        _put(self._outputs, index, at_memory(operand, type, memory, (offset, length), role, padded=self._padded))

    def _begin_argument(self, function: str, operands: Sequence[Operand], index: int) -> Operand:
        self._check_preparation(function)
        if not 0 <= index < len(operands):
            raise bad_data(f"{function}: index {index} does not exist: the model has {len(operands)}")
        self._touched = True
        return operands[index]

    # Settings

    def enable_padding(self, enable: bool) -> None:
        """Allow arguments to be longer than their data. Must be called before the first argument is set."""
        self._check_preparation("enableInputAndOutputPadding")
        if self._touched:
            raise bad_state("enableInputAndOutputPadding must come before the first input or output is set")
        self._padded = enable

    def set_reusable(self, reusable: bool) -> None:
        """Allow more than one computation."""
        self._check_preparation("setReusable")
        self._reusable = reusable

    def set_measure(self, measure: bool) -> None:
        """Enable the measurement of durations."""
        self.compilation.check_one_device("setMeasureTiming")
        self._check_preparation("setMeasureTiming")
        self._measure = measure

    def set_timeout(self, nanoseconds: int) -> None:
        """Limit the duration of a computation; 0 for no limit."""
        self.compilation.check_one_device("setTimeout")
        self._check_preparation("setTimeout")
        self.timeout_ns = nanoseconds

    def set_loop_timeout(self, nanoseconds: int) -> None:
        """Limit the duration of a WHILE, up to the maximum."""
        self._check_preparation("setLoopTimeout")
        self._loop_timeout_ns = min(nanoseconds, int(LoopTimeoutDurationNs.MAXIMUM))

    def add_attribute(self, extension: str, code: int, data: bytes) -> None:
        """Add a vendor hint, which is passed to the driver unchanged."""
        self.compilation.check_one_device("addExtensionAttribute")
        self._check_preparation("addExtensionAttribute")
        self._hints.append(TokenValuePair(extensions.full_type(extension, code), data))

    # Computing

    def compute(self, run_step: RunStep | None = None) -> None:
        """Compute, and return when done. Raises ApiError with the result code."""
        computation = self.begin(Mode.SYNC if run_step is None else Mode.BURST)
        outcome = Outcome(ResultCode.OP_FAILED, "the computation was interrupted")
        try:
            outcome = computation.run(deadline_after(self.timeout_ns), run_step)
        finally:
            self.end(outcome)
        self.check()

    def begin(self, mode: Mode) -> Computation:
        """Start computing. Raises ApiError: BAD_STATE; BAD_DATA if an argument is not set, or if the size of an output
        of an execution with dependencies is unknown. An error also completes the execution."""
        with self._lock:
            if self._state is State.COMPUTATION or (self._state is State.COMPLETED and not self._reusable):
                raise bad_state(f"the execution {self._state.value}")
            try:
                if mode is Mode.ASYNC_WITH_DEPS:
                    self._check_outputs_specified()
                if self._computation is None:
                    self._computation = self._make()
            except ApiError as error:
                self._state, self._outcome = State.COMPLETED, Outcome(error.code, error.message)
                raise
            self._state = State.COMPUTATION
            self._mode, self._began_ns = mode, diagnostics.started_ns()
            return self._computation

    def end(self, outcome: Outcome, waited_ns: int = 0) -> None:
        """Mark the end of the computation. ``waited_ns``: how long it waited for fences before."""
        with self._lock:
            self._outcome, self._waited_ns = outcome, waited_ns
            self._state = State.COMPLETED
        diagnostics.executed(self.compilation, outcome.code, self._began_ns, self._mode, outcome.timing)

    def check(self) -> None:
        """Raise ApiError with the result code of the computation unless it succeeded."""
        if self._outcome is not None:
            self._outcome.check()

    def _check_outputs_specified(self) -> None:
        """Raise ApiError (BAD_DATA) if the size of an output is unknown before the computation."""
        for index, (operand, argument) in enumerate(zip(self._output_operands, self._outputs, strict=True)):
            if argument is not None and argument.dims and not is_specified(int(operand.type), argument.dims):
                raise bad_data(f"output {index}: dimensions must be known, got {list(argument.dims)}")
            if argument is not None and not argument.dims and not is_specified(int(operand.type), operand.dimensions):
                raise bad_data(f"output {index}: dimensions must be known")

    def _make(self) -> Computation:
        for what, arguments in (("input", self._inputs), ("output", self._outputs)):
            if None in arguments:
                raise bad_data(f"{what} {arguments.index(None)} is not set")
        names = extensions.known() if self._hints else ()
        config = ExecutionConfig(self._measure, self._loop_timeout_ns, self._hints, names)
        inputs = [argument for argument in self._inputs if argument is not None]
        outputs = [argument for argument in self._outputs if argument is not None]
        _check_written_once(inputs, outputs)
        return Computation(self.compilation, inputs, outputs, config)

    # Results

    def output_shape(self, index: int) -> OutputShape:
        """Dimensions of an output. Raises ApiError: BAD_STATE, or BAD_DATA for an invalid index."""
        outcome = self._completed("getOutputOperand")
        if outcome.code not in (ResultCode.NO_ERROR, ResultCode.OUTPUT_INSUFFICIENT_SIZE):
            raise bad_state("the computation has failed: its outputs have no dimensions")
        if not 0 <= index < len(self._outputs):
            raise bad_data(f"output {index} does not exist: the model has {len(self._outputs)}")
        return outcome.shapes[index]

    def output_is_scalar(self, index: int) -> bool:
        """Whether an output has no dimensions to query."""
        return is_specified(int(self._output_operands[index].type), ())

    def duration(self, code: int) -> int:
        """Nanoseconds of simulated time, NOT_AVAILABLE if not measured. Raises ApiError."""
        if code not in set(DurationCode):
            raise bad_data(f"the duration code must be one of {[int(code) for code in DurationCode]}, got {code}")
        outcome = self._completed("getDuration")
        if outcome.code is not ResultCode.NO_ERROR:
            raise bad_state("the computation has failed: it has no duration")
        if not self._measure:
            raise bad_state("durations were not to be measured")
        on_hardware = code in (DurationCode.ON_HARDWARE, DurationCode.FENCED_ON_HARDWARE)
        taken = outcome.timing.timeOnDeviceNs if on_hardware else outcome.timing.timeInDriverNs
        if taken == OMITTED:
            return NOT_AVAILABLE
        return taken + (self._waited_ns if code == DurationCode.IN_DRIVER else 0)

    def _completed(self, function: str) -> Outcome:
        with self._lock:
            if self._state is not State.COMPLETED or self._outcome is None:
                raise bad_state(f"{function}: the execution {self._state.value}")
            return self._outcome

    def _check_preparation(self, function: str) -> None:
        if self._state is not State.PREPARATION:
            raise bad_state(f"{function}: the execution {self._state.value}")


def _put(arguments: list[Argument | None], index: int, argument: Argument) -> None:
    """Store an argument. Raises ApiError (BAD_STATE) if it is already set."""
    if arguments[index] is not None:
        raise bad_state(f"argument {index} has been set before")
    arguments[index] = argument


def _check_written_once(inputs: Sequence[Argument], outputs: Sequence[Argument]) -> None:
    """Raise ApiError (BAD_DATA) if memory created from a descriptor is an output and is also used elsewhere."""
    used = [id(a.memory) for a in inputs if isinstance(a, AtMemory) and isinstance(a.memory, RoleMemory)]
    for index, argument in enumerate(outputs):
        if isinstance(argument, AtMemory) and isinstance(argument.memory, RoleMemory):
            if id(argument.memory) in used:
                raise bad_data(f"output {index}: its memory has another use in the same execution")
            used.append(id(argument.memory))
