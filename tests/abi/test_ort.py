"""The execution provider of ONNX Runtime: models through ``onnxruntime``, compared with npusim and with its CPU."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import npusim.ort
from hal.ort import provider
from hal.ort.provider import Provider
from npusim import Session
from npusim.runtime import Result
from tests.support.c_compiler import PROGRAMS, gcc, needs_gcc, run
from tests.support.onnx_models import cnn, qdq
from tests.support.onnx_models.run_time_decisions import decided_model
from tests.support.onnx_models.transformers import BertSizes, bert, bert_inputs

Array = npt.NDArray[Any]
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
F, I64 = TensorProto.FLOAT, TensorProto.INT64
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BERT = BertSizes(layers=1, hidden=32, heads=2, sequence=8, intermediate=64, vocabulary=50)
value = helper.make_tensor_value_info

pytestmark = pytest.mark.skipif(VERSION < npusim.ort.OLDEST, reason="onnxruntime has no plug-ins that compile")


@pytest.fixture(scope="module")
def devices() -> list[Any]:
    return npusim.ort.register()


@dataclass
class Door:
    """Makes sessions of ONNX Runtime on the device. ``results``: of all runs."""

    devices: list[Any]
    dumped: Path
    results: list[Result] = field(default_factory=list)

    def options(self, given: Mapping[str, str] | None = None, **entries: str) -> Any:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.add_provider_for_devices(self.devices, {"cache": "off", "config": "tiny", **(given or {})})
        for key, text in entries.items():
            options.add_session_config_entry(key, text)
        return options

    def session(self, model: onnx.ModelProto, given: Mapping[str, str] | None = None, **entries: str) -> Any:
        return ort.InferenceSession(model.SerializeToString(), self.options(given, **entries))

    def same_as_npusim(self, model: onnx.ModelProto, inputs: Mapping[str, Array], config: str = "edge") -> list[Array]:
        """The outputs of a model that runs whole, with the bits and picoseconds of ``npusim run`` of its dump."""
        session = self.session(model, {"config": config, "dump": str(self.dumped)})
        [file] = self.dumped.glob("*.onnx")
        outputs: list[Array] = session.run(None, dict(inputs))
        wanted = Session(config, cache_dir=False).run(file, inputs)
        names = [each.name for each in session.get_outputs()]
        assert [each.tobytes() for each in outputs] == [wanted.outputs[name].tobytes() for name in names]
        assert [result.total_ps for result in self.results] == [wanted.total_ps]
        return outputs


@pytest.fixture
def door(devices: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    found = Door(devices, tmp_path)
    finished = Provider.finished

    def noted(self: Provider, group: Any, result: Result, started_ns: int) -> None:
        found.results.append(result)
        finished(self, group, result, started_ns)

    monkeypatch.setattr(Provider, "finished", noted)
    return found


def made(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def on_cpu(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    outputs: list[Array] = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, dict(inputs)
    )
    return outputs


def product(rows: int | str = 4, seed: int = 0) -> tuple[onnx.ModelProto, Callable[[Array], Array]]:
    """Relu(x @ w), and the same in numpy."""
    w = np.random.default_rng(seed).standard_normal((8, 8), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    model = made(nodes, [value("x", F, [rows, 8])], [value("y", F, [rows, 8])], {"w": w})
    return model, lambda x: np.maximum(x @ w, 0)


def normal(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# ------------------------------------------------------------------------------------------------------- networks


def test_resnet(door: Door) -> None:
    model = cnn.resnet((1, 1), image=32, classes=10, width=16)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    inputs = {model.graph.input[0].name: normal(*shape)}
    for got, wanted in zip(door.same_as_npusim(model, inputs), on_cpu(model, inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_quantised_resnet(door: Door, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = qdq.small(tmp_path_factory.mktemp("qdq"))
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    door.same_as_npusim(model, {model.graph.input[0].name: normal(*shape)})


def test_bert(door: Door) -> None:
    model, inputs = bert(BERT), bert_inputs(BERT, 0)
    for got, wanted in zip(door.same_as_npusim(model, inputs), on_cpu(model, inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_decisions_at_run_time(door: Door, seed: int) -> None:
    """If, Loop and sizes that depend on data do not split a model."""
    case = decided_model(seed)
    for got, wanted in zip(door.same_as_npusim(case.model, case.inputs), on_cpu(case.model, case.inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_nothing_is_claimed_inside_a_node(door: Door) -> None:
    """A body that reads nothing from outside looks like a graph of its own to onnxruntime 1.23."""
    nodes = [helper.make_node("Add", ["i", "s"], ["t"]), helper.make_node("Identity", ["c"], ["d"])]
    scalar = value("s", F, [])
    body = helper.make_graph(
        [helper.make_node("Cast", ["n"], ["i"], to=F), *nodes],
        "body",
        [value("n", I64, []), value("c", TensorProto.BOOL, []), scalar],
        [value("d", TensorProto.BOOL, []), value("t", F, [])],
    )
    loop = [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)]
    model = made(loop, [value("count", I64, []), value("x", F, [])], [value("y", F, [])])
    session = door.session(model)
    for count in (0, 3):
        assert (
            session.run(None, {"count": np.array(count), "x": np.array(1, np.float32)})[0]
            == 1 + count * (count - 1) // 2
        )


# ------------------------------------------------------------------------------------------------ shapes and types


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_open_sizes_compile_per_shape(door: Door, level: str) -> None:
    model, wanted = product("rows")
    options = door.options()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model.SerializeToString(), options)
    for rows in (4, 1, 9, 4):
        np.testing.assert_allclose(session.run(None, {"x": normal(rows, 8)})[0], wanted(normal(rows, 8)), atol=1e-4)
    assert len({id(result.program) for result in door.results}) == 3


def test_values_that_decide_shapes(door: Door) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    session = door.session(made(nodes, [value("x", F, ["n", 6]), value("shape", I64, [2])], [value("y", F, None)]))
    for shape in ([3, 4], [12, 1], [2, 6], [3, 4]):
        got = session.run(None, {"x": normal(2, 6), "shape": np.array(shape)})[0]
        assert got.tobytes() == normal(2, 6).tobytes()
        assert list(got.shape) == shape
    assert len({id(result.program) for result in door.results}) == 3


def test_a_shape_that_does_not_fit_is_an_error_with_the_shape(door: Door) -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    model = made(nodes, [value("x", F, ["n", "length"])], [value("y", F, None)], {"s": np.array([-1, 2, 4])})
    session = door.session(model)
    assert session.run(None, {"x": normal(3, 8)})[0].shape == (3, 2, 4)
    with pytest.raises(Exception, match=r"npusim: .*'x' is \[3, 7\]"):
        session.run(None, {"x": normal(3, 7)})


@pytest.mark.parametrize(
    ("kind", "here"),
    [("float16", True), ("int8", True), ("uint8", True), ("int32", True), ("int64", True), ("bool", True),
     ("int16", True), ("uint16", True), ("double", False), ("uint32", False), ("uint64", False)],
)  # fmt: skip
def test_element_types(door: Door, kind: str, here: bool) -> None:
    code = getattr(TensorProto, kind.upper())
    model = made(
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [value("x", code, [4])], [value("y", code, [2, 2])],
        {"s": np.array([2, 2])},
    )  # fmt: skip
    x = np.array([0, 1, 1, 0]).astype(kind)
    [got] = door.session(model).run(None, {"x": x})
    assert (got.dtype, got.tolist()) == (x.dtype, x.reshape(2, 2).tolist())
    assert len(door.results) == here


def test_operands_that_are_left_out_and_defaults_that_are_replaced(door: Door) -> None:
    nodes = [helper.make_node("Clip", ["x", "", "hi"], ["c"]), helper.make_node("Add", ["c", "b"], ["y"])]
    inputs = [value("x", F, [4]), value("b", F, [4])]
    model = made(nodes, inputs, [value("y", F, [4])], {"hi": np.float32(2), "b": np.ones(4, np.float32)})
    session, x = door.session(model), np.arange(4, dtype=np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [1, 2, 3, 3]
    assert session.run(None, {"x": x, "b": np.zeros(4, np.float32)})[0].tolist() == [0, 1, 2, 2]
    assert session.run(None, {"x": x})[0].tolist() == [1, 2, 3, 3]
    assert len(door.results) == 3


def test_external_weights(door: Door, tmp_path: Path) -> None:
    w = normal(64, 64)
    model = made([helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", F, [1, 64])], [value("y", F, [1, 64])])
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=16)
    session = ort.InferenceSession(tmp_path / "m.onnx", door.options())
    np.testing.assert_allclose(session.run(None, {"x": normal(1, 64)})[0], normal(1, 64) @ w, atol=1e-4)


def test_a_model_is_split_at_an_operator_that_the_device_lacks(door: Door, capfd: pytest.CaptureFixture[str]) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.STRING),
        helper.make_node("Cast", ["b"], ["c"], to=F),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    options = door.options()
    options.log_severity_level = 1
    model = made(nodes, [value("x", F, [4])], [value("y", F, [4])])
    session = ort.InferenceSession(model.SerializeToString(), options)
    assert session.run(None, {"x": np.array([1, -2, 3, 0], np.float32)})[0].tolist() == [-1, 0, -3, 0]
    assert len(door.results) == 2
    assert "npusim: not on tiny: Cast: " in capfd.readouterr().err


# ---------------------------------------------------------------------------------------------------------- clients


@pytest.mark.parametrize("rows", [4, "rows"])
def test_threads_need_no_lock(door: Door, rows: int | str) -> None:
    check_threads(door, rows, 25)


@pytest.mark.slow
def test_many_runs_of_threads(door: Door) -> None:
    check_threads(door, 4, 1000)


def check_threads(door: Door, rows: int | str, count: int) -> None:
    model, wanted = product(rows)
    session, wrong = door.session(model), []

    def work(thread: int) -> None:
        try:
            for number in range(count):
                x = normal(4 if rows == 4 else 1 + (number + thread) % 5, 8, seed=number * 4 + thread)
                np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted(x), atol=1e-4)
        except Exception as error:  # noqa: BLE001 told by the test's own thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(door.results) == 4 * count


def test_sessions_that_end_release_their_memory(door: Door) -> None:
    check_sessions(door, 5)


@pytest.mark.slow
def test_many_sessions(door: Door) -> None:
    assert check_sessions(door, 200) <= 3 << 20


def check_sessions(door: Door, count: int) -> int:
    """Returns by how many bytes the process grows."""
    decisions = made([helper.make_node("NonZero", ["x"], ["y"])], [value("x", F, [4])], [value("y", I64, [1, None])])
    models = [(product()[0], normal(4, 8)), (decisions, normal(4))]
    kept = door.session(models[0][0])  # so that the device stays
    device = kept_device()
    before = 0
    for number in range(count + 10):
        if number == 10:
            before = resident()
        for model, x in models:
            door.session(model).run(None, {"x": x})
        door.results.clear()
    gc.collect()
    assert kept_device() is device
    assert not device._planned
    kept.run(None, {"x": normal(4, 8)})
    return resident() - before


def kept_device() -> Session:
    [device] = [each for (config, _), each in provider._devices.items() if config == "tiny"]
    return device


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_bindings_and_asynchronous_runs(door: Door) -> None:
    model, wanted = product()
    session, x = door.session(model), normal(4, 8)
    binding, y = session.io_binding(), ort.OrtValue.ortvalue_from_numpy(np.zeros((4, 8), np.float32))
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(y.numpy(), wanted(x), atol=1e-4)
    done, found = threading.Event(), []
    session.run_async(None, {"x": x}, lambda outputs, _, error: (found.append((outputs, error)), done.set()), None)
    assert done.wait(60)
    [(outputs, error)] = found
    assert not error
    assert outputs[0].tobytes() == y.numpy().tobytes()


def test_a_forked_child_is_refused(door: Door) -> None:
    session = door.session(product()[0])
    session.run(None, {"x": normal(4, 8)})
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            session.run(None, {"x": normal(4, 8)})
            os.write(writing, b"ran")
        except Exception as error:  # noqa: BLE001 any, for the parent to see
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert "forked child" in os.read(reading, 1 << 16).decode()
    os.close(reading)
    session.run(None, {"x": normal(4, 8)})


ENDS = """
import sys
import numpy as np, onnxruntime, npusim.ort
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_provider_for_devices(npusim.ort.register(), {"config": "tiny"})
session = onnxruntime.InferenceSession(sys.argv[1], options)
session.run(None, {"x": np.ones((4, 8), np.float32)})
if sys.argv[2] == "unregister":
    onnxruntime.unregister_execution_provider_library("npusim")
    del session
print("end")
"""


@pytest.mark.parametrize("how", ["with a session", pytest.param("unregister", marks=pytest.mark.slow)])
def test_a_process_ends(how: str, tmp_path: Path) -> None:
    """ONNX Runtime releases sessions after Python has ended, and calls a provider that was unregistered."""
    (tmp_path / "m.onnx").write_bytes(product()[0].SerializeToString())
    command = [sys.executable, "-c", ENDS, str(tmp_path / "m.onnx"), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


# ------------------------------------------------------------------------------------------------ options and errors


def test_a_fault_of_the_device_is_raised(door: Door, tmp_path: Path) -> None:
    """Not hidden by a run on the CPU, as the Python package does for some status codes."""
    script = tmp_path / "faults.toml"
    script.write_text('[[fault]]\nwhen = { job = 2 }\nwhat = { fail = "core0.dma0" }\n')
    model, wanted = product()
    session, x = door.session(model, {"faults": str(script)}), normal(4, 8)
    before = session.run(None, {"x": x})[0]
    with pytest.raises(Exception, match="DMA"):
        session.run(None, {"x": x})
    assert "npusim" in session.get_providers()
    assert session.run(None, {"x": x})[0].tobytes() == before.tobytes()
    np.testing.assert_allclose(before, wanted(x), atol=1e-4)


@pytest.mark.parametrize("method", ["claim", "compile"])
def test_a_defect_while_a_session_is_made_is_raised(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """ONNX Runtime would only log an error of GetCapability, and use the CPU."""

    def defect(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Provider, method, defect)
    with pytest.raises(Exception, match="npusim: RuntimeError: a defect"):
        door.session(product()[0])
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"colour": "red"}, "option colour: unknown; there are config, cache"),
        ({"timing_only": "maybe"}, "option timing_only: must be one of 1, true"),
        ({"config": "nowhere"}, "nowhere"),
        ({"faults": "/nowhere.toml"}, "no such file"),
        ({"dump": "/proc/nowhere"}, "option dump"),
    ],
)
def test_options_that_are_refused(door: Door, given: dict[str, str], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        door.session(product()[0], given)


@pytest.mark.skipif(not hasattr(ort.InferenceSession, "set_ep_dynamic_options"), reason="a later function")
def test_dynamic_options(door: Door) -> None:
    session = door.session(product()[0])
    session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    with pytest.raises(Exception, match="dynamic option config=edge: unknown"):
        session.set_ep_dynamic_options({"config": "edge"})


def test_timing_only_and_traces(door: Door, tmp_path: Path) -> None:
    model, _ = product()
    x = {"x": normal(4, 8)}
    session = door.session(model, {"timing_only": "1", "trace": str(tmp_path / "traces")})
    assert not session.run(None, x)[0].any()
    session.run(None, x)
    door.session(model).run(None, x)
    timed, _, computed = door.results
    assert timed.time_ps == computed.time_ps
    assert len(list((tmp_path / "traces").glob("*.perfetto-trace"))) == 2


@pytest.mark.skipif(VERSION < npusim.ort.NAMED, reason="no profiles of plug-ins before onnxruntime 1.25")
def test_profiles_have_simulated_times(door: Door, tmp_path: Path) -> None:
    options = door.options()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort.InferenceSession(product()[0].SerializeToString(), options)
    session.run(None, {"x": normal(4, 8)})
    events = [each for each in json.loads(Path(session.end_profiling()).read_text()) if "simulated_ps" in each["args"]]
    [result] = door.results
    times = [(event["args"]["kind"], int(event["args"]["simulated_ps"])) for event in events]
    assert times == [("device", result.total_ps), *(("layer", op.end_ps - op.start_ps) for op in result.ops)]


@pytest.mark.skipif(VERSION < npusim.ort.NAMED, reason="providers= knows no plug-ins before onnxruntime 1.25")
def test_the_name_of_the_provider(devices: list[Any]) -> None:
    data = product()[0].SerializeToString()
    session = ort.InferenceSession(data, providers=[("npusim", {"config": "tiny", "cache": "off"})])
    assert session.get_providers()[0] == "npusim"


@pytest.mark.skipif(VERSION < (1, 24), reason="no virtual devices before onnxruntime 1.24")
def test_virtual_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUSIM_ORT_CONFIGS", "tiny, edge")
    devices = npusim.ort.register(virtual=True)
    assert [device.ep_metadata["config"] for device in devices] == ["tiny", "edge"]
    assert {device.device.type for device in devices} == {ort.OrtHardwareDeviceType.NPU}
    model, wanted = product()
    options = ort.SessionOptions()
    options.add_provider_for_devices(devices[:1], {"cache": "off"})
    session = ort.InferenceSession(model.SerializeToString(), options)
    np.testing.assert_allclose(session.run(None, {"x": normal(4, 8)})[0], wanted(normal(4, 8)), atol=1e-4)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_provider_for_devices(devices, {})
    with pytest.raises(Exception, match="the devices tiny, edge: name one, or set config"):
        ort.InferenceSession(model.SerializeToString(), options)


# ------------------------------------------------------------------------------------------------- compiled models


@pytest.mark.parametrize("embedded", ["0", "1"])
@pytest.mark.parametrize("rows", [4, "rows"])
def test_compiled_models(door: Door, tmp_path: Path, rows: int | str, embedded: str) -> None:
    model, wanted = product(rows)
    path, x = tmp_path / "m_ctx.onnx", normal(4, 8)
    entries = {"ep.context_enable": "1", "ep.context_file_path": str(path), "ep.context_embed_mode": embedded}
    door.session(model, None, **entries)
    assert [node.op_type for node in onnx.load(path).graph.node] == ["EPContext"]
    assert len(list(tmp_path.glob("*.npusim"))) == (embedded == "0")
    session = ort.InferenceSession(path, door.options())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted(x), atol=1e-4)
    assert len(door.results) == 1


def contexts() -> list[tuple[bytes, int, str]]:
    return [
        (b"../m.npusim", 0, "must name a file beside the model"),
        (b"/etc/passwd", 0, "must name a file beside the model"),
        (b"nowhere.npusim", 0, "nowhere.npusim"),
        (b"", 1, "is empty"),
        (b"\x00\x01\x02", 1, "not an ONNX model"),
        (b"NPUSIM\x00\x1a" + bytes(100), 1, "embedded EPContext"),
    ]


@pytest.mark.parametrize(("data", "embedded", "problem"), contexts())
def test_contexts_that_are_refused(door: Door, tmp_path: Path, data: bytes, embedded: int, problem: str) -> None:
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft",
        ep_cache_context=data, embed_mode=embedded, source="npusim", main_context=1,
    )  # fmt: skip
    model = made([node], [value("x", F, [4])], [value("y", F, [4])])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(Exception, match=problem):
        ort.InferenceSession(tmp_path / "m.onnx", door.options())


def test_compatibility_of_compiled_models() -> None:
    text = Provider("npusim", ["tiny"], {"ep.npusim.cache": "off"}, print).compatibility
    assert provider.verdict(text) == provider.OPTIMAL
    assert provider.verdict(text[:-4] + "beef") == provider.RECOMPILE
    assert provider.verdict(text.replace("tiny", "nowhere")) == provider.UNSUPPORTED
    assert provider.verdict("npusim 0.0 tiny x") == provider.UNSUPPORTED
    assert provider.verdict("") == provider.UNSUPPORTED


# ------------------------------------------------------------------------------------------------------------- from C


@needs_gcc
def test_a_program_in_c(tmp_path: Path) -> None:
    """The library starts Python itself."""
    [runtime] = Path(ort.__file__).parent.glob("capi/libonnxruntime.so.*")
    for library in runtime.parent.glob("libonnxruntime*"):
        (tmp_path / library.name).symlink_to(library)
    (tmp_path / "libonnxruntime.so.1").symlink_to(runtime)  # its soname
    source, headers = EXAMPLES / "ort_host.c", PROGRAMS / "ort"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", headers, f"-Wl,-rpath,{tmp_path}"]
    gcc(*flags, source, tmp_path / runtime.name, "-o", tmp_path / "host")
    model, wanted = product()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    done = run(tmp_path / "host", npusim.ort.library(), tmp_path / "m.onnx")
    assert done.returncode == 0, done.stderr
    got = np.array([float(line) for line in done.stdout.split()]).reshape(4, 8)
    np.testing.assert_allclose(got, wanted(np.ones((4, 8), np.float32)), atol=1e-3)
