"""Work too large for one instruction is split, even if it fits in the SRAM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest

from npusim.compiler.lower import base, movement, routine, transfer
from npusim.compiler.pipeline import compile_graph
from npusim.errors import CompileError
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.isa import matrix
from npusim.isa.base import INSTRUCTIONS, Instruction, decode
from npusim.program import Program
from npusim.timing import tile
from tests.support.graphs.every_kind import CASES
from tests.support.graphs.execution import interpreted

LIMITS = (
    (tile, "MAX_PRODUCTS"), (tile, "MAX_ELEMENTS"), (base, "MAX_ELEMENTS"), (movement, "MAX_ITEMS"),
    (transfer, "MAX_ITEMS"), (routine, "MAX_ROUTINE_STEPS"),
)  # fmt: skip
ROWS = ("its smallest tile needs an instruction on", "its smallest tile takes")
"""Error texts for a graph with a row that is too long and cannot be split."""


@contextmanager
def limits(of: dict[int, int]) -> Iterator[None]:
    """Replace the instruction limits by ``of``, which maps each old limit to a new one. The verifier enforces them."""
    forget()
    with ExitStack() as stack:
        for module, name in LIMITS:
            stack.enter_context(mock.patch.object(module, name, of[getattr(module, name)]))
        for cls in (Instruction, *INSTRUCTIONS.values()):
            if "limit" in vars(cls):
                stack.enter_context(mock.patch.object(cls, "limit", of[cls.limit]))
        yield
    forget()


def forget() -> None:
    """Clear the caches that depend on the limits."""
    tile.forget()
    transfer.forget()


def largest(program: Program) -> dict[int, int]:
    """Return the largest number of elements of one instruction, per limit."""
    found = {cls.limit: 0 for cls in INSTRUCTIONS.values()}
    for command in decode(program.code):
        kind = command.instruction.limit
        found[kind] = max(found[kind], command.instruction.elements())
    return found


def cut_or_refused(graph: Graph, config: Config) -> Program | None:
    """Compile the graph; None if an indivisible row exceeds the limit."""
    try:
        return compile_graph(graph, config)
    except CompileError as error:
        said = str(error)
    assert said.split(": ", 1)[1].startswith(ROWS), said
    return None


# Gathering the weights of a block takes as long as thousands of products, whatever the limit is.
@mock.patch.object(matrix, "GATHER_PRODUCTS", 0)
@pytest.mark.parametrize("name", CASES)
def test_half_of_the_largest_is_enough(name: str) -> None:
    """Half the instruction size gives the same results, unless that is less than one row."""
    case = CASES[name]
    graph, feeds = case.graph()
    program = compile_graph(graph, case.config)
    wanted = interpreted(program, case.config, feeds)
    whole = largest(program)
    for kind, size in whole.items():
        if size < 2:
            continue
        halves = {limit: max(1, size // 2) if limit == kind else limit for limit in whole}
        with limits(halves):
            cut = cut_or_refused(graph, case.config)
        if cut is None:
            continue
        assert {limit: count for limit, count in largest(cut).items() if count > halves[limit]} == {}
        for output, values in interpreted(cut, case.config, feeds).items():
            np.testing.assert_array_equal(values, wanted[output], err_msg=f"{name}: {output}")
