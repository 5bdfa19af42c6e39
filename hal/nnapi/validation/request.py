"""The rules of a request for a valid model."""

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
from .fields import U32, U64, MalformedError, boolean, instance, integer, integers, items
from .pools import pool_problem

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A valid request.

    ``inputs``: the shape of each input with every dimension known; None for an omitted one. ``outputs``: the same, with
    0 for a dimension that only the execution determines, None if it is omitted or of unknown rank. ``request``: the
    driver's own copy; ``pools`` are those of the copy.
    """

    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]
    request: Request
    pools: Sequence[MemoryPool]


class RequestRules:
    """The rules of requests to one model; everything independent of the request is computed once."""

    def __init__(self, model: Model) -> None:
        """``model``: as ``validate_model`` gives it."""
        context, main = context_of(model), model.main
        self._inputs = [_ArgumentRules(main.operands[index], context) for index in main.inputIndexes]
        self._outputs = [_ArgumentRules(main.operands[index], context) for index in main.outputIndexes]

    def check(
        self, request: Request, *, fenced: bool = False, token: Callable[[int], object] | None = None
    ) -> ResolvedRequest:
        """Check a request against the rules of the interface. Raises InvalidRequestError.

        ``fenced``: every output's dimensions must be known, because they are not reported afterwards. ``token`` is
        called with each token among the pools, and raises for a token that is not the driver's.
        """
        copy, pools = _own_copy(request)
        sizes = [_pool_size(number, pool, token) for number, pool in enumerate(pools)]
        inputs = _resolve("input", copy.inputs, self._inputs, sizes, True)
        outputs = _resolve("output", copy.outputs, self._outputs, sizes, fenced)
        return ResolvedRequest(inputs, outputs, copy, pools)


def validate_request(
    request: Request, model: Model, *, fenced: bool = False, token: Callable[[int], object] | None = None
) -> ResolvedRequest:
    """Call ``RequestRules.check`` for a model that is used once."""
    return RequestRules(model).check(request, fenced=fenced, token=token)


def _resolve(
    word: str,
    arguments: Sequence[RequestArgument],
    rules: Sequence[_ArgumentRules],
    sizes: Sequence[int | None],
    complete: bool,
) -> tuple[Shape | None, ...]:
    if len(arguments) != len(rules):
        raise InvalidRequestError("request", f"the model has {len(rules)} {word}s, got {len(arguments)}")
    shapes: list[Shape | None] = []
    for argument, rule in zip(arguments, rules, strict=True):
        try:
            shapes.append(rule.resolve(argument, sizes, complete))
        except _BrokenRuleError as error:
            raise InvalidRequestError(f"{word} {len(shapes)}", str(error)) from None
    return tuple(shapes)


def _own_copy(request: Request) -> tuple[Request, list[MemoryPool]]:
    """Return a copy in which every field has its declared type and range, and its pools. Raises InvalidRequestError.

    It is made before any check: the client may change its request at any time, and executions run later.
    """
    try:
        request = instance(request, Request, "the request")
        inputs, outputs = _copy_arguments(request.inputs, "inputs"), _copy_arguments(request.outputs, "outputs")
        pools = [_copy_pool(each, f"pools[{number}]") for number, each in enumerate(items(request.pools, "pools"))]
        return Request(inputs, outputs, pools), pools
    except MalformedError as error:
        raise InvalidRequestError("request", str(error)) from None
    except Exception as error:  # reading the client's objects may raise anything
        raise InvalidRequestError("request", f"cannot be read: {type(error).__name__}: {error}") from error


def _copy_arguments(values: Sequence[RequestArgument], field: str) -> list[RequestArgument]:
    found = items(values, field)
    return [_copy_argument(instance(each, RequestArgument, f"{field}[{i}]")) for i, each in enumerate(found)]


def _copy_argument(argument: RequestArgument) -> RequestArgument:
    absent: object = argument.hasNoValue
    place = instance(argument.location, DataLocation, "location")
    # each field is read once
    pool, offset, length, padding = place.poolIndex, place.offset, place.length, place.padding
    if not (
        type(pool) is type(offset) is type(length) is type(padding) is int
        and 0 <= pool <= U32
        and 0 <= offset <= U64
        and 0 <= length <= U64
        and 0 <= padding <= U64
    ):
        pool = integer(pool, 0, U32, "location.poolIndex")
        offset = integer(offset, 0, U64, "location.offset")
        length = integer(length, 0, U64, "location.length")
        padding = integer(padding, 0, U64, "location.padding")
    return RequestArgument(
        absent if type(absent) is bool else boolean(absent, "hasNoValue"),
        DataLocation(pool, offset, length, padding),
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


def _pool_size(number: int, pool: MemoryPool, token: Callable[[int], object] | None) -> int | None:
    """Return the bytes of a pool; None for a buffer, and for memory that only the driver behind it can measure."""
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


class _BrokenRuleError(Exception):
    """An argument breaks a rule. The argument of the exception is the message."""


class _ArgumentRules:
    """The requirements of one operand on its argument. ``nbytes``: if the model states all of its dimensions."""

    def __init__(self, operand: Operand, context: Context) -> None:
        kind = context.operand_type(operand.type)
        self._type = operand.type
        self._scalar = not kind.tensor if kind else operand.type in SCALARS
        self._declared = () if self._scalar else tuple(operand.dimensions)
        self._complete = self._scalar or bool(self._declared and all(self._declared))
        self._element = context.element_bytes(operand.type)
        self._nbytes = self._size(self._declared) if self._complete else None

    def resolve(self, argument: RequestArgument, pools: Sequence[int | None], complete: bool) -> Shape | None:
        """Return the shape as far as model and request determine it; None if the argument is omitted or its rank
        unknown.

        ``complete``: every dimension must be known. Raises _BrokenRuleError.
        """
        if argument.hasNoValue:
            place = argument.location
            if argument.dimensions or place.poolIndex or place.offset or place.length or place.padding:
                raise _BrokenRuleError("an omitted argument must have no dimensions and only 0 in its location")
            return None
        shape: Shape | None
        given = tuple(argument.dimensions)
        if self._complete and (not given or given == self._declared):  # the usual case
            shape, nbytes = self._declared, self._nbytes
        else:
            shape = self._merge(given)
            known = self._scalar or bool(shape and 0 not in shape)
            if complete and not known:
                raise _BrokenRuleError(f"every dimension must be known, got {list(shape or ())}")
            nbytes = self._size(shape or ()) if known else None
        self._check_location(argument.location, pools, nbytes)
        return shape

    def _merge(self, given: Shape) -> Shape | None:
        """Return the model's dimensions, completed by the request, which must repeat the known ones; None if the rank
        is unknown."""
        declared = self._declared
        if self._scalar:
            if given and given != (1,):
                raise _BrokenRuleError(f"a scalar must have no dimensions, got {list(given)}")
            return ()
        if not given or not declared:
            return given or declared or None
        if len(given) != len(declared) or any(d and d != g for d, g in zip(declared, given, strict=True)):
            raise _BrokenRuleError(f"dimensions must agree with the model's {list(declared)}, got {list(given)}")
        return tuple(d or g for d, g in zip(declared, given, strict=True))

    def _size(self, shape: Shape) -> int | None:
        return None if self._element is None else self._element * math.prod(shape)

    def _check_location(self, place: DataLocation, pools: Sequence[int | None], nbytes: int | None) -> None:
        if place.poolIndex >= len(pools):
            raise _BrokenRuleError(
                f"location.poolIndex must be below {len(pools)}, the number of pools, got {place.poolIndex}"
            )
        size = pools[place.poolIndex]
        if size is None:
            if place.offset or place.padding or place.length not in (0, nbytes):
                raise _BrokenRuleError(f"location must be a whole buffer, with offset 0 and length 0, got {place}")
            return
        if not place.length:
            raise _BrokenRuleError("location.length must be > 0")
        # Three 64-bit numbers, whose sum does not wrap here as it would in C.
        if place.offset + place.length + place.padding > size:
            raise _BrokenRuleError(f"location must lie within its pool of {size} bytes, got {place}")
        if nbytes is not None and place.length != nbytes:
            kind = type_name(self._type)
            raise _BrokenRuleError(f"location.length must be {nbytes}, the size of this {kind}, got {place.length}")
