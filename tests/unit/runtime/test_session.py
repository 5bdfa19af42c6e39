"""Session: inputs, outputs, and refusals with their messages."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.demo import network
from npusim.driver import Driver, DriverJob, LoadedProgram
from npusim.dtypes import DType
from npusim.errors import (
    DeviceFaultError,
    DeviceMemoryError,
    DriverCheckError,
    InputError,
    ModelError,
    OpenInputsError,
    UnsupportedError,
    UsageError,
)
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder
from npusim.program import Program
from npusim.runtime import Session
from npusim.runtime.store import REMEMBERED
from tests.support.graphs.samples import increment, product, relu, residual_net
from tests.support.onnx_models.small import text_model

TINY = load_config("tiny")
X = np.arange(8, dtype=np.int32)


@pytest.fixture
def session() -> Session:
    return Session(TINY, cache_dir=False)


def identity(dtype: DType, shape: tuple[int, ...] = (2, 3)) -> Graph:
    """Build a graph that copies its elements."""
    build = GraphBuilder("identity")
    x = build.input("x", shape, dtype)
    return build.finish([build.add("transpose", [x], {"perm": tuple(range(len(shape)))[::-1]}, "y")])


# Results


def test_a_run_says_everything(session: Session) -> None:
    result = session.run(increment(), {"x": X})
    np.testing.assert_array_equal(result.outputs["y"], X + 1)
    assert (result.model, result.config, result.compile_from_cache) == ("increment", "tiny", False)
    assert result.time_ps > 0
    assert result.cycles == -(-result.time_ps // 1000)
    assert result.macs == 0
    assert result.matrix_utilization == 0.0
    assert result.dram_read_bytes > 32
    assert result.dram_write_bytes == 32
    assert result.counters.duration_ps == result.time_ps
    assert [op.kind for op in result.ops] == ["add"]
    told = json.loads(json.dumps(result.to_json_dict()))
    assert told["cycles"] == result.cycles
    assert told["timeline_digest"] == result.timeline.digest()
    assert "outputs" not in told


def test_macs_and_utilization(session: Session) -> None:
    result = session.run(session.compile(product(64, 128, 64)), timing_only=True)
    assert result.macs == 64 * 128 * 64
    assert 0.3 < result.matrix_utilization <= 1


@pytest.mark.parametrize(
    "dtype", [DType.INT64, DType.BOOL, DType.UINT8, DType.INT16, DType.UINT16, DType.FLOAT16, DType.FLOAT32]
)
def test_element_types_come_back(session: Session, dtype: DType) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype.storage)
    y = session.run(identity(dtype), {"x": x}).outputs["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x.T)


def test_int64_keeps_all_its_bits(session: Session) -> None:
    x = np.array([2**62 + 1, -(2**63), 2**63 - 1, -1], np.int64)
    y = session.run(increment(4, DType.INT64), {"x": x}).outputs["y"]
    np.testing.assert_array_equal(y, np.array([2**62 + 2, -(2**63) + 1, -(2**63), 0]))


def test_bfloat16_as_values_and_as_bits(session: Session) -> None:
    x = np.array([[1.5, -2, 3], [0, 0.25, 1e30]], ml_dtypes.bfloat16)
    program = session.compile(identity(DType.BFLOAT16))
    for form in (x, x.view(np.uint16)):
        y = session.run(program, {"x": form}).outputs["y"]
        assert y.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(y.view(np.uint16), x.T.view(np.uint16))


def test_inputs_may_be_lists_views_or_of_other_byte_order(session: Session) -> None:
    program = session.compile(identity(DType.INT32))
    wanted = np.arange(6, dtype=np.int32).reshape(2, 3)
    wide = np.arange(12, dtype=np.int32).reshape(2, 6)[:, ::2] // 2
    for form in (wanted, wanted.astype(">i4"), np.asfortranarray(wanted), wide + wanted - wide):
        np.testing.assert_array_equal(session.run(program, {"x": form}).outputs["y"], wanted.T)
    booleans = session.compile(identity(DType.BOOL, (3,)))
    np.testing.assert_array_equal(session.run(booleans, {"x": [True, False, True]}).outputs["y"], [True, False, True])


def test_outputs_that_are_inputs_constants_or_repeated(session: Session) -> None:
    build = GraphBuilder("mirror")
    x = build.input("x", (3,), DType.INT32)
    constant = build.const(np.array([7, 8], np.int8), "c")
    y = build.add("unary", [x], {"fn": Unary.NEG}, "y")
    graph = Graph("mirror", (x,), (x, constant, y), build.finish([y]).ops)
    outputs = session.run(graph, {"x": np.array([1, -2, 3], np.int32)}).outputs
    np.testing.assert_array_equal(outputs["x"], [1, -2, 3])
    np.testing.assert_array_equal(outputs["c"], [7, 8])
    np.testing.assert_array_equal(outputs["y"], [-1, 2, -3])


def test_one_result_under_two_outputs(session: Session) -> None:
    build = GraphBuilder("twice")
    x = build.input("x", (3,), DType.INT32)
    y = build.add("unary", [x], {"fn": Unary.NEG}, "y")
    program = session.compile(Graph("twice", (x,), (y, y), build.finish([y]).ops))
    assert [binding.name for binding in program.outputs] == ["y", "y"]
    assert program.outputs[0].region != program.outputs[1].region
    np.testing.assert_array_equal(session.run(program, {"x": np.array([1, 2, 3], np.int32)}).outputs["y"], [-1, -2, -3])


def test_a_model_without_inputs(session: Session) -> None:
    build = GraphBuilder("constant")
    c = build.const(np.arange(5, dtype=np.int32))
    y = build.add("binary", [c, c], {"fn": Binary.MUL}, "y")
    np.testing.assert_array_equal(session.run(build.finish([y])).outputs["y"], np.arange(5) ** 2)


def test_a_model_without_work(session: Session) -> None:
    build = GraphBuilder("nothing")
    x = build.input("x", (0, 4), DType.FLOAT32)
    y = build.add("unary", [x], {"fn": Unary.EXP}, "y")
    result = session.run(build.finish([y]), {"x": np.zeros((0, 4), np.float32)})
    assert result.outputs["y"].shape == (0, 4)
    assert result.ops == []


def test_unused_inputs_are_still_inputs(session: Session) -> None:
    build = GraphBuilder("unused")
    x, _ = build.input("x", (4,), DType.INT32), build.input("spare", (2,), DType.INT8)
    graph = build.finish([build.add("unary", [x], {"fn": Unary.ABS}, "y")])
    outputs = session.run(graph, {"x": np.array([-1, 2, -3, 4], np.int32), "spare": np.zeros(2, np.int8)}).outputs
    np.testing.assert_array_equal(outputs["y"], [1, 2, 3, 4])
    with pytest.raises(InputError, match=r"^input 'spare' is missing: int8\[2\]$"):
        session.run(graph, {"x": np.zeros(4, np.int32)})


def test_outputs_belong_to_the_caller(session: Session) -> None:
    program = session.compile(increment())
    first = session.run(program, {"x": X}).outputs["y"]
    session.run(program, {"x": X * 5})
    np.testing.assert_array_equal(first, X + 1)


# What a model leaves open

GROWS = "g (float[n, 3] x, float[n] b) => (float y) { t = Transpose<perm = [1, 0]>(x) y = Add(t, b) }"
BRANCH = """g (float[n] x, int64 rate) => (float y) { fast = Constant<value_int = 16000>() c = Equal(rate, fast)
    y = If (c) <then_branch = t () => (float[n] a) { a = Neg(x) },
                else_branch = e () => (float[n] b) { b = Relu(x) }> }"""


def compiled(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of graphs compiled from now on."""
    seen: list[str] = []

    def counted(graph: Graph, config: Config, *rest: Any) -> Program:
        seen.append(graph.name)
        return compile_graph(graph, config, *rest)

    monkeypatch.setattr("npusim.compiler.pipeline.compile_graph", counted)
    return seen


def test_open_dimensions_are_taken_from_the_arrays(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shape is compiled once."""
    (tmp_path / "grows.onnx").write_bytes(text_model(GROWS).SerializeToString())
    seen = compiled(session, monkeypatch)
    for count in (2, 4, 2, 4, 2):
        x, b = np.ones((count, 3), np.float32), np.arange(count, dtype=np.float32)
        result = session.run(tmp_path / "grows.onnx", {"x": x, "b": b})
        np.testing.assert_array_equal(result.outputs["y"], x.T + b)
    assert seen == ["grows", "grows"]
    timed = session.run(tmp_path / "grows.onnx", {"x": x, "b": b}, timing_only=True)
    assert timed.timeline.digest() == result.timeline.digest()
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing: float32[n, 3]"),
        ({"x": np.ones((2, 3), np.float32)}, "input 'b' is missing: float32[n]"),
        ({"x": np.ones((2, 4), np.float32)}, "input 'x' must be float32[n, 3], got float32[2, 4]"),
        (
            {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)},
            "input 'b' must be float32[n], got float32[3], and 'n' is 2 in input 'x'",
        ),
    ],
)
def test_arrays_that_do_not_fit_the_model(session: Session, inputs: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        session.run(text_model(GROWS), inputs)
    assert str(caught.value) == message


def test_programs_are_remembered_until_the_session_is_closed(session: Session) -> None:
    first = session.compile(increment())
    assert session.compile(increment()) is first
    session.close()
    assert session.compile(increment()) is not first


def test_compiling_powers_nothing_on(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many programs are evicted from the cache."""
    monkeypatch.delattr("npusim.runtime.session.Dispatcher")
    for amount in range(REMEMBERED + 1):
        session.compile(increment(amount=amount))


def test_without_arrays_the_model_is_asked_for_sizes(session: Session) -> None:
    with pytest.raises(OpenInputsError, match=r"input_shapes=\{'x': \(1, 3\), 'b': \(1,\)\}"):
        session.run(text_model(GROWS), timing_only=True)


def test_an_input_that_decides_is_bound_to_what_it_is(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = text_model(BRANCH), np.float32([-1, 2, 3])
    seen = compiled(session, monkeypatch)
    for rate, wanted in ((16000, -x), (8000, np.maximum(x, 0)), (16000, -x), (8000, np.maximum(x, 0))):
        result = session.run(model, {"x": x, "rate": np.int64(rate)})
        np.testing.assert_array_equal(result.outputs["y"], wanted)
        assert result.program.bound == (("rate", str(rate)),)
        assert [binding.name for binding in result.program.inputs] == ["x"]
        assert result.to_json_dict()["bound"] == {"rate": str(rate)}
    assert len(seen) == 2


@pytest.mark.parametrize("count", [3, 40])
def test_values_that_hide_each_other(session: Session, count: int) -> None:
    sizes = "".join(f", int64[1] s{number}" for number in range(count))
    nodes = "".join(f" y{number + 1} = Reshape(y{number}, s{number})" for number in range(count))
    model = text_model(f"g (float[n] y0{sizes}) => (float[n] z) {{ {nodes} z = Neg(y{count}) }}")
    inputs = {"y0": np.float32([1, 2])} | {f"s{number}": np.int64([2]) for number in range(count)}
    result = session.run(model, inputs)
    assert result.outputs["z"].tolist() == [-1, -2]
    assert len(result.program.bound) == count


def test_an_input_that_decides_nothing_is_not_bound(session: Session) -> None:
    model = text_model("g (float[n] x, float by) => (float y) { y = Mul(x, by) }")
    result = session.run(model, {"x": np.float32([1, 2]), "by": np.float32(3)})
    assert result.outputs["y"].tolist() == [3, 6]
    assert result.program.bound == ()


def test_a_program_with_bound_inputs_takes_them_as_they_are(session: Session) -> None:
    model, x = text_model(BRANCH), np.float32([-1, 2, 3])
    program = session.compile(model, {"x": (3,)}, bind={"rate": 8000})
    assert session.run(program, {"x": x}).outputs["y"].tolist() == [0, 2, 3]
    assert session.run(program, {"x": x, "rate": np.int64(8000)}).outputs["y"].tolist() == [0, 2, 3]
    with pytest.raises(InputError, match="input 'rate' is bound to 8000 in this program, got 16000"):
        session.run(program, {"x": x, "rate": np.int64(16000)})
    with pytest.raises(UsageError, match="bind: not allowed for a Graph"):
        session.compile(increment(), bind={"x": X})


def test_what_is_bound_is_a_part_of_the_key(tmp_path: Path) -> None:
    """Two values give two cache files, and each is found again."""
    model, x = text_model(BRANCH), np.float32([-1, 2, 3])
    runs = [
        Session(TINY, cache_dir=tmp_path).run(model, {"x": x, "rate": np.int64(rate)}) for rate in (16000, 8000) * 2
    ]
    assert [run.compile_from_cache for run in runs] == [False, False, True, True]
    assert [run.program.bound[0][1] for run in runs] == ["16000", "8000"] * 2
    np.testing.assert_array_equal(runs[2].outputs["y"], -x)


def test_a_fault_of_the_data_names_layer_operand_and_value(session: Session) -> None:
    model = text_model("g (float[10, 4] t, int64[n] ids) => (float y) { a = Relu(t) y = Gather(a, ids) }")
    model.graph.node[1].name = "embedding"
    table = np.ones((10, 4), np.float32)
    assert session.run(model, {"t": table, "ids": np.int64([1, -10, 9])}).outputs["y"].shape == (3, 4)
    with pytest.raises(DeviceFaultError) as caught:
        session.run(model, {"t": table, "ids": np.int64([1, 2, -11])})
    assert caught.value.code == "DATA"
    assert str(caught.value).endswith(
        ": layer 'embedding' (gather): dma.gather: operand 'index' holds -11 at [0, 2, 0], "
        "which is outside the axis of 10"
    )


# Refusals


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing: int32[8]"),
        ({"x": X, "z": X}, "there is no input 'z'; the program takes x"),
        ({"x": X[:7]}, "input 'x': shape must be [8], got [7]"),
        ({"x": X.reshape(1, 8)}, "input 'x': shape must be [8], got [1, 8]"),
        ({"x": X.astype(np.int64)}, "input 'x': type must be int32, got int64"),
        ({"x": X.astype(np.float32)}, "input 'x': type must be int32, got float32"),
        ({"x": X.astype(np.complex64)}, "input 'x': type must be int32, got complex64"),
        ({"x": ["a"] * 8}, "input 'x': type must be int32, got <U1"),
        ({"x": None}, "input 'x': type must be int32, got object"),
    ],
)
def test_wrong_inputs(session: Session, inputs: dict[str, object], message: str) -> None:
    program = session.compile(increment())
    with pytest.raises(InputError) as caught:
        session.run(program, inputs)
    assert str(caught.value) == message
    np.testing.assert_array_equal(session.run(program, {"x": X}).outputs["y"], X + 1)


def test_a_program_for_another_device_is_refused(session: Session) -> None:
    program = Session("edge", cache_dir=False).compile(increment())
    with pytest.raises(
        UsageError, match=r"^program 'increment' was compiled for another device \(config 'edge', fingerprint"
    ):
        session.run(program, {"x": X})
    almost = Session(TINY.with_(**{"dram.latency": "99 ns"}), cache_dir=False)
    with pytest.raises(UsageError, match="another device"):
        almost.run(session.compile(increment()), {"x": X})


def test_shapes_of_a_graph_are_fixed(session: Session) -> None:
    with pytest.raises(UsageError, match="input_shapes: not allowed for a Graph"):
        session.compile(increment(), {"x": (9,)})


def test_unsupported_operators_are_all_named() -> None:
    build = GraphBuilder("needs")
    x = build.input("x", (4, 4), DType.FLOAT32)
    values, _ = build.add_all("topk", [x], {"axis": 1, "k": 2, "largest": True}, "best")
    total = build.add("matmul", [x, values], name="product")
    bare = Session(TINY.with_(scalar=None, matrix=None), cache_dir=False)
    with pytest.raises(UnsupportedError) as caught:
        bare.compile(build.finish([total]))
    assert caught.value.reasons == (
        ("best", "topk", "tiny has no scalar unit"),
        ("product", "matmul", "tiny has no matrix unit"),
    )
    assert str(caught.value).startswith("2 unsupported:\nbest (topk): tiny has no scalar unit")


@pytest.mark.parametrize("dtype", [DType.UINT32, DType.UINT64, DType.FLOAT64])
def test_types_that_the_device_does_not_have(session: Session, dtype: DType) -> None:
    build = GraphBuilder("odd")
    x = build.input("x", (4,), dtype)
    with pytest.raises(UnsupportedError, match=f"tiny does not compute with {dtype.label}"):
        session.compile(build.finish([build.add("binary", [x, x], {"fn": Binary.ADD})]))


def test_missing_and_damaged_models(session: Session, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.onnx"):
        session.compile(tmp_path / "none.onnx")
    with pytest.raises(ModelError):
        session.compile(b"this is no model")


# Programs on the device


def test_programs_live_side_by_side(session: Session) -> None:
    programs = [session.compile(increment(amount=amount)) for amount in (1, 2, 3)]
    for _ in range(2):
        for amount, program in zip((1, 2, 3), programs, strict=True):
            np.testing.assert_array_equal(session.run(program, {"x": X}).outputs["y"], X + amount)


def test_a_program_runs_in_the_same_time_wherever_it_lies(session: Session) -> None:
    program = session.compile(residual_net(8, 8, 1))
    alone = session.run(program, timing_only=True)
    session.unload(program)
    session.run(session.compile(product(8, 32, 8)), timing_only=True)
    assert session.run(program, timing_only=True).timeline.digest() == alone.timeline.digest()


def test_timing_only_needs_no_inputs_and_gives_no_outputs(session: Session) -> None:
    program = session.compile(increment())
    timed = session.run(program, timing_only=True)
    assert timed.outputs == {}
    assert timed.cycles == session.run(program, {"x": X}).cycles


def test_memory_makes_room_for_the_next_program() -> None:
    """Each program takes more than half of the DRAM: the older one is unloaded, and loaded again for its next run."""
    build = GraphBuilder("large")
    x = build.input("x", (300_000,), DType.INT8)
    graphs = [build.finish([relu(build, x)])]
    build = GraphBuilder("also large")
    x = build.input("x", (300_000,), DType.INT8)
    graphs.append(build.finish([build.add("unary", [x], {"fn": Unary.NEG})]))
    session = Session(TINY.with_(**{"dram.bytes": "1 MiB"}), cache_dir=False)
    programs = [session.compile(graph) for graph in graphs]
    data = np.arange(300_000).astype(np.int8)
    for program in (*programs, *programs):
        (y,) = session.run(program, {"x": data}).outputs.values()
        np.testing.assert_array_equal(y, np.maximum(data, 0) if program is programs[0] else -data)
    for program in programs:
        session.unload(program)
    session.unload(programs[0])  # unloading an absent program is allowed
    assert session.driver.free_bytes > 1_000_000


def test_a_program_that_never_fits() -> None:
    """It fits in the DRAM, but not beside the driver's own memory."""
    build = GraphBuilder("whole")
    x = build.input("x", (2**19 - 256,), DType.INT8)
    session = Session(TINY.with_(**{"dram.bytes": 2**20}), cache_dir=False)
    program = session.compile(build.finish([relu(build, x)]))
    with pytest.raises(DeviceMemoryError):
        session.run(program, timing_only=True)
    np.testing.assert_array_equal(session.run(increment(), {"x": X}).outputs["y"], X + 1)


def test_a_closed_session_starts_afresh() -> None:
    with Session(TINY, cache_dir=False) as session:
        program = session.compile(increment())
        first = session.run(program, {"x": X})
        session.close()
        again = session.run(program, {"x": X})
    assert again.timeline.digest() == first.timeline.digest()
    np.testing.assert_array_equal(again.outputs["y"], first.outputs["y"])
    session.close()


def test_a_pickled_session_comes_back(tmp_path: Path) -> None:
    session = Session(TINY.with_(cores=2), cache_dir=tmp_path)
    first = session.run(increment(), {"x": X})
    copy = pickle.loads(pickle.dumps(session))
    again = copy.run(increment(), {"x": X})
    assert copy.config == session.config
    assert again.compile_from_cache
    assert not first.compile_from_cache
    assert again.timeline.digest() == first.timeline.digest()
    assert pickle.loads(pickle.dumps(Session("tiny", cache_dir=False)))._cache_dir is False


def test_configs_by_name_path_and_object(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((Path(__file__).parents[3] / "configs" / "tiny.toml").read_text())
    by_name, by_path = Session("tiny", cache_dir=False), Session(path, cache_dir=False)
    assert by_path.config.name == "mine"
    assert by_path.config.fingerprint() == by_name.config.fingerprint()
    assert Session(by_name.config, cache_dir=False).config is by_name.config


def test_models_by_path_bytes_and_object(session: Session, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    node = helper.make_node("Add", ["x", "x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT32, ["n"]) for name in "xy")
    model = helper.make_model(
        helper.make_graph([node], "double", [x], [y]), opset_imports=[helper.make_opsetid("", 17)]
    )
    path = tmp_path / "double.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (path, str(path), model.SerializeToString(), model):
        program = session.compile(source, {"x": (8,)})
        np.testing.assert_array_equal(session.run(program, {"x": X}).outputs["y"], 2 * X)
    assert session.compile(path, {"x": (3,)}).inputs[0].shape == (3,)
    with pytest.raises(ModelError):
        session.compile(path)


class Forgetful(Driver):
    """The reference driver with an error: it writes inputs after the doorbell, too."""

    def start(self, loaded: LoadedProgram, job: DriverJob) -> None:
        super().start(loaded, job)
        for binding, array in job.arrays:
            self._bus.write_memory(job.addresses[binding.region], array.tobytes())


def test_what_the_driver_does_wrong_is_an_error_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.runtime.dispatcher.Driver", Forgetful)
    session = Session("tiny", cache_dir=False, check_driver=True)
    program = session.compile(network())
    arrays = {x.name: np.zeros(x.shape, x.dtype.storage) for x in program.inputs}
    session.run(program, arrays)
    assert {finding.kind for finding in session.findings} == {"changed-in-flight"}
    with pytest.raises(DriverCheckError, match="the driver made 1 mistake:\nchanged-in-flight at"):
        session.close()
    session.close()

    def fails() -> None:
        with Session("tiny", cache_dir=False, check_driver=True) as other:
            other.run(program, arrays)
            raise KeyError("which comes first")

    with pytest.raises(KeyError):
        fails()

    with Session("tiny", cache_dir=False, check_driver=False) as other:
        other.run(program, arrays)
        assert other.findings == []


def test_the_reference_driver_makes_no_mistake_and_leaves_nothing() -> None:
    for adversary in (None, 1, 2, 3):
        with Session("tiny", cache_dir=False, check_driver="poison", adversary=adversary) as session:
            program = session.compile(network())
            arrays = {x.name: np.ones(x.shape, x.dtype.storage) for x in program.inputs}
            results = [session.run(program, arrays) for _ in range(3)]
            for name, array in results[0].outputs.items():
                assert all(np.array_equal(array, each.outputs[name]) for each in results)
            clone = pickle.loads(pickle.dumps(session))
            assert (clone.check_driver, clone.adversary) == ("poison", adversary)
