"""TFLite models that decide at run time what is computed: programs with decisions of the host between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.errors import DeadlineError, ModelError, UndecidedError, UnsupportedError
from npusim.frontends import models
from npusim.graph import Graph
from npusim.program import Program
from npusim.runtime import Session

tflite = pytest.importorskip("tflite", reason="the extra tflite")

from tests.support.tflite_models import Given, Operator, Subgraph, const, model  # noqa: E402

SIZE = 40
"""More elements than a value may have that decides before the run."""
X, Y = Given("x", (SIZE,)), Given("y", (SIZE,))


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("tiny", cache_dir=False) as session:
        yield session


def doubled(limit: float = 100.0, *, step: str = "ADD") -> bytes:
    """y = -x, with x doubled until its sum reaches a limit, and how often."""
    count, more, total = Given("n", (), "int32"), Given("more", (), "bool"), Given("sum", ())
    axes, bound, one = const("axes", np.int32([0])), const("limit", np.float32(limit)), const("one", np.int32(1))
    condition = Subgraph(
        [count, X, axes, total, bound, more],
        [Operator("SUM", [1, 2], [3], "ReducerOptions"), Operator("LESS", [3, 4], [5])], [0, 1], [5], "cond",
    )  # fmt: skip
    body = Subgraph(
        [count, X, one, Given("m", (), "int32"), Y],
        [Operator("ADD", [0, 2], [3], "AddOptions"), Operator(step, [1, 1], [4], f"{step.title()}Options")],
        [0, 1], [3, 4], "body",
    )  # fmt: skip
    main = Subgraph(
        [const("zero", np.int32(0)), X, Given("a", (SIZE,)), Given("times", (), "int32"), Given("b", (SIZE,)), Y],
        [
            Operator("RELU", [1], [2]),
            Operator("WHILE", [0, 2], [3, 4], "WhileOptions", {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}),
            Operator("NEG", [4], [5]),
        ], [1], [5, 3],
    )  # fmt: skip
    return model([main, condition, body])


@pytest.mark.parametrize("value", [0.01, 0.5, 2.0, 3.0, 0.11])
def test_loops_on_data(session: Session, value: float) -> None:
    x = np.full(SIZE, value, np.float32)
    result = session.run(doubled(), {"x": x})
    times = 0
    while np.maximum(x, 0).sum() < 100:
        x, times = x + x, times + 1
    np.testing.assert_array_equal(result.outputs["y"], -x)
    assert result.outputs["times"] == times
    assert result.decisions.count == times + 1
    assert 0 < result.decisions.time_ps < result.time_ps


def test_loops_are_compiled_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other data does not need other programs: what is before the loop and behind it, its condition and its body."""
    made: list[str] = []

    def compiled(graph: Graph, *arguments: Any) -> Program:
        made.append(graph.name)
        return compile_graph(graph, *arguments)

    monkeypatch.setattr("npusim.compiler.pipeline.compile_graph", compiled)
    for value in (0.5, 0.01, 2.0):
        session.run(doubled(), {"x": np.full(SIZE, value, np.float32)})
    assert len(made) == len(set(made)) == 4
    with pytest.raises(UndecidedError, match="condition must be known"):
        models.load(doubled())


def test_a_loop_without_end_is_stopped() -> None:
    with Session("tiny", cache_dir=False, decision_limit="1 ms") as session, pytest.raises(DeadlineError):
        session.run(doubled(), {"x": np.zeros(SIZE, np.float32)})


def branches() -> bytes:
    """The maximum of x if it is positive, otherwise x, and the shape of it."""
    axes, zero = const("axes", np.int32([0])), const("zero", np.float32(0))
    shorter = Subgraph(
        [X, axes, Given("m", (1,))], [Operator("REDUCE_MAX", [0, 1], [2], "ReducerOptions", {"KeepDims": True})],
        [0], [2], "then",
    )  # fmt: skip
    same = Subgraph([X], [], [0], [0], "else")
    open_shape = {"signature": (-1,)}
    main = Subgraph(
        [X, axes, Given("top", ()), zero, Given("c", (), "bool"), Given("z", (1,), **open_shape),
         Given("s", (1,), "int32"), Given("y", (1,), **open_shape)],
        [
            Operator("REDUCE_MAX", [0, 1], [2], "ReducerOptions"),
            Operator("GREATER", [2, 3], [4]),
            Operator("IF", [4, 0], [5], "IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}),
            Operator("SHAPE", [5], [6], "ShapeOptions", {"OutType": 2}),
            Operator("NEG", [5], [7]),
        ], [0], [7, 6],
    )  # fmt: skip
    return model([main, shorter, same])


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_of_different_shapes(session: Session, sign: int) -> None:
    x = sign * np.arange(1, SIZE + 1, dtype=np.float32)
    outputs = session.run(branches(), {"x": x}).outputs
    np.testing.assert_array_equal(outputs["y"], -x.max(keepdims=True) if sign > 0 else -x)
    assert outputs["s"].tolist() == [1 if sign > 0 else SIZE]


def test_shapes_that_data_decides(session: Session) -> None:
    """The number of rows is the maximum of x."""
    axes = const("axes", np.int32([0]))
    main = Subgraph(
        [X, axes, Given("top", (1,)), Given("n", (1,), "int32"), const("rest", np.int32([-1])),
         Given("s", (2,), "int32"), Given("y", (1, 1), signature=(-1, -1))],
        [
            Operator("REDUCE_MAX", [0, 1], [2], "ReducerOptions", {"KeepDims": True}),
            Operator("CAST", [2], [3], "CastOptions", {"InDataType": 0, "OutDataType": 2}),
            Operator("CONCATENATION", [3, 4], [5], "ConcatenationOptions", {"Axis": 0}),
            Operator("RESHAPE", [0, 5], [6], "ReshapeOptions"),
        ], [0], [6],
    )  # fmt: skip
    for rows in (2, 8, 2):
        x = np.ones(SIZE, np.float32)
        x[7] = rows
        np.testing.assert_array_equal(session.run(model([main]), {"x": x}).outputs["y"], x.reshape(rows, -1))
    with pytest.raises(ModelError):
        session.run(model([main]), {"x": np.full(SIZE, 7, np.float32)})


def test_variables_are_refused(session: Session) -> None:
    """One beside a reshape to the maximum of x."""
    axes, state = const("axes", np.int32([0])), Given("state", (SIZE,), variable=True)
    main = Subgraph(
        [X, axes, Given("top", (1,)), Given("n", (1,), "int32"), Given("y", (1,), signature=(-1,)), state, Y],
        [
            Operator("REDUCE_MAX", [0, 1], [2], "ReducerOptions", {"KeepDims": True}),
            Operator("CAST", [2], [3], "CastOptions", {"InDataType": 0, "OutDataType": 2}),
            Operator("RESHAPE", [0, 3], [4], "ReshapeOptions"),
            Operator("ADD", [0, 5], [6], "AddOptions"),
        ], [0], [4, 6],
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="variables are not supported"):
        session.run(model([main]), {"x": np.zeros(SIZE, np.float32)})
