"""Random models in which input values decide what is computed, each with an equivalent model without decisions.

Inputs and weights are small integers in any type, so sums are exact and all implementations decide alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models.oracle import runtime_outputs

Array = npt.NDArray[Any]
OPSET = 17
BOUND = 8.0
"""Values between layers are clipped to this magnitude."""


@dataclass(frozen=True)
class Decided:
    """``model`` decides at run time; ``straight`` computes the same for ``inputs`` without control flow.

    Constants in ``straight`` replace values that decide a shape, so it takes only some of the inputs. ``features``:
    kinds of decisions.
    """

    model: onnx.ModelProto
    straight: onnx.ModelProto
    inputs: dict[str, Array]
    features: tuple[str, ...]

    @property
    def straight_inputs(self) -> dict[str, Array]:
        return {value.name: self.inputs[value.name] for value in self.straight.graph.input}


class Twins:
    """Writes both models at once; every method returns the name of the value that it added."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.straight: list[onnx.NodeProto] = []
        self.taken = True
        self.features: list[str] = []
        self._count = 0

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def const(self, array: Any) -> str:
        name = self.fresh("const")
        self.constants[name] = np.asarray(array)
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self.rng.integers(-2, 3, shape).astype(np.float32))

    def op(self, kind: str, *inputs: str, decides: int = -1, outputs: int = 1, **attributes: Any) -> str:
        """Add a node whose first output is used. The value of operand ``decides`` decides what it computes."""
        names = [self.fresh(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        if self.taken:
            fixed = list(inputs)
            if decides >= 0:
                fixed[decides] = self.const(self.value(inputs[decides]))
            self.straight.append(helper.make_node(kind, fixed, names, name=names[0], **attributes))
        return names[0]

    def value(self, name: str) -> Array:
        """Return a value for these inputs."""
        return runtime_outputs(self.finish(self.straight, [name]), self.inputs)[name]

    def case(self, *outputs: str) -> Decided:
        """Return both models with these outputs. ``straight`` has no inputs that are only used for decisions."""
        model, straight = (self.finish(nodes, outputs) for nodes in (self.nodes, self.straight))
        read = {name for node in self.straight for name in node.input}
        kept = [value for value in straight.graph.input if value.name in read]
        del straight.graph.input[:]
        straight.graph.input.extend(kept)
        return Decided(model, straight, self.inputs, tuple(self.features))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.value(name).shape

    def layer(self, x: str, features: int, out: int) -> str:
        """Add a product, clipped."""
        y = self.op("MatMul", x, self.weight(features, out))
        return self.op("Clip", y, self.const(np.float32(-BOUND)), self.const(np.float32(BOUND)))

    def number(self, x: str) -> str:
        """Add a scalar that depends on all of x."""
        return self.op("ReduceSum", x, keepdims=0)

    def condition(self, x: str) -> str:
        return self.op("Greater", self.number(x), self.const(np.float32(self.rng.integers(-3, 3) + 0.5)))

    def count(self, x: str, most: int) -> str:
        """Add an integer from 1 to ``most`` as int64[1]."""
        size = self.op("Mod", self.op("Abs", self.number(x)), self.const(np.float32(most)), fmod=1)
        one = self.op("Add", size, self.const(np.float32(1)))
        return self.op("Reshape", self.op("Cast", one, to=TensorProto.INT64), self.const(np.int64([1])))

    def branch(self, condition: str, bodies: tuple[Callable[[], str], Callable[[], str]]) -> str:
        """Add an If; each body writes its nodes and returns its result."""
        graphs, decided = [], self.taken and bool(self.value(condition).reshape(-1)[0])
        outer, taken, result = self.nodes, self.taken, self.fresh("If")
        for place, body in enumerate(bodies):
            self.nodes, self.taken = [], taken and decided == (place == 0)
            found = self.op("Identity", body())
            graphs.append(helper.make_graph(self.nodes, f"{result}_{place}", [], [untyped(found)]))
            if self.taken:
                self.straight.append(helper.make_node("Identity", [found], [result], name=result))
        self.nodes, self.taken = outer, taken
        self.nodes.append(
            helper.make_node("If", [condition], [result], name=result, then_branch=graphs[0], else_branch=graphs[1])
        )
        return result

    def loop(self, x: str, features: int, count: str, ends_early: bool) -> str:
        """Add a Loop of layers; with ``ends_early`` the state decides after each iteration whether to continue."""
        weight, names = self.weight(features, features), [self.fresh(stem) for stem in ("step", "go", "state")]
        limit, result = np.float32(self.rng.integers(-3, 3) + 0.5), self.fresh("Loop")

        def body(state: str) -> tuple[str, str]:
            y = self.op("MatMul", state, weight)
            y = self.op("Clip", y, self.const(np.float32(-BOUND)), self.const(np.float32(BOUND)))
            return y, self.op("Greater", self.number(y), self.const(limit)) if ends_early else ""

        outer, taken = self.nodes, self.taken
        self.nodes, self.taken = [], False
        y, again = body(names[2])
        again = again or self.op("Identity", names[1])
        kinds = (TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT)
        formal = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, kinds, strict=True)]
        formal[0] = helper.make_tensor_value_info(names[0], kinds[0], [])
        formal[1] = helper.make_tensor_value_info(names[1], kinds[1], [])
        graph = helper.make_graph(
            self.nodes, f"{result}_body", formal, [helper.make_tensor_value_info(again, kinds[1], []), untyped(y)]
        )
        self.nodes, self.taken = [], taken  # from here on only nodes of the straight model are written
        state = x
        for _ in range(int(self.value(count).reshape(-1)[0]) if taken else 0):
            state, again = body(state)
            if ends_early and not self.value(again):
                break
        if taken:
            self.straight.append(helper.make_node("Identity", [state], [result], name=result))
        self.nodes = outer
        self.nodes.append(helper.make_node("Loop", [count, "", x], [result], name=result, body=graph))
        return result

    def finish(self, nodes: list[onnx.NodeProto], outputs: Sequence[str]) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.inputs.items()
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(nodes, "decided", inputs, [untyped(name) for name in outputs], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = 8
        return model


def untyped(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def decided_model(seed: int) -> Decided:
    """Return a model with one to three consecutive decisions based on one input."""
    twins = Twins(seed)
    rng = twins.rng
    rows, features = int(rng.integers(1, 5)), int(rng.integers(2, 9))
    if rng.random() < 0.25:  # tokens of an embedding
        twins.inputs["ids"] = rng.integers(0, 16, rows)
        x = twins.op("Gather", twins.weight(16, features), "ids")
    else:
        twins.inputs["x"] = rng.integers(-3, 4, (rows, features)).astype(np.float32)
        x = "x"
    if rng.random() < 0.6:
        wide = int(rng.integers(4, 33))
        x, features = twins.layer(x, features, wide), wide
    for _ in range(int(rng.integers(1, 4))):
        x, features = _step(twins, x, features)
    return twins.case(x, twins.layer(x, features, 4))


def _step(twins: Twins, x: str, features: int, depth: int = 0) -> tuple[str, int]:
    """Add a decision and what depends on it. Returns the value, a matrix, and its number of columns."""
    rng = twins.rng
    kind = str(rng.choice(["if", "if on an input", "loop", "while", "topk", "reshape", "slice"]))
    twins.features.append(kind)
    rows = twins.shape(x)[0] if twins.taken else 1
    if kind in ("if", "if on an input"):
        condition = twins.condition(x)
        if kind == "if on an input":
            condition = f"flag_{len(twins.inputs)}"
            twins.inputs[condition] = np.array(rng.random() < 0.5)
        out = int(rng.integers(2, 33))

        def deep() -> str:
            if depth or rng.random() < 0.6:
                return twins.layer(twins.layer(x, features, 16), 16, out)
            inner, columns = _step(twins, x, features, depth + 1)
            return twins.layer(inner, columns, out)

        return twins.branch(condition, (deep, lambda: twins.layer(x, features, out))), out
    if kind in ("loop", "while"):
        return twins.loop(x, features, twins.count(x, 4), kind == "while"), features
    if kind == "topk":
        # The number of columns is kept, so that the next steps know it.
        best = twins.op("TopK", x, twins.count(x, rows), decides=1, outputs=2, axis=0)
        return best, features
    if kind == "slice":
        return twins.op("Slice", x, twins.const(np.int64([0])), twins.count(x, rows), decides=2), features
    # Rows may become columns: the product with its transpose has as many of both as the shape decides.
    flat = twins.op("Reshape", x, twins.const(np.int64([-1])))
    ones = twins.op("Concat", twins.count(x, 1), twins.const(np.int64([-1])), axis=0)
    tall = twins.op("Concat", twins.const(np.int64([-1])), twins.count(x, 1), axis=0)
    shape = twins.op("Where", twins.condition(x), ones, tall)
    y = twins.op("Reshape", flat, shape, decides=1)
    square = twins.op("MatMul", twins.op("Transpose", y, perm=[1, 0]), y)
    clipped = twins.op("Clip", square, twins.const(np.float32(-BOUND)), twins.const(np.float32(BOUND)))
    total = twins.op("ReduceMax", clipped, axes=[0], keepdims=1)  # [1, columns]
    one = twins.op("ReduceMax", total, axes=[1], keepdims=1)
    return twins.op("Add", x, one), features


def branching_mlp(widths: tuple[int, ...], x: Array, seed: int = 0) -> Decided:
    """Return layers of these widths on x; the sign of their sum chooses between two last layers."""
    twins = Twins(seed)
    twins.inputs["x"] = x
    value = "x"
    for features, out in itertools.pairwise(widths[:-1]):
        value = twins.layer(value, features, out)
    bodies = tuple(lambda: twins.layer(value, *widths[-2:]) for _ in range(2))
    return twins.case(twins.branch(twins.condition(value), (bodies[0], bodies[1])))


def two_products(x: Array, seed: int = 0) -> Decided:
    """Return an If whose branches multiply an input by different weights."""
    twins = Twins(seed)
    twins.inputs["x"] = x
    features = x.shape[1]
    bodies = (lambda: twins.layer("x", features, 16), lambda: twins.layer("x", features, 48))
    return twins.case(twins.branch(twins.condition("x"), bodies))
