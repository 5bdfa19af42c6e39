"""load: sources, weights in any place, open shapes, functions and branches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim.dtypes import DType
from npusim.errors import CompileError, ModelError, NeedsValueError, OpenInputsError, UnsupportedError, UsageError
from npusim.frontends.onnx import load
from npusim.frontends.onnx import source as reader
from npusim.frontends.onnx.importer import Importer
from npusim.ops import reference
from tests.support.onnx_models.small import evaluate, external, ramp, run_node, text_model, weighted

RELU = text_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")


def test_paths_bytes_and_protos_give_the_same_graph(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(RELU, path)
    prints = {load(source).fingerprint() for source in (path, str(path), path.read_bytes(), RELU)}
    assert len(prints) == 1


def test_names_of_inputs_outputs_and_operators_are_the_models() -> None:
    model = text_model("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Neg(y) }")
    model.graph.node[0].name = "first"
    graph = load(model)
    assert [t.name for t in (*graph.inputs, *graph.outputs)] == ["x", "y", "z"]
    assert [op.name for op in graph.ops] == ["first", "Neg_1"]


def test_the_operator_that_does_the_work_has_the_nodes_name() -> None:
    model = text_model(
        "g (float[2, 3] x, float[4, 3] w) => (float[2, 4] y) { y = Gemm<transB = 1, alpha = 0.5>(x, w) }"
    )
    graph = load(model)
    assert {op.kind: op.name for op in graph.ops} == {
        "transpose": "Gemm_0/transpose",
        "matmul": "Gemm_0",
        "binary": "Gemm_0/binary",
    }
    assert graph.ops[-1].output.name == "y"


def test_outputs_that_are_inputs_constants_or_each_other_are_tensors_of_their_own() -> None:
    model = text_model("""g (float[2] x) => (float[2] a, float[2] b, float[2] c, int64[1] d, float[2] x) {
        a = Relu(x) b = Identity(a) c = Identity(x) d = Shape(x) }""")
    graph = load(model)
    assert [t.name for t in graph.outputs[:4]] == ["a", "b", "c", "d"]
    assert len({id(t) for t in (*graph.outputs, *graph.inputs)}) == 6
    x = np.float32([-1, 2])
    results = reference.run(graph, {"x": x})
    assert results["b"].tolist() == [0, 2]
    assert results["c"].tolist() == [-1, 2]
    assert results["d"].tolist() == [2]


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "int64"]
)
@pytest.mark.parametrize("raw", [True, False])
def test_weights_in_raw_data_and_in_typed_fields(dtype: str, raw: bool) -> None:
    import ml_dtypes

    values = np.array([1, 2, 100]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    code = TensorProto.DataType.Value("FLOAT" if dtype == "float32" else dtype.upper())
    tensor = helper.make_tensor("w", code, values.shape, values.tobytes(), raw=True)
    if not raw:
        tensor.ClearField("raw_data")
        if dtype in ("float32", "int64"):
            getattr(tensor, "float_data" if dtype == "float32" else "int64_data").extend(values.tolist())
        else:
            bits = values.view(np.uint16) if "float" in dtype else values
            tensor.int32_data.extend(bits.tolist())
    (y,) = evaluate(weighted(tensor), {"x": np.zeros_like(values)})
    assert y.dtype == values.dtype
    assert y.tolist() == values.tolist()


def test_weights_stay_views_into_the_bytes_that_were_read() -> None:
    data = weighted(numpy_helper.from_array(ramp(64, 64), "w")).SerializeToString()
    (weight,) = load(data).constants()
    assert weight.data is not None
    np.testing.assert_array_equal(weight.data, ramp(64, 64))
    assert not weight.data.flags.owndata
    assert not weight.data.flags.writeable


def test_external_weights_are_read_from_beside_the_model(tmp_path: Path) -> None:
    values = ramp(4)
    (tmp_path / "w.bin").write_bytes(b"skip" + values.tobytes())
    path = tmp_path / "m.onnx"
    onnx.save(weighted(external(values, "w", "w.bin", offset=4, length=16)), path)
    result = reference.run(load(path), {"x": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(result["y"], values)


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../w.bin", {}, "external data '../w.bin' is outside the model's directory"),
        ("/etc/hostname", {}, "is outside the model's directory"),
        ("link.bin", {}, "is outside the model's directory"),
        ("none.bin", {}, "external data file .*none.bin: No such file"),
        ("w.bin", {"offset": 4}, "bytes 4 to 20 are beyond .*w.bin of 16 bytes"),
        ("w.bin", {"offset": -4}, "bytes -4 to 12 are beyond"),
        ("w.bin", {"length": 12}, "needs 16 bytes, its entry for 'w.bin' says 12"),
        ("", {}, "external data without a location"),
    ],
)
def test_external_weights_are_checked(tmp_path: Path, location: str, entries: dict[str, int], message: str) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    for file in (tmp_path / "w.bin", inside / "w.bin"):
        file.write_bytes(bytes(16))
    (inside / "link.bin").symlink_to(tmp_path / "w.bin")
    path = inside / "m.onnx"
    path.write_bytes(weighted(external(ramp(4), "w", location, **entries)).SerializeToString())
    with pytest.raises(ModelError, match=message):
        load(path)


def test_external_weights_need_a_directory() -> None:
    with pytest.raises(ModelError, match=r"its data is in the file 'w\.bin'; load the model from its path"):
        load(weighted(external(ramp(4), "w", "w.bin")))


def test_weights_that_are_also_listed_as_inputs_are_weights() -> None:
    model = weighted(numpy_helper.from_array(ramp(3), "w"))
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    assert [tensor.name for tensor in load(model).inputs] == ["x"]


@pytest.mark.parametrize(
    ("attributes", "value", "dtype"),
    [
        ({"value": numpy_helper.from_array(np.int8([1, 2]))}, [1, 2], DType.INT8),
        ({"value_float": 1.5}, 1.5, DType.FLOAT32),
        ({"value_floats": [1.5, 2.0]}, [1.5, 2.0], DType.FLOAT32),
        ({"value_int": 3}, 3, DType.INT64),
        ({"value_ints": [3, 4]}, [3, 4], DType.INT64),
    ],
)
def test_every_form_of_constant(attributes: dict[str, object], value: object, dtype: DType) -> None:
    node = helper.make_node("Constant", [], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")])
    (y,) = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])).outputs
    assert y.dtype is dtype
    assert y.data is not None
    assert y.data.tolist() == value


def test_a_constant_of_shape_takes_no_memory() -> None:
    model = text_model("g (float[1] x) => (float[4096, 4096] w, float[1] x) "
                       "{ s = Constant<value_ints = [4096, 4096]>() w = ConstantOfShape(s) }")  # fmt: skip
    (w, _) = load(model).outputs
    assert w.data is not None
    assert w.data.strides == (0, 0)


def test_four_bit_weights_are_unpacked() -> None:
    packed = helper.make_tensor("w", TensorProto.INT4, [3], np.array([0x8F, 0x07], np.uint8).tobytes(), raw=True)
    scale = numpy_helper.from_array(np.float32(0.5), "s")
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])], [packed, scale],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    assert evaluate(model, {"x": np.zeros(3, np.float32)})[0].tolist() == [-0.5, -4, 3.5]


def test_shape_arithmetic_disappears() -> None:
    model = text_model("""g (float[2, 3, 4] x) => (float[6, 4] y) {
        s = Shape(x) i = Constant<value_ints = [2]>() last = Gather(s, i)
        m = Constant<value_ints = [-1]>() shape = Concat<axis = 0>(m, last) y = Reshape(x, shape) }""")
    graph = load(model)
    assert [op.kind for op in graph.ops] == ["reshape"]
    assert graph.outputs[0].shape == (6, 4)


def test_open_dimensions_are_asked_for_and_taken() -> None:
    model = text_model("g (float[m, 3] x, float[m, 3] z, float[2] w) => (float[m, 3] y) { y = Add(x, z) }")
    with pytest.raises(ModelError) as caught:
        load(model)
    assert "'x' is float32[m, 3]; 'z' is float32[m, 3]" in str(caught.value)
    assert "input_shapes={'x': (1, 3), 'z': (1, 3)}" in str(caught.value)
    graph = load(model, input_shapes={"x": (5, 3)})
    assert [tensor.shape for tensor in graph.inputs] == [(5, 3), (5, 3), (2,)]


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ("float[N, 3] x, float[N, 2, 5] z, float[2] w", [(1, 3), (1, 2, 5), (2,)]),
        ("float[batch_size, 3] x", [(1, 3)]),
        ("float[?, 3, 4, 4] x", [(1, 3, 4, 4)]),
        ("float[batch, 3] x, float[n, 3] z", None),
        ("float[batch, m] x", None),
        ("float[rows, 3] x", None),
        ("float[N] x", None),
    ],
)
def test_a_batch_that_alone_is_open_is_one(
    inputs: str, shapes: list[tuple[int, ...]] | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = text_model(f"g ({inputs}) => (float y) {{ y = Relu(x) }}")
    if shapes is None:
        with pytest.raises(OpenInputsError):
            load(model)
        return
    assert [tensor.shape for tensor in load(model).inputs] == shapes
    assert len([message for message in caplog.messages if "leaves its batch open: it is 1" in message]) == 1


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (1,)}, "a shape is given for 'q', which is not an input; inputs: 'x', 'z'"),
        ({"x": (1, 4)}, r"input 'x' is \[n, 3\] in the model; the shape given is \[1, 4\]"),
        ({"x": (3,)}, r"the shape given is \[3\]"),
        ({"x": (-1, 3)}, r"the shape given is \[-1, 3\]"),
        ({"x": (1, 3), "z": (2, 3)}, "and 'n' is 1 in input 'x'"),
    ],
)
def test_given_shapes_must_fit_the_model(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    model = text_model("g (float[n, 3] x, float[n, 3] z) => (float[n, 3] y) { y = Add(x, z) }")
    with pytest.raises(UsageError, match=message):
        load(model, input_shapes=shapes)


def test_what_does_not_fit_is_told_with_the_sizes() -> None:
    model = text_model("g (float[n, m] x, float[7, 11] w) => (float y) { y = MatMul(x, w) }")
    with pytest.raises(ModelError, match=r"^MatMul_0.*; input 'x' is \[2, 5\]$"):
        load(model, input_shapes={"x": (2, 5)})


SIZED = "g (float[2, 3] x, int64[2] size, bool[k] unread) => (float y) { y = Reshape(x, size) }"


def test_a_bound_input_is_a_constant() -> None:
    graph = load(text_model(SIZED), bind={"size": [3, 2], "unread": [True, False]})
    assert [tensor.name for tensor in graph.inputs] == ["x"]
    assert graph.outputs[0].shape == (3, 2)
    assert graph.bound == (("size", "[3, 2]"), ("unread", "[True, False]"))
    other = load(text_model(SIZED), bind={"size": [3, 2], "unread": [True, True]})
    assert [op.kind for op in other.ops] == [op.kind for op in graph.ops]
    assert other.fingerprint() != graph.fingerprint()


def test_an_input_that_is_bound_may_be_an_output() -> None:
    graph = load(text_model("g (float[2] x, int64 n) => (float[2] y, int64 n) { y = Relu(x) }"), bind={"n": 7})
    assert reference.run(graph, {"x": np.float32([1, -1])})["n"] == 7


def test_what_cannot_be_bound() -> None:
    with pytest.raises(UsageError, match="a value is given for 'siz', which is not an input; inputs: 'x', 'size'"):
        load(text_model(SIZED), bind={"siz": [3, 2], "unread": [True]})
    with pytest.raises(UsageError, match=r"input 'size' is \[2\] in the model; the shape given is \[\]"):
        load(text_model(SIZED), bind={"size": 6, "unread": [True]})


def test_who_needs_a_value_names_the_inputs_that_it_follows_from() -> None:
    model = text_model("""g (float[6] x, int64[1] a, int64[1] b, int64[40] many) => (float y, float z) {
        sum = Add(a, b) y = Reshape(x, sum) z = Reshape(x, many) }""")
    with pytest.raises(UnsupportedError) as caught:
        load(model)
    assert not isinstance(caught.value, NeedsValueError)  # such a large input is data and not bound by default
    assert [(name, reason) for name, _, reason in caught.value.reasons] == [
        ("Reshape_1", "input 1 must be a constant; it follows from input 'a', 'b'"),
        ("Reshape_2", "input 1 must be a constant; it follows from input 'many'"),
    ]
    del model.graph.node[2], model.graph.output[1]
    with pytest.raises(NeedsValueError) as caught:
        load(model)
    assert caught.value.values == {"a": [0], "b": [0]}  # a tried value that is a valid shape of y
    assert load(model, bind=caught.value.values).outputs
    model.graph.node.add(op_type="Gradient", input=["x"], output=["d"])
    model.graph.output.add(name="d")
    with pytest.raises(UnsupportedError, match="2 unsupported") as both:
        load(model)
    assert not isinstance(both.value, NeedsValueError)  # a value would not be enough


def test_declared_shapes_that_are_not_so_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    graph = load(text_model("g (float[2] x) => (float[3] y, float[2, 1] z) { y = Relu(x) z = Neg(y) }"))
    assert [tensor.shape for tensor in graph.outputs] == [(2,), (2,)]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "g: 'y' is declared as [3] but computed as [2] (and 1 more); the computed shape is used")
    ]


def test_every_unsupported_node_is_listed_once() -> None:
    model = text_model("""g (float[4] x, string[2] s) => (float[4] y, float[4] z) {
        a = Nonsense(x) b = Relu(a) y = Nonsense(b) c = Nothing(x) z = Add(b, c) }""")
    with pytest.raises(UnsupportedError) as caught:
        load(model)
    assert [(name, kind) for name, kind, _ in caught.value.reasons] == [
        ("s", "input"),
        ("Nonsense_0", "Nonsense"),
        ("Nonsense_2", "Nonsense"),
        ("Nothing_3", "Nothing"),
    ]


def test_dead_nodes_are_not_looked_at() -> None:
    model = text_model("g (float[4] x) => (float[4] y) { dead = Nonsense(x) y = Relu(x) }")
    assert [op.kind for op in load(model).ops] == ["unary"]


def test_unknown_attributes_are_refused() -> None:
    model = text_model("g (float[4] x) => (float[4] y) { y = Relu<slope = 2.0>(x) }")
    with pytest.raises(UnsupportedError, match="attribute slope is not supported in operator set 21"):
        load(model)


@pytest.mark.parametrize("opset", [0, 1000])
def test_operator_sets_outside_the_range_are_refused(opset: int) -> None:
    model = text_model("g (float[4] x) => (float[4] y) { y = Relu(x) }", opset=opset)
    with pytest.raises(UnsupportedError, match=f"operator set {opset} is not supported: 1 to"):
        load(model)


@pytest.mark.parametrize("name", ["double", "uint32", "uint64", "string"])
def test_types_that_the_device_has_not_are_refused_by_name(name: str) -> None:
    model = text_model(f"g ({name}[4] x) => ({name}[4] y) {{ y = Abs(x) }}")
    label = "float64" if name == "double" else name
    with pytest.raises(UnsupportedError, match=label):
        load(model)


def test_double_constants_may_be_cast() -> None:
    model = text_model("""g (float[2] x) => (float[2] y) <double d = {0.5}> {
        e = Add(d, d) f = Cast<to = 1>(e) y = Mul(x, f) }""")
    assert evaluate(model, {"x": np.float32([1, 2])})[0].tolist() == [1, 2]


def test_model_functions_are_expanded_with_their_attributes() -> None:
    model = text_model("""g (float[2] x) => (float[2] y) { a = local.leak<slope = 0.5>(x) y = local.leak(a) }
        <domain: "local", opset_import: ["" : 21]> leak <slope: float = 0.25> (v) => (w) {
            w = LeakyRelu<alpha: float = @slope>(v) }""")
    assert evaluate(model, {"x": np.float32([-8, 4])})[0].tolist() == [-1, 4]


def test_optional_parameters_of_a_function_stay_absent_for_that_call_only() -> None:
    model = text_model("""g (float[2] x) => (float[2] a, float[2] b) {
        low = Constant<value_float = 0.0>() a = local.cut(x, low) b = local.cut(x) }
        <domain: "local", opset_import: ["" : 21]> cut (v, bound) => (w) { w = Clip(v, bound) }""")
    a, b = evaluate(model, {"x": np.float32([-1, 1])})
    assert a.tolist() == [0, 1]
    assert b.tolist() == [-1, 1]


def test_functions_that_call_each_other_end() -> None:
    model = text_model("""g (float[2] x) => (float[2] y) { y = local.a(x) }
        <domain: "local", opset_import: ["" : 21, "local" : 1]> a (v) => (w) { w = local.b(v) }
        <domain: "local", opset_import: ["" : 21, "local" : 1]> b (v) => (w) { w = local.a(v) }""")
    with pytest.raises(ModelError, match="recursive function calls"):
        load(model)


def test_functions_that_multiply_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:

    levels = "".join(
        f'<domain: "local", opset_import: ["" : 21, "local" : 1]> f{i} (v) => (w) '
        f"{{ u = local.f{i + 1}(v) w = local.f{i + 1}(u) }}"
        for i in range(30)
    )
    last = '<domain: "local", opset_import: ["" : 21, "local" : 1]> f30 (v) => (w) { w = Relu(v) }'
    model = text_model(f"g (float[2] x) => (float[2] y) {{ y = local.f0(x) }} {levels} {last}")
    with pytest.raises(CompileError, match=r"^f0_0: wants 25769803760 steps while .*; \d+ steps are left"):
        load(model)


@pytest.mark.parametrize(("flag", "expected"), [(1, [-1.0, 2.0]), (0, [1.0, -2.0])])
def test_a_known_branch_is_taken(flag: int, expected: list[float]) -> None:
    model = text_model(f"""g (float[2] x) => (float[2] y) {{ c = Constant<value = bool {{{flag}}}>()
        y = If (c) <then_branch = t () => (float[2] a) {{ a = Identity(x) }},
                    else_branch = e () => (float[2] b) {{ b = Neg(x) }}> }}""")
    assert evaluate(model, {"x": np.float32([-1, 2])})[0].tolist() == expected


def test_an_open_branch_and_loops_are_refused() -> None:
    model = text_model("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Identity(x) },
                    else_branch = e () => (float[2] b) { b = Neg(x) }> }""")
    with pytest.raises(UnsupportedError, match=r"If_0 \(If\): input 0 must be a constant; it follows from input 'c'"):
        load(model)


LOOP = """g (float[2] x, bool go) => (float[2] y, float[n, 2] rows) {
    n = Constant<value_int = 3>()
    y, rows = Loop (n, COND, x) <body = b (int64 i, bool k, float[2] v) => (bool NEXT, float[2] w, float[2] r) {
        one = Constant<value_int = 1>() still = Less(i, one) f = Cast<to = 1>(i) w = Add(v, f) r = Neg(v) }> }"""


def test_loops_are_unrolled_while_their_conditions_are_known() -> None:
    x = np.float32([1, 2])
    y, rows = evaluate(text_model(LOOP.replace("COND", "").replace("NEXT", "k")), {"x": x, "go": np.bool_(True)})
    assert y.tolist() == [4, 5]
    assert rows.tolist() == [[-1, -2], [-1, -2], [-2, -3]]
    y, rows = evaluate(text_model(LOOP.replace("COND", "").replace("NEXT", "still")), {"x": x, "go": np.bool_(True)})
    assert y.tolist() == [2, 3]
    assert rows.tolist() == [[-1, -2], [-1, -2]]


def test_loops_that_depend_on_data_or_do_not_end_are_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"Loop_1 \(Loop\): input 1 must be a constant; it follows from input 'go'"
    ):
        load(text_model(LOOP.replace("COND", "go").replace("NEXT", "k")))
    endless = LOOP.replace("value_int = 3", "value_int = 9223372036854775807")
    with pytest.raises(UnsupportedError, match="more than 4096 iterations are not supported"):
        load(text_model(endless.replace("COND", "").replace("NEXT", "k")))


@pytest.mark.parametrize("backward", [0, 1])
def test_scans_are_unrolled_along_their_axes(backward: int) -> None:
    model = text_model(f"""g (float[2] s, float[2, 3] x) => (float[2] last, float[2, 3] sums) {{
        last, sums = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [{backward}],
            scan_output_axes = [-1], scan_output_directions = [{backward}],
            body = b (float[2] t, float[2] v) => (float[2] u, float[2] w) {{
                u = Add(t, v) w = Identity(u) }}>(s, x) }}""")
    x = ramp(2, 3)
    last, sums = evaluate(model, {"s": np.zeros(2, np.float32), "x": x})
    order = slice(None, None, -1 if backward else 1)
    np.testing.assert_allclose(sums, np.cumsum(x[:, order], axis=1)[:, order], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(last, x.sum(1), rtol=1e-6, atol=1e-6)


def test_an_unsupported_operator_in_a_body_is_reported_once() -> None:
    model = text_model("""g (float[3, 2] x) => (float[3, 2] y) { y = Scan<num_scan_inputs = 1,
        body = b (float[2] v) => (float[2] w) { w = Nonsense(v) }>(x) }""")
    with pytest.raises(UnsupportedError) as caught:
        load(model)
    assert [(name, kind) for name, kind, _ in caught.value.reasons] == [("Scan_0/0/Nonsense_1", "Nonsense")]


def test_operators_with_a_definition_are_expanded() -> None:
    q = ramp(1, 2, 3, 4)
    (y,) = run_node("Attention", {"q": q, "k": q, "v": q}, opset=23)
    scores = q @ q.transpose(0, 1, 3, 2) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(y, weights / weights.sum(-1, keepdims=True) @ q, rtol=1e-5)


def test_the_importer_lists_the_nodes_that_it_decomposes() -> None:
    """Those without an importer, and control flow, with the names of what is inside them; in the order of import."""
    model = text_model("""
        g (float[1, 2, 3, 4] x, float[3, 2] s) => (float[1, 2, 3, 4] y, float[1, 2, 3, 4] z, float[2] last) {
        c0 = Constant<value_int = 1>() k = Cast<to = 9>(c0)
        a = Relu(x) y = MeanVarianceNormalization(a)
        z = If (k) <then_branch = t () => (float[1, 2, 3, 4] u) { u = MeanVarianceNormalization(x) },
                    else_branch = e () => (float[1, 2, 3, 4] u) { u = Neg(x) }>
        last, rows = Scan<num_scan_inputs = 1, body = b (float[2] t, float[2] v) => (float[2] u, float[2] w) {
            u = Add(t, v) w = Identity(u) }>(zero, s) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "zero"))
    importer = Importer(reader.read(model, None, timing_only=False), None)
    importer.run()
    assert [operator for _, operator in importer.decomposed] == [
        "MeanVarianceNormalization", "If", "MeanVarianceNormalization", "Scan"
    ]  # fmt: skip
    names = [name for name, _ in importer.decomposed]
    assert len(set(names)) == len(names)
    assert names[2].startswith(names[1] + "/")
