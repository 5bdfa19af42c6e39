"""Operators that PyTorch fuses for the CPU, as the operators that its ONNX exporter knows.

In eval mode without gradients, ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` call one operator each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

aten = torch.ops.aten


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``aten._native_multi_head_attention``: batch first, True in a mask excludes. ``mask_type``: 0 a mask [L, L], 1 of
    keys [N, L], 2 [N, heads, L, L]."""
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    heads = [
        functional.linear(x, w, b).unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    ]
    q, k, v = heads
    scores = q @ k.transpose(-1, -2) * (embed_dim // num_head) ** -0.5
    if mask is not None:
        shaped = mask[:, None, None] if mask_type == 1 else mask
        scores = scores.masked_fill(shaped.to(torch.bool), float("-inf"))
    shares = scores.softmax(-1)
    result = functional.linear((shares @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, shares.mean(1) if average_attn_weights else shares


def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """``aten._transformer_encoder_layer_fwd``: attention and two linear layers, normalised before or after each."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def forward(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(functional.gelu(hidden) if use_gelu else hidden.relu(), ffn_weight_2, ffn_bias_2)

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        src = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return src + forward(norm(src, norm_weight_2, norm_bias_2))
    src = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(src + forward(src), norm_weight_2, norm_bias_2)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
