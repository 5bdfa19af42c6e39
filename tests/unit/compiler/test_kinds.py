"""Every operator kind, from its table row to the device; incomplete rows are rejected."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from npusim.compiler import pipeline
from npusim.compiler.lower import TILES, kinds
from npusim.compiler.lower.base import Lowering
from npusim.compiler.lower.movement import VIEW_RULES
from npusim.compiler.passes.legalize import RULES
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType, float32_to_bfloat16, to_storage
from npusim.errors import ProgramError, UnsupportedError
from npusim.frontends.onnx import load
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import Unit, decode
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.isa.reduction import CumProd, CumSum
from npusim.ops import REGISTRY, reference
from npusim.ops.base import ElementForm, Lowered, RowForm, define
from npusim.ops.build import GraphBuilder
from npusim.ops.routine import routine_attrs
from npusim.runtime import Session
from tests.support import sample_routines  # noqa: F401  (registers test.flip)

FULL = load_config("edge")


class Sample(NamedTuple):
    """The smallest operator of a kind that needs work on the device: shapes and types of inputs, constants,
    attributes."""

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
    "repeat": Sample({"states": 0}, (((1, 6), F32),)),
    "cast": Sample({"to": I32}),
    "bitcast": Sample({"to": I32}),
    "quantize": Sample({"to": DType.INT8}, constants=STEPS),
    "dequantize": Sample({"to": F32}, (((4, 6), DType.INT8),), STEPS),
    "lookup": Sample({"to": DType.UINT8, "table": bytes(range(256))}, (((4, 6), DType.INT8),)),
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
    "cumprod": Sample({"axis": 1, "exclusive": True, "reverse": False}),
    "lrn": Sample({"axis": 1, "size": 3, "alpha": 0.1, "beta": 0.75, "bias": 1.0}),
    "reshape": Sample({"shape": (3, 8)}),
    "transpose": Sample({"perm": (1, 0)}),
    "slice": Sample({"starts": (0, 5), "steps": (1, -1), "sizes": (4, 6)}),
    "concat": Sample({"axis": 1}, (SQUARE, SQUARE)),
    "pad": Sample({"before": (1, 0), "after": (0, 2), "mode": "constant"}),
    "expand": Sample({"shape": (3, 4, 6)}),
    "windows": Sample({"axis": 1, "size": 3, "step": 2}),
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
    """Build the sample of a kind as operator ``it`` with inputs x0, x1, ..."""
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


def test_what_slips_through_is_stopped_by_the_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier knows the units as well. A softmax was once compiled for a device without a vector unit."""
    monkeypatch.setattr(pipeline, "unsupported", lambda graph, config: [])
    with pytest.raises(ProgramError, match=r"\(vector.softmax\): core0.vector: the device has no such unit$"):
        compile_graph(graph_of("softmax"), without("vector"))


def without(unit: str) -> Config:
    return FULL.with_(**{unit: None, "energy": None})


# One kind all the way from an ONNX model

CUMPROD_TYPES = ["float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "int64"]


def cumprod_model(shape: tuple[int, ...], axis: int, dtype: str, opset: int = 26, **flags: int) -> onnx.ModelProto:
    """Build y = CumProd(x) along a constant axis."""
    if onnx.defs.onnx_opset_version() < 26:
        pytest.skip(f"CumProd came with operator set 26, which onnx {onnx.__version__} does not know")
    code = TensorProto.DataType.Value({"float32": "FLOAT"}.get(dtype, dtype.upper()))
    values = [helper.make_tensor_value_info(name, code, shape) for name in "xy"]
    node = helper.make_node("CumProd", ["x", "axis"], ["y"], name="scan", **flags)
    axes = helper.make_tensor("axis", TensorProto.INT32, [], [axis])
    graph = helper.make_graph([node], "graph", values[:1], values[1:], [axes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [1, 2, 6]),
        ({"exclusive": 1}, [1, 1, 2]),
        ({"reverse": 1}, [6, 6, 3]),
        ({"exclusive": 1, "reverse": 1}, [6, 3, 1]),
    ],
)
def test_cumprod_as_onnx_describes_it(flags: dict[str, int], expected: list[int]) -> None:
    session = Session(FULL, cache_dir=False)
    model = cumprod_model((3,), -1, "float32", **flags)
    assert session.run(session.compile(model), {"x": np.float32([1, 2, 3])}).outputs["y"].tolist() == expected


def running_products(row: list[Any], exclusive: bool, reverse: bool) -> list[Any]:
    """Compute the expected products one by one with Python numbers."""
    row = row[::-1] if reverse else row
    products = list(itertools.accumulate(row, operator.mul, initial=1))
    products = products[:-1] if exclusive else products[1:]
    return products[::-1] if reverse else products


@pytest.mark.parametrize("dtype", CUMPROD_TYPES)
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumprod_of_every_type_in_many_tiles(dtype: str, exclusive: int, reverse: int, axis: int) -> None:
    """Exact results: floats are multiplied as doubles and rounded once, integers wrap."""
    config = load_config("tiny").with_(**{"sram.bytes": 4096, "cores": 2})
    rng = np.random.default_rng(axis)
    storage = DType[dtype.upper()].storage
    if dtype == "bfloat16":
        values = rng.choice(np.float32([0.5, 1.0, 1.25, -3.0]), (5, 40, 7))
        x = to_storage(values.astype(ml_dtypes.bfloat16))
    else:
        choices = [0.3, 1.1, -2.7] if dtype.startswith("float") else [1, 2, 3, 7]
        x = values = rng.choice(np.array(choices).astype(storage), (5, 40, 7))
    build = GraphBuilder("scan")  # ONNX allows fewer types for this operator than the instruction
    attrs = {"axis": axis, "exclusive": bool(exclusive), "reverse": bool(reverse)}
    graph = build.finish([build.add("cumprod", [build.input("x", x.shape, DType[dtype.upper()])], attrs, "y")])
    session = Session(config, cache_dir=False)
    program = session.compile(graph)
    y = to_storage(session.run(program, {"x": x}).outputs["y"])
    with np.errstate(all="ignore"):
        rows = np.moveaxis(values, axis, -1).reshape(-1, x.shape[axis]).tolist()
        wanted = [running_products(row, bool(exclusive), bool(reverse)) for row in rows]
        if "float" in dtype:
            exact = np.array(wanted, np.float64).astype(np.float32)
            stored = float32_to_bfloat16(exact) if dtype == "bfloat16" else exact.astype(storage)
        else:
            bits = 8 * storage.itemsize
            unsigned = [[number % (1 << bits) for number in row] for row in wanted]
            stored = np.array(unsigned, f"u{storage.itemsize}").view(storage)
    np.testing.assert_array_equal(np.moveaxis(y, axis, -1).reshape(stored.shape), stored)
    assert sum(command.instruction.mnemonic == "vector.cumprod" for command in decode(program.code)) > 1


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3, 1)])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_cumprod_of_little(shape: tuple[int, int], exclusive: int) -> None:
    session = Session(FULL, cache_dir=False)
    x = np.full(shape, 5, np.float32)
    y = session.run(session.compile(cumprod_model(shape, 1, "float32", exclusive=exclusive)), {"x": x}).outputs["y"]
    np.testing.assert_array_equal(y, np.ones_like(x) if exclusive else x)


def test_cumprod_refuses_bool_and_older_models() -> None:
    operands = (0, (1, 1, 1), 0, (1, 1, 1), (1, 1, 1), False, False)
    with pytest.raises(ProgramError, match=r"^vector\.cumprod: type must be a number, got bool$"):
        CumProd(DType.BOOL, *operands).check()
    CumProd(DType.INT8, *operands).check()
    with pytest.raises(UnsupportedError, match="npusim has no operator CumProd of version 25 of the standard domain"):
        load(cumprod_model((3,), 0, "float32", opset=25))


# Incomplete rows


def nothing(*arguments: Any) -> Any:
    raise AssertionError("never called")


WHOLE: dict[str, Any] = {
    "infer": nothing,
    "reference": nothing,
    "unit": Unit.VECTOR,
    "form": RowForm(CumSum),
}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("infer", r"the kind 'odd' has no shape rule \(infer\)"),
        ("reference", "the kind 'odd' has no reference"),
        ("unit", r"the kind 'odd' has no unit that computes it \(unit\)"),
        ("form", r"the kind 'odd' has no form that selects its lowering \(form\)"),
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
        (Lowered.VIEW, "has the form VIEW, but the compiler has no view rule for it"),
        (Lowered.TILES, "has the form TILES, but the compiler has no lowering for it"),
        (Lowered.REWRITTEN, "has the form REWRITTEN, but the compiler has no rule for it"),
    ],
)
def test_the_compiler_must_know_what_a_form_leaves_to_it(form: Lowered, lacks: str) -> None:
    odd = dataclasses.replace(REGISTRY["cumsum"], name="odd", form=form)
    with pytest.raises(ValueError, match=f"^the kind 'odd' {lacks}"):
        kinds.check_kinds({**REGISTRY, "odd": odd}, KNOWN)


@pytest.mark.parametrize("form", [RowForm(CumSum), ElementForm(nothing)])
def test_forms_that_bring_their_instruction_along_need_nothing(form: RowForm | ElementForm) -> None:
    odd = dataclasses.replace(REGISTRY["cumsum"], name="odd", form=form)
    kinds.check_kinds({**REGISTRY, "odd": odd}, KNOWN)


@pytest.mark.parametrize("form", list(Lowered))
def test_what_the_compiler_has_for_no_kind_is_refused(form: Lowered) -> None:
    known: dict[Lowered, Any] = {**KNOWN, form: [*KNOWN[form], "gone"]}
    with pytest.raises(ValueError, match=f"'gone', which is not a kind of the form {form.name}"):
        kinds.check_kinds(REGISTRY, known)


def test_a_kind_has_one_lowering() -> None:
    with pytest.raises(ValueError, match="Other: the kind 'conv' is lowered by ConvLowering"):
        type(Lowering)("Other", (Lowering,), {}, kind="conv")
