"""Attention and the operators around it in onnxruntime's own domain, as written by its optimiser and exporters.

Each becomes two products with a softmax between them, which the compiler fuses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.operators.quantised import dequantized_product
from npusim.frontends.onnx.registry import MICROSOFT, handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary

_MASKED = -10000.0
"""The default of ``mask_filter_value``, which is added to the scores of masked keys."""
_NEVER = float(np.finfo(np.float32).min)
"""Added to the scores of later keys in causal attention."""
_MASKS = "masks of 4 dimensions or 3 * batch + 2 entries are refused"


@dataclass(frozen=True)
class Heads:
    """Operands of an attention. q [B, N, S, D], k [B, N, L, D], v [B, N, L, Dv]."""

    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """[B, N, S, L]."""
        batch, heads, steps, _ = self.q.shape
        return batch, heads, steps, self.k.shape[2]


def _split(node: Node, x: Tensor, heads: int) -> Tensor:
    """[B, S, heads * D] as [B, heads, S, D]. Tensors of 4 dimensions are returned unchanged."""
    if len(x.shape) == 4:
        return x
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads:
        node.damaged(f"an operand {list(x.shape)} cannot be divided into {heads} heads")
    batch, steps, width = x.shape
    return node.transpose(node.reshape(x, (batch, steps, heads, width // heads)), (0, 2, 1, 3))


def _joined(node: Node, x: Tensor) -> Tensor:
    """The reverse of :func:`_split`."""
    batch, heads, steps, width = x.shape
    return node.reshape(node.transpose(x, (0, 2, 1, 3)), (batch, steps, heads * width))


def _numbers(node: Node, value: float, x: Tensor) -> Tensor:
    """A number in x's type, within its range."""
    return node.like(max(value, -65504.0) if x.dtype is DType.FLOAT16 else value, x)


def _allowed(node: Node, allowed: Tensor, like: Tensor, masked: float) -> Tensor:
    """0 where a bool is true, otherwise ``masked``: added to scores."""
    return node.add("select", allowed, node.like(0, like), _numbers(node, masked, like))


def causal(node: Node, queries: int, keys: int, window: int = -1) -> Tensor:
    """A constant of bools [queries, keys]: whether a query attends to a key. The last query and the last key are at the
    same position. ``window``: the number of keys up to that position; all if negative."""
    node.limit(queries * keys)
    distance = np.arange(queries)[:, None] + (keys - queries) - np.arange(keys)
    return node.const((distance >= 0) & ((distance < window) if window >= 0 else True))


def _lengths(node: Node, lengths: Tensor, keys: int, *, first: bool = False) -> Tensor:
    """Bools [B, 1, 1, keys]: whether a key is before its sequence's length, or with ``first`` from it on."""
    places = node.const(np.arange(keys), lengths.dtype)
    column = node.reshape(lengths, (lengths.size, 1, 1, 1))
    return node.binary(Binary.GE if first else Binary.LT, node.reshape(places, (1, 1, 1, keys)), column)


def _key_mask(node: Node, mask: Tensor, shape: tuple[int, int, int, int], like: Tensor, masked: float) -> Tensor:
    """A mask of integers as numbers that are added to scores.

    Lengths [B], ends and starts [2 B], or nonzero for keys that count: [B, L], [B, S, L].
    """
    batch, _, queries, keys = shape
    if mask.shape == (batch,):
        return _allowed(node, _lengths(node, mask, keys), like, masked)
    if mask.shape == (2 * batch,):
        end, start = (node.slice(mask, 0, at, batch) for at in (0, batch))
        inside = node.binary(Binary.AND, _lengths(node, end, keys), _lengths(node, start, keys, first=True))
        return _allowed(node, inside, like, masked)
    if mask.shape == (batch, keys):
        mask = node.reshape(mask, (batch, 1, 1, keys))
    elif mask.shape == (batch, queries, keys):
        mask = node.reshape(mask, (batch, 1, queries, keys))
    else:
        node.refuse(f"a mask {list(mask.shape)} for scores {list(shape)} is not supported")
    counts = node.binary(Binary.GT, mask, node.like(0, mask)) if mask.dtype is not DType.BOOL else mask
    return _allowed(node, counts, like, masked)


def attend(
    node: Node,
    heads: Heads,
    added: list[Tensor],
    scale: float,
    softcap: float = 0.0,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """([B, N, S, Dv], scores): softmax(scale * q k' + added) v. ``sink`` [1, N, S, 1]: a score for no key."""
    q = node.binary(Binary.MUL, heads.q, node.like(scale, heads.q))
    scores = node.add("matmul", q, node.transpose(heads.k, (0, 1, 3, 2)))
    if softcap:
        part = node.unary(Unary.TANH, node.binary(Binary.DIV, scores, node.like(softcap, scores)))
        scores = node.binary(Binary.MUL, part, node.like(softcap, scores))
    for each in added:
        scores = node.binary(Binary.ADD, scores, each)
    rows = scores
    if sink is not None:
        rows = node.add("concat", scores, node.expand(sink, (*scores.shape[:3], 1)), axis=3)
    shares = node.add("softmax", rows, axis=3, log=False)
    shares = node.slice(shares, 3, 0, scores.shape[3])
    return node.add("matmul", shares, heads.v), scores


def _scale(node: Node, width: int) -> float:
    return node.float_attr("scale", 0.0) or 1.0 / math.sqrt(width)


def _grown(node: Node, past: Tensor | None, new: Tensor) -> Tensor:
    """Keys or values with those of earlier steps before them."""
    return new if past is None or not past.size else node.add("concat", past, new, axis=2)


def _self_attention(
    node: Node, qkv: Tensor, widths: list[int], mask: Tensor | None, past: Tensor | None, bias: Tensor | None
) -> list[Tensor | None]:
    """Attention of the packed projections [B, S, sum of widths] of queries, keys and values; and the keys and values
    of all steps."""
    count, masked = node.int_attr("num_heads"), node.float_attr("mask_filter_value", _MASKED)
    if node.int_attr("past_present_share_buffer", 0) or node.int_attr("do_rotary", 0):
        node.refuse("past_present_share_buffer and do_rotary are not supported")
    node.ignore("rotary_embedding_dim")
    starts = (0, widths[0], widths[0] + widths[1])
    q, k, v = (
        _split(node, node.slice(qkv, 2, start, width), count) for start, width in zip(starts, widths, strict=True)
    )
    if past is not None:
        k, v = (
            _grown(node, node.reshape(node.slice(past, 0, index, 1), past.shape[1:]), new)
            for index, new in enumerate((k, v))
        )
    heads = Heads(q, k, v)
    added = [] if bias is None else [bias]
    if mask is not None:
        added.append(_key_mask(node, mask, heads.scores, q, masked))
    if node.int_attr("unidirectional", 0):
        added.append(_allowed(node, causal(node, *heads.scores[2:]), q, _NEVER))
    y, _ = attend(node, heads, added, _scale(node, q.shape[3]))
    present = None
    if len(node.wanted) > 1 and node.wanted[1]:
        present = node.add("concat", *(node.reshape(part, (1, *part.shape)) for part in (k, v)), axis=0)
    return [_joined(node, y), present]


@handles(
    "Attention",
    domain=MICROSOFT,
    limits=["masks of 4 dimensions or 3 * batch + 2 entries, and shared buffers, are refused"],
)
def attention(node: Node) -> list[Tensor | None]:
    """Import Attention: projections of one input, attention of its steps among themselves."""
    x, w = node.input(0), node.input(1)
    total = w.shape[1]
    widths = node.ints_attr("qkv_hidden_sizes") or [total // 3] * 3
    if len(x.shape) != 3 or len(widths) != 3 or sum(widths) != total:
        node.damaged(f"qkv_hidden_sizes {widths} do not fit weights {list(w.shape)} of input {list(x.shape)}")
    bias = node.optional(2)
    flat = node.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))
    qkv = node.reshape(node.add("matmul", flat, w, bias), (*x.shape[:2], total))
    return _self_attention(node, qkv, widths, node.optional(3), node.optional(4), node.optional(5))


@handles("QAttention", domain=MICROSOFT, limits=["as Attention"])
def quantised_attention(node: Node) -> list[Tensor | None]:
    """Import QAttention: as Attention, with an integer product for the projections."""
    x, w, bias, x_scale, w_scale = (node.input(index) for index in range(5))
    flat = node.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))
    y = dequantized_product(node, flat, w, (x_scale, w_scale), node.optional(6), node.optional(7), bias)
    qkv = node.reshape(y, (*x.shape[:2], w.shape[1]))
    return _self_attention(node, qkv, [w.shape[1] // 3] * 3, node.optional(5), node.optional(8), None)


@handles("MultiHeadAttention", domain=MICROSOFT, limits=[_MASKS, "shared buffers are refused"])
def multi_head_attention(node: Node) -> list[Tensor | None]:
    """Import MultiHeadAttention of queries, keys and values, which may be packed."""
    count, masked = node.int_attr("num_heads"), node.float_attr("mask_filter_value", _MASKED)
    query, key, value, bias = node.input(0), node.optional(1), node.optional(2), node.optional(3)
    if node.optional(8) is not None or node.optional(9) is not None:
        node.refuse("buffers that past and present share are not supported")
    if key is None:  # [B, S, N, 3, D]
        query, key, value = _unpacked(node, query, 3)
    elif len(key.shape) == 5:  # [B, L, N, 2, D]
        key, value = _unpacked(node, key, 2)
    if value is None:
        node.damaged("input 2 is required")
    if bias is not None:
        widths = [count * x.shape[3] if len(x.shape) == 4 else x.shape[-1] for x in (query, key, value)]
        starts = (0, widths[0], widths[0] + widths[1])
        parts = [node.slice(bias, 0, start, width) for start, width in zip(starts, widths, strict=True)]
        query, key, value = (
            node.binary(Binary.ADD, x, part)
            if len(x.shape) == 3
            else node.binary(Binary.ADD, x, node.reshape(part, (1, count, 1, x.shape[3])))
            for x, part in zip((query, key, value), parts, strict=True)
        )
    q, k, v = (_split(node, x, count) for x in (query, key, value))
    k, v = (_grown(node, node.optional(index), new) for index, new in ((6, k), (7, v)))
    heads, mask, scores_bias = Heads(q, k, v), node.optional(4), node.optional(5)
    added = [] if scores_bias is None else [scores_bias]
    if mask is not None:
        if mask.shape == (3 * q.shape[0] + 2,):
            node.refuse("a mask of 3 * batch + 2 entries is not supported")
        added.append(_key_mask(node, mask, heads.scores, q, masked))
    if node.int_attr("unidirectional", 0):
        added.append(_allowed(node, causal(node, *heads.scores[2:]), q, _NEVER))
    y, scores = attend(node, heads, added, _scale(node, q.shape[3]))
    return [_joined(node, y), k, v, scores]


def _unpacked(node: Node, x: Tensor, count: int) -> list[Tensor]:
    """[B, S, N, count, D] as ``count`` tensors [B, N, S, D]."""
    if len(x.shape) != 5 or x.shape[3] != count:
        node.damaged(f"packed operands must be [batch, steps, heads, {count}, width], are {list(x.shape)}")
    batch, steps, heads, _, width = x.shape
    parts = (node.reshape(node.slice(x, 3, index, 1), (batch, steps, heads, width)) for index in range(count))
    return [node.transpose(part, (0, 2, 1, 3)) for part in parts]


@handles("RotaryEmbedding", domain=MICROSOFT, limits=["packed batches are refused"])
def rotary_embedding(node: Node) -> Tensor:
    """Import RotaryEmbedding of [B, S, N * D] or [B, N, S, D]."""
    x, positions, cos, sin = (node.input(index) for index in range(4))
    if node.int_attr("is_packed_batching", 0):
        node.refuse("packed batches are not supported")
    width, count = node.int_attr("rotary_embedding_dim", 0), node.int_attr("num_heads", 0)
    node.ignore("scale")  # of the caches; kernels do not read it
    flat = len(x.shape) == 3
    if flat and not count:
        if width:
            node.damaged("num_heads is required with rotary_embedding_dim")
        count = x.shape[2] // (2 * cos.shape[1])
    heads = _split(node, x, count)
    steps = heads.shape[2]
    if positions.size == 1 and positions.shape != (heads.shape[0], steps):
        # The position of the first step; the others follow.
        places = node.const(np.arange(steps)[None], positions.dtype)
        positions = node.binary(Binary.ADD, node.reshape(positions, (1, 1)), places)
    y = rotated(node, heads, positions, cos, sin, width or heads.shape[3], bool(node.int_attr("interleaved", 0)))
    return _joined(node, y) if flat else y


def rotated(
    node: Node, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, width: int, interleaved: bool
) -> Tensor:
    """x [B, N, S, D] with the pairs of its first ``width`` elements rotated by the angles of their positions
    [B, S]. ``cos``, ``sin``: [positions, width / 2]."""
    batch, heads, steps, whole = x.shape
    half = width // 2
    if len(cos.shape) != 2 or cos.shape != sin.shape or cos.shape[1] != half or not 0 < width <= whole:
        node.damaged(f"angles {list(cos.shape)} do not fit {width} elements of heads {list(x.shape)}")
    shape = (positions.shape[0], 1, steps, half)
    c, s = (node.reshape(node.add("gather", table, positions, axis=0), shape) for table in (cos, sin))
    part = node.slice(x, 3, 0, width)
    if interleaved:
        pairs = node.reshape(part, (batch, heads, steps, half, 2))
        a, b = (node.reshape(node.slice(pairs, 4, index, 1), (batch, heads, steps, half)) for index in range(2))
    else:
        a, b = (node.slice(part, 3, start, half) for start in (0, half))
    first = node.binary(Binary.SUB, node.binary(Binary.MUL, a, c), node.binary(Binary.MUL, b, s))
    second = node.binary(Binary.ADD, node.binary(Binary.MUL, b, c), node.binary(Binary.MUL, a, s))
    if interleaved:
        stacked = [node.reshape(each, (batch, heads, steps, half, 1)) for each in (first, second)]
        y = node.reshape(node.add("concat", *stacked, axis=4), part.shape)
    else:
        y = node.add("concat", first, second, axis=3)
    return y if width == whole else node.add("concat", y, node.slice(x, 3, width, whole - width), axis=3)


@handles(
    "GroupQueryAttention",
    domain=MICROSOFT,
    limits=[
        "total_sequence_length is known; several sequences start without past keys",
        "quantised caches are refused",
    ],
)
def group_query_attention(node: Node) -> list[Tensor | None]:
    """Import GroupQueryAttention: causal attention in which groups of heads share keys and values."""
    count, shared = node.int_attr("num_heads"), node.int_attr("kv_num_heads")
    lengths, total = node.input(5), int(node.scalar_value(6))
    if {node.text_attr(name, "NONE") for name in ("k_quant_type", "v_quant_type")} != {"NONE"}:
        node.refuse("quantised caches are not supported")
    if not node.int_attr("causal", 1) or node.int_attr("sliding_window_cache", 0):
        node.refuse("attention to later tokens, and caches of a sliding window, are not supported")
    if any(each is not None for each in node.inputs[12:]):
        node.refuse("scales of caches, and norms of queries and keys, are not supported")
    node.ignore("kv_cache_bit_width", "qk_output", "qk_norm_epsilon")
    node.no_output(3, "scores are not supported")
    q, k, v = _shared_heads(node, count, shared)
    batch, _, steps, width = q.shape
    before, turned = total - steps, bool(node.int_attr("rotary_interleaved", 0))
    if node.int_attr("do_rotary", 0):
        cos, sin = node.input(7), node.input(8)
        positions = node.optional(9)
        if positions is None:
            node.limit(batch * steps)
            positions = node.const(np.broadcast_to(np.arange(before, total), (batch, steps)).astype(np.int64))
        q, k = (rotated(node, x, positions, cos, sin, 2 * cos.shape[1], turned) for x in (q, k))
    k, v = (_cached(node, node.optional(index), new, before) for index, new in ((3, k), (4, v)))
    if batch > 1 and before > 0:
        node.refuse("several sequences with past keys are not supported")
    window, softcap = node.int_attr("local_window_size", -1), node.float_attr("softcap", 0.0)
    seen = [node.slice(each, 2, 0, total) for each in (k, v)]
    allowed = node.reshape(causal(node, steps, total, window), (1, 1, steps, total))
    if batch > 1:
        places = node.const(np.arange(total), lengths.dtype)
        valid = node.binary(Binary.LE, places, node.reshape(lengths, (batch, 1)))
        allowed = node.binary(Binary.AND, allowed, node.reshape(valid, (batch, 1, 1, total)))
    mask = _allowed(node, allowed, q, _NEVER)
    bias, sink, smooth = node.optional(10), node.optional(11), node.int_attr("smooth_softmax", -1) > 0
    if bias is not None:
        mask = node.binary(Binary.ADD, node.slice(bias, 3, 0, total), mask)
    if sink is None and smooth:
        sink = node.like(0, q)
    if sink is not None:
        sink = node.expand(node.reshape(sink, (1, sink.size, 1, 1)), (1, count, steps, 1))
        sink = _in_groups(node, sink, shared, count)
    # Heads of a group are rows of one product with their keys, so keys are not repeated.
    heads = Heads(_in_groups(node, q, shared, count), *seen)
    y, _ = attend(node, heads, [_in_groups(node, mask, shared, count)], _scale(node, width), softcap, sink)
    return [_joined(node, node.reshape(y, (batch, count, steps, v.shape[3]))), k, v]


def _shared_heads(node: Node, count: int, shared: int) -> list[Tensor]:
    """Queries of ``count`` heads, and keys and values of ``shared``, which may be packed behind the queries."""
    query, key, value = node.input(0), node.optional(1), node.optional(2)
    if count < 1 or shared < 1 or count % shared or len(query.shape) != 3:
        node.damaged(f"query {list(query.shape)} of {count} heads cannot share {shared} heads of keys")
    if key is None:
        width = query.shape[2] // (count + 2 * shared)
        parts = ((0, count), (count, shared), (count + shared, shared))
        query, key, value = (node.slice(query, 2, at * width, size * width) for at, size in parts)
    if value is None:
        node.damaged("input 2 is required")
    return [_split(node, query, count), _split(node, key, shared), _split(node, value, shared)]


def _in_groups(node: Node, x: Tensor, groups: int, heads: int) -> Tensor:
    """[B, heads or 1, S, W] as [B, groups or 1, rows of all heads of a group, W]."""
    (batch, given, steps, width), each = x.shape, heads // groups
    if given == heads:
        return node.reshape(x, (batch, groups, each * steps, width))
    wide = node.expand(node.reshape(x, (batch, given, 1, steps, width)), (batch, given, each, steps, width))
    return node.reshape(wide, (batch, given, each * steps, width))


def _cached(node: Node, past: Tensor | None, new: Tensor, before: int) -> Tensor:
    """Keys or values of all steps: ``before`` past ones, then the new ones. A past that has more room keeps its
    size."""
    room = 0 if past is None else past.shape[2]
    if before < 0 or room < before:
        node.damaged(f"{new.shape[2]} new keys after {before} past ones do not fit a cache of {room}")
    if past is None or not before:
        rest = room - new.shape[2]
        return (
            new
            if past is None or rest <= 0
            else node.add("concat", new, node.slice(past, 2, new.shape[2], rest), axis=2)
        )
    parts = [node.slice(past, 2, 0, before), new]
    after = room - before - new.shape[2]
    if after > 0:
        parts.append(node.slice(past, 2, room - after, after))
    return node.add("concat", *parts, axis=2)


@handles("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: Node) -> list[Tensor | None]:
    """Import EmbedLayerNormalization: the sum of the embeddings of words, positions and segments, normalised."""
    words, segments, mask, given = node.input(0), node.optional(1), node.optional(7), node.optional(8)
    table, positions, kinds = node.input(2), node.input(3), node.optional(4)
    if len(words.shape) != 2:
        node.damaged(f"input 0 must be [batch, steps], is {list(words.shape)}")
    total = node.add("gather", table, words, axis=0)
    if given is None:
        rows = node.slice(positions, 0, 0, words.shape[1])
    else:
        rows = node.add("gather", positions, given, axis=0)
    total = node.binary(Binary.ADD, total, rows)
    if segments is not None and kinds is not None:
        total = node.binary(Binary.ADD, total, node.add("gather", kinds, segments, axis=0))
    epsilon = node.float_attr("epsilon", 1e-12)
    y = node.add("normalize", total, axis=2, mode="layer", epsilon=epsilon)
    y = node.binary(Binary.ADD, node.binary(Binary.MUL, y, node.input(5)), node.input(6))
    node.ignore("mask_index_type")
    batch = words.shape[0]
    counts = node.expand(node.const(np.int32(0)), (batch,))
    if mask is not None:
        counts = node.reduce(Reduce.SUM, node.cast(mask, DType.INT32), [1], keepdims=False)
    return [y, counts, total]
