"""Kernels on boxes (x1, y1, x2, y2): transformation, non-maximum suppression, proposals, detections.

Arrays are dense float32 and int32. Sums and products are rounded to float32 at each step, in the order of the formulas.
Sorting is stable. If data can be malformed, a kernel returns the index of the first bad row, or -1.
"""

from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy

from npusim.kernels._operand cimport interrupted, settle

cdef extern from "transcend.h" nogil:
    double npu_exp(double x)

cdef enum:
    KERNEL_DROP = -1  # hard suppression: overlapping boxes are dropped, scores do not change
    KERNEL_HARD = 0
    KERNEL_LINEAR = 1
    KERNEL_GAUSSIAN = 2

cdef struct Ranked:
    float score
    int id
    long long place

cdef struct Suppression:
    int kernel
    float overlap
    float sigma
    float least
    long long done  # pairs compared so far, over all classes


cdef inline float _larger(float a, float b) noexcept nogil:
    return b if a < b else a


cdef inline float _smaller(float a, float b) noexcept nogil:
    return b if b < a else a


cdef inline float _iou(const float *a, const float *b) noexcept nogil:
    """Intersection over union. NaN for two boxes without area."""
    cdef float area_a = (a[2] - a[0]) * (a[3] - a[1])
    cdef float area_b = (b[2] - b[0]) * (b[3] - b[1])
    cdef float w = _larger(_smaller(a[2], b[2]) - _larger(a[0], b[0]), 0)
    cdef float h = _larger(_smaller(a[3], b[3]) - _larger(a[1], b[1]), 0)
    cdef float both = w * h
    return both / (area_a + area_b - both)


cdef inline void _transform(float *out, const float *box, const float *delta, float height, float width) noexcept nogil:
    """Move and scale a box by (dx, dy, log w, log h) relative to its size, and clip it to the image."""
    cdef float w = box[2] - box[0], h = box[3] - box[1]
    cdef float x = (box[0] + box[2]) / 2 + delta[0] * w
    cdef float y = (box[1] + box[3]) / 2 + delta[1] * h
    w = <float>npu_exp(delta[2]) * w
    h = <float>npu_exp(delta[3]) * h
    out[0] = _smaller(_larger(x - w / 2, 0), width)
    out[1] = _smaller(_larger(y - h / 2, 0), height)
    out[2] = _smaller(_larger(x + w / 2, 0), width)
    out[3] = _smaller(_larger(y + h / 2, 0), height)


cdef inline int _first_largest(const float *scores, const int *ids, long long begin, long long end) noexcept nogil:
    cdef long long i, best = begin
    for i in range(begin + 1, end):
        if scores[ids[i]] > scores[ids[best]]:
            best = i
    return <int>best


cdef inline bint _survives(float *score, float iou, const Suppression *rule) noexcept nogil:
    """Lower a score by the overlap of its box with a chosen box. False if the box is dropped."""
    cdef float factor
    if rule.kernel == KERNEL_GAUSSIAN:
        factor = <float>npu_exp(-1.0 * iou * iou / rule.sigma)
    elif iou < rule.overlap:
        factor = 1
    else:
        factor = 1 - iou if rule.kernel == KERNEL_LINEAR else 0
    score[0] = score[0] * factor
    # Written so that a NaN is kept: the client must see it.
    return not score[0] < rule.least


cdef long long _suppress(
    float *scores, const float *boxes, int per_box, int *ids, long long count, long long most, Suppression *rule,
) noexcept nogil:
    """Choose ids by falling score and drop those that overlap a chosen one. Chosen ids come first; returns their
    number.

    ``scores`` is indexed by id; the box of an id is id / per_box. Of equal scores, the first in the list is chosen. A
    dropped id swaps places with the last one that remains.
    """
    cdef long long kept = 0, end = count, i, best
    cdef const float *chosen
    cdef float iou
    cdef bint stays
    if most < 0:
        most = count
    while kept < end and kept < most:
        if interrupted(&rule.done, end - kept):
            break
        best = _first_largest(scores, ids, kept, end)
        ids[kept], ids[best] = ids[best], ids[kept]
        chosen = boxes + 4 * (ids[kept] // per_box)
        i = kept + 1
        while i < end:
            iou = _iou(boxes + 4 * (ids[i] // per_box), chosen)
            stays = not iou >= rule.overlap if rule.kernel == KERNEL_DROP else _survives(&scores[ids[i]], iou, rule)
            if stays:
                i += 1
            else:
                end -= 1
                ids[i], ids[end] = ids[end], ids[i]
        kept += 1
    return kept


cdef int _by_score(const void *a, const void *b) noexcept nogil:
    cdef const Ranked *x = <const Ranked *>a
    cdef const Ranked *y = <const Ranked *>b
    if x.score != y.score:
        return -1 if x.score > y.score else 1
    return -1 if x.place < y.place else 1


cdef int _by_place(const void *a, const void *b) noexcept nogil:
    return -1 if (<const Ranked *>a).place < (<const Ranked *>b).place else 1


cdef void _rank(Ranked *ranked, const float *scores, const int *ids, long long count) noexcept nogil:
    """Sort ids by falling score. NaN comes last."""
    cdef long long i
    for i in range(count):
        ranked[i].score = scores[ids[i]] if scores[ids[i]] == scores[ids[i]] else <float>-1e39
        ranked[i].id = ids[i]
        ranked[i].place = i
    qsort(ranked, count, sizeof(Ranked), _by_score)


cdef long long _each_class(
    float *scores, const float *boxes, int per_box, int *ids, Ranked *ranked, long long rows, long long classes,
    float threshold, long long most, long long most_of_class, Suppression *rule,
) noexcept nogil:
    """Suppress class by class (0 is the background), and rank the remaining ids: the first ``most`` of ``ranked``."""
    cdef long long count = 0, begin, c, i
    for c in range(1, classes):
        begin = count
        for i in range(rows):
            if scores[i * classes + c] > threshold:
                ids[count] = <int>(i * classes + c)
                count += 1
        count = begin + _suppress(scores, boxes, per_box, ids + begin, count - begin, most_of_class, rule)
    _rank(ranked, scores, ids, count)
    return count if most < 0 or count < most else most


cdef Ranked *_take(int **ids, float **values, long long count, long long floats) except NULL:
    """Allocate lists of ``count`` ids and, behind them, ``floats`` floats, in one block. Freeing the result frees
    all."""
    cdef Ranked *ranked = <Ranked *>malloc(max(count, 1) * (sizeof(Ranked) + sizeof(int)) + floats * sizeof(float))
    if ranked == NULL:
        raise MemoryError(f"no memory for lists of {count} boxes")
    ids[0] = <int *>(ranked + count)
    values[0] = <float *>(ids[0] + count)
    return ranked


cdef inline bint _malformed(const float *box) noexcept nogil:
    return not (box[0] <= box[2] and box[1] <= box[3])


def bbox_transform(
    const float[:, ::1] rois, const float[:, ::1] deltas, const int[::1] batches, const float[:, ::1] images,
    float[:, ::1] out,
):
    """out[i, 4c:4c+4] = rois[i] moved by deltas[i, 4c:4c+4], clipped to images[batches[i]] = (height, width)."""
    cdef long long i, c, done = 0, n = rois.shape[0], classes = deltas.shape[1] // 4
    cdef const float *image
    cdef int batch
    if not (
        rois.shape[1] == 4 and images.shape[1] == 2 and deltas.shape[1] % 4 == 0 and deltas.shape[0] == n
        and batches.shape[0] == n and out.shape[0] == n and out.shape[1] == deltas.shape[1]
    ):
        raise ValueError("bbox_transform: shapes do not fit each other")
    if n == 0 or classes == 0:
        return -1
    with nogil:
        for i in range(n):
            batch = batches[i]
            if not 0 <= batch < images.shape[0] or _malformed(&rois[i, 0]) or interrupted(&done, classes):
                break
            image = &images[batch, 0]
            for c in range(classes):
                _transform(&out[i, 4 * c], &rois[i, 0], &deltas[i, 4 * c], image[0], image[1])
        else:
            i = -1
    settle()
    return i


def box_nms_limit(
    float[:, ::1] scores, const float[:, ::1] boxes, const int[::1] batches, float threshold, long long most,
    int kernel, float overlap, float sigma, float least, float[::1] out_scores, float[:, ::1] out_boxes,
    int[::1] out_classes, int[::1] out_batches,
):
    """Soft suppression within each class of each batch. Rows of one batch are adjacent. Returns the number of rows
    written.

    ``scores``: (rows, classes), modified. ``boxes``: (rows, 4 * classes). ``most``: maximum rows per batch; negative:
    no limit. ``kernel``: 0 hard, 1 linear, 2 gaussian. Results are sorted by batch, class and falling score.
    """
    cdef long long rows = scores.shape[0], classes = scores.shape[1], begin = 0, end, left, i, count = 0
    cdef int *ids
    cdef Ranked *ranked
    cdef float *unused
    cdef Suppression rule
    cdef const float *at
    if not (
        0 <= kernel <= 2 and classes > 0 and boxes.shape[0] == rows and boxes.shape[1] == 4 * classes
        and batches.shape[0] == rows and out_boxes.shape[1] == 4
        and out_scores.shape[0] == out_boxes.shape[0] == out_classes.shape[0] == out_batches.shape[0]
    ):
        raise ValueError("box_nms_limit: shapes do not fit each other")
    rule.kernel, rule.overlap, rule.sigma, rule.least, rule.done = kernel, overlap, sigma, least, 0
    ranked = _take(&ids, &unused, rows * (classes - 1), 0)
    with nogil:
        while begin < rows:
            end = begin + 1
            while end < rows and batches[end] == batches[begin]:
                end += 1
            at = &boxes[begin, 0]
            left = _each_class(
                &scores[begin, 0], at, 1, ids, ranked, end - begin, classes, threshold, most, most, &rule)
            if count + left > out_scores.shape[0]:
                count = -1
                break
            # Within a class, scores are already sorted, so sorting by old position gives class, then score.
            qsort(ranked, left, sizeof(Ranked), _by_place)
            for i in range(left):
                out_scores[count] = scores[begin + ranked[i].id // classes, ranked[i].id % classes]
                memcpy(&out_boxes[count, 0], at + 4 * ranked[i].id, 16)
                out_classes[count] = <int>(ranked[i].id % classes)
                out_batches[count] = batches[begin]
                count += 1
            begin = end
    free(ranked)
    settle()
    if count < 0:
        raise ValueError(f"box_nms_limit: {out_scores.shape[0]} rows of output are too few")
    return count


def proposals(
    const float[:, :, :, ::1] scores, const float[:, :, :, ::1] deltas, const float[:, ::1] anchors,
    const float[:, ::1] images, float stride_h, float stride_w, long long before, long long after, float overlap,
    float least_size, float[::1] out_scores, float[:, ::1] out_boxes, int[::1] out_batches,
):
    """Per batch: the boxes of the ``before`` best anchors, then the best ``after`` of those that are large enough and
    do not overlap.

    ``scores``: (batches, height, width, anchors). ``deltas``: 4 per score. ``before`` or ``after`` <= 0: all. Results
    are sorted by batch and falling score. Returns the number of rows written.
    """
    cdef long long height = scores.shape[1], width = scores.shape[2], per = anchors.shape[0]
    cdef long long size = height * width * per, b, i, kept, chosen, count = 0
    cdef int *ids
    cdef Ranked *ranked
    cdef float *boxes
    cdef float *values
    cdef Suppression rule
    if not (
        anchors.shape[1] == 4 and scores.shape[3] == per and deltas.shape[0] == scores.shape[0]
        and deltas.shape[1] == height and deltas.shape[2] == width and deltas.shape[3] == 4 * per
        and images.shape[0] == scores.shape[0] and images.shape[1] == 2 and out_boxes.shape[1] == 4
        and out_scores.shape[0] == out_boxes.shape[0] == out_batches.shape[0]
    ):
        raise ValueError("proposals: shapes do not fit each other")
    if scores.shape[0] == 0 or size == 0:
        return 0
    rule.kernel, rule.overlap, rule.sigma, rule.least, rule.done = KERNEL_DROP, overlap, 0, 0, 0
    ranked = _take(&ids, &boxes, size, 5 * size)
    values = boxes + 4 * size
    with nogil:
        for b in range(scores.shape[0]):
            memcpy(values, &scores[b, 0, 0, 0], size * 4)
            for i in range(height * width):
                _place(
                    boxes + 4 * per * i, &deltas[b, i // width, i % width, 0], anchors,
                    <float>(i // width) * stride_h, <float>(i % width) * stride_w, images[b, 0], images[b, 1])
            for i in range(size):
                ids[i] = <int>i
            kept = size
            if 0 < before < size:
                _rank(ranked, values, ids, size)
                kept = before
                for i in range(kept):
                    ids[i] = ranked[i].id
            kept = _large_enough(ids, kept, boxes, least_size, images[b, 0], images[b, 1])
            chosen = _suppress(values, boxes, 1, ids, kept, after if after > 0 else -1, &rule)
            if count + chosen > out_scores.shape[0]:
                count = -1
                break
            for i in range(chosen):
                out_scores[count] = values[ids[i]]
                memcpy(&out_boxes[count, 0], boxes + 4 * ids[i], 16)
                out_batches[count] = <int>b
                count += 1
    free(ranked)
    settle()
    if count < 0:
        raise ValueError(f"proposals: {out_scores.shape[0]} rows of output are too few")
    return count


cdef void _place(
    float *boxes, const float *deltas, const float[:, ::1] anchors, float down, float right, float height, float width,
) noexcept nogil:
    """The boxes of all anchors at one point of the grid."""
    cdef long long a, k
    cdef float[4] anchor
    for a in range(anchors.shape[0]):
        for k in range(4):
            anchor[k] = anchors[a, k] + (down if k % 2 else right)
        _transform(boxes + 4 * a, anchor, deltas + 4 * a, height, width)


cdef long long _large_enough(
    int *ids, long long count, const float *boxes, float least, float height, float width,
) noexcept nogil:
    """Keep the ids of boxes that are larger than ``least`` on both sides and whose centre is in the image."""
    cdef long long i, kept = 0
    cdef const float *box
    cdef float w, h
    for i in range(count):
        box = boxes + 4 * ids[i]
        w = box[2] - box[0]
        h = box[3] - box[1]
        if w > least and h > least and box[0] + w / 2 < width and box[1] + h / 2 < height:
            ids[kept] = ids[i]
            kept += 1
    return kept


cdef void _decode(
    float *boxes, const float *deltas, long long step, const float[:, ::1] anchors, const float *scale,
) noexcept nogil:
    """Boxes (y1, x1, y2, x2) from anchors (y, x, h, w) and encodings relative to them, divided by ``scale``."""
    cdef long long a
    cdef float y, x, h, w
    cdef const float *d
    for a in range(anchors.shape[0]):
        d = deltas + a * step
        y = anchors[a, 0] + anchors[a, 2] * d[0] / scale[0]
        x = anchors[a, 1] + anchors[a, 3] * d[1] / scale[1]
        h = anchors[a, 2] * <float>npu_exp(d[2] / scale[2]) * <float>0.5
        w = anchors[a, 3] * <float>npu_exp(d[3] / scale[3]) * <float>0.5
        boxes[4 * a] = y - h
        boxes[4 * a + 1] = x - w
        boxes[4 * a + 2] = y + h
        boxes[4 * a + 3] = x + w


cdef long long _best_boxes(
    float *values, const float *boxes, int *ids, Ranked *ranked, const float *scores, long long rows, long long classes,
    float threshold, long long most, long long of_box, Suppression *rule,
) noexcept nogil:
    """Suppress by the best class of each box, then list the ``of_box`` best classes of each remaining box."""
    cdef long long a, c, count = 0, kept, total = 0
    cdef int *order = ids + rows
    for a in range(rows):
        values[a] = scores[a * classes + 1]
        for c in range(2, classes):
            values[a] = _larger(values[a], scores[a * classes + c])
        if values[a] > threshold:
            ids[count] = <int>a
            count += 1
    kept = _suppress(values, boxes, 1, ids, count, most, rule)
    for a in range(kept):
        for c in range(1, classes):
            order[c - 1] = <int>(ids[a] * classes + c)
        _rank(ranked + total, scores, order, classes - 1)
        total += of_box
    return total


def detections(
    const float[:, :, ::1] scores, const float[:, :, ::1] deltas, const float[:, ::1] anchors,
    const float[::1] scale, bint regular, long long most, long long of_box, long long of_class, float threshold,
    float overlap, int first_label, float[:, ::1] out_scores, float[:, :, ::1] out_boxes, int[:, ::1] out_classes,
    int[::1] out_counts,
):
    """Detections per batch: decode, suppress, take the best.

    ``regular``: suppression class by class, with at most ``of_class`` boxes each. Otherwise suppression by the best
    class of each box, then the ``of_box`` best classes of each box. Class 1 gets the label ``first_label``. Results
    beyond the count are not written.
    """
    cdef long long rows = scores.shape[1], classes = scores.shape[2], b, i, count = 0, room = out_scores.shape[1]
    cdef int *ids
    cdef Ranked *ranked
    cdef float *boxes
    cdef float *values
    cdef Suppression rule
    if not (
        classes > 1 and anchors.shape[0] == rows and anchors.shape[1] == 4 and scale.shape[0] == 4
        and deltas.shape[0] == scores.shape[0] and deltas.shape[1] == rows and deltas.shape[2] >= 4
        and out_scores.shape[0] == out_boxes.shape[0] == out_classes.shape[0] == out_counts.shape[0] == scores.shape[0]
        and out_boxes.shape[1] == out_classes.shape[1] == room and out_boxes.shape[2] == 4 and of_box >= 0
    ):
        raise ValueError("detections: shapes do not fit each other")
    if rows == 0 or scores.shape[0] == 0:
        return
    of_box = min(of_box, classes - 1)
    rule.kernel, rule.overlap, rule.sigma, rule.least, rule.done = KERNEL_DROP, overlap, 0, 0, 0
    ranked = _take(&ids, &boxes, rows * classes + classes, rows * (4 + classes))
    values = boxes + 4 * rows
    with nogil:
        for b in range(scores.shape[0]):
            _decode(boxes, &deltas[b, 0, 0], deltas.shape[2], anchors, &scale[0])
            if regular:
                memcpy(values, &scores[b, 0, 0], rows * classes * 4)
                count = _each_class(
                    values, boxes, <int>classes, ids, ranked, rows, classes, threshold, most, of_class, &rule)
            else:
                count = _best_boxes(
                    values, boxes, ids, ranked, &scores[b, 0, 0], rows, classes, threshold, most, of_box, &rule)
            if count > room:
                break
            for i in range(count):
                out_scores[b, i] = scores[b, ranked[i].id // classes, ranked[i].id % classes]
                memcpy(&out_boxes[b, i, 0], boxes + 4 * (ranked[i].id // classes), 16)
                out_classes[b, i] = <int>(ranked[i].id % classes) - 1 + first_label
            out_counts[b] = <int>count
    free(ranked)
    settle()
    if count > room:
        raise ValueError(f"detections: {room} rows of output are too few")
