"""Models of a few hundred bytes that require years and terabytes: refused quickly and in little memory through every
interface."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from npusim.errors import CompileError
from npusim.frontends.onnx import load
from npusim.hw.config import load_config
from npusim.runtime import Session

node = helper.make_node
GIB = 1 << 30


def model(
    nodes: Sequence[NodeProto], constants: dict[str, object], functions: Sequence[onnx.FunctionProto] = ()
) -> bytes:
    """Build float x [1] to y with these nodes."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions).SerializeToString()


def filled(*then: NodeProto, shape: Sequence[int], value: object = np.zeros(1, np.float32)) -> bytes:
    """Repeat one element as often as a shape says, in c."""
    fill = node("ConstantOfShape", ["shape"], ["c"], value=numpy_helper.from_array(np.asarray(value)))
    return model([fill, *then], {"shape": np.int64(shape)})


def multiplied(levels: int) -> bytes:
    """Build functions that call the next one twice."""
    functions = []
    for level in range(levels):
        domain, name = ("local", f"f{level + 1}") if level + 1 < levels else ("", "Relu")
        calls = [node(name, ["a"], ["t"], domain=domain), node(name, ["t"], ["b"], domain=domain)]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{level}", ["a"], ["b"], calls, opsets))
    return model([node("f0", ["x"], ["y"], domain="local")], {}, functions)


def looped(levels: int) -> bytes:
    """Build nested loops of 4096 iterations."""
    inner = node("Relu", ["v0"], ["w0"])
    for level in range(levels):
        inputs = [(f"i{level}", TensorProto.INT64), (f"c{level}", TensorProto.BOOL), (f"v{level}", TensorProto.FLOAT)]
        body = helper.make_graph(
            [inner], "body", [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs],
            [helper.make_tensor_value_info(f"c{level}", TensorProto.BOOL, None),
             helper.make_tensor_value_info(f"w{level}", TensorProto.FLOAT, None)],
        )  # fmt: skip
        last = level + 1 == levels
        inner = node("Loop", ["n", "", "x" if last else f"v{level + 1}"], ["y" if last else f"w{level + 1}"], body=body)
    return model([inner], {"n": np.int64(4096)})


def doubled(times: int) -> bytes:
    """Concatenate a constant with itself repeatedly; one element of the result is used."""
    joins = [node("Concat", [f"c{step}", f"c{step}"], [f"c{step + 1}"], axis=0) for step in range(times)]
    last = [node("ReduceMax", [f"c{times}"], ["m"]), node("Add", ["x", "m"], ["y"])]
    return model([*joins, *last], {"c0": np.ones(1024, np.float32)})


def repeated(operator: str, times: int, constants: dict[str, object], *inputs: str) -> bytes:
    """Build operators that each make a table, all of them used."""
    tables = [node(operator, inputs, [f"t{step}"]) for step in range(times)]
    sums = [node("ReduceMax", [f"t{step}"], [f"m{step}"]) for step in range(times)]
    return model([*tables, *sums, node("Sum", ["x", *(f"m{step}" for step in range(times))], ["y"])], constants)


MODELS = {
    "a constant": (filled(node("Identity", ["c"], ["y"]), shape=[GIB // 4]), "y: wants"),
    "a constant that is added": (filled(node("Add", ["x", "c"], ["y"]), shape=[GIB // 4]), r"Add_1 \(binary\): wants"),
    "a sum of a constant": (filled(node("ReduceSum", ["c"], ["y"]), shape=[GIB]), r"ReduceSum_1 \(reduce\): wants"),
    "a sum of more": (filled(node("ReduceSum", ["c"], ["y"]), shape=[1 << 38]), r"'c' \[274877906944\] has 2748"),
    "a shape": (
        filled(node("Reshape", ["x", "c"], ["y"]), shape=[1 << 24], value=np.ones(1, np.int64)), "a list of 16777216",
    ),
    "a larger shape": (
        filled(node("Reshape", ["x", "c"], ["y"]), shape=[GIB], value=np.ones(1, np.int64)), "of too many elements",
    ),
    "dimensions": (
        filled(node("Reshape", ["x", "c"], ["y"]), shape=[60000], value=np.ones(1, np.int64)), "up to 64 dimensions",
    ),
    "places": (
        filled(node("NonZero", ["c"], ["z"]), node("Cast", ["z"], ["y"], to=1), shape=[GIB]), "needs a table of",
    ),
    "functions": (multiplied(60), "f0_0: wants"),
    "loops": (looped(3), "Loop_1: wants .* steps"),
    "joins": (doubled(40), r"Concat_\d+/concat \(concat\): wants"),
    "ranges": (
        repeated("Range", 60, {"a": np.float32(0), "b": np.float32(16e6), "d": np.float32(1)}, "a", "b", "d"),
        r"Range_\d \(Range\): wants",
    ),
    "a tile": (
        model([node("Tile", ["c", "r"], ["t"]), node("Add", ["x", "t"], ["y"])],
              {"c": np.ones(64, np.float32), "r": np.int64([1 << 24])}), r"Tile_0 \(reshape\): wants",
    ),
    "an edge": (
        model([node("Pad", ["x", "p"], ["y"], mode="edge")], {"p": np.int64([0, GIB // 8])}), None,
    ),
    "a product": (
        model([node("ConstantOfShape", ["s"], ["c0"]),
               *(node("MatMul", [f"c{step}", f"c{step}"], [f"c{step + 1}"]) for step in range(60)),
               node("ReduceMax", ["c60"], ["m"]), node("Add", ["x", "m"], ["y"])], {"s": np.int64([290, 290])}),
        r"MatMul_\d+/matmul \(matmul\): wants",
    ),
    "a window": (
        model([node("ConstantOfShape", ["s"], ["c"]), node("ConstantOfShape", ["k"], ["w"]),
               node("Conv", ["c", "w"], ["v"]), node("ReduceMax", ["v"], ["m"], keepdims=0),
               node("Cast", ["m"], ["i"], to=7), node("Reshape", ["i", "one"], ["e"]),
               node("Expand", ["x", "e"], ["y"])],
              {"s": np.int64([1, 1, 700, 700]), "k": np.int64([1, 1, 300, 300]), "one": np.int64([1])}),
        r"Conv_2 \(conv\): wants",
    ),
    "moved by the element": (
        model([node("Expand", ["x", "s"], ["e"]), node("Transpose", ["e"], ["t"], perm=list(range(25))[::-1]),
               node("Reshape", ["t", "s"], ["r"]), node("Add", ["r", "w"], ["y"])],
              {"s": np.int64([2] * 25), "w": np.zeros([1] * 24 + [2], np.float32)}), None,
    ),
}  # fmt: skip
"""By name: the bytes, and the error text; None if the device can run it."""


@pytest.mark.parametrize("name", MODELS)
def test_an_error_names_the_node_and_what_it_wanted(name: str) -> None:
    data, problem = MODELS[name]
    assert len(data) < 10_000
    if problem is not None:
        with pytest.raises(Exception, match=problem) as caught:
            Session("tiny", cache_dir=False).compile(data)
        assert type(caught.value).__module__ == "npusim.errors"


CHILD = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from hal.onnxifi import engine
from hal.onnxifi.status import OnnxifiError, Status
from tests.unit.frontends.test_limits import MODELS
backend = engine.init_backend(0, ())
before = resource.getrusage(resource.RUSAGE_SELF)
found = {}
for name, (data, problem) in MODELS.items():
    for door in (lambda: engine.compatibility(0, data), lambda: engine.init_graph(backend, (), data, None)[0]):
        try:
            status = Status(door()).name
        except OnnxifiError as error:
            status = error.status.name
        found.setdefault(name, []).append(status)
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([found, after.ru_utime - before.ru_utime, after.ru_maxrss - before.ru_maxrss]))
"""


@pytest.mark.slow
def test_onnxifi_says_at_both_doors_that_it_is_too_large() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=300, check=True)
    found, seconds, kib = json.loads(done.stdout)
    for name, statuses in found.items():
        if MODELS[name][1] is not None:
            assert set(statuses) <= {"UNSUPPORTED_SHAPE", "NO_DEVICE_MEMORY"}, (name, statuses)
            assert statuses[0] == "UNSUPPORTED_SHAPE", (name, statuses)
    assert kib < 600 << 10
    assert seconds < 60, "of processor time for all, on however slow a machine"


def test_a_description_may_allow_more() -> None:
    data = filled(node("Add", ["x", "c"], ["y"]), shape=[1 << 20])
    config = load_config("tiny").with_(**{"host.compile_bytes": 1 << 20})
    with pytest.raises(CompileError, match=r"wants 1398100 bytes .* of a budget of 1048576 bytes"):
        Session(config, cache_dir=False).compile(data)
    assert (
        Session(config.with_(**{"host.compile_bytes": "8 MiB"}), cache_dir=False).compile(data).constants.nbytes
        >= 1 << 22
    )


def test_a_loop_that_its_condition_ends_may_have_a_count_beyond_the_budget() -> None:
    """An unreachable count is not refused, unless the condition is only passed through."""
    proto = onnx.load_from_string(looped(1))
    short = load_config("tiny").with_(**{"host.compile_bytes": 1 << 20})
    assert len(load(proto, config=short).ops) < 20
    (loop,) = proto.graph.node
    body = loop.attribute[0].g
    body.node.append(node("Cast", ["i0"], ["number"], to=TensorProto.FLOAT))  # so its iterations differ
    with pytest.raises(CompileError, match=r"^Loop_0: wants \d+ steps"):
        load(proto, config=short)
    body.node.append(node("Less", ["i0", "three"], ["go"]))
    body.output[0].name = "go"
    proto.graph.initializer.append(numpy_helper.from_array(np.int64(3), "three"))
    assert len(load(proto, config=short).ops) == 4
