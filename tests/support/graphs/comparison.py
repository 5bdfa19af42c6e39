"""Comparison of results: equal bits where promised, an error bound elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npusim.dtypes import DType
from tests.support.graphs.random_values import Array, RandomGraph, Value, as_float

EPSILON = {DType.FLOAT32: 2.0**-20, DType.FLOAT16: 2.0**-8, DType.BFLOAT16: 2.0**-5}
"""A few units in the last place: enough for a chain of operators, far below the error of a wrong element."""
MOST_FLOAT16 = 3e4


def same_bytes(got: Mapping[str, Array], wanted: Mapping[str, Array], what: str) -> None:
    """Check that every output is equal to the last bit."""
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype, f"{what}: {name}"
        assert got[name].shape == array.shape, f"{what}: {name}"
        if got[name].tobytes() != np.ascontiguousarray(array).tobytes():
            wrong = int((got[name] != array).sum())
            raise AssertionError(f"{what}: {name}: {wrong} of {array.size} differ\n{got[name]}\n{array}")


def near_reference(case: RandomGraph, got: Mapping[str, Array], prepared: Mapping[str, Array]) -> None:
    """Check that integers equal the reference of the prepared graph, and that floats are near that of the original
    graph."""
    for name, value in case.expected.items():
        if value.dtype.is_float:
            _near(name, got[name], value)
        else:
            np.testing.assert_array_equal(got[name], prepared[name], err_msg=f"{name} against the prepared graph")
            if value.exact:
                np.testing.assert_array_equal(got[name], value.array, err_msg=name)


def _near(name: str, got: Array, value: Value) -> None:
    wanted, mine = as_float(value.array, value.dtype), as_float(got, value.dtype)
    if value.exact:
        np.testing.assert_array_equal(mine, wanted, err_msg=name)
        return
    if not np.isfinite(value.peak) or (value.dtype is DType.FLOAT16 and value.peak > MOST_FLOAT16) or value.peak > 1e36:
        return  # near the limits of the type, where only one of two ways of computing may overflow
    bound = EPSILON[value.dtype] * value.peak
    np.testing.assert_allclose(mine, wanted, rtol=EPSILON[value.dtype], atol=bound, err_msg=name)
