"""Restore operators that exporters write as several nodes: normalisation, softmax, activations.

Exporters write the same formula in many ways: as a quotient or a product with a reciprocal, with the square as a power
or a product, with factors before or after a sum. So nodes are not compared with a list of patterns. Instead, a value
that several nodes read is taken as ``x``, a result of these nodes is expressed as a polynomial of ``x``, and that is
compared with operators.

The operator rounds once where the nodes round each intermediate value, and computes a variance from differences from
the mean. Its results differ from those of the nodes by a few units in the last place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from npusim.compiler.passes.polynomials import (
    MOST_TERMS,
    ONE,
    Atom,
    Polynomial,
    binary,
    clip,
    largest,
    mean,
    number,
    of_atom,
    sigmoid,
    softplus,
    unary,
)
from npusim.compiler.passes.rewrite import Rewriter
from npusim.compiler.passes.simplify import scalar_of
from npusim.graph import Graph, Op, Tensor
from npusim.isa.functions import Binary, Reduce, Unary

MOST_NODES = 20
"""Maximum number of nodes in a formula. The longest that exporters write has twelve."""
_EXPANDED = frozenset({"binary", "unary", "reduce", "cast"})
_ROWS = frozenset({"normalize", "softmax"})
_SIGNS = frozenset({Unary.ERF, Unary.TANH, Unary.SIGMOID, Unary.EXP, Unary.HARD_SIGMOID, Unary.CLIP, Unary.RELU})
"""A formula contains one of these, or a reduction."""


def restore_operators(graph: Graph) -> Graph:
    """The graph with one operator in place of the nodes of each known formula."""
    if not any(_is_sign(op) or op.kind in _ROWS for op in graph.ops):
        return graph
    return Rewriter(graph).run(_restore)


def _is_sign(op: Op) -> bool:
    if op.kind == "binary":
        return bool(op.attrs["fn"] == Binary.MAX)
    return op.kind == "reduce" or (op.kind == "unary" and op.attrs["fn"] in _SIGNS)


def _restore(rewriter: Rewriter, op: Op) -> bool:
    """Replace ``op`` by an operator if it is the last node of a formula."""
    if op.kind == "cast":
        return _in_one_type(rewriter, op)
    if op.kind not in ("binary", "unary") or not op.output.dtype.is_float:
        return False
    nodes = _nodes(rewriter, op)
    for x in _read_often(nodes, op.output.shape):
        inside = _between(nodes, op, x)
        if inside is None or not any(map(_is_sign, inside.values())) or not _is_closed(rewriter, inside, op.output):
            continue
        found = _expand(op.output, x, inside)
        if found is None:
            continue
        value = of_atom(Atom("tensor", x))
        for formula in (_activation, _softmax, _norm):
            made = formula(found, value, op.output.shape)
            if made is not None and all(each is None or each.dtype is x.dtype for each in made[2:]):
                rewriter.substitute(op.output, _made(rewriter, op, x, *made))
                return True
    return False


def _in_one_type(rewriter: Rewriter, op: Op) -> bool:
    """Remove the casts around a row operator, which computes in double precision and rounds once anyway."""
    rows = rewriter.producer.get(op.input(0))
    if rows is None or rows.kind not in _ROWS or rewriter.uses.get(rows.output, 0) > 1:
        return False
    widened = rewriter.made_by(rows.input(0), "cast")
    if widened is None or not _is_float_cast(widened) or widened.input(0).dtype is not op.output.dtype:
        return False
    rewriter.substitute(op.output, rewriter.add(op.name, rows.kind, widened.inputs, rows.attrs))
    return True


def _is_float_cast(op: Op) -> bool:
    return op.input(0).dtype.is_float and op.output.dtype.is_float


def _nodes(rewriter: Rewriter, op: Op) -> dict[Tensor, Op]:
    """The nodes that may belong to a formula that ends with ``op``, by their results, last first."""
    nodes, queue = {op.output: op}, [op]
    for each in queue:
        for operand in each.inputs:
            maker = rewriter.producer.get(operand) if operand is not None else None
            if maker is None or maker.output in nodes or maker.kind not in _EXPANDED or len(nodes) >= MOST_NODES:
                continue
            if maker.kind != "cast" or _is_float_cast(maker):
                nodes[maker.output] = maker
                queue.append(maker)
    return nodes


def _read_often(nodes: dict[Tensor, Op], shape: Sequence[int]) -> list[Tensor]:
    """Candidates for the ``x`` of a formula, which contains it at least twice, in graph order.

    Earlier values come first, because the normalisation of a centred value is also one of the value itself.
    """
    reads = Counter(operand for op in nodes.values() for operand in {each for each in op.inputs if each is not None})
    often = [each for each, count in reads.items() if count > 1 and each.shape == shape and not each.is_constant]
    return often[::-1]


def _between(nodes: dict[Tensor, Op], op: Op, x: Tensor) -> dict[Tensor, Op] | None:
    """The nodes from ``x`` to ``op``, by their results; None if they have inputs other than ``x`` and constants."""
    inside, queue = {op.output: op}, [op]
    for each in queue:
        for operand in each.inputs:
            if operand is None or operand is x or operand in inside or operand.is_constant:
                continue
            if operand not in nodes:
                return None
            inside[operand] = nodes[operand]
            queue.append(nodes[operand])
    return inside


def _is_closed(rewriter: Rewriter, inside: dict[Tensor, Op], result: Tensor) -> bool:
    """Whether no other node reads a value in between."""
    reads = Counter(operand for op in inside.values() for operand in {each for each in op.inputs if each is not None})
    return all(tensor is result or rewriter.uses.get(tensor) == reads[tensor] for tensor in inside)


def _expand(result: Tensor, x: Tensor, inside: dict[Tensor, Op]) -> Polynomial | None:
    """A result as a polynomial of ``x`` and constants; None if it is not one with few terms."""
    known: dict[Tensor, Polynomial] = {x: of_atom(Atom("tensor", x))}

    def of(tensor: Tensor) -> Polynomial | None:
        if tensor not in known:
            if tensor not in inside:
                value = scalar_of(tensor)
                known[tensor] = of_atom(Atom("tensor", tensor)) if value is None else number(value)
                return known[tensor]
            found = _step(inside[tensor], [of(each) for each in inside[tensor].inputs if each is not None])
            if found is None or len(found.terms) > MOST_TERMS:
                return None
            known[tensor] = found
        return known[tensor]

    return of(result)


def _step(op: Op, given: Sequence[Polynomial | None]) -> Polynomial | None:
    """The polynomial of an operator's result; None if there is none."""
    operands = [each for each in given if each is not None]
    if len(operands) < len(given):
        return None
    if op.kind == "binary":
        return (_leaky if op.attrs["fn"] == Binary.MAX else partial(binary, op.attrs["fn"]))(*operands)
    (inner,) = operands
    if op.kind == "cast":
        return inner
    if op.kind == "unary":
        return unary(op.attrs["fn"], inner, op.attrs["p0"], op.attrs["p1"])
    axes = tuple(op.attrs["axes"])
    match op.attrs["fn"] if op.attrs["keepdims"] else None:
        case Reduce.MEAN:
            return mean(inner, axes)
        case Reduce.SUM:
            return number(float(_count(op.input(0), axes))) * mean(inner, axes)
        case Reduce.MAX:
            return largest(inner, axes)
    return None


def _count(tensor: Tensor, axes: Sequence[int]) -> int:
    """Number of elements along axes."""
    return math.prod(tensor.shape[axis] for axis in axes)


Found = tuple[str, dict[str, Any], Tensor | None, Tensor | None]
"""(kind, attributes, factor, term): an operator, and constants that multiply its result and are added to it."""


def _made(
    rewriter: Rewriter, op: Op, x: Tensor, kind: str, attrs: dict[str, Any], factor: Tensor | None, term: Tensor | None
) -> Tensor:
    value = rewriter.add(f"{op.name}.{kind}", kind, (x,), attrs)
    if factor is not None:
        value = rewriter.add(f"{op.name}.scale", "binary", (value, factor), {"fn": Binary.MUL})
    if term is not None:
        value = rewriter.add(f"{op.name}.shift", "binary", (value, term), {"fn": Binary.ADD})
    if value.dtype is not op.output.dtype:
        value = rewriter.add(f"{op.name}.cast", "cast", (value,), {"to": op.output.dtype})
    return value


def _leaky(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """max(x, alpha * x) with 0 < alpha < 1, as an atom of x."""
    for x, other in ((a, b), (b, a)):
        if len(x.terms) == 1 and set(x.terms) == set(other.terms):
            ((monomial, value),) = x.terms.items()
            alpha = other.terms[monomial] / value
            if value == 1.0 and 0.0 < alpha < 1.0:
                return of_atom(Atom("leaky", x, (alpha,)))
    return None


def _activation(found: Polynomial, x: Polynomial, shape: Sequence[int]) -> Found | None:
    """A function of each element."""
    for function, p0, formula in _activations(found, x):
        if found == formula:
            return "unary", {"fn": function, "p0": p0}, None, None
    return None


def _activations(found: Polynomial, x: Polynomial) -> Iterator[tuple[Unary, float, Polynomial]]:
    """Yield (function, parameter, polynomial) of the activations that ``found`` may be."""
    half, cube = number(0.5) * x, x * x * x
    if len(found.terms) == 2:
        yield Unary.GELU, 0.0, half + half * of_atom(Atom("erf", number(math.sqrt(0.5)) * x))
        inner = number(math.sqrt(2 / math.pi)) * (x + number(0.044715) * cube)
        yield Unary.GELU_TANH, 0.0, half + half * of_atom(Atom("tanh", inner))
    if len(found.terms) != 1:
        return
    for atom, _ in found.factors():
        if atom.kind == "power" and isinstance(atom.of, Polynomial):
            for power in _atoms(atom.of):
                if power.kind == "exp" and isinstance(power.of, Polynomial) and len(power.of.terms) == 1:
                    (alpha,) = (-value for value in power.of.terms.values())
                    yield Unary.SILU, alpha, x * sigmoid(number(alpha) * x)
        elif atom.kind == "clip":
            clipped = clip(number(1 / 6) * x + number(0.5), 0.0, 1.0)
            assert clipped is not None
            yield Unary.HARD_SWISH, 0.0, x * clipped
        elif atom.kind == "tanh":
            yield Unary.MISH, 0.0, x * of_atom(Atom("tanh", softplus(x)))
        elif atom.kind == "leaky":
            yield Unary.LEAKY_RELU, atom.details[0], of_atom(Atom("leaky", x, atom.details))


def _softmax(found: Polynomial, x: Polynomial, shape: Sequence[int]) -> Found | None:
    """Only if the maximum is subtracted: otherwise a large input gives NaN, unlike the operator."""
    axes = {atom.details for atom in _atoms(found) if atom.kind == "max"}
    if len(axes) != 1 or len(found.terms) > 3:
        return None
    (along,) = axes
    if len(along) != 1:
        return None
    centred = x + number(-1.0) * largest(x, along)
    powers = of_atom(Atom("exp", centred))
    total = number(float(shape[along[0]])) * mean(powers, along)
    for log in (False, True):
        shares = centred + number(-1.0) * of_atom(Atom("log", total)) if log else binary(Binary.DIV, powers, total)
        if found == shares:
            return "softmax", {"axis": along[0], "log": log}, None, None
    return None


def _atoms(found: Polynomial) -> Iterator[Atom]:
    """All atoms, including those inside functions and reductions."""
    stack = [found]
    while stack:
        for atom, _ in stack.pop().factors():
            yield atom
            if isinstance(atom.of, Polynomial):
                stack.append(atom.of)


def _norm(found: Polynomial, x: Polynomial, shape: Sequence[int]) -> Found | None:
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
    average, squares = mean(x, axes), mean(x * x, axes)
    scaled = of_atom(root, -0.5)
    for mode, spread, centre in (
        ("layer", squares + number(-1.0) * average * average, x + number(-1.0) * average),
        ("rms", squares, x),
    ):
        if variance != spread + number(epsilon) or epsilon <= 0:
            continue
        for factor, term in _constants(found):
            if found == scaled * centre * factor[1] + term[1]:
                return "normalize", {"axis": axes[0], "mode": mode, "epsilon": epsilon}, factor[0], term[0]
    return None


Constant = tuple[Tensor | None, Polynomial]


def _constants(found: Polynomial) -> Iterator[tuple[Constant, Constant]]:
    """Yield pairs of constants of the formula that may be the factor and the term of a result, or none."""
    tensors = {atom.of for atom, _ in found.factors() if isinstance(atom.of, Tensor) and atom.of.is_constant}
    named = [(tensor, of_atom(Atom("tensor", tensor))) for tensor in sorted(tensors, key=lambda tensor: tensor.name)]
    for factor in [(None, number(1.0)), *named]:
        for term in [(None, Polynomial({})), *named]:
            yield factor, term
