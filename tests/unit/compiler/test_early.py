"""When elementwise steps move ahead of a data movement after a convolution; the bits stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.compiler.passes.hoist_elementwise import raise_elements
from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.isa.functions import Binary, Unary
from npusim.ops import reference
from npusim.ops.build import GraphBuilder

CHANNELS, SIZE = 12, (6, 4)
MOVEMENTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "pixels side by side": [
        ("reshape", {"shape": (1, 2, 2, 3, *SIZE)}), ("transpose", {"perm": (0, 3, 4, 1, 5, 2)}),
        ("reshape", {"shape": (1, 3, 12, 8)}),
    ],
    "heads of a detector": [
        ("reshape", {"shape": (1, 3, 4, 24)}), ("transpose", {"perm": (0, 3, 1, 2)}),
    ],
    "with ends cut off": [
        ("reshape", {"shape": (1, 2, 2, 3, *SIZE)}), ("transpose", {"perm": (0, 3, 4, 1, 5, 2)}),
        ("reshape", {"shape": (1, 3, 12, 8)}),
        ("slice", {"starts": (0, 0, 1, 0), "steps": (1, 1, 1, 1), "sizes": (1, 3, 11, 8)}),
    ],
    "channels behind the rest": [("transpose", {"perm": (0, 2, 3, 1)})],
}  # fmt: skip


class Net:
    """A convolution followed by data movement."""

    def __init__(self, movement: str) -> None:
        self.build = GraphBuilder("net")
        rng = np.random.default_rng(1)
        x = self.build.input("x", (1, 3, *SIZE), DType.FLOAT32)
        self.feeds = {"x": rng.integers(-9, 9, x.shape).astype(np.float32)}
        weights = self.build.const(rng.integers(-3, 3, (CHANNELS, 3, 1, 1)).astype(np.float32))
        window = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0,) * 4, "groups": 1}
        self.total = self.value = self.build.add("conv", [x, weights], window)
        for kind, attrs in MOVEMENTS[movement]:
            self.value = self.build.add(kind, [self.value], attrs)

    def step(self, kind: str, *others: Any, **attrs: Any) -> None:
        constants = [self.build.const(np.asarray(other)) for other in others]
        self.value = self.build.add(kind, [self.value, *constants], attrs)

    def by_channel(self) -> np.ndarray[Any, Any]:
        """Return a vector along the second dimension of the moved value."""
        size = self.value.shape[1]
        return np.arange(1, size + 1, dtype=np.float32).reshape(1, size, *(1,) * (len(self.value.shape) - 2))

    def raised(self, *outputs: Tensor) -> list[str]:
        """Return the operator kinds in their new order. Fails if the results changed."""
        graph = self.build.finish([self.value, *outputs])
        changed = raise_elements(graph)
        for got, wanted in zip(self._run(changed), self._run(graph), strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)
        return [op.kind for op in changed.ops]

    def _run(self, graph: Graph) -> list[Any]:
        return list(reference.run(graph, self.feeds).values())


@pytest.mark.parametrize("movement", MOVEMENTS)
def test_steps_come_before_the_movement(movement: str) -> None:
    net = Net(movement)
    kinds = [kind for kind, _ in MOVEMENTS[movement]]
    net.step("unary", fn=Unary.RELU)
    net.step("binary", np.full((1,), 3, np.float32), fn=Binary.SUB)
    net.step("quantize", np.float32(0.5), np.int32(2), to=DType.INT8)
    net.step("dequantize", np.float32(0.5), np.int32(2), to=DType.FLOAT32)
    net.step("unary", fn=Unary.NEG)
    assert net.raised() == ["conv", "unary", "binary", "quantize", "dequantize", "unary", *kinds]


@pytest.mark.parametrize("movement", MOVEMENTS)
def test_bytes_move_where_a_dequantisation_is_the_last_step(movement: str) -> None:
    net = Net(movement)
    kinds = [kind for kind, _ in MOVEMENTS[movement]]
    net.step("quantize", np.float32(0.5), np.int32(2), to=DType.INT8)
    net.step("dequantize", np.float32(0.5), np.int32(2), to=DType.FLOAT32)
    assert net.raised() == ["conv", "quantize", *kinds, "dequantize"]


@pytest.mark.parametrize("movement", [name for name in MOVEMENTS if name != "heads of a detector"])
def test_a_number_for_each_channel_moves_along(movement: str) -> None:
    net = Net(movement)
    if movement == "channels behind the rest":
        net.step("binary", np.arange(CHANNELS, dtype=np.float32), fn=Binary.MUL)
    else:
        net.step("binary", net.by_channel(), fn=Binary.MUL)
    assert net.raised()[:2] == ["conv", "binary"]


def test_numbers_that_would_vary_along_two_dimensions_stay() -> None:
    net = Net("heads of a detector")
    net.step("binary", np.arange(net.value.size, dtype=np.float32).reshape(net.value.shape), fn=Binary.ADD)
    assert net.raised()[-1] == "binary"


def test_what_somebody_else_reads_stays() -> None:
    net = Net("channels behind the rest")
    net.step("unary", fn=Unary.RELU)
    assert net.raised(net.total) == ["conv", "transpose", "unary"]


def test_what_a_slice_leaves_out_is_not_computed() -> None:
    net = Net("channels behind the rest")
    net.step("slice", starts=(0, 0, 0, 0), steps=(1, 1, 1, 1), sizes=(1, 3, 4, CHANNELS))
    net.step("unary", fn=Unary.RELU)
    assert net.raised()[-1] == "unary"
