"""Registered routines, and what they refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from npusim.dtypes import DType
from npusim.errors import ModelError, UsageError
from npusim.graph import Graph
from npusim.ops.build import GraphBuilder
from npusim.ops.routine import routine_attrs
from npusim.routines import Spec, canonical, find_routine, latest_routine, register_routine, unregister_routine
from tests.support.sample_routines import PLAIN, SCALE, registered

NEWER = dataclasses.replace(SCALE, version=2)
SPECS = [Spec((2, 3, 4), DType.INT32), Spec((3,), DType.INT32)]


def graph(**changes: Any) -> Graph:
    build = GraphBuilder("g")
    x, w = build.input("x", (2, 3, 4), DType.INT32), build.input("w", (3,), DType.INT32)
    return build.finish(build.add_all("routine", [x, w], routine_attrs("test.scale", **{**PLAIN, **changes})))


def test_a_name_and_version_is_registered_once() -> None:
    with pytest.raises(UsageError, match=r"routine test\.scale version 1 is already registered"):
        register_routine(SCALE)
    with pytest.raises(UsageError, match=r"routine test\.scale version 2 is not registered"):
        unregister_routine(NEWER)


def test_new_graphs_call_the_newest_version() -> None:
    before = graph().fingerprint()
    with registered(NEWER):
        assert latest_routine("test.scale") is NEWER
        assert find_routine("test.scale", 1) is SCALE
        assert graph().fingerprint() != before, "the program of another version must not be found in a cache"
    assert latest_routine("test.scale") is SCALE
    assert graph().fingerprint() == before


def test_parameters_are_part_of_the_fingerprint() -> None:
    assert graph().fingerprint() != graph(factor=4).fingerprint()


@pytest.mark.parametrize("name", ["", "Test", "a..b", "a b", ".a", "x" * 101])
def test_strange_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="routine name must be lower-case words"):
        register_routine(dataclasses.replace(SCALE, name=name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 0}, r"version must be in \[1, 65535\], got 0"),
        ({"params": {"a": list}}, "parameter 'a' must be bool, int, float, str or tuple"),
    ],
)
def test_what_cannot_be_encoded_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        register_routine(dataclasses.replace(SCALE, name="test.strange", **changes))


@pytest.mark.parametrize("value", [np.float32(1), [1], None, 1 << 63, ((((1,),),),), b"x"])
def test_parameters_are_plain(value: Any) -> None:
    with pytest.raises(UsageError, match="routine parameter 'a' must be"):
        canonical({"a": value})


def test_parameters_are_sorted() -> None:
    assert canonical({"b": (1, "x", (True,)), "a": 1.5}) == (("a", 1.5), ("b", (1, "x", (True,))))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({**PLAIN, "more": 1}, "unknown parameter 'more'; it has factor, fail, cuts, label"),
        ({k: v for k, v in PLAIN.items() if k != "fail"}, "parameter 'fail' is missing"),
        ({**PLAIN, "factor": 1.0}, "parameter 'factor' must be int, got float"),
        ({**PLAIN, "factor": True}, "parameter 'factor' must be int, got bool"),
    ],
)
def test_parameters_are_those_that_are_declared(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        SCALE.outputs(SPECS, params)


def test_a_rule_that_breaks_down_is_a_model_error() -> None:
    with pytest.raises(ModelError, match=r"routine test.scale: ValueError: not enough values"):
        SCALE.outputs(SPECS[:1], PLAIN)


def test_a_rule_may_not_give_absurd_shapes() -> None:
    absurd = dataclasses.replace(SCALE, infer=lambda inputs, params: [Spec((1 << 32,), DType.INT8)])
    with pytest.raises(ModelError, match="is not a shape of"):
        absurd.outputs(SPECS, PLAIN)
    nothing = dataclasses.replace(SCALE, infer=lambda inputs, params: [])
    with pytest.raises(ModelError, match="has 0 outputs"):
        nothing.outputs(SPECS, PLAIN)


def test_the_builder_names_what_is_wrong() -> None:
    with pytest.raises(UsageError, match=r"unknown routine 'test.none'; registered: .*test.scale"):
        routine_attrs("test.none")
    build = GraphBuilder("g")
    x = build.input("x", (2, 3), DType.INT32)
    with pytest.raises(ModelError, match=r"routine \(routine\): x must be int32 \[rows, n, depth\]"):
        build.add_all("routine", [x, x], routine_attrs("test.scale", **PLAIN))
    with pytest.raises(ModelError, match=r"routine 'test\.scale' version 9 is not registered"):
        build.add_all("routine", [x, x], {**routine_attrs("test.scale", **PLAIN), "version": 9})
    with pytest.raises(ModelError, match="params must be sorted pairs"):
        build.add_all("routine", [x, x], {**routine_attrs("test.scale"), "params": (("b", 1), ("a", 2))})
