"""The burst of HAL 1.2: sequential executions through message queues.

A separate thread serves the request channel. Pools are identified by slots. The memory of a slot is requested from the
client on first use, and stays mapped until the client frees the slot. If it cannot be mapped any more, it is requested
again the next time. Programs and weights stay on the device.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from ..border import older_status, status_of
from ..errors import StatusError, invalid_argument
from ..fmq import FmqRequestDatum, FmqResultDatum, MessageQueue
from ..memory import Memory
from ..memory.pools import Kept, PoolMappings
from ..packets import MAX_SLOT, deserialize_request, serialize_result
from ..types import ErrorStatus, MemoryPool, OutputShape, Request, Timing
from ..validation.fields import MalformedError, instance, integer, items
from .execution import Executable

_log = logging.getLogger("hal.nnapi")

Requests = MessageQueue[FmqRequestDatum]
Results = MessageQueue[FmqResultDatum]


def configure(
    model: Executable, callback: Any, requestChannel: object, resultChannel: object
) -> tuple[ErrorStatus, BurstContext]:
    """Start a burst on a prepared model. Raises StatusError (INVALID_ARGUMENT) for a callback without ``getMemories``
    and for channels that are not usable MessageQueues."""
    if not callable(getattr(callback, "getMemories", None)):
        raise invalid_argument(f"the callback must have a method getMemories, got {callback!r}")
    for name, channel in (("request", requestChannel), ("result", resultChannel)):
        if not isinstance(channel, MessageQueue) or not channel.isValid():
            raise invalid_argument(f"the {name} channel must be an open MessageQueue with room, got {channel!r}")
    assert isinstance(requestChannel, MessageQueue)
    assert isinstance(resultChannel, MessageQueue)
    context = BurstContext(model, callback, requestChannel, resultChannel)
    model.engine.bursts.add(context)
    return ErrorStatus.NONE, context


class BurstContext:
    """IBurstContext: the burst is served while the client holds it.

    The thread holds it only during an execution, so that one client object may be both callback and holder.
    """

    def __init__(self, model: Executable, callback: Any, requests: Requests, results: Results) -> None:
        self._model = model
        self._slots = _Slots(callback)
        self._requests = requests
        self._results = results
        self._stop = _Stop(requests, results)
        self._thread = threading.Thread(
            target=_serve, args=(weakref.ref(self), model, requests, self._stop), name="nnapi-burst", daemon=True
        )
        self._end = weakref.finalize(self, self._stop.stop)
        self._end.atexit = False  # the thread is a daemon: at process exit there is nobody left to wake
        model.pin()
        try:
            self._thread.start()
        except RuntimeError:  # no thread could be started, which would clean up at its end
            model.unpin()
            raise

    def freeMemory(self, slot: int) -> None:
        """The client no longer needs this memory. Slots that are unknown, free or invalid are ignored."""
        try:
            number = integer(slot, 0, MAX_SLOT, "slot")
        except Exception as error:  # noqa: BLE001 - objects of the client are looked at here, which may do anything
            status_of(error, "freeMemory")
            return
        self._slots.free(number)

    def close(self) -> None:
        """End the burst, wait for active executions, and release all memory."""
        self._end()
        if threading.current_thread() is not self._thread:  # this thread may drop the last reference to the burst
            self._thread.join()
        self._slots.clear()

    def abandon(self) -> None:
        """End the burst of a removed device, including waits of the client for space or results."""
        self.close()
        self._requests.close()
        self._results.close()

    def _serve(self, packet: Sequence[FmqRequestDatum]) -> None:
        result = self._execute(packet)
        if len(result) > self._results.getQuantumCount():
            _log.info("burst: a result of %d entries does not fit into the result channel", len(result))
            result = _failure(ErrorStatus.GENERAL_FAILURE)
        if not self._results.writeBlocking(result, cancelled=self._stop.is_set):
            _log.info("burst: the client does not take the result")

    def _execute(self, packet: Sequence[FmqRequestDatum]) -> list[FmqResultDatum]:
        slots: Sequence[int] = ()
        try:
            asked = deserialize_request(packet)
            slots = asked.slots
            # Memory that is freed while in use stays mapped for this packet, and is unmapped in `tidy`.
            pools = [MemoryPool(hidlMemory=memory) for memory in self._slots.find(asked.slots)]
            mappings = PoolMappings(self._slots.kept, asked.slots)
            request = Request(asked.inputs, asked.outputs, pools)
            outcome = self._model.run(request, asked.measure, None, None, mappings)
            self._slots.tidy()
            if outcome.status not in (ErrorStatus.NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE):
                self._slots.drop_unusable(slots)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the client gets a status and goes on
            self._slots.drop_unusable(slots)
            return _failure(status_of(error, "burst"))
        return serialize_result(older_status(outcome.status), outcome.outputShapes, outcome.timing())


class _Stop:
    """A flag that ends a burst's thread wherever it waits."""

    def __init__(self, requests: Requests, results: Results) -> None:
        self._channels = (requests, results)
        self._said = False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._said

    def stop(self) -> None:
        """Set it."""
        self._said = True
        for channel in self._channels:
            channel.wake()


def _serve(context: weakref.ref[BurstContext], model: Executable, requests: Requests, stop: _Stop) -> None:
    """The thread of a burst: one result per packet."""
    try:
        while (packet := requests.readPacket(cancelled=stop.is_set)) is not None:
            burst = context()
            if burst is None:
                return
            burst._serve(packet)
            # Otherwise this thread would keep the burst alive while it waits for the next packet.
            del burst
    finally:
        model.unpin()


class _Slots:
    """The memory of a burst by slot."""

    def __init__(self, callback: Any) -> None:
        self.kept: dict[int, Kept] = {}
        self._callback = callback
        self._memories: dict[int, Memory] = {}

    def find(self, slots: Sequence[int]) -> list[Memory]:
        """The memory in each slot. Unknown slots are requested from the client.

        Raises StatusError: INVALID_ARGUMENT if the client has none, and like ``Memory.map`` for memory that cannot be
        mapped.
        """
        unknown = list(dict.fromkeys(slot for slot in slots if slot not in self._memories))
        # Referenced before the client is asked for others, because it may free slots meanwhile from another thread.
        found = {slot: self._memories[slot] for slot in slots if slot in self._memories}
        if unknown:
            fetched = dict(zip(unknown, self._fetch(unknown), strict=True))
            self._memories.update(fetched)
            found.update(fetched)
            for memory in fetched.values():
                memory.map()
        return [found[slot] for slot in slots]

    def drop_unusable(self, slots: Sequence[int]) -> None:
        """Forget slots whose memory can no longer be mapped, so that the client is asked again."""
        for slot in slots:
            memory = self._memories.get(slot)
            if memory is not None:
                try:
                    memory.map()
                except StatusError:
                    self.free(slot)

    def _fetch(self, unknown: list[int]) -> list[Memory]:
        status, memories = self._callback.getMemories(list(unknown))
        if status != ErrorStatus.NONE:
            raise invalid_argument(f"the client has no memory for slots {unknown}: status {status!r}")
        try:
            given = [
                instance(memory, Memory, f"the memory of slot {slot}")
                for slot, memory in zip(unknown, items(memories, "memories"), strict=True)
            ]
        except (MalformedError, ValueError) as error:
            raise invalid_argument(f"getMemories must return one memory for each of slots {unknown}: {error}") from None
        # With duplicate descriptors, because the client may close its own after answering.
        return [memory.dup() for memory in given]

    def free(self, slot: int) -> None:
        """Forget a slot."""
        self._memories.pop(slot, None)
        self.kept.pop(slot, None)

    def clear(self) -> None:
        """Forget all slots."""
        self._memories.clear()
        self.kept.clear()

    def tidy(self) -> None:
        """Unmap memory that was freed while in use."""
        for slot in [slot for slot in list(self.kept) if slot not in self._memories]:
            self.kept.pop(slot, None)


def _failure(status: ErrorStatus) -> list[FmqResultDatum]:
    shapes: list[OutputShape] = []
    return serialize_result(older_status(status), shapes, Timing())
