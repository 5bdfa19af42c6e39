"""Routines on boxes (x1, y1, x2, y2): transformation, suppression, proposals, detections; float32.

Costs do not depend on data, so work that does is charged for the worst case.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim import _core
from npusim.dtypes import DType
from npusim.routines.base import Array, Cut, Params, Routine, Spec, register_routine
from npusim.routines.checks import F32, I32, check_operands, check_rows, traffic, want
from npusim.work import ScalarWork, VectorWork

COUNT = Spec((1,), I32)
"""Number of valid rows in the other outputs."""


def _infer_transform(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    check_operands(inputs, ("rois", 2, F32), ("deltas", 2, F32), ("batches", 1, I32), ("images", 2, F32))
    rois, deltas, batches, images = (spec.shape for spec in inputs)
    want(rois[1] == 4 and images[1] == 2, f"rois have 4 columns and images 2, got {rois[1]} and {images[1]}")
    want(deltas[1] % 4 == 0, f"deltas have 4 columns for each class, got {deltas[1]}")
    want(rois[0] == deltas[0] == batches[0], f"rois, deltas and batches differ: {rois[0]}, {deltas[0]}, {batches[0]}")
    return [Spec(deltas, F32)]


register_routine(
    Routine(
        "npusim.bbox_transform",
        1,
        _infer_transform,
        lambda ins, params, outs: check_rows(_core.bbox_transform(*ins, *outs), "box"),
        lambda ins, outs, params: VectorWork("transcendental", DType.FLOAT32, outs[0].size, 1, traffic(ins, outs)),
        cuts=lambda inputs, params: [Cut((0, 0, 0, None), (0,))],
        unit="vector",
    )
)
"""rois [n, 4], deltas [n, 4c], batches [n], images [b, 2] (height, width) -> boxes [n, 4c]."""

_NMS = {
    "score_threshold": float,
    "most": int,
    "kernel": int,
    "iou_threshold": float,
    "sigma": float,
    "nms_threshold": float,
}


def _infer_nms(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    check_operands(inputs, ("scores", 2, F32), ("boxes", 2, F32), ("batches", 1, I32))
    (rows, classes), boxes, batches = (spec.shape for spec in inputs)
    want(classes >= 1, "scores must have a column for the background")
    want(boxes == (rows, 4 * classes), f"boxes must be {[rows, 4 * classes]}, got {list(boxes)}")
    want(batches == (rows,), f"batches must be {[rows]}, got {list(batches)}")
    want(params["kernel"] in (0, 1, 2), f"kernel must be 0, 1 or 2, got {params['kernel']}")
    most = rows * (classes - 1 if params["most"] < 0 else min(classes - 1, params["most"]))
    return [Spec((most,), F32), Spec((most, 4), F32), Spec((most,), I32), Spec((most,), I32), COUNT]


def _nms(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    scores, boxes, batches = inputs
    out_scores, out_boxes, out_classes, out_batches, count = outputs
    count[0] = _core.box_nms_limit(
        # A copy, because suppression lowers scores in place, and inputs are read only.
        scores.copy(),
        boxes,
        batches,
        params["score_threshold"],
        params["most"],
        params["kernel"],
        params["iou_threshold"],
        params["sigma"],
        params["nms_threshold"],
        out_scores,
        out_boxes,
        out_classes,
        out_batches,
    )


def _pairs(rows: int, chosen: int) -> int:
    """Comparisons of suppression: each chosen box with all remaining ones."""
    # The worst case, no overlaps, because the cost must not depend on data.
    chosen = min(rows, chosen) if chosen >= 0 else rows
    return chosen * rows - chosen * (chosen - 1) // 2


def _nms_work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> ScalarWork:
    rows, classes = inputs[0].shape
    return ScalarWork(rows * classes + (classes - 1) * _pairs(rows, params["most"]), traffic(inputs, outputs))


register_routine(Routine("npusim.box_nms", 1, _infer_nms, _nms, _nms_work, _NMS))
"""scores [n, c], boxes [n, 4c], batches [n] -> scores [m], boxes [m, 4], classes [m], batches [m], count [1]."""

_PROPOSALS = {
    "stride_h": float,
    "stride_w": float,
    "before": int,
    "after": int,
    "iou_threshold": float,
    "least_size": float,
}


def _infer_proposals(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    check_operands(inputs, ("scores", 4, F32), ("deltas", 4, F32), ("anchors", 2, F32), ("images", 2, F32))
    scores, deltas, anchors, images = (spec.shape for spec in inputs)
    wanted = (*scores[:3], 4 * scores[3])
    want(deltas == wanted, f"deltas must be {list(wanted)}, got {list(deltas)}")
    want(anchors == (scores[3], 4), f"anchors must be {[scores[3], 4]}, got {list(anchors)}")
    want(images == (scores[0], 2), f"images must be {[scores[0], 2]}, got {list(images)}")
    each = scores[1] * scores[2] * scores[3]
    for limit in (params["before"], params["after"]):
        each = min(each, limit) if limit > 0 else each
    most = scores[0] * each
    return [Spec((most,), F32), Spec((most, 4), F32), Spec((most,), I32), COUNT]


def _proposals(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    scores, deltas, anchors, images = inputs
    out_scores, out_boxes, out_batches, count = outputs
    count[0] = _core.proposals(
        scores,
        deltas,
        anchors,
        images,
        params["stride_h"],
        params["stride_w"],
        params["before"],
        params["after"],
        params["iou_threshold"],
        params["least_size"],
        out_scores,
        out_boxes,
        out_batches,
    )


def _proposals_work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> ScalarWork:
    batches, height, width, anchors = inputs[0].shape
    size = height * width * anchors
    # Suppression processes only the best boxes, after all have been sorted.
    left = min(size, params["before"]) if params["before"] > 0 else size
    pairs = _pairs(left, params["after"] if params["after"] > 0 else -1)
    return ScalarWork(batches * (size * (4 + max(1, size.bit_length())) + pairs), traffic(inputs, outputs))


register_routine(Routine("npusim.proposals", 1, _infer_proposals, _proposals, _proposals_work, _PROPOSALS))
"""scores [b, h, w, a], deltas [b, h, w, 4a], anchors [a, 4], images [b, 2] -> scores [m], boxes [m, 4], batches [m],
count [1]."""

_DETECTIONS = {
    "scale": tuple,
    "regular": bool,
    "most": int,
    "of_box": int,
    "of_class": int,
    "score_threshold": float,
    "iou_threshold": float,
    "first_label": int,
}


def _infer_detections(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    check_operands(inputs, ("scores", 3, F32), ("deltas", 3, F32), ("anchors", 2, F32))
    (batches, rows, classes), deltas, anchors = (spec.shape for spec in inputs)
    want(classes > 1, f"scores must have more than one class, got {classes}")
    want(deltas[:2] == (batches, rows) and deltas[2] >= 4, f"deltas must be {[batches, rows, 4]}, got {list(deltas)}")
    want(anchors == (rows, 4), f"anchors must be {[rows, 4]}, got {list(anchors)}")
    scale = params["scale"]
    want(len(scale) == 4 and all(isinstance(s, float) and s > 0 for s in scale), "scale must be four numbers > 0")
    want(params["most"] > 0, f"most must be > 0, got {params['most']}")
    regular = params["regular"]
    want(regular or params["of_box"] > 0, f"of_box must be > 0, got {params['of_box']}")
    room = params["most"] * (1 if regular else params["of_box"])
    return [
        Spec((batches, room), F32),
        Spec((batches, room, 4), F32),
        Spec((batches, room), I32),
        Spec((batches,), I32),
    ]


def _detections(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    scores, deltas, anchors = inputs
    out_scores, out_boxes, out_classes, out_counts = outputs
    _core.detections(
        scores,
        deltas,
        anchors,
        np.array(params["scale"], np.float32),
        params["regular"],
        params["most"],
        params["of_box"],
        params["of_class"],
        params["score_threshold"],
        params["iou_threshold"],
        params["first_label"],
        out_scores,
        out_boxes,
        out_classes,
        out_counts,
    )


def _detections_work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> ScalarWork:
    batches, rows, classes = inputs[0].shape
    if params["regular"]:
        pairs = (classes - 1) * _pairs(rows, params["of_class"])
    else:
        pairs = _pairs(rows, params["most"])
    return ScalarWork(batches * (rows * (classes + 4) + pairs), traffic(inputs, outputs))


register_routine(
    Routine(
        "npusim.detections",
        1,
        _infer_detections,
        _detections,
        _detections_work,
        _DETECTIONS,
        lambda inputs, params: [Cut((0, 0, None), (0, 0, 0, 0))],
    )
)
"""scores [b, n, c], encodings [b, n, >= 4], anchors [n, 4] (y, x, h, w) -> scores [b, m], boxes [b, m, 4] as (y1, x1,
y2, x2), classes [b, m], counts [b]."""
