"""Kernels on boxes and regions compared with their reference implementations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim import _core
from tests.support.oracle import detection as twin

Array = npt.NDArray[Any]
F, I = np.float32, np.int32  # noqa: E741
SEEDS = range(6)


def boxes_of(rng: np.random.Generator, count: int, size: float = 40.0) -> Array:
    """Return boxes within a square, none of them empty."""
    low = rng.uniform(0, size / 2, (count, 2))
    return np.concatenate([low, low + rng.uniform(1, size / 2, (count, 2))], axis=1).astype(F)


def scores_of(rng: np.random.Generator, *shape: int) -> Array:
    """Return scores without ties."""
    return (rng.permutation(int(np.prod(shape))).reshape(shape) / np.prod(shape)).astype(F)


@pytest.mark.parametrize("seed", SEEDS)
def test_bbox_transform(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rois, deltas = boxes_of(rng, 7), rng.normal(0, 0.5, (7, 12)).astype(F)
    batches, images = rng.integers(0, 3, 7).astype(I), rng.uniform(20, 50, (3, 2)).astype(F)
    out = np.empty_like(deltas)
    assert _core.bbox_transform(rois, deltas, batches, images, out) == -1
    np.testing.assert_allclose(out, twin.bbox_transform(rois, deltas, batches, images), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kernel", [0, 1, 2])
@pytest.mark.parametrize("most", [-1, 0, 3, 100])
@pytest.mark.parametrize("seed", SEEDS)
def test_box_nms_limit(kernel: int, most: int, seed: int) -> None:
    rng = np.random.default_rng((seed, kernel))
    rows, classes = 14, 4
    scores = scores_of(rng, rows, classes)
    boxes = np.concatenate([boxes_of(rng, rows) for _ in range(classes)], axis=1)
    batches = np.sort(rng.integers(0, 3, rows)).astype(I)
    rule = (0.2, most, kernel, 0.4, 0.5, 0.1)
    out = np.zeros(40, F), np.zeros((40, 4), F), np.zeros(40, I), np.zeros(40, I)
    count = _core.box_nms_limit(scores.copy(), boxes, batches, *rule, *out)
    wanted = twin.box_nms(scores.astype(float), boxes, batches, *rule)
    assert count == len(wanted[0])
    for got, expected in zip(out, wanted, strict=True):
        np.testing.assert_allclose(got[:count], expected, rtol=1e-5)
        assert not got[count:].any()


def test_suppression_takes_the_first_of_equal_scores() -> None:
    scores = np.array([[0, 0.5], [0, 0.5], [0, 0.5]], F)
    boxes = np.tile(np.array([[0, 0, 1, 1], [5, 5, 6, 6], [9, 9, 10, 10]], F), (1, 2))
    out = np.zeros(3, F), np.zeros((3, 4), F), np.zeros(3, I), np.zeros(3, I)
    assert _core.box_nms_limit(scores, boxes, np.zeros(3, I), 0.0, 2, 0, 0.5, 1.0, 0.0, *out) == 2
    np.testing.assert_array_equal(out[1][:2], boxes[:2, :4])


def test_an_overlap_of_just_the_threshold_is_too_much() -> None:
    """Two boxes share half of their union: at 0.5 the second is removed, just above it stays."""
    scores = np.array([[0, 0.9], [0, 0.8]], F)
    boxes = np.tile(np.array([[0, 0, 2, 1], [0, 0, 1, 1]], F), (1, 2))
    for threshold, left in ((0.5, 1), (np.nextafter(F(0.5), F(1)), 2)):
        out = np.zeros(2, F), np.zeros((2, 4), F), np.zeros(2, I), np.zeros(2, I)
        found = _core.box_nms_limit(scores.copy(), boxes, np.zeros(2, I), 0.0, -1, 0, float(threshold), 1.0, 0.1, *out)
        assert found == left


@pytest.mark.parametrize(("before", "after"), [(0, 0), (-1, 4), (9, -1), (9, 4), (1000, 1000)])
@pytest.mark.parametrize("seed", SEEDS)
def test_proposals(before: int, after: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, deltas = scores_of(rng, 2, 3, 4, 2), rng.normal(0, 0.4, (2, 3, 4, 8)).astype(F)
    anchors, images = (boxes_of(rng, 2, 20) - 5).astype(F), np.array([[40, 50], [30, 60]], F)
    out = np.zeros(48, F), np.zeros((48, 4), F), np.zeros(48, I)
    count = _core.proposals(scores, deltas, anchors, images, 10.0, 12.0, before, after, 0.3, 2.0, *out)
    wanted = twin.proposals(scores, deltas, anchors, images, (10, 12), before, after, 0.3, 2.0)
    assert count == len(wanted[0]) > 0
    np.testing.assert_array_equal(out[2][:count], wanted[2])
    for got, expected in zip(out[:2], wanted[:2], strict=True):
        np.testing.assert_allclose(got[:count], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("regular", "of_box"), [(True, 0), (False, 1), (False, 2), (False, 7)])
@pytest.mark.parametrize("seed", SEEDS)
def test_detections(background: bool, regular: bool, of_box: int, seed: int) -> None:
    rng = np.random.default_rng((seed, of_box))
    scores, deltas = scores_of(rng, 2, 12, 4), rng.normal(0, 1, (2, 12, 5)).astype(F)
    anchors = np.concatenate([rng.uniform(0, 20, (12, 2)), rng.uniform(4, 16, (12, 2))], axis=1).astype(F)
    scale, most, of_class = (10.0, 9.0, 5.0, 4.0), 5, 3
    room = most * max(of_box, 1)
    out = np.zeros((2, room), F), np.zeros((2, room, 4), F), np.zeros((2, room), I), np.zeros(2, I)
    first = int(background)
    _core.detections(
        scores, deltas, anchors, np.array(scale, F), regular, most, of_box, of_class, 0.1, 0.3, first, *out
    )
    wanted = twin.detections(scores, deltas, anchors, scale, regular, most, of_box, of_class, 0.1, 0.3, background)
    for b, rows in enumerate(wanted):
        assert out[3][b] == len(rows) > 0
        for i, (score, box, label) in enumerate(rows):
            assert out[0][b, i] == F(score)
            assert out[2][b, i] == label
            np.testing.assert_allclose(out[1][b, i], box, rtol=1e-4, atol=1e-4)
        assert not out[1][b, len(rows) :].any()


@pytest.mark.parametrize("ratio", [(0, 0), (2, 2), (3, 0), (1, 4)])
@pytest.mark.parametrize("seed", SEEDS)
def test_roi_align(ratio: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    image, rois = rng.normal(0, 1, (2, 9, 11, 3)).astype(F), boxes_of(rng, 5, 34)
    batches, size, strides = rng.integers(0, 2, 5).astype(I), (3, 4), (4.0, 3.5)
    out = np.zeros((5, *size, 3), F)
    assert _core.roi_align(image, rois, batches, *strides, *ratio, out) == -1
    np.testing.assert_allclose(out, twin.roi_align(image, rois, batches, size, strides, ratio), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_roi_pool(seed: int) -> None:
    rng = np.random.default_rng(seed)
    image, rois = rng.normal(0, 1, (2, 9, 11, 3)).astype(F), boxes_of(rng, 5, 34)
    rois[0] = [30, 30, 34, 34]  # at the border: some parts hold no pixel
    batches, size, strides = rng.integers(0, 2, 5).astype(I), (3, 4), (4.0, 4.0)
    out = np.zeros((5, *size, 3), F)
    assert _core.roi_pool(image, rois, batches, *strides, out) == -1
    np.testing.assert_array_equal(out, twin.roi_pool(image, rois, batches, size, strides).astype(F))


def test_roi_pool_of_nothing_is_zero() -> None:
    image, out = np.full((1, 2, 2, 1), -5, F), np.full((1, 2, 2, 1), 9, F) * 0
    assert _core.roi_pool(image, np.array([[2, 2, 2, 2]], F), np.zeros(1, I), 1.0, 1.0, out) == -1
    assert not out.any()


@pytest.mark.parametrize("seed", SEEDS)
def test_heatmap_peaks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    maps, boxes = rng.normal(0, 1, (4, 5, 5, 3)).astype(F), boxes_of(rng, 4)
    maps[0, :, :, 0] = 0.25  # flat: there is no parabola
    maps[1, 0, 0, 1] = 9  # a peak in the corner
    scores, points = np.zeros((4, 3), F), np.zeros((4, 3, 2), F)
    assert _core.heatmap_peaks(maps, boxes, scores, points) == -1
    for got, wanted in zip((scores, points), twin.heatmap(maps.astype(float), boxes), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


BOX = [1.0, 1.0, 3.0, 3.0]


@pytest.mark.parametrize(
    "bad", [[3, 1, 1, 3], [1, 3, 3, 1], [-1, 1, 3, 3], [1, 1, 3, 30], [1, 1, np.inf, 3], [np.nan, 1, 3, 3]]
)
@pytest.mark.parametrize("pooled", [False, True])
def test_malformed_regions_are_named(bad: list[float], pooled: bool) -> None:
    image, rois, batches = np.zeros((1, 4, 4, 1), F), np.array([BOX, bad, BOX], F), np.zeros(3, I)
    out = np.zeros((3, 2, 2, 1), F)
    if pooled:
        assert _core.roi_pool(image, rois, batches, 1.0, 1.0, out) == 1
    else:
        assert _core.roi_align(image, rois, batches, 1.0, 1.0, 0, 0, out) == 1


@pytest.mark.parametrize("batch", [-1, 2, 2**31 - 1])
def test_batches_that_do_not_exist_are_named(batch: int) -> None:
    rois, batches = np.array([BOX] * 2, F), np.array([0, batch], I)
    images, deltas, out = np.full((2, 2), 9, F), np.zeros((2, 4), F), np.zeros((2, 4), F)
    assert _core.bbox_transform(rois, deltas, batches, images, out) == 1
    assert _core.roi_align(np.zeros((2, 4, 4, 1), F), rois, batches, 1.0, 1.0, 1, 1, np.zeros((2, 1, 1, 1), F)) == 1


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="bbox_transform: shapes do not fit"):
        _core.bbox_transform(
            np.zeros((2, 4), F), np.zeros((3, 4), F), np.zeros(2, I), np.zeros((1, 2), F), np.zeros((3, 4), F)
        )
    out = np.zeros(2, F), np.zeros((2, 4), F), np.zeros(2, I), np.zeros(2, I)
    boxes = np.tile(np.array([[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]], F), (1, 2))
    with pytest.raises(ValueError, match="2 rows of output are too few"):
        _core.box_nms_limit(np.ones((3, 2), F), boxes, np.zeros(3, I), 0.0, -1, 0, 0.5, 1.0, 0.0, *out)


def test_nothing_gives_nothing() -> None:
    out = np.zeros(0, F), np.zeros((0, 4), F), np.zeros(0, I), np.zeros(0, I)
    assert (
        _core.box_nms_limit(np.zeros((0, 2), F), np.zeros((0, 8), F), np.zeros(0, I), 0.0, 5, 0, 0.5, 1.0, 0.0, *out)
        == 0
    )
    images = np.zeros((1, 2), F)
    assert (
        _core.bbox_transform(np.zeros((0, 4), F), np.zeros((0, 8), F), np.zeros(0, I), images, np.zeros((0, 8), F))
        == -1
    )
    assert _core.roi_align(
        np.zeros((1, 2, 2, 1), F), np.zeros((0, 4), F), np.zeros(0, I), 1.0, 1.0, 0, 0, np.zeros((0, 2, 2, 1), F)
    ) == -1  # fmt: skip


@pytest.mark.parametrize("pooled", [False, True])
def test_the_image_of_a_region_is_asked_for_once(pooled: bool) -> None:
    """Results that overwrite the image list do not change where the rest of the region is read."""
    tiny = np.array([1], np.int32).view(np.float32)[0]  # as an index this value is 1, another image
    image = np.stack([np.full((3, 5, 1), tiny), np.full((3, 5, 1), 5)]).astype(np.float32)
    out = np.zeros((1, 1, 2, 1), np.float32)
    batches = out.reshape(-1)[:1].view(np.int32)
    rois = np.array([[0, 0, 4, 2]], np.float32)  # samples are on pixels
    if pooled:
        bad = _core.roi_pool(image, rois, batches, 1.0, 1.0, out)
    else:
        bad = _core.roi_align(image, rois, batches, 1.0, 1.0, 1, 1, out)
    assert bad == -1
    np.testing.assert_array_equal(out.reshape(-1), [tiny, tiny])
