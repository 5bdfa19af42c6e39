"""The validation harness: what it reads, what it refuses, how it counts, and what it writes."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from npusim.cli.app import main
from npusim.errors import InputError
from npusim.validate.base import DataPoint, DataRow, changed, read
from npusim.validate.intel import dma, dpu
from npusim.validate.replay import SetOutcome, carried_folder, find, replay
from npusim.validate.report import text
from npusim.validate.stats import error, summary, worst
from npusim.validate.tpu import applications, gemm, vector


def write(folder: Path, name: str, lines: str) -> Path:
    path = folder / name
    path.write_text(lines, "utf-8")
    return path


def records(folder: Path, lines: str) -> list[DataRow]:
    return read(write(folder, "rows.csv", lines))


def test_errors_are_relative_to_the_measurement() -> None:
    points = [DataPoint("a", 100, 90), DataPoint("b", 50, 60), DataPoint("c", 10, 10), DataPoint("d", 200, 202)]
    assert [error(point) for point in points] == [-10, 20, 0, 1]
    found = summary(points)
    assert found is not None
    assert (found.points, found.mape, found.median, found.p90, found.worst, found.bias) == (4, 7.75, 5.5, 20, 20, 2.75)
    assert found.correlation == pytest.approx(0.99499, abs=1e-4)
    assert [point.label for point in worst(points, 2)] == ["b", "a"]
    assert summary([]) is None
    alone = summary([DataPoint("a", 1, 2)])
    assert alone is not None
    assert (alone.mape, alone.correlation) == (100, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold a header and at least one row"),
        ("a,b\n", "must hold a header and at least one row"),
        ("a,b\n1,x\n", "line 2: b: must be a whole number, got 'x'"),
        ("a\n1\n", "line 2: has no column 'b', only a"),
        ("a,b\n1\n", "line 2: b: must be a whole number, got ''"),
        ("a,b\n1,-3\n", "line 2: b: must be a whole number >= 0, got '-3'"),
    ],
)
def test_a_bad_file_is_named_with_line_and_column(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path, "bad.csv", content)
    with pytest.raises(InputError) as caught:
        read(path)[0].integer("b")
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_measurement_must_be_finite(tmp_path: Path, value: str) -> None:
    with pytest.raises(InputError, match=f"t: must be a finite number, got '{value}'"):
        records(tmp_path, f"t\n{value}\n")[0].number("t")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.csv"
    path.write_bytes(b"a,b\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"binary.csv: must be UTF-8 text, got byte 0xff"):
        read(path)


def test_rows_without_a_law_are_excluded_with_the_reason(tmp_path: Path) -> None:
    lines = "op,shape,avg_us,stable\nadd,128x128,1.0,1\nadd,128x128,1.0,0\nsort,128,1.0,1\n"
    point, unstable, unknown = vector(records(tmp_path, lines), tmp_path)
    assert isinstance(point, DataPoint)
    assert [row.reason for row in (unstable, unknown) if not isinstance(row, DataPoint)] == [
        "stable = 0: the measurement varies",
        "sort is not a single function of the vector unit",
    ]
    header = "device,op,in_w,in_h,in_c,out_w,out_h,out_c,kw,kh,sw,exec_mode,in_dtype,gt_cycles\n"
    row = "{},{},56,16,64,56,14,64,3,3,1,CUBOID_16x16,{},6265\n"
    cases = [("VPU_2_7", "CONVOLUTION", "UINT8"), ("VPU_9", "CONVOLUTION", "UINT8"), ("VPU_2_7", "CONVOLUTION", "INT4")]
    found = list(dpu(records(tmp_path, header + "".join(row.format(*case) for case in cases)), tmp_path))
    assert [isinstance(one, DataPoint) for one in found] == [True, False, False]


def test_a_product_is_slower_by_its_dispatch_where_a_host_timed_it(tmp_path: Path) -> None:
    lines = (
        "hw,timing,dtype,M,N,K,latency_us\nTPU_v6e,trace,int8,512,512,512,1\nTPU_v6e,loop(host),int8,512,512,512,1\n"
    )
    traced, hosted = gemm(records(tmp_path, lines), tmp_path)
    assert isinstance(traced, DataPoint)
    assert isinstance(hosted, DataPoint)
    assert hosted.predicted - traced.predicted == pytest.approx(110)


def test_padding_to_lanes_costs(tmp_path: Path) -> None:
    lines = "op,shape,avg_us,stable\nrelu,1024x128,1,1\nrelu,1000x100,1,1\nrelu,1001x128,1,1\n"
    whole, padded, fitting = (row for row in vector(records(tmp_path, lines), tmp_path) if isinstance(row, DataPoint))
    assert padded.predicted < whole.predicted  # 1024 x 100: the longer side fills lanes
    assert fitting.predicted == pytest.approx(whole.predicted, rel=0.03)


def test_a_slower_gear_waits_fewer_cycles_for_the_dram(tmp_path: Path) -> None:
    lines = "device,test,bytes,src,dst,gt_cycles_raw\nVPU_2_7,Sweep,64,DRAM,CMX,1\nVPU_2_7,Sweep_GEAR4,64,DRAM,CMX,1\n"
    slow, fast = (row for row in dma(records(tmp_path, lines), tmp_path) if isinstance(row, DataPoint))
    assert slow.predicted < fast.predicted


def test_applications_are_bound_by_weights_or_by_arithmetic(tmp_path: Path) -> None:
    header = "app,type,layers,weights,ops_per_weight_byte,unused_macs_pct,useful_macs_pct,measured_tops\n"
    rows = "m,MLP,1,16M,100,0,1,1\nc,CNN,1,16M,100000,0,1,1\nx,CNN,1,16M,100,2,1,1\n"
    weights, arithmetic, excluded = applications(records(tmp_path, header + rows), tmp_path)
    assert isinstance(weights, DataPoint)
    assert isinstance(arithmetic, DataPoint)
    assert weights.predicted == pytest.approx(2 * 100 * 30.6e9 / 1e12, rel=0.05)  # 34 GB/s at 0.9
    assert arithmetic.predicted == pytest.approx(91.75, rel=0.06)  # 2 * 65536 * 700 MHz, edge tiles off
    assert not isinstance(excluded, DataPoint)


def few(folder: Path) -> Path:
    """Return a folder with a single data set."""
    shutil.copy(carried_folder() / "gemmini_mesh16_rtl.csv", folder)
    return folder


def test_missing_sets_are_skipped_and_said(tmp_path: Path) -> None:
    found, missing = find(few(tmp_path))
    assert [data.name for data, _ in found] == ["scalesim_cycles", "gemmini_mesh16_rtl"]
    shown = text(list(replay(found)), missing)
    for data in missing:
        assert f"skipped {data.name}: there is no {data.filename}" in shown
    assert ["gemmini_mesh16_rtl", "74", "-", "0.00"] in [line.split()[:4] for line in shown.splitlines()]


def test_an_outcome_without_points_has_no_errors() -> None:
    data, path = find(carried_folder())[0][0]
    empty = SetOutcome(data, path)
    assert empty.summary is None
    assert empty.to_json_dict()["mape"] is None
    json.dumps(empty.to_json_dict(), allow_nan=False)


def test_the_command_writes_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "errors.json"
    assert main(["validate", "--data", str(few(tmp_path)), "--json", str(target)]) == 0
    assert "gemmini_mesh16_rtl" in capsys.readouterr().out
    document = json.loads(target.read_text("utf-8"))
    mesh = next(entry for entry in document["datasets"] if entry["name"] == "gemmini_mesh16_rtl")
    assert (mesh["points"], mesh["excluded"], mesh["mape"], mesh["worst"], mesh["bias"]) == (74, 0, 0, 0, 0)
    assert len(mesh["rows"]) == 74
    assert {"measured", "predicted", "error", "row", "group"} == set(mesh["rows"][0])
    assert "tpu_v4_matmul" in document["skipped"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "--data nowhere: must be a directory"),
        (["--json", "no/such/folder/x.json"], "there is no directory no/such/folder"),
    ],
)
def test_a_wrong_call_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_plot_shows_every_set_or_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "errors.svg"
    code = main(["validate", "--data", str(few(tmp_path)), "--plot", str(picture)])
    if importlib.util.find_spec("matplotlib") is None:
        assert code == 2
        assert "--plot: needs matplotlib: pip install 'npusim[report]'" in capsys.readouterr().err
        assert not picture.exists()
    else:
        assert code == 0
        assert "gemmini_mesh16_rtl" in picture.read_text("utf-8")


def test_a_machine_may_be_replayed_with_other_values() -> None:
    [(data, path)] = [pair for pair in find(carried_folder())[0] if pair[0].name == "gemmini_mesh16_rtl"]
    with changed("gemmini_mesh16", {"matrix.mesh.least_rows": 8}):
        [other] = replay([(data, path)])
    [shipped] = replay([(data, path)])
    assert shipped.summary is not None
    assert other.summary is not None
    assert shipped.summary.mape == 0 < other.summary.mape


def test_a_text_that_is_not_known_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 2: df: must be one of OS, WS, got 'XS'"):
        records(tmp_path, "df\nXS\n")[0].one_of("df", {"OS": 1, "WS": 2})


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("df", "XS", "must be one of OS, WS, IS, got 'XS'"),
        ("M", "0", "must be a whole number >= 1, got '0'"),
        ("cycles", "0", "the measured value must be above 0, got 0"),
    ],
)
def test_a_row_that_cannot_be_replayed_is_named(tmp_path: Path, column: str, value: str, problem: str) -> None:
    row = {"df": "WS", "M": "16", "K": "16", "N": "16", "stall": "0", "ok": "1", "cycles": "65", column: value}
    write(tmp_path, "gemmini_mesh16_rtl.csv", ",".join(row) + "\n" + ",".join(row.values()) + "\n")
    [pair] = [pair for pair in find(tmp_path)[0] if pair[0].name == "gemmini_mesh16_rtl"]
    with pytest.raises(InputError) as caught:
        list(replay([pair]))
    assert str(caught.value).endswith(problem)


@pytest.mark.parametrize("value", ["axb", "128x0", ""])
def test_a_shape_is_extents(tmp_path: Path, value: str) -> None:
    with pytest.raises(InputError, match="shape: must be extents >= 1 such as 128x64, got"):
        records(tmp_path, f"op,shape\nadd,{value}\n")[0].shape("shape")
