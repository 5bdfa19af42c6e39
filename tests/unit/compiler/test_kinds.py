"""Every kind of the graph language, from its row to the device; rows that lack something are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from npusim.compiler import kinds
from npusim.compiler.legalize import RULES
from npusim.compiler.lower import TILES
from npusim.compiler.lower.base import Lowering
from npusim.compiler.lower.movement import VIEW_RULES
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import UnsupportedError
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import Unit, decode
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.isa.reduction import CumSum
from npusim.ops import REGISTRY, reference
from npusim.ops.base import Elements, Lowered, Rows, define
from npusim.ops.build import GraphBuilder
from npusim.ops.routine import routine_attrs
from npusim.runtime import Session
from tests.support import sample_routines  # noqa: F401  (registers test.flip)

FULL = load_config("edge")


class Sample(NamedTuple):
    """The smallest operator of a kind that the device has to work for: shapes and types of inputs, constants, attrs."""

    attrs: Mapping[str, Any]
    inputs: tuple[tuple[tuple[int, ...], DType], ...] = (((4, 6), DType.FLOAT32),)
    constants: tuple[Any, ...] = ()


F32, I32 = DType.FLOAT32, DType.INT32
WINDOW = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0)}
IMAGE = (((1, 2, 5, 5), F32),)
SQUARE = ((4, 6), F32)
STEPS = (np.asarray(0.5, np.float32), np.asarray(3, np.int32))
"""A scale and a zero point."""

SAMPLES: dict[str, Sample] = {
    "unary": Sample({"fn": Unary.NEG}),
    "binary": Sample({"fn": Binary.ADD}, (SQUARE, SQUARE)),
    "select": Sample({}, (((4, 6), DType.BOOL), SQUARE, SQUARE)),
    "cast": Sample({"to": I32}),
    "quantize": Sample({"to": DType.INT8}, constants=STEPS),
    "dequantize": Sample({"to": F32}, (((4, 6), DType.INT8),), STEPS),
    "conv": Sample({**WINDOW, "groups": 1}, IMAGE, (np.ones((3, 2, 3, 3), np.float32),)),
    "conv_transpose": Sample({**WINDOW, "groups": 1, "output_hw": (7, 7)}, IMAGE, (np.ones((2, 3, 3, 3), np.float32),)),
    "matmul": Sample({}, constants=(np.ones((6, 3), np.float32),)),
    "pool": Sample({**WINDOW, "fn": "max", "kernel": (2, 2), "output_hw": (4, 4)}, IMAGE),
    "resample": Sample({"axis": 1}, constants=(np.int32([[0, 1], [4, 5]]), np.float32([[0.5, 0.5], [1, 2]]))),
    "reduce": Sample({"fn": Reduce.SUM, "axes": (1,), "keepdims": False}),
    "arg_reduce": Sample({"fn": "min", "axis": 0, "keepdims": False}),
    "topk": Sample({"axis": 1, "k": 2, "largest": True}),
    "softmax": Sample({"axis": 1, "log": False}),
    "normalize": Sample({"axis": 1, "mode": "layer", "epsilon": 1e-5}),
    "cumsum": Sample({"axis": 1, "exclusive": False, "reverse": True}),
    "lrn": Sample({"axis": 1, "size": 3, "alpha": 0.1, "beta": 0.75, "bias": 1.0}),
    "reshape": Sample({"shape": (3, 8)}),
    "transpose": Sample({"perm": (1, 0)}),
    "slice": Sample({"starts": (0, 5), "steps": (1, -1), "sizes": (4, 6)}),
    "concat": Sample({"axis": 1}, (SQUARE, SQUARE)),
    "pad": Sample({"before": (1, 0), "after": (0, 2), "mode": "constant"}),
    "expand": Sample({"shape": (3, 4, 6)}),
    "gather": Sample({"axis": 1}, constants=(np.int64([5, -1, 0]),)),
    "gather_elements": Sample({"axis": 1}, constants=(np.int64([[5], [0], [1], [-1]]),)),
    "scatter_elements": Sample(
        {"axis": 1, "reduction": "add"},
        constants=(np.int64([[5], [0], [1], [-1]]), np.ones((4, 1), np.float32)),
    ),
    "routine": Sample(routine_attrs("test.flip", axis=1, cuts=0)),
}

each_kind = pytest.mark.parametrize("kind", SAMPLES)


def graph_of(kind: str) -> Graph:
    """The sample of a kind, by the name ``it``, of inputs x0, x1, ..."""
    build = GraphBuilder(kind)
    sample = SAMPLES[kind]
    inputs = [build.input(f"x{index}", shape, dtype) for index, (shape, dtype) in enumerate(sample.inputs)]
    inputs += [build.const(array) for array in sample.constants]
    return build.finish(build.add_all(kind, inputs, sample.attrs, "it"))


def values_of(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        tensor.name: (rng.random(tensor.shape) > 0.5)
        if tensor.dtype is DType.BOOL
        else rng.integers(-9, 9, tensor.shape).astype(tensor.dtype.storage)
        for tensor in graph.inputs
    }


def test_there_is_a_sample_of_every_kind() -> None:
    assert list(SAMPLES.keys() ^ REGISTRY.keys()) == []


@each_kind
def test_the_device_computes_what_the_reference_says(kind: str) -> None:
    graph = graph_of(kind)
    inputs = values_of(graph)
    result = Session(FULL, cache_dir=False).run(compile_graph(graph, FULL), inputs).outputs
    for name, wanted in reference.run(graph, inputs).items():
        np.testing.assert_allclose(result[name], wanted, rtol=1e-6, atol=1e-6)


@each_kind
def test_the_unit_of_the_row_is_the_one_that_works(kind: str) -> None:
    graph = graph_of(kind)
    program = compile_graph(graph, FULL)
    said = REGISTRY[kind].unit_of(graph.ops[-1].attrs)
    at_work = {Unit(min(command.unit, Unit.DMA)) for command in decode(program.code)} - {Unit.CONTROL}
    assert at_work == {said, Unit.DMA}


@each_kind
def test_a_device_without_the_unit_refuses_by_name(kind: str) -> None:
    graph = graph_of(kind)
    unit = REGISTRY[kind].unit_of(graph.ops[-1].attrs).name.lower()
    for absent in sorted(FULL.units):
        config = without(absent)
        if absent != unit:
            compile_graph(graph, config)
            continue
        with pytest.raises(UnsupportedError) as caught:
            compile_graph(graph, config)
        assert [reason for _, _, reason in caught.value.reasons] == [f"edge has no {unit} unit"]
        assert all(name.startswith("it") for name, _, _ in caught.value.reasons)


def without(unit: str) -> Config:
    return FULL.with_(**{unit: None, "energy": None})


# Rows that lack something


def nothing(*arguments: Any) -> Any:
    raise AssertionError("never called")


WHOLE: dict[str, Any] = {
    "infer": nothing,
    "reference": nothing,
    "unit": Unit.VECTOR,
    "form": Rows(CumSum),
}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("infer", r"the kind 'odd' has no shape rule \(infer\)"),
        ("reference", "the kind 'odd' has no reference"),
        ("unit", r"the kind 'odd' has no unit that computes it \(unit\)"),
        ("form", r"the kind 'odd' has no form, by which the compiler finds its lowering \(form\)"),
    ],
)
def test_a_row_without_a_field_is_refused(field: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        define("odd", "x", "nothing", **{name: value for name, value in WHOLE.items() if name != field})
    assert "odd" not in REGISTRY


def test_a_kind_is_defined_once() -> None:
    with pytest.raises(ValueError, match="the kind 'cumsum' is defined twice"):
        define("cumsum", "x", "sums again", **WHOLE)


KNOWN = {Lowered.VIEW: VIEW_RULES, Lowered.TILES: TILES, Lowered.REWRITTEN: RULES}


@pytest.mark.parametrize(
    ("form", "lacks"),
    [
        (Lowered.VIEW, "lacks how its result is a view of its input"),
        (Lowered.TILES, "lacks a lowering of its own"),
        (Lowered.REWRITTEN, "lacks a rule that rewrites it by other kinds"),
    ],
)
def test_the_compiler_must_know_what_a_form_leaves_to_it(form: Lowered, lacks: str) -> None:
    odd = dataclasses.replace(REGISTRY["cumsum"], name="odd", form=form)
    with pytest.raises(ValueError, match=f"^the kind 'odd' {lacks}"):
        kinds.check_kinds({**REGISTRY, "odd": odd}, KNOWN)


@pytest.mark.parametrize("form", [Rows(CumSum), Elements(nothing)])
def test_forms_that_bring_their_instruction_along_need_nothing(form: Rows | Elements) -> None:
    odd = dataclasses.replace(REGISTRY["cumsum"], name="odd", form=form)
    kinds.check_kinds({**REGISTRY, "odd": odd}, KNOWN)


@pytest.mark.parametrize("form", list(Lowered))
def test_what_the_compiler_has_for_no_kind_is_refused(form: Lowered) -> None:
    known: dict[Lowered, Any] = {**KNOWN, form: [*KNOWN[form], "gone"]}
    with pytest.raises(ValueError, match=f"'gone', which is no kind of the form {form.name}"):
        kinds.check_kinds(REGISTRY, known)


def test_a_kind_has_one_lowering() -> None:
    with pytest.raises(ValueError, match="Other: the kind 'conv' is lowered by ConvLowering"):
        type(Lowering)("Other", (Lowering,), {}, kind="conv")
