"""Models with one operation: built from their operands, validated, lowered and executed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.constants import Constants
from hal.nnapi.operations.view import SCALARS, STORAGE, Array, OpView
from hal.nnapi.plan import Plan, Support, Vocabulary
from hal.nnapi.types import (
    DataLocation,
    ExtraParams,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
    SymmPerChannelQuantParams,
)
from npusim.runtime import Session
from tests.support.nnapi_examples.running import HostBackend, SessionBackend


@dataclass(slots=True)
class Given:
    """One operand of an operation. ``value`` is in storage form; an output has none. See :func:`given`."""

    type: OperandType
    value: Array | None
    dims: tuple[int, ...]
    scale: float = 0.0
    zero: int = 0
    lifetime: OperandLifeTime = OperandLifeTime.SUBGRAPH_INPUT
    channels: tuple[tuple[float, ...], int] | None = None


def given(
    kind: OperandType,
    value: Any,
    scale: float = 0.0,
    zero: int = 0,
    *,
    const: bool = False,
    dims: Sequence[int] | None = None,
    channels: tuple[Sequence[float], int] | None = None,
) -> Given:
    """Return an input. ``value`` is converted to the storage type.

    ``dims``: dimensions in the model, if not the value's shape. ``const``: a constant instead of an input.
    ``channels``: scales and dimension of a per-channel type.
    """
    array = np.asarray(value, STORAGE[kind])
    shape = tuple(array.shape if dims is None else dims)
    lifetime = OperandLifeTime.CONSTANT_COPY if const else OperandLifeTime.SUBGRAPH_INPUT
    return Given(kind, array, shape, scale, zero, lifetime, channels and (tuple(channels[0]), channels[1]))


def holding(kind: OperandType, numbers: Any, scale: float = 0.0, zero: int = 0, *, const: bool = False) -> Given:
    """Return an input that represents these real numbers as closely as its type can."""
    wanted, storage = np.asarray(numbers), STORAGE[kind]
    if storage.kind not in "iu":
        return given(kind, wanted, const=const)
    info = np.iinfo(storage)
    levels = np.clip(np.rint(wanted / (scale or 1.0)) + zero, info.min, info.max)
    return given(kind, levels, scale, zero, const=const)


def scalar(kind: OperandType, value: Any) -> Given:
    """Return a constant scalar."""
    assert kind in SCALARS
    return given(kind, value, const=True)


def i32(value: int) -> Given:
    """Return a constant INT32 scalar."""
    return scalar(OperandType.INT32, value)


def vector(values: Any) -> Given:
    """Return a constant TENSOR_INT32."""
    return given(OperandType.TENSOR_INT32, values, const=True)


def omitted(kind: OperandType) -> Given:
    """Return an input without a value."""
    return Given(kind, None, (), lifetime=OperandLifeTime.NO_VALUE)


def left_out(kind: OperandType, dims: Sequence[int] = (), scale: float = 0.0) -> Given:
    """Return a model input that gets no value at execution."""
    return Given(kind, None, tuple(dims), scale)


def result(kind: OperandType, scale: float = 0.0, zero: int = 0, dims: Sequence[int] = ()) -> Given:
    """Return an output with unknown dimensions unless they are given."""
    return Given(kind, None, tuple(dims), scale, zero, OperandLifeTime.SUBGRAPH_OUTPUT)


def build(kind: OperationType, inputs: Sequence[Given], outputs: Sequence[Given]) -> Model:
    """Build the model of one operation."""
    values = bytearray()
    operands = []
    for each in (*inputs, *outputs):
        location = DataLocation()
        if each.lifetime == OperandLifeTime.CONSTANT_COPY and each.value is not None:
            data = each.value.tobytes()
            location = DataLocation(0, len(values), len(data))
            values += data + bytes(-len(data) % 4)
        extra = None if each.channels is None else ExtraParams(SymmPerChannelQuantParams(*each.channels))
        consumers = int(each.lifetime != OperandLifeTime.SUBGRAPH_OUTPUT)
        operands.append(
            Operand(each.type, list(each.dims), consumers, each.scale, each.zero, each.lifetime, location, extra)
        )
    count = len(inputs)
    numbers = range(len(operands))
    operation = Operation(kind, list(numbers[:count]), list(numbers[count:]))
    asked = [number for number in numbers if operands[number].lifetime == OperandLifeTime.SUBGRAPH_INPUT]
    return Model(Subgraph(operands, [operation], asked, list(numbers[count:])), operandValues=bytes(values))


def problem(kind: OperationType, inputs: Sequence[Given], outputs: Sequence[Given]) -> str | None:
    """Return the validation error of the operation, or None."""
    model = build(kind, inputs, outputs)
    return REGISTRY[kind].problem(OpView(model.main, model.main.operations[0], Constants(model)))


def run(
    kind: OperationType, inputs: Sequence[Given], outputs: Sequence[Given], config: Any = None, *, relaxed: bool = False
) -> list[Array]:
    """Return the outputs of a valid and supported operation in storage form.

    They are computed by the reference operators, or on a simulated device if ``config`` is given; if ``relaxed``, with
    FLOAT16.
    """
    wrong = problem(kind, inputs, outputs)
    assert wrong is None, wrong
    model = build(kind, inputs, outputs)
    constants, vocabulary, backend = Constants(model), Vocabulary(REGISTRY, STORAGE), HostBackend()
    times = itertools.count()  # a plan asks for the time of the program with FLOAT16 first
    if config is not None:
        session = Session(config, cache_dir=False)
        backend = SessionBackend(session)
        unsupported = Support(model, constants, vocabulary, session.config, backend.compile, half=relaxed).unsupported()
        assert not unsupported, f"{session.config.name} does not support it: {unsupported}"
    time_ps = (lambda program: next(times)) if relaxed else None
    plan = Plan(model, constants, vocabulary, backend.compile, time_ps=time_ps)
    values = [each.value for each in inputs if each.lifetime == OperandLifeTime.SUBGRAPH_INPUT]
    results = plan.execute(backend, values, [lambda shape, dtype: None] * len(outputs), 10**9)
    return [np.asarray(array) for array in results]


def run_one(
    kind: OperationType, inputs: Sequence[Given], output: Given, config: Any = None, *, relaxed: bool = False
) -> Array:
    """Return the output of an operation that has one output."""
    [array] = run(kind, inputs, [output], config, relaxed=relaxed)
    return array


def real(operand: Given) -> Array:
    """Return the real numbers of an input in double precision."""
    assert operand.value is not None
    if operand.channels is not None:
        scales, dim = operand.channels
        shape = [1] * operand.value.ndim
        shape[dim] = len(scales)
        return operand.value.astype(np.float64) * np.asarray(scales, np.float32).astype(np.float64).reshape(shape)
    if operand.scale and operand.type not in (OperandType.TENSOR_INT32,):
        return (operand.value.astype(np.float64) - operand.zero) * float(np.float32(operand.scale))
    return operand.value.astype(np.float64) if operand.value.dtype != np.bool_ else operand.value


def assert_close(array: Array, numbers: Array, output: Given) -> None:
    """Check that the output represents the real numbers: within one step if quantised, within rounding for floats."""
    numbers = np.asarray(numbers)
    assert array.shape == numbers.shape, f"shape {array.shape}, wanted {numbers.shape}"
    assert array.dtype == STORAGE[output.type]
    if array.dtype.kind == "f":
        steps = 2.0**-23 if array.dtype == np.float32 else 2.0**-10
        absolute = 1e-5 if array.dtype == np.float32 else 5 * steps
        np.testing.assert_allclose(array.astype(np.float64), numbers, rtol=5 * steps, atol=absolute)
    elif output.scale:
        info = np.iinfo(array.dtype)
        wanted = np.clip(np.rint(numbers / float(np.float32(output.scale))) + output.zero, info.min, info.max)
        np.testing.assert_allclose(array.astype(np.int64), wanted, rtol=0, atol=1)
    else:
        np.testing.assert_array_equal(array, numbers)
