"""Random models of operators between QuantizeLinear and DequantizeLinear, as quantisers write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tests.support.onnx_models.builder import ModelBuilder

TYPES = {
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int16): TensorProto.INT16,
}


@dataclass(frozen=True)
class Value:
    """An integer value [1, C, H, W] that represents real numbers."""

    name: str
    shape: tuple[int, ...]
    scale: float
    zero: int


class Chains:
    """Grows a model step by step.

    ``dtype``: type of all integers; ``real``: type of the dequantised values. ``equal``: whether all values share one
    scale and zero point; ``exact``: whether scales are powers of two.
    """

    def __init__(
        self, rng: Random, dtype: npt.DTypeLike, *, real: npt.DTypeLike = np.float32, equal: bool, exact: bool
    ) -> None:
        self.rng, self.dtype, self.real = rng, np.dtype(dtype), np.dtype(real)
        self.equal, self.exact = equal, exact
        self.build = ModelBuilder("chains", opset=21, ir_version=10)
        self.first = self._levels()
        self.shared = rng.random() < 0.5
        self.values: list[Value] = []
        self._reals: dict[Value, str] = {}

    def _levels(self) -> tuple[float, int]:
        if self.values_are_equal():
            return self.first
        scale = 2.0 ** self.rng.randint(-7, -4) if self.exact else self.rng.uniform(0.01, 0.06)
        info = np.iinfo(self.dtype)
        return float(self.real.type(scale)), self.rng.randint(max(-100, info.min), min(100, info.max))

    def values_are_equal(self) -> bool:
        """Return whether new values get the first one's scale."""
        return self.equal and hasattr(self, "first")

    def _parameters(self, value: tuple[float, int]) -> tuple[str, str]:
        return self.build.const(self.real.type(value[0])), self.build.const(np.array(value[1], self.dtype))

    def input(self, *shape: int) -> Value:
        """Add an integer input."""
        name = self.build.input(f"x{len(self.values)}", shape, TYPES[self.dtype])
        self.values.append(Value(name, shape, *self._levels()))
        return self.values[-1]

    def real_of(self, value: Value) -> str:
        """Return the dequantised value. All readers share it, as onnxruntime's quantiser writes it."""
        if self.shared and value in self._reals:
            return self._reals[value]
        self._reals[value] = made = self.build.op(
            "DequantizeLinear", value.name, *self._parameters((value.scale, value.zero))
        )
        return made

    def quantised(self, name: str, shape: tuple[int, ...]) -> Value:
        """Quantise a value."""
        levels = self._levels()
        made = self.build.op("QuantizeLinear", name, *self._parameters(levels))
        self.values.append(Value(made, shape, *levels))
        return self.values[-1]

    def step(self, kind: str) -> Value:
        """Add one operator that reads the last value."""
        return STEPS[kind](self, self.values[-1])

    def model(self) -> onnx.ModelProto:
        """Return the model with the last value as its output."""
        return self.build.finish([self.values[-1].name])


Step = Callable[[Chains, Value], Value]


def _same(kind: str, **attributes: Any) -> Step:
    return lambda chains, x: chains.quantised(chains.build.op(kind, chains.real_of(x), **attributes), x.shape)


def _other(chains: Chains, x: Value) -> Value:
    alike = [value for value in chains.values if value.shape == x.shape]
    return chains.rng.choice(alike)


def _binary(kind: str) -> Step:
    return lambda chains, x: chains.quantised(
        chains.build.op(kind, chains.real_of(x), chains.real_of(_other(chains, x))), x.shape
    )


def _concat(chains: Chains, x: Value) -> Value:
    parts = [x, *(_other(chains, x) for _ in range(chains.rng.randint(1, 2)))]
    axis = chains.rng.choice((1, 2, 3))
    shape = list(x.shape)
    shape[axis] *= len(parts)
    return chains.quantised(chains.build.op("Concat", *map(chains.real_of, parts), axis=axis), tuple(shape))


def _pad(chains: Chains, x: Value) -> Value:
    mode = chains.rng.choice(("constant", "reflect", "edge"))
    if mode == "reflect" and min(x.shape[2:]) == 1:
        mode = "edge"  # one row or column has none beside it
    ends = [0, 0, *(chains.rng.randint(0, 1) for _ in range(2)), 0, 0, *(chains.rng.randint(0, 1) for _ in range(2))]
    value = chains.build.const(np.array(chains.rng.choice((0.0, 0.37, -9.0)), chains.real))
    operands = [chains.build.ints(*ends), *([value] if mode == "constant" else [])]
    shape = (*x.shape[:2], x.shape[2] + ends[2] + ends[6], x.shape[3] + ends[3] + ends[7])
    return chains.quantised(chains.build.op("Pad", chains.real_of(x), *operands, mode=mode), shape)


def _slice(chains: Chains, x: Value) -> Value:
    axis, step = chains.rng.choice((1, 2, 3)), chains.rng.choice((1, 2))
    operands = [chains.build.ints(value) for value in (1, 1 << 20, axis, step)]
    shape = list(x.shape)
    shape[axis] = len(range(1, shape[axis], step))
    if not shape[axis]:
        return x
    return chains.quantised(chains.build.op("Slice", chains.real_of(x), *operands), tuple(shape))


def _transpose(chains: Chains, x: Value) -> Value:
    perm = [0, *chains.rng.sample((1, 2, 3), 3)]
    shape = tuple(x.shape[axis] for axis in perm)
    return chains.quantised(chains.build.op("Transpose", chains.real_of(x), perm=perm), shape)


def _reshape(chains: Chains, x: Value) -> Value:
    n, c, h, w = x.shape
    shape = (n, h, c, w) if chains.rng.random() < 0.5 else (n, c * h, 1, w)
    return chains.quantised(chains.build.op("Reshape", chains.real_of(x), chains.build.ints(*shape)), shape)


def _resize(mode: str) -> Step:
    def step(chains: Chains, x: Value) -> Value:
        scales = chains.build.const(np.array([1, 1, 2, 2], np.float32))
        attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        y = chains.build.op("Resize", chains.real_of(x), "", scales, mode=mode, **attributes)
        return chains.quantised(y, (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]))

    return step


def _pool(kind: str) -> Step:
    def step(chains: Chains, x: Value) -> Value:
        y = chains.build.op(kind, chains.real_of(x), kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
        return chains.quantised(y, x.shape)

    return step


def _global(chains: Chains, x: Value) -> Value:
    return chains.quantised(chains.build.op("GlobalAveragePool", chains.real_of(x)), (*x.shape[:2], 1, 1))


def _split(chains: Chains, x: Value) -> Value:
    if x.shape[1] % 2:
        return x
    shape = (x.shape[0], x.shape[1] // 2, *x.shape[2:])
    first, second = chains.build.multi("Split", 2, chains.real_of(x), axis=1, num_outputs=2)
    chains.quantised(first, shape)
    return chains.quantised(second, shape)


def _silu(chains: Chains, x: Value) -> Value:
    real = chains.real_of(x)
    share = chains.quantised(chains.build.op("HardSigmoid", real), x.shape)
    return chains.quantised(chains.build.op("Mul", real, chains.real_of(share)), x.shape)


MOVING: dict[str, Step] = {
    "Concat": _concat,
    "Pad": _pad,
    "Slice": _slice,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Resize": _resize("nearest"),
    "MaxPool": _pool("MaxPool"),
    "Split": _split,
}
"""Steps that only move or compare elements."""
STEPS: dict[str, Step] = {
    **MOVING,
    "Add": _binary("Add"),
    "Mul": _binary("Mul"),
    "Sub": _binary("Sub"),
    "Max": _binary("Max"),
    "Relu": _same("Relu"),
    "LeakyRelu": _same("LeakyRelu", alpha=0.1),
    "hard SiLU": _silu,
    "AveragePool": _pool("AveragePool"),
    "GlobalAveragePool": _global,
    "linear Resize": _resize("linear"),
}


def inputs_of(model: onnx.ModelProto, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Return random integers over the whole range for every input."""
    rng = np.random.default_rng(seed)
    found = {}
    for each in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
        info, shape = np.iinfo(dtype), [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        found[each.name] = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return found
