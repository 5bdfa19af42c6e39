"""Convolution tiles for kernel tests: sizes, data, and the pixels that each step of a sum reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from npusim.dtypes import DType
from tests.support.kernel_operands import Array, narrow


class Problem(NamedTuple):
    """A tile: sizes, kernel, strides, dilations, channel block; ``gap``: unused channels between pixels."""

    batch: int = 1
    oh: int = 1
    ow: int = 1
    oc: int = 1
    ic: int = 1
    kh: int = 1
    kw: int = 1
    sh: int = 1
    sw: int = 1
    dh: int = 1
    dw: int = 1
    block: int = 32
    gap: int = 0
    own_weights: bool = False

    @property
    def k(self) -> int:
        return self.ic * self.kh * self.kw

    @property
    def image(self) -> tuple[int, int, int, int]:
        height = (self.oh - 1) * self.sh + (self.kh - 1) * self.dh + 1
        width = (self.ow - 1) * self.sw + (self.kw - 1) * self.dw + 1
        return self.batch, height, width, self.ic + self.gap


class Data(NamedTuple):
    x: Array
    w: Array
    acc: Array


problems = st.builds(
    Problem,
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 70),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([4, 8, 32]),
    st.integers(0, 2),
    st.booleans(),
)


def values(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if dtype.is_float:
        return narrow(rng.standard_normal(shape), dtype)
    info = np.iinfo(dtype.storage)
    return rng.integers(info.min, info.max, shape, np.int64, endpoint=True).astype(dtype.storage)


def data(problem: Problem, x: DType, w: DType, seed: int) -> Data:
    rng = np.random.default_rng(seed)
    acc = DType.FLOAT32 if x.is_float else DType.INT32
    count = problem.batch if problem.own_weights else 1
    return Data(
        values(x, problem.image, rng),
        values(w, (count, problem.k, problem.oc), rng),
        values(acc, (problem.batch, problem.oh, problem.ow, problem.oc), rng),
    )


def as_bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def columns(p: Problem, x: Array) -> list[Array]:
    """Return x[b, i, j] for every k, in the order of summation."""
    found = []
    for start in range(0, p.ic, p.block):
        for r in range(p.kh):
            for q in range(p.kw):
                rows = slice(r * p.dh, r * p.dh + (p.oh - 1) * p.sh + 1, p.sh)
                pixels = slice(q * p.dw, q * p.dw + (p.ow - 1) * p.sw + 1, p.sw)
                found += [x[:, rows, pixels, c] for c in range(start, min(start + p.block, p.ic))]
    return found


weight_zeros = st.one_of(
    st.tuples(st.just(DType.INT16), st.just(0)),
    st.tuples(st.just(DType.INT8), st.just(0) | st.integers(-128, 127)),
    st.tuples(st.just(DType.UINT8), st.just(0) | st.integers(0, 255)),
)
"""Draws the type of the weights and their zero point."""
