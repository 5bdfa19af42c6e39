"""Convert requests and results to and from packets of a burst's channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .errors import StatusError, invalid_argument
from .fmq import FmqRequestDatum, FmqResultDatum
from .types import DataLocation, ErrorStatus, MeasureTiming, OutputShape, Request, RequestArgument, Timing
from .validation.fields import U32, U64, MalformedError, boolean, instance, integer

Datum = TypeVar("Datum", bound=FmqRequestDatum | FmqResultDatum)

MAX_SLOT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class BurstRequest:
    """A request of a message queue: it refers to pools by slot."""

    inputs: Sequence[RequestArgument]
    outputs: Sequence[RequestArgument]
    slots: Sequence[int]
    measure: MeasureTiming


def serialize_request(
    request: Request, slots: Sequence[int], measure: MeasureTiming = MeasureTiming.NO
) -> list[FmqRequestDatum]:
    """The packet of a request, with a slot for each of its pools."""
    body = []
    for argument in request.inputs:
        body.append(FmqRequestDatum(inputOperandInformation=_operand(argument)))
        body += [FmqRequestDatum(inputOperandDimensionValue=size) for size in argument.dimensions]
    for argument in request.outputs:
        body.append(FmqRequestDatum(outputOperandInformation=_operand(argument)))
        body += [FmqRequestDatum(outputOperandDimensionValue=size) for size in argument.dimensions]
    body += [FmqRequestDatum(poolIdentifier=slot) for slot in slots]
    body.append(FmqRequestDatum(measureTiming=measure))
    head = FmqRequestDatum.PacketInformation(len(body) + 1, len(request.inputs), len(request.outputs), len(slots))
    return [FmqRequestDatum(packetInformation=head), *body]


def deserialize_request(packet: Sequence[FmqRequestDatum]) -> BurstRequest:
    """The request in a packet. Raises StatusError (INVALID_ARGUMENT) if an entry is missing, extra or misplaced."""
    reader = _Reader(packet, FmqRequestDatum)
    try:
        head = instance(reader.next("packetInformation"), FmqRequestDatum.PacketInformation, "packetInformation")
        reader.check_size(head.packetSize)
        inputs = [_argument(reader, "input") for _ in range(reader.count(head.numberOfInputOperands))]
        outputs = [_argument(reader, "output") for _ in range(reader.count(head.numberOfOutputOperands))]
        pools = reader.count(head.numberOfPools)
        slots = [integer(reader.next("poolIdentifier"), 0, MAX_SLOT, "poolIdentifier") for _ in range(pools)]
        measure = MeasureTiming(integer(reader.next("measureTiming"), 0, 1, "measureTiming"))
        reader.check_end()
    except MalformedError as error:
        raise invalid_argument(f"request packet: {error}") from None
    return BurstRequest(inputs, outputs, slots, measure)


def serialize_result(status: ErrorStatus, shapes: Sequence[OutputShape], timing: Timing) -> list[FmqResultDatum]:
    """The packet of a result."""
    body = []
    for shape in shapes:
        operand = FmqResultDatum.OperandInformation(shape.isSufficient, len(shape.dimensions))
        body.append(FmqResultDatum(operandInformation=operand))
        body += [FmqResultDatum(operandDimensionValue=size) for size in shape.dimensions]
    body.append(FmqResultDatum(executionTiming=timing))
    head = FmqResultDatum.PacketInformation(len(body) + 1, status, len(shapes))
    return [FmqResultDatum(packetInformation=head), *body]


def deserialize_result(packet: Sequence[FmqResultDatum]) -> tuple[ErrorStatus, list[OutputShape], Timing]:
    """The result in a packet: (status, output shapes, times). Raises StatusError (GENERAL_FAILURE) if it is
    malformed."""
    reader = _Reader(packet, FmqResultDatum)
    try:
        head = instance(reader.next("packetInformation"), FmqResultDatum.PacketInformation, "packetInformation")
        reader.check_size(head.packetSize)
        status = ErrorStatus(integer(head.errorStatus, 0, max(ErrorStatus), "errorStatus"))
        shapes = []
        for _ in range(reader.count(head.numberOfOperands)):
            found = reader.next("operandInformation")
            operand = instance(found, FmqResultDatum.OperandInformation, "operandInformation")
            dimensions = _dimensions(reader, operand.numberOfDimensions, "operandDimensionValue")
            shapes.append(OutputShape(dimensions, boolean(operand.isSufficient, "isSufficient")))
        timing = instance(reader.next("executionTiming"), Timing, "executionTiming")
        reader.check_end()
    except MalformedError as error:
        raise StatusError(ErrorStatus.GENERAL_FAILURE, f"result packet: {error}") from None
    return status, shapes, timing


class _Reader(Generic[Datum]):
    """Takes the entries of a packet one by one. Raises MalformedError."""

    def __init__(self, packet: Sequence[Datum], kind: type[Datum]) -> None:
        self._packet = packet
        self._kind = kind
        self._place = 0

    def next(self, member: str) -> Any:
        """The value of the next entry, which must be of this kind."""
        if self._place >= len(self._packet):
            raise MalformedError(
                f"entry {self._place} must be {member}, but the packet has only {len(self._packet)} entries"
            )
        entry = instance(self._packet[self._place], self._kind, f"entry {self._place}")
        if entry.member != member:
            raise MalformedError(f"entry {self._place} must be {member}, got {entry.member}")
        self._place += 1
        return getattr(entry, member)

    def count(self, value: object) -> int:
        """A number of items of at least one entry each, which must still be in the packet."""
        # Otherwise a client could make the driver allocate for a count beyond the packet.
        return integer(value, 0, len(self._packet) - self._place, f"a number before entry {self._place}")

    def check_size(self, size: object) -> None:
        """Raise MalformedError if the packet does not have the size that it states."""
        if integer(size, 0, U32, "packetSize") != len(self._packet):
            raise MalformedError(f"packetSize must be {len(self._packet)}, got {size}")

    def check_end(self) -> None:
        """Raise MalformedError if entries follow."""
        if self._place != len(self._packet):
            raise MalformedError(f"the packet must end after {self._place} entries, got {len(self._packet)}")


def _operand(argument: RequestArgument) -> FmqRequestDatum.OperandInformation:
    return FmqRequestDatum.OperandInformation(argument.hasNoValue, argument.location, len(argument.dimensions))


def _argument(reader: _Reader[FmqRequestDatum], direction: str) -> RequestArgument:
    field = f"{direction}OperandInformation"
    operand = instance(reader.next(field), FmqRequestDatum.OperandInformation, field)
    place = instance(operand.location, DataLocation, f"{field}.location")
    location = DataLocation(
        integer(place.poolIndex, 0, U32, "poolIndex"),
        integer(place.offset, 0, U64, "offset"),
        integer(place.length, 0, U64, "length"),
    )
    dimensions = _dimensions(reader, operand.numberOfDimensions, f"{direction}OperandDimensionValue")
    return RequestArgument(boolean(operand.hasNoValue, "hasNoValue"), location, dimensions)


def _dimensions(reader: _Reader[Any], count: object, member: str) -> list[int]:
    return [integer(reader.next(member), 0, U32, member) for _ in range(reader.count(count))]
