"""Building blocks of random graphs: values of known shape, steps that extend a graph, and steps that only move data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.onnx_models.builder import ModelBuilder

MOST_ELEMENTS = 8192


@dataclass(frozen=True)
class Quant:
    """Per-tensor quantisation of a value: real = (q - zero) * scale."""

    scale: float
    zero: int
    power_of_two: bool


@dataclass(frozen=True)
class Value:
    """A named value of a graph under construction."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    quant: Quant | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    def moved(self, name: str, shape: Sequence[int]) -> Value:
        """The same elements (or some of them) under another name and shape."""
        return replace(self, name=name, shape=tuple(shape))


@dataclass
class Grower:
    """Draws steps and applies them; ``values`` contains all values so far, oldest first."""

    draw: st.DrawFn
    build: ModelBuilder
    first: Value
    values: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values.append(self.first)

    @property
    def last(self) -> Value:
        return self.values[-1]

    def integer(self, low: int, high: int) -> int:
        """Draw an integer in [low, high] that shrinks to low."""
        return self.draw(st.integers(low, high))

    def pick(self, options: Sequence[Any]) -> Any:
        """Draw one of the options; shrinks to the first."""
        return self.draw(st.sampled_from(options))

    def flag(self) -> bool:
        """Draw a boolean that shrinks to False."""
        return self.draw(st.booleans())

    def draw_axes(self, rank: int) -> list[int]:
        """Draw a non-empty set of axes."""
        return self.draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))

    def twin(self, value: Value) -> Value:
        """Return a value with the same shape, type and quantisation: an older one if there is any."""
        alike = [other for other in self.values if replace(other, name=value.name) == value]
        return self.draw(st.sampled_from(alike))

    def grow(self, steps: Sequence[Tile], count: int) -> None:
        """Apply ``count`` steps, each to the newest value."""
        for _ in range(count):
            legal = [step for step in steps if step.legal(self.last)]
            chosen: Tile = self.draw(st.sampled_from(legal))
            grown = chosen.apply(self, self.last)
            if math.prod(grown.shape) > MOST_ELEMENTS:
                continue  # its nodes stay in the graph as dead code, which compilers must also handle
            self.values.append(grown)

    def outputs(self) -> list[str]:
        """Return the newest value, and sometimes an older one that is not a graph input."""
        older = [value.name for value in self.values[1:-1]]
        names = [self.last.name]
        if self.last is self.first:
            names = [self.build.op("Identity", self.first.name)]
        return names + ([self.pick(older)] if older and self.flag() else [])


@dataclass(frozen=True)
class Tile:
    """One way to extend a graph: ``apply(grower, value)`` adds nodes if ``legal(value)``."""

    name: str
    apply: Callable[[Grower, Value], Value]
    legal: Callable[[Value], bool] = lambda value: True


def transpose(grower: Grower, value: Value) -> Value:
    """Permute the dimensions."""
    perm = grower.draw(st.permutations(range(value.rank)))
    name = grower.build.op("Transpose", value.name, perm=list(perm))
    return value.moved(name, [value.shape[axis] for axis in perm])


def reshape(grower: Grower, value: Value) -> Value:
    """Merge two neighbouring dimensions, or split one by a divisor."""
    axis = grower.integer(0, value.rank - 1)
    if axis + 1 < value.rank and value.rank > 2:
        shape = (*value.shape[:axis], value.shape[axis] * value.shape[axis + 1], *value.shape[axis + 2 :])
    else:
        divisor = grower.pick([d for d in (1, 2, 3, 4, 5) if value.shape[axis] % d == 0])
        shape = (*value.shape[:axis], divisor, value.shape[axis] // divisor, *value.shape[axis + 1 :])
    shape = shape if len(shape) <= 4 else value.shape
    return value.moved(grower.build.op("Reshape", value.name, grower.build.ints(*shape)), shape)


def window(grower: Grower, value: Value) -> Value:
    """Slice along one axis, with a step and possibly backwards."""
    axis = grower.integer(0, value.rank - 1)
    size = value.shape[axis]
    start = grower.integer(0, size - 1)
    step = grower.pick((1, 2, -1))
    end = grower.integer(start + 1, size) if step > 0 else -size - 1
    length = len(range(size)[start : end if step > 0 else None : step])
    ints = grower.build.ints
    name = grower.build.op("Slice", value.name, ints(start), ints(end), ints(axis), ints(step))
    return value.moved(name, (*value.shape[:axis], length, *value.shape[axis + 1 :]))


def concat(grower: Grower, value: Value) -> Value:
    """Join the value with an older one of the same kind."""
    axis = grower.integer(0, value.rank - 1)
    shape = (*value.shape[:axis], value.shape[axis] * 2, *value.shape[axis + 1 :])
    return value.moved(grower.build.op("Concat", grower.twin(value).name, value.name, axis=axis), shape)


def gather(grower: Grower, value: Value) -> Value:
    """Select rows of one axis by constant indices, some of them negative, some repeated."""
    axis = grower.integer(0, value.rank - 1)
    size = value.shape[axis]
    indices = [grower.integer(-size, size - 1) for _ in range(grower.integer(1, 4))]
    name = grower.build.op("Gather", value.name, grower.build.ints(*indices), axis=axis)
    return value.moved(name, (*value.shape[:axis], len(indices), *value.shape[axis + 1 :]))


def pad(grower: Grower, value: Value) -> Value:
    """Pad with a constant (the quantised zero if there is one)."""
    before = [grower.integer(0, 2) for _ in value.shape]
    after = [grower.integer(0, 2) for _ in value.shape]
    fill = grower.build.const(np.array(value.quant.zero if value.quant else 0, value.dtype), "fill")
    name = grower.build.op("Pad", value.name, grower.build.ints(*before, *after), fill)
    return value.moved(name, [b + size + a for b, size, a in zip(before, value.shape, after, strict=True)])


def max_pool(grower: Grower, value: Value) -> Value:
    """Add 2-D max pooling with padding."""
    shape, attributes = pooling(grower, value)
    return value.moved(grower.build.op("MaxPool", value.name, **attributes), shape)


def pooling(grower: Grower, value: Value) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Draw a valid 2-D window over the value. Returns the output shape and the attributes."""
    kernel = [grower.integer(1, min(3, size)) for size in value.shape[2:]]
    stride = [grower.integer(1, 2) for _ in kernel]
    pads = [grower.integer(0, size - 1) for size in kernel * 2]
    spatial = [
        (size + pads[axis] + pads[axis + 2] - kernel[axis]) // stride[axis] + 1
        for axis, size in enumerate(value.shape[2:])
    ]
    return (*value.shape[:2], *spatial), {"kernel_shape": kernel, "strides": stride, "pads": pads}


@dataclass(frozen=True)
class ConvPlan:
    """A valid 2-D convolution of a value: weights [out, channels / groups, *kernel]."""

    weight_shape: tuple[int, int, int, int]
    out_shape: tuple[int, ...]
    attributes: dict[str, Any]


def convolution(grower: Grower, value: Value) -> ConvPlan:
    """Draw a convolution: dense, grouped or depthwise, strided, dilated, with uneven padding."""
    batch, channels, *image = value.shape
    groups = grower.pick([g for g in (1, channels, 2, 3) if channels % g == 0])
    out = groups * grower.integer(1, 20 if groups == 1 else 3)
    kernel = [grower.integer(1, min(3, size)) for size in image]
    dilation = [grower.integer(1, 2) if (k - 1) * 2 < size else 1 for k, size in zip(kernel, image, strict=True)]
    stride = [grower.integer(1, 2) for _ in kernel]
    pads = [grower.integer(0, size - 1) for size in kernel * 2]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    spatial = [(size + pads[i] + pads[i + 2] - reach[i]) // stride[i] + 1 for i, size in enumerate(image)]
    attributes = {"kernel_shape": kernel, "strides": stride, "pads": pads, "dilations": dilation, "group": groups}
    return ConvPlan((out, channels // groups, kernel[0], kernel[1]), (batch, out, *spatial), attributes)


def is_image(value: Value) -> bool:
    """Return whether 2-D windows apply."""
    return value.rank == 4


MOVEMENT_STEPS = (
    Tile("transpose", transpose),
    Tile("reshape", reshape),
    Tile("slice", window),
    Tile("concat", concat),
    Tile("gather", gather),
    Tile("pad", pad),
)
