"""Convolutions, pools, resizing and FULLY_CONNECTED in every type and form that the specification allows: the driver
supports, prepares and executes them, and refuses other types."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import ErrorStatus, OperandLifeTime
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.allowed_types import FLOATS, FOUR, SCALAR, F, H
from tests.support.nnapi.client import Frame, execute_sync, prepared_model
from tests.support.nnapi.image_operands import KINDS, Kind, biases, boolean, filters, laid_out, output, tensor
from tests.support.nnapi.one_operation import Given, build, i32, problem, result, run_one, scalar, vector

Inputs = list[Given]
TENSORS = [kind for kind in T if kind.name.startswith("TENSOR_") and kind < T.OEM]
FILTERS = {
    O.CONV_2D: ((4, 2, 2, 4), 0), O.GROUPED_CONV_2D: ((4, 2, 2, 2), 0), O.DEPTHWISE_CONV_2D: ((1, 2, 2, 4), 3),
    O.TRANSPOSE_CONV_2D: ((4, 2, 2, 4), 0),
}  # fmt: skip
"""Shape of the filter for a four-channel image, and the dimension of its per-channel scales."""
BEFORE_ACTIVATION = {O.GROUPED_CONV_2D: [i32(2)], O.DEPTHWISE_CONV_2D: [i32(1)]}
POOLS = {O.AVERAGE_POOL_2D: FOUR, O.MAX_POOL_2D: FOUR, O.L2_POOL_2D: FLOATS}
RESIZES = {O.RESIZE_BILINEAR: 0, O.RESIZE_NEAREST_NEIGHBOR: 1}
"""Least number of flags after the size."""


def image(kind: T) -> Given:
    """Return two images of three by four pixels."""
    return tensor(kind, (2, 3, 4, 4), 1)


def convolutions(operation: O, kind: Kind) -> Iterator[Inputs]:
    """Yield both kinds of padding; without layout, with a layout, and with dilation factors if supported."""
    shape, dim = FILTERS[operation]
    x, w = image(kind.x), filters(kind, shape, dim, 2)
    rest = [w, biases(kind, x, w, 4, 3)]
    implicit = [vector([2, 3, 4, 4]), i32(1)] if operation is O.TRANSPOSE_CONV_2D else [i32(1)]
    steps = [i32(1), i32(1), *BEFORE_ACTIVATION.get(operation, []), i32(1)]
    layouts: list[Inputs] = [[boolean(False)], [boolean(True)]]
    if operation in (O.CONV_2D, O.DEPTHWISE_CONV_2D):
        layouts += [[], [boolean(False), i32(2), i32(1)]]
    for pads, layout in itertools.product((implicit, [i32(1)] * 4), layouts):
        nchw = bool(layout and layout[0].value)
        around = [vector([2, 4, 3, 4]) if nchw and each.type is T.TENSOR_INT32 else each for each in pads]
        yield [laid_out(x, nchw=nchw), *rest, *around, *steps, *layout]


def pools(kind: T) -> Iterator[Inputs]:
    x = image(kind)
    for pads, layout in itertools.product(([i32(1)], [i32(0)] * 4), ([], [boolean(False)], [boolean(True)])):
        yield [x, *pads, i32(1), i32(2), i32(2), i32(2), i32(3), *layout]


def resizes(operation: O, kind: T) -> Iterator[Inputs]:
    """Yield resizing to a size and by factors, with every possible number of flags."""
    by = T.FLOAT16 if kind is H else SCALAR[F]
    for size in ([i32(5), i32(2)], [scalar(by, 1.5), scalar(by, 0.75)]):
        for count in range(RESIZES[operation], 4):
            yield [image(kind), *size, *[boolean(False)] * count]
        yield [image(kind), *size, boolean(True), boolean(True), boolean(False)]
        yield [image(kind), *size, boolean(False), boolean(False), boolean(True)]


def connected(kind: Kind) -> Iterator[Inputs]:
    """Yield inputs of rank 2 to 4."""
    w = filters(kind, (3, 4), 0, 4)
    for shape in ((2, 4), (2, 3, 4), (2, 2, 3, 4)):
        x = tensor(kind.x, shape, 5)
        yield [x, w, biases(kind, x, w, 3, 6), i32(2)]


def cases() -> Iterator[tuple[O, str, list[Inputs]]]:
    """Yield operation, types, and the inputs of each form."""
    for operation, kind in itertools.product(FILTERS, KINDS):
        yield operation, str(kind), list(convolutions(operation, kind))
    for operation, kinds in POOLS.items():
        yield from ((operation, each.name, list(pools(each))) for each in kinds)
    for operation, each in itertools.product(RESIZES, FOUR):
        yield operation, each.name, list(resizes(operation, each))
    for kind in KINDS:
        if kind.w is kind.x:
            yield O.FULLY_CONNECTED, str(kind), list(connected(kind))


CASES = [pytest.param(operation, forms, id=f"{operation.name}-{types}") for operation, types, forms in cases()]


def made(operation: O, x: Given) -> Given:
    """Return the output: pools and resizing keep scale and zero point."""
    return result(x.type, x.scale, x.zero) if operation in (*POOLS, *RESIZES) else output(x.type)


@pytest.fixture(scope="module", params=["tiny", pytest.param("edge", marks=pytest.mark.slow)])
def device(request: Any, tmp_path_factory: Any) -> Any:
    with open_device(request.param, state_dir=tmp_path_factory.mktemp("state")) as opened:
        yield opened


@pytest.mark.parametrize(("operation", "forms"), CASES)
def test_every_form_runs_and_agrees_with_the_reference(device: Any, operation: O, forms: list[Inputs]) -> None:
    for inputs in forms:
        out = made(operation, inputs[0])
        model, types = build(operation, inputs, [out]), [each.type.name for each in inputs]
        assert device.getSupportedOperations_1_3(model) == (ErrorStatus.NONE, [True]), types
        wanted = run_one(operation, inputs, out)
        given = [each.value for each in inputs if each.lifetime is not OperandLifeTime.CONSTANT_COPY]
        frame = Frame(given, [wanted.nbytes])
        outcome = execute_sync(prepared_model(device, model), frame)
        assert outcome.status is ErrorStatus.NONE, types
        got = outcome.array(0, STORAGE[out.type]).astype(np.float64)
        relative = 5 * np.finfo(wanted.dtype).eps if wanted.dtype.kind == "f" else 0.0
        absolute = max(relative, 1e-5) if relative else 0.0
        np.testing.assert_allclose(got, wanted.astype(np.float64), rtol=relative, atol=absolute, err_msg=str(types))
        frame.close()


@pytest.mark.parametrize("operation", [*FILTERS, *POOLS, *RESIZES, O.FULLY_CONNECTED], ids=lambda each: each.name)
def test_other_types_are_refused(operation: O) -> None:
    """Each tensor input and the output separately gets a type that fits none of the others."""
    forms = [each[2][0] for each in cases() if each[0] is operation]
    known = {tuple(each.type for each in inputs) for inputs in forms}
    for inputs in forms:
        out = made(operation, inputs[0])
        places = [index for index, each in enumerate(inputs) if each.type in TENSORS]
        for place, kind in itertools.product(places, TENSORS):
            changed = [*inputs[:place], Given(kind, None, inputs[place].dims), *inputs[place + 1 :]]
            if tuple(each.type for each in changed) not in known:
                assert problem(operation, changed, [out]), (place, kind)
        for kind in TENSORS:
            assert kind is out.type or problem(operation, inputs, [result(kind)]), kind
