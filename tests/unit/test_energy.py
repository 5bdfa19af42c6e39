"""The energy of a run: added up by hand, by unit and by layer, and the cost of computing it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npusim.energy
import npusim.isa.emitted
from npusim import Session, load_config
from npusim.cache import read_program, write_program
from npusim.compiler.pipeline import compile_graph
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.runtime import Result
from tests.support.priced_device import ELEMENTS, matrix, priced, product


def run(graph: Graph, config: Config) -> Result:
    with Session(config, cache_dir=False) as session:
        return session.run(compile_graph(graph, config), timing_only=True)


def test_energy_adds_up_by_hand() -> None:
    result = run(product(), priced())
    dram = result.dram_read_bytes + result.dram_write_bytes
    moved = 2 * 4 * ELEMENTS + 4
    assert dram == moved + len(result.program.code)  # the tensor in and out, the scalar, the code
    found = result.energy
    assert found["vector"] == ELEMENTS * 4600
    assert found["dram"] == dram * 160_000
    assert found["dma"] == moved * 13
    # Every byte crosses the SRAM's port when it is loaded or stored, and when the vector unit reads or writes it.
    units = result.counters.units
    assert found["sram"] == (moved + units["core0.vector"].bytes) * 12_000
    assert found["clock"] == result.timeline.time_ps // 1000 * 19_000  # 1 GHz
    assert found["leakage"] == result.timeline.time_ps // 1000 * 3000
    assert found.total == sum(part.value for part in found.parts)
    assert {part.name for part in found.parts} == {"vector", "dram", "dma", "sram", "clock", "leakage"}


def test_a_product_reads_its_operands_and_touches_its_sums() -> None:
    found = run(matrix(), priced()).energy
    assert found["mac.int8"] == 4 * 64 * 32 * 300
    assert found["operands"] == 4 * 64 * 32 * (1 + 4) * 7  # an input and a sum pass each PE
    # On 32 rows, sums are made by the first half of 64 summands, and added to by the other: 1 write, then 1 of each.
    assert found["accumulators"] == 4 * 32 * 4 * 3 * 11


@pytest.mark.parametrize("graph", [product(), matrix(), matrix(500)])
def test_units_and_layers_add_up_to_the_whole(graph: Graph) -> None:
    found = run(graph, load_config("edge").with_(cores=2)).energy
    assert found.total
    assert sum(unit.total or 0 for unit in found.units.values()) == found.total
    assert sum(layer.energy.total or 0 for layer in found.layers) == found.total
    for part in found.parts:
        for each in (found.units.values(), [layer.energy for layer in found.layers]):
            same = [one.value for split in each for one in split.parts if one.name == part.name]
            assert sum(value or 0 for value in same) == part.value


def test_what_has_no_price_is_not_known() -> None:
    config = priced().with_(**{"energy.vector": None, "energy.scalar": None})
    found = run(product(), config).energy
    assert (found.total, found.unknown) == (None, ("vector",))
    assert found.known > 0
    # What the run did not do needs no price.
    assert run(matrix(), config).energy.total is not None
    bare = run(product(), load_config("tiny")).energy
    assert bare.total is None
    assert "no number" in bare.parts[0].source


def test_a_program_is_decoded_once_and_one_that_was_made_here_never(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decoded = []

    def counted(code: bytes) -> Any:
        decoded.append(len(code))
        return decode(code)

    decode = npusim.isa.emitted.decode
    monkeypatch.setattr(npusim.isa.emitted, "decode", counted)
    with Session(load_config("edge"), cache_dir=False) as session:
        program = session.compile(product())
        made = session.run(program, timing_only=True).energy
        assert not decoded
        write_program(program, tmp_path / "product.npu")
        read = read_program(tmp_path / "product.npu")
        first, second = (session.run(read, timing_only=True) for _ in range(2))
        assert not decoded  # computed on first use only
        assert first.energy == second.energy == made
    assert len(decoded) == 1


def test_residents_that_are_there_are_not_loaded_again() -> None:
    config = priced(dram_byte="1 pJ").with_(**{"compiler.resident_weights": True})
    with Session(config, cache_dir=False) as session:
        program = session.compile(matrix())
        first, second = (session.run(program, timing_only=True) for _ in range(2))
    assert program.resident_bytes
    assert second.residents_held
    for result in (first, second):
        assert result.energy["dram"] == 1000 * (result.dram_read_bytes + result.dram_write_bytes)
    assert second.energy["dma"] < first.energy["dma"]


def test_json_says_what_is_not_known_as_null() -> None:
    found = run(matrix(), load_config("tiny")).to_json_dict()
    assert found["energy"]["total"] is None
    assert found["area"]["total"] is None
    assert found["energy"]["units"].keys() >= {"chip", "core0.matrix"}
    assert [layer["name"] for layer in found["energy"]["layers"]][-1] == ""
