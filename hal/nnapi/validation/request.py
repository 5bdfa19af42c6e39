"""The rules of a request to a model that has been checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import InvalidRequestError
from ..memory import Memory
from ..operations.signature import type_name
from ..operations.view import SCALARS
from ..types import DataLocation, MemoryPool, Model, Operand, Request, RequestArgument
from .context import Context, context_of
from .fields import U32, U64, MalformedError, boolean, instance, instances, integer, integers, items
from .pools import pool_problem

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A request that keeps the rules. ``inputs``: the shape of each input, every dimension known; None for one that is
    omitted. ``outputs``: likewise with 0 where only the execution will know, None if it is omitted or of unknown rank.
    ``request``: the driver's own copy, its pools as MemoryPools.
    """

    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]
    request: Request


def validate_request(
    request: Request, model: Model, *, fenced: bool = False, token: Callable[[int], object] | None = None
) -> ResolvedRequest:
    """Hold a request to the rules of the interface. ``model``: as ``validate_model`` gives it.

    ``fenced``: every output's dimensions must be known, because nobody tells them afterwards. ``token`` is called with
    each token among the pools, and raises for one that is none of the driver's. Raises InvalidRequestError.
    """
    copy = copy_request(request)
    sizes = [_pool_size(number, pool, token) for number, pool in enumerate(_memory_pools(copy))]
    context = context_of(model)
    main = model.main
    shapes: list[list[Shape | None]] = []
    for word, arguments, indexes in (
        ("input", copy.inputs, main.inputIndexes),
        ("output", copy.outputs, main.outputIndexes),
    ):
        if len(arguments) != len(indexes):
            raise InvalidRequestError("request", f"the model has {len(indexes)} {word}s, got {len(arguments)}")
        found: list[Shape | None] = []
        for number, (argument, index) in enumerate(zip(arguments, indexes, strict=True)):
            check = _Argument(f"{word} {number}", argument, main.operands[index], context, sizes)
            found.append(check.resolve(complete=word == "input" or fenced))
        shapes.append(found)
    return ResolvedRequest(tuple(shapes[0]), tuple(shapes[1]), copy)


def copy_request(request: Request) -> Request:
    """A copy in which every field has its declared type and range. Raises InvalidRequestError."""
    try:
        request = instance(request, Request, "the request")
        return Request(
            [_copy_argument(each) for _, each in instances(request.inputs, RequestArgument, "inputs")],
            [_copy_argument(each) for _, each in instances(request.outputs, RequestArgument, "outputs")],
            [_copy_pool(each, f"pools[{number}]") for number, each in enumerate(items(request.pools, "pools"))],
        )
    except MalformedError as error:
        raise InvalidRequestError("request", str(error)) from None
    except Exception as error:  # objects of the client are read here, which may do anything
        raise InvalidRequestError("request", f"cannot be read: {type(error).__name__}: {error}") from error


def _copy_argument(argument: RequestArgument) -> RequestArgument:
    place = instance(argument.location, DataLocation, "location")
    return RequestArgument(
        boolean(argument.hasNoValue, "hasNoValue"),
        DataLocation(
            integer(place.poolIndex, 0, U32, "location.poolIndex"),
            integer(place.offset, 0, U64, "location.offset"),
            integer(place.length, 0, U64, "location.length"),
            integer(place.padding, 0, U64, "location.padding"),
        ),
        integers(argument.dimensions, U32, "dimensions"),
    )


def _copy_pool(pool: object, field: str) -> MemoryPool:
    if isinstance(pool, MemoryPool):
        if (pool.hidlMemory is None) == (pool.token is None):
            raise MalformedError(f"{field} must be either hidlMemory or a token")
        pool = pool.token if pool.hidlMemory is None else pool.hidlMemory
    if isinstance(pool, Memory):
        return MemoryPool(hidlMemory=pool)
    if not hasattr(pool, "__index__"):
        raise MalformedError(f"{field} must be a Memory or a token, got {type(pool).__name__}")
    return MemoryPool(token=integer(pool, 0, U32, field))


def _memory_pools(request: Request) -> list[MemoryPool]:
    return [pool for pool in request.pools if isinstance(pool, MemoryPool)]


def _pool_size(number: int, pool: MemoryPool, token: Callable[[int], object] | None) -> int | None:
    """Bytes of a pool; None for a buffer, and for memory that only the driver behind it can measure."""
    if pool.hidlMemory is not None:
        problem = pool_problem(pool.hidlMemory)
        if problem:
            raise InvalidRequestError(f"pool {number}", problem)
        return pool.hidlMemory.size or None
    if not pool.token:
        raise InvalidRequestError(f"pool {number}", "a token must not be 0")
    if token is not None:
        token(pool.token)
    return None


class _Argument:
    """One argument, held against its operand."""

    def __init__(
        self, name: str, argument: RequestArgument, operand: Operand, context: Context, pools: Sequence[int | None]
    ) -> None:
        self.name = name
        self.argument = argument
        self.operand = operand
        self.context = context
        self.pools = pools

    def resolve(self, *, complete: bool) -> Shape | None:
        """The shape, as far as model and request know it; None if the argument is omitted or nobody knows the rank."""
        if self.argument.hasNoValue:
            self._check_omitted()
            return None
        shape = self._merge()
        scalar = self._is_scalar()
        if complete and not scalar and (not shape or 0 in shape):
            raise self._error(f"every dimension must be known, got {list(shape or ())}")
        self._check_location(None if not scalar and (not shape or 0 in shape) else self._nbytes(shape or ()))
        return shape

    def _error(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(self.name, message)

    def _check_omitted(self) -> None:
        place = self.argument.location
        if self.argument.dimensions or place.poolIndex or place.offset or place.length or place.padding:
            raise self._error("an omitted argument must have no dimensions and only 0 in its location")

    def _is_scalar(self) -> bool:
        kind = self.context.operand_type(self.operand.type)
        return not kind.tensor if kind else self.operand.type in SCALARS

    def _merge(self) -> Shape | None:
        """Dimensions of the model, filled in by the request, which repeats the known ones; None if the rank is open."""
        declared, given = tuple(self.operand.dimensions), tuple(self.argument.dimensions)
        if self._is_scalar():
            if given and given != (1,):
                raise self._error(f"a scalar must have no dimensions, got {list(given)}")
            return ()
        if not given or not declared:
            return given or declared or None
        if len(given) != len(declared) or any(d and d != g for d, g in zip(declared, given, strict=True)):
            raise self._error(f"dimensions must agree with the model's {list(declared)}, got {list(given)}")
        return tuple(d or g for d, g in zip(declared, given, strict=True))

    def _nbytes(self, shape: Shape) -> int | None:
        size = self.context.element_bytes(self.operand.type)
        return None if size is None else size * math.prod(shape)

    def _check_location(self, nbytes: int | None) -> None:
        place = self.argument.location
        if place.poolIndex >= len(self.pools):
            raise self._error(
                f"location.poolIndex must be below {len(self.pools)}, the number of pools, got {place.poolIndex}"
            )
        size = self.pools[place.poolIndex]
        kind = type_name(self.operand.type)
        if size is None:
            if place.offset or place.padding or place.length not in (0, nbytes):
                raise self._error(f"location must be a whole buffer, with offset 0 and length 0, got {place}")
            return
        if not place.length:
            raise self._error("location.length must be > 0")
        if place.offset + place.length + place.padding > size:
            raise self._error(f"location must lie within its pool of {size} bytes, got {place}")
        if nbytes is not None and place.length != nbytes:
            raise self._error(f"location.length must be {nbytes}, the size of this {kind}, got {place.length}")
