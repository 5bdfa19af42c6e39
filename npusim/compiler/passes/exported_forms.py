"""Operators that exporters write in several nodes: normalisation, softmax, GELU, SiLU become the one operator again.

Exporters write the same formula in many ways: as a quotient or a product with a reciprocal, with the square as a power
or a product, with factors before or behind a sum. So nodes are not compared with a list of patterns. Each tensor is
expanded into a polynomial over atoms: inputs, functions and reductions of polynomials, and powers of sums. Different
nodes for one formula have the same polynomial, which is compared with that of the operator.

The operator rounds once where the nodes round each intermediate value, and computes a variance from differences
from the mean. Its results differ from those of the nodes by a few units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from npusim.compiler.passes.rewrite import Rewriter
from npusim.graph import Graph, Op, Tensor, consumers
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.base import widen

Monomial = frozenset[tuple["Atom", float]]
"""Atoms with their exponents."""
ONE: Monomial = frozenset()
MOST_TERMS = 8
"""Of a polynomial. No formula that is looked for has more; a larger one is an atom."""
DIGITS = 5
"""Significant digits in which coefficients are compared: files hold them as float32, or as an author typed them."""


@dataclass(frozen=True)
class Atom:
    """A factor that is not expanded: ``of`` is a tensor, or the polynomial that ``kind`` is applied to.

    ``details``: parameters of a function, axes of a reduction.
    """

    kind: str
    of: Tensor | Polynomial
    details: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Polynomial:
    """A sum of monomials with coefficients. Equal polynomials have coefficients that agree in :data:`DIGITS` digits."""

    terms: dict[Monomial, float]

    @cached_property
    def key(self) -> frozenset[tuple[Monomial, str]]:
        """What is compared."""
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
        """The polynomial to a power; None where that is not real or finite."""
        if exponent in (2.0, 3.0):
            return self * self if exponent == 2.0 else self * self * self
        if len(self.terms) != 1:
            return of_atom(Atom("power", self), exponent)
        ((monomial, value),) = self.terms.items()
        if value < 0 and exponent != int(exponent):
            return None
        return Polynomial({frozenset((atom, each * exponent) for atom, each in monomial): value**exponent})

    def factors(self) -> Iterator[tuple[Atom, float]]:
        """Atoms of all monomials, with exponents."""
        for monomial in self.terms:
            yield from monomial


def of_atom(atom: Atom, exponent: float = 1.0) -> Polynomial:
    """One atom to a power."""
    return Polynomial({frozenset([(atom, exponent)]): 1.0})


def number(value: float) -> Polynomial:
    """A constant."""
    return Polynomial({ONE: value} if value else {})


def _product(one: Monomial, other: Monomial) -> Monomial:
    exponents = dict(one)
    for atom, exponent in other:
        exponents[atom] = exponents.get(atom, 0.0) + exponent
    return frozenset((atom, exponent) for atom, exponent in exponents.items() if exponent)


def restore_operators(graph: Graph) -> Graph:
    """The graph with one operator in place of the nodes of each known formula."""
    if not any(op.kind == "reduce" or (op.kind == "unary" and op.attrs["fn"] in _FUNCTIONS) for op in graph.ops):
        return graph
    return Rewriter(graph).run(_Formulas(graph).rule)


_FUNCTIONS = frozenset({Unary.ERF, Unary.TANH, Unary.SIGMOID, Unary.EXP})
"""Without one of these, or a reduction, no formula is there."""
_POWERS = {Unary.SQRT: 0.5, Unary.RSQRT: -0.5, Unary.RECIPROCAL: -1.0, Unary.SQUARE: 2.0}
_REDUCED = {Reduce.MEAN: "mean", Reduce.SUM: "sum", Reduce.MAX: "max"}


class _Formulas:
    """The polynomials of a graph's tensors, and the rule that compares them with operators."""

    def __init__(self, graph: Graph) -> None:
        self._outputs = frozenset(graph.outputs)
        self._readers = consumers(graph.ops)
        self._polynomials: dict[Tensor, Polynomial] = {}
        self._makers: dict[Tensor, Op] = {}

    def rule(self, rewriter: Rewriter, op: Op) -> bool:
        """Put an operator in place of ``op`` where it is the last node of a formula."""
        if len(op.outputs) != 1 or not op.output.dtype.is_float:
            return False
        self._makers[op.output] = op
        expanded = self._expand(op)
        if expanded is None or len(expanded.terms) > MOST_TERMS:
            return False
        self._polynomials[op.output] = expanded
        for restore in (_gelu, _silu, _softmax, _norm):
            found = restore(expanded, op.output.shape)
            if found is not None and self._is_all_of(op.output, found[0]):
                self._polynomials.pop(op.output)
                rewriter.substitute(op.output, _made(rewriter, op, *found))
                return True
        return False

    def _of(self, tensor: Tensor) -> Polynomial:
        """What a tensor is, of those that have been met."""
        if tensor.data is not None and tensor.size == 1:
            return number(float(widen(np.asarray(tensor.data), tensor.dtype).reshape(())))
        return self._polynomials.get(tensor) or of_atom(Atom("tensor", tensor))

    def _expand(self, op: Op) -> Polynomial | None:
        """The polynomial of an operator's result; None for an operator that is an atom of its own."""
        if op.kind == "binary":
            return self._binary(op.attrs["fn"], op.input(0), op.input(1))
        if op.kind == "unary":
            return self._unary(op)
        if op.kind == "reduce" and op.attrs["fn"] in _REDUCED and op.attrs["keepdims"]:
            name, axes, inner = _REDUCED[op.attrs["fn"]], tuple(op.attrs["axes"]), self._of(op.input(0))
            return _mean(inner, axes) if name == "mean" else of_atom(Atom(name, inner, axes))
        return None

    def _binary(self, function: int, left: Tensor, right: Tensor) -> Polynomial | None:
        a, b = self._of(left), self._of(right)
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

    def _unary(self, op: Op) -> Polynomial | None:
        function, inner = Unary(op.attrs["fn"]), self._of(op.input(0))
        if function in _POWERS:
            return inner.power(_POWERS[function]) if inner.terms else None
        if function is Unary.NEG:
            return number(-1.0) * inner
        if function is Unary.SIGMOID:
            return _sigmoid(inner)
        if function in _FUNCTIONS:
            return of_atom(Atom(function.name.lower(), inner))
        return None

    def _is_all_of(self, result: Tensor, x: Tensor) -> bool:
        """Whether nobody but the formula reads what is computed between ``x`` and the result."""
        inner, stack = {result}, [result]
        while stack:
            maker = self._makers.get(stack.pop())
            for operand in maker.inputs if maker is not None else ():
                if operand is not None and operand is not x and operand not in inner and operand in self._polynomials:
                    inner.add(operand)
                    stack.append(operand)
        inner.discard(result)
        if inner & self._outputs:
            return False
        return all(reader.output in inner or reader.output is result for each in inner for reader in self._read(each))

    def _read(self, tensor: Tensor) -> Sequence[Op]:
        return self._readers.get(tensor, ())


def _sigmoid(inner: Polynomial) -> Polynomial | None:
    exponential = of_atom(Atom("exp", number(-1.0) * inner))
    return (number(1.0) + exponential).power(-1.0)


def _mean(inner: Polynomial, axes: tuple[int, ...]) -> Polynomial:
    """The mean of a sum is that of its terms; a mean along the same axes is a factor of them all."""
    result = Polynomial({})
    for monomial, value in inner.terms.items():
        outside = frozenset((atom, each) for atom, each in monomial if atom.kind == "mean" and atom.details == axes)
        inside = monomial - outside
        mean = of_atom(Atom("mean", Polynomial({inside: 1.0}), axes)) if inside else number(1.0)
        result += Polynomial({outside: value}) * mean
    return result


Found = tuple[Tensor, str, dict[str, Any], Tensor | None, Tensor | None]
"""x, the operator's kind and attributes, and constants that its result is multiplied by and added to."""


def _made(
    rewriter: Rewriter, op: Op, x: Tensor, kind: str, attrs: dict[str, Any], factor: Tensor | None, term: Tensor | None
) -> Tensor:
    value = rewriter.add(f"{op.name}.{kind}", kind, (x,), attrs)
    if factor is not None:
        value = rewriter.add(f"{op.name}.scale", "binary", (value, factor), {"fn": Binary.MUL})
    if term is not None:
        value = rewriter.add(f"{op.name}.shift", "binary", (value, term), {"fn": Binary.ADD})
    return value


def _inputs(found: Polynomial, shape: Sequence[int]) -> set[Tensor]:
    """The tensors of the result's shape among the factors, also of those inside functions and reductions."""
    tensors: set[Tensor] = set()
    stack = [found]
    while stack:
        for atom, _ in stack.pop().factors():
            if isinstance(atom.of, Polynomial):
                stack.append(atom.of)
            elif atom.of.shape == tuple(shape) and not atom.of.is_constant:
                tensors.add(atom.of)
    return tensors


def _gelu(found: Polynomial, shape: Sequence[int]) -> Found | None:
    for x in _inputs(found, shape) if len(found.terms) == 2 else ():
        value = of_atom(Atom("tensor", x))
        half, cube = number(0.5) * value, value * value * value
        erf = of_atom(Atom("erf", number(math.sqrt(0.5)) * value))
        tanh = of_atom(Atom("tanh", number(math.sqrt(2 / math.pi)) * (value + number(0.044715) * cube)))
        for function, inner in ((Unary.GELU, erf), (Unary.GELU_TANH, tanh)):
            if found == half + half * inner:
                return x, "unary", {"fn": function}, None, None
    return None


def _silu(found: Polynomial, shape: Sequence[int]) -> Found | None:
    for x in _inputs(found, shape) if len(found.terms) == 1 else ():
        value = of_atom(Atom("tensor", x))
        sigmoid = _sigmoid(value)
        if sigmoid is not None and found == value * sigmoid:
            return x, "unary", {"fn": Unary.SILU, "p0": 1.0}, None, None
    return None


def _softmax(found: Polynomial, shape: Sequence[int]) -> Found | None:
    """Only where the maximum is subtracted: else a large input gives NaN, and the operator would not."""
    sums = [atom for atom, exponent in found.factors() if atom.kind == "sum" and exponent == -1.0]
    if len(found.terms) != 1 or len(sums) != 1 or len(sums[0].details) != 1:
        return None
    (total,) = sums
    for x in _inputs(found, shape):
        value = of_atom(Atom("tensor", x))
        largest = of_atom(Atom("max", value, total.details))
        power = of_atom(Atom("exp", value + number(-1.0) * largest))
        if total.of == power and found == power * of_atom(total, -1.0):
            return x, "softmax", {"axis": total.details[0], "log": False}, None, None
    return None


def _norm(found: Polynomial, shape: Sequence[int]) -> Found | None:
    """(x - mean) / sqrt(variance + epsilon) * factor + term, or x / sqrt(mean of squares + epsilon) * factor + term."""
    roots = {atom for atom, exponent in found.factors() if atom.kind == "power" and exponent == -0.5}
    if len(roots) != 1:
        return None
    (root,) = roots
    variance = root.of
    assert isinstance(variance, Polynomial)
    axes = next((atom.details for atom, _ in variance.factors() if atom.kind == "mean"), ())
    # The operator normalises over all dimensions from one on.
    if not axes or list(axes) != list(range(axes[0], len(shape))):
        return None
    epsilon = variance.terms.get(ONE, 0.0)
    for x in _inputs(found, shape):
        value = of_atom(Atom("tensor", x))
        mean, squares = _mean(value, axes), _mean(value * value, axes)
        scaled = of_atom(root, -0.5)
        constants = _constants(found, shape, axes[0])
        for mode, spread, centre in (
            ("layer", squares + number(-1.0) * mean * mean, value + number(-1.0) * mean),
            ("rms", squares, value),
        ):
            if variance != spread + number(epsilon):
                continue
            for factor, term in constants:
                wanted = scaled * centre * factor[1] + term[1]
                if found == wanted and epsilon > 0:
                    return x, "normalize", {"axis": axes[0], "mode": mode, "epsilon": epsilon}, factor[0], term[0]
    return None


Constant = tuple[Tensor | None, Polynomial]


def _constants(found: Polynomial, shape: Sequence[int], axis: int) -> Iterator[tuple[Constant, Constant]]:
    """What a result may be multiplied by and added to: constants of the formula, or neither."""
    tensors = {atom.of for atom, _ in found.factors() if isinstance(atom.of, Tensor) and atom.of.is_constant}
    named = [(tensor, of_atom(Atom("tensor", tensor))) for tensor in sorted(tensors, key=lambda tensor: tensor.name)]
    for factor in [(None, number(1.0)), *named]:
        for term in [(None, Polynomial({})), *named]:
            yield factor, term
