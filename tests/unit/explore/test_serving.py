"""Scenarios from files to figures: with real programs, and a table for other simulators."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim.demo import as_onnx
from npusim.energy import idle_energy
from npusim.errors import UsageError
from npusim.explore.serving.scenario import read_scenario
from npusim.explore.serving.serve import Serving, serve
from npusim.explore.serving.text import text
from npusim.explore.serving.times import table
from npusim.frontends.onnx.external import digest_file
from npusim.hw.config import Config, load_config

WIDTH = 16
CONFIG: Config = load_config("edge")
PRICED = CONFIG.with_(**{"dram.bytes": "64 MiB"})


def _save(path: Path, inputs: list[onnx.ValueInfoProto], nodes: list[onnx.NodeProto], output: str) -> None:
    weight = numpy_helper.from_array(np.ones((WIDTH, WIDTH), np.float32), "w")
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, path.stem, inputs, [result], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def small_decoder(folder: Path) -> None:
    """Write a decoder: a prompt is projected; a step multiplies by everything before it."""
    prompt = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "n", WIDTH])
    _save(folder / "prefill.onnx", [prompt], [helper.make_node("MatMul", ["x", "w"], ["y"], "project")], "y")
    token = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 1, WIDTH])
    past = helper.make_tensor_value_info("past", TensorProto.FLOAT, ["b", WIDTH, "n"])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"], "query"),
        helper.make_node("MatMul", ["q", "past"], ["s"], "scores"),
        helper.make_node("Softmax", ["s"], ["y"], "softmax", axis=-1),
    ]
    _save(folder / "decode.onnx", [token, past], nodes, "y")


DECODER = f"""
until = "400 us"
seed = 4
[decoder]
prefill = "prefill.onnx"
decode = "decode.onnx"
rate = 50000
lengths = [8, 32]
contexts = [32, 64]
batches = [1, 2, 8]
prompt = [4, 32]
output = [1, 16]
prefill_shapes = {{ x = ["batch", "length", {WIDTH}] }}
decode_shapes = {{ x = ["batch", 1, {WIDTH}], past = ["batch", {WIDTH}, "context"] }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("serve")
    small_decoder(found)
    (found / "demo.onnx").write_bytes(as_onnx())
    return found


def served(folder: Path, said: str, seed: int | None = None) -> Serving:
    (folder / "s.toml").write_text(said)
    return serve(read_scenario(folder / "s.toml"), PRICED, seed)


def test_a_decoder(folder: Path) -> None:
    found = served(folder, DECODER)
    (figures,) = found.classes
    assert figures.requests > 10
    assert found.tokens == figures.tokens >= figures.requests
    assert found.method == "decoder"
    assert 0 < found.busy_ps <= found.elapsed_ps
    phases = dict(found.steps)
    assert phases["prefill"] == figures.requests
    assert 0 < phases["decode"] < found.tokens  # steps are shared
    # 4 bytes for each of WIDTH numbers per token, in the DRAM left by the weights.
    assert found.cache_tokens[1] == pytest.approx(PRICED.dram.bytes / (4 * WIDTH), rel=0.01)
    assert 0 < found.cache_tokens[0] < found.cache_tokens[1]
    assert {tuple(sorted(each.sizes)) for each in found.timed} == {("batch", "length"), ("batch", "context")}
    assert found == served(folder, DECODER) or found.to_json_dict() == served(folder, DECODER).to_json_dict()
    assert found.to_json_dict() != served(folder, DECODER, seed=5).to_json_dict()
    said = text(found)
    assert "tokens" in said
    assert "events with the simulated time of each program" in said
    json.dumps(found.to_json_dict(), allow_nan=False)


def test_a_small_cache_makes_requests_wait(folder: Path) -> None:
    roomy, tight = served(folder, DECODER), served(folder, f'{DECODER}kv_cache = "3072 B"\n')
    assert tight.cache_tokens[1] == 3072 // (4 * WIDTH)
    assert tight.classes[0].waiting.mean > roomy.classes[0].waiting.mean
    assert tight.tokens == roomy.tokens
    with pytest.raises(UsageError, match=r"keys and values have room for 1$"):
        served(folder, f'{DECODER}kv_cache = "64 B"\n')


def test_a_step_without_past_is_no_step(folder: Path) -> None:
    said = DECODER.replace('"context"]', "32]")
    with pytest.raises(UsageError, match="no input of the step has a dimension context"):
        served(folder, said)


MODELS = """
until = "2 ms"
[[model]]
name = "camera"
file = "demo.onnx"
priority = "high"
every = "500 us"
[[model]]
name = "batch"
file = "demo.onnx"
priority = "low"
rate = 4000
"""


def test_models_in_the_rings(folder: Path) -> None:
    found = served(folder, MODELS)
    camera, batch = found.classes
    assert (camera.name, camera.requests) == ("camera", 4)
    assert batch.requests == len(found.served) - 4 > 0
    assert found.busy_ps == sum(each.device_ps for each in found.served)
    assert len(found.timed) == 2
    assert "in the rings of the simulated device" in text(found)
    events = served(folder, f'method = "times"\n{MODELS}')
    assert [each.requests for each in events.classes] == [4, batch.requests]
    assert not any(each.preemptions for each in events.classes)
    assert found.to_json_dict() == served(folder, MODELS).to_json_dict()


def test_the_json_says_where_it_comes_from_and_what_is_not_known(folder: Path) -> None:
    rare = MODELS.replace("rate = 4000", "rate = 0.001")
    told = json.loads(json.dumps(served(folder, rare).to_json_dict(), allow_nan=False))
    camera, batch = told["classes"]
    assert (batch["requests"], batch["latency_ps"], batch["waiting_ps"]) == (0, None, None)
    assert camera["latency_ps"]["p50"] > 0
    assert camera["first_token_ps"] is None
    assert told["provenance"]["config"] == json.loads(json.dumps(PRICED.to_table()))
    assert told["provenance"]["overrides"] == {"dram.bytes": '"64 MiB"'}
    digest = digest_file(folder / "demo.onnx", PRICED.dram.bytes, values=False)
    assert {model["digest"] for model in told["provenance"]["models"]} == {digest}
    assert told["provenance"]["seed"] == told["seed"]
    row = next(line for line in text(served(folder, rare)).splitlines() if line.startswith("batch"))
    assert row.split()[:7] == ["batch", "0", "0.0", "-", "-", "-", "-"]


def test_energy_is_that_of_all_jobs(folder: Path) -> None:
    found = served(folder, MODELS)
    known = {each.model: each.energy_fj for each in found.timed}
    if None in known.values():
        assert found.energy_fj is None
    else:
        idle = idle_energy(found.device, found.elapsed_ps - found.busy_ps).total
        assert found.idle_fj == idle > 0
        assert found.energy_fj == idle + sum(each.energy_fj or 0 for each in found.served)
        assert all(each.preemptions or each.energy_fj == known[each.name] for each in found.served)


def test_nobody_asks(folder: Path) -> None:
    with pytest.raises(UsageError, match="no request arrives before"):
        served(folder, 'until = "1 ps"\n[[model]]\nname = "m"\nfile = "demo.onnx"\nrate = 1\n')


def test_the_table_has_each_operator_of_each_program(folder: Path) -> None:
    found = served(folder, DECODER)
    rows = list(csv.DictReader(io.StringIO(table(found.timed))))
    wholes = [row for row in rows if not row["operator"]]
    assert len(wholes) == len(found.timed)
    for whole, each in zip(wholes, found.timed, strict=True):
        sizes = {name: str(each.sizes.get(name, "")) for name in ("batch", "length", "context")}
        assert {name: whole[name] for name in sizes} == sizes
        parts = [
            row
            for row in rows
            if row["operator"] and (row["phase"], *(row[name] for name in sizes)) == (whole["phase"], *sizes.values())
        ]
        assert int(whole["time_ps"]) == each.time_ps
        for column in ("time_ps", "macs", "dram_bytes", "energy_fj"):
            assert sum(int(row[column]) for row in parts) == int(whole[column]) > 0, column
        assert {row["operator"] for row in parts} >= {op.name for op in each.program.ops}
