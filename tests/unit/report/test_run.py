"""The report of a run."""

from dataclasses import replace

import pytest

from npusim.hw.config import load_config
from npusim.report.run import text
from tests.support.sample_run import sample

CONFIG = load_config("tiny").with_(**{"dram.bandwidth": "8 GB/s", "clock": "1 GHz", "matrix.rows": 8, "matrix.cols": 8})


def lines() -> list[str]:
    return text(sample(), CONFIG, "x float32[4], random with seed 0").splitlines()


def find(start: str) -> list[str]:
    """Return the words of the first line that begins with start."""
    return next(line for line in lines() if line.strip().startswith(start)).split()


def test_the_first_line_names_model_and_device() -> None:
    assert text(sample(), load_config("tiny"), "").startswith("net on tiny: 8x8 MACs")


def test_the_first_line_names_what_was_overridden() -> None:
    config = load_config("tiny").with_(**{"dram.bandwidth": "3 GB/s"})
    assert text(sample(), config, "").startswith('net on tiny with dram.bandwidth = "3 GB/s": 8x8 MACs')


def test_totals() -> None:
    report = "\n".join(lines())
    assert "x float32[4], random with seed 0" in report
    assert "2.20 us = 2 200 cycles of 1 GHz, 454 545 runs/s" in report
    assert "22.7 % of its peak used, 32 kMAC" in report
    assert "8.40 kB read, 0 B written, 3.82 GB/s = 47.7 % of the pins" in report


def test_how_full_a_memory_was() -> None:
    (line,) = [line for line in lines() if line.strip().startswith("SRAM")]
    assert line.split(maxsplit=2)[1:] == ["peak", "8.19 kB = 50.0 %, at 1 us: values 5 kB, tiles 3 kB, weights 192 B"]
    assert not any("accumulators" in line for line in lines())


def test_of_several_cores_the_fullest_is_told() -> None:
    run = sample()
    (first,) = run.memory
    run.memory.append(replace(first, memory="core1.sram", at_peak={"tile": 16000}))
    assert "SRAM peak  16 kB = 97.7 %, core1, at" in text(run, CONFIG, "")


def test_outputs_count_what_is_not_finite() -> None:
    assert find("y ") == ["y", "float32[4]", "-2", "4", "1", "1"]


def test_units_show_where_their_time_went() -> None:
    assert find("core0.vector")[:8] == ["core0.vector", "2.3", "%", "97.7", "%", "0.0", "%", "1"]
    assert find("core0.vector")[-3:] == ["core0.matrix", "90.9", "%"]


def test_a_timing_run_says_that_there_are_no_outputs() -> None:
    run = sample()
    run.outputs = {}
    assert "outputs: not computed (timing only)" in text(run, CONFIG, "")


def test_as_many_layers_as_asked_for() -> None:
    assert "the 2 slowest of 3 layers" in text(sample(), CONFIG, "", top=2)
    assert "slowest" not in text(sample(), CONFIG, "", top=0)


def test_shares_are_of_the_whole_and_what_is_for_no_layer_has_a_row() -> None:
    run = sample()
    assert "(no layer)" not in text(run, CONFIG, "")
    run.timeline = replace(run.timeline, time_ps=run.time_ps + 200_000)
    rows = text(run, CONFIG, "").splitlines()[-4:]
    assert " ".join(rows[-1].split()) == ("(no layer) 200 ns 8.3 % the completion record and the interrupt 200 ns")
    assert sum(float(row.split(" %")[0].rsplit(maxsplit=1)[-1]) for row in rows) == pytest.approx(100, abs=0.2)


def test_a_run_from_the_cache_says_so() -> None:
    run = sample()
    assert "from the cache" not in text(run, CONFIG, "")
    run.compile_from_cache = True
    assert "from the cache" in text(run, CONFIG, "")


def test_ten_layers_unless_asked_otherwise() -> None:
    run = sample()
    run.ops = run.ops * 4
    run.timeline.spans = [span._replace(op=span.op + 3 * copy) for copy in range(4) for span in run.timeline.spans]
    assert "the 10 slowest of 12 layers" in text(run, CONFIG, "")
