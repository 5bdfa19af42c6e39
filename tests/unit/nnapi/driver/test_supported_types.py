"""Every combination of types that the specification allows: the driver supports, prepares and executes it."""

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.operations.versions import NEWEST
from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import ErrorStatus, OperandLifeTime
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.allowed_types import FORMS, OUTPUT, QUANT, S
from tests.support.nnapi.client import Frame, aidl_prepare, execute_sync
from tests.support.nnapi.one_operation import build, given, result, run

BLOCK = [[0, 0], [0, 0]]
ARGUMENTS = {
    **dict.fromkeys((O.ADD, O.SUB, O.MUL, O.DIV), (0,)),
    **dict.fromkeys((O.REDUCE_ALL, O.REDUCE_ANY, O.REDUCE_MAX, O.REDUCE_MIN, O.REDUCE_PROD, O.REDUCE_SUM), ([2], True)),
    **dict.fromkeys((O.ARGMAX, O.ARGMIN), (-1,)),
    **dict.fromkeys((O.SPACE_TO_DEPTH, O.DEPTH_TO_SPACE), (2,)),
    O.ELU: (0.5,), O.MEAN: ([2], 1), O.RESHAPE: ([3, -1],), O.SQUEEZE: ([0],), O.TRANSPOSE: ([2, 0, 1],),
    O.PAD: ([[0, 0], [1, 0], [0, 2]],), O.PAD_V2: ([[0, 0], [1, 0], [0, 2]], 7), O.EXPAND_DIMS: (-1,),
    O.SLICE: ([0, 1, 0], [1, 1, -1]), O.STRIDED_SLICE: ([0, 0, 2], [1, 2, -4], [1, 1, -1], 0, 0, 0),
    O.SPLIT: (1, 2), O.CONCATENATION: (2,), O.TILE: ([1, 2, 1],), O.GATHER: (2, [2, 0]), O.FILL: ([2, 3], 5),
    O.TOPK_V2: (2,), O.SPACE_TO_BATCH_ND: ([2, 2], BLOCK), O.BATCH_TO_SPACE_ND: ([1, 1],), O.CHANNEL_SHUFFLE: (3, 2),
    O.REVERSE: ([2],), O.MIRROR_PAD: ([[0, 0], [1, 0], [0, 2]], 0), O.BATCH_MATMUL: (False, True),
}  # fmt: skip
"""Inputs after the tensors of an operation, without an optional layout."""
IMAGES = (O.SPACE_TO_DEPTH, O.DEPTH_TO_SPACE, O.SPACE_TO_BATCH_ND, O.BATCH_TO_SPACE_ND)


def tensor(kind, shape):
    """Return 1, 2, 3, ... in storage form; a few booleans."""
    numbers = np.arange(1, np.prod(shape) + 1).reshape(shape)
    channels = ((0.5, 0.25, 2.0), len(shape) - 1) if kind is T.TENSOR_QUANT8_SYMM_PER_CHANNEL else None
    return given(kind, numbers % 2 if kind is T.TENSOR_BOOL8 else numbers, 0.5 * (kind in QUANT), channels=channels)


def operands(operation, inputs, outputs):
    """Return inputs and outputs of these types that the operation accepts."""
    if operation is O.PACK:
        packed = [tensor(kind, (1, 2, 3)) for kind in inputs[1:]]
        return [given(inputs[0], 1, const=True), *packed], [output(operation, kind) for kind in outputs]
    arguments = ARGUMENTS.get(operation, ())
    layout = operation in IMAGES and inputs[-1] is T.BOOL
    count = len(inputs) - len(arguments) - layout
    shape = (1, 2, 2, 4) if operation in IMAGES else (1, 2, 3)
    values = [*arguments, *([False] * layout)]
    rest = [given(kind, value, const=True) for kind, value in zip(inputs[count:], values, strict=True)]
    return [*(tensor(kind, shape) for kind in inputs[:count]), *rest], [output(operation, kind) for kind in outputs]


def output(operation, kind):
    if kind not in QUANT:
        return result(kind)
    scale, zero = OUTPUT.get(operation, (0.75 if operation is O.MUL else 0.5, 0))
    return result(kind, scale, zero - 128 * (kind is S and operation in OUTPUT))


@pytest.fixture(scope="module", params=["tiny", pytest.param("edge", marks=pytest.mark.slow)])
def device(request, tmp_path_factory):
    with open_device(request.param, state_dir=tmp_path_factory.mktemp("state")) as opened:
        yield opened


@pytest.mark.parametrize("operation", FORMS, ids=lambda operation: operation.name)
def test_every_combination_runs_and_agrees_with_the_reference(device, operation):
    for inputs, outputs in FORMS[operation]:
        taken, made = operands(operation, inputs, outputs)
        model = build(operation, taken, made)
        assert device.supported(model, NEWEST) == (ErrorStatus.NONE, [True]), inputs
        wanted = run(operation, taken, made)
        frame = Frame([each.value for each in taken if not is_constant(each)], [array.nbytes for array in wanted])
        launched, status, prepared = aidl_prepare(device, model)
        assert (launched, status) == (ErrorStatus.NONE, ErrorStatus.NONE), inputs
        outcome = execute_sync(prepared.prepared, frame)
        assert outcome.status is ErrorStatus.NONE, inputs
        for index, (each, array) in enumerate(zip(made, wanted, strict=True)):
            got = outcome.array(index, STORAGE[each.type])
            if array.dtype.kind == "f":
                np.testing.assert_allclose(got, array, rtol=5 * np.finfo(array.dtype).eps, atol=0, err_msg=str(inputs))
            else:
                np.testing.assert_array_equal(got, array, err_msg=str(inputs))
        frame.close()


def is_constant(operand):
    return operand.lifetime is OperandLifeTime.CONSTANT_COPY
