"""Attention and the operators around it in onnxruntime's domain, compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import UnsupportedError
from npusim.frontends.onnx import load
from npusim.ops import reference
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.small import MICROSOFT, Array, compared, node_model, normal


def mask_of(kind: str, batch: int, queries: int, keys: int) -> Array | None:
    rng = np.random.default_rng(keys)
    ends = rng.integers(1, keys + 1, batch)
    masks: dict[str, Any] = {
        "none": None,
        "ends": ends,
        "ends and starts": np.concatenate([ends, ends - 1]),
        "keys": np.arange(keys) < ends[:, None],
        "pairs": rng.integers(0, 2, (batch, queries, keys)) | (np.arange(keys) == 0),
    }
    return None if masks[kind] is None else masks[kind].astype(np.int32)


@given(
    st.sampled_from(["none", "ends", "ends and starts", "keys", "pairs"]), st.booleans(), st.booleans(),
    st.booleans(), st.integers(1, 3), st.integers(2, 4),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_attention(kind: str, past: bool, bias: bool, causal: bool, batch: int, steps: int) -> None:
    heads, width, before = 2, 4, 3 if past else 0
    keys = before + steps
    inputs = {
        "x": normal(1, batch, steps, 6), "w": normal(2, 6, 24) / 2, "b": normal(3, 24),
        "mask": mask_of(kind, batch, steps, keys),
        "past": normal(4, 2, batch, heads, before, width) if past else None,
        # onnxruntime does not add a bias to scores with past keys.
        "bias": normal(5, batch, heads, steps, keys) if bias and not past else None,
    }  # fmt: skip
    compared("Attention", inputs, 2, num_heads=heads, unidirectional=int(causal))


def test_attention_with_wider_values() -> None:
    inputs = {"x": normal(1, 2, 3, 6), "w": normal(2, 6, 28), "b": normal(3, 28)}
    compared("Attention", inputs, num_heads=2, qkv_hidden_sizes=[8, 8, 12], scale=0.3)


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("kind", ["none", "ends", "keys"])
def test_quantised_attention(kind: str, past: bool) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.integers(0, 255, (2, 3, 6)).astype(np.uint8),
        "w": rng.integers(-127, 127, (6, 24)).astype(np.int8),
        "b": normal(3, 24), "xs": np.float32(0.01), "ws": np.float32(0.02),
        "mask": mask_of(kind, 2, 3, 5 if past else 3),
        "xz": np.uint8(120), "wz": np.int8(0), "past": normal(4, 2, 2, 2, 2, 4) if past else None,
    }  # fmt: skip
    compared("QAttention", inputs, 2, ("w", "xs", "ws", "xz", "wz"), num_heads=2)


@given(
    st.sampled_from(["plain", "heads first"]), st.booleans(), st.booleans(),
    st.sampled_from(["none", "keys", "pairs"]), st.booleans(), st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_multi_head_attention(form: str, bias: bool, past: bool, kind: str, added: bool, batch: int) -> None:
    heads, width, steps = 2, 4, 3
    before = 2 if past and form == "plain" else 0
    keys = steps + before
    flat, split = (batch, steps, heads * width), (batch, heads, steps, width)
    later = flat if form == "plain" else split
    inputs: dict[str, Any] = {"q": normal(1, *flat), "k": normal(2, *later), "v": normal(3, *later)}
    inputs |= {
        "b": normal(4, 3 * heads * width) if bias and form == "plain" else None,
        "mask": mask_of(kind, batch, steps, keys),
        "bias": normal(5, batch, heads, steps, keys) if added else None,
        "pk": normal(6, batch, heads, before, width) if before else None,
        "pv": normal(7, batch, heads, before, width) if before else None,
    }
    compared("MultiHeadAttention", inputs, 3 if form == "plain" else 1, num_heads=heads)


def test_packed_queries_keys_and_values() -> None:
    """onnxruntime computes them on a GPU alone: compared with the same operands that are not packed."""
    q, k, v = (normal(index, 2, 3, 2, 4) for index in range(3))
    flat = {name: x.reshape(2, 3, 8) for name, x in (("q", q), ("k", k), ("v", v))}
    plain = node_model("MultiHeadAttention", flat, domain=MICROSOFT, num_heads=2)
    wanted = runtime_outputs(plain, flat)["y0"]
    for packed in ({"q": np.stack([q, k, v], 3)}, {"q": flat["q"], "k": np.stack([k, v], 3)}):
        model = node_model("MultiHeadAttention", packed, domain=MICROSOFT, num_heads=2)
        np.testing.assert_allclose(reference.run(load(model), packed)["y0"], wanted, 1e-5, 1e-5)


@given(st.booleans(), st.booleans(), st.sampled_from([0, 4]), st.booleans(), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_rotary_embedding(flat: bool, interleaved: bool, part: int, first: bool, batch: int) -> None:
    heads, steps, width = 2, 3, 6
    half = (part or width) // 2
    positions = np.array([2]) if first else np.random.default_rng(0).integers(0, 9, (batch, steps))
    inputs = {
        "x": normal(1, batch, steps, heads * width) if flat else normal(1, batch, heads, steps, width),
        "p": positions.astype(np.int64), "c": normal(2, 9, half), "s": normal(3, 9, half),
    }  # fmt: skip
    attrs = {"num_heads": heads, "rotary_embedding_dim": part} if part else {}
    compared("RotaryEmbedding", inputs, interleaved=int(interleaved), **attrs)


@given(
    st.sampled_from(["prompt", "step", "shared"]), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([-1, 2]), st.sampled_from([0.0, 3.0]), st.sampled_from(["", "smooth", "sink", "bias"]),
    st.sampled_from([(4, 2), (2, 2), (4, 1)]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_group_query_attention(
    phase: str, packed: bool, rotary: bool, interleaved: bool, window: int, softcap: float, extra: str,
    counts: tuple[int, int],
) -> None:  # fmt: skip
    (heads, shared), width, batch = counts, 16, 1
    steps, before = (4, 0) if phase == "prompt" else (1, 5)
    room = {"prompt": 0, "step": before, "shared": 9}[phase]
    total = before + steps
    q, k, v = (normal(i, batch, steps, n * width) for i, n in enumerate((heads, shared, shared)))
    inputs: dict[str, Any] = {
        "q": np.concatenate([q, k, v], 2) if packed else q, "k": None if packed else k, "v": None if packed else v,
        "pk": normal(5, batch, shared, room, width) if room else None,
        "pv": normal(6, batch, shared, room, width) if room else None,
        "lengths": np.array([total - 1], np.int32), "total": np.array([total], np.int32).reshape(1),
        "c": normal(7, 12, width // 2) if rotary else None, "s": normal(8, 12, width // 2) if rotary else None,
        "p": None,
        "bias": normal(9, 1, heads, steps, total) if extra == "bias" else None,
        "sink": normal(10, heads) if extra == "sink" else None,
    }  # fmt: skip
    attrs = {"local_window_size": window, "softcap": softcap, "smooth_softmax": int(extra == "smooth")}
    attrs |= {"do_rotary": int(rotary), "rotary_interleaved": int(interleaved)}
    compared("GroupQueryAttention", inputs, 3, ("total",), total, num_heads=heads, kv_num_heads=shared, **attrs)


def test_prompts_of_several_lengths() -> None:
    """onnxruntime leaves the results of steps beyond a prompt's length undefined."""
    lengths = np.array([3, 1], np.int32)
    q, k, v = (normal(i, 2, 4, n * 16) for i, n in enumerate((4, 2, 2)))
    inputs = {"q": q, "k": k, "v": v, "pk": None, "pv": None, "n": lengths, "t": np.array([4], np.int32)}
    # The oldest onnxruntime requires all three results.
    model = node_model("GroupQueryAttention", inputs, ("t",), domain=MICROSOFT, outputs=3, num_heads=4, kv_num_heads=2)
    fed = {"q": q, "k": k, "v": v, "n": lengths}
    found, wanted = reference.run(load(model), fed)["y0"], runtime_outputs(model, fed)["y0"]
    for row, last in enumerate(lengths):
        np.testing.assert_allclose(found[row, : last + 1], wanted[row, : last + 1], 1e-4, 1e-5)


def test_sequences_with_past_keys_are_one() -> None:
    past = normal(3, 2, 2, 5, 16)
    inputs = {
        "q": normal(0, 2, 1, 64), "k": normal(1, 2, 1, 32), "v": normal(2, 2, 1, 32), "pk": past, "pv": past,
        "n": np.array([5, 3], np.int32), "t": np.array([6], np.int32),
    }  # fmt: skip
    model = node_model("GroupQueryAttention", inputs, ("t",), domain=MICROSOFT, num_heads=4, kv_num_heads=2)
    with pytest.raises(UnsupportedError, match="several sequences with past keys"):
        load(model)


@given(st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=8, deadline=None)
def test_embed_layer_normalization(segments: bool, mask: bool, given_positions: bool) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "ids": rng.integers(0, 9, (2, 5)).astype(np.int32),
        "seg": rng.integers(0, 2, (2, 5)).astype(np.int32) if segments else None,
        "words": normal(1, 9, 8), "positions": normal(2, 7, 8), "segments": normal(3, 2, 8) if segments else None,
        "gamma": normal(4, 8), "beta": normal(5, 8),
        "mask": (np.arange(5) < [[3], [5]]).astype(np.int32) if mask else None,
        "place": rng.integers(0, 7, (2, 5)).astype(np.int32) if given_positions else None,
    }  # fmt: skip
    compared("EmbedLayerNormalization", inputs, 3, epsilon=1e-6)
