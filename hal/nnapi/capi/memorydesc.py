"""ANeuralNetworksMemoryDesc: the roles of a memory object."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..aidl.types import DeviceBuffer, ServiceSpecificException
from ..types import BufferDesc, BufferRole
from .codes import ApiError, ResultCode, bad_data, bad_state
from .compilation import Compilation
from .kinds import Dims, described, merged, nbytes
from .memory import RoleMemory, anonymous
from .operands import BuiltOperand

Direction = Literal["input", "output"]
_log = logging.getLogger("hal.nnapi.capi")


@dataclass(frozen=True, slots=True)
class Role:
    """One use: input or output ``index`` of a compilation."""

    compilation: Compilation
    direction: Direction
    index: int
    frequency: float

    @property
    def key(self) -> tuple[int, str, int]:
        """The identity of a role."""
        return self.compilation.serial, self.direction, self.index


class MemoryDesc:
    """A descriptor. It cannot be changed once it is finished."""

    def __init__(self) -> None:
        self._roles: list[Role] = []
        self._operand: BuiltOperand | None = None
        self._dims: Dims = ()
        self._finished = False

    def add_role(self, role: Role) -> None:
        """Add a use. Raises ApiError (BAD_DATA) if it is incompatible with the previous ones."""
        self._check_open()
        model = role.compilation.model
        if not role.compilation.finished:
            raise bad_data("the compilation is not finished")
        if not 0 < role.frequency <= 1:
            raise bad_data(f"the frequency must be in (0, 1], got {role.frequency}")
        indexes = model.inputs if role.direction == "input" else model.outputs
        if role.index >= len(indexes):
            raise bad_data(f"{role.direction} {role.index} does not exist: the model has {len(indexes)}")
        if role.key in {other.key for other in self._roles}:
            raise bad_data(f"{role.direction} {role.index} of this compilation has been added before")
        operand = model.operands[indexes[role.index]]
        known = self._operand
        if known is not None and _kind(known) != _kind(operand):
            raise bad_data(
                f"{role.direction} {role.index} is not of the type of the roles before, scales per channel included: "
                f"{described(operand)} for {described(known)}"
            )
        if self._dims and not operand.is_tensor:
            raise bad_data(f"{role.direction} {role.index} is a scalar, the dimensions are {list(self._dims)}")
        self._dims = merged(self._dims, operand.dimensions, f"{role.direction} {role.index}")
        self._operand = operand
        self._roles.append(role)

    def set_dimensions(self, dims: Dims) -> None:
        """Set dimensions that the roles leave open."""
        self._check_open()
        if self._operand is not None and dims and not self._operand.is_tensor:
            raise bad_data(f"the roles are of a scalar, got dimensions {list(dims)}")
        self._dims = merged(self._dims, dims, "the dimensions")

    def finish(self) -> None:
        """Complete it. Raises ApiError: BAD_DATA without a role, BAD_STATE the second time."""
        self._check_open()
        if not self._roles:
            raise bad_data("a memory descriptor must have at least one role")
        assert self._operand is not None
        self._finished = True

    def create(self) -> RoleMemory:
        """Create a memory object. Raises ApiError: BAD_STATE if not finished, OP_FAILED if dimensions are open and no
        single device can manage the memory."""
        if not self._finished:
            raise bad_state("the memory descriptor is not finished")
        assert self._operand is not None
        keys = frozenset(role.key for role in self._roles)
        kind = self._operand.type
        size = nbytes(kind, self._dims)
        steps = [role.compilation.steps for role in self._roles]
        if all(len(each) == 1 and each[0].part.device is steps[0][0].part.device for each in steps):
            try:
                return RoleMemory(keys, kind, self._dims, self._allocate(), None)
            except ServiceSpecificException as error:
                if size is None:
                    raise ApiError(ResultCode.OP_FAILED, error.message) from None
                _log.warning("memory of %d bytes is not in the device but shared: %s", size, error)
        if size is None:
            message = f"dimensions {list(self._dims)} are open, and the roles are not all on one device"
            raise ApiError(ResultCode.OP_FAILED, message)
        return RoleMemory(keys, kind, self._dims, None, anonymous(size))

    def _allocate(self) -> DeviceBuffer:
        step = self._roles[0].compilation.steps[0]
        compilations = list(dict.fromkeys(role.compilation for role in self._roles))
        roles: dict[Direction, list[BufferRole]] = {"input": [], "output": []}
        for role in self._roles:
            roles[role.direction].append(BufferRole(compilations.index(role.compilation), role.index, role.frequency))
        prepared = [compilation.steps[0].prepared for compilation in compilations]
        return step.part.device.aidl.allocate(BufferDesc(self._dims), prepared, roles["input"], roles["output"])

    def _check_open(self) -> None:
        if self._finished:
            raise bad_state("the memory descriptor is finished")


def _kind(operand: BuiltOperand) -> Sequence[object]:
    return operand.type, operand.scale, operand.zeroPoint, operand.extra
