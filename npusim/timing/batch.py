"""Evaluate the unmodified cost functions of a device for many devices and works in one call.

A function that is written for one device gets a :class:`Column` for every number that varies. Arithmetic works on whole
columns. Where the function needs a single value, at a branch or for an integer, the batch is divided into parts that
agree on it, and the function is called again for each part. So a new cost key, or a new model of a unit, needs no
change here.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.hw.config import Config

Floats = npt.NDArray[np.float64]
Path = tuple[str, ...]
"""Attribute names that lead from a Config to a value."""


class _DividedError(Exception):
    """A batch has to be divided. ``labels``: one per element, equal for those that stay together."""

    def __init__(self, labels: npt.NDArray[Any]) -> None:
        self.labels = labels


def _binary(of: Callable[[Any, Any], Any], *, swapped: bool = False) -> Callable[[Column, Any], Any]:
    def apply(self: Column, other: Any) -> Any:
        theirs = other.values if isinstance(other, Column) else float(other)
        return Column(of(theirs, self.values) if swapped else of(self.values, theirs))

    return apply


def _exactly(of: Callable[[int, Any], Any]) -> Callable[[Column, Any], Any]:
    """A bit operation, which needs an exact integer."""
    return lambda self, other: of(int(self), other)


def _floor_div(dividend: Any, divisor: Any) -> Any:
    found = dividend / divisor
    return np.floor(found, out=found)


def _remainder(dividend: Any, divisor: Any) -> Any:
    return dividend - np.floor(dividend / divisor) * divisor


class _Evaluated(threading.local):
    """The columns of the batch that a thread evaluates, whose values must not be kept alive by caches of devices."""

    def __init__(self) -> None:
        self.columns: list[weakref.ref[Column]] = []


_evaluated = _Evaluated()
_number = itertools.count()


class Column:
    """A number that varies over the elements of a batch. Figures above 2**53 are rounded like doubles."""

    __slots__ = ("__weakref__", "values")
    __array_ufunc__ = None

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values
        _evaluated.columns.append(weakref.ref(self))

    __add__ = _binary(operator.add)
    __radd__ = __add__
    __sub__ = _binary(operator.sub)
    __rsub__ = _binary(operator.sub, swapped=True)
    __mul__ = _binary(operator.mul)
    __rmul__ = __mul__
    __truediv__ = _binary(operator.truediv)
    __rtruediv__ = _binary(operator.truediv, swapped=True)
    __floordiv__ = _binary(_floor_div)
    __rfloordiv__ = _binary(_floor_div, swapped=True)
    __mod__ = _binary(_remainder)
    __rmod__ = _binary(_remainder, swapped=True)
    __lt__ = _binary(operator.lt)
    __le__ = _binary(operator.le)
    __gt__ = _binary(operator.gt)
    __ge__ = _binary(operator.ge)
    __eq__ = _binary(operator.eq)
    __ne__ = _binary(operator.ne)

    __rshift__ = _exactly(operator.rshift)
    __lshift__ = _exactly(operator.lshift)
    __and__ = _exactly(operator.and_)

    def __hash__(self) -> int:
        return id(self)

    def __neg__(self) -> Column:
        return Column(-self.values)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __bool__(self) -> bool:
        true = self.values.astype(bool)
        if true.all():
            return True
        if not true.any():
            return False
        raise _DividedError(true)

    def __int__(self) -> int:
        first = self.values[0]
        if (self.values == first).all():
            return int(first)
        raise _DividedError(self.values)

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    @property
    def numerator(self) -> Column:
        """The column itself: as a ratio it is itself over 1."""
        return self

    @property
    def denominator(self) -> int:
        """1, see :attr:`numerator`."""
        return 1


def most(first: Any, *others: Any) -> Any:
    """Return the maximum of numbers, or of arrays and numbers element by element."""
    for other in others:
        arrays = isinstance(first, np.ndarray) or isinstance(other, np.ndarray)
        first = np.maximum(first, other) if arrays else max(first, other)
    return first


def with_values(config: Config, values: Mapping[Path, Any]) -> Config:
    """A config with other values, without checks, that is not equal to any other config."""
    found: Config = replaced(config, {**values, ("description",): f"batch {next(_number)}"})
    return found


def replaced(section: Any, values: Mapping[Path, Any]) -> Any:
    """A config, or a section of one, with other values by path, without checks."""
    own: dict[str, Any] = {}
    below: dict[str, dict[Path, Any]] = {}
    for (first, *rest), value in values.items():
        if rest:
            below.setdefault(first, {})[tuple(rest)] = value
        else:
            own[first] = value
    own.update({name: replaced(getattr(section, name), each) for name, each in below.items()})
    return dataclasses.replace(section, **own)


def evaluate(
    ask: Callable[..., Any], config: Config, columns: Mapping[Path, Floats], fields: Sequence[Any]
) -> tuple[Floats, ...]:
    """The result of ``ask(config, *fields)``, a number or a tuple of numbers, for each element of a batch.

    ``columns``: the values of the config that vary. ``fields``: arrays of the same shape, or of one element if all
    agree; other fields are passed unchanged. Raises what ``ask`` raises.
    """
    try:
        return _evaluate(ask, config, columns, fields)
    finally:
        for reference in _evaluated.columns:
            column = reference()
            if column is not None:
                column.values = _NOTHING
        _evaluated.columns.clear()


_NOTHING = np.empty(0)


def _evaluate(
    ask: Callable[..., Any], config: Config, columns: Mapping[Path, Floats], fields: Sequence[Any]
) -> tuple[Floats, ...]:
    arrays = [*columns.values(), *(field for field in fields if isinstance(field, np.ndarray))]
    shape = np.broadcast_shapes(*(each.shape for each in arrays)) if arrays else (1,)
    flat = {path: _flat(values, shape) for path, values in columns.items()}
    given = [_flat(field, shape) if isinstance(field, np.ndarray) else field for field in fields]
    found: list[Floats] = []
    waiting: list[npt.NDArray[np.intp] | None] = [None]
    while waiting:
        part = waiting.pop()
        device = with_values(config, {path: _taken(values, part) for path, values in flat.items()}) if flat else config
        try:
            answer = ask(device, *(_taken(field, part) for field in given))
            answers = answer if isinstance(answer, tuple) else (answer,)
        except _DividedError as divided:
            rows = np.arange(len(divided.labels)) if part is None else part
            waiting += [rows[divided.labels == label] for label in np.unique(divided.labels)]
            continue
        if not found:
            found = [np.empty(int(np.prod(shape))) for _ in answers]
        for into, each in zip(found, answers, strict=True):
            into[slice(None) if part is None else part] = each.values if isinstance(each, Column) else each
    return tuple(each.reshape(shape) for each in found)


def _flat(values: Any, shape: tuple[int, ...]) -> Any:
    """One value per element of the batch, or the single value that all share."""
    if values.size == 1:
        return _exact(values.flat[0])
    return np.broadcast_to(values, shape).ravel()


def _exact(value: Any) -> Any:
    return int(value) if float(value).is_integer() else Column(np.array([value], np.float64))


def _taken(values: Any, part: npt.NDArray[np.intp] | None) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    return Column(values if part is None else values[part])
