"""Three ways to run a graph give one result: its reference, its program in program order, and the device."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import to_storage
from npusim.errors import UnsupportedError
from npusim.hw.config import Config, load_config
from npusim.ops import reference
from tests.support.examples import examples
from tests.support.graphs.comparison import near_reference, same_bytes
from tests.support.graphs.execution import compiled, interpreted, outputs_of, simulated
from tests.support.graphs.random_graphs import QUIET, graphs, graphs_with
from tests.support.graphs.random_operators import STEPS
from tests.support.graphs.random_values import RandomGraph
from tests.support.random_devices import TINY, Device, devices


def check(case: RandomGraph, config: Config) -> None:
    """Check that reference, interpreter and simulator agree."""
    program = compiled(case.graph, config)
    if program is None:
        return
    prepared = reference.run(prepare(case.graph, config), case.inputs)
    in_order = interpreted(program, config, case.inputs)
    named = dict(zip(case.expected, (to_storage(array) for array in prepared.values()), strict=True))
    near_reference(case, in_order, named)
    result = simulated(program, config, case.inputs)
    same_bytes(outputs_of(result), in_order, "simulator against interpreter")


@pytest.mark.parametrize("kind", STEPS)
@settings(max_examples=examples(4), suppress_health_check=QUIET)
@given(data=st.data())
def test_every_kind(kind: str, data: st.DataObject) -> None:
    check(data.draw(graphs_with(kind)), data.draw(devices()).config)


@settings(max_examples=50, suppress_health_check=QUIET)
@given(graphs(), devices())
def test_any_graph(case: RandomGraph, device: Device) -> None:
    check(case, device.config)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
@settings(max_examples=40, suppress_health_check=QUIET)
@given(data=st.data())
def test_every_kind_at_length(kind: str, data: st.DataObject) -> None:
    check(data.draw(graphs_with(kind)), data.draw(devices()).config)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=QUIET)
@given(graphs(most_steps=10), devices())
def test_any_graph_at_length(case: RandomGraph, device: Device) -> None:
    check(case, device.config)


@settings(max_examples=25, suppress_health_check=QUIET)
@given(graphs() | graphs(special=True), devices(), devices())
def test_results_do_not_depend_on_the_device(case: RandomGraph, one: Device, other: Device) -> None:
    """Tile sizes, cores and channels change no bit, not even of floats."""
    targets = (one.config, other.config, TINY)
    programs = [compiled(case.graph, config) for config in targets]
    results = [
        interpreted(program, config, case.inputs)
        for program, config in zip(programs, targets, strict=True)
        if program is not None
    ]
    for result in results[1:]:
        same_bytes(result, results[0], "another device")


@settings(max_examples=20, suppress_health_check=QUIET)
@given(graphs() | graphs(special=True), devices())
def test_fusion_changes_no_bit(case: RandomGraph, device: Device) -> None:
    """A value that stays on chip between two operators is rounded as if it had been stored."""
    fused = compiled(case.graph, device.config)
    with mock.patch("npusim.compiler.grouping.groups._is_fused", return_value=False):
        unfused = compiled(case.graph, device.config)
    if fused is not None and unfused is not None:
        wanted = interpreted(unfused, device.config, case.inputs)
        same_bytes(interpreted(fused, device.config, case.inputs), wanted, "fused against apart")


SHIPPED = ("tiny", "edge", "gemmini", "mobile", "server", "tpuv1")


@settings(max_examples=10, suppress_health_check=QUIET)
@given(graphs())
def test_every_shipped_device_gives_the_same_result(case: RandomGraph) -> None:
    """Or it reports the operator for which it has no unit."""
    results = {}
    for name in SHIPPED:
        config = load_config(name)
        try:
            program = compile_graph(case.graph, config)
        except UnsupportedError:
            continue
        results[name] = interpreted(program, config, case.inputs)
    assert "tiny" in results, "it has every unit"
    for name, result in results.items():
        same_bytes(result, results["tiny"], name)
