"""The shipped routines: pieces give the same bits on any device, and no data makes them fail unexpectedly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npusim._core import Strided
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import CompileError, ProgramError
from npusim.graph import Graph
from npusim.isa.base import ByteArray
from npusim.isa.routine import Operand, routine_instruction
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.ops.routine import routine_attrs
from npusim.routines import Spec, canonical, latest_routine
from npusim.routines.base import _REGISTRY
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import Arrays, interpreted, outputs_of, simulated
from tests.support.random_devices import Device, devices

QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large)
F, I, U = DType.FLOAT32, DType.INT32, DType.UINT8  # noqa: E741

Case = tuple[dict[str, Any], list[Spec]]


def _regions(draw: st.DrawFn, **more: int) -> Case:
    n, h, w, c = (draw(st.integers(low, 6)) for low in (0, 1, 1, 1))
    params = {"height": draw(st.integers(1, 3)), "width": draw(st.integers(1, 3)), "stride_h": 4.0, "stride_w": 4.0}
    return {**params, **more}, [Spec((2, h, w, c), F), Spec((n, 4), F), Spec((n,), I)]


def _align(draw: st.DrawFn) -> Case:
    return _regions(draw, ratio_h=draw(st.integers(0, 2)), ratio_w=draw(st.integers(0, 2)))


def _transform(draw: st.DrawFn) -> Case:
    n, classes = draw(st.integers(0, 12)), draw(st.integers(0, 3))
    return {}, [Spec((n, 4), F), Spec((n, 4 * classes), F), Spec((n,), I), Spec((2, 2), F)]


def _nms(draw: st.DrawFn) -> Case:
    n, classes = draw(st.integers(0, 12)), draw(st.integers(1, 4))
    params = {
        "score_threshold": 0.1, "most": draw(st.integers(-1, 4)), "kernel": draw(st.integers(0, 2)),
        "iou_threshold": 0.3, "sigma": 0.5, "nms_threshold": 0.1,
    }  # fmt: skip
    return params, [Spec((n, classes), F), Spec((n, 4 * classes), F), Spec((n,), I)]


def _proposals(draw: st.DrawFn) -> Case:
    b, h, w, a = (draw(st.integers(0, 3)) for _ in range(4))
    params = {
        "stride_h": 4.0, "stride_w": 4.0, "before": draw(st.integers(-1, 9)), "after": draw(st.integers(-1, 5)),
        "iou_threshold": 0.3, "least_size": 0.5,
    }  # fmt: skip
    return params, [Spec((b, h, w, a), F), Spec((b, h, w, 4 * a), F), Spec((a, 4), F), Spec((b, 2), F)]


def _detections(draw: st.DrawFn) -> Case:
    b, n, classes, length = (draw(st.integers(low, high)) for low, high in ((0, 4), (0, 9), (2, 4), (4, 5)))
    params = {
        "scale": (10.0, 10.0, 5.0, 5.0), "regular": draw(st.booleans()), "most": draw(st.integers(1, 5)),
        "of_box": draw(st.integers(1, 4)), "of_class": draw(st.integers(1, 4)), "score_threshold": 0.1,
        "iou_threshold": 0.3, "first_label": draw(st.integers(0, 1)),
    }  # fmt: skip
    return params, [Spec((b, n, classes), F), Spec((b, n, length), F), Spec((n, 4), F)]


def _heatmap(draw: st.DrawFn) -> Case:
    n, size, keys = draw(st.integers(0, 5)), draw(st.integers(2, 6)), draw(st.integers(0, 5))
    return {}, [Spec((n, size, size, keys), F), Spec((n, 4), F)]


def _search(draw: st.DrawFn) -> Case:
    return {}, [Spec((draw(st.integers(0, 40)),), I), Spec((draw(st.integers(0, 20)),), I)]


def _lsh(draw: st.DrawFn) -> Case:
    hashes, bits, items, width = (draw(st.integers(low, 7)) for low in (0, 0, 1, 0))
    kind = draw(st.sampled_from([F, I, U, DType.INT16]))
    return {}, [Spec((hashes, bits), F), Spec((items, width), kind), Spec((items,), F)]


def _multinomial(draw: st.DrawFn) -> Case:
    b, classes = draw(st.integers(0, 3)), draw(st.integers(1, 9))
    return {"samples": draw(st.integers(0, 9))}, [Spec((b, classes), F), Spec((2,), I)]


CASES: dict[str, Callable[[st.DrawFn], Case]] = {
    "npusim.roi_align": _align,
    "npusim.roi_pool": _regions,
    "npusim.bbox_transform": _transform,
    "npusim.box_nms": _nms,
    "npusim.proposals": _proposals,
    "npusim.detections": _detections,
    "npusim.heatmap_peaks": _heatmap,
    "npusim.search_keys": _search,
    "npusim.lsh_bits": _lsh,
    "npusim.multinomial": _multinomial,
}
each_routine = pytest.mark.parametrize("name", CASES)


def test_every_shipped_routine_is_here() -> None:
    assert {name for name, _ in _REGISTRY if name.startswith("npusim.")} == set(CASES)


def graph_of(name: str, case: Case) -> Graph:
    params, specs = case
    build = GraphBuilder(name)
    inputs = [build.input(f"in{index}", spec.shape, spec.dtype) for index, spec in enumerate(specs)]
    return build.finish(build.add_all("routine", inputs, routine_attrs(name, **params)))


def sensible(graph: Graph, seed: int) -> Arrays:
    """Return boxes with ordered corners, scores and logits, and valid batches."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for tensor in graph.inputs:
        if tensor.dtype is F:
            array = rng.uniform(0, 4, tensor.shape)
            if tensor.shape[-1:] == (4,):
                array[..., 2:] += array[..., :2]
        else:
            array = np.sort(rng.integers(0, 2, tensor.shape), axis=None).reshape(tensor.shape)
        arrays[tensor.name] = array.astype(tensor.dtype.storage)
    return arrays


@each_routine
@settings(max_examples=12, suppress_health_check=QUIET)
@given(data=st.data())
def test_every_device_gives_what_the_reference_gives(name: str, data: st.DataObject) -> None:
    graph = graph_of(name, CASES[name](data.draw))
    device: Device = data.draw(devices())
    inputs = sensible(graph, data.draw(st.integers(0, 99)))
    wanted = reference.run(graph, inputs)
    try:
        program = compile_graph(graph, device.config)
    except CompileError as error:
        said = str(error)
        pytest.fail(f"so little does not fit? {said}")
    same_bytes(interpreted(program, device.config, inputs), wanted, "interpreter")
    same_bytes(outputs_of(simulated(program, device.config, inputs)), wanted, "simulator")


class Flat:
    """One array for everything."""

    def __init__(self, array: ByteArray) -> None:
        self.array = array

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        return Strided(self.array, address, strides)


STRANGE = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0, 0.5, 1, -1], np.float32)


@each_routine
@settings(max_examples=40, suppress_health_check=QUIET)
@given(data=st.data())
def test_no_data_brings_a_routine_down(name: str, data: st.DataObject) -> None:
    """Random bytes and unusual floats: a result or a fault, nothing written outside of the outputs, and twice the
    same."""
    params, specs = CASES[name](data.draw)
    routine = latest_routine(name)
    operands, at = [], 0
    for spec in (*specs, *routine.outputs(specs, params)):
        operands.append(Operand(at, spec.dtype, spec.shape))
        at += -(-spec.nbytes // 64) * 64 + 64
    instruction = routine_instruction(routine, canonical(params), operands[: len(specs)], operands[len(specs) :])
    instruction.check()
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    memory = rng.integers(0, 256, at, np.uint8)
    for operand in operands:
        if operand.dtype is F and operand.spec.size and data.draw(st.booleans()):
            raw = memory[operand.address : operand.address + operand.spec.nbytes].view(np.float32)
            raw[:] = rng.choice(STRANGE, raw.size)
    results = []
    for _ in range(2):
        after = memory.copy()
        try:
            instruction.execute(Flat(after), 0)
        except ProgramError as error:
            results.append(str(error).encode())
            continue
        results.append(after.tobytes())
        for access in instruction.accesses():
            if access is not None and access.write:
                after[access.address + access.low : access.address + access.high] = 0
                memory[access.address + access.low : access.address + access.high] = 0
        np.testing.assert_array_equal(after, memory)
    assert results[0] == results[1]
