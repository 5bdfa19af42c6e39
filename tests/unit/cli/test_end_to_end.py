"""The command line on real models with the real runtime: valid and invalid input."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import jsonschema
import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

import npusim
from npusim import report
from npusim.cache import write_program
from npusim.cli.app import main
from npusim.program import Binding
from tests.support.cli import models
from tests.unit.cli.conftest import Cli

SCHEMA = json.loads((Path(report.__file__).parent / "run.schema.json").read_text("utf-8"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in an empty directory with its own cache and the model m.onnx."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "cache"))
    models.save(models.small(), tmp_path / "m.onnx")
    return tmp_path


def test_a_run_computes_reports_and_writes(cli: Cli, here: Path) -> None:
    x = np.random.default_rng(1).standard_normal((1, 2, 6, 6), np.float32)
    np.save("x.npy", x)
    options = ["--input", "x=x.npy", "--output-dir", "out", "--json", "run.json", "--trace", "run.perfetto-trace"]
    outcome = cli("run", "m.onnx", "--config", "tiny", *options)
    assert (outcome.code, outcome.err) == (0, "")
    wanted = onnxruntime.InferenceSession(models.small().SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(np.load("out/y.npy"), wanted, rtol=1e-5, atol=1e-5)
    found = json.loads((here / "run.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert found["model"] in outcome.out
    assert found["macs"] >= 1 * 3 * 6 * 6 * 2 * 9
    assert (here / "run.perfetto-trace").stat().st_size > 100
    for text in ("core0.matrix", "slowest", "conv1", "DRAM", "wrote out/y.npy"):
        assert text in outcome.out


def test_a_run_writes_a_page(cli: Cli, here: Path) -> None:
    outcome = cli("run", "m.onnx", "--config", "tiny", "--timing-only", "--html", "run.html")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith("wrote run.html\n")
    text = (here / "run.html").read_text("ascii")
    assert text.startswith("<!doctype html>")
    for part in ("conv1", "<dt>inputs</dt>", 'id="roofline"'):
        assert part in text
    assert cli("run", "m.onnx", "--config", "tiny", "--html", "nowhere/run.html").code == 2
    if Path("/dev/full").exists():
        full = cli("run", "m.onnx", "--config", "tiny", "--timing-only", "--html", "/dev/full")
        assert (full.code, full.message) == (1, "/dev/full: No space left on device")


def test_a_comparison_writes_a_page(cli: Cli, here: Path) -> None:
    change = ("--with", "dram.bandwidth='1 GB/s'")
    outcome = cli("compare", "m.onnx", "--config", "tiny", *change, "--html", "both.html")
    assert (outcome.code, outcome.err) == (0, "")
    assert "conv1" in (here / "both.html").read_text("ascii")
    assert cli("compare", "m.onnx", "--config", "tiny", *change, "--html", "nowhere/both.html").code == 2


def test_timing_alone_takes_the_same_time(cli: Cli) -> None:
    full = json.loads(cli("run", "m.onnx", "--config", "tiny", "--json", "-").out)
    timing = json.loads(cli("run", "m.onnx", "--config", "tiny", "--timing-only", "--json", "-").out)
    assert (timing["cycles"], timing["timeline_digest"]) == (full["cycles"], full["timeline_digest"])


def test_the_second_run_finds_the_program(cli: Cli) -> None:
    runs = [json.loads(cli("run", "m.onnx", "--json", "-").out)["compile_from_cache"] for _ in range(2)]
    assert runs == [False, True]
    listed = json.loads(cli("cache", "list", "--json", "-").out)
    assert len(listed) == 1
    assert Path(listed[0]["file"]).is_file()
    assert "removed 1 program" in cli("cache", "clear").out
    assert json.loads(cli("cache", "list", "--json", "-").out) == []
    assert json.loads(cli("run", "m.onnx", "--json", "-", "--no-cache").out)["compile_from_cache"] is False
    assert json.loads(cli("cache", "list", "--json", "-").out) == []


def test_compile_disasm_and_run_a_program(cli: Cli) -> None:
    compiled = cli("compile", "m.onnx", "--config", "tiny", "--json", "m.json")
    assert (compiled.code, compiled.err) == (0, "")
    sizes = json.loads(Path("m.json").read_text())
    lines = cli("disasm", "m.npu").out.splitlines()
    assert len(lines) == sizes["commands"] > 0
    some = cli("disasm", "m.npu", "--op", "conv1").out.splitlines()
    assert 0 < len(some) <= len(lines)
    assert set(some) <= set(lines)
    program = json.loads(cli("run", "m.npu", "--json", "-").out)
    model = json.loads(cli("run", "m.onnx", "--config", "tiny", "--json", "-").out)
    assert program["timeline_digest"] == model["timeline_digest"]


@pytest.mark.parametrize("name", ["model.txt", "model", "model.onnx"])
def test_a_program_is_known_by_its_content(cli: Cli, name: str) -> None:
    assert cli("compile", "m.onnx", "--config", "tiny", "-o", name).code == 0
    assert "conv1" in cli("disasm", name).out
    assert cli("explain", name, "--op", "conv1").code == 0
    outcome = cli("run", name)
    assert (outcome.code, outcome.err) == (0, "")
    assert "m on tiny" in outcome.out


def test_a_program_of_another_instruction_set(cli: Cli, here: Path) -> None:
    assert cli("compile", "m.onnx", "--config", "tiny").code == 0
    data = (here / "m.npu").read_bytes()
    (here / "m.npu").write_bytes(data[:12] + b"\x63" + data[13:])
    outcome = cli("run", "m.npu")
    assert outcome.code == 1
    assert outcome.message.startswith("m.npu: is for instruction set 99, this npusim has instruction set ")


def test_an_explanation_of_several_operators(cli: Cli) -> None:
    model = models.small()
    model.graph.node[1].op_type = "Conv"
    model.graph.node[1].input.append("w2")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32), "w2"))
    models.save(model, Path("two.onnx"))
    outcome = cli("explain", "two.onnx", "--config", "tiny", "--op", "1", "--json", "x.json")
    assert outcome.code == 0, outcome.err
    assert "the slowest of 2 such operators; the others: act1\n\nconv1 (conv) on tiny" in outcome.out
    assert json.loads(Path("x.json").read_text())["others"] == ["act1"]
    assert cli("explain", "two.onnx", "--op", "lstm").message.startswith("operator 'lstm' is not an operator of this")


def test_an_explanation_of_the_memory(cli: Cli) -> None:
    """It is compiled as by `run`, so places and times are the same."""
    outcome = cli("explain", "m.onnx", "--config", "tiny", "--memory", "--json", "memory.json")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("memory areas of the values of m on tiny\n")
    said = json.loads(Path("memory.json").read_text())
    run = json.loads(cli("run", "m.onnx", "--config", "tiny", "--timing-only", "--json", "-").out)
    assert (said["memory"], said["time_ps"]) == (run["memory"], run["time_ps"])
    assert [value["name"] for value in said["values"] if value["home"] == "input"] == ["x"]


def test_a_compiled_program_does_not_say_why(cli: Cli) -> None:
    assert cli("compile", "m.onnx", "--config", "tiny").code == 0
    outcome = cli("explain", "m.npu", "--memory")
    assert (outcome.code, outcome.message) == (
        2,
        "m.npu: a compiled program has no reasons; --memory needs its model",
    )


def test_an_open_dimension(cli: Cli) -> None:
    models.save(models.small(batch="M"), Path("open.onnx"))
    outcome = cli("run", "open.onnx", "--config", "tiny")
    assert outcome.code == 2
    assert "x" in outcome.message
    assert "--input-shape" in outcome.message
    assert cli("run", "open.onnx", "--config", "tiny", "--input-shape", "x=2,2,6,6").code == 0
    assert cli("run", "open.onnx", "--config", "tiny", "--input-shape", "z=2,2,6,6").code in (1, 2)
    assert cli("run", "open.onnx", "--config", "tiny", "--input-shape", "x=2,2,6").code in (1, 2)


def test_open_dimensions_come_from_arrays(cli: Cli) -> None:
    models.save(models.small(batch="N"), Path("open.onnx"))
    np.save("x.npy", np.ones((2, 2, 6, 6), np.float32))
    for given in ("x=x.npy", "x.npy"):
        outcome = cli("run", "open.onnx", "--config", "tiny", "--input", given, "--output-dir", "out")
        assert (outcome.code, outcome.err) == (0, "")
        assert "x float32[2, 2, 6, 6], from files" in outcome.out
        assert np.load("out/y.npy").shape == (2, 3, 6, 6)
    np.save("x.npy", np.ones((2, 2, 6, 5), np.float32))
    outcome = cli("run", "open.onnx", "--config", "tiny", "--input", "x=x.npy")
    assert outcome.message == "input 'x' must be float32[N, 2, 6, 6], got float32[2, 2, 6, 5]"


def test_a_declaration_that_is_not_so_is_a_warning(cli: Cli) -> None:
    model = models.small()
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    models.save(model, Path("odd.onnx"))
    outcome = cli("run", "odd.onnx", "--config", "tiny")
    assert outcome.code == 0
    problem = "'y' is declared as [1, 4, 6, 6] but computed as [1, 3, 6, 6]; the computed shape is used"
    assert outcome.err == f"npusim: warning: small: {problem}\n"


@pytest.mark.parametrize("command", ["run", "compile", "explain"])
def test_the_command_that_is_proposed_works(cli: Cli, command: str) -> None:
    """Exactly as in the message, including the options that were given."""
    models.save(models.branching(), Path("my model.onnx"))
    options = [*["--op", "Neg"][: 2 * (command == "explain")], "--config", "tiny", "--no-cache"]
    outcome = cli(command, "my model.onnx", *options)
    assert outcome.code == 2
    first, second, line = outcome.message.splitlines()
    assert first == "the model leaves input shapes open: 'x' is float32[n, m]; 'y' is float32[n]"
    wanted = "Give arrays (--input NAME=FILE.npy), or set it by hand:" if command == "run" else "Set it by hand:"
    assert second == wanted
    words = shlex.split(line)
    assert words[:3] == ["npusim", command, "my model.onnx"]
    assert words[-3:] == ["--input-shape=x=1,128", "--input-shape=y=1", "--bind=rate=16000"]
    assert cli(*words[1:]).code == 0
    outcome = cli(*words[1:-1])
    assert outcome.message.splitlines()[-1].split()[-1] == "--bind=rate=16000"
    assert "(If): input 0 must be a constant; it follows from input 'rate'" in outcome.message


def test_a_deciding_value_is_bound_and_told(cli: Cli) -> None:
    models.save(models.branching(), Path("b.onnx"))
    np.save("x.npy", np.float32([[1, -2], [3, -4]]))
    np.save("y.npy", np.float32([10, 20]))
    np.save("rate.npy", np.array(8000))
    arrays = ["--input", "x=x.npy", "--input", "y=y.npy"]
    by_array = cli("run", "b.onnx", "-c", "tiny", *arrays, "-i", "rate=rate.npy", "-o", "out", "--json", "run.json")
    assert (by_array.code, by_array.err) == (0, "")
    assert np.load("out/z.npy").tolist() == [[11, 10], [23, 20]]
    assert "from files, rate bound to 8000" in by_array.out
    told = json.loads(Path("run.json").read_text())
    jsonschema.validate(told, SCHEMA)
    assert told["bound"] == {"rate": "8000"}
    by_hand = cli("run", "b.onnx", "-c", "tiny", *arrays, "--bind", "rate=16000", "-o", "out")
    assert np.load("out/z.npy").tolist() == [[-1, 2], [-3, 4]]
    assert "rate bound to 16000" in by_hand.out
    twice = cli("run", "b.onnx", *arrays, "-i", "rate=rate.npy", "--bind", "rate=16000")
    assert (twice.code, twice.message) == (2, "--bind rate=...: input 'rate' has an array already")


def test_a_program_knows_what_it_is_bound_to(cli: Cli) -> None:
    models.save(models.branching(), Path("b.onnx"))
    options = ["--input-shape", "x=2,2", "--bind", "rate=16000"]
    outcome = cli("compile", "b.onnx", "-c", "tiny", *options, "--json", "b.json")
    assert "rate is    16000" in outcome.out
    assert "host work  1 operator, 0 MAC, before each run" in outcome.out
    assert json.loads(Path("b.json").read_text())["bound"] == {"rate": "16000"}
    assert "random with seed 0, rate bound to 16000" in cli("run", "b.npu").out
    outcome = cli("run", "b.npu", *options[2:])
    assert (outcome.code, outcome.message) == (2, "--bind: the inputs of a compiled program are fixed")
    np.save("x.npy", np.float32([[1, -2], [3, -4]]))
    np.save("y.npy", np.float32([10, 20]))
    np.save("rate.npy", np.array(8000))
    outcome = cli("run", "b.npu", "-i", "x=x.npy", "-i", "y=y.npy", "-i", "rate=rate.npy")
    assert outcome.message == "input 'rate' is bound to 16000 in this program, got 8000"


def test_every_unknown_operator_is_named(cli: Cli) -> None:
    models.save(models.unknown(), Path("unknown.onnx"))
    outcome = cli("run", "unknown.onnx")
    assert outcome.code == 1
    for text in ("act1", "Frobnicate", "act2", "Twiddle"):
        assert text in outcome.message


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, 2), (b"", 1), (b"just text\n" * 20, 1), (bytes(range(256)) * 4, 1), (b"\x7fELF" + bytes(200), 1)],
)
def test_what_is_not_a_model(cli: Cli, here: Path, content: bytes | None, code: int) -> None:
    if content is not None:
        (here / "bad.onnx").write_bytes(content)
    for command in ("run", "compile"):
        outcome = cli(command, "bad.onnx")
        assert outcome.code == code
        assert "bad.onnx" in outcome.message
    assert not (here / "bad.npu").exists()


@pytest.mark.parametrize("share", [0.2, 0.6, 0.98])
def test_a_truncated_model(cli: Cli, share: float) -> None:
    whole = models.small().SerializeToString()
    Path("cut.onnx").write_bytes(whole[: int(len(whole) * share)])
    outcome = cli("run", "cut.onnx")
    assert outcome.code == 1
    assert outcome.message


def test_a_directory_is_no_model(cli: Cli, here: Path) -> None:
    (here / "dir.onnx").mkdir()
    assert cli("run", "dir.onnx").code in (1, 2)
    assert cli("run", "dir.onnx").message


@pytest.mark.parametrize(
    ("array", "name", "message"),
    [
        (np.ones((1, 2, 6, 6), np.float32), "z", "no input 'z'; it has 'x'"),
        (np.ones((1, 2, 6, 5), np.float32), "x", "must be float32[1, 2, 6, 6], got float32[1, 2, 6, 5]"),
        (np.ones((1, 2, 6, 6)), "x", "must be float32[1, 2, 6, 6], got float64[1, 2, 6, 6]"),
        (np.full((1, 2, 6, 6), np.nan, np.float32), "x", "72 of 72 values in x.npy are NaN"),
    ],
)
def test_wrong_inputs(cli: Cli, here: Path, array: np.ndarray, name: str, message: str) -> None:
    np.save("x.npy", array)
    outcome = cli("run", "m.onnx", "--input", f"{name}=x.npy", "--json", "run.json", "--output-dir", "out")
    assert outcome.code == 2
    assert message in outcome.message
    assert not (here / "run.json").exists()
    assert not (here / "out").exists()


def damage(data: bytes) -> list[bytes]:
    """Return the data truncated, with one bit changed at several places, replaced, and extended."""
    flipped = [data[:i] + bytes([data[i] ^ 0x10]) + data[i + 1 :] for i in range(0, len(data), len(data) // 7)]
    return [b"", data[:20], data[: len(data) // 2], data[:-1], *flipped, b"PK\x03\x04" + data, data + b"\0"]


def test_a_damaged_program(cli: Cli, here: Path) -> None:
    assert cli("compile", "m.onnx", "--config", "tiny").code == 0
    whole = (here / "m.npu").read_bytes()
    for content in damage(whole):
        (here / "bad.npu").write_bytes(content)
        for command in (["run", "bad.npu", "--config", "tiny"], ["disasm", "bad.npu"]):
            outcome = cli(*command)
            assert outcome.code == 1
            assert "bad.npu" in outcome.message


def test_a_damaged_cache_file_is_compiled_anew(cli: Cli) -> None:
    first = json.loads(cli("run", "m.onnx", "--json", "-").out)
    file = Path(json.loads(cli("cache", "list", "--json", "-").out)[0]["file"])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    again = json.loads(cli("run", "m.onnx", "--json", "-").out)
    assert not again["compile_from_cache"]
    assert again["timeline_digest"] == first["timeline_digest"]
    assert file.read_bytes() == whole


def test_a_program_for_another_device(cli: Cli) -> None:
    assert cli("compile", "m.onnx", "--config", "tiny").code == 0
    for options in (["--config", "edge"], ["--set", "dma.channels=3"]):
        outcome = cli("run", "m.npu", *options)
        assert outcome.code == 2
        assert "m.npu: was compiled for a device called 'tiny' that is not this" in outcome.message


def test_a_program_for_a_device_of_ones_own(cli: Cli, here: Path) -> None:
    (here / "mine.toml").write_text('inherit = "tiny"\ndma.channels = 2\n')
    assert cli("compile", "m.onnx", "--config", "mine.toml").code == 0
    outcome = cli("run", "m.npu")
    assert outcome.code == 2
    assert "called 'mine', which does not come with npusim; give its description with --config FILE" in outcome.message
    assert cli("run", "m.npu", "--config", "mine.toml").code == 0


def test_a_program_that_is_missing(cli: Cli) -> None:
    for command in ("run", "disasm"):
        outcome = cli(command, "missing.npu")
        assert (outcome.code, outcome.message) == (2, "missing.npu: no such file")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_program_on_a_full_disk(cli: Cli) -> None:
    outcome = cli("compile", "m.onnx", "--output", "/dev/full")
    assert outcome.code == 1
    assert outcome.message == "/dev/full: No space left on device"
    assert os.path.exists("/dev/full")


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").write_text("no directory can be below a file")
    assert main(["run", "m.onnx", "--cache-dir", "file/cache"]) == 0
    warning = "npusim: warning: file/cache: the program is not kept: "
    assert capsys.readouterr().err.startswith(warning)
    assert (here / "file").read_text() == "no directory can be below a file"


def test_the_demo_agrees_with_the_reference(cli: Cli) -> None:
    outcome = cli("demo", "--config", "tiny")
    assert (outcome.code, outcome.err) == (0, "")
    assert "The outputs agree with the reference within" in outcome.out
    found = json.loads(cli("demo", "--config", "edge", "--json", "-").out)
    jsonschema.validate(found, SCHEMA)
    assert 0 <= found["difference"] <= 1e-5


def test_the_demo_leaves_a_model_to_go_on_with(cli: Cli, here: Path) -> None:
    outcome = cli("demo", "--config", "tiny", "--save", "demo.onnx")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith("\nwrote demo.onnx, image.npy\n")
    assert cli("run", "demo.onnx", "--config", "tiny", "--input", "image=image.npy").code == 0
    assert cli("demo", "--save", "nowhere/demo.onnx").message == "nowhere/demo.onnx: there is no directory nowhere"
    assert sorted(path.name for path in here.glob("*.onnx")) == ["demo.onnx", "m.onnx"]


def test_the_demo_can_fail(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from npusim.ops import reference

    def shifted(graph: object, inputs: object) -> dict[str, np.ndarray]:
        return {name: array + 1 for name, array in run(graph, inputs).items()}  # type: ignore[arg-type]

    run = reference.run
    monkeypatch.setattr(reference, "run", shifted)
    outcome = cli("demo", "--config", "tiny")
    assert outcome.code == 1
    assert "the outputs differ from the reference" in outcome.message


def test_the_library_and_the_command_agree(cli: Cli) -> None:
    session = npusim.Session(npusim.load_config("tiny"), cache_dir=False)
    result = session.run("m.onnx", timing_only=True)
    found = json.loads(cli("run", "m.onnx", "--config", "tiny", "--timing-only", "--json", "-").out)
    assert (found["cycles"], found["timeline_digest"]) == (result.cycles, result.timeline.digest())


def test_a_program_whose_inputs_fit_nowhere_is_refused_before_they_are_made(cli: Cli) -> None:
    program = npusim.Session("tiny", cache_dir=False).compile("m.onnx")
    (binding,) = program.inputs
    program.inputs = (Binding(binding.name, binding.region, (2**45,), binding.dtype),)
    sizes = list(program.region_bytes)
    sizes[binding.region] = 2**47
    program.region_bytes = tuple(sizes)
    write_program(program, Path("large.npu"))
    outcome = cli("run", "large.npu")
    assert outcome.code == 2
    assert outcome.message.startswith(f"large.npu: needs {sum(sizes)} bytes of DRAM, tiny has ")


def test_with_resident_weights_the_first_run_is_given_apart(cli: Cli) -> None:
    plain = json.loads(cli("run", "m.onnx", "--config", "tiny", "--timing-only", "--json", "-").out)
    assert "first" not in plain
    found = json.loads(cli("run", "m.onnx", "--config", "tiny", "--resident-weights", "--json", "-").out)
    jsonschema.validate(found, SCHEMA)
    assert found["residents_held"]
    assert found["cycles"] < plain["cycles"]
    assert found["cycles"] < found["first"]["cycles"]
    assert found["first"]["dram_read_bytes"] - found["dram_read_bytes"] >= found["resident_bytes"] > 0
    text = cli("run", "m.onnx", "--config", "tiny", "--set", "compiler.resident_weights=true").out
    assert "first run " in text
    assert "of weights, which stay in SRAM" in text


def test_a_program_file_keeps_what_it_keeps(cli: Cli) -> None:
    options = ["--config", "tiny", "--set", "compiler.resident_weights=true"]
    assert cli("compile", "m.onnx", *options, "-o", "m.npu").code == 0
    whole = json.loads(cli("run", "m.onnx", *options, "--timing-only", "--json", "-").out)
    again = json.loads(cli("run", "m.npu", *options, "--timing-only", "--json", "-").out)
    for name in ("cycles", "timeline_digest", "first", "resident_bytes", "ops"):
        assert again[name] == whole[name], name
    assert "residents" in cli("compile", "m.onnx", *options, "-o", "m.npu").out
