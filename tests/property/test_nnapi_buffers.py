"""Driver buffers under any sequence of uses: their state follows the interface, and memory accounting is exact."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hal.nnapi import memory
from hal.nnapi.buffers.buffer import Buffer
from hal.nnapi.buffers.tracker import BufferTracker, BufferUses
from hal.nnapi.errors import StatusError
from hal.nnapi.types import BufferDesc, BufferRole, DataLocation, ErrorStatus, Request, RequestArgument
from tests.support.nnapi.stand_ins import DeviceMemory, Prepared, model, operand

NONE, INVALID, FAILURE = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
SHAPES = st.sampled_from([(1, 2), (2, 2), (3, 2), (2, 3), (2,)])
"""The model's operands are [0, 2]: the last two do not fit."""
Shape = tuple[int, ...]


def _fits(shape: Shape) -> bool:
    return len(shape) == 2 and shape[1] == 2


def _status(act: Callable[[], object]) -> ErrorStatus:
    """Return the outcome of a call that raises its status."""
    try:
        act()
    except StatusError as error:
        return error.status
    return NONE


class Life(RuleBasedStateMachine):
    """One buffer at a time; ``contents`` is the expected content."""

    def __init__(self) -> None:
        super().__init__()
        self.executor = DeviceMemory()
        self.tracker = BufferTracker(self.executor)  # type: ignore[arg-type]
        self.prepared: Any = Prepared(model([operand([0, 2])], [operand([0, 2])]), self.tracker)
        self.buffer: Buffer | None = None
        self.contents: tuple[Shape, bytes] | None = None
        self.running: list[tuple[BufferUses, tuple[Shape, bytes]]] = []
        self.fill = 0

    def fresh(self, shape: Shape) -> bytes:
        """Return bytes that were not used before."""
        self.fill = self.fill % 255 + 1
        size = 4
        for extent in shape:
            size *= extent
        return bytes([self.fill]) * size

    @initialize()
    def allocate(self) -> None:
        roles = [BufferRole(0, 0)]
        status, self.buffer, _ = self.tracker.allocate(BufferDesc(), [self.prepared], roles, roles)
        assert status is NONE

    @rule(shape=SHAPES)
    def copy_from(self, shape: Shape) -> None:
        data = self.fresh(shape)
        assert self.buffer
        with memory.allocate_ashmem(len(data)) as pool:
            pool.map()[:] = data
            assert self.buffer.copyFrom(pool, shape) is (NONE if _fits(shape) else INVALID)
        self.contents = (shape, data) if _fits(shape) else None

    @rule(shape=SHAPES)
    def copy_to(self, shape: Shape) -> None:
        size = len(self.fresh(shape))
        assert self.buffer
        with memory.allocate_ashmem(size) as pool:
            status = self.buffer.copyTo(pool)
            if self.contents is None:
                assert status is FAILURE
            elif len(self.contents[1]) != size:
                assert status is INVALID
            else:
                assert status is NONE
                assert bytes(pool.map()) == self.contents[1]

    def uses(self, direction: str, dimensions: Shape = ()) -> BufferUses:
        assert self.buffer
        arguments = [RequestArgument(False, DataLocation(0), dimensions)]
        inputs, outputs = (arguments, []) if direction == "input" else ([], arguments)
        return self.tracker.uses(self.prepared, Request(inputs, outputs, [self.buffer.token]))

    @rule(shape=SHAPES, succeeds=st.booleans())
    def write(self, shape: Shape, succeeds: bool) -> None:
        """Execute with the buffer as output."""
        uses, data = self.uses("output"), self.fresh(shape)
        uses.start()
        self.contents = None
        write = uses.outputs[0]
        fits = _status(lambda: write.target(shape, len(data)))
        assert fits is (NONE if _fits(shape) else FAILURE)
        if fits is not NONE or not succeeds:
            uses.finish(None)
            return
        target: Any = write.target(shape, len(data))  # the same for repeated calls
        target.data[:] = data
        uses.finish([shape])
        self.contents = (shape, data)

    @rule(given=st.sampled_from([(), (0, 2), (1, 2), (2, 2)]))
    def begin_read(self, given: Shape) -> None:
        """Start an execution with the buffer as input, which takes time."""
        uses = self.uses("input", given)
        status = _status(uses.start)
        if self.contents is None:
            assert status is FAILURE
        elif given and given[0] not in (0, self.contents[0][0]):
            assert status is INVALID
        else:
            assert status is NONE
            self.running.append((uses, self.contents))
            return
        uses.finish(None)

    @precondition(lambda self: self.running)
    @rule()
    def end_read(self) -> None:
        self.running.pop(0)[0].finish([])

    @rule()
    def drop(self) -> None:
        """Release the buffer and create another one."""
        assert self.buffer
        in_use = any(self.buffer in uses._buffers.values() for uses, _ in self.running)
        token, self.buffer, self.contents = self.buffer.token, None, None
        assert _status(lambda: self.tracker.check_token(token)) is (NONE if in_use else INVALID)
        self.allocate()

    @invariant()
    def readers_keep_what_they_began_with(self) -> None:
        for uses, (shape, data) in self.running:
            assert uses.inputs[0].shape == shape
            read: Any = uses.inputs[0].buffer
            assert read.nbytes == len(data)
            if bytes(read.data) != data:  # a concurrent write of the same size: undefined
                assert any(read is buffer._memory for buffer in uses._buffers.values())

    def teardown(self) -> None:
        while self.running:
            self.end_read()
        self.buffer = None
        gc.collect(0)
        assert self.executor.used == 0


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
