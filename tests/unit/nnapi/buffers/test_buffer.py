"""Driver buffers: what allocate refuses, the effect of their state, and that dropping them frees everything."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hal.nnapi import memory
from hal.nnapi.buffers.buffer import Buffer
from hal.nnapi.buffers.tracker import BufferTracker, BufferUses
from hal.nnapi.errors import StatusError
from hal.nnapi.memory import Memory
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    ErrorStatus,
    ExtraParams,
    Model,
    Operand,
    OperandType,
    Request,
    RequestArgument,
    SymmPerChannelQuantParams,
)
from tests.support.nnapi.stand_ins import DeviceMemory, Prepared, model, operand
from tests.support.waits_and_leaks import until

NONE, INVALID, FAILURE = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
SHAPE = (1, 32, 32, 8)
NBYTES = 32 * 32 * 8 * 4
QUANT8 = OperandType.TENSOR_QUANT8_ASYMM
PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL


class Bench:
    """A device with its buffers."""

    def __init__(self) -> None:
        self.executor = DeviceMemory()
        self.tracker = BufferTracker(self.executor)

    def prepared(self, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> Prepared:
        return Prepared(model(inputs, outputs), self.tracker)

    def pair(self, *dimensions: int) -> Prepared:
        """Return a model with two inputs and two outputs of the same type."""
        return self.prepared([operand(dimensions) for _ in range(2)], [operand(dimensions) for _ in range(2)])

    def allocate(
        self,
        prepared: Prepared,
        inputs: Sequence[int] = (0,),
        outputs: Sequence[int] = (),
        dimensions: Sequence[int] = (),
    ) -> Buffer:
        status, buffer, token = self.tracker.allocate(
            BufferDesc(dimensions), [prepared], _roles(inputs), _roles(outputs)
        )
        assert status is NONE
        assert buffer is not None
        assert buffer.token == token > 0
        return buffer


def _roles(indexes: Sequence[int]) -> list[BufferRole]:
    return [BufferRole(0, index, 1.0) for index in indexes]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    until(lambda: len(bench.executor.live) == 0)


def _request(
    inputs: Sequence[Buffer | Memory], outputs: Sequence[Buffer | Memory], dimensions: Sequence[int] = ()
) -> Request:
    pools = [pool.token if isinstance(pool, Buffer) else pool for pool in (*inputs, *outputs)]
    arguments = [RequestArgument(False, DataLocation(index), dimensions) for index in range(len(pools))]
    return Request(arguments[: len(inputs)], arguments[len(inputs) :], pools)


def _refused(status: ErrorStatus, words: str, act: Any, *arguments: Any) -> None:
    with pytest.raises(StatusError, match=words) as caught:
        act(*arguments)
    assert caught.value.status is status


# allocate


def test_memory_is_taken_at_once_where_the_size_is_known(bench: Bench) -> None:
    buffer = bench.allocate(bench.pair(*SHAPE), [0], [0])
    assert bench.executor.used == NBYTES
    assert bench.tracker.find(buffer.token) is buffer
    token = buffer.token
    del buffer
    assert bench.executor.used == 0
    _refused(INVALID, f"no buffer with token {token}", bench.tracker.check_token, token)


def test_tokens_are_unique_among_the_living(bench: Bench) -> None:
    prepared = bench.pair(2, 2)
    buffers = [bench.allocate(prepared) for _ in range(50)]
    assert len({buffer.token for buffer in buffers}) == 50
    _refused(INVALID, "token 0", bench.tracker.check_token, 0)


@pytest.mark.parametrize(
    ("models", "inputs", "outputs"),
    [
        ([], [BufferRole(0, 0)], []),
        ([], [], []),
        ([0], [], []),
        ([None], [BufferRole(0, 0)], []),
        (["other"], [BufferRole(0, 0)], []),
        ([0, "other"], [BufferRole(0, 0)], []),
        ([0], [BufferRole(1, 0)], []),
        ([0], [BufferRole(-1, 0)], []),
        ([0], [], [BufferRole(1, 0)]),
        ([0], [BufferRole(0, 2)], []),
        ([0], [], [BufferRole(0, 2)]),
        ([0], [BufferRole(0, 0, 10.0)], []),
        ([0], [BufferRole(0, 0, 0.0)], []),
        ([0], [BufferRole(0, 0, -0.5)], []),
        ([0], [], [BufferRole(0, 0, float("nan"))]),
        ([0], [BufferRole(0, 0), BufferRole(0, 0, 0.5)], []),
        ([0], [], [BufferRole(0, 1), BufferRole(0, 1)]),
        ([0, 0], [BufferRole(0, 0), BufferRole(1, 0)], []),
        ([0, 0], [], [BufferRole(0, 0), BufferRole(1, 0)]),
        (None, [BufferRole(0, 0)], []),
        ([0], [None], []),
        ([0], 7, []),
        ([0], [BufferRole("a", 0)], []),  # type: ignore[arg-type]
        ([0], [BufferRole(0, 0, None)], []),  # type: ignore[arg-type]
    ],
)
def test_wrong_models_and_roles_are_refused(bench: Bench, models: Any, inputs: Any, outputs: Any) -> None:
    prepared, foreign = bench.pair(2, 3), Bench().pair(2, 3)
    if models is not None:
        models = [{0: prepared, "other": foreign}.get(each) for each in models]
    assert bench.tracker.allocate(BufferDesc(), models, inputs, outputs) == (INVALID, None, 0)


def test_the_same_role_of_two_models_is_two_roles(bench: Bench) -> None:
    first, second = bench.pair(2, 3), bench.pair(2, 3)
    roles = [BufferRole(0, 0), BufferRole(1, 0)]
    status, buffer, _ = bench.tracker.allocate(BufferDesc(), [first, second], roles, roles)
    assert status is NONE
    assert buffer is not None
    for prepared in (first, second):
        assert bench.tracker.uses(prepared, _request([buffer], [])).inputs.keys() == {0}


def _channels(*scales: float, dim: int = 0) -> ExtraParams:
    return ExtraParams(SymmPerChannelQuantParams(scales, dim))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (operand([2, 3]), operand([2, 3], OperandType.TENSOR_INT32)),
        (operand([2], QUANT8, 0.5, 3), operand([2], QUANT8, 0.25, 3)),
        (operand([2], QUANT8, 0.5, 3), operand([2], QUANT8, 0.5, 4)),
        (
            operand([2], PER_CHANNEL, extraParams=_channels(1, 2)),
            operand([2], PER_CHANNEL, extraParams=_channels(1, 3)),
        ),
        (operand([2, 3]), operand([2, 3, 1])),
        (operand([2, 3]), operand([2, 4])),
        (operand([0, 3]), operand([2, 4])),
    ],
)
@pytest.mark.parametrize("directions", ["in-in", "in-out", "out-out"])
def test_roles_must_be_alike(bench: Bench, first: Operand, second: Operand, directions: str) -> None:
    inputs = {"in-in": [first, second], "in-out": [first], "out-out": []}[directions]
    outputs = {"in-in": [], "in-out": [second], "out-out": [first, second]}[directions]
    prepared = bench.prepared(inputs, outputs)
    roles = _roles(range(len(inputs))), _roles(range(len(outputs)))
    assert bench.tracker.allocate(BufferDesc(), [prepared], *roles) == (INVALID, None, 0)


@pytest.mark.parametrize("dimensions", [[2], [2, 3, 1], [2, 4], [1, 3], [-1, 3], [1 << 33, 3], "ab", None, [2.0, 3]])
def test_the_description_must_agree(bench: Bench, dimensions: Any) -> None:
    prepared = bench.pair(2, 3)
    assert bench.tracker.allocate(BufferDesc(dimensions), [prepared], _roles([0]), []) == (
        INVALID,
        None,
        0,
    )
    assert bench.tracker.allocate(None, [prepared], _roles([0]), []) == (INVALID, None, 0)


def test_a_scalar_has_no_dimensions(bench: Bench) -> None:
    prepared = bench.prepared([operand([], OperandType.INT32)], [])
    assert bench.tracker.allocate(BufferDesc([1]), [prepared], _roles([0]), []) == (INVALID, None, 0)
    buffer = bench.allocate(prepared)
    assert bench.executor.used == 4
    _copy_in(buffer, np.int32(77).tobytes())
    assert _copy_out(buffer, 4) == np.int32(77).tobytes()


def test_dimensions_are_merged_from_all_that_is_said(bench: Bench) -> None:
    prepared = bench.prepared([operand([0, 3, 0]), operand([])], [operand([0, 0, 5])])
    buffer = bench.allocate(prepared, [0, 1], [0], [2, 0, 0])
    assert bench.executor.used == 2 * 3 * 5 * 4
    del buffer
    open_ = bench.allocate(prepared, [0, 1], [])
    assert bench.executor.used == 0  # allocated once its size is known
    _copy_in(open_, bytes(3 * 4), [1, 3, 1])
    assert bench.executor.used == 12


def test_what_does_not_fit_is_a_general_failure(bench: Bench) -> None:
    bench.executor.capacity = NBYTES - 1
    prepared = bench.pair(*SHAPE)
    assert bench.tracker.allocate(BufferDesc(), [prepared], _roles([0]), []) == (FAILURE, None, 0)
    oem = bench.prepared([operand([2], OperandType.TENSOR_OEM_BYTE)], [])
    assert bench.tracker.allocate(BufferDesc(), [oem], _roles([0]), []) == (FAILURE, None, 0)


# copyFrom, copyTo


def _copy_in(buffer: Buffer, data: bytes, dimensions: Sequence[int] = (), expected: ErrorStatus = NONE) -> None:
    with memory.allocate_ashmem(len(data)) as pool:
        pool.map()[:] = data
        assert buffer.copyFrom(pool, dimensions) is expected


def _copy_out(buffer: Buffer, nbytes: int, expected: ErrorStatus = NONE) -> bytes:
    with memory.allocate_ashmem(nbytes) as pool:
        assert buffer.copyTo(pool) is expected
        return bytes(pool.map())


def test_what_goes_in_comes_out(bench: Bench) -> None:
    buffer = bench.allocate(bench.pair(4, 2), [0], [0])
    _copy_out(buffer, 32, FAILURE)  # nothing is in it
    data = bytes(range(32))
    _copy_in(buffer, data)
    assert _copy_out(buffer, 32) == data
    _copy_in(buffer, data[::-1], [4, 2])
    assert _copy_out(buffer, 32) == data[::-1]


@pytest.mark.parametrize("declared", [SHAPE, (0, 32, 32, 8)])
@pytest.mark.parametrize("size", [NBYTES // 2, NBYTES * 2])
def test_memory_of_another_size_is_refused(bench: Bench, declared: Sequence[int], size: int) -> None:
    buffer = bench.allocate(bench.pair(*declared))
    _copy_in(buffer, bytes(size), SHAPE, INVALID)
    _copy_out(buffer, NBYTES, FAILURE)
    _copy_in(buffer, bytes(NBYTES), SHAPE)
    _copy_out(buffer, size, INVALID)
    assert len(_copy_out(buffer, NBYTES)) == NBYTES


@pytest.mark.parametrize(
    ("declared", "dimensions", "status"),
    [
        (SHAPE, [], NONE),
        (SHAPE, SHAPE, NONE),
        (SHAPE, [1, 32, 32], INVALID),
        (SHAPE, [2, 32, 32, 8], INVALID),
        (SHAPE, [0, 32, 32, 8], INVALID),
        (SHAPE, None, INVALID),
        (SHAPE, [1.0, 32, 32, 8], INVALID),
        ([0, 32, 32, 8], [], INVALID),
        ([0, 32, 32, 8], SHAPE, NONE),
        ([0, 32, 32, 8], [1, 32, 32, 9], INVALID),
        ([], [], INVALID),
        ([], [8192], NONE),
        ([], [8192, 0], INVALID),
    ],
)
def test_dimensions_of_a_copy(bench: Bench, declared: Sequence[int], dimensions: Any, status: ErrorStatus) -> None:
    _copy_in(bench.allocate(bench.pair(*declared)), bytes(NBYTES), dimensions, status)


def test_a_copy_that_fails_takes_the_contents_away(bench: Bench) -> None:
    buffer = bench.allocate(bench.pair(4, 2))
    for wrong in ([4, 3], [4]):
        _copy_in(buffer, bytes(32))
        _copy_out(buffer, 32)
        _copy_in(buffer, bytes(32), wrong, INVALID)
        _copy_out(buffer, 32, FAILURE)


def test_memory_that_cannot_be_used(bench: Bench, tmp_path: Any) -> None:
    buffer = bench.allocate(bench.pair(4, 2))
    _copy_in(buffer, bytes(32))
    with memory.hardware_buffer(4, 2) as picture:
        assert buffer.copyTo(picture) is FAILURE
        assert bench.allocate(bench.pair(4, 2)).copyFrom(picture, ()) is FAILURE
    closed = memory.allocate_ashmem(32)
    closed.close()
    for wrong in (closed, None, 7, Memory("ashmem", [-1], 32)):
        assert buffer.copyTo(wrong) is INVALID  # type: ignore[arg-type]
    path = tmp_path / "read-only"
    path.write_bytes(bytes(32))
    with path.open("rb") as file, memory.from_fd(32, 1, file.fileno()) as pool:
        assert buffer.copyTo(pool) is INVALID
        assert buffer.copyFrom(pool, ()) is NONE
    assert _copy_out(buffer, 32) == bytes(32)
    assert buffer.copyFrom(None, ()) is INVALID  # type: ignore[arg-type]
    _copy_out(buffer, 32, FAILURE)


def test_without_a_device_there_are_no_copies(bench: Bench) -> None:
    buffer = bench.allocate(bench.pair(4, 2))
    _copy_in(buffer, bytes(32))
    bench.executor.status = "OFFLINE"
    _copy_out(buffer, 32, ErrorStatus.DEVICE_UNAVAILABLE)
    _copy_in(buffer, bytes(32), (), ErrorStatus.DEVICE_UNAVAILABLE)


@pytest.mark.parametrize("allocate", [memory.allocate_ashmem, memory.allocate_blob])
def test_every_memory_that_can_be_mapped_will_do(bench: Bench, allocate: Any) -> None:
    buffer = bench.allocate(bench.pair(4, 2))
    with allocate(32) as pool:
        pool.map()[:] = bytes(range(32))
        assert buffer.copyFrom(pool) is NONE
    with allocate(32) as pool:
        assert buffer.copyTo(pool) is NONE
        assert bytes(pool.map()) == bytes(range(32))


def test_whatever_is_not_zero_is_true(bench: Bench) -> None:
    buffer = bench.allocate(bench.prepared([operand([4], OperandType.TENSOR_BOOL8)], []))
    _copy_in(buffer, b"\0\1\2\xff")
    assert _copy_out(buffer, 4) == b"\0\1\1\1"


def test_another_size_takes_another_piece_of_memory(bench: Bench) -> None:
    buffer = bench.allocate(bench.pair(0, 2))
    for rows in (3, 7, 7, 1):
        data = np.arange(rows * 2, dtype=np.float32).tobytes()
        _copy_in(buffer, data, [rows, 2])
        assert bench.executor.used == rows * 8
        assert _copy_out(buffer, rows * 8) == data
    bench.executor.capacity = 8
    _copy_in(buffer, bytes(16), [2, 2], ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert bench.executor.used == 0
    _copy_out(buffer, 8, FAILURE)


# Executions


def _execute(uses: BufferUses, shape: Sequence[int], data: bytes | None) -> None:
    """Write every output; fail if there is no data."""
    uses.start()
    for use in uses.outputs.values():
        target: Any = use.target(tuple(shape), len(data or b""))
        target.data[:] = data or b""
    uses.finish(None if data is None else [tuple(shape)] * 2)


def test_the_life_of_a_buffer(bench: Bench) -> None:
    prepared = bench.pair(2)
    buffer, other = bench.allocate(prepared, [0], [0]), bench.allocate(prepared, [0], [0])
    uses = bench.tracker.uses(prepared, _request([buffer], [other]))
    _refused(FAILURE, "input 0: buffer .* is not initialised", uses.start)
    uses.finish(None)
    _execute(bench.tracker.uses(prepared, _request([], [buffer])), [2], b"abcdefgh")
    assert _copy_out(buffer, 8) == b"abcdefgh"
    uses = bench.tracker.uses(prepared, _request([buffer], [other]))
    uses.start()
    assert uses.inputs[0].shape == (2,)
    assert bytes(uses.inputs[0].buffer.data) == b"abcdefgh"  # type: ignore[attr-defined]
    uses.finish(None)
    _copy_out(other, 8, FAILURE)
    assert _copy_out(buffer, 8) == b"abcdefgh"
    bench.tracker.uses(prepared, _request([], [buffer])).finish(None)  # failed before it began
    _copy_out(buffer, 8, FAILURE)


def test_roles_are_checked_at_each_use(bench: Bench) -> None:
    prepared, stranger = bench.pair(2), bench.pair(2)
    reading, writing = bench.allocate(prepared, [0], []), bench.allocate(prepared, [], [0])
    pool = memory.allocate_ashmem(8)
    for owner, request in [
        (prepared, _request([pool, reading], [])),
        (prepared, _request([], [reading])),
        (prepared, _request([writing], [])),
        (prepared, _request([], [pool, writing])),
        (stranger, _request([reading], [])),
        (stranger, _request([], [writing])),
    ]:
        _refused(INVALID, "was not allocated for", bench.tracker.uses, owner, request)
    for token in (0, 100):
        request = Request([RequestArgument(False, DataLocation(0))], [], [token])
        _refused(INVALID, f"token {token}", bench.tracker.uses, prepared, request)
    pool.close()


def test_one_buffer_in_several_places(bench: Bench) -> None:
    prepared = bench.pair(2)
    buffer = bench.allocate(prepared, [0, 1], [0, 1])
    pool = memory.allocate_ashmem(8)
    _refused(INVALID, "another argument uses", bench.tracker.uses, prepared, _request([buffer], [buffer]))
    _refused(INVALID, "another argument uses", bench.tracker.uses, prepared, _request([pool, pool], [buffer, buffer]))
    shared = Request(*[[RequestArgument(False, DataLocation(0))]] * 2, [buffer.token])
    _refused(INVALID, "another argument uses", bench.tracker.uses, prepared, shared)
    _copy_in(buffer, bytes(8))
    uses = bench.tracker.uses(prepared, _request([buffer, buffer], [pool]))
    uses.start()
    assert uses.inputs[0].buffer is uses.inputs[1].buffer
    assert uses.outputs == {}
    uses.finish([(2,)])
    pool.close()


def test_shared_memory_and_omitted_arguments_are_no_uses(bench: Bench) -> None:
    prepared = bench.pair(2)
    buffer = bench.allocate(prepared, [0], [0])
    omitted = Request([RequestArgument(True)], [RequestArgument(True)], [buffer.token])
    uses = bench.tracker.uses(prepared, omitted)
    assert (uses.inputs, uses.outputs) == ({}, {})


def test_open_dimensions_are_those_of_the_contents(bench: Bench) -> None:
    prepared = bench.pair(0, 2)
    buffer = bench.allocate(prepared, [0], [0])
    data = bytes(range(24))
    _execute(bench.tracker.uses(prepared, _request([], [buffer])), [3, 2], data)
    assert _copy_out(buffer, 24) == data
    for dimensions in ((3, 2), (0, 2), ()):
        uses = bench.tracker.uses(prepared, _request([buffer], [], dimensions))
        uses.start()
        assert uses.inputs[0].shape == (3, 2)
        uses.finish([])
    _refused(INVALID, "must agree", bench.tracker.uses(prepared, _request([buffer], [], (4, 2))).start)
    _refused(INVALID, "must agree", bench.tracker.uses, prepared, _request([buffer], [], (3, 4)))
    _execute(bench.tracker.uses(prepared, _request([], [buffer])), [1, 2], data[:8])
    assert _copy_out(buffer, 8) == data[:8]


@pytest.mark.parametrize(("declared", "given"), [((3, 0), ()), ((0, 0), (3, 0)), ((), (3, 0))])
def test_a_result_of_another_shape_does_not_fit(bench: Bench, declared: Sequence[int], given: Sequence[int]) -> None:
    prepared = bench.prepared([], [operand([])])
    buffer = bench.allocate(prepared, [], [0], declared)
    for shape in ((4, 2), (3,), (3, 2, 1)):
        uses = bench.tracker.uses(prepared, _request([], [buffer], given))
        uses.start()
        _refused(FAILURE, "does not fit", uses.outputs[0].target, shape, 4)
        uses.finish(None)
    _execute(bench.tracker.uses(prepared, _request([], [buffer], given)), [3, 2], bytes(24))
    _copy_out(buffer, 24)


def test_an_empty_result(bench: Bench) -> None:
    prepared = bench.pair(0, 2)
    buffer = bench.allocate(prepared, [0], [0])
    uses = bench.tracker.uses(prepared, _request([], [buffer]))
    uses.start()
    uses.finish([(0, 2)])
    uses = bench.tracker.uses(prepared, _request([buffer], []))
    uses.start()
    assert uses.inputs[0].shape == (0, 2)
    assert uses.inputs[0].buffer.nbytes == 0
    uses.finish([])


def test_a_result_that_was_never_written_is_no_success(bench: Bench) -> None:
    prepared = bench.pair(2)
    buffer = bench.allocate(prepared, [], [0])
    uses = bench.tracker.uses(prepared, _request([], [buffer]))
    uses.start()
    with pytest.raises(RuntimeError, match="has nowhere been stored"):
        uses.finish([(2,)])
    _copy_out(buffer, 8, FAILURE)


def test_memory_in_use_outlives_its_buffer(bench: Bench) -> None:
    prepared = bench.pair(0, 2)
    buffer = bench.allocate(prepared, [0], [0])
    _copy_in(buffer, bytes(8), [1, 2])
    uses = bench.tracker.uses(prepared, _request([buffer], []))
    uses.start()
    _copy_in(buffer, bytes(16), [2, 2])  # during the execution, which continues with the old content
    assert bench.executor.used == 24
    assert bytes(uses.inputs[0].buffer.data) == bytes(8)  # type: ignore[attr-defined]
    del buffer
    uses.finish([])
    del uses
    assert bench.executor.used == 0


def test_two_models_that_take_turns_do_not_get_mixed_up(bench: Bench) -> None:
    roles = [BufferRole(0, 0)]
    buffer = bench.tracker.allocate(BufferDesc(), [bench.pair(2)], roles, [])[1]
    gc.collect()  # the model is freed; another one may get its address
    for _ in range(20):
        assert buffer is not None
        _refused(INVALID, "was not allocated", bench.tracker.uses, bench.pair(2), _request([buffer], []))


def test_misuse_by_many_threads_ends_and_leaves_a_state(bench: Bench) -> None:
    prepared = bench.pair(0, 2)
    buffer = bench.allocate(prepared, [0], [0])
    allowed = {NONE, INVALID, FAILURE}
    seen: list[object] = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        with memory.allocate_ashmem(8) as small, memory.allocate_ashmem(16) as large:
            for _ in range(60):
                match generator.integers(5):
                    case 0:
                        seen.append(buffer.copyFrom(small, [1, 2]))
                    case 1:
                        seen.append(buffer.copyFrom(large, [2, 2]))
                    case 2:
                        seen.append(buffer.copyTo(small))
                    case 3:
                        rows = int(generator.integers(1, 3))
                        uses = bench.tracker.uses(prepared, _request([], [buffer]))
                        uses.start()
                        uses.outputs[0].target((rows, 2), rows * 8)
                        uses.finish([(rows, 2)] if rows == 1 else None)
                    case _:
                        uses = bench.tracker.uses(prepared, _request([buffer], []))
                        try:
                            uses.start()
                            seen.append(uses.inputs[0].buffer.nbytes in (8, 16) and NONE)
                        except StatusError as error:
                            seen.append(error.status)
                        uses.finish([])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert set(seen) <= allowed
    _copy_in(buffer, b"12345678", [1, 2])
    assert _copy_out(buffer, 8) == b"12345678"
    assert bench.executor.used == 8


def test_models_are_told_apart_by_what_they_say_not_by_prefix(bench: Bench) -> None:
    """Two models may map the same extension to different prefixes."""
    from hal.nnapi.types import ExtensionNameAndPrefix

    def made(prefix: int) -> Model:
        made = model([operand([2], prefix << 16 | 1, extraParams=ExtraParams(extension=bytes(16)))], [])
        made.extensionNameToPrefix = [ExtensionNameAndPrefix("com.example.fibonacci", prefix)]
        return made

    first, second, third = (
        Prepared(made(1), bench.tracker),
        Prepared(made(9), bench.tracker),
        Prepared(made(9), bench.tracker),
    )
    roles = [BufferRole(0, 0), BufferRole(1, 0)]
    status, buffer, _ = bench.tracker.allocate(BufferDesc(), [first, second], roles, [])
    assert (status, bench.executor.used) == (NONE, 16)  # two elements of 8 bytes
    third.model.main.operands[0].extraParams = ExtraParams(extension=b"\1" + bytes(15))
    assert bench.tracker.allocate(BufferDesc(), [first, third], roles, [])[0] is INVALID
    del buffer


def test_while_it_is_written_there_are_no_contents(bench: Bench) -> None:
    prepared = bench.pair(2)
    buffer = bench.allocate(prepared, [0], [0])
    _copy_in(buffer, bytes(8))
    reading, writing = (bench.tracker.uses(prepared, _request(*sides)) for sides in (([buffer], []), ([], [buffer])))
    writing.start()
    _copy_out(buffer, 8, FAILURE)
    _refused(FAILURE, "not initialised", reading.start)
    writing.outputs[0].target((2,), 8)
    writing.finish([(2,)])
    assert len(_copy_out(buffer, 8)) == 8
    del reading, writing
