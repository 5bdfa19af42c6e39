"""Reference implementations of the detection routines, in double precision and close to the operations' definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def iou(a: Array, b: Array) -> float:
    """Return the area of the intersection over that of the union."""
    sides = [max(0.0, min(a[k + 2], b[k + 2]) - max(a[k], b[k])) for k in (0, 1)]
    both = sides[0] * sides[1]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return float(both / (sum(areas) - both))


def transform(box: Array, delta: Array, size: Array) -> Array:
    """Move a box by fractions of its size, scale it by exponents, and clip it to an image of (height, width)."""
    width, height = box[2] - box[0], box[3] - box[1]
    x = (box[0] + box[2]) / 2 + delta[0] * width
    y = (box[1] + box[3]) / 2 + delta[1] * height
    width, height = width * math.exp(delta[2]), height * math.exp(delta[3])
    corners = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    return np.clip(corners, 0, [size[1], size[0], size[1], size[0]])


def bbox_transform(rois: Array, deltas: Array, batches: Array, images: Array) -> Array:
    """AXIS_ALIGNED_BBOX_TRANSFORM."""
    rows = [
        [transform(roi, delta, images[batch]) for delta in row.reshape(-1, 4)]
        for roi, row, batch in zip(rois, deltas, batches, strict=True)
    ]
    return np.array(rows, np.float64).reshape(deltas.shape)


def suppress(
    candidates: Sequence[int],
    scores: dict[int, float],
    box: Callable[[int], Array],
    most: int,
    drop: Callable[..., bool],
) -> list[int]:
    """Select the best candidate repeatedly; ``drop(scores, other, overlap)`` decides which others are removed."""
    left, chosen = list(candidates), []
    while left and (most < 0 or len(chosen) < most):
        best = max(left, key=lambda c: scores[c])
        left.remove(best)
        chosen.append(best)
        left = [other for other in left if not drop(scores, other, iou(box(other), box(best)))]
    return chosen


def hard(threshold: float) -> Callable[..., bool]:
    """Remove candidates that overlap by the threshold or more."""
    return lambda scores, other, overlap: overlap >= threshold


def soft(kernel: int, threshold: float, sigma: float, least: float) -> Callable[..., bool]:
    """Lower the scores of overlapping candidates, and remove those below ``least``."""

    def drop(scores: dict[int, float], other: int, overlap: float) -> bool:
        if kernel == 2:
            scores[other] *= math.exp(-overlap * overlap / sigma)
        elif overlap >= threshold:
            scores[other] *= 0 if kernel == 0 else 1 - overlap
        return scores[other] < least

    return drop


def box_nms(
    scores: Array, boxes: Array, batches: Array, threshold: float, most: int, kernel: int, overlap: float, sigma: float,
    least: float,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """BOX_WITH_NMS_LIMIT."""
    rows: list[tuple[float, Array, int, int]] = []
    classes = scores.shape[1]
    for batch in dict.fromkeys(batches.tolist()):
        found: list[tuple[float, Array, int, int]] = []
        for c in range(1, classes):
            mine = [i for i in range(len(batches)) if batches[i] == batch and scores[i, c] > threshold]
            values = {i: float(scores[i, c]) for i in mine}
            corners = boxes[:, 4 * c : 4 * c + 4]
            chosen = suppress(mine, values, corners.__getitem__, most, soft(kernel, overlap, sigma, least))
            found += [(values[i], corners[i], c, batch) for i in chosen]
        best = sorted(found, key=lambda row: -row[0])[: None if most < 0 else most]
        rows += sorted(best, key=lambda row: (row[2], -row[0]))
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return (
        np.array(columns[0], np.float64), np.array(columns[1], np.float64).reshape(-1, 4),
        np.array(columns[2], np.int32), np.array(columns[3], np.int32),
    )  # fmt: skip


def proposals(
    scores: Array, deltas: Array, anchors: Array, images: Array, strides: tuple[float, float], before: int, after: int,
    overlap: float, least: float,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """GENERATE_PROPOSALS, channels last; strides (height, width)."""
    out: list[tuple[float, Array, int]] = []
    for b in range(scores.shape[0]):
        boxes = {
            place: transform(
                anchors[place[2]] + np.array([place[1] * strides[1], place[0] * strides[0]] * 2),
                deltas[(b, *place[:2])].reshape(-1, 4)[place[2]], images[b],
            )
            for place in np.ndindex(*scores.shape[1:])
        }  # fmt: skip
        ranked = sorted(boxes, key=lambda place: -scores[(b, *place)])[: before if before > 0 else None]
        height, width = images[b]
        large = [
            place
            for place in ranked
            if min(boxes[place][2:] - boxes[place][:2]) > least
            and boxes[place][::2].mean() < width
            and boxes[place][1::2].mean() < height
        ]
        values = {index: float(scores[(b, *place)]) for index, place in enumerate(large)}
        chosen = suppress(
            list(values), values, lambda i, boxes=boxes, large=large: boxes[large[i]], after if after > 0 else -1,
            hard(overlap),
        )  # fmt: skip
        out += [(values[i], boxes[large[i]], b) for i in chosen]
    columns = list(zip(*out, strict=True)) or [(), (), ()]
    return (
        np.array(columns[0], np.float64), np.array(columns[1], np.float64).reshape(-1, 4),
        np.array(columns[2], np.int32),
    )  # fmt: skip


def detections(
    scores: Array, deltas: Array, anchors: Array, scale: Sequence[float], regular: bool, most: int, of_box: int,
    of_class: int, threshold: float, overlap: float, background: bool,
) -> list[list[tuple[float, Array, int]]]:  # fmt: skip
    """DETECTION_POSTPROCESSING: rows (score, box, class) for each batch."""
    results = []
    for b in range(scores.shape[0]):
        centre = anchors[:, :2] + deltas[b, :, :2] / np.asarray(scale)[:2] * anchors[:, 2:]
        half = np.exp(deltas[b, :, 2:4] / np.asarray(scale)[2:]) * anchors[:, 2:] / 2
        boxes = np.concatenate([centre - half, centre + half], axis=1)
        rows: list[tuple[float, Array, int]] = []
        if regular:
            for c in range(1, scores.shape[2]):
                values = {i: float(s) for i, s in enumerate(scores[b, :, c]) if s > threshold}
                chosen = suppress(list(values), values, boxes.__getitem__, of_class, hard(overlap))
                rows += [(values[i], boxes[i], c) for i in chosen]
            rows = sorted(rows, key=lambda row: -row[0])[:most]
        else:
            values = {i: float(s) for i, s in enumerate(scores[b, :, 1:].max(axis=1)) if s > threshold}
            for i in suppress(list(values), values, boxes.__getitem__, most, hard(overlap)):
                order = sorted(range(1, scores.shape[2]), key=lambda c: -scores[b, i, c])[:of_box]
                rows += [(float(scores[b, i, c]), boxes[i], c) for c in order]
        results.append([(s, box, c if background else c - 1) for s, box, c in rows])
    return results


def bilinear(image: Array, y: float, x: float) -> Array:
    """Interpolate all channels of an image [h, w, c] at a point; beyond the last pixel its value is used."""
    y, x = min(y, image.shape[0] - 1), min(x, image.shape[1] - 1)
    top, left = int(y), int(x)
    below, right = min(top + 1, image.shape[0] - 1), min(left + 1, image.shape[1] - 1)
    upper = image[top, left] * (1 - (x - left)) + image[top, right] * (x - left)
    lower = image[below, left] * (1 - (x - left)) + image[below, right] * (x - left)
    return np.asarray(upper * (1 - (y - top)) + lower * (y - top))


def roi_align(
    image: Array,
    rois: Array,
    batches: Array,
    size: tuple[int, int],
    strides: tuple[float, float],
    ratio: tuple[int, int],
) -> Array:
    """ROI_ALIGN, channels last; pairs are (height, width)."""
    out = np.zeros((len(rois), *size, image.shape[3]))
    for i, roi in enumerate(rois):
        start = roi[1] / strides[0], roi[0] / strides[1]
        extent = [max(roi[3 - k] / strides[k] - start[k], 1) / size[k] for k in (0, 1)]
        samples = [ratio[k] or math.ceil(extent[k]) for k in (0, 1)]
        for y, x in np.ndindex(*size):
            points = [
                bilinear(
                    image[batches[i]], start[0] + (y + (sy + 0.5) / samples[0]) * extent[0],
                    start[1] + (x + (sx + 0.5) / samples[1]) * extent[1],
                )
                for sy in range(samples[0])
                for sx in range(samples[1])
            ]  # fmt: skip
            out[i, y, x] = np.mean(points, axis=0)
    return out


def roi_pool(image: Array, rois: Array, batches: Array, size: tuple[int, int], strides: tuple[float, float]) -> Array:
    """ROI_POOLING, channels last."""
    out = np.zeros((len(rois), *size, image.shape[3]))
    for i, roi in enumerate(rois):
        corners = [math.floor(v / strides[1 - k % 2] + 0.5) for k, v in enumerate(roi)]
        extent = [max(corners[3 - k] - corners[1 - k] + 1, 1) / size[k] for k in (0, 1)]
        for y, x in np.ndindex(*size):
            rows = slice(math.floor(corners[1] + y * extent[0]), math.ceil(corners[1] + (y + 1) * extent[0]))
            columns = slice(math.floor(corners[0] + x * extent[1]), math.ceil(corners[0] + (x + 1) * extent[1]))
            part = image[batches[i], rows, columns]
            out[i, y, x] = part.max(axis=(0, 1)) if part.size else 0
    return out


def heatmap(maps: Array, boxes: Array) -> tuple[Array, Array]:
    """HEATMAP_MAX_KEYPOINT, channels last."""
    count, size, _, keys = maps.shape
    scores, points = np.zeros((count, keys)), np.zeros((count, keys, 2))
    for i, k in np.ndindex(count, keys):
        values = maps[i, :, :, k]
        y, x = np.unravel_index(int(values.argmax()), values.shape)
        around = np.pad(values, 1, mode="reflect")[y : y + 3, x : x + 3]
        slope = np.array([around[1, 2] - around[1, 0], around[2, 1] - around[0, 1]]) / 2
        cross = (around[2, 2] - around[2, 0] - around[0, 2] + around[0, 0]) / 4
        hessian = np.array(
            [
                [around[1, 0] - 2 * around[1, 1] + around[1, 2], cross],
                [cross, around[0, 1] - 2 * around[1, 1] + around[2, 1]],
            ]
        )
        step = np.zeros(2)
        scores[i, k] = values[y, x]
        if abs(np.linalg.det(hessian)) >= 1e-5 + 1e-5 * hessian[0, 0] * hessian[1, 1]:
            step = np.linalg.solve(hessian, -slope)
            step *= min(1, 1.5 / max(np.abs(step).max(), 1e-30))
            scores[i, k] = values[y, x] + slope @ step + step @ hessian @ step / 2
        corner, extent = boxes[i, :2], boxes[i, 2:] - boxes[i, :2]
        points[i, k] = (np.array([x, y]) + step + 0.5) / size * extent + corner
    return scores, points
