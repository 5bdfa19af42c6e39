"""Fits of descriptions: coordinates of all keys, sources, recovered values, intervals, indistinguishable keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from npusim.compiler.schedule.prepared import PreparedGraph
from npusim.errors import InputError, UsageError
from npusim.explore.evaluate import simulate
from npusim.explore.fit.parameters import comments_of, free_keys, numeric_keys
from npusim.explore.fit.points import MeasuredPoint, read_points
from npusim.explore.fit.solve import Fit, fit
from npusim.explore.fit.text import as_json, fitted_toml, text
from npusim.hw.config import Config, list_configs, load_config
from npusim.ops.build import GraphBuilder
from npusim.units import parse

LAYERS = """model,shape,channels,kernel,stride,time_us
conv,1x8x8x8,8,3,1,1
conv,1x8x8x16,32,1,1,1
depthwise,1x8x8x16,,3,2,1
dense,1x64,32,,,1
add,1x8x8x8,,,,1
maxpool,1x8x8x8,,2,2,1
"""
KEYS = ("dram.bandwidth", "dram.latency")


def points_file(folder: Path, lines: str = LAYERS) -> Path:
    path = folder / "points.csv"
    path.write_text(lines, encoding="utf-8")
    return path


def simulated(points: list[MeasuredPoint], config: Config) -> list[MeasuredPoint]:
    """Return the points with a device's simulated times as the measured ones."""
    return [MeasuredPoint(each.name, each.graph, each.simulated_ps(config), each.scope) for each in points]


def result_of(found: Fit, key: str) -> tuple[str, str]:
    fitted = next(each for each in found.keys if each.key == key)
    return fitted.value, fitted.problem


def _refuse(name: str, problem: str) -> None:
    raise AssertionError(f"{name}: {problem}")


@pytest.mark.parametrize("name", list_configs())
def test_a_coordinate_stands_for_one_legal_value(name: str) -> None:
    config = load_config(name)
    for key in numeric_keys(config):
        if key.given == 0 and not key.offset:
            continue
        assert key.value(key.coordinate(key.given)) == key.given, key.key
        low, high = key.bounds
        assert low <= key.coordinate(key.given) <= high, key.key
        for at in (*np.linspace(low - 1, high + 1, 5), -1e9, 1e9):
            value = key.value(at)
            assert key.kind.read(key.kind.raw(value), _refuse, True) == value, (key.key, at)


@pytest.mark.slow
def test_values_of_a_description_are_found_again(tmp_path: Path) -> None:
    truth = load_config("tiny")
    given = truth.with_(**{"dram.bandwidth": truth.dram.bandwidth * 3, "dram.latency": truth.dram.latency_ps // 4})
    points = simulated(read_points(points_file(tmp_path), truth), truth)
    found = fit(given, points, free_keys(given, KEYS))
    for key, want in zip(found.keys, (truth.dram.bandwidth, truth.dram.latency_ps), strict=True):
        kind = next(each.kind for each in numeric_keys(truth) if each.key == key.key)
        assert parse(key.value.strip('"'), kind.dimension) == pytest.approx(want, rel=0.01)
    assert max(map(abs, found.errors)) < 0.001 < max(map(abs, found.given_errors))
    assert max(map(abs, found.left_out)) < 0.001
    assert "0.0% fitted" in text(found)
    assert len(as_json(found)["points"]) == len(points)


@pytest.mark.slow
def test_intervals_from_noisy_layers_hold_the_true_value(tmp_path: Path) -> None:
    truth = load_config("tiny")
    given = truth.with_(**{"dram.latency": truth.dram.latency_ps // 2})
    exact = simulated(read_points(points_file(tmp_path), truth), truth)
    keys = free_keys(given, ("dram.latency",))
    held = 0
    for seed in range(8):
        noise = np.exp(0.05 * np.random.default_rng(seed).standard_normal(len(exact)))
        points = [
            MeasuredPoint(each.name, each.graph, each.measured_ps * float(factor), each.scope)
            for each, factor in zip(exact, noise, strict=True)
        ]
        (fitted,) = fit(given, points, keys).keys
        low, high = (parse(end.strip('"'), keys[0].kind.dimension) for end in (fitted.low, fitted.high))
        held += low <= truth.dram.latency_ps <= high
    assert held >= 7


@pytest.mark.slow
def test_estimates_and_processes_do_not_change_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = load_config("tiny")
    given = truth.with_(**{"dram.latency": truth.dram.latency_ps * 3})
    points = simulated(read_points(points_file(tmp_path), truth), truth)
    keys = free_keys(given, ("dram.latency",))
    one, two = (fit(given, points, keys, jobs) for jobs in (1, 2))
    assert (one.keys, one.errors, one.left_out, one.devices) == (two.keys, two.errors, two.left_out, two.devices)
    monkeypatch.setattr("npusim.explore.estimate.Estimator.varies", lambda *_: False)
    simulated_only = fit(given, points, keys)
    assert simulated_only.keys[0].value == one.keys[0].value
    assert one.devices < simulated_only.devices + 8


def test_points_of_one_model_and_devices_that_differ_in_the_host_are_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = load_config("tiny")
    lines = "model,time_us,shape,scope\nadd,1,1x8x8x4,device\nadd,2,1x8x8x4,device\nadd,3,1x8x8x4,host\n"
    points = read_points(points_file(tmp_path, lines), truth)
    runs = []
    monkeypatch.setattr("npusim.explore.fit.points.simulate", lambda *args: (runs.append(args), simulate(*args))[1])
    for config in (truth, truth.with_(**{"host.irq": "5 ms"})):
        for point in points:
            point.simulated_ps(config)
    # One for the device, and one for each host.
    assert len(runs) == 3


@dataclass(frozen=True)
class Formula(MeasuredPoint):
    """A point whose time is a formula of the description, which is cheap to evaluate."""

    nbytes: int = 0
    jobs: int = 0

    def simulated_ps(self, config: Config) -> int:
        rate = config.dram.bandwidth * config.dram.efficiency
        return round(self.nbytes / rate * 1e12) + self.jobs * config.dram.latency_ps


def formulas(config: Config, noise: float, seed: int, count: int = 24) -> list[MeasuredPoint]:
    graph = PreparedGraph(GraphBuilder("none").finish([]))
    rng = np.random.default_rng(seed)
    points: list[MeasuredPoint] = []
    for number in range(count):
        nbytes, jobs = int(rng.integers(1, 1 << 20)), int(rng.integers(1, 400))
        exact = Formula(f"p{number}", graph, 1.0, "device", nbytes, jobs).simulated_ps(config)
        measured = exact * float(np.exp(noise * rng.standard_normal()))
        points.append(Formula(f"p{number}", graph, measured, "device", nbytes, jobs))
    return points


def test_intervals_hold_the_true_values_as_often_as_they_say() -> None:
    truth = load_config("edge")
    given = truth.with_(**{"dram.bandwidth": truth.dram.bandwidth // 2, "dram.latency": truth.dram.latency_ps * 3})
    wants = (truth.dram.bandwidth, truth.dram.latency_ps)
    keys = free_keys(given, KEYS)
    held = dict.fromkeys(KEYS, 0)
    for seed in range(20):
        found = fit(given, formulas(truth, 0.05, seed), keys)
        for key, fitted, want in zip(keys, found.keys, wants, strict=True):
            low, high = (parse(end.strip('"'), key.kind.dimension) for end in (fitted.low, fitted.high))
            held[key.key] += low <= want <= high
    assert min(held.values()) >= 18, held
    assert sum(held.values()) < 2 * 20, "intervals that always hold it are too wide"


def test_a_few_bad_measurements_do_not_decide() -> None:
    truth = load_config("edge")
    points = formulas(truth, 0.01, seed=7)
    bad = [Formula(p.name, p.graph, p.measured_ps * (4 if n % 8 == 0 else 1), p.scope, p.nbytes, p.jobs)
           for n, p in enumerate(points) if isinstance(p, Formula)]  # fmt: skip
    given = truth.with_(**{"dram.bandwidth": truth.dram.bandwidth // 2})
    value, _ = result_of(fit(given, bad, free_keys(given, KEYS[:1])), KEYS[0])
    kind = free_keys(given, KEYS[:1])[0].kind
    assert parse(value.strip('"'), kind.dimension) == pytest.approx(truth.dram.bandwidth, rel=0.02)


def test_keys_that_the_points_cannot_tell_apart_are_named() -> None:
    truth = load_config("edge")
    given = truth.with_(**{"dram.bandwidth": truth.dram.bandwidth // 2})
    keys = free_keys(given, ("dram.bandwidth", "dram.efficiency", "host.irq"), allow_sourced=True)
    found = fit(given, formulas(truth, 0.0, seed=1), keys)
    assert found.alike == (("dram.bandwidth", "dram.efficiency"),)
    assert result_of(found, "dram.bandwidth")[1] == "cannot be told apart from dram.efficiency"
    assert result_of(found, "host.irq")[1] == "the points do not depend on it"


def test_too_few_points_are_refused() -> None:
    truth = load_config("edge")
    keys = free_keys(truth, KEYS, allow_sourced=True)
    with pytest.raises(UsageError, match="2 points cannot determine 2 keys: at least 3 are needed"):
        fit(truth, formulas(truth, 0.0, seed=1, count=2), keys)
    fit(truth, formulas(truth, 0.0, seed=1, count=3), keys)


DESCRIPTION = """# Says nothing of a key.
inherit = "tiny"
clock = "1 GHz"  # data sheet

[dram]           # the board's manual
bandwidth = "9 GB/s"  # chosen: as others
latency = "300 ns"

# measured by hand,
# twice
bytes = "1 GiB"

[vector]
cost = { simple = 1, divide = 4, sqrt = 4, transcendental = 3, convert = 1, reduce = 1 }  # Chosen

[matrix]
rows = 8
"""


def test_a_comment_names_the_source_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(DESCRIPTION, encoding="utf-8")
    comments = comments_of(str(path))
    assert comments["clock"] == "data sheet"
    assert comments["dram.bandwidth"] == "chosen: as others"
    assert comments["dram.latency"] == "the board's manual"
    assert comments["dram.bytes"] == "measured by hand,"
    assert comments["vector.cost.divide"] == "Chosen"
    assert comments["matrix.rows"] == comments["inherit"].replace("Says nothing of a key.", "")
    config = load_config(path)
    free = free_keys(config, ("dram.bandwidth", "vector.cost.divide", "matrix.rows"))
    assert [key.given for key in free] == [9_000_000_000, 4, 8]
    for name in ("clock", "dram.latency", "dram.bytes"):
        with pytest.raises(UsageError, match=f"--free {name}: has a source"):
            free_keys(config, (name,))
        assert free_keys(config, (name,), allow_sourced=True)
    with pytest.raises(UsageError, match=r"--free dram.bandwith: .*did you mean dram\.bandwidth"):
        free_keys(config, ("dram.bandwith",))
    one = config.with_(**{"matrix.throughput": {"int8": 0, "int16": 1}})
    with pytest.raises(UsageError, match=r"matrix\.throughput\.int8: is 0; a fit starts from a positive value"):
        free_keys(one, ("matrix.throughput.int8",), allow_sourced=True)
    with pytest.raises(UsageError, match="named twice"):
        free_keys(config, ("matrix.rows", "matrix.rows"))


def test_a_description_is_written_with_its_fitted_values(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(DESCRIPTION, encoding="utf-8")
    config = load_config(path)
    truth = config.with_(**{"dram.latency": "120 ns", "dram.efficiency": "1/2"})
    found = fit(
        config, formulas(truth, 0.0, seed=3), free_keys(config, ("dram.latency", "dram.efficiency"), allow_sourced=True)
    )
    written = tmp_path / "fitted.toml"
    written.write_text(fitted_toml(found, path, tmp_path / "points.csv"), encoding="utf-8")
    assert load_config(written).fingerprint() == found.config.fingerprint()
    lines = written.read_text(encoding="utf-8").splitlines()
    assert 'clock = "1 GHz"  # data sheet' in lines
    assert [line for line in lines if line.startswith('latency = "120 ns" # fitted to points.csv: 95% interval 1')]
    # Fitted values have no source: they may be fitted again.
    assert free_keys(load_config(written), ("dram.latency",))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("model,time_us\n", "must hold a header and at least one row"),
        ("model\nconv\n", "has no column 'time_us'"),
        ("model,time_us\nconv,0\n", "time_us: must be a time > 0"),
        ("model,time_us\nconv,nan\n", "time_us: must be a finite number"),
        ("model,time_us\nconv,1\n", "has no column 'shape'"),
        ("model,time_us,shape\nconv,1,8x8\n", "shape: must be batch, rows, columns and channels, got '8x8'"),
        ("model,time_us,shape\ndense,1,8x8x8\n", "shape: must be rows and depth"),
        ("model,time_us,shape,channels\nconv,1,1x8x8x8,0\n", "channels: must be a whole number >= 1"),
        ("model,time_us,shape,kernel\nmaxpool,1,1x8x8x8,1x2x3\n", "kernel: must be one extent, or rows x columns"),
        ("model,time_us,shape,kernel\nmaxpool,1,1x8x8x8,1x65\n", "rows x columns, of at most 64"),
        ("model,time_us,shape\nadd,1,1x4097x4096x1\n", "shape: must be at most 16777216 elements"),
        ("model,time_us,shape\nvgg16,1,1x9999x9999x3\n", "shape: must be at most 16777216 elements"),
        ("model,time_us,shape,channels\ndense,1,1x8193,8192\n", "channels: must be at most 67108864 weights"),
        ("model,time_us\nnone,1\n", "model: must be the path of an .onnx file, a network, or one of conv"),
        ("model,time_us\nnone.onnx,1\n", "model: must be a model that can be read"),
        ("model,time_us,shape\nmobilenet_v1,1,3\n", "the network has no form for an input of shape"),
        ("model,time_us,shape,scope\nadd,1,1x8x8x8,chip\n", "scope: must be one of device, host"),
    ],
)  # fmt: skip
def test_points_that_are_refused(tmp_path: Path, lines: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_points(points_file(tmp_path, lines), load_config("tiny"))
    assert problem in str(caught.value)


def test_the_scope_of_a_point_decides_whether_the_host_counts(tmp_path: Path) -> None:
    lines = "model,time_us,shape,scope,name\nadd,1,1x8x8x8,device,a\nadd,1,1x8x8x8,host,b\n"
    config = load_config("tiny")
    device, host = read_points(points_file(tmp_path, lines), config)
    assert (device.name, host.name) == ("a", "b")
    assert device.graph is host.graph
    assert device.simulated_ps(config) < host.simulated_ps(config)
    slow = config.with_(**{"host.irq": "1 ms"})
    assert device.simulated_ps(slow) == device.simulated_ps(config)
    assert host.simulated_ps(slow) > host.simulated_ps(config)
