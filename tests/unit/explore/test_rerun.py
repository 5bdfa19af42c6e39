"""The JSON of a run suffices to repeat it, and changes since then are named."""

from __future__ import annotations

import functools
import json
import operator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim import report
from npusim.cache import write_program
from npusim.demo import as_onnx, network
from npusim.errors import ConfigError, NpusimError, UsageError
from npusim.explore.rerun import EXEMPT, _differences, rerun
from npusim.frontends.onnx.external import digest_file
from npusim.hw.config import config_of, list_configs, load_config
from npusim.runtime import Session
from npusim.runtime.provenance import Origin, bound_value

EDGE = load_config("edge").with_(**{"dram.bandwidth": "8 GB/s"})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "demo.onnx"
    path.write_bytes(as_onnx())
    return path


def record(model: Path, **arguments: Any) -> dict[str, Any]:
    with Session(EDGE, cache_dir=False) as session:
        program = session.compile(model, **arguments)
        found: dict[str, Any] = json.loads(json.dumps(session.run(program, timing_only=True).to_json_dict()))
    return found


@pytest.mark.parametrize("name", list_configs())
def test_a_resolved_device_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    table = json.loads(json.dumps(config.to_table()))
    assert config_of(table, "x") == config
    assert config_of(table, "x").fingerprint() == config.fingerprint()
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"provenance": {"config": table}}))
    assert load_config(file) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "holds no device"),
        ('{"provenance": {"config": {"clock": 5}}}', "clock: must be"),
    ],
)
def test_a_json_without_a_device(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_the_same_again(model: Path) -> None:
    told = record(model)
    found = rerun(told, "run.json")
    assert (found.same, found.changed, found.first) == (True, (), "")
    assert found.result.timeline.digest() == told["timeline_digest"]
    provenance = told["provenance"]
    assert provenance["overrides"] == {"dram.bandwidth": '"8 GB/s"'}
    assert provenance["arithmetic"] is False
    assert provenance["versions"].keys() == {"npusim", "compiler", "isa", "numpy", "python"}
    with Session(EDGE, cache_dir=False) as session:
        computed = session.run(model, {"image": np.zeros((1, 3, 32, 32), np.float32)})
    assert computed.provenance["arithmetic"] is True


def test_the_model_may_lie_beside_the_record_or_be_named(model: Path, tmp_path: Path) -> None:
    told = record(model)
    told["provenance"]["model"]["file"] = "demo.onnx"
    assert rerun(told, str(tmp_path / "run.json")).same
    with pytest.raises(UsageError, match=r"demo\.onnx: no such file, the model of run\.json; give it with --model"):
        rerun(told, "run.json")
    assert rerun(told, "run.json", model).same


def test_another_model_is_named_even_if_it_takes_the_same_time(model: Path) -> None:
    told = record(model)
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + 1, weight.name))
    onnx.save(proto, model)
    found = rerun(told, "run.json")
    assert (found.same, found.first, found.differs) == (False, "", ())
    assert len(found.changed) == 1
    assert found.changed[0].startswith(f"model: {model} is not what it was: SHA-256 ")


def test_another_device_takes_other_times_from_a_layer_on(model: Path) -> None:
    told = record(model)
    told["provenance"]["config"]["dram"]["latency"] += 1000
    found = rerun(told, "run.json")
    assert not found.same
    assert found.changed == ("device: keys were added since, or have another default now",)
    assert any(each.startswith("cycles is ") for each in found.differs)
    assert found.first.startswith("operator 'stem' at ")
    assert "start_ps is" in found.first


def test_other_versions_are_named(model: Path) -> None:
    told = record(model)
    told["provenance"]["versions"]["compiler"] = "0"
    found = rerun(told, "run.json")
    assert [change.partition(",")[2] for change in found.changed] == [" was 0"]
    assert found.same


def test_a_record_of_another_version_has_other_keys(model: Path) -> None:
    """Figures known to only one of the versions are not a difference; those known to both are."""
    told = record(model)
    del told["macs"]
    told["provenance"]["colour"] = 5
    told["provenance"]["fingerprint"] = "of other keys"
    assert not rerun(told, "run.json").same
    told["provenance"]["versions"]["npusim"] = "0.0.1"
    assert rerun(told, "run.json").same
    told["cycles"] += 1
    assert rerun(told, "run.json").differs == (f"cycles is {told['cycles'] - 1}, was {told['cycles']}",)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of JSON values that are not containers."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [leaf for key, each in items for leaf in leaves(each, (*path, key))]
    return below or [path]


def edited(value: Any) -> Any:
    """Return another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case dict():
            return {**value, "x": 1}
        case list():
            return [*value, 1]
        case _:
            return 1


def dotted(path: tuple[Any, ...]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)[1:]


def test_any_edit_of_what_a_rerun_can_compare_is_noticed(model: Path) -> None:
    told = record(model)
    found = rerun(told, "run.json").result.to_json_dict()
    now = json.loads(json.dumps(found))
    compared = 0
    for path in leaves(told):
        changed = json.loads(json.dumps(told))
        *above, last = path
        place = functools.reduce(operator.getitem, above, changed)
        place[last] = edited(place[last])
        exempt = any(dotted(path).startswith(each) for each in EXEMPT)
        assert bool(list(_differences(changed, now, False))) != exempt, dotted(path)
        compared += not exempt
        del place[last]
        assert exempt or list(_differences(changed, now, False)), dotted(path)
    assert compared > 500


@pytest.mark.parametrize("place", ["provenance", "", "provenance.model", "provenance.overrides", "energy"])
def test_an_edited_record_is_not_the_same(model: Path, place: str) -> None:
    """For every path: values exempt from the comparison are compared in another way, or listed as exempt."""
    told = record(model)
    unseen = {"compile_from_cache", "seed", "arithmetic", "config_origin", "digest_of_values", "simd"}
    unseen |= {"cache_rows"}  # is carried out, and this model has no caches
    table = functools.reduce(operator.getitem, filter(None, place.split(".")), told)
    for name in table:
        if name in {"config", "versions", "file", *unseen} or leaves(table[name])[0] != ():
            continue
        changed = json.loads(json.dumps(told))
        there = functools.reduce(operator.getitem, filter(None, place.split(".")), changed)
        there[name] = edited(there[name])
        try:
            assert not rerun(changed, "run.json").same, name
        except NpusimError:
            assert name in {"kind", "state", "input_shapes", "bind"}, name


def test_what_is_exempt_is_in_the_schema() -> None:
    schema = json.loads((Path(report.__file__).parent / "run.schema.json").read_text("utf-8"))
    for path in EXEMPT:
        part = schema
        for name in path.split("."):
            part = part["properties"][name]


def test_a_run_with_faults_cannot_be_had_again(model: Path) -> None:
    told = record(model)
    told["faults"] = [{"what": "throttle"}]
    with pytest.raises(UsageError, match="faults were injected, but their script is not in the file"):
        rerun(told, "run.json")


def test_a_device_that_is_not_valid_any_more(model: Path) -> None:
    told = record(model)
    told["provenance"]["config"]["dram"]["colour"] = 5
    with pytest.raises(ConfigError, match=r"the device of this run is not valid any more: run\.json: dram\.colour"):
        rerun(told, "run.json")


def test_a_device_with_more_keys_than_any_has(model: Path) -> None:
    told = record(model)
    told["provenance"]["config"].update({f"key{number}": number for number in range(5000)})
    with pytest.raises(ConfigError, match="the table of a device must have at most 32768 characters") as caught:
        rerun(told, "run.json")
    assert len(str(caught.value)) < 300


def test_shapes_and_bound_values_come_back(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], "reshape")
    twice = helper.make_node("Add", ["y", "y"], ["z"], "twice")
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph([node, twice], "g", [x, shape], [z])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    arrays = {"x": np.zeros((4, 8), np.float32), "shape": np.array([2, 16])}
    with Session(EDGE, cache_dir=False) as session:
        told = json.loads(json.dumps(session.run(path, arrays).to_json_dict()))
    assert told["provenance"]["model"]["bound"] == {"shape": "[2, 16]"}
    found = rerun(told, "run.json")
    assert found.same
    assert found.result.program.outputs[0].shape == (2, 16)


def test_values_of_any_type_pass_through_json() -> None:
    for value in (5, 0.5, [1, 2], True, np.float32(np.nan), np.array([np.inf, -0.0], np.float16)):
        origin = Origin("onnx", None, "", True, {}, {"x": value})
        with Session(EDGE, cache_dir=False) as session:
            result = session.run(network(), timing_only=True)
        result.origin = origin
        back = bound_value(json.loads(json.dumps(result.provenance, allow_nan=False))["model"]["bind"]["x"])
        assert np.asarray(back).dtype == np.asarray(value).dtype
        np.testing.assert_array_equal(np.asarray(back), np.asarray(value))


def test_a_compiled_program_and_weights_that_stay(tmp_path: Path, model: Path) -> None:
    config = EDGE.with_(**{"compiler.resident_weights": True})
    file = tmp_path / "demo.npu"
    with Session(config, cache_dir=False) as session:
        program = session.compile(model)
        assert program.resident_bytes
        write_program(program, file)
        session.run(program, timing_only=True)
        told = session.run(program, timing_only=True)
    assert told.residents_held
    record = json.loads(json.dumps(told.to_json_dict()))
    assert rerun(record, "run.json").same
    record["first"] = {"cycles": told.cycles}
    assert [each.partition(" ")[0] for each in rerun(record, "run.json").differs] == [
        "first.cycles", "first.time_ps", "first.dram_read_bytes", "first.dram_write_bytes",
    ]  # fmt: skip
    told.origin = Origin("program", str(file), digest_file(file))
    assert rerun(told.to_json_dict(), "run.json").same


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"provenance": None}, "has no provenance"),
        ({"provenance": {"config": 5}}, "provenance.config: must be an object"),
        ({"timeline_digest": 5}, "has no provenance"),
    ],
)
def test_a_record_that_says_too_little(model: Path, damage: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"^run\.json: {message}"):
        rerun({**record(model), **damage}, "run.json")
    told = record(model)
    told["provenance"]["state"] = True
    with pytest.raises(UsageError, match="from an earlier run"):
        rerun(told, "run.json")


def test_a_graph_in_memory_has_no_file() -> None:
    with Session(EDGE, cache_dir=False) as session:
        told = session.run(network(), timing_only=True).to_json_dict()
    assert told["provenance"]["model"]["kind"] == "graph"
    with pytest.raises(UsageError, match="the model was not a file"):
        rerun(told, "run.json")
