"""Transformer networks with seeded random weights, written node by node as exporters emit them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from tests.support.onnx_models.builder import ModelBuilder


@dataclass(frozen=True)
class BertSizes:
    """Sizes of a BERT-like encoder; the defaults are BERT-base on 128 tokens."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    sequence: int = 128
    intermediate: int = 3072
    vocabulary: int = 30522


BERT_BASE = BertSizes()
BERT_TINY = BertSizes(layers=2, hidden=32, heads=4, sequence=16, intermediate=64, vocabulary=50)


def bert(sizes: BertSizes = BERT_BASE, *, seed: int = 0, fused_norm: bool = False) -> onnx.ModelProto:
    """Build a BERT encoder with its embeddings.

    Inputs, int64 [1, sequence]: ``input_ids``, ``token_type_ids``, ``attention_mask`` (1 = attend, 0 = padding).
    Output: the last hidden state [1, sequence, hidden]. ``fused_norm`` writes LayerNormalization nodes; otherwise the
    normalisations are decomposed into ReduceMean, Sub, Pow, Sqrt, Div, as exporters before opset 17 do.
    """
    build = ModelBuilder("bert", seed=seed)
    shape = (1, sizes.sequence)
    tokens = build.input("input_ids", shape, TensorProto.INT64)
    types = build.input("token_type_ids", shape, TensorProto.INT64)
    mask = build.input("attention_mask", shape, TensorProto.INT64)
    mask = build.op("Unsqueeze", build.op("Unsqueeze", mask, build.ints(1)), build.ints(2))
    mask = build.op("Cast", mask, to=TensorProto.FLOAT)
    mask = build.op("Mul", build.op("Sub", build.scalar(1.0), mask), build.scalar(-10000.0))
    x = _embed(build, sizes, tokens, types)
    x = layer_norm(build, x, sizes.hidden, fused=fused_norm)
    for _ in range(sizes.layers):
        attended = _self_attention(build, x, sizes, mask)
        attended = build.linear(attended, sizes.hidden, sizes.hidden)
        x = layer_norm(build, build.op("Add", attended, x), sizes.hidden, fused=fused_norm)
        y = gelu_erf(build, build.linear(x, sizes.hidden, sizes.intermediate))
        y = build.linear(y, sizes.intermediate, sizes.hidden, gain=2.0)
        x = layer_norm(build, build.op("Add", y, x), sizes.hidden, fused=fused_norm)
    return build.finish([x])


def bert_inputs(sizes: BertSizes, seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return seeded tokens, two segments, and a mask that pads the last eighth."""
    rng = np.random.default_rng(seed)
    positions = np.arange(sizes.sequence)[None]
    return {
        "input_ids": rng.integers(0, sizes.vocabulary, positions.shape),
        "token_type_ids": (positions >= sizes.sequence // 2).astype(np.int64),
        "attention_mask": (positions < sizes.sequence - sizes.sequence // 8).astype(np.int64),
    }


def _embed(build: ModelBuilder, sizes: BertSizes, tokens: str, types: str) -> str:
    words = build.op("Gather", build.normal((sizes.vocabulary, sizes.hidden), 0.7), tokens)
    segments = build.op("Gather", build.normal((2, sizes.hidden), 0.3), types)
    places = build.const(np.arange(sizes.sequence)[None])
    positions = build.op("Gather", build.normal((sizes.sequence, sizes.hidden), 0.5), places)
    return build.op("Add", build.op("Add", words, segments), positions)


def _self_attention(build: ModelBuilder, x: str, sizes: BertSizes, mask: str) -> str:
    """Add multi-head attention of x [1, S, H] with an additive mask. Returns the context [1, S, H] before its
    projection."""
    depth = sizes.hidden // sizes.heads
    split = (1, sizes.sequence, sizes.heads, depth)

    def heads(perm: list[int], gain: float) -> str:
        projected = build.linear(x, sizes.hidden, sizes.hidden, gain=gain)
        return build.op("Transpose", build.op("Reshape", projected, build.ints(*split)), perm=perm)

    query, key, value = heads([0, 2, 1, 3], 2.0), heads([0, 2, 3, 1], 2.0), heads([0, 2, 1, 3], 1.0)
    scores = build.op("Div", build.op("MatMul", query, key), build.scalar(math.sqrt(depth)))
    weights = build.op("Softmax", build.op("Add", scores, mask), axis=-1)
    context = build.op("Transpose", build.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    return build.op("Reshape", context, build.ints(1, sizes.sequence, sizes.hidden))


def layer_norm(build: ModelBuilder, x: str, features: int, *, fused: bool, epsilon: float = 1e-5) -> str:
    """Add layer normalisation of the last axis with random scale and shift, as one node or decomposed."""
    scale = build.normal((features,), 0.1, mean=1.0, stem="gamma")
    shift = build.normal((features,), 0.1, stem="beta")
    if fused:
        return build.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=epsilon)
    centred = build.op("Sub", x, build.op("ReduceMean", x, axes=[-1]))
    variance = build.op("ReduceMean", build.op("Pow", centred, build.scalar(2.0)), axes=[-1])
    deviation = build.op("Sqrt", build.op("Add", variance, build.scalar(epsilon)))
    return build.op("Add", build.op("Mul", build.op("Div", centred, deviation), scale), shift)


def gelu_erf(build: ModelBuilder, x: str) -> str:
    """Add x * (1 + erf(x / sqrt(2))) / 2, decomposed."""
    erf = build.op("Erf", build.op("Div", x, build.scalar(math.sqrt(2.0))))
    return build.op("Mul", build.op("Mul", x, build.op("Add", erf, build.scalar(1.0))), build.scalar(0.5))


def gelu_tanh(build: ModelBuilder, x: str) -> str:
    """Add the tanh approximation of Gelu as in GPT, decomposed."""
    cubed = build.op("Mul", build.op("Pow", x, build.scalar(3.0)), build.scalar(0.044715))
    inner = build.op("Mul", build.op("Add", x, cubed), build.scalar(math.sqrt(2.0 / math.pi)))
    grown = build.op("Add", build.op("Tanh", inner), build.scalar(1.0))
    return build.op("Mul", build.op("Mul", x, build.scalar(0.5)), grown)


@dataclass(frozen=True)
class GptSizes:
    """Sizes of GPT decoder blocks; ``past``: cached tokens before ``sequence`` new ones."""

    layers: int = 2
    hidden: int = 256
    heads: int = 8
    sequence: int = 64
    past: int = 0


GPT_SMALL = GptSizes()
GPT_TINY = GptSizes(layers=1, hidden=32, heads=4, sequence=8)
GPT_TINY_STEP = GptSizes(layers=1, hidden=32, heads=4, sequence=1, past=7)


def gpt(sizes: GptSizes = GPT_SMALL, *, seed: int = 0, mask: str = "where") -> onnx.ModelProto:
    """Build pre-norm GPT decoder blocks on embeddings ``x`` [1, sequence, hidden] float32; the output has x's shape.

    With ``past`` > 0 each layer n also takes ``past_key_n`` and ``past_value_n`` [1, heads, past, depth] and returns
    ``present`` keys and values after the hidden state. ``mask``: the causal mask is a Where on a constant ("where") or
    an additive upper triangle made by Trilu ("trilu").
    """
    if mask not in ("where", "trilu"):
        raise ValueError(f"mask: must be where or trilu, got {mask!r}")
    build = ModelBuilder("gpt", seed=seed)
    x = build.input("x", (1, sizes.sequence, sizes.hidden))
    presents: list[str] = []
    for layer in range(sizes.layers):
        y = layer_norm(build, x, sizes.hidden, fused=True)
        y = _causal_attention(build, y, sizes, layer, mask, presents)
        x = build.op("Add", x, build.linear(y, sizes.hidden, sizes.hidden, gain=0.5))
        y = layer_norm(build, x, sizes.hidden, fused=True)
        y = gelu_tanh(build, build.linear(y, sizes.hidden, 4 * sizes.hidden))
        x = build.op("Add", x, build.linear(y, 4 * sizes.hidden, sizes.hidden, gain=0.5))
    return build.finish([layer_norm(build, x, sizes.hidden, fused=True), *presents])


def _causal_attention(build: ModelBuilder, x: str, sizes: GptSizes, layer: int, mask: str, presents: list[str]) -> str:
    depth = sizes.hidden // sizes.heads
    total = sizes.past + sizes.sequence
    flat = build.op("Reshape", x, build.ints(-1, sizes.hidden))
    weight = build.normal((sizes.hidden, 3 * sizes.hidden), (2.0 / sizes.hidden) ** 0.5)
    packed = build.op("Gemm", flat, weight, build.normal((3 * sizes.hidden,), 0.1, stem="bias"))
    packed = build.op("Reshape", packed, build.ints(1, sizes.sequence, 3 * sizes.hidden))
    parts = build.multi("Split", 3, packed, build.ints(*[sizes.hidden] * 3), axis=2)
    split = build.ints(1, sizes.sequence, sizes.heads, depth)
    query, key, value = (build.op("Transpose", build.op("Reshape", p, split), perm=[0, 2, 1, 3]) for p in parts)
    if sizes.past:
        cached = (1, sizes.heads, sizes.past, depth)
        key = build.op("Concat", build.input(f"past_key_{layer}", cached), key, axis=2)
        value = build.op("Concat", build.input(f"past_value_{layer}", cached), value, axis=2)
        presents += [key, value]
    scores = build.op("MatMul", query, build.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = build.op("Mul", scores, build.scalar(1.0 / math.sqrt(depth)))
    if mask == "where":
        seen = np.tril(np.ones((sizes.sequence, total), np.bool_), sizes.past)[None, None]
        scores = build.op("Where", build.const(seen), scores, build.scalar(-1e4))
    else:
        square = build.const(np.full((sizes.sequence, total), -1e4, np.float32))
        scores = build.op("Add", scores, build.op("Trilu", square, build.const(np.int64(sizes.past + 1)), upper=1))
    context = build.op("MatMul", build.op("Softmax", scores, axis=-1), value)
    context = build.op("Transpose", context, perm=[0, 2, 1, 3])
    return build.op("Reshape", context, build.ints(1, sizes.sequence, sizes.hidden))
