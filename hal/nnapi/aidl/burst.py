"""IBurst of the AIDL interface: consecutive executions that share resources.

The memory of a memory identifier token stays mapped until the client releases it, and the model's programs and weights
stay on the device as long as the burst lives. Executions are sequential.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from ..driver.prepared import PreparedModel
from ..errors import StatusError, invalid_argument
from ..memory.pools import Kept, PoolMappings
from ..types import ErrorStatus
from ..validation.fields import MalformedError, integer, items
from .border import raises_status
from .config import checked_config
from .request import request_to_1_3, result_of, time_to_1_3
from .types import OMITTED, ExecutionConfig, ExecutionResult, Interface

NO_IDENTITY = -1
"""The token of memory that is used only once."""
MAX_TOKEN = (1 << 63) - 1


class Burst(Interface):
    """IBurst. Its methods raise ServiceSpecificException and nothing else."""

    def __init__(self, prepared: PreparedModel) -> None:
        self._prepared = prepared
        self._kept: dict[int, Kept] = {}
        self._one = threading.Lock()
        prepared.pin()
        weakref.finalize(self, prepared.unpin).atexit = False

    @raises_status
    def executeSynchronously(
        self,
        request: Any,
        memoryIdentifierTokens: Sequence[int],
        measureTiming: bool,
        deadlineNs: int = OMITTED,
        loopTimeoutDurationNs: int = OMITTED,
    ) -> ExecutionResult:
        """Execute a request. ``memoryIdentifierTokens``: one for each of its pools, -1 for no identity.

        Times are nanoseconds of the steady clock, -1 if left out. A second execution at the same time is a
        GENERAL_FAILURE.
        """
        if not self._one.acquire(blocking=False):
            raise StatusError(ErrorStatus.GENERAL_FAILURE, "the burst is already executing")
        try:
            asked = request_to_1_3(request)
            mappings = PoolMappings(self._kept, _keys(memoryIdentifierTokens, len(asked.pools)))
            deadline = time_to_1_3(deadlineNs, "deadlineNs")
            loop_timeout = time_to_1_3(loopTimeoutDurationNs, "loopTimeoutDurationNs")
            outcome = self._prepared.run(asked, measureTiming, deadline, loop_timeout, mappings)
        finally:
            self._one.release()
        return result_of(outcome)

    @raises_status
    def executeSynchronouslyWithConfig(
        self, request: Any, memoryIdentifierTokens: Sequence[int], config: ExecutionConfig, deadlineNs: int = OMITTED
    ) -> ExecutionResult:
        """The same with a configuration. Vendor hints are checked; this driver follows none."""
        given = checked_config(config)
        return self.executeSynchronously(
            request, memoryIdentifierTokens, given.measureTiming, deadlineNs, given.loopTimeoutDurationNs
        )

    @raises_status
    def releaseMemoryResource(self, memoryIdentifierToken: int) -> None:
        """Release the memory of a token. Unknown tokens are ignored."""
        try:
            token = integer(memoryIdentifierToken, NO_IDENTITY, MAX_TOKEN, "memoryIdentifierToken")
        except MalformedError as error:
            raise invalid_argument(str(error)) from None
        self._kept.pop(token, None)


def _keys(tokens: object, pools: int) -> list[int | None]:
    """The key of each pool's mapping. Raises StatusError (INVALID_ARGUMENT) unless there is one token per pool."""
    try:
        plain = [
            integer(token, NO_IDENTITY, MAX_TOKEN, "memoryIdentifierTokens")
            for token in items(tokens, "memoryIdentifierTokens")
        ]
    except MalformedError as error:
        raise invalid_argument(str(error)) from None
    if len(plain) != pools:
        raise invalid_argument(f"there must be {pools} memoryIdentifierTokens, one for each pool, got {len(plain)}")
    return [None if token == NO_IDENTITY else token for token in plain]
