"""Given schedules: each choice is honoured or refused, and a complete schedule reproduces its program."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import Explained, compile_graph, explain_graph
from npusim.compiler.schedule import memory_plan
from npusim.compiler.schedule.cascade_search import CascadeSearch
from npusim.compiler.schedule.schedule import (
    DRAM,
    FREE,
    L2,
    ROLLING,
    SCRATCHPAD,
    SEARCHED,
    LayerCascade,
    LayerShard,
    PinnedLayer,
    Schedule,
    TensorMemory,
)
from npusim.compiler.schedule.schedule_file import parse_schedule, read_schedule, schedule_text
from npusim.errors import CompileError, NpusimError, ScheduleError
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import decode
from npusim.runtime import Session
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.graphs.random_graphs import QUIET, graphs
from tests.support.graphs.random_values import RandomGraph
from tests.support.graphs.samples import residual_net
from tests.support.programs.race_detector import find_races, limits_of
from tests.support.random_devices import Device, devices

EDGE = load_config("edge")
TINY = load_config("tiny")
FOUR = EDGE.with_(**{"cores": 4, "exchange.bytes_per_cycle": 16})


def explained(graph: Graph, config: Config, schedule: Schedule = FREE) -> Explained:
    return explain_graph(graph, config, schedule)


def rebuilt(found: Explained, graph: Graph, config: Config) -> None:
    """Check that the complete schedule gives the same program without a search."""
    refused = mock.Mock(side_effect=AssertionError("searched"))
    with (
        mock.patch.object(CascadeSearch, "run", refused),
        mock.patch.object(memory_plan, "choose_values", refused),
    ):
        again = compile_graph(graph, config, schedule=parse_schedule(json.loads(schedule_text(found.schedule))))
    assert again.code == found.program.code
    assert again.region_bytes == found.program.region_bytes
    assert again.places == found.program.places
    ours, theirs = (np.zeros(each.constants.nbytes, np.uint8) for each in (again, found.program))
    again.constants.fill(ours)
    found.program.constants.fill(theirs)
    assert ours.tobytes() == theirs.tobytes()


CHANGES = [
    {},
    {"sram.bytes": "96 KiB"},
    {"compiler.resident_weights": True},
    {"cores": 2},
    {"cores": 3, "exchange.bytes_per_cycle": 8},
    {"cores": 2, "compiler.resident_weights": True, "exchange.bytes_per_cycle": 8},
    {"l2.bytes": "64 KiB"},
    {"dma.channels": 5, "interconnect.arbitration": "fair"},
]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("size", [24])
def test_a_complete_schedule_builds_the_same_program(changes: dict[str, object], size: int) -> None:
    graph, config = residual_net(size, 16, 3), EDGE.with_(**changes)
    rebuilt(explained(graph, config), graph, config)


@settings(max_examples=15, suppress_health_check=QUIET)
@given(graphs(), devices(), st.integers(1, 3), st.sampled_from([{}, {"compiler.resident_weights": True}]))
def test_complete_schedules_of_any_graph_build_the_same_program(
    case: RandomGraph, device: Device, cores: int, changes: dict[str, object]
) -> None:
    config = device.config.with_(cores=cores, **changes)
    try:
        found = explained(case.graph, config)
    except NpusimError:
        return
    rebuilt(found, case.graph, config)


# Entries


def check(found: Explained, graph: Graph, config: Config) -> None:
    """Check that a constrained program is free of races, computes the same bits, and is reproduced by its complete
    schedule."""
    program = found.program
    assert not find_races(list(decode(program.code)), limits_of(program, config))
    rng = np.random.default_rng(3)
    inputs = {t.name: rng.integers(-4, 5, t.shape).astype(t.dtype.storage) for t in graph.inputs}
    wanted = interpreted(compile_graph(graph, config), config, inputs)
    same_bytes(interpreted(program, config, inputs), wanted, "with a schedule against without")
    rebuilt(found, graph, config)


NET = residual_net(16, 8, 2)


def areas(found: Explained) -> dict[str, str]:
    return {each.tensor: each.area for each in found.schedule.memory}


def test_each_tensor_can_be_in_dram_and_in_the_scratchpad() -> None:
    free = explained(NET, EDGE)
    for tensor in areas(free):
        for area in (DRAM, SCRATCHPAD):
            found = explained(NET, EDGE, Schedule(memory=(TensorMemory(tensor, area),)))
            assert areas(found)[tensor] == area
            homes = {each.value: each.home for each in found.decisions}
            assert homes[tensor] == {DRAM: "DRAM", SCRATCHPAD: "SRAM"}[area]
            check(found, NET, EDGE)


def neighbours(found: Explained) -> list[str]:
    return [entry.name for entry in found.program.ops]


def test_each_pair_of_layers_can_be_a_cascade_or_is_refused() -> None:
    layers = neighbours(explained(NET, EDGE))
    built, refusals = 0, list[str]()
    for pair in pairwise(layers):
        for rows in (0, 2):
            try:
                found = explained(NET, EDGE, Schedule(cascades=(LayerCascade(pair, rows),)))
            except ScheduleError as error:
                refusals.append(str(error))
                continue
            built += 1
            cascade = next(each for each in found.schedule.cascades if each.layers == pair)
            assert rows in (0, cascade.rows)
            assert any(place.kind == "window" for place in found.program.places)
            check(found, NET, EDGE)
    assert built >= 4
    assert all(each.startswith("cascades: ") for each in refusals)


@pytest.mark.parametrize("pair", [("conv_1", "conv_2"), ("conv_3", "conv_4")])
def test_a_given_cascade_is_built_without_a_search_for_others(pair: tuple[str, str]) -> None:
    rest = frozenset(SEARCHED) - {"cascades"}
    assert explained(NET, EDGE, Schedule(search=rest)).schedule.cascades == ()
    found = explained(NET, EDGE, Schedule(cascades=(LayerCascade(pair),), search=rest))
    assert [each.layers for each in found.schedule.cascades] == [pair]
    check(found, NET, EDGE)


def test_a_rolling_buffer_makes_a_cascade() -> None:
    free = explained(NET, EDGE)
    built = 0
    for tensor in areas(free):
        try:
            found = explained(NET, EDGE, Schedule(memory=(TensorMemory(tensor, ROLLING),)))
        except ScheduleError:
            continue
        built += 1
        assert areas(found)[tensor] == ROLLING
        check(found, NET, EDGE)
    assert built


def test_a_layer_can_be_kept_out_of_cascades() -> None:
    config = EDGE.with_(**{"sram.bytes": "64 KiB", "dram.bandwidth": "2 GB/s"})
    graph = residual_net(48, 8, 1)
    free = explained(graph, config)
    assert free.schedule.cascades
    for layer in free.schedule.cascades[0].layers:
        found = explained(graph, config, Schedule(cascades=(LayerCascade((layer,)),)))
        assert all(layer not in each.layers for each in found.schedule.cascades)
        check(found, graph, config)


@pytest.mark.parametrize("cores", [2, *(pytest.param(cores, marks=pytest.mark.slow) for cores in (1, 3, 4))])
def test_the_program_uses_as_many_cores(cores: int) -> None:
    found = explained(NET, FOUR, Schedule(cores=cores))
    assert found.schedule.cores == cores
    assert {command.core for command in decode(found.program.code)} <= set(range(cores))
    check(found, NET, FOUR)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [0, 2])
def test_each_layer_can_be_cut_along_an_axis_on_some_cores(cores: int) -> None:
    built, refusals = 0, list[str]()
    for layer in neighbours(explained(NET, FOUR, Schedule(cores=4))):
        for axis in (1, None):
            try:
                found = explained(NET, FOUR, Schedule(cores=4, shards=(LayerShard(layer, axis, cores),)))
            except ScheduleError as error:
                refusals.append(str(error))
                continue
            built += 1
            shard = next((each for each in found.schedule.shards if each.layer == layer), LayerShard(layer, None))
            assert (shard.axis, shard.cores) == (axis, cores)
            number = neighbours(found).index(layer)
            used = {command.core for command in decode(found.program.code) if command.op == number}
            assert used <= set(range(cores or 4))
            check(found, NET, FOUR)
    assert built >= 4
    assert all(each.startswith("shards: ") for each in refusals)


def test_weights_of_a_layer_stay() -> None:
    config = EDGE.with_(**{"compiler.resident_weights": True})
    refusals: list[str] = []
    for searched in (frozenset(SEARCHED), frozenset(SEARCHED) - {"pinned"}):
        for layer in neighbours(explained(NET, config)):
            try:
                found = explained(NET, config, Schedule(pinned=(PinnedLayer(layer),), search=searched))
            except ScheduleError as error:
                refusals.append(str(error))
                continue
            pinned = {each.layer for each in found.schedule.pinned}
            assert layer in pinned
            assert "pinned" in searched or pinned == {layer}
            assert found.program.resident_bytes > 0
            check(found, NET, config)
    assert all(each.startswith("pinned: ") for each in refusals)
    nothing = explained(NET, config, FREE.with_("pinned"))
    assert nothing.program.resident_bytes == 0


def test_any_number_of_cores_can_be_used_with_or_without_the_l2() -> None:
    config = EDGE.with_(**{"cores": 3, "l2.bytes": "64 KiB"})
    for schedule in (Schedule(cores=2), Schedule(cores=2, backing=L2), Schedule(cores=1, backing=L2)):
        found = explained(NET, config, schedule)
        assert found.schedule.cores == schedule.cores
        assert schedule.backing in (None, found.schedule.backing)
        check(found, NET, config)


@pytest.mark.parametrize("channels", [1, 2])
def test_channels_are_planned_for(channels: int) -> None:
    found = explained(NET, EDGE, Schedule(channels=channels))
    assert found.schedule.channels == channels
    check(found, NET, EDGE)


def test_the_l2_holds_a_tensor() -> None:
    config = EDGE.with_(**{"l2.bytes": "256 KiB"})
    for tensor in areas(explained(NET, config)):
        found = explained(NET, config, Schedule(memory=(TensorMemory(tensor, L2),)))
        assert areas(found)[tensor] == L2
        check(found, NET, config)


# Refusals

REFUSED: list[tuple[Schedule, Config, str]] = [
    (Schedule(cores=2), EDGE, "cores: must be at most 1"),
    (Schedule(channels=99), EDGE, "channels: must be at most"),
    (Schedule(backing=L2), EDGE, "backing: must be 'dram'"),
    (Schedule(pinned=(PinnedLayer("conv"),)), EDGE, "pinned: needs compiler.resident_weights"),
    (Schedule(cascades=(LayerCascade(("nothing", "conv")),)), EDGE, "cascades: no layer nothing"),
    (Schedule(memory=(TensorMemory("nothing", DRAM),)), EDGE, "memory: nothing: no such tensor"),
    (Schedule(memory=(TensorMemory("x", DRAM),)), EDGE, "memory: x: shares a DRAM buffer with an input"),
    (Schedule(shards=(LayerShard("nothing", 1),)), FOUR, "shards: no layer nothing"),
    (
        Schedule(cores=4, shards=(LayerShard("conv", 2, 0, True), LayerShard("conv_1", None))),
        FOUR,
        "shards: conv: halo must be false unless all layers that read its result are cut along the same rows",
    ),
    (Schedule(fused_attention=("nothing",)), EDGE, "fused_attention: no attention begins with nothing"),
]


@pytest.mark.parametrize(("schedule", "config", "message"), REFUSED)
def test_what_cannot_be_is_refused_by_name(schedule: Schedule, config: Config, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        compile_graph(NET, config, schedule=schedule)
    assert message in str(error.value)


# Files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda told: told.update(cores="two"), "cores: must be an integer of at least 1, got 'two'"),
        (lambda told: told.update(hearts=2), "'hearts': must be one of the keys cores, channels"),
        (lambda told: told.update(memory=[{"tensor": "y", "area": "disk"}]), "memory[0].area: must be one of"),
        (lambda told: told.update(memory=[{"area": "dram"}]), "memory[0]: must have 'tensor'"),
        (lambda told: told.update(pinned=[{"layer": "a"}, {"layer": "a"}]), "pinned[1].layer: 'a' has an entry"),
        (lambda told: told.update(cascades=[{"layers": []}]), "cascades[0].layers: must be a list with an entry"),
        (lambda told: told.update(search=["everything"]), "search[0]: must be one of"),
    ],
)
def test_a_file_is_refused_by_key(change: Callable[[dict[str, object]], None], message: str, tmp_path: Path) -> None:
    told = json.loads(schedule_text(FREE))
    change(told)
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(told))
    with pytest.raises(ScheduleError) as error:
        read_schedule(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_constrained_programs_have_keys_of_their_own(tmp_path: Path) -> None:
    """In memory and in the files of the cache."""
    schedules = [
        None,
        Schedule(channels=1),
        Schedule(memory=(TensorMemory(next(iter(areas(explained(NET, EDGE)))), DRAM),)),
    ]
    for _ in range(2):
        with Session(EDGE, cache_dir=tmp_path) as session:
            programs = [session.compile(NET, schedule=each) for each in schedules]
            assert len({program.key for program in programs}) == len(schedules)
            assert [session.compile(NET, schedule=each) for each in schedules] == programs
            codes = [program.code for program in programs]
    assert codes == [compile_graph(NET, EDGE, schedule=each or FREE).code for each in schedules]


def test_errors_of_schedules_are_errors_of_compilation() -> None:
    assert issubclass(ScheduleError, CompileError)


@pytest.mark.parametrize(
    "shard",
    [
        pytest.param(LayerShard("conv", 2), marks=pytest.mark.slow),
        pytest.param(LayerShard("conv_2", None, 2), marks=pytest.mark.slow),
        LayerShard("conv_1", 2, 2),
    ],
)
def test_a_layer_is_cut_as_the_schedule_says(shard: LayerShard) -> None:
    found = explained(NET, FOUR, Schedule(cores=4, shards=(shard,)))
    assert shard in found.schedule.shards
    number = neighbours(found).index(shard.layer)
    used = {command.core for command in decode(found.program.code) if command.op == number}
    assert used == set(range(shard.cores or 4))
    check(found, NET, FOUR)
