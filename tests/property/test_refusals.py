"""Any graph on any device gives a program or a refusal in the user's terms, and never anything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import CompileError, NpusimError, UnsupportedError
from npusim.isa.functions import Binary
from npusim.ops.build import GraphBuilder
from tests.support.graphs.random_graphs import QUIET, graphs
from tests.support.graphs.random_values import RandomGraph
from tests.support.random_devices import KIB, TINY, Device, devices

UNITS = ("matrix", "vector", "scalar")
ABSENT = ((), ("matrix",), ("vector",), ("scalar",), ("matrix", "scalar"), ("vector", "scalar"))


@st.composite
def meagre_devices(draw: st.DrawFn) -> Device:
    """Draw devices with very little SRAM, and often without a matrix, vector or scalar unit."""
    overrides: dict[str, Any] = dict(draw(devices()).overrides)
    overrides["sram.bytes"] = draw(st.sampled_from((4, 5, 6, 8, 64))) * KIB
    for unit in draw(st.sampled_from(ABSENT)):
        overrides = {name: value for name, value in overrides.items() if not name.startswith(f"{unit}.")}
        overrides[unit] = None
    return Device(overrides)


def refusal(case: RandomGraph, device: Device) -> NpusimError | None:
    """Return the error, or None for a program. Any other exception fails the test."""
    try:
        program = compile_graph(case.graph, device.config)
    except (CompileError, UnsupportedError) as error:
        return error
    assert program.commands >= 1
    return None


def check(case: RandomGraph, device: Device) -> None:
    error = refusal(case, device)
    if isinstance(error, UnsupportedError):
        missing = [unit for unit in UNITS if getattr(device.config, unit) is None]
        names = {op.name for op in case.graph.ops}
        for name, _, reason in error.reasons:
            assert any(reason == f"tiny has no {unit} unit" for unit in missing), reason
            assert any(name.startswith(known) for known in names), name
    elif error is not None:
        assert "its smallest tile takes" in str(error) or "its smallest piece takes" in str(error)  # of a routine
        assert any(str(error).startswith(op.name) for op in case.graph.ops), error


@settings(max_examples=60, suppress_health_check=QUIET)
@given(graphs(), meagre_devices())
def test_meagre_devices_compile_or_refuse(case: RandomGraph, device: Device) -> None:
    check(case, device)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=QUIET)
@given(graphs(most_steps=10), meagre_devices())
def test_many_compile_or_refuse(case: RandomGraph, device: Device) -> None:
    check(case, device)


@pytest.mark.parametrize("dtype", [DType.UINT32, DType.UINT64, DType.FLOAT64])
@pytest.mark.parametrize("kind", ["binary", "reshape", "concat"])
def test_types_of_the_language_that_no_device_has(dtype: DType, kind: str) -> None:
    """The graph language has them for constant folding; a device refuses them anywhere."""
    build = GraphBuilder("odd")
    x = build.input("x", (4, 4), dtype)
    rules: dict[str, dict[str, Any]] = {
        "binary": {"fn": Binary.ADD},
        "reshape": {"shape": (16,)},
        "concat": {"axis": 0},
    }
    attrs = rules[kind]
    graph = build.finish([build.add(kind, [x] if kind == "reshape" else [x, x], attrs, "it")])
    with pytest.raises(UnsupportedError, match=rf"^it \({kind}\): tiny does not compute with {dtype.label}$"):
        compile_graph(graph, TINY)
