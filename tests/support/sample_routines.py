"""Routines for tests, whose results are easy to express in numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.routines import Cut, Routine, Spec, register_routine, unregister_routine
from npusim.routines.base import Array, Params
from npusim.work import ScalarWork, VectorWork


def _infer(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    x, w = inputs
    if len(x.shape) != 3 or w.shape != x.shape[1:2] or x.dtype is not w.dtype or x.dtype is not DType.INT32:
        raise ModelError(f"x must be int32 [rows, n, depth] and w int32 [n], got {x} and {w}")
    return [Spec(x.shape, DType.INT32), Spec((x.shape[2], x.shape[0]), DType.UINT8)]


def _execute(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    x, w = inputs
    if params["fail"]:
        raise RuntimeError("told to")
    with np.errstate(over="ignore"):
        outputs[0][...] = x * params["factor"] + w[:, None]
    outputs[1][...] = np.count_nonzero(x > 0, axis=1).astype(np.uint8).T


def _work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> ScalarWork:
    return ScalarWork(inputs[0].size, inputs[0].nbytes + outputs[0].nbytes)


def _cuts(inputs: Sequence[Spec], params: Params) -> list[Cut]:
    both = [Cut((2, None), (2, 0)), Cut((0, None), (0, 1))]
    return both[: params["cuts"]]


SCALE = register_routine(
    Routine("test.scale", 1, _infer, _execute, _work, {"factor": int, "fail": bool, "cuts": int, "label": str}, _cuts)
)
"""y0 = x * factor + w along axis 1, y1[k, i] = positive elements of x[i, :, k]; cut along rows and depth."""

PLAIN = {"factor": 3, "fail": False, "cuts": 2, "label": "plain"}


def _square_work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> VectorWork:
    return VectorWork("simple", DType.INT8, inputs[0].size, 1, 2 * inputs[0].nbytes)


def _square(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    np.multiply(inputs[0], inputs[0], out=outputs[0])


SQUARE = register_routine(
    Routine("test.square", 1, lambda inputs, params: list(inputs), _square, _square_work, unit="vector")
)
"""y = x * x on the vector unit, in one piece."""


def _flip_cuts(inputs: Sequence[Spec], params: Params) -> list[Cut]:
    others = [axis for axis in range(len(inputs[0].shape)) if axis != params["axis"]]
    return [Cut((axis,), (axis,)) for axis in others[: params["cuts"]]]


def _flip(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    outputs[0][...] = np.flip(inputs[0], params["axis"])


FLIP = register_routine(
    Routine(
        "test.flip",
        1,
        lambda inputs, params: list(inputs),
        _flip,
        lambda inputs, outputs, params: ScalarWork(inputs[0].size, 2 * inputs[0].nbytes),
        {"axis": int, "cuts": int},
        _flip_cuts,
    )
)
"""y = x reversed along an axis, of any type; cut along some of the others."""


@contextmanager
def registered(routine: Routine) -> Iterator[Routine]:
    """Register the routine in this context."""
    register_routine(routine)
    try:
        yield routine
    finally:
        unregister_routine(routine)
