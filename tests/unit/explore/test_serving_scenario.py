"""Scenario files: valid contents, and a message for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.errors import ConfigError, UsageError
from npusim.explore.serving import arrivals
from npusim.explore.serving.scenario import ArrivalLoad, DecoderSource, read_scenario

MODELS = """
device = "edge"
seed = 3
until = "1 ms"
[[model]]
name = "a"
file = "a.onnx"
priority = "high"
rate = "1000/3"
shapes = { x = [1, 3] }
bind = { n = 4 }
[[model]]
name = "b"
file = "b.onnx"
every = "300 us"
"""
DECODER = """
until = "1 ms"
[decoder]
prefill = "p.onnx"
decode = "d.onnx"
rate = 1000
lengths = [16, 32]
contexts = [32, 64]
batches = [1, 4]
prompt = [1, 16]
output = 8
prefill_shapes = { ids = ["batch", "length"] }
decode_shapes = { ids = ["batch", 1], past = ["batch", 2, "context", 4] }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "s.toml"
    path.write_text(text)
    return path


def test_models(tmp_path: Path) -> None:
    found = read_scenario(write(tmp_path, MODELS))
    first, second = found.models
    assert (found.device, found.seed, found.until_ps, found.method) == ("edge", 3, 10**9, "rings")
    assert (first.priority, first.shapes, first.bind, str(first.rate)) == ("high", {"x": (1, 3)}, {"n": 4}, "1000/3")
    assert (second.priority, second.every_ps, second.rate) == ("medium", 3 * 10**8, None)
    assert arrivals.times(second, found.until_ps, 0, "b", tmp_path) == [0, 3 * 10**8, 6 * 10**8, 9 * 10**8]


def test_a_decoder(tmp_path: Path) -> None:
    decoder = read_scenario(write(tmp_path, DECODER)).decoder
    assert decoder is not None
    assert (decoder.lengths, decoder.prompt, decoder.output) == ((16, 32), (1, 16), (8, 8))
    assert decoder.decode_shapes["past"] == ("batch", 2, "context", 4)
    asks = arrivals.prompts(decoder, 10**11, 5, tmp_path)
    assert 50 < len(asks) < 150
    assert {output for _, _, output in asks} == {8}
    assert {prompt for _, prompt, _ in asks} == set(range(1, 17))
    assert asks == arrivals.prompts(decoder, 10**11, 5, tmp_path)
    assert asks != arrivals.prompts(decoder, 10**11, 6, tmp_path)


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (MODELS, "seed = 3", "sed = 3", r"sed: unknown key \(did you mean 'seed'\?\)"),
        (MODELS, 'until = "1 ms"', "", "until: missing"),
        (MODELS, "every", "evry", r"model\[1\]\.evry: unknown key"),
        (MODELS, 'every = "300 us"', "", r"model\[1\]: must have one of rate, every and trace"),
        (MODELS, 'every = "300 us"', 'every = "1 us"\nrate = 5', r"model\[1\]: must have one of rate, every and trace"),
        (MODELS, 'name = "b"', 'name = "a"', "model: names must be unique: 'a'"),
        (MODELS, '"high"', '"urgent"', "priority: must be one of low, medium, high, got 'urgent'"),
        (MODELS, "[1, 3]", '["batch", 3]', r"shapes\.x: must be whole numbers, got 'batch'"),
        (DECODER, '"length"', '"len"', r"prefill_shapes\.ids: unknown key"),
        (DECODER, "[16, 32]", "[32, 16]", r"decoder\.lengths: must be increasing whole numbers"),
        (DECODER, "[1, 16]", "[1, 2, 3]", r"decoder\.prompt: must be a whole number, or a minimum and a maximum"),
        (
            DECODER,
            "output = 8",
            "",
            r"decoder\.output: missing; must be given: a whole number, or a minimum and a maximum",
        ),
        (DECODER, "output = 8", 'output = 8\ntrace = "t.csv"', r"decoder\.prompt: must not be given with a trace"),
        (DECODER, "[decoder]", "[decoders]", "decoders: unknown key"),
        (MODELS, "[[model]]", "[decoder]", "."),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, old: str, new: str, message: str) -> None:
    assert old in text
    with pytest.raises(ConfigError, match=message):
        read_scenario(write(tmp_path, text.replace(old, new, 1)))


def test_a_file_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_scenario(tmp_path / "no.toml")


def test_traces(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,prompt,output\n2 us,5,6\n1000000,3,4\n9 ms,1,1\n")
    load = ArrivalLoad(name="m", file="m.onnx", trace="t.csv")
    assert arrivals.times(load, 10**9, 0, "m", tmp_path) == [10**6, 2 * 10**6]
    lines = [
        line for line in DECODER.splitlines() if line.partition(" ")[0] not in ("rate", "every", "prompt", "output")
    ]
    told = "\n".join(lines).replace("[decoder]", '[decoder]\ntrace = "t.csv"')
    decoder = read_scenario(write(tmp_path, told)).decoder
    assert decoder is not None
    assert arrivals.prompts(decoder, 10**9, 0, tmp_path) == [(10**6, 3, 4), (2 * 10**6, 5, 6)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("when\n1\n", "must have a column time; there are when"),
        ("", "must have a column time; there are none"),
        ("time,prompt,output\n1,2,x\n", "line 2: output: must be a whole number of 1 or more, got 'x'"),
        ("time,prompt,output\n1,0,1\n", "line 2: prompt: must be a whole number of 1 or more, got '0'"),
        ("time,prompt,output\n1,1,1\n2\n", "line 3: prompt: must be a whole number of 1 or more, got None"),
        ("time,prompt,output\nsoon,1,1\n", "line 2: time: must be "),
        ("prompt,time,output\n1\n", "line 2: time: must be "),
        ("time,prompt\n1,1\n", "must have a column output; there are time, prompt"),
    ],
)
def test_traces_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        arrivals.prompts(DecoderSource(prefill="p", decode="d", trace="t.csv"), 10**9, 0, tmp_path)


def test_too_many_requests_and_a_trace_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than 1000000 requests"):
        arrivals.times(ArrivalLoad(name="m", file="m", every_ps=1), 10**12, 0, "m", tmp_path)
    with pytest.raises(UsageError, match=r"t\.csv: no such file"):
        arrivals.times(ArrivalLoad(name="m", file="m", trace="t.csv"), 10**12, 0, "m", tmp_path)
