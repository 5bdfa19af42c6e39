"""Equal inputs give equal bytes and picoseconds: in a second run, without arithmetic, and in any process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
from hypothesis import given, settings

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session
from tests.support.graphs.execution import compiled, simulated
from tests.support.graphs.random_graphs import QUIET, graphs
from tests.support.graphs.random_values import RandomGraph
from tests.support.random_devices import Device, devices

TARGET = load_config("tiny").with_(**{"cores": 2, "dma.channels": 2, "sram.bytes": 16384})


@settings(max_examples=30, suppress_health_check=QUIET)
@given(graphs(), devices())
def test_arithmetic_takes_no_time(case: RandomGraph, device: Device) -> None:
    """A timing-only run gives the same timeline, to the last field of the last span, and the same counters."""
    program = compiled(case.graph, device.config)
    if program is None:
        return
    whole = simulated(program, device.config, case.inputs)
    timed = simulated(program, device.config, {}, timing_only=True)
    assert timed.timeline.digest() == whole.timeline.digest()
    assert timed.cycles == whole.cycles
    assert timed.counters == whole.counters
    assert timed.outputs == {}


@settings(max_examples=30, suppress_health_check=QUIET)
@given(graphs(), devices())
def test_compiling_twice_gives_the_same_bytes(case: RandomGraph, device: Device) -> None:
    first, again = compiled(case.graph, device.config), compiled(case.graph, device.config)
    if first is None or again is None:
        assert first is again
        return
    assert first.code == again.code
    assert bytes(first.constants.joined()) == bytes(again.constants.joined())
    assert (first.region_bytes, first.ops, first.macs) == (again.region_bytes, again.ops, again.macs)


@settings(max_examples=20, suppress_health_check=QUIET)
@given(graphs(), devices())
def test_compiling_leaves_the_graph_alone(case: RandomGraph, device: Device) -> None:
    before = case.graph.fingerprint()
    compiled(case.graph, device.config)
    assert case.graph.fingerprint() == before


@settings(max_examples=15, suppress_health_check=QUIET)
@given(graphs(), devices())
def test_a_second_run_is_like_the_first(case: RandomGraph, device: Device) -> None:
    """A run leaves nothing that the next one could observe."""
    program = compiled(case.graph, device.config)
    if program is None:
        return
    session = Session(device.config, cache_dir=False)
    first, second = (session.run(program, case.inputs) for _ in range(2))
    assert first.timeline.digest() == second.timeline.digest()
    for name, array in first.outputs.items():
        assert array.tobytes() == second.outputs[name].tobytes()


def branching() -> Graph:
    """Build branches, a concatenation and an integer island: enough choices to reveal an unstable order."""
    build = GraphBuilder("branching")
    x = build.input("x", (1, 12, 10, 10), DType.FLOAT32)
    rng = np.random.default_rng(5)
    branches = []
    for kernel in (1, 3, 5):
        weights = build.const(rng.standard_normal((8, 12, kernel, kernel)).astype(np.float32))
        bias = build.const(rng.standard_normal(8).astype(np.float32))
        attrs = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (kernel // 2,) * 4, "groups": 1}
        y = build.add("conv", [x, weights, bias], attrs)
        branches.append(build.add("unary", [y], {"fn": Unary.RELU}))
    y = build.add("concat", branches, {"axis": 1})
    y = build.add("binary", [y, build.const(rng.standard_normal((24, 1, 1)).astype(np.float32))], {"fn": Binary.MUL})
    mean = build.add("reduce", [y], {"fn": Reduce.MEAN, "axes": (2, 3), "keepdims": False})
    total = build.add("matmul", [mean, build.const(rng.standard_normal((24, 10)).astype(np.float32))])
    return build.finish([build.add("softmax", [total], {"axis": 1, "log": False}), mean])


def signature() -> dict[str, str]:
    """Return everything that must not depend on the process."""
    program = compile_graph(branching(), TARGET)
    x = np.random.default_rng(6).standard_normal((1, 12, 10, 10)).astype(np.float32)
    result = simulated(program, TARGET, {"x": x})
    outputs = hashlib.sha256(b"".join(result.outputs[name].tobytes() for name in sorted(result.outputs)))
    return {
        "fingerprint": branching().fingerprint(),
        "code": hashlib.sha256(program.code).hexdigest(),
        "constants": hashlib.sha256(program.constants.joined()).hexdigest(),
        "timeline": result.timeline.digest(),
        "outputs": outputs.hexdigest(),
    }


def test_no_process_and_no_hash_seed_changes_anything() -> None:
    here = signature()
    script = "import json; from tests.property.test_determinism import signature; print(json.dumps(signature()))"
    for seed in ("0", "31337"):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert json.loads(done.stdout) == here, f"PYTHONHASHSEED={seed}"
