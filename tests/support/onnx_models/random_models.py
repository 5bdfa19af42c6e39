"""Hypothesis strategies for small random ONNX models of every kind of operator chain, with inputs.

The models are valid, static and well-conditioned: floats stay of order 1, and quantised values fill their range without
all saturating. Every model has opset 17 and at least one input; shrinking leads to few nodes of small shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from hypothesis import strategies as st

from tests.support.onnx_models.builder import ModelBuilder
from tests.support.onnx_models.random_float_steps import FLOAT_STEPS
from tests.support.onnx_models.random_integer_steps import INT32_STEPS, QUANT_STEPS, quantised_input
from tests.support.onnx_models.random_steps import MOST_ELEMENTS, Grower, Value

MOST_STEPS = 6


@dataclass(frozen=True)
class RandomModel:
    """A model and one set of inputs. Its repr is the list of nodes, for failing examples."""

    model: onnx.ModelProto
    inputs: dict[str, npt.NDArray[Any]]

    def __repr__(self) -> str:
        feeds = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self.inputs.items())
        nodes = " ".join(node.op_type for node in self.model.graph.node)
        return f"<RandomModel {feeds} | {nodes}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis prints failing examples with this instead of repr."""
        printer.text(repr(self))


@st.composite
def float_models(draw: st.DrawFn, most_steps: int = MOST_STEPS) -> RandomModel:
    """Float32: convolutions, matrix products, elementwise, movement, reductions, softmax, with skip connections."""
    build = ModelBuilder("random_float", seed=draw(st.integers(0, 2**32 - 1)))
    shape = draw(_shapes())
    grower = Grower(draw, build, Value(build.input("x", shape), shape, np.dtype(np.float32)))
    array = build.rng.standard_normal(shape, np.float32)
    grower.grow(FLOAT_STEPS, draw(st.integers(1, most_steps)))
    return RandomModel(build.finish(grower.outputs()), {"x": array})


@st.composite
def int32_models(draw: st.DrawFn, most_steps: int = MOST_STEPS) -> RandomModel:
    """Int32 arithmetic that wraps, comparisons, selection and movement."""
    build = ModelBuilder("random_int32", seed=draw(st.integers(0, 2**32 - 1)))
    shape = draw(_shapes())
    name = build.input("x", shape, onnx.TensorProto.INT32)
    grower = Grower(draw, build, Value(name, shape, np.dtype(np.int32)))
    array = build.rng.integers(-1000, 1000, shape, np.int32)
    grower.grow(INT32_STEPS, draw(st.integers(1, most_steps)))
    return RandomModel(build.finish(grower.outputs()), {"x": array})


@st.composite
def int8_models(draw: st.DrawFn, most_steps: int = MOST_STEPS, power_of_two: bool = True) -> RandomModel:
    """Quantised int8 / uint8: QLinearConv, QLinearMatMul, the Integer operators, QDQ islands, movement.

    With ``power_of_two`` every scale is a power of two, so that all correct implementations agree bit for bit.
    """
    build = ModelBuilder("random_int8", seed=draw(st.integers(0, 2**32 - 1)))
    shape = draw(_shapes())
    value, array = quantised_input(draw, build, shape, power_of_two)
    grower = Grower(draw, build, value)
    grower.grow(QUANT_STEPS, draw(st.integers(1, most_steps)))
    return RandomModel(build.finish(grower.outputs()), {"x": array})


def models() -> st.SearchStrategy[RandomModel]:
    """Any of the three kinds."""
    return st.one_of(float_models(), int8_models(), int32_models())


@st.composite
def _shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """[batch, channels, height, width], [batch, rows, columns] or [rows, columns], at most MOST_ELEMENTS elements."""
    rank = draw(st.sampled_from((4, 3, 2)))
    shape = [draw(st.integers(1, 2))] if rank > 2 else []
    shape.append(draw(st.integers(1, 20)))
    while len(shape) < rank:
        shape.append(draw(st.integers(1, 11)))
    assert np.prod(shape) <= MOST_ELEMENTS
    return tuple(shape)
