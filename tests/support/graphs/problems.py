"""Tiling problems: shapes, and the properties that a layer's place in a network adds."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.timing.tile_problem import EpilogueCosts, Home, MatrixProblem


@st.composite
def problems(draw: st.DrawFn) -> MatrixProblem:
    kernel = draw(st.integers(1, 5) | st.sampled_from([7, 15]))
    groups = draw(st.sampled_from([1, 1, 2, 8]))
    depthwise = groups == 8 and draw(st.booleans())
    wide = draw(st.sampled_from([DType.INT8, DType.FLOAT32]))
    return MatrixProblem(
        images=draw(st.integers(1, 3)), oh=draw(st.integers(1, 60)), ow=draw(st.integers(1, 60)), groups=groups,
        oc=1 if depthwise else draw(st.integers(1, 200)), ic=1 if depthwise else draw(st.integers(1, 300)),
        kh=kernel, kw=draw(st.integers(1, 5)), sh=draw(st.integers(1, 2)), sw=draw(st.integers(1, 2)),
        dh=draw(st.sampled_from([1, 1, 2, 18])), dw=draw(st.sampled_from([1, 1, 3, 18])), depthwise=depthwise,
        shared_weights=draw(st.booleans()), x_type=wide, w_type=wide,
        out_type=draw(st.sampled_from([DType.INT8, DType.FLOAT32])), epilogue=draw(st.sampled_from([
            EpilogueCosts(), EpilogueCosts(4), EpilogueCosts(8, 8, 1024, 1000, 2000, (1,), result=1),
        ])),
        in_place=False,
    )  # fmt: skip


@st.composite
def homes(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the fields of a problem other than its shape."""
    held = draw(st.sampled_from([0, 0, 1, 2]))
    return {
        "x_home": draw(st.sampled_from(Home)), "out_home": draw(st.sampled_from(Home)), "held": held,
        "pinned": bool(held) and draw(st.booleans()), "main": draw(st.booleans()), "in_place": draw(st.booleans()),
        "beside": draw(st.sampled_from([1, 4])), "x_serves": draw(st.sampled_from([1, 2])),
        "w_serves": draw(st.sampled_from([1, 4])), "w_block": draw(st.sampled_from([0, 32])),
        "w_zeros": draw(st.booleans()), "sum_bytes": draw(st.sampled_from([4, 8])),
        "parameters": draw(st.sampled_from([8, 12])),
        "both_ways": draw(st.booleans()),
        "padded": draw(st.none() | st.tuples(*[st.integers(1, 60)] * 2, *[st.integers(0, 40)] * 2)),
    }  # fmt: skip


PLAIN = MatrixProblem(
    1, 8, 8, 1, 8, 8, 1, 1, 1, 1, 1, 1, False, True, DType.INT8, DType.INT8, DType.INT8, EpilogueCosts(), False
)
"""A small problem with eight of everything."""
