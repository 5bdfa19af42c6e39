"""Files generated from the definition are up to date and agree with the loader."""

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from npusim.errors import ConfigError
from npusim.hw.config import list_configs, load_config
from npusim.hw.files import config_folder
from npusim.hw.schema import json_schema, main, markdown

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_the_committed_files_are_up_to_date():
    assert (REFERENCE / "config.md").read_text(encoding="utf-8") == markdown()
    assert json.loads((REFERENCE / "config.schema.json").read_text(encoding="utf-8")) == json_schema()


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    main(["--write", str(tmp_path / "new")])
    main(["--markdown"])
    assert capsys.readouterr().out == (tmp_path / "new" / "config.md").read_text(encoding="utf-8")
    main(["--json-schema"])
    assert capsys.readouterr().out == (tmp_path / "new" / "config.schema.json").read_text(encoding="utf-8")


def test_the_manual_has_every_key():
    text = markdown()
    for key, _, _, meaning in load_config("edge").resolved():
        assert f"| `{key}` |" in text
        assert meaning in text


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("name", list_configs())
def test_the_schema_accepts_every_shipped_device(name):
    text = (Path(config_folder()) / f"{name}.toml").read_text(encoding="utf-8")
    VALIDATOR.validate(tomllib.loads(text))
    VALIDATOR.validate(tomllib.loads(load_config(name).to_toml()))


CHANGES = [
    ("matrix.rows", 0),
    ("matrix.rows", "8"),
    ("matrix.rows", 1 << 30),
    ("matrix.row", 8),
    ("matrix.dataflow", "none"),
    ("matrix.throughput", {"int4": 1}),
    ("matrix.throughput", {"int8": "1/0"}),
    ("matrix.throughput", {"int8": -1}),
    ("matrix.preload_hidden", 1),
    ("matrix.clock", 5),
    ("vector.lane_bytes", 3),
    ("vector.cost", {"simple": 0}),
    ("clock", "1 GB/s"),
    ("sram.bytes", "1 Mebibyte"),
    ("sram", False),
    ("dram.kind", "unknown"),
    ("dram.efficiency", 2),
    ("dram.efficiency", "half"),
    ("turbo", True),
]


@pytest.mark.parametrize(("key", "value"), CHANGES)
def test_schema_and_loader_refuse_the_same(key, value):
    description = tomllib.loads(load_config("tiny").to_toml())
    VALIDATOR.validate(description)
    place = description
    *above, last = key.split(".")
    for name in above:
        place = place[name]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(description)
    with pytest.raises(ConfigError):
        load_config("tiny").with_(**{key: value})


@pytest.mark.parametrize("key", ["clock", "sram", "matrix.rows", "matrix.throughput", "dram.bytes"])
def test_required_keys_are_required_unless_inherited(key):
    description = tomllib.loads(load_config("tiny").to_toml())
    place = description
    *above, last = key.split(".")
    for name in above:
        place = place[name]
    del place[last]
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(description)
    VALIDATOR.validate({"inherit": "tiny", **description})
