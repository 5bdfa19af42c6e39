"""Polynomials over atoms: a canonical form of elementwise formulas, whatever nodes they are written with.

Atoms are inputs, functions and reductions of polynomials, and powers of sums. Different nodes for one formula give the
same polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary

Monomial = frozenset[tuple["Atom", float]]
"""Atoms with their exponents."""
ONE: Monomial = frozenset()
MOST_TERMS = 8
"""Maximum number of terms. No formula that is searched for has more."""
DIGITS = 5
"""Significant digits in which coefficients are compared: files store them as float32, or as an author typed them."""


@dataclass(frozen=True)
class Atom:
    """A factor that is not expanded. ``of``: a tensor, or the polynomial that ``kind`` is applied to.

    ``details``: parameters of a function, or axes of a reduction.
    """

    kind: str
    of: Tensor | Polynomial
    details: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Polynomial:
    """A sum of monomials with coefficients. Polynomials are equal if their coefficients agree in :data:`DIGITS`
    digits."""

    terms: dict[Monomial, float]

    @cached_property
    def key(self) -> frozenset[tuple[Monomial, str]]:
        """The form used for comparison."""
        return frozenset((monomial, f"{value:.{DIGITS - 1}e}") for monomial, value in self.terms.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, value in other.terms.items():
            terms[monomial] = terms.get(monomial, 0.0) + value
        return Polynomial({monomial: value for monomial, value in terms.items() if value})

    def __mul__(self, other: Polynomial) -> Polynomial:
        result = Polynomial({})
        for monomial, value in self.terms.items():
            result += Polynomial({_product(monomial, each): value * factor for each, factor in other.terms.items()})
        return result

    def power(self, exponent: float) -> Polynomial | None:
        """The polynomial to a power; None if that is not real or finite."""
        if exponent in (2.0, 3.0):
            return self * self if exponent == 2.0 else self * self * self
        if len(self.terms) != 1:
            return of_atom(Atom("power", self), exponent)
        ((monomial, value),) = self.terms.items()
        if value < 0 and exponent != int(exponent):
            return None
        return Polynomial({frozenset((atom, each * exponent) for atom, each in monomial): value**exponent})

    def factors(self) -> Iterator[tuple[Atom, float]]:
        """The atoms of all monomials, with exponents."""
        for monomial in self.terms:
            yield from monomial


def of_atom(atom: Atom, exponent: float = 1.0) -> Polynomial:
    """An atom to a power."""
    return Polynomial({frozenset([(atom, exponent)]): 1.0})


def number(value: float) -> Polynomial:
    """A constant."""
    return Polynomial({ONE: value} if value else {})


def _product(one: Monomial, other: Monomial) -> Monomial:
    exponents = dict(one)
    for atom, exponent in other:
        exponents[atom] = exponents.get(atom, 0.0) + exponent
    return frozenset((atom, exponent) for atom, exponent in exponents.items() if exponent)


INFINITE = math.inf
_POWERS = {Unary.SQRT: 0.5, Unary.RSQRT: -0.5, Unary.RECIPROCAL: -1.0, Unary.SQUARE: 2.0}
_ATOMS = {Unary.ERF: "erf", Unary.TANH: "tanh", Unary.EXP: "exp", Unary.LOG: "log"}


def unary(function: Unary, x: Polynomial, p0: float = 0.0, p1: float = 0.0) -> Polynomial | None:
    """A function of a polynomial; None if it is not part of any formula."""
    match function:
        case Unary.IDENTITY:
            return x
        case Unary.NEG:
            return number(-1.0) * x
        case Unary.SIGMOID:
            return sigmoid(x)
        case Unary.SOFTPLUS:
            return softplus(x)
        case Unary.SILU:
            return x * sigmoid(number(p0) * x)
        case Unary.RELU:
            return clip(x, 0.0, INFINITE)
        case Unary.CLIP:
            return clip(x, p0, p1)
        case Unary.HARD_SIGMOID:
            return clip(number(p0) * x + number(p1), 0.0, 1.0)
    if function in _POWERS:
        return x.power(_POWERS[function]) if x.terms else None
    return of_atom(Atom(_ATOMS[function], x)) if function in _ATOMS else None


def binary(function: Binary, a: Polynomial, b: Polynomial) -> Polynomial | None:
    """A function of two polynomials; None if it is not part of any formula."""
    match function:
        case Binary.ADD:
            return a + b
        case Binary.SUB:
            return a + number(-1.0) * b
        case Binary.MUL:
            return a * b
        case Binary.SQUARED_DIFFERENCE:
            return (a + number(-1.0) * b).power(2.0)
        case Binary.DIV:
            inverse = b.power(-1.0) if b.terms else None
            return inverse and a * inverse
        case Binary.POW if set(b.terms) == {ONE}:
            return a.power(b.terms[ONE])
    return None


def sigmoid(x: Polynomial) -> Polynomial:
    """1 / (1 + exp(-x))."""
    return of_atom(Atom("power", number(1.0) + of_atom(Atom("exp", number(-1.0) * x))), -1.0)


def softplus(x: Polynomial) -> Polynomial:
    """log(1 + exp(x))."""
    return of_atom(Atom("log", number(1.0) + of_atom(Atom("exp", x))))


def clip(x: Polynomial, low: float, high: float) -> Polynomial | None:
    """A clip with bounds normalised to 0 and 1 if possible: the scale of the argument becomes one of the result."""
    if low != 0.0 or high <= 0.0:
        return None
    scale = high if high < INFINITE else 1.0
    return number(scale) * of_atom(Atom("clip", number(1 / scale) * x, (high / scale,)))


def mean(inner: Polynomial, axes: tuple[int, ...]) -> Polynomial:
    """The mean of each term. A mean along the same axes inside a term becomes a factor."""
    result = Polynomial({})
    for monomial, value in inner.terms.items():
        outside = frozenset((atom, each) for atom, each in monomial if atom.kind == "mean" and atom.details == axes)
        inside = monomial - outside
        factor = of_atom(Atom("mean", Polynomial({inside: 1.0}), axes)) if inside else number(1.0)
        result += Polynomial({outside: value}) * factor
    return result


def largest(inner: Polynomial, axes: tuple[int, ...]) -> Polynomial:
    """The maximum along axes."""
    return of_atom(Atom("max", inner, axes))
