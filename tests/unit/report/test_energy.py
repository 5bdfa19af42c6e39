"""The energy of a run, added up by hand."""

from __future__ import annotations

import numpy as np
import pytest

from npusim import Session, load_config
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.isa.functions import Binary
from npusim.ops.build import GraphBuilder
from npusim.report.energy import arithmetic_fj, energy_fj
from npusim.work import ControlWork, DmaWork, MatrixWork, ScalarWork, VectorWork

ELEMENTS = 28 * 28 * 32


def product() -> Graph:
    builder = GraphBuilder("product")
    x, s = builder.input("x", (1, 28, 28, 32), DType.INT32), builder.input("s", (1,), DType.INT32)
    return builder.finish([builder.add("binary", [x, s], {"fn": Binary.MUL})])


def matrix() -> Graph:
    builder = GraphBuilder("matrix")
    x, w = builder.input("x", (4, 64), DType.UINT8), builder.const(np.zeros((64, 32), np.int8))
    return builder.finish([builder.add("matmul", [x, w], {"x_zero": 3})])


def test_energy_adds_up_by_hand() -> None:
    config = load_config("edge").with_(**{"energy.leakage": "3 mW"})
    program = compile_graph(product(), config)
    with Session(config, cache_dir=False) as session:
        result = session.run(program, timing_only=True)
    dram = result.dram_read_bytes + result.dram_write_bytes
    assert dram == 2 * 4 * ELEMENTS + 4 + len(program.code)  # the tensor in and out, the scalar, the code
    # Every byte crosses the SRAM's port when it is loaded or stored, and when the vector unit reads or writes it.
    sram = sum(unit.bytes for unit in result.counters.units.values())
    idle = 3000 * result.time_ps // 1000
    assert idle > 0
    expected = ELEMENTS * 4600 + dram * 162_500 + sram * 12_500 + idle
    assert energy_fj(config, program, result.counters) == expected


def test_products_have_the_price_of_their_type() -> None:
    config = load_config("edge")
    dearer = config.with_(**{"energy.mac": {**dict.fromkeys(config.energy.mac, "1 pJ"), "int8": "11.3 pJ"}})
    energies = []
    for each in (config, dearer):
        program = compile_graph(matrix(), each)
        with Session(each, cache_dir=False) as session:
            energies.append(energy_fj(each, program, session.run(program, timing_only=True).counters))
    assert energies[1] - energies[0] == 4 * 64 * 32 * 11_000


def test_a_config_without_prices_has_no_energy() -> None:
    config = load_config("tiny")
    program = compile_graph(product(), config)
    with Session(config, cache_dir=False) as session:
        assert energy_fj(config, program, session.run(program, timing_only=True).counters) is None


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (MatrixWork(DType.UINT8, 1, 2, 3, 5, 7, 1, 1, False, True, True, 4), 2 * 3 * 5 * 7 * 300),
        (MatrixWork(DType.FLOAT32, 1, 1, 1, 1, 1, 1, 1, False, True, True, 4), 4600),
        (VectorWork("simple", DType.INT8, 100, 3, 600), 300 * 4600),
        (ScalarWork(10, 80), 10 * 4600),
        (DmaWork(64, 1, 64, 64, 0), 0),
        (ControlWork(), 0),
    ],
)
def test_the_price_of_one_instruction(work, expected: int) -> None:
    assert arithmetic_fj(load_config("edge").energy, work) == expected
