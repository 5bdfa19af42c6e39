"""Einsum as transposes, reductions and a batched matrix product per additional operand."""

from __future__ import annotations

import math
import string
from dataclasses import dataclass

from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Reduce


@dataclass(frozen=True)
class Term:
    """A tensor with a letter per dimension."""

    tensor: Tensor
    letters: str

    def size(self, letters: str) -> int:
        """Product of the dimensions with these letters."""
        return math.prod(self.tensor.shape[self.letters.index(letter)] for letter in letters)


def parse(node: Node, equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """(letters of each operand, letters of the output), with ellipses expanded and the output made explicit."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        node.damaged(f"equation {equation!r} has {len(parts)} operands, the node has {len(ranks)} inputs")
    # Dimensions of an ellipsis get letters that the equation does not use, beginning with the last ones to keep
    # messages readable.
    free = [letter for letter in reversed(string.ascii_letters) if letter not in equation]
    counts = [rank - len(part.replace("...", "")) for part, rank in zip(parts, ranks, strict=True)]
    most = max((count for part, count in zip(parts, counts, strict=True) if "..." in part), default=0)
    if min(counts) < 0 or most > len(free):
        node.damaged(f"equation {equation!r} does not fit operands of {ranks} dimensions")
    dots = "".join(free[:most])
    spelt = [part.replace("...", dots[most - max(count, 0) :]) for part, count in zip(parts, counts, strict=True)]
    if not arrow:
        letters = "".join(spelt)
        right = "..." + "".join(sorted(x for x in set(letters) if letters.count(x) == 1 and x not in dots))
    output = right.replace("...", dots)
    legal = set(string.ascii_letters)
    if any(len(part) != rank or not set(part) <= legal for part, rank in zip(spelt, ranks, strict=True)):
        node.damaged(f"equation {equation!r} does not fit operands of {ranks} dimensions")
    if len(set(output)) != len(output) or not set(output) <= set("".join(spelt)):
        node.damaged(f"equation {equation!r}: every letter of the output must come from an operand, once")
    return spelt, output


def ordered(node: Node, term: Term, letters: str) -> Tensor:
    """The tensor with its dimensions in the order of ``letters``."""
    return node.transpose(term.tensor, [term.letters.index(letter) for letter in letters])


def diagonal(node: Node, term: Term) -> Term:
    """The term with each letter once: elements whose positions along the dimensions of a letter are equal."""
    tensor, letters = term.tensor, term.letters
    while twice := next((letter for letter in letters if letters.count(letter) > 1), ""):
        first = letters.index(twice)
        second = letters.index(twice, first + 1)
        size = tensor.shape[first]
        if tensor.shape[second] != size:
            node.damaged(f"dimension {twice!r} is {size} and {tensor.shape[second]}")
        rest = [axis for axis in range(len(letters)) if axis not in (first, second)]
        others = [tensor.shape[axis] for axis in rest]
        rows = node.reshape(node.transpose(tensor, (*rest, first, second)), (*others, size * size))
        steps, sizes = (*(1 for _ in rest), size + 1), (*others, size)
        tensor = node.add("slice", rows, starts=(0,) * len(sizes), steps=steps, sizes=sizes)
        letters = "".join(letters[axis] for axis in rest) + twice
    return Term(tensor, letters)


def summed(node: Node, term: Term, kept: str) -> Term:
    """The term without the letters that are not in ``kept``."""
    axes = [axis for axis, letter in enumerate(term.letters) if letter not in kept]
    if not axes:
        return term
    letters = "".join(letter for letter in term.letters if letter in kept)
    return Term(node.reduce(Reduce.SUM, term.tensor, axes, keepdims=False), letters)


def product(node: Node, a: Term, b: Term, kept: str) -> Term:
    """The product of two terms, summed over common letters that are not needed later."""
    # Letters of one operand that are not needed are summed before the product, which makes it smaller.
    a, b = summed(node, a, kept + b.letters), summed(node, b, kept + a.letters)
    for letter in set(a.letters) & set(b.letters):
        if a.size(letter) != b.size(letter):
            node.refuse(f"dimension {letter!r} is {a.size(letter)} and {b.size(letter)}: it must not broadcast")
    shared = [letter for letter in a.letters if letter in b.letters]
    batch = "".join(letter for letter in shared if letter in kept)
    inner = "".join(letter for letter in shared if letter not in kept)
    rows = "".join(letter for letter in a.letters if letter not in b.letters)
    columns = "".join(letter for letter in b.letters if letter not in a.letters)
    left = node.reshape(ordered(node, a, batch + rows + inner), (a.size(batch), a.size(rows), a.size(inner)))
    right = node.reshape(ordered(node, b, batch + inner + columns), (a.size(batch), a.size(inner), b.size(columns)))
    y = node.add("matmul", left, right)
    shape = [a.size(letter) for letter in batch + rows] + [b.size(letter) for letter in columns]
    return Term(node.reshape(y, shape), batch + rows + columns)


@handles("Einsum", limits=["broadcasting of unequal dimensions is refused"])
def einsum(node: Node) -> Tensor:
    """Import Einsum as transpositions, products and sums."""
    tensors = [node.input(index) for index in range(len(node.inputs))]
    letters, output = parse(node, node.text_attr("equation", ""), [len(tensor.shape) for tensor in tensors])
    terms = [diagonal(node, Term(tensor, part)) for tensor, part in zip(tensors, letters, strict=True)]
    total = terms[0]
    for index, term in enumerate(terms[1:], 2):
        later = "".join(other.letters for other in terms[index:])
        total = product(node, total, term, output + later)
    return ordered(node, summed(node, total, output), output)
