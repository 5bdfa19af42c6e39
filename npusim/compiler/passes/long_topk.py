"""Top-k of rows that are longer than SRAM: top-k of each block, then of these candidates."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from npusim.compiler.passes.rewrite import Rewriter
from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.hw.config import Config
from npusim.isa.functions import Binary

ROW_SHARE = 4
"""A row may take 1/4 of SRAM: input and results have two slots each."""
ELEMENT_BYTES = 16
"""Bytes per element of a block, whose position and index among the candidates are looked up together."""


def topk_in_blocks(graph: Graph, config: Config) -> Graph:
    """Cut rows that are too long for ``config``. Ties still go to the lower index, because blocks keep their order."""
    if not any(op.kind == "topk" for op in graph.ops):
        return graph
    longest = config.sram.bytes // ROW_SHARE

    def rule(rewriter: Rewriter, op: Op) -> bool:
        if op.kind != "topk":
            return False
        x, k = op.input(0), op.attrs["k"]
        block = longest // ELEMENT_BYTES
        if x.shape[op.attrs["axis"]] * x.dtype.itemsize <= longest or block < 2 * k:
            return False
        values, indices = _largest(rewriter, op, x, None, block)
        for old, new in zip(op.outputs, (values, indices), strict=True):
            rewriter.substitute(old, new)
        return True

    return Rewriter(graph).run(rule) if any(op.kind == "topk" for op in graph.ops) else graph


def _largest(rewriter: Rewriter, op: Op, x: Tensor, positions: Tensor | None, block: int) -> tuple[Tensor, Tensor]:
    """Values and positions of the k largest or smallest elements of rows of any length.

    ``positions``: of the elements of ``x`` in the whole row; None if ``x`` is the whole row.
    """
    axis, length = op.attrs["axis"], x.shape[op.attrs["axis"]]
    if length <= block:
        return _of_block(rewriter, op, x, positions, axis, None)
    blocks = length // block
    split = (*x.shape[:axis], blocks, block, *x.shape[axis + 1 :])
    joined = (*x.shape[:axis], blocks * op.attrs["k"], *x.shape[axis + 1 :])
    firsts = np.arange(blocks, dtype=np.int64).reshape(-1, *(1,) * (len(split) - axis - 1)) * block

    def cut(tensor: Tensor) -> Tensor:
        whole = _part(rewriter, op, tensor, 0, blocks * block)
        return rewriter.add(f"{op.name}.blocks", "reshape", (whole,), {"shape": split})

    found = [
        rewriter.add(f"{op.name}.of_blocks", "reshape", (each,), {"shape": joined})
        for each in _of_block(rewriter, op, cut(x), positions and cut(positions), axis + 1, firsts)
    ]
    rest = length - blocks * block
    if rest:
        last = _of_block(
            rewriter,
            op,
            _part(rewriter, op, x, blocks * block, rest),
            positions and _part(rewriter, op, positions, blocks * block, rest),
            axis,
            np.array(blocks * block, np.int64),
        )
        found = [
            rewriter.add(f"{op.name}.candidates", "concat", pair, {"axis": axis})
            for pair in zip(found, last, strict=True)
        ]
    return _largest(rewriter, op, found[0], found[1], block)


def _of_block(
    rewriter: Rewriter,
    op: Op,
    x: Tensor,
    positions: Tensor | None,
    axis: int,
    first: np.ndarray[Any, np.dtype[np.int64]] | None,
) -> tuple[Tensor, Tensor]:
    """Top-k of blocks along an axis: values, and their positions in the row. ``first``: the position where each block
    starts."""
    values, places = _topk(rewriter, op, x, axis, min(op.attrs["k"], x.shape[axis]))
    if positions is not None:
        return values, rewriter.add(f"{op.name}.positions", "gather_elements", (positions, places), {"axis": axis})
    if first is None:
        return values, places
    constant = rewriter.const(f"{op.name}.first", first, DType.INT64)
    return values, rewriter.add(f"{op.name}.shifted", "binary", (places, constant), {"fn": Binary.ADD})


def _topk(rewriter: Rewriter, op: Op, x: Tensor, axis: int, k: int) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    attrs: dict[str, Any] = {**op.attrs, "axis": axis, "k": k}
    values, indices = (rewriter.tensor(f"{op.name}.part", shape, dtype) for dtype in (x.dtype, DType.INT64))
    rewriter.keep(Op(f"{op.name}.part", "topk", (x,), (values, indices), MappingProxyType(attrs)))
    return values, indices


def _part(rewriter: Rewriter, op: Op, x: Tensor, start: int, size: int) -> Tensor:
    axis = op.attrs["axis"]
    starts = tuple(start if index == axis else 0 for index in range(len(x.shape)))
    sizes = tuple(size if index == axis else dim for index, dim in enumerate(x.shape))
    return rewriter.add(
        f"{op.name}.row", "slice", (x,), {"starts": starts, "steps": (1,) * len(starts), "sizes": sizes}
    )
