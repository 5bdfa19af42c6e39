"""Routines in pieces give the same result as in one piece on any device, and the machine charges what the model
says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npusim.cache import read_program, write_program
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import CompileError, DeviceFaultError, UnsupportedError
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.hw.cost import cost
from npusim.isa.base import Command, decode
from npusim.isa.functions import Unary
from npusim.isa.routine import ScalarRoutine
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.ops.routine import routine_attrs
from npusim.program import Program
from npusim.routines import Cut
from npusim.runtime import Session
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import Arrays, interpreted, outputs_of, simulated
from tests.support.programs.race_detector import find_races, limits_of
from tests.support.random_devices import TINY, Device, devices
from tests.support.sample_routines import PLAIN, SCALE, registered

QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def toy(shape: tuple[int, int, int], cuts: int = 2, *, turned: bool = False, factor: int = 3) -> Graph:
    """Build a routine between other operators; ``turned``: its operand is a view that is not contiguous."""
    build = GraphBuilder("toy")
    x = build.input("x", (shape[1], shape[0], shape[2]) if turned else shape, DType.INT32)
    w = build.input("w", (shape[1],), DType.INT32)
    read = build.add("transpose", [x], {"perm": (1, 0, 2)}) if turned else x
    attrs = routine_attrs("test.scale", **{**PLAIN, "cuts": cuts, "factor": factor})
    y, n = build.add_all("routine", [read, w], attrs)
    return build.finish([build.add("unary", [y], {"fn": Unary.NEG}), n])


def compiled(graph: Graph, config: Config) -> Program | None:
    """Compile the graph; None if the SRAM is too small for the smallest piece."""
    try:
        return compile_graph(graph, config)
    except CompileError as error:
        said = str(error)
    assert "its smallest piece takes" in said
    return None


def inputs_of(graph: Graph, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(-1000, 1000, t.shape).astype(t.dtype.storage) for t in graph.inputs}


def calls(code: bytes) -> list[Command]:
    return [command for command in decode(code) if isinstance(command.instruction, ScalarRoutine)]


shapes = st.tuples(st.integers(0, 20), st.integers(1, 6), st.integers(1, 12))


@settings(max_examples=60, suppress_health_check=QUIET)
@given(shapes, st.integers(0, 2), st.booleans(), devices(), st.integers(0, 99))
def test_pieces_give_what_the_whole_gives(
    shape: tuple[int, int, int], cuts: int, turned: bool, device: Device, seed: int
) -> None:
    graph = toy(shape, cuts, turned=turned)
    program = compiled(graph, device.config)
    if program is None:
        return
    inputs = inputs_of(graph, seed)
    wanted = reference.run(graph, inputs)
    same_bytes(interpreted(program, device.config, inputs), wanted, "interpreter")
    same_bytes(outputs_of(simulated(program, device.config, inputs)), wanted, "simulator")


@settings(max_examples=15, suppress_health_check=QUIET)
@given(shapes, st.integers(0, 2), devices())
def test_no_two_commands_race(shape: tuple[int, int, int], cuts: int, device: Device) -> None:
    program = compiled(toy(shape, cuts), device.config)
    if program is None:
        return
    assert find_races(list(decode(program.code)), limits_of(program, device.config)) == []


SMALL = TINY.with_(**{"sram.bytes": 4096})
BIG = (16, 8, 32)
"""16 KiB of x: far more than SMALL has."""


def test_what_fits_is_one_piece_on_each_core() -> None:
    for cores in (1, 2, 4):
        config = TINY.with_(**{"sram.bytes": 1 << 20, "cores": cores})
        pieces = calls(compile_graph(toy(BIG), config).code)
        assert [command.core for command in pieces] == list(range(cores))


def test_pieces_are_cut_until_they_fit() -> None:
    pieces = calls(compile_graph(toy(BIG), SMALL).code)
    assert len(pieces) > 8
    elements = sum(call.instruction.call.inputs[0].spec.size for call in pieces)  # type: ignore[attr-defined]
    assert elements == np.prod(BIG), "every element once"


def test_what_a_piece_needs_whole_is_loaded_once() -> None:
    code = compile_graph(toy(BIG), SMALL).code
    address = calls(code)[0].instruction.call.inputs[1].address  # type: ignore[attr-defined]
    loads = [c for c in decode(code) if c.instruction.mnemonic == "dma.copy" and c.instruction.dst == address]  # type: ignore[attr-defined]
    assert len(loads) == 1


def test_what_does_not_fit_is_refused_by_its_largest_operand() -> None:
    with pytest.raises(CompileError) as caught:
        compile_graph(toy(BIG, cuts=0), SMALL)
    assert str(caught.value) == (
        "routine (test.scale): its smallest piece takes 33344 bytes of SRAM, of which operand 'x' takes 16384; "
        "the device has 4096"
    )


def test_cuts_that_contradict_the_shapes_are_refused() -> None:
    wrong = dataclasses.replace(SCALE, version=5, cuts=lambda inputs, params: [Cut((0, 0), (0, 1))])
    with registered(wrong), pytest.raises(CompileError, match="cut 0 runs along axes of different lengths: 8, 16"):
        compile_graph(toy(BIG), SMALL)


def test_a_program_with_routines_survives_its_file(tmp_path: Path) -> None:
    graph = toy((4, 3, 5))
    program = compile_graph(graph, TINY)
    write_program(program, tmp_path / "toy.npu")
    again = read_program(tmp_path / "toy.npu")
    assert again.code == program.code
    inputs = inputs_of(graph)
    same_bytes(outputs_of(simulated(again, TINY, inputs)), reference.run(graph, inputs), "from the file")


def test_another_version_is_another_program(tmp_path: Path) -> None:
    with Session(TINY, cache_dir=tmp_path) as session:
        first = session.compile(toy((4, 3, 5)))
        assert not first.from_cache
        assert session.compile(toy((4, 3, 5))) is first
        assert Session(TINY, cache_dir=tmp_path).compile(toy((4, 3, 5))).from_cache
        with registered(dataclasses.replace(SCALE, version=2)):
            other = session.compile(toy((4, 3, 5)))
            assert other is not first
            assert not other.from_cache


def test_a_program_whose_routine_is_gone_is_refused(tmp_path: Path) -> None:
    with registered(dataclasses.replace(SCALE, version=3)):
        program = compile_graph(toy((4, 3, 5)), TINY)
    with pytest.raises(DeviceFaultError, match=r"PROGRAM.*routine 'test.scale' version 3 is not registered"):
        simulated(program, TINY, inputs_of(toy((4, 3, 5))))


def test_a_routine_that_fails_is_a_data_fault() -> None:
    build = GraphBuilder("failing")
    x, w = build.input("x", (2, 3, 4), DType.INT32), build.input("w", (3,), DType.INT32)
    graph = build.finish(build.add_all("routine", [x, w], routine_attrs("test.scale", **{**PLAIN, "fail": True})))
    with Session(TINY, cache_dir=False) as session:
        with pytest.raises(DeviceFaultError, match=r"DATA.*routine test\.scale: told to"):
            session.run(graph, inputs_of(graph))
        good = toy((2, 3, 4))
        wanted = reference.run(good, inputs_of(good))
        same_bytes(outputs_of(session.run(good, inputs_of(good))), wanted, "after the fault")


def test_the_unit_must_be_there() -> None:
    build = GraphBuilder("square")
    graph = build.finish(build.add_all("routine", [build.input("x", (4,), DType.INT8)], routine_attrs("test.square")))
    for graph_, unit in ((toy((2, 3, 4)), "scalar"), (graph, "vector")):
        with pytest.raises(UnsupportedError, match=f"has no {unit} unit"):
            compile_graph(graph_, TINY.with_(**{unit: None}))


def test_vector_routines_run_on_the_vector_unit() -> None:
    build = GraphBuilder("square")
    x = build.input("x", (4, 5), DType.INT8)
    graph = build.finish(build.add_all("routine", [x], routine_attrs("test.square")))
    inputs = {"x": np.arange(-10, 10, dtype=np.int8).reshape(4, 5)}
    result = simulated(compile_graph(graph, TINY), TINY, inputs)
    np.testing.assert_array_equal(result.outputs[graph.outputs[0].name], inputs["x"] ** 2)
    assert [span.unit for span in result.timeline.spans if span.kind == "vector.routine"] == ["core0.vector"]


def spans(config: Config, graph: Graph) -> list[int]:
    result = simulated(compile_graph(graph, config), config, {}, timing_only=True)
    return [span.end_ps - span.start_ps for span in result.timeline.spans if span.kind == "scalar.routine"]


def test_a_routine_takes_the_time_of_its_work() -> None:
    """The span of the only scalar command is what the cost model says; slower elements make it longer."""
    config = load_config("edge")
    graph = toy((4, 3, 5))
    work = calls(compile_graph(graph, config).code)[0].instruction.work()
    assert spans(config, graph) == [cost(config, work).ps]
    assert config.scalar is not None
    slower = config.with_(**{"scalar.cycles_per_element": config.scalar.cycles_per_element + 7})
    extra = spans(slower, graph)[0] - spans(config, graph)[0]
    assert extra == 7 * 60 * 10**12 // config.clock_hz, "60 elements, 7 cycles longer each"


def test_time_does_not_depend_on_data() -> None:
    graph = toy((9, 4, 6))
    program = compile_graph(graph, SMALL)
    runs: list[Any] = [simulated(program, SMALL, inputs_of(graph, seed)) for seed in (1, 2)]
    runs.append(simulated(program, SMALL, {}, timing_only=True))
    assert len({run.timeline.digest() for run in runs}) == 1
