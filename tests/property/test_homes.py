"""The homes of values only affect time: with any SRAM size, with or without resident weights, the bits are the same and
there are no races."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.graph import Graph, Tensor
from npusim.hw.config import load_config
from npusim.isa.base import decode
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.programs.race_detector import find_races, limits_of

DEVICES = {name: load_config(name).with_(cores=1) for name in ("tiny", "edge")}
SIZES = (4 << 10, 10 << 10, 40 << 10)


class ImageNet:
    """A random chain of windows and elementwise operators over images, with branches that join again."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._weights = np.random.default_rng(seed)
        self._build = GraphBuilder("images")
        self._layout = self._rng.choice(["NCHW", "NHWC"])
        self._images = self._rng.choice([1, 1, 2, 3])

    def graph(self) -> Graph:
        rng = self._rng
        height, width, channels = rng.randint(6, 40), rng.randint(3, 20), rng.randint(1, 24)
        shape = (channels, height, width) if self._layout == "NCHW" else (height, width, channels)
        values = [self._build.input("x", (self._images, *shape), DType.FLOAT32)]
        for _ in range(rng.randint(2, 9)):
            source = values[-1] if rng.random() < 0.8 else rng.choice(values)
            values.append(self._step(source, [value for value in values if value.shape == source.shape]))
        return self._build.finish([values[-1]])

    def _step(self, x: Tensor, alike: list[Tensor]) -> Tensor:
        kind = self._rng.choice(["conv", "conv", "depthwise", "pool", "relu", "add", "add"])
        if kind == "relu":
            return self._build.add("unary", [x], {"fn": Unary.RELU})
        if kind == "add":
            return self._build.add("binary", [x, self._rng.choice(alike)], {"fn": Binary.ADD})
        return self._window(kind, x)

    def _window(self, kind: str, x: Tensor) -> Tensor:
        rng = self._rng
        channels, *size = x.shape[1:] if self._layout == "NCHW" else (x.shape[3], *x.shape[1:3])
        kernel = [rng.choice([1, 1, 2, 3, 5]), rng.choice([1, 3])]
        step, dilation = rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 1, 2])
        extents = [(k - 1) * dilation + 1 for k in kernel]
        before, after = ([rng.randint(0, extent - 1) for extent in extents] for _ in range(2))
        fits = all(b + s + a >= e for b, s, a, e in zip(before, size, after, extents, strict=True))
        if not fits:
            return x
        attrs: dict[str, Any] = {
            "layout": self._layout, "stride": (step, step), "dilation": (dilation,) * 2, "pads": (*before, *after),
        }  # fmt: skip
        if kind == "pool":
            out = [(b + s + a - e) // step + 1 for b, s, a, e in zip(before, size, after, extents, strict=True)]
            more = {"kernel": tuple(kernel), "fn": rng.choice(["max", "average"]), "output_hw": tuple(out)}
            return self._build.add("pool", [x], {**attrs, **more, "count_include_pad": rng.random() < 0.5})
        groups, inputs, outputs = (channels, 1, channels) if kind == "depthwise" else (1, channels, rng.randint(1, 24))
        weights = self._constant((outputs, inputs, *kernel))
        return self._build.add("conv", [x, weights, self._constant((outputs,))], {**attrs, "groups": groups})

    def _constant(self, shape: tuple[int, ...]) -> Tensor:
        return self._build.const(self._weights.integers(-3, 4, shape).astype(np.float32) / 8)


def check(seed: int, name: str) -> None:
    graph = ImageNet(seed).graph()
    image = np.random.default_rng(seed).integers(-4, 5, graph.inputs[0].shape).astype(np.float32)
    first = None
    for size, residents in (*((size, False) for size in SIZES), (SIZES[-1], True)):
        config = DEVICES[name].with_(**{"sram.bytes": size, "compiler.resident_weights": residents})
        try:
            program = compile_graph(graph, config)
        except CompileError:
            continue
        races = find_races(list(decode(program.code)), limits_of(program, config))
        assert not races, f"{size} bytes of SRAM: {races[0]}"
        found = interpreted(program, config, {"x": image})
        same_bytes(found, first or found, f"{size} bytes of SRAM against fewer")
        first = first or found


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(DEVICES)))
def test_every_size_of_sram_computes_the_same_bits(seed: int, name: str) -> None:
    check(seed, name)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(DEVICES)))
def test_every_size_of_sram_computes_the_same_bits_at_length(seed: int, name: str) -> None:
    check(seed, name)
