"""Decoders of language models with 8-bit weights and activations: sizes from their published configurations.

Products of weights are on integers, everything else is float16. The embedding of a token is looked up by the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder

_SCALE = 1 / 16


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Sizes of a decoder. ``width``: elements per head. ``shared``: heads of keys and values."""

    layers: int
    hidden: int
    heads: int
    shared: int
    width: int
    feed_forward: int
    vocabulary: int


DECODERS = {
    "qwen2-0.5b": DecoderSizes(24, 896, 14, 2, 64, 4864, 151936),
    "qwen3-0.6b": DecoderSizes(28, 1024, 16, 8, 128, 3072, 151936),
    "qwen2.5-1.5b": DecoderSizes(28, 1536, 12, 2, 128, 8960, 151936),
    "gemma2-2b": DecoderSizes(26, 2304, 8, 4, 256, 9216, 256000),
    "phi3-3.8b": DecoderSizes(32, 3072, 32, 32, 96, 8192, 32064),
}
"""From config.json of each model at huggingface.co."""


def decoder(sizes: DecoderSizes, tokens: int, past: int) -> Graph:
    """One pass over ``tokens`` new tokens behind ``past`` tokens in the cache: the logits of the last token."""
    return _Decoder(sizes, tokens, past).graph()


class _Decoder:
    def __init__(self, sizes: DecoderSizes, tokens: int, past: int) -> None:
        self._sizes, self._tokens, self._past = sizes, tokens, past
        self._build = GraphBuilder("decoder")
        self._scale, self._zero = self._build.const(np.float32(_SCALE)), self._build.const(np.int32(0))
        self._half_scale = self._build.const(np.float16(_SCALE))

    def graph(self) -> Graph:
        sizes, build = self._sizes, self._build
        x = build.input("x", (self._tokens, sizes.hidden), DType.FLOAT16)
        turns = tuple(build.input(name, (self._tokens, sizes.width), DType.FLOAT16) for name in ("cos", "sin"))
        kept = []
        for number in range(sizes.layers):
            x, cache = self._layer(x, number, turns)
            kept += cache
        last = x if self._tokens == 1 else self._slice(x, (self._tokens - 1, 0), (1, sizes.hidden))
        return build.finish([self._product(self._norm(last), sizes.vocabulary), *kept])

    def _layer(self, x: Tensor, number: int, turns: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
        sizes, tokens, build = self._sizes, self._tokens, self._build
        each = sizes.heads // sizes.shared
        normed = self._quantised(self._norm(x))
        query = self._heads(self._product_of(normed, sizes.heads * sizes.width), sizes.heads)
        key, value = (self._heads(self._product_of(normed, sizes.shared * sizes.width), sizes.shared) for _ in "kv")
        query, key = (self._turned(heads, turns) for heads in (query, key))
        if self._past:
            shape = (sizes.shared, self._past, sizes.width)
            older = [build.input(f"past_{kind}_{number}", shape, DType.FLOAT16) for kind in ("key", "value")]
            key, value = (build.add("concat", pair, {"axis": 1}) for pair in zip(older, (key, value), strict=True))
        query = build.add("reshape", (query,), {"shape": (sizes.shared, each * tokens, sizes.width)})
        scores = build.add("matmul", (query, build.add("transpose", (key,), {"perm": (0, 2, 1)})))
        scores = build.add("binary", (scores, self._half_scale), {"fn": Binary.MUL})
        weights = build.add("softmax", (scores,), {"axis": 2, "log": False})
        found = build.add("matmul", (weights, value))
        found = build.add("reshape", (found,), {"shape": (sizes.heads, tokens, sizes.width)})
        found = build.add("transpose", (found,), {"perm": (1, 0, 2)})
        found = build.add("reshape", (found,), {"shape": (tokens, sizes.heads * sizes.width)})
        x = build.add("binary", (x, self._product(found, sizes.hidden)), {"fn": Binary.ADD})
        normed = self._quantised(self._norm(x))
        gate, up = (self._product_of(normed, sizes.feed_forward) for _ in range(2))
        both = build.add("binary", (build.add("unary", (gate,), {"fn": Unary.SILU, "p0": 1.0}), up), {"fn": Binary.MUL})
        x = build.add("binary", (x, self._product(both, sizes.hidden)), {"fn": Binary.ADD})
        return x, [key, value]

    def _norm(self, x: Tensor) -> Tensor:
        factor = self._build.const(np.broadcast_to(np.float16(1), (x.shape[-1],)))
        y = self._build.add("normalize", (x,), {"axis": 1, "mode": "rms", "epsilon": 1e-6})
        return self._build.add("binary", (y, factor), {"fn": Binary.MUL})

    def _product(self, x: Tensor, channels: int) -> Tensor:
        return self._product_of(self._quantised(x), channels)

    def _product_of(self, x: Tensor, channels: int) -> Tensor:
        # As in Net: of the whole range, and one row for all, which takes no memory.
        row = np.random.default_rng(channels).integers(-127, 128, channels).astype(np.int8)
        w = self._build.const(np.broadcast_to(row, (x.shape[-1], channels)), "w")
        return self._build.add(
            "dequantize", (self._build.add("matmul", (x, w)), self._scale, self._zero), {"to": DType.FLOAT16}
        )

    def _quantised(self, x: Tensor) -> Tensor:
        return self._build.add("quantize", (x, self._scale, self._zero), {"to": DType.INT8})

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        split = self._build.add("reshape", (x,), {"shape": (self._tokens, heads, self._sizes.width)})
        return self._build.add("transpose", (split,), {"perm": (1, 0, 2)})

    def _turned(self, x: Tensor, turns: tuple[Tensor, ...]) -> Tensor:
        """Rotary positions: halves of each head are exchanged."""
        build, half = self._build, self._sizes.width // 2
        low, high = (self._slice(x, (0, 0, at), (*x.shape[:2], half)) for at in (0, half))
        other = build.add("concat", (build.add("unary", (high,), {"fn": Unary.NEG}), low), {"axis": 2})
        straight, turned = (
            build.add("binary", pair, {"fn": Binary.MUL}) for pair in zip((x, other), turns, strict=True)
        )
        return build.add("binary", (straight, turned), {"fn": Binary.ADD})

    def _slice(self, x: Tensor, starts: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        return self._build.add("slice", (x,), {"starts": starts, "steps": (1,) * len(starts), "sizes": sizes})
