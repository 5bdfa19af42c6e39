"""What a request says about its arguments: where they lie, and whether to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import invalid_argument
from ..memory import Memory
from ..memory.mapping import Mapping
from ..memory.pools import PoolMappings
from ..types import MeasureTiming, MemoryPool, RequestArgument


@dataclass(frozen=True, slots=True)
class Place:
    """Where an argument lies: bytes of a mapped pool, or a buffer of the driver (``raw`` is None)."""

    raw: Mapping | None
    omitted: bool = False


def checked_measure(measure: object) -> bool:
    """Whether to measure. Raises StatusError (INVALID_ARGUMENT) for what is no MeasureTiming."""
    if not isinstance(measure, int) or measure not in (MeasureTiming.NO, MeasureTiming.YES):
        raise invalid_argument(f"measure must be a MeasureTiming, 0 or 1, got {measure!r}")
    return bool(measure)


def place_of(
    argument: RequestArgument,
    pools: Sequence[MemoryPool | Memory | int],
    mappings: PoolMappings,
    *,
    written: bool = False,
) -> Place:
    """Where an argument lies. Raises StatusError for a pool that cannot be mapped, or not be written."""
    if argument.hasNoValue:
        return Place(None, omitted=True)
    index = argument.location.poolIndex
    pool = pools[index]
    memory = pool.hidlMemory if isinstance(pool, MemoryPool) else pool
    if not isinstance(memory, Memory):
        return Place(None)
    mapping = mappings.get(index, memory)
    if written and not mapping.flags.writeable:
        raise invalid_argument(f"an output lies in pool {index}, which is read-only")
    return Place(mapping.part(argument.location.offset, argument.location.length))
