"""Space files: their contents, and all errors in one message."""

from __future__ import annotations

import json
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from npusim.demo import as_onnx
from npusim.errors import ConfigError, NpusimError, UsageError
from npusim.explore import make_space, read_space
from npusim.explore.schema import SCHEMA, json_schema
from npusim.explore.workloads import Workload
from npusim.hw.config import load_config
from tests.support.explore_designs import small_model, space

ROOT = Path(__file__).resolve().parents[3]
GOOD = """
name = "two"
base = ["edge", "mobile"]
objectives = ["latency", "latency('mob/large') * energy"]
constraints = ["area <= 2.5 mm2", "latency('demo') <= 20 ms and power < 3 W", "dram.bandwidth <= 16 GB/s"]

[set]
technology.node = "22 nm"
area.phy = "0.5 mm2"

[vary]
matrix.rows = { from = 8, to = 64, times = 2 }
dram.bandwidth = { from = "4 GB/s", to = "17 GB/s", step = "4 GB/s" }
matrix.dataflow = ["weight_stationary", "output_stationary"]
dram.efficiency = [1, "1/2"]
width = ["1 KiB", "2 KiB"]

[derive]
matrix.cols = "rows"
sram.bytes = "max(256 KiB, 4 * sram.banks * width)"

[search]
method = "halving"
budget = 100
seed = 7

[[model]]
name = "demo"
file = "demo.onnx"
weight = 3

[[model]]
name = "mob"
network = "mobilenet_v2"
shape = [1, 32, 32, 3]
variant = [{ name = "small" }, { name = "large", shape = [1, 64, 64, 3], weight = "1/2" }]
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "demo.onnx").write_bytes(as_onnx())
    path = tmp_path / "space.toml"
    path.write_text(GOOD)
    return path


def test_a_space_file_says_which_designs_there_are(good: Path) -> None:
    found = read_space(good)
    assert found.name == "two"
    assert found.size == 2 * 4 * 4 * 2 * 2 * 2
    first, last = found.config(0), found.config(found.size - 1)
    assert (first.matrix.rows, first.matrix.cols, first.dram.bandwidth) == (8, 8, 4 * 10**9)
    assert (last.matrix.rows, last.matrix.cols, last.dram.bandwidth) == (64, 64, 16 * 10**9)
    assert last.matrix.dataflow == "output_stationary"
    assert (first.dram.efficiency, last.dram.efficiency) == (1, Fraction(1, 2))
    assert first.sram.bytes == 256 << 10
    assert last.sram.bytes == max(256, 4 * last.sram.banks * 2) << 10
    assert [(each.name, each.weight) for each in found.workloads] == [
        ("demo", 3), ("mob/small", 1), ("mob/large", Fraction(1, 2)),
    ]  # fmt: skip
    assert found.search.seed == 7
    assert [axis.ordered for axis in found.axes] == [True, False, True, False, True]


def test_a_design_is_its_number(good: Path) -> None:
    found = read_space(good)
    for number in (0, 1, 17, found.size - 1):
        assert found.number(found.places(number)) == number
    with pytest.raises(UsageError, match="there is no design 256; the space has 0 to 255"):
        found.config(found.size)


def test_a_design_that_is_written_out_is_the_same_device(good: Path, tmp_path: Path) -> None:
    found = read_space(good)
    (tmp_path / "design.toml").write_text(found.config(33).to_toml())
    assert load_config(tmp_path / "design.toml").fingerprint() == found.config(33).fingerprint()


def test_the_schema_of_space_files_is_one_and_current(good: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.validate(tomllib.loads(GOOD), json_schema())
    assert json.loads((ROOT / "docs/reference" / SCHEMA).read_text("utf-8")) == json_schema()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**tomllib.loads(GOOD), "bse": 3}, json_schema())


def problems(text: str, folder: Path = Path()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        make_space(tomllib.loads(text), "space.toml", folder)
    return list(caught.value.problems)


def test_every_mistake_is_in_one_message() -> None:
    found = problems('bse = "edge"\n' + SECOND + '[search]\nbudget = "much"\n')
    # The contents of the tables are only checked if everything they need is present.
    assert found[0].startswith("space.toml: bse: unknown key (did you mean 'base'?)")
    assert any(line.startswith("space.toml: search.budget: must be a whole number, got 'much'") for line in found)


SECOND = """
base = ["edge", "mobil"]
objectives = ["latncy", "area + latency", "matrix.rows"]
constraints = ["area <= 20 ms", "latency('x') <= 1 ms", "area", "__import__('os')"]
[set]
technology.nod = "22 nm"
[vary]
matrix.row = [8]
matrix.cols = []
dram.bandwidth = { from = 4, to = "8 GB/s", step = "1 GB/s" }
dram.latency = { from = "4 ns", to = "8 ns" }
sram.bytes = ["1 MiB", "1024 KiB"]
matrix.dataflow = { from = 1, to = 2, step = 1 }
sram.banks = [0, 8]
unused = [1, 2]
[derive]
vector.lanes = "scalar.setup_cycles +"
matrix.arrays = "sram.banks * 2 KiB"
dma.channels = "queue_depth"
queue_depth = "dma.channels"
[[model]]
network = "mobilenet_v3"
shape = [1, 32, 32, 3]
[[model]]
file = "nothing.onnx"
[[model]]
network = "mobilenet_v2"
"""


@pytest.mark.parametrize(
    "line",
    [
        "base: mobil: no such config (did you mean 'mobile'?)",
        "objectives.1: unknown name 'latncy' (did you mean 'latency'?)",
        "objectives.2: must not put an area beside a time: 'area + latency'",
        "objectives.3: must have a figure of latency, cycles",
        "constraints.1: must not put an area beside a time: 'area <= 20 ms'",
        "constraints.2: latency(...) must name a model",
        "constraints.3: must be a comparison such as 'area <= 2.5 mm2', got 'area'",
        "constraints.4: must not call",
        "set.technology.nod: unknown key (did you mean 'node'?)",
        "vary.matrix.row: unknown key (did you mean 'rows'?)",
        "vary.matrix.cols: must have at least one value, got []",
        "vary.dram.bandwidth: from: must be a bandwidth such as '25.6 GB/s', got 4",
        "vary.dram.latency: must have either step, which",
        "vary.sram.bytes: must have each value once, got '1024 KiB' again",
        "vary.matrix.dataflow: must be a list: a range needs a key with numbers",
        "vary.sram.banks: must be >= 1, got 0",
        "vary.unused: unknown key",
        "derive.vector.lanes: is not a formula: 'scalar.setup_cycles +'",
        "derive.matrix.arrays: must be a plain number, got a size",
        "derive.dma.channels: must not depend on itself",
        "model.1.network: no such network 'mobilenet_v3' (did you mean 'mobilenet_v",
        "model.2.file: no such file: nothing.onnx",
        "model.3.shape: missing; must be given for a network",
    ],
)
def test_each_mistake_says_key_value_and_what_was_allowed(line: str) -> None:
    found = problems(SECOND)
    assert len(found) >= 23
    assert any(each.startswith(f"space.toml: {line}") for each in found), found


def test_keys_that_nothing_depends_on_hide_no_mistake_of_others() -> None:
    found = problems(SECOND + "[search]\nbudget = 0\n[serach]\n")
    assert found[0].startswith("space.toml: serach: unknown key (did you mean 'search'?)")
    assert found[1] == "space.toml: search.budget: must be >= 1, got 0"
    assert found[2:] == problems(SECOND)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "vary.matrix.cols = [8, 16]\nderive.matrix.cols = 'rows'",
            "vary.matrix.cols: must be in [vary] or in [derive], not in both",
        ),
        ("objectives = ['latency', 'area', 'latency']", "objectives.3: must occur once, got 'latency' again"),
        (
            "vary.clock = { from = '1 GHz', to = '2 GHz', stepp = '1 GHz' }",
            "vary.clock: stepp: unknown key (did you mean 'step'?)",
        ),
        (
            "constraints = ['latency(demo) < 1 ms']",
            "constraints.1: latency(...) must name a model in quotes: one of 'mobilenet_v1'; got 'latency(demo)'",
        ),
    ],
)
def test_slips_of_the_pen(text: str, line: str) -> None:
    model = "\n[[model]]\nnetwork = 'mobilenet_v1'\nshape = [1, 32, 32, 3]\n"
    found = problems(f"base = 'edge'\n{text}{model}")
    assert any(each.startswith(f"space.toml: {line}") for each in found), found


def test_a_model_is_a_file_or_a_network(tmp_path: Path) -> None:
    for line, got in (("file = 'a.onnx'\nnetwork = 'vgg16'", "both"), ("name = 'none'", "neither")):
        (found,) = problems(f"base = 'edge'\n[[model]]\n{line}", tmp_path)
        assert found == (
            "space.toml: model.1.file: must be given, or network, not both: what runs is one of them; got " + got
        )


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "a\\u0000b", "", "/dev/zero"])
def test_names_that_no_file_has(name: str) -> None:
    (problem,) = problems(f'base = "edge"\n[[model]]\nname = "m"\nfile = "./{name}"')
    assert problem.startswith("space.toml: model.1.file: ")
    assert len(problem) < 300
    found = problems(f'base = "{name}.toml"\n[[model]]\nfile = "nowhere"')
    assert all(each.startswith("space.toml: ") for each in found)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.toml: no such file"):
        read_space(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("a = = 3")
    with pytest.raises(ConfigError, match=r"bad.toml: not valid TOML"):
        read_space(tmp_path / "bad.toml")
    assert problems('base = "edge"\nmodel = []') == ["space.toml: model: must have at least one table [[model]]"]


CHAIN = "z0 = 'rows**8'\n" + "\n".join(f"z{i} = 'z{i - 1}**8 * z{i - 1}**8'" for i in range(1, 10))
HEAD = "base = 'tiny'\n[[model]]\nnetwork = 'mobilenet_v2'\nshape = [1, 32, 32, 3]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[vary]\nmatrix.rows = [4]\n[derive]\n{CHAIN}", "derive.z1: may become too large"),
        ("[derive]\nz = '" + "(" * 12 + "2**8" + ")**8" * 12 + "'", "derive.z: may become too large"),
        ("[vary]\nz = {from = '1e999999999', to = '2e999999999', step = 1}", "vary.z: from: must be a number"),
        ("[vary]\nz = {from = 1, to = '1e99999999', times = 2}", "vary.z: to: must be a number"),
        ("[vary]\nz = {from = 1, to = 3, times = '1." + "0" * 60 + "1'}", "vary.z: times: must be a number"),
        ("[vary]\nz = {from = 1.0, to = 1e308, times = 1.19}", "vary.z: must meet numbers up to"),
        ("[vary]\nz = {from = 1, to = 1e308, times = 1e300}", "vary.z: must meet numbers up to"),
        ("[vary]\nz = {from = 1, to = 5000, step = 1}", "vary.z: must have at most 4096 values"),
        ("[vary]\nz = [1" + "_1" * 4000 + "]", "not valid TOML: an integer has too many digits"),
        ("[vary]\nsram.bytes = ['1" + "_1" * 4000 + " B']", "vary.sram.bytes: must be a size such as"),
        ("[derive]\n" + "\n".join(f"z{i} = 1" for i in range(300)), "vary: must have at most 256 keys"),
        (
            "[vary]\n" + "\n".join(f"z{i} = {{from = 1, to = 4096, step = 1}}" for i in range(6)),
            "vary: must have at most 2^63 - 1 designs, got some 2^72",
        ),
        ("[vary]\nz = {from = nan, to = inf, step = 1}", "vary.z: from: must be a number"),
        ("[vary]\nscalar = [{cycles_per_element = nan}]", "vary.scalar: must be a table of finite numbers"),
        ("[vary]\nscalar = [{cycles_per_element = 1979-05-27}]", "vary.scalar: must be a table of finite numbers"),
        ("[vary]\nz = [1979-05-27]", "vary.z: must be a number or a fraction"),
    ],
    ids=lambda value: value[:30],
)
def test_arithmetic_has_a_budget(text: str, said: str, tmp_path: Path) -> None:
    """Each is refused while the file is read, before anything is computed."""
    path = tmp_path / "space.toml"
    own = " + ".join(f"z{i}" for i in range(9))
    path.write_text(f"constraints = ['{own} > 1', 'z > 1']\n{HEAD}{text}\n")
    with pytest.raises(ConfigError) as caught:
        read_space(path)
    assert any(f"{path}: {said}" in problem for problem in caught.value.problems), caught.value.problems


def test_a_chain_of_many_derived_keys_is_read_in_order() -> None:
    derive = {f"z{i}": f"z{i + 1} + 1" for i in range(200)} | {"z200": "1", "matrix.cols": "z0"}
    assert space({"matrix.rows": [8]}, derive=derive).config(0).matrix.cols == 201


@pytest.mark.parametrize(
    ("formula", "values", "wanted"),
    [
        ("rows", {}, 8), ("2 * rows + 1", {}, 17), ("ceil(rows / 3)", {}, 3), ("floor(rows / 3)", {}, 2),
        ("min(rows, 5)", {}, 5), ("sram.bytes / 128 KiB", {}, 8), ("rows ** 2", {}, 64),
        ("dram.bandwidth / clock / 1 B", {}, 8), ("-rows + 10", {}, 2), ("1.5 * rows", {}, 12),
    ],
)  # fmt: skip
def test_formulas_are_exact(formula: str, values: dict[str, Any], wanted: int) -> None:
    vary = {"matrix.rows": [8], "sram.bytes": ["1 MiB"], "dram.bandwidth": ["8 GB/s"]}
    assert space(vary, derive={"vector.lanes": formula}).config(0).vector.lanes == wanted


def test_a_formula_that_gives_no_value_of_its_key_is_a_design_that_cannot_be_built() -> None:
    found = space({"matrix.rows": [8, 9]}, derive={"matrix.cols": "rows / 2"})
    assert found.config(0).matrix.cols == 4
    with pytest.raises(ConfigError, match=r"matrix.cols: must be a whole number"):
        found.config(1)


def test_optional_parts_are_switched_and_tables_replaced() -> None:
    found = space({"scalar": [False, {"cycles_per_element": 9}], "matrix.throughput.int8": [1, 2]})
    assert found.config(0).scalar is None
    assert found.config(3).scalar.cycles_per_element == 9
    assert found.config(3).matrix.rate("int8") == 2


def test_formulas_name_variables_of_the_file() -> None:
    found = space(
        {"sram.bytes": ["256 KiB", "1 MiB"], "share": [1, "1/2"], "pace": ["1 GHz", "2 GHz"]},
        base=["edge", "mobile"],
        derive={"matrix.rows": "32 * share", "clock": "pace", "half": "bytes / 2", "pes": "matrix.rows * vector.lanes"},
        constraints=["half <= 512 KiB", "share <= 1", "pes <= 1 "],
    )
    last = found.config(found.size - 1)
    assert (last.matrix.rows, last.clock_hz) == (16, 2 * 10**9)
    names = found.names(found.size - 1, last)
    assert (names["half"], names["share"], names["pace"]) == (512 << 10, Fraction(1, 2), 2 * 10**9)
    # Of the design's own base, not of the first one.
    assert names["pes"] == 16 * load_config("mobile").vector.lanes != 16 * load_config("edge").vector.lanes
    assert found.axes[2].toml == ("1 GHz", "2 GHz")


nan = float("nan")


@pytest.mark.parametrize(
    ("condition", "lacking"),
    [
        ("l2.bytes <= 1 MiB", nan), ("ceil(l2.bytes / 3 B) <= 1", nan), ("rows <= 4", 1.0),
        ("l2.bytes <= 1 MiB or rows <= 8", 0.0), ("l2.bytes <= 1 MiB or rows <= 4", nan),
        ("l2.bytes <= 1 MiB and rows <= 8", nan), ("l2.bytes <= 1 MiB and rows <= 4", 1.0),
        ("matrix.dataflow == 'weight_stationary' or rows <= 4", 0.0), ("compiler.keeps_values == False", 1.0),
    ],
)  # fmt: skip
def test_what_is_unknown_decides_nothing_that_is_known(condition: str, lacking: float) -> None:
    found = space({"matrix.rows": [8]}, constraints=[condition])
    names = found.names(0, found.config(0))
    (formula,) = found.constraints
    assert formula(names) == pytest.approx(lacking, nan_ok=True)
    columns = {
        key: np.array([nan] * 3 if value is None else [value] * 3, None if isinstance(value, int) else object)
        for key, value in names.items()
    }
    columns["l2.bytes"] = np.full(3, nan)
    assert np.broadcast_to(formula(columns), 3) == pytest.approx(np.full(3, lacking), nan_ok=True)


def test_models_of_python_need_no_file() -> None:
    found = make_space({"base": ["tiny", "edge"]}, given=[small_model()])
    assert found.size == 2
    assert [found.config(number).name for number in (0, 1)] == ["tiny", "edge"]


@pytest.mark.parametrize("shape", [(), (1,), (1, 32, 32), (1,) * 40, (0, 0, 0), (1, 10**30, 1)])
@pytest.mark.parametrize("network", ["mobilenet_v2", "wav2letter", "rnnoise", "yolov5n", "micronet_ad_m", "densenet"])
def test_a_network_of_a_wrong_shape_is_refused_in_words(network: str, shape: tuple[int, ...]) -> None:
    try:
        graph = Workload("n", network=network, shape=shape).load(load_config("tiny"))
    except NpusimError as error:
        assert str(error)  # noqa: PT017 - some shapes are those of some network
    else:
        assert graph.inputs[0].shape == shape
