"""ANeuralNetworksModel: operands and operations as the client adds them, and their conversion to the driver's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npusim.units import ceil_div

from ..aidl import types as aidl_types
from ..aidl.model import model_to_1_3
from ..errors import InvalidModelError, StatusError
from ..operations.signature import operation_name
from ..types import ExtraParams, OperandType, SymmPerChannelQuantParams
from ..validation import validate_model
from . import extensions, pointers
from .codes import MAX_COPIED_BYTES, ApiError, ResultCode, bad_data, bad_state
from .compose import compose
from .kinds import described
from .memory import AnyMemory, SharedMemory, anonymous
from .operands import BuiltModel, BuiltOperand, Copied, InMemory, Missing, Pointed, Referenced, Value, made_from
from .pointers import ChannelQuantValue, OperandTypeValue
from .sorting import BuiltOperation, sort_operations

MAX_BYTES = (1 << 32) - 1
_ALIGNMENT = 64


class Model(BuiltModel):
    """A model. It cannot be changed after ``finish`` was called, even if that failed."""

    def __init__(self) -> None:
        super().__init__()
        self._finished = False
        self._valid = False
        self._composed: aidl_types.Model | None = None

    # Building

    def add_operand(self, type: OperandTypeValue) -> None:
        """Add an operand. Operands are numbered in the order in which they are added."""
        self._check_open("addOperand")
        self.operands.append(made_from(type))

    def set_value(self, index: int, address: int, length: int) -> None:
        """Make an operand a constant. Up to 128 bytes are copied now, more when the model is finished."""
        self._check_open("setOperandValue")
        self._operand(index)
        if not address:
            if length:
                raise ApiError(ResultCode.UNEXPECTED_NULL, f"operand {index}: buffer is NULL, but length is {length}")
            self._set(index, Missing())
            return
        self._check_length(index, length)
        # A client may change small values right after this call. Large ones must stay unchanged while the model is in
        # use, so they can be copied later, all at once, into one pool.
        if length <= MAX_COPIED_BYTES:
            self._set(index, Copied(pointers.read_bytes(address, length, "buffer")))
        else:
            self._set(index, Pointed(address, length))

    def set_value_from_memory(self, index: int, memory: AnyMemory, offset: int, length: int) -> None:
        """Make an operand a constant in a memory object."""
        self._check_open("setOperandValueFromMemory")
        self._operand(index)
        if not isinstance(memory, SharedMemory):
            raise bad_data("memory made from a descriptor cannot hold constants")
        self._check_length(index, length)
        memory.check_range(offset, length)
        self._set(index, InMemory(memory, offset, length))

    def set_value_from_model(self, index: int, value: Model) -> None:
        """Make an operand of type MODEL refer to a finished model."""
        self._check_open("setOperandValueFromModel")
        if value is self or not value.finished:
            raise bad_state("the model that is referred to is not finished")
        if self._operand(index).type != OperandType.SUBGRAPH:
            got = described(self.operands[index])
            raise bad_data(f"operand {index} must be of type ANEURALNETWORKS_MODEL, got {got}")
        self._set(index, Referenced(value))

    def set_channel_quant(self, index: int, channelQuant: ChannelQuantValue) -> None:
        """Set the per-channel scales of an operand."""
        self._check_open("setOperandSymmPerChannelQuantParams")
        operand = self._operand(index)
        if operand.type != OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            raise bad_data(f"operand {index} must be TENSOR_QUANT8_SYMM_PER_CHANNEL, got {described(operand)}")
        scales, dim = channelQuant.scales, channelQuant.channelDim
        if dim >= len(operand.dimensions) or len(scales) != operand.dimensions[dim]:
            raise bad_data(
                f"operand {index}: {len(scales)} scales for dimension {dim} do not fit "
                f"dimensions {list(operand.dimensions)}"
            )
        if not all(0 < scale < float("inf") for scale in scales):
            raise bad_data(f"operand {index}: every scale must be > 0")
        quant = SymmPerChannelQuantParams(scales, dim)
        self.operands[index] = replace(operand, extra=ExtraParams(channelQuant=quant))

    def set_extension_data(self, index: int, data: bytes | None) -> None:
        """Attach bytes to an operand of an extension type, or remove them."""
        self._check_open("setOperandExtensionData")
        operand = self._operand(index)
        if operand.type <= extensions.CODE_MASK:
            raise bad_data(f"operand {index} must be of an extension's type, got {described(operand)}")
        if data == b"":
            raise bad_data(f"operand {index}: data is not NULL, but length is 0")
        extra = None if data is None else ExtraParams(extension=data)
        self.operands[index] = replace(operand, extra=extra)

    def add_operation(self, kind: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Add an operation. The order is free and may differ from the order of execution."""
        self._check_open("addOperation")
        if not extensions.context().knows_operation(kind):
            raise bad_data(f"operation type {kind} is not known")
        self._check_indexes(inputs, "inputs")
        self._check_indexes(outputs, "outputs")
        if not outputs:
            raise bad_data("an operation must have an output")
        self._check_signature(kind, inputs, outputs)
        self.operations.append(BuiltOperation(kind, tuple(inputs), tuple(outputs)))

    def identify(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Set the operands that are inputs and outputs of the model."""
        self._check_open("identifyInputsAndOutputs")
        self._check_indexes(inputs, "inputs")
        self._check_indexes(outputs, "outputs")
        if not outputs or len(set(inputs) | set(outputs)) != len(inputs) + len(outputs):
            raise bad_data("a model must have an output, and may list no operand twice")
        for index in (*inputs, *outputs):
            if self.operands[index].value is not None:
                raise bad_data(f"operand {index} has a value: it cannot be an input or output")
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    def relax(self, allow: bool) -> None:
        """Allow FLOAT32 to be computed as FLOAT16."""
        self._check_open("relaxComputationFloat32toFloat16")
        self.relaxed = allow

    # Finishing

    @property
    def finished(self) -> bool:
        """Whether the model is complete and valid."""
        return self._finished and self._valid

    def finish(self) -> None:
        """Check everything. Raises ApiError: BAD_STATE the second time, BAD_DATA for a model that violates a rule."""
        self._check_open("finish")
        self._finished = True
        # Clients may add operations in any order; drivers get them in an executable order.
        self.order = sort_operations(self.operations, len(self.operands))
        self._take_pointed()
        composed = compose(self)
        try:
            validate_model(model_to_1_3(composed))
        except (InvalidModelError, StatusError) as error:
            raise bad_data(str(error)) from None
        self._composed = composed
        self._valid = True

    @property
    def composed(self) -> aidl_types.Model:
        """The driver's model. Raises ApiError (BAD_STATE) unless the model is finished."""
        if self._composed is None:
            raise bad_state("the model is not finished, or not valid")
        return self._composed

    def _take_pointed(self) -> None:
        """Copy values in client memory into one memory object."""
        pointed = [
            (index, operand.value) for index, operand in enumerate(self.operands) if isinstance(operand.value, Pointed)
        ]
        if not pointed:
            return
        offsets, size = [], 0
        for _, value in pointed:
            offsets.append(size)
            size += ceil_div(value.length, _ALIGNMENT) * _ALIGNMENT
        memory = anonymous(size)
        mapping = memory.shared.map()
        base = mapping.ctypes.data
        for (index, value), offset in zip(pointed, offsets, strict=True):
            pointers.copy(base + offset, value.address, value.length)
            self.operands[index] = self.operands[index].with_value(InMemory(memory, offset, value.length))

    # Checks

    def _check_open(self, function: str) -> None:
        if self._finished:
            raise bad_state(f"{function}: the model is finished")

    def _operand(self, index: int) -> BuiltOperand:
        if not 0 <= index < len(self.operands):
            raise bad_data(f"operand {index} does not exist: the model has {len(self.operands)} operands up to now")
        return self.operands[index]

    def _check_indexes(self, indexes: Sequence[int], what: str) -> None:
        wrong = [index for index in indexes if index >= len(self.operands)]
        if wrong:
            raise bad_data(f"{what}: operand {wrong[0]} does not exist: the model has {len(self.operands)} operands")

    def _check_signature(self, kind: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Raise ApiError (BAD_DATA) for types that the operation does not accept. The other rules are checked by
        ``finish``."""
        definition = extensions.context().operation(kind)
        kinds = [self.operands[index].type for index in inputs], [self.operands[index].type for index in outputs]
        problem = definition.types_problem(*kinds) if definition else None
        if problem:
            raise bad_data(f"operation {len(self.operations)} ({operation_name(kind)}): {problem}")

    def _check_length(self, index: int, length: int) -> None:
        operand = self.operands[index]
        if operand.type == OperandType.SUBGRAPH:
            raise bad_data(f"operand {index} is of type ANEURALNETWORKS_MODEL: its value must be a model")
        if length > MAX_BYTES:
            raise bad_data(f"operand {index}: {length} bytes are more than {MAX_BYTES}")
        if operand.type == OperandType.OEM:
            return
        expected = operand.nbytes()
        if expected != length:
            raise bad_data(
                f"operand {index} with dimensions {list(operand.dimensions)} must have "
                f"{'known dimensions' if expected is None else expected}, not {length} bytes"
            )

    def _set(self, index: int, value: Value) -> None:
        if index in self.inputs or index in self.outputs:
            raise bad_data(f"operand {index} is an input or output of the model: it has no value")
        self.operands[index] = self.operands[index].with_value(value)
