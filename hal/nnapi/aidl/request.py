"""Convert execution arguments of the AIDL interface to HAL 1.3, and results back."""

from __future__ import annotations

from typing import Any

from ..errors import invalid_argument
from ..execution.outcome import Outcome
from ..memory import Memory
from ..types import ErrorStatus, MemoryPool, Request
from ..validation.fields import MalformedError, instance, instances, integer
from . import types as aidl_types
from .memory import AidlMemory, to_memory
from .types import OMITTED, ExecutionResult, ServiceSpecificException, Timing

INT64_MAX = (1 << 63) - 1


def request_to_1_3(request: Any) -> Request:
    """Convert a request to HAL 1.3, with duplicated descriptors. Raises StatusError (INVALID_ARGUMENT) if it is not
    one.

    ``validate_request`` checks the rules.
    """
    try:
        asked = instance(request, aidl_types.Request, "the request")
        pools = [_pool(pool) for _, pool in instances(asked.pools, aidl_types.RequestMemoryPool, "pools")]
    except MalformedError as error:
        raise invalid_argument(str(error)) from None
    return Request(asked.inputs, asked.outputs, pools)


def _pool(pool: aidl_types.RequestMemoryPool) -> MemoryPool:
    if (pool.pool is None) == (pool.token is None):
        raise MalformedError(f"a pool must be a memory or a token, got {pool!r}")
    memory: AidlMemory | Memory | None = pool.pool
    if memory is None:
        return MemoryPool(token=pool.token)
    return MemoryPool(hidlMemory=memory if isinstance(memory, Memory) else to_memory(memory))


def time_to_1_3(value: object, what: str) -> int | None:
    """A deadline or duration in nanoseconds; None for -1. Raises StatusError (INVALID_ARGUMENT) for other negative
    values."""
    try:
        nanoseconds = integer(value, OMITTED, INT64_MAX, what)
    except MalformedError as error:
        raise invalid_argument(str(error)) from None
    return None if nanoseconds == OMITTED else nanoseconds


def result_of(outcome: Outcome) -> ExecutionResult:
    """The result of an execution. Raises ServiceSpecificException for failures other than insufficient output sizes."""
    if outcome.status not in {ErrorStatus.NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE}:
        raise ServiceSpecificException(outcome.status, "the execution has failed")
    return ExecutionResult(outcome.status is ErrorStatus.NONE, outcome.outputShapes, Timing(*outcome.times_ns()))
