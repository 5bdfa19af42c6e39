"""Routines for search and hashing: positions of keys, projections by locality-sensitive hashing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim import _core
from npusim.dtypes import DType
from npusim.routines.base import Array, Cut, Params, Routine, Spec, register_routine
from npusim.routines.checks import F32, I32, check_operands, traffic, want
from npusim.units import ceil_div
from npusim.work import ScalarWork


def _infer_search(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    check_operands(inputs, ("lookups", 1, I32), ("keys", 1, I32))
    return [Spec(inputs[0].shape, I32), Spec(inputs[0].shape, DType.UINT8)]


def _search_work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> ScalarWork:
    # A binary search per lookup; its reads of keys count as steps, not as traffic.
    steps = inputs[0].size * (1 + inputs[1].size.bit_length())
    return ScalarWork(steps, 4 * steps + traffic(inputs[:1], outputs))


register_routine(
    Routine(
        "npusim.search_keys",
        1,
        _infer_search,
        lambda ins, params, outs: _core.search_keys(*ins, *outs),
        _search_work,
        cuts=lambda inputs, params: [Cut((0, None), (0, 0))],
    )
)
"""lookups [n], keys [k] in ascending order -> positions [n] (0 for a missing key), hits [n] (0 or 1)."""


def _infer_lsh(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    want(len(inputs) == 3, f"takes 3 inputs, got {len(inputs)}")
    check_operands([inputs[0], inputs[2]], ("seeds", 2, F32), ("weights", 1, F32))
    seeds, items, weights = inputs
    want(len(items.shape) >= 1, "items must have at least rank 1")
    want(weights.shape == items.shape[:1], f"weights must be {list(items.shape[:1])}, got {list(weights.shape)}")
    return [Spec(seeds.shape, DType.UINT8)]


def _lsh(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    seeds, items, weights = inputs
    count = items.shape[0]
    width = items.nbytes // max(1, count)
    raw = items.reshape(-1).view(np.uint8).reshape(count, width)
    _core.lsh_bits(seeds, raw, weights, outputs[0])


def _lsh_work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> ScalarWork:
    """A step processes eight bytes of a key."""
    items = inputs[1]
    count = items.shape[0]
    width = items.nbytes // max(1, count)
    words = outputs[0].size * count * ceil_div(4 + width, 8)
    return ScalarWork(words, 8 * words + outputs[0].nbytes)


register_routine(
    Routine("npusim.lsh_bits", 1, _infer_lsh, _lsh, _lsh_work, cuts=lambda inputs, params: [Cut((0, None, None), (0,))])
)
"""seeds [hashes, bits], items [n, ...] of any type, weights [n] -> bits [hashes, bits] (0 or 1)."""
