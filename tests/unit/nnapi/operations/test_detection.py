"""Regions and boxes in every type and layout, compared with reference implementations in double precision."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from hal.nnapi.operations.view import STORAGE, Array
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from npusim.hw.config import load_config
from tests.support.nnapi.one_operation import (
    Given,
    assert_close,
    given,
    holding,
    i32,
    problem,
    real,
    result,
    run,
    run_one,
    scalar,
)
from tests.support.oracle import detection as twin

TINY = load_config("tiny")
BOX = 0.125


class Types(NamedTuple):
    """The matching types of one form of an operation."""

    tensor: T
    box: T
    anchor: T
    number: T


FLOATS = [
    Types(T.TENSOR_FLOAT32, T.TENSOR_FLOAT32, T.TENSOR_FLOAT32, T.FLOAT32),
    Types(T.TENSOR_FLOAT16, T.TENSOR_FLOAT16, T.TENSOR_FLOAT16, T.FLOAT16),
]
QUANTISED = [
    Types(kind, T.TENSOR_QUANT16_ASYMM, T.TENSOR_QUANT16_SYMM, T.FLOAT32)
    for kind in (T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED)
]
each_type = pytest.mark.parametrize("types", FLOATS + QUANTISED, ids=lambda types: types.tensor.name)
each_layout = pytest.mark.parametrize("nchw", [False, True], ids=["nhwc", "nchw"])
each_device = pytest.mark.parametrize("config", [None, TINY, load_config("edge")], ids=["host", "tiny", "edge"])


def boxes(kind: T, numbers: Any) -> Given:
    """Return coordinates."""
    return holding(kind, numbers, BOX)


def zero_of(kind: T) -> int:
    return {T.TENSOR_QUANT8_ASYMM: 100, T.TENSOR_QUANT8_ASYMM_SIGNED: -28}.get(kind, 0)


def scale_of(kind: T, scale: float) -> float:
    return scale if STORAGE[kind].kind != "f" else 0.0


def values(types: Types, numbers: Any, scale: float) -> Given:
    """Return images or deltas."""
    return holding(types.tensor, numbers, scale_of(types.tensor, scale), zero_of(types.tensor))


def ranked(types: Types, rng: np.random.Generator, *shape: int) -> Given:
    """Return scores in (0, 1) that are distinct in every type."""
    numbers = rng.permutation(250)[: int(np.prod(shape))].reshape(shape) / 256
    zero = -128 if types.tensor is T.TENSOR_QUANT8_ASYMM_SIGNED else 0
    return holding(types.tensor, numbers, scale_of(types.tensor, 1 / 256), zero)


def like(operand: Given) -> Given:
    """Return an output with the type and quantisation of an input."""
    return result(operand.type, operand.scale, operand.zero)


def flag(value: bool) -> Given:
    return scalar(T.BOOL, value)


def first(operand: Given, nchw: bool, kind: T) -> Given:
    """Convert a channels-last operand to the layout."""
    assert operand.value is not None
    value = operand.value.transpose(0, 3, 1, 2) if nchw else operand.value
    return given(kind, np.ascontiguousarray(value), operand.scale, operand.zero)


def some_boxes(rng: np.random.Generator, count: int, size: float = 32.0) -> Array:
    low = rng.uniform(0, size / 2, (count, 2))
    return np.concatenate([low, low + rng.uniform(1, size / 2, (count, 2))], axis=1)


@each_device
@each_layout
@each_type
@pytest.mark.parametrize("ratio", [(0, 0), (2, 3)])
def test_roi_align(types: Types, nchw: bool, ratio: tuple[int, int], config: Any) -> None:
    rng = np.random.default_rng(1)
    image = values(types, rng.uniform(-2, 2, (2, 8, 9, 3)), 0.02)
    rois, batches = boxes(types.box, some_boxes(rng, 4)), np.array([0, 1, 1, 0], np.int32)
    inputs = [
        first(image, nchw, types.tensor), rois, given(T.TENSOR_INT32, batches), i32(2), i32(3),
        scalar(types.number, 4), scalar(types.number, 4), i32(ratio[0]), i32(ratio[1]), flag(nchw),
    ]  # fmt: skip
    out = result(types.tensor, scale_of(types.tensor, 0.015), zero_of(types.tensor))
    wanted = twin.roi_align(real(image), real(rois), batches, (2, 3), (4, 4), ratio)
    got = run_one(O.ROI_ALIGN, inputs, out, config)
    assert_close(got, wanted.transpose(0, 3, 1, 2) if nchw else wanted, out)


@each_device
@each_layout
@each_type
def test_roi_pooling(types: Types, nchw: bool, config: Any) -> None:
    rng = np.random.default_rng(2)
    image = values(types, rng.uniform(-2, 2, (2, 8, 9, 3)), 0.02)
    rois, batches = boxes(types.box, some_boxes(rng, 4)), np.array([1, 0, 1, 0], np.int32)
    inputs = [
        first(image, nchw, types.tensor), rois, given(T.TENSOR_INT32, batches), i32(2), i32(3),
        scalar(types.number, 4), scalar(types.number, 4), flag(nchw),
    ]  # fmt: skip
    wanted = twin.roi_pool(real(image), real(rois), batches, (2, 3), (4, 4))
    got = run_one(O.ROI_POOLING, inputs, like(image), config)
    assert_close(got, wanted.transpose(0, 3, 1, 2) if nchw else wanted, like(image))


@each_device
@each_type
def test_axis_aligned_bbox_transform(types: Types, config: Any) -> None:
    rng = np.random.default_rng(3)
    rois, deltas = boxes(types.box, some_boxes(rng, 6)), values(types, rng.uniform(-1, 1, (6, 8)), 0.01)
    batches, images = np.array([0, 2, 1, 1, 0, 2], np.int32), boxes(types.box, [[30, 40], [20, 25], [50, 28]])
    out = result(types.box, scale_of(types.box, BOX))
    got = run_one(O.AXIS_ALIGNED_BBOX_TRANSFORM, [rois, deltas, given(T.TENSOR_INT32, batches), images], out, config)
    assert_close(got, twin.bbox_transform(real(rois), real(deltas), batches, real(images)), out)


def assert_rows(got: list[Array], wanted: tuple[Array, ...], outputs: list[Given]) -> None:
    """Check the number and the content of rows."""
    for array, numbers, output in zip(got, wanted, outputs, strict=True):
        assert_close(array, numbers, output)


@each_device
@each_type
@pytest.mark.parametrize("kernel", [0, 1, 2])
@pytest.mark.parametrize("most", [-1, 4])
def test_box_with_nms_limit(types: Types, kernel: int, most: int, config: Any) -> None:
    rng = np.random.default_rng((4, kernel))
    scores = ranked(types, rng, 10, 3)
    rois = boxes(types.box, np.concatenate([some_boxes(rng, 10) for _ in range(3)], axis=1))
    batches = np.array([0] * 6 + [3] * 4, np.int32)
    rule = (0.1875, most, kernel, 0.375, 0.5, 0.125)
    inputs = [
        scores, rois, given(T.TENSOR_INT32, batches), scalar(types.number, rule[0]), i32(most), i32(kernel),
        *(scalar(types.number, number) for number in rule[3:]),
    ]  # fmt: skip
    outputs = [like(scores), like(rois), result(T.TENSOR_INT32), result(T.TENSOR_INT32)]
    wanted = twin.box_nms(real(scores), real(rois), batches, *rule)
    assert 3 < len(wanted[0]) < 20
    assert_rows(run(O.BOX_WITH_NMS_LIMIT, inputs, outputs, config), wanted, outputs)


@each_device
@each_type
@each_layout
@pytest.mark.parametrize("limits", [(0, 0), (12, 3)])
def test_generate_proposals(types: Types, nchw: bool, limits: tuple[int, int], config: Any) -> None:
    rng = np.random.default_rng(5)
    scores, deltas = ranked(types, rng, 2, 3, 4, 2), values(types, rng.uniform(-0.5, 0.5, (2, 3, 4, 8)), 0.005)
    anchors, images = boxes(types.anchor, [[0, 1, 10, 8], [2, 0, 9, 16]]), boxes(types.box, [[40, 50], [32, 60]])
    inputs = [
        first(scores, nchw, types.tensor), first(deltas, nchw, types.tensor), anchors, images,
        scalar(types.number, 10), scalar(types.number, 12), i32(limits[0]), i32(limits[1]),
        scalar(types.number, 0.3125), scalar(types.number, 2), flag(nchw),
    ]  # fmt: skip
    outputs = [like(scores), like(images), result(T.TENSOR_INT32)]
    wanted = twin.proposals(
        real(scores), real(deltas), real(anchors), real(images), (10, 12), *limits, 0.3125, 2
    )  # fmt: skip
    assert len(wanted[0]) > 2
    assert_rows(run(O.GENERATE_PROPOSALS, inputs, outputs, config), wanted, outputs)


def test_no_proposal_is_an_empty_result() -> None:
    """The smallest size is larger than any box."""
    types, rng = FLOATS[0], np.random.default_rng(6)
    inputs = [
        ranked(types, rng, 1, 2, 2, 1), values(types, np.zeros((1, 2, 2, 4)), 1),
        boxes(types.anchor, [[0, 0, 4, 4]]), boxes(types.box, [[40, 40]]), scalar(T.FLOAT32, 4), scalar(T.FLOAT32, 4),
        i32(0), i32(0), scalar(T.FLOAT32, 0.5), scalar(T.FLOAT32, 1000), flag(False),
    ]  # fmt: skip
    outputs = [result(T.TENSOR_FLOAT32), result(T.TENSOR_FLOAT32), result(T.TENSOR_INT32)]
    got = run(O.GENERATE_PROPOSALS, inputs, outputs, TINY)
    assert [array.shape for array in got] == [(0,), (0, 4), (0,)]


@each_device
@pytest.mark.parametrize("types", FLOATS, ids=lambda types: types.tensor.name)
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("regular", "of_box"), [(True, 1), (False, 1), (False, 2), (False, 9)])
def test_detection_postprocessing(types: Types, background: bool, regular: bool, of_box: int, config: Any) -> None:
    rng = np.random.default_rng((7, of_box))
    scores, deltas = ranked(types, rng, 2, 9, 4), values(types, rng.normal(0, 1, (2, 9, 4)), 1)
    centres, sizes = rng.uniform(0, 16, (9, 2)), rng.uniform(4, 12, (9, 2))
    anchors = boxes(types.anchor, np.concatenate([centres, sizes], axis=1))
    scale = (10.0, 10.0, 5.0, 4.0)
    inputs = [
        scores, deltas, anchors, *(scalar(types.number, number) for number in scale), flag(regular), i32(4),
        i32(of_box), i32(2), scalar(types.number, 0.125), scalar(types.number, 0.375), flag(background),
    ]  # fmt: skip
    outputs = [result(types.tensor), result(types.tensor), result(T.TENSOR_INT32), result(T.TENSOR_INT32)]
    found, places, labels, counts = run(O.DETECTION_POSTPROCESSING, inputs, outputs, config)
    room = 4 if regular else 4 * of_box
    assert (found.shape, places.shape, labels.shape) == ((2, room), (2, room, 4), (2, room))
    wanted = twin.detections(
        real(scores), real(deltas), real(anchors), scale, regular, 4, of_box, 2, 0.125, 0.375, background
    )  # fmt: skip
    assert counts.tolist() == [len(rows) for rows in wanted]
    for b, rows in enumerate(wanted):
        assert_close(found[b, : len(rows)], np.array([row[0] for row in rows]), outputs[0])
        assert_close(places[b, : len(rows)], np.array([row[1] for row in rows]), outputs[1])
        assert labels[b, : len(rows)].tolist() == [row[2] for row in rows]
        assert not found[b, len(rows) :].any()
        assert not places[b, len(rows) :].any()


@each_device
@each_layout
@each_type
def test_heatmap_max_keypoint(types: Types, nchw: bool, config: Any) -> None:
    rng = np.random.default_rng(8)
    maps, rois = ranked(types, rng, 3, 6, 6, 2), boxes(types.box, some_boxes(rng, 3))
    outputs = [like(maps), like(rois)]
    got = run(O.HEATMAP_MAX_KEYPOINT, [first(maps, nchw, types.tensor), rois, flag(nchw)], outputs, config)
    assert_rows(got, twin.heatmap(real(maps), real(rois)), outputs)


def test_regions_of_nothing() -> None:
    inputs = [
        given(T.TENSOR_FLOAT32, np.ones((1, 4, 4, 2))), given(T.TENSOR_FLOAT32, np.zeros((0, 4)), dims=(0, 4)),
        given(T.TENSOR_INT32, np.zeros(0)), i32(2), i32(2), scalar(T.FLOAT32, 1), scalar(T.FLOAT32, 1), i32(1), i32(1),
        flag(False),
    ]  # fmt: skip
    assert run_one(O.ROI_ALIGN, inputs, result(T.TENSOR_FLOAT32), TINY).shape == (0, 2, 2, 2)


def align_inputs(**changes: Given) -> list[Given]:
    inputs = {
        "image": given(T.TENSOR_QUANT8_ASYMM, np.ones((1, 4, 4, 1)), 1.0),
        "rois": boxes(T.TENSOR_QUANT16_ASYMM, [[0, 0, 1, 1]]),
        "batches": given(T.TENSOR_INT32, [0]), "height": i32(2), "width": i32(2), "stride_h": scalar(T.FLOAT32, 1),
        "stride_w": scalar(T.FLOAT32, 1), "ratio_h": i32(1), "ratio_w": i32(1), "layout": flag(False),
    }  # fmt: skip
    return list({**inputs, **changes}.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": given(T.TENSOR_QUANT8_ASYMM, np.ones((1, 4, 4)), 1.0)}, "input 0 must have rank 4"),
        ({"rois": given(T.TENSOR_QUANT16_ASYMM, [[0, 0, 1, 1]], 0.5)}, "must have scale 0.125 and zero point 0"),
        ({"rois": given(T.TENSOR_QUANT16_ASYMM, [[0, 0, 1, 1]], 0.125, 1)}, "must have scale 0.125 and zero point 0"),
        ({"rois": boxes(T.TENSOR_QUANT16_ASYMM, [[0, 0, 1]])}, "the last dimension of input 1 must be 4"),
        ({"batches": given(T.TENSOR_INT32, [0, 0])}, "agree in the dimensions that they share"),
        ({"height": i32(0)}, "inputs 3, 4, 5, 6 must be > 0"),
        ({"stride_w": scalar(T.FLOAT32, -1.0)}, "inputs 3, 4, 5, 6 must be > 0"),
        ({"ratio_h": i32(-1)}, "inputs 7 and 8 must be >= 0"),
        ({"layout": i32(0)}, "input 9 must be BOOL, got INT32"),
        ({"rois": given(T.TENSOR_FLOAT32, [[0, 0, 1, 1]])}, "input 1 must be TENSOR_QUANT16_ASYMM"),
    ],
)
def test_what_validation_refuses(changes: dict[str, Given], message: str) -> None:
    out = result(T.TENSOR_QUANT8_ASYMM, 1.0)
    assert problem(O.ROI_ALIGN, align_inputs(), [out]) is None
    assert message in (problem(O.ROI_ALIGN, align_inputs(**changes), [out]) or "nothing is wrong")
