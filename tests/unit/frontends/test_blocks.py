"""Operators of onnxruntime's domain on quantised weights: compared with it, and as packed weights on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import prepare
from npusim.errors import ModelError, UnsupportedError
from npusim.frontends.onnx import load
from npusim.frontends.onnx.operators.blocks import unpacked
from npusim.hw.config import load_config
from npusim.isa.base import decode
from npusim.isa.matrix import Conv
from npusim.runtime import Session
from tests.support.graphs.execution import interpreted
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.small import Array, evaluate, node_model

MICROSOFT = "com.microsoft"
EDGE = load_config("edge")


def packed(numbers: Array, bits: int) -> Array:
    """Pack rows of numbers to rows of bytes, low bits first."""
    single = (numbers[..., None] >> np.arange(bits)) & 1
    rows = single.reshape(*numbers.shape[:-1], -1).astype(np.uint8)
    return np.packbits(rows, axis=-1, bitorder="little")


def nbits(
    k: int, n: int, bits: int, block: int, zero: str = "", bias: bool = False, seed: int = 0, rows: int = 3
) -> tuple[onnx.ModelProto, dict[str, Array], Array]:
    """Return a model of one MatMulNBits, its inputs, and the weights as the specification defines them."""
    rng, groups = np.random.default_rng(seed), -(-k // block)
    numbers = rng.integers(0, 1 << bits, (n, groups, block))
    scales = rng.uniform(0.01, 0.1, (n, groups)).astype(np.float32)
    zeros: Array = np.full((n, groups), float(1 << (bits - 1)))
    inputs: dict[str, Any] = {
        "a": rng.standard_normal((2, rows, k)).astype(np.float32),
        "b": packed(numbers, bits),
        "s": scales,
    }
    inputs |= {"z": None, "g": None, "bias": None}
    if zero:
        zeros = rng.integers(0, 1 << bits, (n, groups)).astype(np.float32)
        inputs["z"] = packed(zeros.astype(np.int64), bits) if zero == "packed" else zeros.astype(np.float32)
        if zero == "halves":
            inputs["z"] = zeros = (zeros + 0.5).astype(np.float32)
    if bias:
        inputs["bias"] = rng.standard_normal(n).astype(np.float32)
    meant = ((numbers - zeros[..., None]) * scales[..., None]).reshape(n, -1)[:, :k].astype(np.float32)
    constants = [name for name, array in inputs.items() if array is not None and name != "a"]
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    model = node_model("MatMulNBits", inputs, constants, domain=MICROSOFT, **attributes)
    wanted = inputs["a"].astype(np.float64) @ meant.T.astype(np.float64)
    return model, {"a": inputs["a"]}, wanted + (inputs["bias"] if bias else 0)


@given(
    st.integers(1, 70), st.integers(1, 9), st.sampled_from([2, 4, 8]), st.sampled_from([16, 32, 64]),
    st.sampled_from(["", "packed"]), st.booleans(), st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_products_as_onnxruntime_has_them(
    k: int, n: int, bits: int, block: int, zero: str, bias: bool, seed: int
) -> None:
    model, fed, wanted = nbits(k, n, bits, block, zero, bias, seed)
    (y,) = evaluate(model, fed)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(y, runtime_outputs(model, fed)["y0"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("zero", ["", "packed", "floats", "halves"])
def test_products_as_the_specification_has_them(bits: int, zero: str) -> None:
    """Also for cases without a CPU kernel in onnxruntime."""
    model, fed, wanted = nbits(40, 5, bits, 16, zero, True)
    (y,) = evaluate(model, fed)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("zero", ["", "packed"])
@pytest.mark.parametrize(("bits", "held"), [(2, 2), (4, 4), (3, 4), (8, 0)])
def test_weights_stay_packed_to_the_array(zero: str, bits: int, held: int) -> None:
    model, fed, wanted = nbits(96, 32, bits, 32, zero, True)
    config = EDGE.with_(**{"matrix.weight_bits": 2})
    (op,) = (op for op in prepare(load(model), config).ops if op.kind == "matmul")
    assert (op.attrs["block"], op.attrs["w_bits"]) == (32, held)
    with Session(config, cache_dir=False) as session:
        program = session.compile(load(model))
        found = session.run(program, fed)
    tiles = [each.instruction for each in decode(program.code) if isinstance(each.instruction, Conv)]
    assert {tile.extras.w_bits for tile in tiles} == {held}
    np.testing.assert_allclose(found.outputs["y0"], wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(interpreted(program, config, fed)["y0"], found.outputs["y0"])
    # Weights, a scale of four bytes for each block, and a byte for its zero point if that is not the middle.
    least = 32 * (96 * (held or 8) // 8 + 3 * (5 if zero else 4)) + 32 * 4
    assert least <= program.region_bytes[0] <= least + 192


def test_half_precision() -> None:
    model, fed, wanted = nbits(48, 4, 4, 16, "floats")
    for weight in model.graph.initializer:
        if weight.name in ("s", "z"):
            array = onnx.numpy_helper.to_array(weight).astype(np.float16)
            weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    (y,) = evaluate(model, {"a": fed["a"].astype(np.float16)})
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, wanted, rtol=0.02, atol=0.02)


def test_old_exporters_write_one_row() -> None:
    model, fed, wanted = nbits(48, 4, 4, 16, "packed")
    for weight in model.graph.initializer:
        if weight.name in ("s", "z"):
            array = onnx.numpy_helper.to_array(weight).reshape(-1)
            weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    np.testing.assert_allclose(evaluate(model, fed)[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"K": 49}, ModelError, "input 0 must be floats of 49 columns"),
        ({"N": 5}, ModelError, r"input 1 must have shape \[5, 3, 8\], has \[4, 3, 8\]"),
        ({"bits": 9}, ModelError, "attribute bits must be from 2 to 8, is 9"),
        ({"bits": 1}, ModelError, "attribute bits must be from 2 to 8, is 1"),
        ({"block_size": 8}, ModelError, "attribute block_size must be a power of 2 from 16 on, is 8"),
        ({"block_size": 48}, ModelError, "attribute block_size must be a power of 2 from 16 on, is 48"),
        ({"block_size": 1 << 62}, ModelError, "input 1 must have shape"),
        ({"N": 1 << 60}, ModelError, "input 1 must have shape"),
        ({"N": 0}, UnsupportedError, "weights that are left out are not supported"),
        ({"weight_prepacked": 1}, UnsupportedError, "packed for a GPU are not supported"),
    ],
)
def test_what_is_refused(changed: dict[str, int], error: type[Exception], message: str) -> None:
    model, _, _ = nbits(48, 4, 4, 16)
    node = model.graph.node[0]
    kept = [attribute for attribute in node.attribute if attribute.name not in changed]
    del node.attribute[:]
    node.attribute.extend([*kept, *(onnx.helper.make_attribute(name, value) for name, value in changed.items())])
    with pytest.raises(error, match=message):
        load(model)


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 9))
def test_numbers_of_any_bits(bits: int, count: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 1 << bits, (3, count))
    np.testing.assert_array_equal(unpacked(packed(numbers, bits), bits, count), numbers)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_rows_of_quantised_embeddings(bits: int, zero: bool, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    numbers, zeros = rng.integers(0, 1 << bits, (11, 64)), rng.integers(0, 1 << bits, (11, 4))
    inputs: dict[str, Any] = {
        "data": packed(numbers, bits), "i": rng.integers(-11, 11, shape),
        "s": rng.uniform(0.1, 1, (11, 4)).astype(np.float32), "z": packed(zeros, bits) if zero else None,
    }  # fmt: skip
    constants = ["data", "s", *(["z"] if zero else [])]
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": bits}
    model = node_model("GatherBlockQuantized", inputs, constants, domain=MICROSOFT, **attributes)
    fed = {"i": inputs["i"]}
    (y,) = evaluate(model, fed)
    less = np.repeat(zeros if zero else 1 << (bits - 1), 16 if zero else 1, axis=-1)
    meant = ((numbers - less) * np.repeat(inputs["s"], 16, axis=1)).astype(np.float32)
    np.testing.assert_array_equal(y, meant[inputs["i"]])
    np.testing.assert_allclose(y, runtime_outputs(model, fed)["y0"], rtol=1e-6)


@pytest.mark.parametrize(("axis", "along"), [(0, 2), (1, 2), (2, 0), (1, 0), (0, 1)])
def test_other_axes_of_quantised_data(axis: int, along: int) -> None:
    """Bytes in blocks that do not divide their axis; for 4-bit types onnxruntime supports any axis."""
    rng = np.random.default_rng(2)
    shape = [5, 6, 7]
    shape[along] = 40
    groups = [3 if at == along else size for at, size in enumerate(shape)]
    numbers = rng.integers(-8, 8, shape)
    scales = rng.uniform(0.1, 1, groups).astype(np.float32)
    zeros = rng.integers(-8, 8, groups)
    model = node_model(
        "GatherBlockQuantized",
        {"data": numbers.astype(np.int8), "i": np.array([[1, -2, 0]]), "s": scales, "z": zeros.astype(np.int8)},
        ["data", "s", "z"], domain=MICROSOFT, gather_axis=axis, quantize_axis=along, block_size=16,
    )  # fmt: skip
    for weight in model.graph.initializer:
        if weight.name in ("data", "z"):
            values = numbers if weight.name == "data" else zeros
            typed = onnx.helper.make_tensor(weight.name, onnx.TensorProto.INT4, values.shape, values.reshape(-1))
            weight.CopyFrom(typed)
    fed = {"i": np.array([[1, -2, 0]])}
    (y,) = evaluate(model, fed)
    spread = [np.repeat(each, 16, axis=along).take(range(40), along) for each in (scales, zeros)]
    meant = ((numbers - spread[1]) * spread[0]).astype(np.float32)
    np.testing.assert_array_equal(y, np.take(meant, fed["i"], axis))
    np.testing.assert_allclose(y, runtime_outputs(model, fed)["y0"], rtol=1e-6)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_products_of_integers_as_numbers(columns: bool, zeros: bool, bias: bool, dynamic: bool) -> None:
    rng = np.random.default_rng(4)
    several = (6,) if columns else ()
    inputs: dict[str, Any] = {
        "a": rng.standard_normal((2, 3, 8)).astype(np.float32),
        "b": rng.integers(-128, 128, (8, 6)).astype(np.int8),
        "as": np.float32(0.02),
        "bs": rng.uniform(0.01, 0.1, several).astype(np.float32),
        "az": np.uint8(130) if zeros else None, "bz": rng.integers(-9, 9, several).astype(np.int8) if zeros else None,
        "bias": rng.standard_normal(6).astype(np.float32) if bias else None,
    }  # fmt: skip
    if dynamic:
        del inputs["as"], inputs["az"]
    else:
        inputs["a"] = rng.integers(0, 256, (2, 3, 8), np.uint8)
    constants = [name for name, array in inputs.items() if array is not None and name != "a"]
    model = node_model(
        "DynamicQuantizeMatMul" if dynamic else "MatMulIntegerToFloat", inputs, constants, domain=MICROSOFT
    )
    fed = {"a": inputs["a"]}
    (y,) = evaluate(model, fed)
    np.testing.assert_allclose(y, runtime_outputs(model, fed)["y0"], rtol=1e-5, atol=1e-5)
    with Session(EDGE, cache_dir=False) as session:
        np.testing.assert_array_equal(session.run(load(model), fed).outputs["y0"], y)


def test_products_of_integers_stay_integers() -> None:
    """Quantised at run time: the unit multiplies bytes, and its drain scales the sums."""
    inputs = {
        "a": np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32),
        "b": np.random.default_rng(2).integers(-128, 128, (32, 16)).astype(np.int8), "s": np.float32(0.1),
    }  # fmt: skip
    model = node_model("DynamicQuantizeMatMul", inputs, ["b", "s"], domain=MICROSOFT)
    (op,) = (op for op in prepare(load(model), EDGE).ops if op.kind == "matmul")
    assert [op.input(0).dtype.label, op.input(1).dtype.label] == ["uint8", "int8"]
