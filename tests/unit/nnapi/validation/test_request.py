"""Rules of a request, broken one at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest

from hal.nnapi import memory
from hal.nnapi.errors import InvalidRequestError, StatusError
from hal.nnapi.types import (
    DataLocation,
    ErrorStatus,
    ExtensionNameAndPrefix,
    MemoryPool,
    Model,
    Operation,
    Request,
    RequestArgument,
)
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op
from hal.nnapi.validation import validate_model, validate_request
from tests.support.nnapi.valid_models import chain, operand, subgraph

POOL_BYTES = 256
TOKEN = 5


@pytest.fixture
def pool() -> Iterator[memory.Memory]:
    with memory.allocate_ashmem(POOL_BYTES) as found:
        yield found


def argument(index: int = 0, offset: int = 0, length: int = 24, dims: tuple[int, ...] = ()) -> RequestArgument:
    return RequestArgument(False, DataLocation(index, offset, length), dims)


def request(pool: memory.Memory) -> Request:
    """Return a request with x, y and the result of ``chain``, 24 bytes each, one after the other."""
    return Request([argument(), argument(offset=24)], [argument(offset=48)], [pool])


def loose(dims: list[int]) -> Model:
    """Return ``chain`` with these dimensions of its tensors."""
    model = chain()
    for number in (0, 1, 3, 4):
        model.main.operands[number].dimensions = dims
    return validate_model(model)


def refused(wanted: Request, model: Model, where: str, message: str, *, fenced: bool = False) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        validate_request(wanted, model, fenced=fenced)
    assert caught.value.where == where, caught.value
    assert message in caught.value.message, caught.value


def test_a_valid_request(pool: memory.Memory) -> None:
    wanted = request(pool)
    before = copy.copy(wanted.inputs[0])
    found = validate_request(wanted, validate_model(chain()), fenced=True)
    assert found.inputs == ((2, 3), (2, 3))
    assert found.outputs == ((2, 3),)
    assert wanted.inputs[0] == before
    wanted.inputs[0].location.offset = 99
    assert found.request.inputs[0].location.offset == 0
    assert found.request.pools == [MemoryPool(hidlMemory=pool)]


@pytest.mark.parametrize("which", ["inputs", "outputs"])
def test_counts(pool: memory.Memory, which: str) -> None:
    model = validate_model(chain())
    for change in (lambda values: values[:-1], lambda values: [*values, values[0]]):
        wanted = request(pool)
        count = len(getattr(wanted, which))
        setattr(wanted, which, change(getattr(wanted, which)))
        refused(wanted, model, "request", f"the model has {count} {which}, got {len(getattr(wanted, which))}")


LOCATIONS: list[tuple[RequestArgument, str]] = [
    (argument(index=1), "location.poolIndex must be below 1, the number of pools, got 1"),
    (argument(offset=POOL_BYTES - 23), "location must lie within its pool of 256 bytes"),
    (argument(offset=(1 << 64) - 1), "location must lie within its pool of 256 bytes"),
    (RequestArgument(False, DataLocation(0, 0, 24, POOL_BYTES - 23)), "location must lie within its pool of 256 bytes"),
    (argument(length=0), "location.length must be > 0"),
    (argument(length=23), "location.length must be 24, the size of this TENSOR_FLOAT32, got 23"),
    (argument(length=28), "location.length must be 24"),
    (argument(dims=(3, 2)), "dimensions must agree with the model's [2, 3], got [3, 2]"),
    (argument(dims=(2, 3, 1)), "dimensions must agree with the model's [2, 3], got [2, 3, 1]"),
    (argument(dims=(0, 3)), "dimensions must agree with the model's [2, 3], got [0, 3]"),
    (argument(dims=(6,)), "dimensions must agree with the model's [2, 3], got [6]"),
    (RequestArgument(True, DataLocation(0, 0, 24)), "an omitted argument must have no dimensions"),
    (RequestArgument(True, DataLocation(), (2, 3)), "must have no dimensions and only 0 in its location"),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "message"), LOCATIONS)
def test_arguments(pool: memory.Memory, broken: RequestArgument, message: str) -> None:
    model = validate_model(chain())
    wanted = request(pool)
    refused(Request([wanted.inputs[0], broken], wanted.outputs, [pool]), model, "input 1", message)
    refused(Request(wanted.inputs, [broken], [pool]), model, "output 0", message)


def test_arguments_without_a_value(pool: memory.Memory) -> None:
    wanted = request(pool)
    wanted.inputs = [RequestArgument(hasNoValue=True), wanted.inputs[1]]
    wanted.outputs = [RequestArgument(hasNoValue=True)]
    found = validate_request(wanted, validate_model(chain()), fenced=True)
    assert found.inputs == (None, (2, 3))
    assert found.outputs == (None,)


@pytest.mark.parametrize(
    ("declared", "given", "merged"),
    [
        ([0, 3], (2, 3), (2, 3)),
        ([0, 0], (2, 3), (2, 3)),
        ([], (2, 3), (2, 3)),
    ],
)
def test_dimensions_of_model_and_request_are_merged(
    pool: memory.Memory, declared: list[int], given: tuple[int, ...], merged: tuple[int, ...]
) -> None:
    model, wanted = loose(declared), request(pool)
    for each in (*wanted.inputs, *wanted.outputs):
        each.dimensions = given
    found = validate_request(wanted, model, fenced=True)
    assert found.inputs == (merged, merged)
    assert found.outputs == (merged,)


@pytest.mark.parametrize(("declared", "given"), [([0, 3], (2, 0)), ([2, 3], (0, 3)), ([0, 3], (2, 4)), ([0, 3], (2,))])
def test_what_the_model_says_stays(pool: memory.Memory, declared: list[int], given: tuple[int, ...]) -> None:
    """A request that gives dimensions must repeat the known ones."""
    model, wanted = loose(declared), request(pool)
    for each in (*wanted.inputs, *wanted.outputs):
        each.dimensions = (2, 3)
    wanted.outputs[0].dimensions = given
    refused(wanted, model, "output 0", "must agree with the model's")
    wanted.inputs[0].dimensions = given
    refused(wanted, model, "input 0", "must agree with the model's")


@pytest.mark.parametrize(("declared", "given"), [([0, 3], ()), ([0, 3], (0, 3)), ([], ()), ([], (2, 0))])
def test_what_nobody_knows(pool: memory.Memory, declared: list[int], given: tuple[int, ...]) -> None:
    """Dimensions of inputs must be known; those of outputs only if they are not reported afterwards."""
    model, wanted = loose(declared), request(pool)
    for each in wanted.inputs:
        each.dimensions = (2, 3)
    wanted.outputs[0].dimensions = given
    wanted.outputs[0].location.length = 5  # whatever the client has to spare
    assert validate_request(wanted, model).outputs == (given or tuple(declared) or None,)
    refused(wanted, model, "output 0", "every dimension must be known", fenced=True)
    wanted.outputs[0].dimensions = (2, 3)
    wanted.outputs[0].location.length = 24
    wanted.inputs[0].dimensions = given
    refused(wanted, model, "input 0", "every dimension must be known")


def test_scalars(pool: memory.Memory) -> None:
    operands = [
        operand(T.TENSOR_FLOAT32, [2, 3], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_FLOAT32, [2, 3], Life.SUBGRAPH_INPUT),
        operand(T.INT32, [], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_FLOAT32, [2, 3], Life.SUBGRAPH_OUTPUT),
    ]
    model = validate_model(Model(subgraph(operands, [Operation(Op.ADD, [0, 1, 2], [3])])))
    wanted = request(pool)
    wanted.inputs = [*wanted.inputs, argument(offset=72, length=4)]
    assert validate_request(wanted, model).inputs == ((2, 3), (2, 3), ())
    wanted.inputs[2].location.length = 8
    refused(wanted, model, "input 2", "location.length must be 4")
    wanted.inputs[2].dimensions = (2,)
    refused(wanted, model, "input 2", "a scalar must have no dimensions")


def test_operands_of_an_extension(pool: memory.Memory) -> None:
    operands = [
        operand(3 << 16, [], Life.SUBGRAPH_INPUT),  # type: ignore[arg-type]
        operand(T.TENSOR_FLOAT32, [], Life.SUBGRAPH_OUTPUT),
    ]
    main = subgraph(operands, [Operation(3 << 16, [0], [1])])
    model = validate_model(Model(main, extensionNameToPrefix=[ExtensionNameAndPrefix("com.example.fibonacci", 3)]))
    wanted = Request([argument(length=8)], [argument(offset=8, length=40)], [pool])
    found = validate_request(wanted, model)
    assert (found.inputs, found.outputs) == (((),), (None,))
    wanted.inputs[0].location.length = 4
    refused(wanted, model, "input 0", "location.length must be 8")


# Pools


def test_pools(pool: memory.Memory) -> None:
    model, wanted = validate_model(chain()), request(pool)
    wanted.pools = [MemoryPool(hidlMemory=pool)]
    validate_request(wanted, model)
    closed = memory.allocate_ashmem(POOL_BYTES)
    closed.close()
    wanted.pools = [pool, closed]
    refused(wanted, model, "pool 1", "must have an open descriptor")
    wanted.pools = [pool, MemoryPool(pool, TOKEN)]
    refused(wanted, model, "request", "pools[1] must be either hidlMemory or a token")
    wanted.pools = [pool, MemoryPool()]
    refused(wanted, model, "request", "pools[1] must be either hidlMemory or a token")
    wanted.pools = [pool, "ashmem"]  # type: ignore[list-item]
    refused(wanted, model, "request", "pools[1] must be a Memory or a token, got str")


@pytest.mark.parametrize("token", [TOKEN, MemoryPool(token=TOKEN)])
def test_tokens(pool: memory.Memory, token: int | MemoryPool) -> None:
    """An argument in a buffer is the whole buffer."""
    model, wanted = validate_model(chain()), request(pool)
    wanted.pools = [pool, token]
    wanted.inputs = [argument(1, length=0), argument(offset=24)]
    asked: list[int] = []
    found = validate_request(wanted, model, token=asked.append)
    assert asked == [TOKEN]
    assert found.request.pools[1] == MemoryPool(token=TOKEN)
    wanted.inputs[0].location.length = 24
    validate_request(wanted, model)
    for place in (DataLocation(1, 4, 0), DataLocation(1, 0, 23), DataLocation(1, 0, 0, 1)):
        wanted.inputs[0].location = place
        refused(wanted, model, "input 0", "location must be a whole buffer")


def test_tokens_of_nobody(pool: memory.Memory) -> None:
    model, wanted = validate_model(chain()), request(pool)
    wanted.pools = [pool, 0]
    refused(wanted, model, "pool 1", "a token must not be 0")

    def unknown(token: int) -> None:
        raise StatusError(ErrorStatus.INVALID_ARGUMENT, f"token {token} is unknown")

    wanted.pools = [pool, 100]
    with pytest.raises(StatusError, match="token 100 is unknown"):
        validate_request(wanted, model, token=unknown)


def test_memory_that_only_its_driver_can_measure(pool: memory.Memory) -> None:
    model, wanted = validate_model(chain()), request(pool)
    wanted.pools = [pool, memory.hardware_buffer(4, 4)]
    wanted.outputs = [argument(1, length=0)]
    validate_request(wanted, model)


MALFORMED: list[Callable[[Request], object]] = [
    lambda wanted: setattr(wanted, "inputs", None),
    lambda wanted: setattr(wanted, "inputs", [None]),
    lambda wanted: setattr(wanted, "outputs", 3),
    lambda wanted: setattr(wanted, "pools", None),
    lambda wanted: setattr(wanted.inputs[0], "location", None),
    lambda wanted: setattr(wanted.inputs[0], "dimensions", None),
    lambda wanted: setattr(wanted.inputs[0], "dimensions", [-1]),
    lambda wanted: setattr(wanted.inputs[0], "dimensions", [1.5]),
    lambda wanted: setattr(wanted.inputs[0], "dimensions", [1 << 32]),
    lambda wanted: setattr(wanted.inputs[0], "hasNoValue", 2),
    lambda wanted: setattr(wanted.inputs[0], "hasNoValue", None),
    lambda wanted: setattr(wanted.inputs[0].location, "offset", -1),
    lambda wanted: setattr(wanted.inputs[0].location, "length", "24"),
    lambda wanted: delattr(wanted, "inputs"),
]


@pytest.mark.parametrize("change", MALFORMED)
def test_what_no_message_can_hold(pool: memory.Memory, change: Callable[[Request], object]) -> None:
    wanted = request(pool)
    change(wanted)
    with pytest.raises(InvalidRequestError):
        validate_request(wanted, validate_model(chain()))
    with pytest.raises(InvalidRequestError):
        validate_request(None, validate_model(chain()))  # type: ignore[arg-type]
