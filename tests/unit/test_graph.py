"""The graph language: which graphs are well-formed, and fingerprints that distinguish different graphs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.frontends.onnx import load
from npusim.graph import Graph, Op, Tensor, consumers
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder
from npusim.weights import zeros
from tests.support.onnx_models.llama import LlamaSizes, write_llama

NEG = MappingProxyType({"fn": Unary.NEG, "p0": 0.0, "p1": 0.0})


def tensor(name: str, data: object = None) -> Tensor:
    return Tensor(name, (2,), DType.INT32, None if data is None else np.asarray(data, np.int32))


def op(name: str, x: Tensor | None, y: Tensor) -> Op:
    return Op(name, "unary", (x,), (y,), NEG)


X, Y, Z = tensor("x"), tensor("y"), tensor("z")


def test_a_sound_graph_passes() -> None:
    Graph("g", (X,), (Z,), (op("a", X, Y), op("b", Y, Z))).validate()
    Graph("g", (X,), (X,), ()).validate()
    Graph("g", (), (tensor("c", [1, 2]),), ()).validate()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph("g", (X,), (Z,), (op("b", Y, Z), op("a", X, Y))), "b (unary): reads 'y' before it is produced"),
        (
            Graph("g", (X,), (Y,), (op("a", X, Y), op("b", X, Y))),
            "b (unary): the name 'y' is already taken by another tensor",
        ),
        (Graph("g", (X, X), (X,), ()), "graph input: the name 'x' is already taken by another tensor"),
        (Graph("g", (X,), (Y,), ()), "graph output 'y' is not produced"),
        (Graph("g", (X,), (Y,), (op("a", tensor("x"), Y),)), "a (unary): reads 'x' before it is produced"),
        (
            Graph("g", (X,), (Y,), (op("a", tensor("x", [1, 2]), Y),)),
            "a (unary): reads 'x' before it is produced",
        ),
        (Graph("g", (X,), (tensor("y"),), (op("a", X, Y),)), "graph output 'y' is not produced"),
    ],
)
def test_what_is_refused(graph: Graph, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        graph.validate()
    assert str(caught.value) == message


def test_sizes() -> None:
    value = Tensor("t", (3, 0, 2), DType.FLOAT16)
    assert (value.size, value.nbytes, value.is_constant) == (0, 0, False)
    assert Tensor("t", (), DType.INT64).nbytes == 8
    assert repr(Tensor("t", (2, 3), DType.BFLOAT16)) == "<value 't' bfloat16[2, 3]>"
    assert repr(tensor("c", [1, 2])) == "<const 'c' int32[2]>"


def test_operands() -> None:
    absent = Op("c", "conv", (X, Y, None), (Z,))
    assert absent.input(0) is X
    assert absent.optional(2) is None
    assert absent.optional(7) is None
    assert absent.output is Z
    assert repr(absent) == "<conv 'c'>"
    with pytest.raises(ModelError, match=r"^c \(conv\): input 2 is required$"):
        absent.input(2)


def test_constants_come_once_in_order() -> None:
    one, two = tensor("one", [1, 1]), tensor("two", [2, 2])
    ops = (Op("a", "binary", (two, one), (Y,)), Op("b", "binary", (two, None), (Z,)))
    assert list(Graph("g", (), (Z, one), ops).constants()) == [two, one]


def test_consumers() -> None:
    twice = Op("a", "binary", (X, X), (Y,))
    last = op("b", X, Z)
    assert consumers([twice, last]) == {X: [twice, last]}


def sample(
    weight: float = 1.0, fn: Unary = Unary.NEG, name: str = "y", size: int = 3, dtype: DType = DType.FLOAT32
) -> Graph:
    build = GraphBuilder("g")
    x = build.input("x", (size,), dtype)
    y = build.add("unary", [x], {"fn": fn}, name)
    constant = build.const(np.full(size, weight), dtype=dtype)
    return build.finish([build.add("binary", [y, constant], {"fn": Binary.MUL})])


def test_equal_graphs_have_equal_fingerprints() -> None:
    assert sample().fingerprint() == sample().fingerprint()
    others = [
        sample(weight=2.0), sample(fn=Unary.ABS), sample(name="other"), sample(size=4), sample(dtype=DType.FLOAT16)
    ]  # fmt: skip
    assert len({graph.fingerprint() for graph in (sample(), *others)}) == 6


def test_the_layout_of_a_constant_does_not_matter() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    prints = set()
    for form in (data, np.asfortranarray(data), np.repeat(data, 2, axis=1)[:, ::2]):
        build = GraphBuilder("g")
        y = build.add("transpose", [build.const(form)], {"perm": (1, 0)})
        prints.add(build.finish([y]).fingerprint())
    assert len(prints) == 1


def test_fingerprints_do_not_depend_on_the_process() -> None:
    script = "from tests.unit.test_graph import sample; print(sample().fingerprint())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == sample().fingerprint()


def test_a_graph_goes_by_pickle(tmp_path: Path) -> None:
    """Weights in files are pickled as references, zeros as zeros, other constants by value; operators completely."""
    path = write_llama(tmp_path, LlamaSizes(layers=1, hidden=1024, heads=8, feed_forward=1024, vocabulary=1000, past=7))
    graph = load(path)
    pickled = pickle.dumps(graph)
    assert len(pickled) < path.with_suffix(".bin").stat().st_size / 500
    again = pickle.loads(pickled)
    again.validate()
    assert again.fingerprint() == graph.fingerprint()
    assert again.fingerprint(values=False) == graph.fingerprint(values=False)
    assert [(op.origin, type(op.attrs)) for op in again.ops] == [(op.origin, type(op.attrs)) for op in graph.ops]
    assert again.inputs[0] is next(op for op in again.ops if again.inputs[0] in op.inputs).inputs[0]

    build = GraphBuilder("zeros")
    x = build.input("x", (4, 1 << 14), DType.FLOAT16)
    weights = build.const(zeros((1 << 14, 1 << 15), np.float16))  # 1 GiB
    graph = build.finish([build.add("matmul", [x, weights])])
    assert len(pickle.dumps(graph)) < 5000
    assert pickle.loads(pickle.dumps(graph)).fingerprint(values=False) == graph.fingerprint(values=False)
