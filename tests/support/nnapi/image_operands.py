"""Operands of image operations in every type, and windows over images computed from their definition in double
precision."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.constants import Constants
from hal.nnapi.operations.view import STORAGE, Array
from hal.nnapi.plan import Plan, Vocabulary
from hal.nnapi.types import OperandType, OperationType
from npusim.compiler.pipeline import compile_graph
from npusim.hw.config import load_config
from npusim.program import Program
from tests.support.nnapi.one_operation import Given, build, given, real, result, scalar

F32, F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
Q8, Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8C = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
ACTIVATIONS = {0: (-np.inf, np.inf), 1: (0.0, np.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}


@dataclass(frozen=True, slots=True)
class Kind:
    """Types of an operation's input and output, filter and bias."""

    x: OperandType
    w: OperandType
    b: OperandType

    def __str__(self) -> str:
        return "/".join(kind.name.removeprefix("TENSOR_") for kind in (self.x, self.w))


KINDS = [
    Kind(F32, F32, F32),
    Kind(F16, F16, F16),
    *(Kind(x, w, OperandType.TENSOR_INT32) for x in (Q8, Q8S) for w in (x, Q8C)),
]


def tensor(kind: OperandType, shape: Sequence[int], seed: int, *, const: bool = False) -> Given:
    """Return an operand with values between about -4 and 4; the quantised zero point is off centre."""
    rng = np.random.default_rng(seed)
    if kind in (F32, F16):
        return given(kind, rng.uniform(-4, 4, shape), const=const)
    info = np.iinfo(STORAGE[kind])
    zero = (info.min + info.max) // 2 + 12
    return given(kind, rng.integers(info.min, info.max + 1, shape), 0.03, zero, const=const)


def filters(kind: Kind, shape: Sequence[int], dim: int, seed: int, *, const: bool = True) -> Given:
    """Return a filter; per-channel scales are along dimension ``dim``."""
    if kind.w != Q8C:
        return tensor(kind.w, shape, seed, const=const)
    values = np.random.default_rng(seed).integers(-127, 128, shape)
    return given(kind.w, values, const=const, channels=([0.01 + 0.007 * i for i in range(shape[dim])], dim))


def biases(kind: Kind, x: Given, w: Given, count: int, seed: int, *, const: bool = True) -> Given:
    """Return a bias that matches an input and a filter."""
    rng = np.random.default_rng(seed)
    if kind.b != OperandType.TENSOR_INT32:
        return given(kind.b, rng.uniform(-2, 2, count), const=const)
    scale = 0.0 if w.channels else float(np.float32(x.scale) * np.float32(w.scale))
    return given(kind.b, rng.integers(-2000, 2000, count), scale, const=const)


def bias_numbers(x: Given, w: Given, bias: Given) -> Array:
    """Return the real values of a bias."""
    if bias.type != OperandType.TENSOR_INT32:
        return real(bias)
    assert bias.value is not None
    scales = np.asarray(w.channels[0] if w.channels else [w.scale], np.float32).astype(np.float64)
    return bias.value * (float(np.float32(x.scale)) * scales)


def output(kind: OperandType, scale: float = 0.5, zero: int = 100) -> Given:
    """Return an output of unknown shape."""
    if kind in (F32, F16):
        return result(kind)
    return result(kind, scale, zero - (128 if kind == Q8S else 0))


def laid_out(operand: Given, *, nchw: bool) -> Given:
    """Convert an NHWC operand to the layout."""
    if not nchw:
        return operand
    assert operand.value is not None
    value = np.ascontiguousarray(operand.value.transpose(0, 3, 1, 2))
    return replace(operand, value=value, dims=value.shape)


def nhwc(array: Array, *, nchw: bool) -> Array:
    """Convert a result in the layout to NHWC."""
    return array.transpose(0, 2, 3, 1) if nchw else array


def boolean(value: bool) -> Given:
    """Return a constant BOOL."""
    return scalar(OperandType.BOOL, value)


def activated(numbers: Array, function: int) -> Array:
    """Apply a fused activation."""
    return np.clip(numbers, *ACTIVATIONS[function])


def same_pads(size: int, stride: int, extent: int) -> tuple[int, int]:
    """SAME padding: ceil(size / stride) windows, with an odd element at the end."""
    total = max((-(-size // stride) - 1) * stride + extent - size, 0)
    return total // 2, total - total // 2


def taps(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    fill: float = 0,
) -> dict[tuple[int, int], Array]:
    """Yield what each tap of a window reads from an NHWC image, as [N, OH, OW, C]. ``pads``: top, left, bottom,
    right."""
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
    size = [(x.shape[1 + i] - (kernel[i] - 1) * dilation[i] - 1) // stride[i] + 1 for i in range(2)]
    return {
        (r, q): np.stack(
            [x[:, i * stride[0] + r * dilation[0], q * dilation[1] :: stride[1]][:, : size[1]] for i in range(size[0])],
            axis=1,
        )
        for r, q in itertools.product(range(kernel[0]), range(kernel[1]))
    }


def programs(kind: OperationType, inputs: Sequence[Given], out: Given, config: Any) -> list[Program]:
    """Return the compiled programs of a model with one operation."""
    device, model = load_config(config), build(kind, inputs, [out])
    made: list[Program] = []

    def compile(graph: Any) -> Program:
        made.append(compile_graph(graph, device))
        return made[-1]

    Plan(model, Constants(model), Vocabulary(REGISTRY, STORAGE), compile).prepare()
    return made
