"""Tables that must be complete: numbers, statuses, errors, causes of refusals."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import npusim.frontends.onnx as frontend
from hal.onnxifi import constants
from hal.onnxifi.causes import CAUSES, cause, worst
from hal.onnxifi.edge import ONNXIFI_STATUS, answers, status_of
from hal.onnxifi.status import RETURNS, OnnxifiError, Status, within
from npusim import errors
from npusim.frontends.onnx import signature
from tests.support.onnxifi.contract import CONTRACT

HEADER = Path(__file__).parents[3] / "hal/abi/include/onnxifi.h"
PREFIXES = {
    "ONNXIFI_STATUS_": Status,
    "ONNXIFI_DATATYPE_": constants.DataType,
    "ONNXIFI_MEMORY_TYPE_": constants.MemoryType,
    "ONNXIFI_CAPABILITY_": constants.Capability,
    "ONNXIFI_DEVICE_TYPE_": constants.DeviceType,
    "ONNXIFI_OPTIMIZATION_": constants.Optimization,
    "ONNXIFI_LOG_LEVEL_": constants.LogLevel,
    "ONNXIFI_SYNCHRONIZATION_": constants.Synchronization,
    "ONNXIFI_EVENT_STATE_": constants.EventState,
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_numbers_are_those_of_the_header(prefix):
    text = HEADER.read_text(encoding="utf-8")
    found = {name: int(value, 0) for name, value in re.findall(rf"#define {prefix}(\w+)\s+(0x[0-9A-Fa-f]+|\d+)", text)}
    found |= {n: int(v, 0) for n, v in re.findall(rf"^\s*{prefix}(\w+) = (0x[0-9A-Fa-f]+|\d+)", text, re.MULTILINE)}
    ours = {item.name: int(item) for item in PREFIXES[prefix]}
    assert found
    assert {name: ours.get(name) for name in found} == found


@pytest.mark.parametrize(
    ("kind", "prefix", "count"), [(constants.BackendInfo, "", 29), (constants.BackendProperty, "PROPERTY_", 5)]
)
def test_numbers_of_a_backend_are_those_of_the_header(kind, prefix, count):
    """Two lists of the header share one prefix, and two properties lack a separate one."""
    text = HEADER.read_text(encoding="utf-8")
    found = dict(re.findall(r"#define ONNXIFI_BACKEND_(\w+)\s+(\d+)", text))
    assert {item.name: found.get(prefix + item.name, found.get(item.name)) for item in kind} == {
        item.name: str(int(item)) for item in kind
    }
    assert len(kind) == count


def test_every_status_is_returned_by_a_function_or_is_the_fatal_one():
    assert set(Status) - {status for statuses in RETURNS.values() for status in statuses} == {Status.FATAL_ERROR}
    assert len(Status) == 37


def test_the_contract_has_every_line_and_the_table_of_statuses_agrees():
    assert sorted(CONTRACT) == list(range(1, 136))
    extra = {("onnxInitGraph", Status.UNSUPPORTED_TAG), ("onnxInitGraph", Status.INVALID_NAME)}
    lines = {(line.function, line.status) for line in CONTRACT.values()}
    assert lines | extra == {(function, status) for function, statuses in RETURNS.items() for status in statuses}


def exceptions_of(module):
    found = [item for _, item in inspect.getmembers(module, inspect.isclass) if item.__module__ == module.__name__]
    return [item for item in found if issubclass(item, Exception)]


@pytest.mark.parametrize("module", [errors, signature], ids=lambda module: module.__name__)
def test_every_error_has_a_row(module):
    assert [kind.__name__ for kind in exceptions_of(module) if kind not in ONNXIFI_STATUS] == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OnnxifiError(Status.INVALID_NAME, "x"), Status.INVALID_NAME),
        (errors.DeviceGoneError("UNPLUGGED", 0, "x"), Status.BACKEND_UNAVAILABLE),
        (errors.DeviceMemoryError("x"), Status.NO_DEVICE_MEMORY),
        (errors.QueueFullError("x"), Status.NO_DEVICE_RESOURCES),
        (signature.DeclaredShapeError("x"), Status.MISMATCHING_SHAPE),
        (errors.UnsupportedError([("n", "Foo", "npusim has no operator Foo of version 1 of the standard domain")]),
         Status.UNSUPPORTED_OPERATOR),
        (MemoryError(), Status.NO_SYSTEM_MEMORY),
        (PermissionError(), Status.NO_SYSTEM_RESOURCES),
        (KeyError("x"), Status.INTERNAL_ERROR),
    ],
)  # fmt: skip
def test_what_an_error_means(error, status):
    assert status_of(error) is status


@pytest.mark.parametrize("function", RETURNS)
def test_a_status_is_always_from_the_functions_own_list(function):
    assert {within(function, status) for status in Status} <= set(RETURNS[function])
    assert all(within(function, status) is status for status in RETURNS[function])


def test_an_answer_is_from_the_functions_own_list_and_keeps_its_cause():
    @answers("onnxSetGraphIO")
    def compile_fails():
        raise errors.UnsupportedError([("n", "Relu", "edge has no vector unit")])

    with pytest.raises(OnnxifiError, match="no vector unit") as caught:
        compile_fails()
    assert caught.value.status is Status.UNSUPPORTED_SHAPE
    assert isinstance(caught.value.__cause__, errors.UnsupportedError)


ABOUT_ATTRIBUTES = (
    "p={} ", "operand {} has a letter twice", "a constant must have",
    "attribute spatial=0", "training mode", "parameters of activations", "activations {}", "negative padding",
    "attribute {}",
    "activation {}", "mode {} and coordinate_transformation_mode {}", "packed batches", "quantised caches",
    "past_present_share_buffer and do_rotary", "buffers that past and present share", "a mask of 3 * batch + 2 entries",
    "scales of caches, and norms", "attention to later tokens",
    "output {} is used", "g_idx and weights that are packed for a GPU", "gather_axis and quantize_axis are the same",
)  # fmt: skip
"""Refusals that match no pattern of CAUSES because they concern attributes."""


def refusals():
    """Return the text of every refuse() and every UnsupportedError reason in the frontend, with {} for inserted
    values."""
    for path in sorted(Path(frontend.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "refuse":
                text = template(node.args[0])
                if text:
                    yield text


def template(node):
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


def test_every_refusal_of_the_frontend_has_a_cause_that_somebody_chose():
    texts = set(refusals())
    assert len(texts) > 20
    for text in texts:
        filled = text.replace("{}", "7")
        chosen = any(re.search(pattern, filled) for pattern, _ in CAUSES)
        assert chosen or any(text.startswith(start) for start in ABOUT_ATTRIBUTES), text


def test_the_deepest_cause_counts():
    reasons = ["input 1 ('s') must be a constant", "attribute foo is not supported in operator set 9"]
    assert [cause(reason) for reason in reasons] == [Status.UNSUPPORTED_SHAPE, Status.UNSUPPORTED_ATTRIBUTE]
    assert worst(("n", "op", reason) for reason in reasons) is Status.UNSUPPORTED_ATTRIBUTE
    types = "unary takes a float (got int64)"
    assert worst([("n", "op", reasons[0]), ("n", "op", types)]) is Status.UNSUPPORTED_DATATYPE
