"""Partitioning: the whole model on one device if possible, else runs of operations on several devices."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from npusim.polling import polled

from ..aidl import types as aidl_types
from ..aidl.types import OMITTED, ServiceSpecificException
from ..aidl.types import OperandLifeTime as LifeTime
from ..errors import StatusError
from ..operations.signature import operation_name
from ..types import DataLocation, DeviceStatus, ErrorStatus, Operation
from .codes import ApiError, ResultCode, bad_data
from .devices import Device
from .kinds import is_specified

_log = logging.getLogger("hal.nnapi.capi")


@dataclass(frozen=True, slots=True)
class Part:
    """Operations that one device executes in sequence.

    ``inputs``, ``outputs``: the operands of the whole model that are its inputs and outputs.
    """

    device: Device
    model: aidl_types.Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


Stretch = tuple[Device, range]
"""A device, and the range of consecutive operations that it executes."""


def spread(
    model: aidl_types.Model, devices: Sequence[Device], preference: int, deadline_ns: int = OMITTED
) -> list[Stretch]:
    """The parts of the model in execution order. Each device compiles the model to find its supported operations, so
    check the compilation cache first. Raises ApiError (BAD_DATA) for an operation that no device supports."""

    def check() -> None:
        if deadline_ns != OMITTED and time.monotonic_ns() >= deadline_ns:
            raise StatusError(ErrorStatus.MISSED_DEADLINE_TRANSIENT, "the deadline has passed while devices were asked")

    with polled(check):  # the interface has no deadline for this call, and devices answer in the calling thread
        support = [supported(device, model) for device in devices]
    main = model.main
    everything = range(len(main.operations))
    # One device for everything is preferred to a faster combination, because values between devices pass through the
    # host.
    whole = [device for device, can in zip(devices, support, strict=True) if all(can)]
    if whole:
        return [(_cheapest(whole, main, everything, preference), everything)]
    stretches: list[Stretch] = []
    # In the order of execution, so a part reads only results of earlier parts.
    for number in everything:
        able = [device for device, can in zip(devices, support, strict=True) if can[number]]
        if not able:
            names, what = ", ".join(device.name for device in devices), operation_name(main.operations[number].type)
            raise bad_data(
                f"operation {number} ({what}) is supported by none of {names}; the log of hal.nnapi says why"
            )
        best = _cheapest(able, main, [number], preference)
        if stretches and stretches[-1][0] is best:
            stretches[-1] = (best, range(stretches[-1][1].start, number + 1))
        else:
            stretches.append((best, range(number, number + 1)))
    _log.warning(
        "no device supports the whole model: %s", "; ".join(f"{d.name}: {len(n)} operations" for d, n in stretches)
    )
    return stretches


def parts_of(model: aidl_types.Model, stretches: Sequence[Stretch]) -> list[Part]:
    """The model of each stretch. Raises ApiError (BAD_DATA) if the model cannot be cut there."""
    if len(stretches) == 1:  # nothing is cut
        [(device, _)] = stretches
        return [Part(device, model, tuple(model.main.inputIndexes), tuple(model.main.outputIndexes))]
    return [_part(model, device, numbers) for device, numbers in stretches]


def available(devices: Sequence[Device]) -> Sequence[Device]:
    """The devices that are plugged in. Raises ApiError (UNAVAILABLE_DEVICE) if there are none."""
    found = [device for device in devices if device.hal.getStatus() is DeviceStatus.AVAILABLE]
    if not found:
        names = ", ".join(device.name for device in devices)
        raise ApiError(ResultCode.UNAVAILABLE_DEVICE, f"unplugged, or with a full queue: {names}")
    return found


def supported(device: Device, model: aidl_types.Model) -> list[bool]:
    """Whether a device supports each operation. An unplugged device supports none."""
    try:
        return device.aidl.getSupportedOperations(model)
    except ServiceSpecificException as error:
        if error.errorCode is not ErrorStatus.DEVICE_UNAVAILABLE:
            raise
        return [False] * len(model.main.operations)


def _cheapest(devices: Sequence[Device], main: aidl_types.Subgraph, numbers: Sequence[int], preference: int) -> Device:
    """The device with the least sum of ratios for the types of the operations' first inputs."""
    if len(devices) == 1:  # its capabilities may not have been measured yet, which takes seconds
        return devices[0]
    inputs = [main.operations[number].inputs for number in numbers]
    kinds = [int(main.operands[places[0]].type) for places in inputs if places]
    return min(devices, key=lambda device: sum(device.cost(kind, preference) for kind in kinds))


def _part(model: aidl_types.Model, device: Device, numbers: range) -> Part:
    main = model.main
    inside = [main.operations[number] for number in numbers]
    written = {index for operation in inside for index in operation.outputs}
    outside = [operation for number, operation in enumerate(main.operations) if number not in numbers]
    read_outside = {index for operation in outside for index in operation.inputs}
    used = sorted({index for operation in inside for index in (*operation.inputs, *operation.outputs)})
    moving = (LifeTime.SUBGRAPH_INPUT, LifeTime.TEMPORARY_VARIABLE, LifeTime.SUBGRAPH_OUTPUT)
    inputs = [index for index in used if index not in written and main.operands[index].lifetime in moving]
    outputs = [index for index in used if index in written and (index in main.outputIndexes or index in read_outside)]
    for index in (*inputs, *outputs):
        _check_cut(main, index)
    subgraph = _subgraph(main, inside, used, inputs, outputs)
    return Part(device, replace(model, main=subgraph), tuple(inputs), tuple(outputs))


def _check_cut(main: aidl_types.Subgraph, index: int) -> None:
    """Raise ApiError (BAD_DATA) for an operand between devices whose size is unknown before the execution."""
    operand = main.operands[index]
    at_border = operand.lifetime == LifeTime.SUBGRAPH_INPUT or (
        operand.lifetime == LifeTime.SUBGRAPH_OUTPUT
        and not any(index in operation.inputs for operation in main.operations)
    )
    if not at_border and not is_specified(int(operand.type), operand.dimensions):
        raise bad_data(
            f"the model would have to be cut at operand {index}, whose dimensions are not known: "
            f"{list(operand.dimensions)}"
        )


def _subgraph(
    main: aidl_types.Subgraph,
    inside: Sequence[Operation],
    used: Sequence[int],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> aidl_types.Subgraph:
    place = {index: number for number, index in enumerate(used)}
    operands = []
    for index in used:
        operand = main.operands[index]
        lifetime = operand.lifetime
        if index in inputs:
            lifetime = LifeTime.SUBGRAPH_INPUT
        elif index in outputs:
            lifetime = LifeTime.SUBGRAPH_OUTPUT
        # Operands that became inputs or outputs of the part have no location in the model.
        location = operand.location if lifetime == operand.lifetime else DataLocation()
        operands.append(replace(operand, lifetime=lifetime, location=location))
    operations = [
        Operation(each.type, [place[i] for i in each.inputs], [place[i] for i in each.outputs]) for each in inside
    ]
    return aidl_types.Subgraph(
        operands, operations, [place[index] for index in inputs], [place[index] for index in outputs]
    )
