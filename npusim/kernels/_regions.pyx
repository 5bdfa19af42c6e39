"""Kernels on regions of images: RoI align, RoI pooling, and the peaks of heat maps.

Arrays are dense float32 and int32; images are (batch, height, width, channels). A kernel returns the index of the first
malformed region, or -1. A region is malformed if its batch does not exist, a coordinate or size is negative, or it is
more than a pixel outside the image. Results are incomplete then.
"""

from libc.math cimport ceilf, fabsf, floorf, roundf

from npusim.kernels._operand cimport interrupted, settle


cdef struct Region:
    float x, y, right, bottom  # the upper left and the lower right corner, in pixels


cdef inline bint _region(
    Region *region, const float *box, int batch, const float[:, :, :, ::1] image, float scale_w, float scale_h,
) noexcept nogil:
    """Convert a box to pixels. False if it is malformed."""
    if not (0 <= batch < image.shape[0] and 0 <= box[0] <= box[2] and 0 <= box[1] <= box[3]):
        return False
    region.x = box[0] * scale_w
    region.y = box[1] * scale_h
    region.right = box[2] * scale_w
    region.bottom = box[3] * scale_h
    return region.right <= image.shape[2] + 1 and region.bottom <= image.shape[1] + 1


cdef inline long long _corner(float at, long long limit, float *weight, long long *next) noexcept nogil:
    """The pixel at or before a coordinate, the next one, and the weight of that one."""
    cdef float low = floorf(at)
    if low >= limit - 1:
        weight[0] = 0
        next[0] = limit - 1
        return limit - 1
    weight[0] = at - low
    next[0] = <long long>low + 1
    return <long long>low


cdef void _sample(float *out, const float[:, :, ::1] image, float y, float x) noexcept nogil:
    """Add the value of the image at (y, x), interpolated between four pixels, to every channel."""
    cdef float dx, dy
    cdef long long x2, y2, k
    cdef long long x1 = _corner(x, image.shape[1], &dx, &x2)
    cdef long long y1 = _corner(y, image.shape[0], &dy, &y2)
    cdef float a = (1 - dx) * (1 - dy), b = dx * (1 - dy), c = (1 - dx) * dy, d = dx * dy
    for k in range(image.shape[2]):
        out[k] += a * image[y1, x1, k] + b * image[y1, x2, k] + c * image[y2, x1, k] + d * image[y2, x2, k]


def roi_align(
    const float[:, :, :, ::1] image, const float[:, ::1] rois, const int[::1] batches, float stride_h, float stride_w,
    int ratio_h, int ratio_w, float[:, :, :, ::1] out,
):
    """out[i, y, x] = the mean of ratio_h * ratio_w samples in bin (y, x) of region rois[i] / stride.

    A ratio of 0 means as many samples as the bin has pixels, rounded up. ``out`` must be zero before.
    """
    cdef long long i, y, x, k, sy, sx, ny, nx, done = 0
    cdef float h, w, bin_h, bin_w
    cdef float scale_h = 1 / stride_h, scale_w = 1 / stride_w
    cdef Region region
    cdef int batch
    _check_regions(image.shape[3], rois.shape[0], rois.shape[1], batches.shape[0], out.shape[0], out.shape[3])
    if out.size == 0 or image.size == 0:
        return -1
    with nogil:
        for i in range(rois.shape[0]):
            batch = batches[i]  # read once, because a result may overwrite it
            if not _region(&region, &rois[i, 0], batch, image, scale_w, scale_h):
                break
            h = max(region.bottom - region.y, <float>1) / out.shape[1]
            w = max(region.right - region.x, <float>1) / out.shape[2]
            ny = ratio_h if ratio_h > 0 else <long long>ceilf(h)
            nx = ratio_w if ratio_w > 0 else <long long>ceilf(w)
            bin_h = h / ny
            bin_w = w / nx
            for y in range(out.shape[1]):
                for x in range(out.shape[2]):
                    for sy in range(ny):
                        if interrupted(&done, 0):
                            break
                        for sx in range(nx):
                            if interrupted(&done, out.shape[3]):
                                break
                            _sample(
                                &out[i, y, x, 0], image[batch],
                                h * y + region.y + bin_h / 2 + bin_h * sy, w * x + region.x + bin_w / 2 + bin_w * sx,
                            )
                    for k in range(out.shape[3]):
                        out[i, y, x, k] /= ny * nx
        else:
            i = -1
    settle()
    return i


def roi_pool(
    const float[:, :, :, ::1] image, const float[:, ::1] rois, const int[::1] batches, float stride_h, float stride_w,
    float[:, :, :, ::1] out,
):
    """out[i, y, x] = the largest pixel in bin (y, x) of region rois[i] / stride, in whole pixels; 0 for an empty
    bin."""
    cdef long long i, y, x, k, y0, y1, x0, x1, r, c, done = 0
    cdef float h, w, top, left
    cdef float scale_h = 1 / stride_h, scale_w = 1 / stride_w
    cdef bint first
    cdef Region region
    cdef int batch
    _check_regions(image.shape[3], rois.shape[0], rois.shape[1], batches.shape[0], out.shape[0], out.shape[3])
    if out.size == 0 or image.size == 0:
        return -1
    with nogil:
        for i in range(rois.shape[0]):
            batch = batches[i]  # read once, because a result may overwrite it
            if not _region(&region, &rois[i, 0], batch, image, scale_w, scale_h):
                break
            top, left = roundf(region.y), roundf(region.x)
            h = max(roundf(region.bottom) - top + 1, <float>1) / out.shape[1]
            w = max(roundf(region.right) - left + 1, <float>1) / out.shape[2]
            for y in range(out.shape[1]):
                y0 = min(<long long>floorf(h * y + top), image.shape[1])
                y1 = min(<long long>ceilf(h * (y + 1) + top), image.shape[1])
                for x in range(out.shape[2]):
                    x0 = min(<long long>floorf(w * x + left), image.shape[2])
                    x1 = min(<long long>ceilf(w * (x + 1) + left), image.shape[2])
                    first = True
                    for r in range(y0, y1):
                        if interrupted(&done, (x1 - x0) * out.shape[3]):
                            break
                        for c in range(x0, x1):
                            for k in range(out.shape[3]):
                                if first or image[batch, r, c, k] > out[i, y, x, k]:
                                    out[i, y, x, k] = image[batch, r, c, k]
                            first = False
        else:
            i = -1
    settle()
    return i


cdef int _check_regions(
    long long channels, long long rois, long long sides, long long batches, long long results, long long depth,
) except -1:
    if sides != 4 or batches != rois or results != rois or depth != channels:
        raise ValueError("regions: shapes do not fit each other")
    return 0


cdef inline void _refine(float[3][3] g, float *dx, float *dy, float *score) noexcept nogil:
    """The peak of the parabola through nine neighbours: its offset, at most 3/2 pixels, and its height."""
    cdef float bx = -(g[1][2] - g[1][0]) / 2, by = -(g[2][1] - g[0][1]) / 2
    cdef float xx = g[1][0] - 2 * g[1][1] + g[1][2], yy = g[0][1] - 2 * g[1][1] + g[2][1]
    cdef float xy = (g[2][2] - g[2][0] - g[0][2] + g[0][0]) / 4
    cdef float product = xx * yy
    cdef float determinant = product - xy * xy, far
    if fabsf(determinant) < <float>1e-5 + <float>1e-5 * product:
        return
    dx[0] = (yy * bx - xy * by) / determinant
    dy[0] = (xx * by - xy * bx) / determinant
    far = max(fabsf(dx[0]), fabsf(dy[0]))
    if far > <float>1.5:
        dx[0] *= <float>1.5 / far
        dy[0] *= <float>1.5 / far
    score[0] = g[1][1] - bx * dx[0] - by * dy[0] + (
        (xx * dx[0] + xy * dy[0]) * dx[0] + (xy * dx[0] + yy * dy[0]) * dy[0]) / 2


cdef inline long long _mirrored(long long at, long long size) noexcept nogil:
    """Mirror a position outside the map at the border."""
    return 1 if at < 0 else size - 2 if at >= size else at


def heatmap_peaks(
    const float[:, :, :, ::1] maps, const float[:, ::1] boxes, float[:, ::1] scores, float[:, :, ::1] points,
):
    """The peak of every map (boxes, size, size, keypoints): its height, and its (x, y) in the box of the map."""
    cdef long long i, k, y, x, r, c, size = maps.shape[1], top = 0, left = 0, done = 0
    cdef float best, dx, dy
    cdef float[3][3] grid
    if not (
        maps.shape[2] == size and boxes.shape[0] == maps.shape[0] and boxes.shape[1] == 4
        and scores.shape[0] == points.shape[0] == maps.shape[0] and scores.shape[1] == points.shape[1] == maps.shape[3]
        and points.shape[2] == 2
    ):
        raise ValueError("heatmap_peaks: shapes do not fit each other")
    if size < 2:
        raise ValueError(f"heatmap_peaks: maps must be at least 2 x 2, got {size}")
    with nogil:
        for i in range(maps.shape[0]):
            if not (boxes[i, 0] <= boxes[i, 2] and boxes[i, 1] <= boxes[i, 3]):
                break
            for k in range(maps.shape[3]):
                best = <float>-3.4028234663852886e38
                top, left = 0, 0
                for y in range(size):
                    if interrupted(&done, size):
                        break
                    for x in range(size):
                        if maps[i, y, x, k] > best:
                            best, top, left = maps[i, y, x, k], y, x
                for r in range(3):
                    for c in range(3):
                        grid[r][c] = maps[i, _mirrored(top + r - 1, size), _mirrored(left + c - 1, size), k]
                dx, dy = 0, 0
                _refine(grid, &dx, &dy, &best)
                scores[i, k] = best
                points[i, k, 0] = (left + dx + <float>0.5) / size * (boxes[i, 2] - boxes[i, 0]) + boxes[i, 0]
                points[i, k, 1] = (top + dy + <float>0.5) / size * (boxes[i, 3] - boxes[i, 1]) + boxes[i, 1]
        else:
            i = -1
    settle()
    return i
