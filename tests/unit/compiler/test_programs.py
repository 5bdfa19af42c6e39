"""Programs of every operator kind compute what the reference says and match the recorded listings."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import to_storage
from npusim.ops import reference
from npusim.ops.base import REGISTRY, RowForm
from npusim.runtime import Session
from tests.support.graphs.every_kind import CASES, ROOMY, SMALL, TWIN
from tests.support.graphs.execution import interpreted
from tests.unit.compiler.listing import PATH, compiled, on_record


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_reference(name: str) -> None:
    """The interpreter executes in program order, the device in any order that the waits allow."""
    case = CASES[name]
    graph, feeds = case.graph()
    program = compile_graph(graph, case.config)
    wanted = reference.run(graph, feeds)
    got = interpreted(program, case.config, feeds)
    assert set(got) == set(wanted)
    for output, array in wanted.items():
        assert got[output].dtype == to_storage(array).dtype
        if case.exact:
            np.testing.assert_array_equal(got[output], to_storage(array), err_msg=output)
        else:
            np.testing.assert_allclose(got[output], array, rtol=1e-5, atol=1e-6, err_msg=output)
    with Session(case.config, cache_dir=False) as session:
        ran = session.run(program, feeds).outputs
    for output, array in got.items():
        np.testing.assert_array_equal(to_storage(ran[output]), array, err_msg=f"{output} on the device")


@pytest.mark.parametrize("name", CASES)
def test_programs_are_those_on_record(name: str) -> None:
    """Tile sizes, order, waits and channels are as recorded. Record again after an intended change."""
    found = on_record(name, compiled(name))
    assert found in PATH.read_text(encoding="utf-8"), f"{found}if this is meant: python -m tests.unit.compiler.listing"


def lowered_as(kind: str) -> object:
    """Return what decides how a kind is tiled. Row kinds differ only in their instruction, which test_kinds checks."""
    form = REGISTRY[kind].form
    return (form.trailing, form.single) if isinstance(form, RowForm) else kind


def test_every_way_to_lower_has_a_case() -> None:
    kinds = {op.kind for case in CASES.values() for op in case.graph()[0].ops}
    assert {lowered_as(kind) for kind in kinds} == {lowered_as(kind) for kind in REGISTRY}


@pytest.mark.parametrize("name", CASES)
def test_programs_fit_any_of_these_devices(name: str) -> None:
    """A case compiled for another device still gives the right results."""
    case = CASES[name]
    graph, feeds = case.graph()
    for config in (SMALL, TWIN, ROOMY):
        if config is case.config or case.config not in (SMALL, TWIN, ROOMY):
            continue
        program = compile_graph(graph, config)
        prepared = reference.run(prepare(graph, config), feeds)
        got = interpreted(program, config, feeds)
        for tensor, output in zip(graph.outputs, got, strict=True):
            np.testing.assert_allclose(got[output], to_storage(prepared[tensor.name]), rtol=1e-5, atol=1e-6)
