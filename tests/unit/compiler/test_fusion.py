"""Fusion: groups, drains, views instead of copies, and concatenation in place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from npusim.compiler.grouping.groups import Group, form_groups
from npusim.compiler.lower.epilogue import Epilogue, absorb
from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.hw.config import load_config
from npusim.isa.base import decode
from npusim.isa.functions import Binary, Unary
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.program import Program
from npusim.runtime import Session
from tests.support.graphs.samples import conv, relu, residual_net

TINY = load_config("tiny")


def kinds(graph: Graph, *, fuse: bool = True) -> list[str]:
    return [group.kind for group in form_groups(graph.ops, graph.outputs, fuses="all" if fuse else "none")]


def mnemonics(program: Program) -> list[str]:
    return [command.instruction.mnemonic for command in decode(program.code)]


def image(build: GraphBuilder, channels: int = 4) -> Tensor:
    return build.input("x", (1, channels, 8, 8), DType.FLOAT32)


# Groups


def test_a_residual_block_is_two_groups() -> None:
    assert kinds(residual_net(8, 8, 1)) == ["conv+relu", "conv+relu", "conv+add+relu"]


def test_without_fusion_every_operator_is_alone() -> None:
    assert kinds(residual_net(8, 8, 1), fuse=False) == ["conv", "relu", "conv", "relu", "conv", "add", "relu"]


def test_fusion_stops_where_somebody_else_reads_the_value() -> None:
    build = GraphBuilder("shared")
    total = conv(build, image(build), 4)
    one, two = relu(build, total), build.add("unary", [total], {"fn": Unary.TANH})
    assert kinds(build.finish([one, two])) == ["conv", "relu", "tanh"]


def test_what_the_anchor_reads_is_made_before_it() -> None:
    build = GraphBuilder("around one layer")
    value = relu(build, image(build))
    graph = build.finish([build.add("binary", [conv(build, value, 4), value], {"fn": Binary.ADD})])
    assert kinds(graph) == ["relu", "conv+add"]


def test_fusion_stops_at_an_output() -> None:
    build = GraphBuilder("seen")
    total = conv(build, image(build), 4)
    assert kinds(build.finish([total, relu(build, total)])) == ["conv", "relu"]


def test_elementwise_chains_are_one_group() -> None:
    build = GraphBuilder("chain")
    value = image(build)
    for fn in (Unary.ABS, Unary.SQRT, Unary.NEG):
        value = build.add("unary", [value], {"fn": fn})
    assert kinds(build.finish([value])) == ["abs+sqrt+neg"]


def test_a_broadcast_operand_of_another_shape_is_not_joined() -> None:
    """The reduced value is smaller than the value it is broadcast to, so its tile is not the consumer's tile."""
    build = GraphBuilder("broadcast")
    x, row = image(build), build.input("row", (8,), DType.FLOAT32)
    small = build.add("unary", [row], {"fn": Unary.EXP})
    assert kinds(build.finish([build.add("binary", [x, small], {"fn": Binary.MUL})])) == ["exp", "mul"]


def test_two_products_are_two_groups() -> None:
    build = GraphBuilder("two")
    x = image(build)
    both = build.add("binary", [conv(build, x, 4), conv(build, x, 4, seed=5)], {"fn": Binary.ADD})
    found = kinds(build.finish([both]))
    assert sorted(found) == ["conv", "conv+add"]


@pytest.mark.parametrize(
    ("kind", "attrs"),
    [("softmax", {"axis": 3, "log": False}), ("normalize", {"axis": 3, "mode": "rms", "epsilon": 1e-5})],
)
def test_what_follows_rows_works_on_their_tile(kind: str, attrs: dict[str, Any]) -> None:
    build = GraphBuilder("rows")
    assert kinds(build.finish([relu(build, build.add(kind, [image(build)], attrs))])) == [f"{kind}+relu"]


def test_rows_that_become_one_element_are_not_fused() -> None:
    build = GraphBuilder("rows")
    attrs = {"axis": 3, "keepdims": True, "fn": "max", "select_last": False}
    largest = build.add("arg_reduce", [image(build)], attrs)
    same = build.add("binary", [largest, largest], {"fn": Binary.ADD})
    assert kinds(build.finish([same])) == ["arg_reduce", "add"]


# Drains


def drained(graph: Graph) -> Epilogue:
    prepared = prepare(graph, TINY)
    (group,) = [g for g in form_groups(prepared.ops, prepared.outputs) if g.anchor is not None]
    assert isinstance(group, Group)
    return absorb(group)


def test_relu_and_clip_leave_with_the_sums() -> None:
    build = GraphBuilder("g")
    value = build.add("unary", [relu(build, conv(build, image(build), 4))], {"fn": Unary.CLIP, "p0": -1.0, "p1": 6.0})
    drain = drained(build.finish([value]))
    assert (drain.low, drain.high, drain.rest) == (0.0, 6.0, ())
    assert drain.result is value or drain.result.name == value.name


def test_other_activations_stay_with_the_vector_unit() -> None:
    build = GraphBuilder("g")
    value = build.add("unary", [conv(build, image(build), 4)], {"fn": Unary.TANH})
    drain = drained(build.finish([relu(build, value)]))
    assert [op.attrs["fn"] for op in drain.rest] == [Unary.TANH, Unary.RELU]
    assert (drain.low, drain.high) == (-math.inf, math.inf)


def test_a_residual_stays_with_the_vector_unit_and_what_follows_it() -> None:
    build = GraphBuilder("g")
    x = image(build)
    total = build.add("binary", [relu(build, conv(build, x, 4)), x], {"fn": Binary.ADD})
    drain = drained(build.finish([relu(build, total)]))
    assert drain.low == 0.0
    assert [op.kind for op in drain.rest] == ["binary", "unary"]


def quantised(to: DType, out_scale: float = 0.5, per_channel: bool = False) -> Graph:
    build = GraphBuilder("q")
    rng = np.random.default_rng(2)
    x, weights = build.input("x", (5, 16), DType.INT8), build.const(rng.integers(-9, 9, (16, 6), np.int8))
    zero = build.const(np.zeros((), np.int32))
    scales = build.const(rng.uniform(0.1, 0.2, 6).astype(np.float32) if per_channel else np.float32(0.125))
    left = build.add("dequantize", [x, build.const(np.float32(0.25)), build.const(np.int32(-4))], {"to": DType.FLOAT32})
    right = build.add("dequantize", [weights, scales, zero], {"to": DType.FLOAT32})
    total = build.add("matmul", [left, right])
    step = build.const(np.float32(out_scale))
    return build.finish([build.add("quantize", [total, step, build.const(np.int32(3))], {"to": to})])


@pytest.mark.parametrize("to", [DType.INT8, DType.UINT8, DType.INT16])
def test_a_quantised_layer_leaves_quantised(to: DType) -> None:
    drain = drained(quantised(to, per_channel=True))
    assert drain.rest == ()
    assert drain.out_type is to
    assert (drain.out_scale, drain.out_zero) == (0.5, 3)
    assert drain.scale is not None
    assert drain.scale.shape == (6,)
    program = compile_graph(quantised(to), TINY)
    assert not any(name.startswith("vector.") for name in mnemonics(program))


def test_what_is_rewritten_makes_an_output_without_a_copy() -> None:
    build = GraphBuilder("g")
    x, bias = build.input("x", (2, 8), DType.FLOAT32), build.input("b", (4,), DType.FLOAT32)
    y = build.add("matmul", [x, build.const(np.ones((8, 4), np.float32)), bias], {}, "y")
    program = compile_graph(build.finish([y]), TINY)
    assert [entry.kind for entry in program.ops] == ["matmul+add"]
    assert [binding.name for binding in program.outputs] == ["y"]


# Views and places


@pytest.mark.parametrize(
    ("kind", "attrs"),
    [
        ("reshape", {"shape": (16, 16)}),
        ("transpose", {"perm": (0, 2, 3, 1)}),
        ("slice", {"starts": (0, 3, 7, 0), "steps": (1, -1, -2, 1), "sizes": (1, 4, 4, 8)}),
        ("expand", {"shape": (3, 4, 8, 8)}),
    ],
)
def test_movement_between_operators_is_a_view(kind: str, attrs: dict[str, object]) -> None:
    """In exp - move - neg, the movement adds no commands."""
    build = GraphBuilder("moved")
    value = build.add("unary", [image(build)], {"fn": Unary.EXP})
    value = build.add(kind, [value], attrs)
    program = compile_graph(build.finish([build.add("unary", [value], {"fn": Unary.NEG})]), TINY)
    assert [entry.kind for entry in program.ops] == ["exp", "neg"]


def test_concatenation_happens_in_place() -> None:
    """The branches write directly to the result; no operator is left for the concatenation."""
    build = GraphBuilder("inception")
    x = image(build)
    branches = [relu(build, conv(build, x, channels, seed=channels)) for channels in (3, 5, 8)]
    value = build.add("concat", branches, {"axis": 1})
    program = compile_graph(build.finish([build.add("softmax", [value], {"axis": 3, "log": False})]), TINY)
    result = [entry.kind for entry in program.ops]
    moved = [command for command in decode(program.code) if program.ops[command.op].kind == "concat"]
    assert result[:3] == ["conv+relu"] * 3
    assert not moved


def test_concatenation_of_what_cannot_move_is_copied() -> None:
    build = GraphBuilder("inputs")
    x = image(build)
    program = compile_graph(build.finish([build.add("concat", [x, x], {"axis": 1})]), TINY)
    assert set(mnemonics(program)) == {"dma.copy", "halt"}


def test_a_part_of_a_concatenation_is_copied_where_it_cannot_be_viewed() -> None:
    """On its own the branch could be reshaped without a copy; interleaved with the other branch's columns it cannot."""
    build = GraphBuilder("columns")
    x = build.input("x", (2, 3), DType.FLOAT32)
    left, right = build.add("unary", [x], {"fn": Unary.EXP}), build.add("unary", [x], {"fn": Unary.NEG})
    wide = build.add("concat", [left, right], {"axis": 1})
    flat = build.add("reshape", [left], {"shape": (6,)})
    ends = [build.add("softmax", [value], {"axis": len(value.shape) - 1, "log": False}) for value in (wide, flat)]
    graph = build.finish(ends)
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    wanted = reference.run(graph, inputs)
    with Session(TINY, cache_dir=False) as session:
        got = session.run(graph, inputs).outputs
    for end in ends:
        np.testing.assert_allclose(got[end.name], wanted[end.name], rtol=1e-6)


def test_scratch_is_used_again() -> None:
    """A long chain of layers needs two intermediate images at a time, not one per layer."""
    short, long = (compile_graph(residual_net(8, 8, blocks), TINY).region_bytes[1] for blocks in (2, 6))
    assert long == short


def test_a_uniform_scale_may_have_more_dimensions_than_what_its_tensor_becomes() -> None:
    """If the dequantisation moves behind the reshape, its scale cannot keep four dimensions."""
    build = GraphBuilder("flat")
    scale, zero = build.const(np.full((1, 1, 1, 1), 0.5, np.float32)), build.const(np.full((1, 1, 1, 1), 3, np.int32))
    real = build.add("dequantize", [build.input("x", (1, 2, 1, 3), DType.INT8), scale, zero], {"to": DType.FLOAT32})
    graph = prepare(build.finish([build.add("reshape", [real], {"shape": (6,)})]), TINY)
    inputs = {"x": np.arange(-3, 3, dtype=np.int8).reshape(1, 2, 1, 3)}
    (result,) = reference.run(graph, inputs).values()
    np.testing.assert_array_equal(result, (np.arange(-3, 3) - 3) * np.float32(0.5))


@pytest.mark.parametrize("real", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize(
    ("scale", "zero", "per_channel"), [(0.5, 3, False), (0.25, 3, False), (0.5, 4, False), (0.5, 3, True)]
)
def test_a_dequantisation_and_its_inverse_cancel_if_nothing_is_lost(
    real: DType, scale: float, zero: int, per_channel: bool
) -> None:
    """Through float32 with equal parameters they cancel; float16 cannot represent every 16-bit value."""
    build = GraphBuilder("pair")
    x = build.input("x", (2, 4), DType.INT16)

    def parameters(scale: float, zero: int) -> list[Tensor]:
        shape = (1, 4) if per_channel else ()
        return [build.const(np.full(shape, scale, np.float32)), build.const(np.full(shape, zero, np.int32))]

    value = build.add("dequantize", [x, *parameters(0.5, 3)], {"to": real})
    value = build.add("quantize", [value, *parameters(scale, zero)], {"to": DType.INT16})
    graph = build.finish([build.add("transpose", [value], {"perm": (1, 0)})])
    kinds = {op.kind for op in prepare(graph, load_config("tiny")).ops}
    cancels = real is DType.FLOAT32 and (scale, zero, per_channel) == (0.5, 3, False)
    assert kinds == ({"transpose"} if cancels else {"transpose", "dequantize", "quantize"})
