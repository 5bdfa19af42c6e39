"""Formulas of a space file: numbers with units, keys of the device, figures of models; checked before anything runs.

``2 * rows * 16 KiB``, ``area <= 2.5 mm2``, ``latency('bert') * energy``. Python's grammar is parsed, never evaluated:
only arithmetic, comparisons and a few functions are accepted. Every value has a dimension, so an area cannot be
compared with a time. Values may be exact numbers, or numpy arrays with one element per design.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from npusim.errors import shown
from npusim.units import Dimension

Dim = tuple[int, int, int, int, int] | str
"""Exponents of byte, second, joule, metre and volt. ``text`` and ``flag`` have no arithmetic."""
NUMBER: Dim = (0, 0, 0, 0, 0)
TEXT: Dim = "text"
FLAG: Dim = "flag"
LONGEST = 1000
"""Limit of the length of a formula in characters."""
DEEPEST = 50
"""Limit of nested brackets."""
MOST_WHOLE = 1000
"""Limit in bits of the whole part of a value, in base units or SI units: a float has 1024."""
MOST_BITS = 4096
"""Limit in bits of an exact value, numerator and denominator together. The size of a result is bounded before it is
computed, because powers of powers could take any time and memory."""
Size = tuple[int, int]
"""(a, b): a value is below 2**a, and its denominator at most 2**b."""
_NAMED: Size = (64, 20)
"""Bits of the value of a name in its base unit: keys and figures fit 64 bits, denominators fit Ratio.limit."""

DIMENSIONS: dict[Dimension, tuple[Dim, Fraction]] = {
    Dimension.TIME: ((0, 1, 0, 0, 0), Fraction(1, 10**12)),
    Dimension.SIZE: ((1, 0, 0, 0, 0), Fraction(1)),
    Dimension.FREQUENCY: ((0, -1, 0, 0, 0), Fraction(1)),
    Dimension.BANDWIDTH: ((1, -1, 0, 0, 0), Fraction(1)),
    Dimension.ENERGY: ((0, 0, 1, 0, 0), Fraction(1, 10**15)),
    Dimension.POWER: ((0, -1, 1, 0, 0), Fraction(1, 10**6)),
    Dimension.AREA: ((0, 0, 0, 2, 0), Fraction(1, 10**12)),
    Dimension.LENGTH: ((0, 0, 0, 1, 0), Fraction(1, 10**9)),
    Dimension.VOLTAGE: ((0, 0, 0, 0, 1), Fraction(1, 10**3)),
}
"""Exponents, and the size of a base unit of ``npusim.units`` in bytes, seconds, joules, metres and volts."""
_LARGE = {"uJ": Fraction(1, 10**6), "mJ": Fraction(1, 10**3), "J": Fraction(1)}
"""Units of energy for runs; single actions have smaller ones."""
_UNITS: dict[str, tuple[Fraction, Dim]] = {
    **{
        suffix: (size * scale, dim)
        for dimension, (dim, scale) in DIMENSIONS.items()
        for suffix, size in dimension.suffixes.items()
    },
    **{suffix: (size, DIMENSIONS[Dimension.ENERGY][0]) for suffix, size in _LARGE.items()},
}
_NOUNS: dict[Dim, str] = {
    NUMBER: "a plain number",
    TEXT: "text",
    FLAG: "a flag",
    **{dim: dimension.noun for dimension, (dim, _) in DIMENSIONS.items()},
}
_SPELT = "|".join(map(re.escape, sorted(_UNITS, key=len, reverse=True)))
# A quantity, or quoted text, which is kept. The unit must not be followed by a letter: "16 B/sram" is not in B/s.
_QUANTITY = re.compile(rf"'[^']*'|\"[^\"]*\"|(?<![\w.])([0-9]+(?:\.[0-9]+)?)\s*({_SPELT})(?![\w.(])", re.ASCII)
MOST_NAMES = 20
"""Limit of the names listed in a message."""


class FormulaError(ValueError):
    """A formula is refused; the message states the reason and the allowed forms, without the place."""


@dataclass(frozen=True, slots=True)
class Name:
    """The type of a name in a formula: its dimension, and its base unit in SI units.

    ``size``: size of a value in base units.
    """

    dim: Dim = NUMBER
    scale: Fraction = Fraction(1)
    size: Size = _NAMED


@dataclass(frozen=True, slots=True)
class FormulaScope:
    """The available names. ``figures`` may be called with the name of a model in quotes. Without a call, they cover all
    models."""

    names: Mapping[str, Name]
    figures: Mapping[str, Name] = field(default_factory=dict)
    models: tuple[str, ...] = ()


Values = Mapping[str, Any]
"""Values by name in base units. Figures have the names ``latency`` and ``latency(bert)``."""
_Eval = Callable[[Values], Any]


@dataclass(frozen=True, slots=True)
class Formula:
    """A checked formula. ``uses``: the names whose values it needs. ``size``: bound of its values."""

    text: str
    dim: Dim
    uses: frozenset[str]
    _evaluate: _Eval
    size: Size = (0, 0)

    def __call__(self, values: Values) -> Any:
        """The value in SI units, exact if the values are. For a condition: its violation.

        A condition is fulfilled if the violation is at most 0; otherwise this is the distance to the limit, relative to
        the limit. An unknown value gives nan. Raises ZeroDivisionError.
        """
        return self._evaluate(values)


def formula(text: str, scope: FormulaScope) -> Formula:
    """An arithmetic formula. Raises FormulaError."""
    found = _Compiler(text, scope).compile()
    if found.dim is FLAG and isinstance(found, _Condition):
        raise FormulaError(f"must be a value, got a comparison: {shown(text)}")
    return Formula(text, found.dim, frozenset(found.uses), found.evaluate, found.size)


def condition(text: str, scope: FormulaScope) -> Formula:
    """A comparison, or several with ``and`` and ``or``. Raises FormulaError."""
    found = _Compiler(text, scope).compile()
    if not isinstance(found, _Condition):
        raise FormulaError(f"must be a comparison such as 'area <= 2.5 mm2', got {shown(text)}")
    return Formula(text, FLAG, frozenset(found.uses), found.evaluate)


def noun(dim: Dim) -> str:
    """A dimension in words."""
    if dim in _NOUNS:
        return _NOUNS[dim]
    parts = zip(("B", "s", "J", "m", "V"), dim, strict=True)
    return "a quantity in " + " ".join(f"{unit}^{power}" if power != 1 else unit for unit, power in parts if power)


@dataclass(slots=True)
class _Part:
    dim: Dim
    evaluate: _Eval
    uses: set[str] = field(default_factory=set)
    size: Size = (0, 0)


class _Condition(_Part):
    """A part whose value is a violation."""


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], int] = {ast.LtE: 1, ast.Lt: 1, ast.GtE: -1, ast.Gt: -1, ast.Eq: 0}
_ALLOWED = "numbers with units, names, + - * / **, comparisons, and, or, min, max, ceil, floor"


class _Compiler:
    def __init__(self, text: str, scope: FormulaScope) -> None:
        self._text, self._scope = text, scope
        self._quantities: dict[str, tuple[Fraction, Dim]] = {}
        self._spelt: dict[str, str] = {}

    def compile(self) -> _Part:
        if len(self._text) > LONGEST:
            raise FormulaError(f"must have at most {LONGEST} characters, got {len(self._text)}")
        if _depth(self._text) > DEEPEST:
            raise FormulaError(f"must have at most {DEEPEST} nested brackets: {shown(self._text)}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns about text that is not a program
                tree = ast.parse(_QUANTITY.sub(self._quantity, self._text.strip()), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise FormulaError(f"is not a formula: {shown(self._text)}; may have {_ALLOWED}") from None
        try:
            return self._part(tree.body)
        except RecursionError:
            raise FormulaError(f"is nested too deeply: {shown(self._text)}") from None

    def _quantity(self, match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        scale, dim = _UNITS[match[2]]
        name = f"_quantity{len(self._quantities)}"
        self._quantities[name] = Fraction(match[1]) * scale, dim
        self._spelt[name] = match[0]
        return name

    def _part(self, node: ast.expr) -> _Part:
        part = self._made(node)
        self._fits(part.size, node)
        return part

    def _fits(self, size: Size, node: ast.expr) -> None:
        if size[0] > MOST_WHOLE or sum(size) > MOST_BITS:
            raise FormulaError(
                f"may become too large or too fine to calculate with: {self._as_written(node)}; must stay below "
                f"2^{MOST_WHOLE}, and within {MOST_BITS} bits"
            )

    def _made(self, node: ast.expr) -> _Part:
        match node:
            case ast.Constant():
                return _constant(node.value)
            case ast.Name() | ast.Attribute():
                return self._name(node)
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.UnaryOp(op=ast.USub()):
                inner = self._number(node.operand)
                return _Part(inner.dim, lambda values: -inner.evaluate(values), inner.uses, inner.size)
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp():
                return self._all_or_any(node)
            case ast.Call():
                return self._call(node)
        raise FormulaError(f"must not have {self._as_written(node)}; may have {_ALLOWED}")

    def _number(self, node: ast.expr) -> _Part:
        part = self._part(node)
        if isinstance(part, _Condition) or isinstance(part.dim, str):
            raise FormulaError(f"must not calculate with {noun(part.dim)}: {self._as_written(node)}")
        return part

    def _name(self, node: ast.expr) -> _Part:
        name = ast.unparse(node)
        if name in self._quantities:
            value, dim = self._quantities[name]
            return _exactly(value, dim)
        known = self._scope.names.get(name) or self._scope.figures.get(name)
        if known is None:
            raise FormulaError(self._unknown(name))
        return _value(name, known)

    def _unknown(self, name: str) -> str:
        from difflib import get_close_matches

        figures, names = list(self._scope.figures), list(self._scope.names)
        close = get_close_matches(name, [*figures, *names], 1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        shown_names = names if len(names) <= MOST_NAMES else ["the keys of a device description"]
        return f"unknown name {shown(name)}{hint}; allowed: {', '.join([*figures, *shown_names])}"

    def _arithmetic(self, node: ast.BinOp) -> _Part:
        left, right = self._number(node.left), self._number(node.right)
        a, b, uses = left.evaluate, right.evaluate, left.uses | right.uses
        assert not isinstance(left.dim, str)
        assert not isinstance(right.dim, str)
        if isinstance(node.op, ast.Pow):
            return self._power(left, node.right, uses)
        act = _ARITHMETIC.get(type(node.op))
        if act is None:
            raise FormulaError(f"must not have {self._as_written(node)}; may have {_ALLOWED}")
        if isinstance(node.op, ast.Add | ast.Sub):
            self._same(left.dim, right.dim, node)
            dim: Dim = left.dim
            size = _sum(left.size, right.size)
        else:
            sign = 1 if isinstance(node.op, ast.Mult) else -1
            x, y = left.dim, right.dim
            dim = (x[0] + sign * y[0], x[1] + sign * y[1], x[2] + sign * y[2], x[3] + sign * y[3], x[4] + sign * y[4])
            size = (_product if sign > 0 else _quotient)(left.size, right.size)
        return _Part(dim, lambda values: act(*_alike(a(values), b(values))), uses, size)

    def _power(self, base: _Part, node: ast.expr, uses: set[str]) -> _Part:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, int) and 0 <= node.value <= 8):
            raise FormulaError(f"must have a whole number from 0 to 8 after **, got {self._as_written(node)}")
        power, inner, dim = node.value, base.evaluate, base.dim
        assert not isinstance(dim, str)
        powered = (dim[0] * power, dim[1] * power, dim[2] * power, dim[3] * power, dim[4] * power)
        size = base.size[0] * power + 1, base.size[1] * power
        return _Part(powered, lambda values: inner(values) ** power, uses, size)

    def _compare(self, node: ast.Compare) -> _Part:
        terms = [self._part(each) for each in (node.left, *node.comparators)]
        lacks: list[_Eval] = []
        for left, right, op in zip(terms, terms[1:], node.ops, strict=False):
            if type(op) not in _COMPARED or any(isinstance(term, _Condition) for term in (left, right)):
                raise FormulaError(f"must compare values with <=, <, >=, > or ==, got {self._as_written(node)}")
            self._same(left.dim, right.dim, node)
            sign = _COMPARED[type(op)]
            if isinstance(left.dim, str):
                if sign:
                    raise FormulaError(f"must compare {noun(left.dim)} with ==, got {self._as_written(node)}")
                lacks.append(_differs(left.evaluate, right.evaluate))
            else:
                self._fits(_quotient(_sum(left.size, right.size), right.size), node)
                lacks.append(_lack(left.evaluate, right.evaluate, sign, type(op) in (ast.Lt, ast.Gt)))
        uses = set[str]().union(*(term.uses for term in terms))
        return _Condition(FLAG, lambda values: _joined(True, [lack(values) for lack in lacks]), uses)

    def _all_or_any(self, node: ast.BoolOp) -> _Part:
        parts = [self._part(each) for each in node.values]
        if not all(isinstance(part, _Condition) for part in parts):
            raise FormulaError(f"must have comparisons beside and, or; got {self._as_written(node)}")
        both = isinstance(node.op, ast.And)
        uses = set[str]().union(*(part.uses for part in parts))
        return _Condition(FLAG, lambda values: _joined(both, [part.evaluate(values) for part in parts]), uses)

    def _call(self, node: ast.Call) -> _Part:
        name = ast.unparse(node.func)
        if name in self._scope.figures and not node.keywords and len(node.args) == 1:
            return self._figure(name, node.args[0])
        if name not in ("min", "max", "ceil", "floor") or node.keywords or not node.args:
            raise FormulaError(f"must not call {self._as_written(node)}; may have {_ALLOWED}")
        parts = [self._number(argument) for argument in node.args]
        uses = set[str]().union(*(part.uses for part in parts))
        first = parts[0]
        if name in ("ceil", "floor"):
            if len(parts) != 1 or first.dim != NUMBER:
                raise FormulaError(f"{name} takes one plain number, got {self._as_written(node)}")
            ufunc, plain = (np.ceil, math.ceil) if name == "ceil" else (np.floor, math.floor)
            size = first.size[0] + 1, 0
            return _Part(NUMBER, lambda values: _rounded(ufunc, plain, first.evaluate(values)), uses, size)
        for part in parts[1:]:
            self._same(first.dim, part.dim, node)
        lowest = name == "min"
        ufunc2, plain2 = (np.minimum, min) if lowest else (np.maximum, max)
        return _Part(
            first.dim, lambda values: _extreme(ufunc2, plain2, [p.evaluate(values) for p in parts]), uses,
            (max(part.size[0] for part in parts), max(part.size[1] for part in parts)),
        )  # fmt: skip

    def _figure(self, name: str, node: ast.expr) -> _Part:
        model = node.value if isinstance(node, ast.Constant) else None
        if model not in self._scope.models:
            known = ", ".join(map(repr, self._scope.models))
            call = shown(f"{name}({ast.unparse(node)})")
            raise FormulaError(f"{name}(...) must name a model in quotes: one of {known}; got {call}")
        return _value(f"{name}({model})", self._scope.figures[name])

    def _same(self, left: Dim, right: Dim, node: ast.expr) -> None:
        if left != right:
            raise FormulaError(f"must not put {noun(left)} beside {noun(right)}: {self._as_written(node)}")

    def _as_written(self, node: ast.expr) -> str:
        """A part of the formula for a message, with its quantities as the user wrote them."""
        return shown(_PLACEHOLDER.sub(lambda match: self._spelt[match[0]], ast.unparse(node)))


def _depth(text: str) -> int:
    """The depth of nested brackets, including those within quotes."""
    depths = itertools.accumulate((letter in "([{") - (letter in ")]}") for letter in text)
    return max(depths, default=0)


def _sum(left: Size, right: Size) -> Size:
    return max(left[0], right[0]) + 1, left[1] + right[1]


def _product(left: Size, right: Size) -> Size:
    return left[0] + right[0], left[1] + right[1]


def _quotient(left: Size, right: Size) -> Size:
    """A divisor is at least one unit of its denominator."""
    return left[0] + right[1], left[1] + sum(right)


def _size(value: Fraction) -> Size:
    return (value.numerator // value.denominator).bit_length(), (value.denominator - 1).bit_length()


def _exactly(value: Fraction, dim: Dim) -> _Part:
    return _Part(dim, lambda _: value, set(), _size(value))


_PLACEHOLDER = re.compile(r"_quantity[0-9]+")


def _constant(value: object) -> _Part:
    if isinstance(value, bool):
        return _Part(FLAG, lambda _: value)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return _exactly(Fraction(str(value)), NUMBER)
    if isinstance(value, str):
        return _Part(TEXT, lambda _: value)
    raise FormulaError(f"must not have {shown(value)}; may have {_ALLOWED}")


def _value(name: str, known: Name) -> _Part:
    scale, rough = known.scale, float(known.scale)
    if isinstance(known.dim, str):
        return _Part(known.dim, lambda values: values[name], {name})

    def evaluate(values: Values) -> Any:
        value = values[name]
        if value is None:
            return math.nan
        return value * rough if isinstance(value, np.ndarray | float) else value * scale

    return _Part(known.dim, evaluate, {name}, _product(known.size, _size(scale)))


def _differs(left: _Eval, right: _Eval) -> _Eval:
    """The violation of an equality of texts or flags: 0 or 1."""

    def evaluate(values: Values) -> Any:
        found = left(values) != right(values)
        return found.astype(float) if isinstance(found, np.ndarray) else float(found)

    return evaluate


def _lack(left: _Eval, right: _Eval, sign: int, strict: bool) -> _Eval:
    """The violation of a comparison, relative to its right side."""

    def evaluate(values: Values) -> Any:
        a, b = _alike(left(values), right(values))
        if not sign:
            gap = abs(a - b)
        else:
            gap = (a - b) * sign
        size = abs(b)
        if isinstance(gap, np.ndarray) or isinstance(size, np.ndarray):
            rough = gap / np.where(size > 0, size, 1.0)
            return np.where((rough == 0) & strict, _LEAST, rough)
        lack = float(gap / size) if size else float(gap)
        return _LEAST if strict and lack == 0 else lack

    return evaluate


_LEAST = 1e-9
"""The violation of ``a < b`` if both are equal."""


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    """Convert both to arrays of floats if one is an array, so that division by zero gives infinities and nan."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.asarray(a, float), np.asarray(b, float)
    return a, b


def _joined(both: bool, lacks: list[Any]) -> Any:
    """The violation of several conditions. An unknown one leaves it open, unless another decides alone: a violated one
    if all must be fulfilled, a fulfilled one if any must."""
    parts = np.broadcast_arrays(*(np.asarray(lack, float) for lack in lacks))
    known = (np.fmax if both else np.fmin).reduce(parts)
    decided = known > 0 if both else known <= 0
    found = np.where(decided | ~np.isnan(parts).any(axis=0), known, np.nan)
    return found if found.ndim else float(found)


def _extreme(ufunc: Any, plain: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    if any(isinstance(value, np.ndarray) for value in values):
        found = np.asarray(values[0], float)
        for value in values[1:]:
            found = ufunc(found, np.asarray(value, float))
        return found
    if any(math.isnan(value) for value in values):
        return math.nan
    return plain(values)


def _rounded(ufunc: Any, plain: Callable[[Any], int], value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ufunc(value.astype(float))  # fractions, if the formula contains a number
    return value if math.isnan(value) else Fraction(plain(value))
