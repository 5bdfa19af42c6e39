"""Caches that grow in place: which values they are, what is moved for them, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.graph import DOUBLING, Graph, Tensor
from npusim.hw.config import Config, load_config
from npusim.isa.base import decode
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder
from npusim.program import FIRST_IO, Program
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted, simulated
from tests.support.programs.race_detector import find_races, limits_of

TINY = load_config("tiny")
SHAPE = (2, 3, 5, 8)
"""Shape of a cache: batch, heads, rows, depth."""


def grown(
    join: Callable[[GraphBuilder, Tensor, Tensor], list[Tensor]],
    *,
    shape: tuple[int, ...] = SHAPE,
    rows: int | None = 0,
) -> Graph:
    """Build a graph of ``past``, and of ``new`` with one row."""
    build = GraphBuilder("cache")
    past = build.input("past", shape, DType.FLOAT32)
    new = build.input("new", (*shape[:2], 1, shape[3]), DType.FLOAT32)
    graph = build.finish(join(build, past, new))
    graph.cache_rows = rows
    return graph


def attention(build: GraphBuilder, past: Tensor, new: Tensor) -> list[Tensor]:
    """Build attention with the cache as keys and values and the new row as the query."""
    row = build.add("unary", [new], {"fn": Unary.NEG})  # computed directly into the cache
    cache = build.add("concat", [past, row], {"axis": 2})
    scores = build.add("matmul", [new, build.add("transpose", [cache], {"perm": (0, 1, 3, 2)})])
    return [build.add("matmul", [build.add("softmax", [scores], {"axis": 3, "log": False}), cache]), cache]


def joined(build: GraphBuilder, past: Tensor, new: Tensor) -> list[Tensor]:
    return [build.add("concat", [past, new], {"axis": 2})]


def check(graph: Graph, config: Config = TINY) -> Program:
    """Compile the graph and compare with a program without shared memory, in program order and on the device. Fails on
    a race."""
    program = compile_graph(graph, config)
    rows, graph.cache_rows = graph.cache_rows, None
    apart = compile_graph(graph, config)
    graph.cache_rows = rows
    assert not apart.states
    rng = np.random.default_rng(2)
    inputs: dict[str, Any] = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in graph.inputs}
    wanted = interpreted(apart, config, inputs)
    same_bytes(interpreted(program, config, inputs), wanted, "in order")
    same_bytes(simulated(program, config, inputs).outputs, wanted, "on the device")
    assert not find_races(list(decode(program.code)), limits_of(program, config))
    return program


@pytest.mark.parametrize("rows", [0, 6, 9, 64])
@pytest.mark.parametrize("changes", [{}, {"cores": 2}, {"dma.channels": 3}])
def test_a_cache_is_one_buffer_with_room_for_its_rows(rows: int, changes: dict[str, object]) -> None:
    program = check(grown(attention, rows=rows), TINY.with_(**changes))
    ((old, new),) = program.states
    assert (old.name, old.shape, new.shape) == ("past", SHAPE, (2, 3, 6, 8))
    assert (old.region, new.region, old.axis) == (FIRST_IO, FIRST_IO, 2)
    assert old.capacity == new.capacity == (rows or 6)
    assert program.region_bytes[FIRST_IO] == 2 * 3 * (rows or 6) * 8 * 4
    assert program.region_bytes[new.region + 2 + 1] == 0  # the output needs no memory of its own


def test_room_for_the_next_power_of_two() -> None:
    for past, room in ((0, 1), (1, 2), (2, 4), (3, 4), (4, 8), (7, 8), (8, 16)):
        program = compile_graph(grown(joined, shape=(2, 3, past, 8), rows=DOUBLING), TINY)
        assert [old.capacity for old, _ in program.states] == [room]


def test_only_the_new_row_is_moved() -> None:
    run = simulated(program := check(grown(joined)), TINY, {}, timing_only=True)
    row = 2 * 3 * 8 * 4
    assert (run.dram_read_bytes, run.dram_write_bytes) == (row + len(program.code), row)


def test_a_cache_without_rows_begins() -> None:
    program = check(grown(attention, shape=(2, 3, 0, 8), rows=4))
    ((old, new),) = program.states
    assert (old.shape[2], new.shape[2], old.nbytes) == (0, 1, 2 * 3 * 4 * 8 * 4)


def test_several_new_rows_and_readers_of_the_old_ones() -> None:
    def join(build: GraphBuilder, past: Tensor, new: Tensor) -> list[Tensor]:
        last = build.add("slice", [past], {"starts": (0, 0, 4, 0), "sizes": (2, 3, 1, 8), "steps": (1,) * 4})
        cache = build.add("concat", [past, new, last], {"axis": 2})
        return [
            build.add("binary", [cache, cache], {"fn": Binary.ADD}),
            cache,
            build.add("unary", [past], {"fn": Unary.ABS}),
        ]

    program = check(grown(join, rows=10))
    assert [new.shape[2] for _, new in program.states] == [7]


def test_rows_along_the_last_dimension() -> None:
    """As in caches of transposed keys."""

    def join(build: GraphBuilder, past: Tensor, new: Tensor) -> list[Tensor]:
        turned = build.add("transpose", [new], {"perm": (0, 1, 3, 2)})
        return [build.add("concat", [past, turned], {"axis": 3})]

    build = GraphBuilder("keys")
    shapes = (2, 3, 8, 5), (2, 3, 1, 8)
    graph = build.finish(
        join(build, *(build.input(name, shape, DType.FLOAT32) for name, shape in zip("ab", shapes, strict=True)))
    )
    graph.cache_rows = 7
    assert [(old.axis, old.capacity) for old, _ in check(graph).states] == [(3, 7)]


@pytest.mark.parametrize(
    "join",
    [
        lambda build, past, new: [  # new rows in front of the old ones
            build.add("concat", [build.add("unary", [new], {"fn": Unary.NEG}), past], {"axis": 2})
        ],
        lambda build, past, new: [build.add("concat", [past, past], {"axis": 2})],
        lambda build, past, new: [build.add("unary", joined(build, past, new), {"fn": Unary.NEG})],
        lambda build, past, new: [
            build.add("concat", [build.add("unary", [past], {"fn": Unary.NEG}), new], {"axis": 2})
        ],
    ],
)
def test_what_is_no_cache(join: Callable[[GraphBuilder, Tensor, Tensor], list[Tensor]]) -> None:
    assert not check(grown(join)).states


def test_of_two_that_grow_from_one_input_the_first_shares() -> None:
    def join(build: GraphBuilder, past: Tensor, new: Tensor) -> list[Tensor]:
        turned = build.add("unary", [new], {"fn": Unary.NEG})
        return [*joined(build, past, new), build.add("concat", [past, turned], {"axis": 2})]

    program = check(grown(join))
    assert [new.name for _, new in program.states] == [program.outputs[0].name]


def test_too_little_room_is_said() -> None:
    with pytest.raises(CompileError, match=r"^'past' grows to 6 rows as 'concat', but the cache has room for 5$"):
        compile_graph(grown(joined, rows=5), TINY)
