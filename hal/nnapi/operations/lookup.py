"""EMBEDDING_LOOKUP, HASHTABLE_LOOKUP, LSH_PROJECTION, TOPK_V2: rows found by number, key, hash or rank."""

from __future__ import annotations

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce
from npusim.ops.routine import routine_attrs

from ..types import OperationType
from .definition import define
from .lowering import InvalidOperationError, Lowering
from .rules import input_types, ranks, same_quantisation, scalars
from .shape import entries
from .signature import BOOL8, F16, F32, I32, Q8, Q8S, Q8SYMM, Q16, Q16S, QUANT8, forms, rows
from .versions import V1_2, V1_3
from .view import OpView

_DENSE, _SPARSE = 2, 3
"""Types of LSH_PROJECTION; with 1, SPARSE_DEPRECATED, all numbers count from 0."""


def _hashtable_lookup(op: Lowering) -> None:
    """Rows by key; a missing key gives a row of zeros and no hit."""
    lookups, keys, values = op.tensor(0), op.tensor(1), op.tensor(2)
    places, hits = op.add_all("routine", [lookups, keys], routine_attrs("npusim.search_keys"))
    op.give(hits, 1)
    shape = (lookups.shape[0], *values.shape[1:])
    nothing = op.const(np.zeros((1,) * len(shape), values.dtype.storage), values.dtype)
    # A gather needs at least one row, even for missing keys.
    if not keys.size:
        op.give(op.expand(nothing, shape))
        return
    found = op.reshape(op.cast(hits, DType.BOOL), (shape[0], *(1 for _ in shape[1:])))
    op.give(op.add("select", [found, op.add("gather", [values, places], {"axis": 0}), nothing]))


def _lsh_projection(op: Lowering) -> None:
    """The bits of each hash as separate numbers, or as one number per hash."""
    seeds, items = op.real(0), op.tensor(1)
    weights = op.f32(np.ones(items.shape[0])) if op.omitted(2) else op.real(2)
    [stored] = op.add_all("routine", [seeds, items, weights], routine_attrs("npusim.lsh_bits"))
    bits, (hashes, count), kind = op.cast(stored, DType.INT32), stored.shape, op.scalar(3)
    if count > 32:
        raise InvalidOperationError(f"input 0: a hash has at most 32 bits, got {count}")
    op.give(op.reshape(bits, (hashes * count,)) if kind == _DENSE else _packed(op, bits, kind == _SPARSE))


def _packed(op: Lowering, bits: Tensor, apart: bool) -> Tensor:
    """The bits of each row as one number, the first bit highest; ``apart``: row i counts from i << bits."""
    hashes, count = bits.shape
    # The first of 32 bits is the sign of an INT32; sums that wrap still give the right bit patterns.
    powers = (np.uint64(1) << np.arange(count, dtype=np.uint64)[::-1]).astype(np.uint32).view(np.int32)
    numbers = op.reduce(Reduce.SUM, op.binary(Binary.MUL, bits, op.i32(powers)), (1,), keepdims=False)
    if not apart:
        return numbers
    starts = (np.arange(hashes, dtype=np.uint64) << np.uint64(count)).astype(np.uint32).view(np.int32)
    return op.binary(Binary.ADD, numbers, op.i32(starts))


def _topk(op: Lowering) -> None:
    """The largest of each row of the last dimension, in descending order; the first of equals."""
    x, k = op.tensor(0), op.scalar(1)
    if not 0 <= k <= x.shape[-1]:
        raise InvalidOperationError(f"input 1 must be in [0, {x.shape[-1]}], got {k}")
    values, places = op.add_all("topk", [x], {"axis": len(x.shape) - 1, "k": k, "largest": True})
    op.give(values, 0)
    op.give(op.cast(places, DType.INT32), 1)


def _rows_first(view: OpView) -> bool:
    """input 2 must have at least rank 2 and one row for each key"""
    keys, values = view.dims(1), view.dims(2)
    return not values or (len(values) >= 2 and (not keys or 0 in (keys[0], values[0]) or keys[0] == values[0]))


def _k_fits(view: OpView) -> bool:
    """input 1 must be in [0, n], n being the last dimension of input 0"""
    k, dims = view.scalar(1), view.dims(0)
    return k is None or (k >= 0 and (not dims or dims[-1] == 0 or k <= dims[-1]))


def _table_rank(view: OpView) -> bool:
    """input 1 must have at least rank 2"""
    dims = view.dims(1)
    return not dims or len(dims) >= 2


define(
    OperationType.EMBEDDING_LOOKUP,
    forms("I32 T", "T", rows("T", (F32, F16, I32, *QUANT8))),
    lambda op: op.give(entries(op, op.tensor(1), 0, 0)),
    ranks(0, 1),
    _table_rank,
    same_quantisation(1),
    later=[input_types(1, V1_2, I32, *QUANT8), input_types(1, V1_3, F16)],
)

define(
    OperationType.HASHTABLE_LOOKUP,
    forms("I32 I32 T", "T Q8", rows("T", (F32, I32, Q8))),
    _hashtable_lookup,
    ranks(0, 1),
    ranks(1, 1),
    _rows_first,
    same_quantisation(2),
)

_KIND = "input 3 must be 1 (SPARSE_DEPRECATED), 2 (DENSE) or 3 (SPARSE)"
_HASHED = (F32, F16, I32, Q8, Q8S, Q8SYMM, Q16, Q16S, BOOL8)
define(
    OperationType.LSH_PROJECTION,
    forms("H T H i", "I32", [{"H": seed, "T": kind} for seed in (F32, F16) for kind in _HASHED]),
    _lsh_projection,
    ranks(0, 2),
    ranks(2, 1),
    scalars(_KIND, lambda kind: kind in (1, 2, 3), 3),
    optional=(2,),
)

define(
    OperationType.TOPK_V2,
    forms("T i", "T I32", rows("T", (F32, F16, I32, *QUANT8))),
    _topk,
    _k_fits,
    same_quantisation(0),
)
