"""Programs for timing only: the same times, without reading weights that affect no decision."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from npusim.errors import ModelError, UsageError
from npusim.frontends.onnx import external, load
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.runtime import Executor, Request, Session
from tests.support.onnx_models.llama import LlamaSizes, llama, write_llama

SIZES = LlamaSizes(layers=2, hidden=1024, heads=8, feed_forward=1024, vocabulary=1000, past=31)
"""31 MB of weights."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a decoder with random weights in a file."""
    path = write_llama(tmp_path_factory.mktemp("llama"), SIZES)
    weights = path.with_suffix(".bin")
    numbers = np.random.default_rng(0).standard_normal(weights.stat().st_size // 2) / 32
    weights.write_bytes(numbers.astype(np.float16).tobytes())
    return path


@pytest.fixture
def without(model: Path, tmp_path: Path) -> Path:
    """Return the same model without its weight file, so that reading a weight is an error."""
    path = tmp_path / model.name
    path.write_bytes(model.read_bytes())
    return path


def arrays(model: Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(1)
    return {
        tensor.name: (rng.standard_normal(tensor.shape) / 4).astype(np.float16)
        for tensor in load(model, timing_only=True).inputs
    }


@pytest.mark.parametrize("config", ["edge", pytest.param("server", marks=pytest.mark.slow)])
def test_the_digest_is_that_of_a_run_with_arithmetic(model: Path, without: Path, config: str) -> None:
    with Session(config, cache_dir=False) as session:
        computed = session.run(model, arrays(model))
        assert np.isfinite(computed.outputs["logits"].astype(np.float32)).all()
        assert computed.outputs["logits"].any()
    with Session(config, cache_dir=False) as session:
        timed = session.run(without, timing_only=True)
        graph = load(without, timing_only=True)
        graph.cache_rows = 0  # the default of compile
        in_memory = session.run(graph, timing_only=True)
    assert timed.timeline.digest() == in_memory.timeline.digest() == computed.timeline.digest()
    assert timed.program.code == computed.program.code
    assert timed.program.describe()["constant_bytes"] == computed.program.describe()["constant_bytes"]


def test_only_a_program_for_timing_goes_without_its_weights(without: Path) -> None:
    with Session("edge", cache_dir=False) as session:
        with pytest.raises(ModelError, match=r"external data file .*llama\.bin: No such file"):
            session.compile(without)
        program = session.compile(without, timing_only=True)
        assert program.timing_only
        with pytest.raises(UsageError, match="compiled for timing alone, without its constants: compile it to compute"):
            session.run(program, arrays(without))
    with Executor("edge") as executor, pytest.raises(UsageError, match="compiled for timing alone"):
        executor.submit(Request(program, arrays(without)))


def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    """Weights more than twelve times as large need as much memory, within a third, and a fraction of their own size."""
    peaks, sizes = [], []
    config = load_config("server").with_(cores=1)
    for hidden in (512, 2048):
        path = write_llama(tmp_path, LlamaSizes(1, hidden, 8, 2 * hidden, 1000, 15), f"m{hidden}")
        with Session(config, cache_dir=tmp_path / "cache") as session:
            tracemalloc.start()
            session.run(path, timing_only=True)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        sizes.append(path.with_suffix(".bin").stat().st_size)
    assert sizes[1] > 12 * sizes[0]
    assert peaks[1] < 4 / 3 * peaks[0]
    assert peaks[1] < sizes[1] / 3
    assert sum(file.stat().st_size for file in (tmp_path / "cache").iterdir()) < sizes[0] / 30


def test_bytes_of_large_weights_are_not_hashed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    digest_run = external._digest_run

    def counting(digest: object, file: object, start: int, end: int) -> None:
        read.append(end - start)
        digest_run(digest, file, start, end)  # type: ignore[arg-type]

    monkeypatch.setattr(external, "_digest_run", counting)
    _, size = llama(SIZES)
    known = external.digest_file(model, values=False)
    assert sum(read) < size / 500  # weights of norms, which are small
    before = model.with_suffix(".bin").read_bytes()
    with model.with_suffix(".bin").open("r+b") as file:
        file.write(before[:1])
    assert external.digest_file(model, values=False) != known
    read.clear()
    external.digest_file(model)
    assert sum(read) > size * 0.99


def test_a_graph_is_told_from_others_without_its_weights(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, again = load(model), load(model)
    hashed: list[int] = []
    digest_data = Graph.fingerprint.__globals__["_digest_data"]
    monkeypatch.setitem(
        Graph.fingerprint.__globals__, "_digest_data",
        lambda digest, data: (hashed.append(data.nbytes), digest_data(digest, data)),
    )  # fmt: skip
    assert graph.fingerprint(values=False) == again.fingerprint(values=False)
    assert max(hashed) < 1 << 16
    assert graph.fingerprint(values=False) != graph.fingerprint()
    assert max(hashed) > 1 << 16


def integer_model(path: Path, *, centred: bool) -> Path:
    """Return a product with int8 weights in a file and a zero point of 3 or none."""
    weight = TensorProto(name="w", dims=[512, 256], data_type=TensorProto.INT8, data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.bin")
    inputs = ["x", "w", "", "" if centred else "zero"]
    zero = onnx.numpy_helper.from_array(np.array(3, np.int8), "zero")
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", inputs, ["y"])], "integers",
        [helper.make_tensor_value_info("x", TensorProto.INT8, [4, 512])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [4, 256])],
        [weight] if centred else [weight, zero],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_where_a_decision_depends_on_weights_they_are_read(tmp_path: Path) -> None:
    """Whether they fit in fewer bits, or in int8 without their zero point. Then they must exist, and the digest depends
    on them as in a run with arithmetic."""
    plain = integer_model(tmp_path / "plain.onnx", centred=True)
    zero = integer_model(tmp_path / "zero.onnx", centred=False)
    with Session("tiny", cache_dir=False) as session:
        session.run(plain, timing_only=True)  # nothing depends on them where the unit takes int8 as it is
        with pytest.raises(ModelError, match=r"^initializer 'w': its values determine the program, and its external"):
            session.run(zero, timing_only=True)
    with Session("server", cache_dir=False) as session:  # it keeps weights of 4 bits packed
        with pytest.raises(ModelError, match=r"^initializer 'w': its values determine the program, and its external"):
            session.run(plain, timing_only=True)
        digests = set()
        for high in (7, 100):
            weights = np.random.default_rng(2).integers(-high, high, (512, 256), dtype=np.int8)
            (tmp_path / "w.bin").write_bytes(weights.tobytes())
            x = np.ones((4, 512), np.int8)
            computed = Session("server", cache_dir=False).run(plain, {"x": x})
            np.testing.assert_array_equal(computed.outputs["y"], weights.astype(np.int32).sum(0) + np.zeros((4, 1)))
            assert session.run(plain, timing_only=True).timeline.digest() == computed.timeline.digest()
            digests.add(computed.timeline.digest())
        assert len(digests) == 2


def test_a_program_that_computes_is_as_good(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program compiled for arithmetic is timed as it is."""
    from npusim.compiler import pipeline

    made = []
    compile_graph = pipeline.compile_graph
    monkeypatch.setattr(
        pipeline, "compile_graph", lambda *arguments: made.append(arguments) or compile_graph(*arguments)
    )
    with Session("edge", cache_dir=tmp_path) as session:
        session.compile(model)
        assert session.run(model, timing_only=True).program is session.compile(model)
    assert len(made) == 1
    with Session("edge", cache_dir=tmp_path) as session:
        assert session.compile(model, timing_only=True).timing_only  # weights are not hashed to find the other one
        assert session.compile(model, timing_only=True) is session.compile(model, timing_only=True)
    with Session("edge", cache_dir=tmp_path) as session:
        kept = session.compile(model, timing_only=True)
        assert kept.from_cache
        assert kept.timing_only
        session.run(kept, timing_only=True)
    assert len(made) == 2


def test_weights_that_are_written_to_before_they_are_on_the_device_are_an_error(tmp_path: Path) -> None:
    from npusim.errors import FileCutError

    model = write_llama(tmp_path, SIZES)
    with Session("edge", cache_dir=False) as session:
        program = session.compile(model)
        with model.with_suffix(".bin").open("r+b") as file:
            file.write(b"other")
        with pytest.raises(FileCutError, match=r"llama\.bin: was modified while its weights were in use"):
            session.run(program, arrays(model))
        session.run(session.compile(model), arrays(model))
