"""Floats of 8 and 4 bits and integers of 4 and 2 bits as values on the device, compared with ml_dtypes."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim.errors import ModelError, UnsupportedError
from npusim.frontends.onnx import load
from npusim.frontends.onnx.narrow_formats import FLOATS, INTEGERS
from npusim.ops import reference
from npusim.runtime import Session
from tests.support.onnx_models.small import Array, node_model

OPSET = 25
pytestmark = pytest.mark.skipif(onnx.defs.onnx_opset_version() < OPSET, reason="2-bit types came with set 25")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session("tiny", cache_dir=False) as session:
        yield session


def cast_model(source: int, target: int, size: int, **attributes: int | str) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=target, **attributes)],
        "cast",
        [helper.make_tensor_value_info("x", source, [size])],
        [helper.make_tensor_value_info("y", target, [size])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12)


def all_halves() -> Array:
    """Return every float16, and float32 numbers on both sides of the middle between neighbours."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    # Numbers between two that a float16 has: their lowest bit must not be lost before they are rounded.
    near = np.nextafter(halves[np.isfinite(halves)], np.float32(np.inf))
    return np.concatenate([halves, near])


@pytest.mark.parametrize("code", [code for code in FLOATS if FLOATS[code] is not ml_dtypes.float8_e8m0fnu])
@pytest.mark.parametrize("saturate", [0, 1])
def test_every_number_as_a_float(code: int, saturate: int) -> None:
    x = all_halves()
    kind = np.dtype(FLOATS[code])
    attributes = {} if FLOATS[code] is ml_dtypes.float4_e2m1fn else {"saturate": saturate}
    found = reference.run(load(cast_model(TensorProto.FLOAT, code, x.size, **attributes)), {"x": x})["y"].view(kind)
    limit = float(ml_dtypes.finfo(kind).max)
    with np.errstate(all="ignore"):
        wanted = x.astype(kind).astype(np.float32)
        if saturate:
            wanted = np.where(np.isnan(x), np.nan, np.clip(x, -limit, limit)).astype(kind).astype(np.float32)
    if FLOATS[code] is ml_dtypes.float4_e2m1fn:  # which has no NaN
        x, found, wanted = x[~np.isnan(x)], found[~np.isnan(x)], wanted[~np.isnan(x)]
    np.testing.assert_array_equal(found.astype(np.float32), wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found.astype(np.float32))[numbers], np.signbit(wanted)[numbers])


@pytest.mark.parametrize("code", FLOATS)
@pytest.mark.parametrize("target", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32])
def test_every_float_as_a_number(session: Session, code: int, target: int) -> None:
    kind = np.dtype(FLOATS[code])
    x = np.arange(1 << ml_dtypes.finfo(kind).bits, dtype=np.uint8).view(kind)
    if target == TensorProto.INT32:  # what is beyond an integer differs between processors
        x = x[np.abs(np.nan_to_num(x.astype(np.float32), nan=np.inf)) < 2**31]
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float32).astype(helper.tensor_dtype_to_np_dtype(target))
    found = session.run(cast_model(code, target, x.size), {"x": x}).outputs["y"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("code", INTEGERS)
@pytest.mark.parametrize("source", [TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT8])
def test_every_number_as_an_integer(session: Session, code: int, source: int) -> None:
    numbers = np.arange(-20, 21).astype(helper.tensor_dtype_to_np_dtype(source))
    found = session.run(cast_model(source, code, numbers.size), {"x": numbers}).outputs["y"]
    wanted = numbers.astype(np.int32).astype(helper.tensor_dtype_to_np_dtype(code)).astype(np.int8)
    np.testing.assert_array_equal(found.astype(np.int8), wanted)


def test_bits_on_the_device(session: Session) -> None:
    x = all_halves()[::97]
    model = cast_model(TensorProto.FLOAT, TensorProto.FLOAT8E4M3FN, x.size)
    found = session.run(model, {"x": x}).outputs["y"]
    np.testing.assert_array_equal(found, reference.run(load(model), {"x": x})["y"])


@pytest.mark.parametrize("code", [*INTEGERS, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
def test_quantised_values_keep_their_format(session: Session, code: int) -> None:
    """Quantise, move, dequantise: the operators between do not know the format."""
    zero = helper.make_tensor("zero", code, [], [0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("Transpose", ["q"], ["t"], perm=[1, 0]),
        helper.make_node("DequantizeLinear", ["t", "scale", "zero"], ["y"]),
    ]
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])]
    scale = numpy_helper.from_array(np.float32(0.25), "scale")
    graph = helper.make_graph(nodes, "g", info, [onnx.ValueInfoProto(name="y")], [scale, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    kind = helper.tensor_dtype_to_np_dtype(code)
    level = np.rint(x / np.float32(0.25)) if code in INTEGERS else x / np.float32(0.25)
    if code in INTEGERS:
        level = np.clip(level, int(ml_dtypes.iinfo(kind).min), int(ml_dtypes.iinfo(kind).max))
    wanted = level.astype(kind).astype(np.float32).T * np.float32(0.25)
    np.testing.assert_array_equal(session.run(model, {"x": x}).outputs["y"], wanted)


def test_bit_casts(session: Session) -> None:
    x = np.array([1.5, -0.0, np.inf, 3e-45], np.float32)
    model = node_model("BitCast", {"x": x}, opset=26, to=TensorProto.INT32)
    np.testing.assert_array_equal(session.run(model, {"x": x}).outputs["y0"], x.view(np.int32))
    with pytest.raises(ModelError, match="float32 and int16 have different sizes"):
        load(node_model("BitCast", {"x": x}, opset=26, to=TensorProto.INT16))


def test_models_of_several_programs_refuse_floats_of_8_bits(session: Session) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"]),
        helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT8E5M2),
        helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [40])], [onnx.ValueInfoProto(name="z")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12)
    with pytest.raises(UnsupportedError, match="float8e5m2 is not supported in a model that is several programs"):
        session.run(model, {"x": np.ones(40, np.float32)})
