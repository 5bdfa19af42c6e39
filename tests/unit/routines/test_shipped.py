"""The shipped routines: shapes, costs, allowed cuts, results and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.dtypes import DType
from npusim.errors import InputError, ModelError
from npusim.routines import Cut, Spec, latest_routine
from npusim.work import ScalarWork, VectorWork
from tests.support.shipped_routines import F32, I32, TYPES, Shapes

U8 = DType.UINT8


def specs(name: str, shapes: Shapes | None = None) -> list[Spec]:
    types, _, usual = TYPES[name]
    return [Spec(tuple(shape), dtype) for shape, dtype in zip(shapes or usual, types, strict=True)]


def results(name: str, shapes: Shapes | None = None, **changes: Any) -> list[Spec]:
    return latest_routine(f"npusim.{name}").outputs(specs(name, shapes), {**TYPES[name][1], **changes})


def charged(name: str, shapes: Shapes | None = None, **changes: Any) -> ScalarWork | VectorWork:
    routine, params = latest_routine(f"npusim.{name}"), {**TYPES[name][1], **changes}
    inputs = specs(name, shapes)
    return routine.work(inputs, routine.outputs(inputs, params), params)


def computed(name: str, *arrays: npt.ArrayLike, **changes: Any) -> list[Any]:
    """Return the outputs for these values; they start as zeros, as on the unit."""
    routine, types, params = latest_routine(f"npusim.{name}"), TYPES[name][0], {**TYPES[name][1], **changes}
    inputs = [np.asarray(array, dtype.storage) for array, dtype in zip(arrays, types, strict=True)]
    made = routine.outputs([Spec(a.shape, t) for a, t in zip(inputs, types, strict=True)], params)
    outputs = [np.zeros(spec.shape, spec.dtype.storage) for spec in made]
    routine.execute(inputs, params, outputs)
    return outputs


# Shapes

SHAPES: list[tuple[str, dict[str, Any], list[Spec]]] = [
    ("bbox_transform", {}, [Spec((5, 8), F32)]),
    *(
        ("box_nms", {"most": most}, [Spec((n,), F32), Spec((n, 4), F32), *[Spec((n,), I32)] * 2, Spec((1,), I32)])
        for most, n in ((0, 0), (2, 12), (-1, 18), (9, 18))
    ),
    ("proposals", {}, [Spec((6,), F32), Spec((6, 4), F32), Spec((6,), I32), Spec((1,), I32)]),
    ("proposals", {"after": 9}, [Spec((14,), F32), Spec((14, 4), F32), Spec((14,), I32), Spec((1,), I32)]),
    ("proposals", {"after": 1}, [Spec((2,), F32), Spec((2, 4), F32), Spec((2,), I32), Spec((1,), I32)]),
    (
        "proposals", {"before": 0, "after": -1},
        [Spec((120,), F32), Spec((120, 4), F32), Spec((120,), I32), Spec((1,), I32)],
    ),
    ("detections", {}, [Spec((2, 3), F32), Spec((2, 3, 4), F32), Spec((2, 3), I32), Spec((2,), I32)]),
    (
        "detections", {"regular": False}, [Spec((2, 6), F32), Spec((2, 6, 4), F32), Spec((2, 6), I32), Spec((2,), I32)],
    ),
    ("heatmap_peaks", {}, [Spec((3, 7), F32), Spec((3, 7, 2), F32)]),
    ("roi_align", {}, [Spec((5, 2, 3, 3), F32)]),
    ("roi_pool", {}, [Spec((5, 2, 3, 3), F32)]),
    ("search_keys", {}, [Spec((9,), I32), Spec((9,), U8)]),
    ("lsh_bits", {}, [Spec((3, 4), U8)]),
    ("multinomial", {}, [Spec((2, 6), I32)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "wanted"), SHAPES)
def test_shapes(name: str, changes: dict[str, Any], wanted: list[Spec]) -> None:
    assert results(name, **changes) == wanted


# What is charged. Bytes of operands: those in, then those out.

WORK: list[tuple[str, dict[str, Any], ScalarWork | VectorWork]] = [
    ("bbox_transform", {}, VectorWork("transcendental", F32, 40, 1, 4 * (20 + 40 + 5 + 4 + 40))),
    # 24 scores; 3 classes without the background, in each the best of 6 with 6 and the next with 5
    ("box_nms", {}, ScalarWork(24 + 3 * (6 + 5), 4 * (24 + 96 + 6) + 4 * (12 + 48 + 12 + 12 + 1))),
    ("box_nms", {"most": -1}, ScalarWork(24 + 3 * 21, 4 * (24 + 96 + 6) + 4 * (18 + 72 + 18 + 18 + 1))),
    ("box_nms", {"most": 99}, ScalarWork(24 + 3 * 21, 4 * (24 + 96 + 6) + 4 * (18 + 72 + 18 + 18 + 1))),
    ("box_nms", {"most": 0}, ScalarWork(24, 4 * (24 + 96 + 6) + 4)),
    # 60 boxes of an image: 4 corners and 6 steps of a sort each; of the 7 best, 3 are compared with 7, 6 and 5
    ("proposals", {}, ScalarWork(2 * (60 * 10 + 18), 4 * (120 + 480 + 20 + 4) + 4 * (6 + 24 + 6 + 1))),
    ("proposals", {"before": -1}, ScalarWork(2 * (60 * 10 + 60 + 59 + 58), 4 * 624 + 4 * 37)),
    ("proposals", {"after": 0}, ScalarWork(2 * (60 * 10 + 28), 4 * 624 + 4 * (14 + 56 + 14 + 1))),
    # 6 rows: 4 classes and 4 corners each; 3 classes with the best 2 of 6, or the best 3 of all classes together
    ("detections", {}, ScalarWork(2 * (6 * 8 + 3 * 11), 4 * (48 + 60 + 24) + 4 * (6 + 24 + 6 + 2))),
    ("detections", {"regular": False}, ScalarWork(2 * (6 * 8 + 15), 4 * 132 + 4 * (12 + 48 + 12 + 2))),
    ("heatmap_peaks", {}, ScalarWork(525 + 32 * 21, 4 * (525 + 12 + 21 + 42))),
    ("roi_align", {}, VectorWork("simple", F32, 90 * 10, 4, 16 * 900)),
    # as many samples as pixels of the image per part: 4 rows of 7, 3 columns of 8
    ("roi_align", {"ratio_h": 0, "ratio_w": 0}, VectorWork("simple", F32, 90 * 12, 4, 16 * 1080)),
    ("roi_pool", {}, VectorWork("simple", F32, 5 * 7 * 8 * 3, 1, 4 * (840 + 90))),
    ("roi_pool", {"height": 30, "width": 40}, VectorWork("simple", F32, 18000, 1, 4 * 36000)),
    # a step to begin with, and three halvings of five keys
    ("search_keys", {}, ScalarWork(9 * 4, 4 * 36 + 36 + 36 + 9)),
    # a seed of 4 bytes and a key of 8 are two words
    ("lsh_bits", {}, ScalarWork(12 * 5 * 2, 8 * 120 + 12)),
    # ten rounds and three halvings of five classes for each draw
    ("multinomial", {}, ScalarWork(10 + 12 * 13, 4 * (10 + 2 + 12))),
]


@pytest.mark.parametrize(("name", "changes", "wanted"), WORK)
def test_what_is_charged(name: str, changes: dict[str, Any], wanted: ScalarWork | VectorWork) -> None:
    assert charged(name, **changes) == wanted


def test_nothing_costs_no_comparisons() -> None:
    assert charged("lsh_bits", [(3, 4), (0, 2), (0,)]) == ScalarWork(0, 12)
    assert charged("lsh_bits", [(3, 4), (2, 3), (2,)]) == ScalarWork(12 * 2 * 2, 8 * 48 + 12)
    assert charged("proposals", [(1, 0, 4, 5), (1, 0, 4, 20), (5, 4), (1, 2)]) == ScalarWork(0, 4 * (20 + 2 + 1))
    assert charged("roi_align", [(1, 0, 1, 3), (1, 4), (1,)], ratio_h=0, ratio_w=0).elements == 18


CUTS = {
    "bbox_transform": [Cut((0, 0, 0, None), (0,))],
    "box_nms": [],
    "proposals": [],
    "detections": [Cut((0, 0, None), (0, 0, 0, 0))],
    "heatmap_peaks": [Cut((0, 0), (0, 0)), Cut((3, None), (1, 1))],
    "roi_align": [Cut((3, None, None), (3,)), Cut((None, 0, 0), (0,))],
    "roi_pool": [Cut((3, None, None), (3,)), Cut((None, 0, 0), (0,))],
    "search_keys": [Cut((0, None), (0, 0))],
    "lsh_bits": [Cut((0, None, None), (0,))],
    "multinomial": [],
}
UNITS = {"bbox_transform": "vector", "roi_align": "vector", "roi_pool": "vector"}


@pytest.mark.parametrize("name", TYPES)
def test_cuts_and_units(name: str) -> None:
    routine = latest_routine(f"npusim.{name}")
    assert list(routine.cuts(specs(name), TYPES[name][1])) == CUTS[name]
    assert (routine.version, routine.unit) == (1, UNITS.get(name, "scalar"))


# Refusals

WRONG: list[tuple[str, Shapes, str]] = [
    ("bbox_transform", [(5, 5), (5, 8), (5,), (2, 2)], "rois have 4 columns and images 2, got 5 and 2"),
    ("bbox_transform", [(5, 4), (5, 8), (5,), (2, 3)], "rois have 4 columns and images 2, got 4 and 3"),
    ("bbox_transform", [(5, 4), (5, 6), (5,), (2, 2)], "deltas have 4 columns for each class, got 6"),
    ("bbox_transform", [(5, 4), (4, 8), (5,), (2, 2)], "rois, deltas and batches differ: 5, 4, 5"),
    ("bbox_transform", [(5, 4), (5, 8), (6,), (2, 2)], "rois, deltas and batches differ: 5, 5, 6"),
    ("bbox_transform", [(5, 4), (5, 8), (5, 1), (2, 2)], "batches must be int32 of rank 1"),
    ("box_nms", [(6, 0), (6, 0), (6,)], "scores must have a column for the background"),
    ("box_nms", [(6, 4), (6, 12), (6,)], r"boxes must be \[6, 16\], got \[6, 12\]"),
    ("box_nms", [(6, 4), (6, 16), (5,)], r"batches must be \[6\], got \[5\]"),
    ("proposals", [(2, 3, 4, 5), (2, 3, 4, 24), (5, 4), (2, 2)], r"deltas must be \[2, 3, 4, 20\]"),
    ("proposals", [(2, 3, 4, 5), (2, 3, 4, 20), (4, 4), (2, 2)], r"anchors must be \[5, 4\]"),
    ("proposals", [(2, 3, 4, 5), (2, 3, 4, 20), (5, 4), (1, 2)], r"images must be \[2, 2\]"),
    ("detections", [(2, 6, 1), (2, 6, 4), (6, 4)], "scores must have more than one class, got 1"),
    ("detections", [(2, 6, 4), (2, 5, 4), (6, 4)], r"deltas must be \[2, 6, 4\]"),
    ("detections", [(2, 6, 4), (2, 6, 3), (6, 4)], r"deltas must be \[2, 6, 4\]"),
    ("detections", [(2, 6, 4), (2, 6, 4), (5, 4)], r"anchors must be \[6, 4\]"),
    ("heatmap_peaks", [(3, 5, 4, 7), (3, 4)], "maps must be squares"),
    ("heatmap_peaks", [(3, 1, 1, 7), (3, 4)], "maps must be squares"),
    ("heatmap_peaks", [(3, 5, 5, 7), (2, 4)], r"boxes must be \[3, 4\]"),
    ("roi_align", [(2, 7, 8, 3), (5, 3), (5,)], r"rois must be \[n, 4\] and batches \[n\]"),
    ("roi_pool", [(2, 7, 8, 3), (5, 4), (4,)], r"rois must be \[n, 4\] and batches \[n\]"),
    ("search_keys", [(9, 1), (5,)], "lookups must be int32 of rank 1"),
    ("lsh_bits", [(3, 4), (5, 2), (4,)], r"weights must be \[5\], got \[4\]"),
    ("lsh_bits", [(3, 4), (), (5,)], "items must have at least rank 1"),
    ("multinomial", [(2, 0), (2,)], "logits must have at least one class"),
    ("multinomial", [(2, 5), (3,)], "there must be two seeds, got 3"),
]


@pytest.mark.parametrize(("name", "shapes", "message"), WRONG)
def test_shapes_that_contradict_each_other_are_refused(name: str, shapes: Shapes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        results(name, shapes)


VALUES: list[tuple[str, dict[str, Any], str]] = [
    ("box_nms", {"kernel": 3}, "kernel must be 0, 1 or 2, got 3"),
    ("box_nms", {"kernel": -1}, "kernel must be 0, 1 or 2, got -1"),
    ("detections", {"scale": (1.0, 1.0, 1.0)}, "scale must be four numbers > 0"),
    ("detections", {"scale": (1.0, 0.0, 1.0, 1.0)}, "scale must be four numbers > 0"),
    ("detections", {"scale": (1.0, 1, 1.0, 1.0)}, "scale must be four numbers > 0"),
    ("detections", {"most": 0}, "most must be > 0, got 0"),
    ("detections", {"regular": False, "of_box": 0}, "of_box must be > 0, got 0"),
    ("roi_align", {"ratio_h": -1}, r"ratio_h must be in \[0, 4096\], got -1"),
    ("roi_align", {"ratio_w": 4097}, r"ratio_w must be in \[0, 4096\], got 4097"),
    ("roi_align", {"height": 0}, "height and width must be > 0"),
    ("roi_pool", {"width": 0}, "height and width must be > 0"),
    ("roi_pool", {"stride_h": 0.0}, "strides must be > 0"),
    ("roi_align", {"stride_w": 0.0}, "strides must be > 0"),
    ("multinomial", {"samples": -1}, "samples must be >= 0, got -1"),
]


@pytest.mark.parametrize(("name", "changes", "message"), VALUES)
def test_values_that_make_no_sense_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        results(name, **changes)


def test_values_at_the_edge_are_taken() -> None:
    results("detections", of_box=0)
    results("detections", [(2, 6, 2), (2, 6, 4), (6, 4)], most=1, regular=False, of_box=1)
    results("roi_align", ratio_h=4096, ratio_w=0, height=1, width=1)
    results("multinomial", [(2, 1), (2,)], samples=0)
    results("heatmap_peaks", [(3, 2, 2, 7), (3, 4)])
    results("box_nms", [(6, 1), (6, 4), (6,)], kernel=2)
    results("lsh_bits", [(3, 4), (5,), (5,)])


@pytest.mark.parametrize("name", TYPES)
def test_types_and_numbers_of_operands_are_checked(name: str) -> None:
    routine, params = latest_routine(f"npusim.{name}"), TYPES[name][1]
    operands = specs(name)
    with pytest.raises(ModelError, match=f"takes {len(operands)} inputs, got {len(operands) + 1}"):
        routine.outputs([*operands, operands[0]], params)
    for number, spec in enumerate(operands):
        if (name, number) == ("lsh_bits", 1):  # items may be of any type
            continue
        with pytest.raises(ModelError, match=r"must be .* of rank"):
            routine.outputs([*operands[:number], Spec(spec.shape, DType.INT16), *operands[number + 1 :]], params)


# Results, worked out by hand


def test_a_box_is_moved_scaled_and_clipped() -> None:
    (boxes,) = computed(
        "bbox_transform", [[2, 2, 6, 4]], [[0.5, 0, 0, 0, 0, 0.5, np.log(2), 0]], [1], [[1, 1], [20, 9]]
    )
    np.testing.assert_allclose(boxes, [[4, 2, 8, 4, 0, 3, 8, 5]], atol=1e-6)


def test_a_box_of_no_image_is_named() -> None:
    with pytest.raises(InputError, match="box 1 is malformed: no such batch"):
        computed("bbox_transform", [[0, 0, 1, 1]] * 2, np.zeros((2, 4)), [0, 1], [[9, 9]])
    with pytest.raises(InputError, match="region 0 is malformed"):
        computed("roi_align", np.zeros((1, 4, 4, 1)), [[0, 0, 1, 1]], [1])
    with pytest.raises(InputError, match="region 0 is malformed"):
        computed("roi_pool", np.zeros((1, 4, 4, 1)), [[0, 0, 1, 1]], [-1])
    with pytest.raises(InputError, match="box 0 is malformed"):
        computed("heatmap_peaks", np.zeros((1, 4, 4, 1)), [[2, 2, 1, 1]])


APART, SAME = [0.0, 0.0, 1.0, 1.0], [4.0, 4.0, 6.0, 6.0]


def test_of_boxes_that_overlap_the_best_stays() -> None:
    """Class 1 of two rows with the same box, and of a separate one; one score is below the threshold."""
    scores = [[0.0, 0.5, 0.2], [0.0, 0.9, 0.1], [0.0, 0.4, 0.7]]
    boxes = [[*APART, *SAME, *APART], [*APART, *SAME, *APART], [*APART, *APART, *SAME]]
    kept, places, classes, batches, count = computed("box_nms", scores, boxes, [0, 0, 3])
    assert count[0] == 3
    np.testing.assert_allclose(kept[:3], [0.9, 0.4, 0.7])
    np.testing.assert_array_equal(places[:3], [SAME, APART, SAME])
    np.testing.assert_array_equal(classes[:3], [1, 1, 2])
    np.testing.assert_array_equal(batches[:3], [0, 3, 3])


def test_softer_kernels_lower_scores() -> None:
    """For the identical box, linear leaves nothing of 0.5, gaussian e^(-1 / sigma) of it."""
    scores, boxes = [[0.0, 0.9], [0.0, 0.5]], [[*APART, *SAME]] * 2
    for kernel, sigma, wanted in ((1, 0.5, [0.9]), (2, 2.0, [0.9, 0.5 * np.exp(-0.5)]), (2, 0.5, [0.9])):
        kept, *_, count = computed("box_nms", scores, boxes, [0, 0], kernel=kernel, sigma=sigma)
        np.testing.assert_allclose(kept[: count[0]], wanted, rtol=1e-6)


def test_as_many_boxes_stay_as_are_wanted() -> None:
    scores, boxes = [[0.0, 0.9], [0.0, 0.5]], [[*APART, *SAME], [*APART, *APART]]
    counts = [computed("box_nms", scores, boxes, [0, 0], most=most)[-1][0] for most in (-1, 0, 1, 2)]
    assert counts == [2, 0, 1, 2]


def test_proposals_come_from_anchors() -> None:
    """Two positions of one anchor, 4 apart, with deltas of 0: the anchor itself, moved there and clipped."""
    scores, deltas = [[[[0.25], [0.75]]]], np.zeros((1, 1, 2, 4))
    kept, boxes, batches, count = computed("proposals", scores, deltas, [[0, 0, 2, 2]], [[8, 5]], least_size=0.5)
    assert count[0] == 2
    np.testing.assert_allclose(kept[:2], [0.75, 0.25])
    np.testing.assert_allclose(boxes[:2], [[4, 0, 5, 2], [0, 0, 2, 2]])
    np.testing.assert_array_equal(batches[:2], [0, 0])
    *_, few = computed("proposals", scores, deltas, [[0, 0, 2, 2]], [[8, 5]], before=1, least_size=0.5)
    assert few[0] == 1
    *_, large = computed("proposals", scores, deltas, [[0, 0, 2, 2]], [[8, 5]], least_size=1.5)
    assert large[0] == 1


def test_detections() -> None:
    """Two separate anchors (y, x, h, w), one of which exceeds the threshold in two classes. The fast way takes the best
    classes of a box, whatever their scores."""
    scores = [[[0.1, 0.6, 0.5], [0.0, 0.2, 0.9]]]
    anchors = [[1.0, 1.0, 2.0, 2.0], [5.0, 5.0, 2.0, 2.0]]
    deltas = [[[0, 0, 0, 0], [10.0, 0, 0, 0]]]
    kept, boxes, classes, counts = computed("detections", scores, deltas, anchors)
    first, second = [0, 0, 2, 2], [6, 4, 8, 6]
    assert counts.tolist() == [3]
    np.testing.assert_allclose(kept[0, :3], [0.9, 0.6, 0.5])
    np.testing.assert_allclose(boxes[0, :3], [second, first, first], atol=1e-5)
    np.testing.assert_array_equal(classes[0, :3], [2, 1, 2])
    kept, boxes, classes, counts = computed("detections", scores, deltas, anchors, regular=False)
    assert counts.tolist() == [4]
    np.testing.assert_allclose(kept[0, :4], [0.9, 0.2, 0.6, 0.5])
    np.testing.assert_allclose(boxes[0, :4], [second, second, first, first], atol=1e-5)
    np.testing.assert_array_equal(classes[0, :4], [2, 1, 1, 2])


def test_labels_begin_where_they_are_told() -> None:
    arrays = [[[0.1, 0.6]]], np.zeros((1, 1, 4)), [[1.0, 1.0, 2.0, 2.0]]
    assert [computed("detections", *arrays, first_label=label)[2][0, 0] for label in (0, 1)] == [0, 1]


def test_peaks_of_heat_maps() -> None:
    """A peak on a pixel, symmetric around it, in a box of twice the map's size."""
    maps = np.zeros((1, 5, 5, 1))
    maps[0, 2, 2, 0] = 1.0
    scores, points = computed("heatmap_peaks", maps, [[10, 20, 20, 30]])
    np.testing.assert_allclose(scores, [[1.0]])
    np.testing.assert_allclose(points, [[[15, 25]]])


def test_regions_of_images() -> None:
    """With increasing pixels, a maximum is the last pixel, and a mean of samples is in the middle."""
    image = np.arange(16).reshape(1, 4, 4, 1)
    strides = {"height": 2, "width": 2, "stride_h": 2.0, "stride_w": 2.0}
    (pooled,) = computed("roi_pool", image, [[0, 0, 6, 6]], [0], **strides)
    np.testing.assert_array_equal(pooled[0, ..., 0], [[5, 7], [13, 15]])
    (aligned,) = computed("roi_align", image, [[0, 0, 6, 4]], [0], **strides, ratio_h=1, ratio_w=1)
    np.testing.assert_allclose(aligned[0, ..., 0], [[0.5 * 4 + 0.75, 0.5 * 4 + 2.25], [6 + 0.75, 6 + 2.25]])
    (finer,) = computed("roi_align", image, [[0, 0, 6, 4]], [0], **strides, ratio_h=2, ratio_w=0)
    np.testing.assert_allclose(finer, aligned, atol=1e-6)


def test_keys_are_found_in_order() -> None:
    places, hits = computed("search_keys", [5, 1, 9, 2], [2, 5, 9])
    np.testing.assert_array_equal(places, [1, 0, 2, 0])
    np.testing.assert_array_equal(hits, [1, 0, 1, 1])


def test_hashes_follow_seeds_and_keys() -> None:
    """A bit depends on a seed and a list of items: equal seeds give equal bits, and items of weight 0 do not count."""
    seeds, items = [[0.25, 0.25], [0.5, -3.0]], [[1, 2], [3, 4], [5, 6]]
    (bits,) = computed("lsh_bits", seeds, items, [1, 0, 2])
    assert bits[0, 0] == bits[0, 1]
    np.testing.assert_array_equal(computed("lsh_bits", seeds, [[1, 2], [0, 9], [5, 6]], [1, 0, 2])[0], bits)
    wide = np.random.default_rng(0).uniform(-5, 5, (64, 2))
    once, twice = (computed("lsh_bits", wide, items, weights)[0] for weights in ([1, 1, 1], [-1, -1, -1]))
    assert set(np.unique(once)) == {0, 1}
    np.testing.assert_array_equal(once, 1 - twice)
    assert not computed("lsh_bits", seeds, np.zeros((0, 2)), [])[0].any()


def test_draws_follow_the_logits_and_the_seeds() -> None:
    (sure,) = computed("multinomial", [[-200, 0, -200], [0, -200, -200]], [1, 2], samples=40)
    assert (sure[0] == 1).all()
    assert (sure[1] == 0).all()
    (one,), (again,), (other,), (second,) = (
        computed("multinomial", np.zeros((1, 8)), seeds, samples=64) for seeds in ([-1, 5], [-1, 5], [-2, 5], [-1, 6])
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert (one != second).any()
    assert set(one[0]) == set(range(8))
