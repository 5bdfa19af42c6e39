"""Exact reports for the first occurrence of each kind of line, and correct figures everywhere else."""

from __future__ import annotations

import difflib

import pytest

from npusim.hw.config import list_configs, load_config
from npusim.isa.base import decode
from npusim.report import device, program
from npusim.report.format import capacity, counted, quantity
from npusim.runtime import Session
from tests.support.graphs.every_kind import CASES
from tests.unit.report.pages import PATH, record


def test_pages_are_those_on_record() -> None:
    changed = difflib.unified_diff(PATH.read_text(encoding="utf-8").splitlines(), [*record()], "record", "now", n=0)
    if lines := list(changed):
        pytest.fail("\n".join([*lines, "if this is meant: python -m tests.unit.report.pages"]), pytrace=False)


@pytest.mark.parametrize("name", list_configs())
def test_the_text_of_a_device_has_the_figures_of_its_json(name: str) -> None:
    config = load_config(name)
    text, figures = device.text(config), device.as_json(config)
    first, *lines = text.splitlines()
    assert first == f"{name}: {config.description}"
    rows = {tuple(line.split()) for line in lines}
    for dtype, macs in figures["peak_macs"].items():
        assert figures["peak_ops"][dtype] == 2 * macs
        assert (dtype, *quantity(macs, "MAC/s").split(), *quantity(2 * macs, "OPS").split()) in rows
    for function, rate in figures["vector_ops"].items():
        assert (function, *quantity(rate, "op/s").split()) in rows
    for memory in ("sram", "dram"):
        (line,) = (line for line in lines if line.split()[:1] == [memory.upper()])
        assert f" {capacity(figures[f'{memory}_bytes'])}" in line
        assert f" {quantity(figures[f'{memory}_bandwidth'], 'B/s')}" in line
    assert all(price["source"] for price in figures["prices_fj"].values() if price["value"] is not None)
    assert figures["fingerprint"] == config.fingerprint()
    assert (figures["cores"], figures["clock_hz"]) == (config.cores, config.clock_hz)


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_a_program_has_the_figures_of_its_json(name: str) -> None:
    case = CASES[name]
    with Session(case.config, cache_dir=False) as session:
        made = session.compile(case.graph()[0])
    text, figures = program.text(made, "case.npu"), program.as_json(made)
    assert figures["commands"] == len(list(decode(made.code)))
    assert (figures["code_bytes"], figures["constant_bytes"]) == (len(made.code), made.constants.nbytes)
    assert figures["operators"] == len(made.ops)
    assert counted(figures["commands"], "instruction") in text
    assert counted(figures["operators"], "operator") in text
    for way, bindings in (("inputs", made.inputs), ("outputs", made.outputs)):
        assert [(row["name"], tuple(row["shape"]), row["type"]) for row in figures[way]] == [
            (binding.name, binding.shape, binding.dtype.label) for binding in bindings
        ]
        assert all(f"{row['name']} {row['type']}{row['shape']}" in text for row in figures[way])
