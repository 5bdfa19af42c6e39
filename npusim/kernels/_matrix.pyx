"""Kernels of the matrix unit: tiles of convolutions and matrix products into accumulators."""

from libc.string cimport memcpy

from npusim.kernels._operand cimport (
    NPU_INT8, NPU_INT16, NPU_INT32, NPU_UINT8, NPU_UINT16, Operand, Strided, Window, dense, interrupted, is_empty,
    is_float, item_size, npu_interrupted, reach, settle, take, take_window, type_name, weight_zero,
)
from npusim.kernels._simd cimport level

cdef extern from "pack.h" nogil:
    ctypedef void (*npu_tile)(
        const unsigned char *a, const unsigned char *b, int step, long long k, unsigned char **c, const int *start,
        int first,
    ) noexcept
    ctypedef void (*npu_pack_pixels)(unsigned char *out, const unsigned char *x, long long n) noexcept
    ctypedef void (*npu_pack_panel)(
        unsigned char *out, const unsigned char *w, long long stride, long long k, long long columns, long long width,
        int zero,
    ) noexcept
    ctypedef void (*npu_line)(
        const unsigned char *a, const unsigned char *b, long long step, long long k, long long vectors,
        unsigned char *c, int first,
    ) noexcept
    ctypedef struct npu_gemm:
        int lanes
        int rows
        npu_line line
        npu_tile[4][2][15] tile
    enum:
        NPU_MODE_F32
        NPU_MODE_I32
        NPU_MODE_I16
        NPU_MODE_U8
        NPU_CHUNK
        NPU_ROW
        NPU_BLOCK_ROWS
        NPU_BLOCK_COLUMNS
        NPU_TILE_ROWS
    unsigned char *npu_scratch(size_t size)
    void npu_scratch_free(unsigned char *scratch)
    const npu_gemm *npu_gemm_of(int level)
    npu_pack_pixels npu_pixels_of(int mode, int dtype)
    npu_pack_panel npu_panel_of(int mode, int dtype)
    unsigned int npu_ones(int mode)
    void npu_offset(int *sums, long long n, unsigned int offset)
    void npu_less_zero(
        unsigned char *sums, long long n, const unsigned char *a, long long k, unsigned int offset, unsigned int zero,
    )

cdef enum:
    FUSED = 16  # multiply-adds that take as long as one element of another kernel; scales the work count


cdef struct Segment:
    long long offset  # bytes from the first channel of the window of a pixel
    long long k


cdef struct Conv:
    # The operands.
    const unsigned char *x
    const unsigned char *w
    unsigned char *acc
    long long batch, oh, ow, oc, ic, block
    Window win
    long long[3] xs
    long long[3] cs
    long long ws
    long long x_size, w_size
    bint first
    # How.
    int mode, per_unit, panel_zero  # panel_zero: subtracted from weights when they are packed
    unsigned int offset, rest  # rest: the remainder of their zero point
    const npu_gemm *gemm
    npu_pack_pixels pack_pixels
    npu_pack_panel pack_panel
    # Scratch memory.
    Segment *segments
    long long segment_count
    long long done
    unsigned char **outputs
    unsigned char *a
    unsigned char *b
    unsigned char *edge
    unsigned int *ones
    int *start


cdef inline long long _run(const Conv *t) noexcept nogil:
    """The number of taps of a kernel row that are contiguous in memory with their channels: all or one."""
    return t.win.kw if t.win.dw == 1 and t.ic <= t.block and t.xs[2] == t.ic * t.x_size else 1


cdef long long _plan(Conv *t, Segment *out) noexcept nogil:
    """Split k into segments that are contiguous in the window of a pixel, in order of summation. Only counts if out is
    NULL."""
    cdef long long most = NPU_CHUNK * t.per_unit, run = _run(t), c, r, q, n, at, count = 0
    # With a single tap, its blocks are contiguous and can be summed as one.
    cdef long long block = t.ic if t.win.kh * t.win.kw == 1 else t.block
    for c from 0 <= c < t.ic by block:
        for r in range(t.win.kh):
            for q from 0 <= q < t.win.kw by run:
                n = min(block, t.ic - c) * run
                for at from 0 <= at < n by most:
                    if out != NULL:
                        out[count].offset = r * t.win.dh * t.xs[1] + q * t.win.dw * t.xs[2] + (c + at) * t.x_size
                        out[count].k = min(most, n - at)
                    count += 1
    return count


cdef void _pack_block(Conv *t, long long m0, long long rows, long long s0, long long s1) noexcept nogil:
    """Pack pixels m0 .. m0 + rows, segments s0 .. s1, into ``a``, and set the pointers to their accumulators."""
    cdef long long m, i, j, b, s
    cdef const unsigned char *base
    cdef unsigned char *out
    cdef long long unit = 4 // t.per_unit
    b, i, j = m0 // (t.oh * t.ow), m0 // t.ow % t.oh, m0 % t.ow
    for m in range(rows):
        base = t.x + b * t.xs[0] + i * t.win.sh * t.xs[1] + j * t.win.sw * t.xs[2]
        t.outputs[m] = t.acc + b * t.cs[0] + i * t.cs[1] + j * t.cs[2]
        out = t.a + m * (4 * NPU_ROW)
        for s in range(s0, s1):
            t.pack_pixels(out, base + t.segments[s].offset, t.segments[s].k)
            out += t.segments[s].k * unit
        j += 1
        if j == t.ow:
            j, i = 0, i + 1
            if i == t.oh:
                i, b = 0, b + 1


cdef void _edge_tile(
    Conv *t, npu_tile tile, const unsigned char *a,
    const unsigned char *b, int step, long long units, unsigned char **c,
    const int *start, bint first, int rows, long long columns,
) noexcept nogil:
    """A tile wider than the remaining columns, computed through a buffer."""
    cdef unsigned char *through[NPU_TILE_ROWS]
    cdef int m
    for m in range(rows):
        through[m] = t.edge + m * 128
        # The kernel writes whole vectors. Without the buffer it would overwrite accumulators of the next pixel.
        if not first:
            memcpy(through[m], c[m], columns * 4)
    tile(a, b, step, units, through, start, first)
    for m in range(rows):
        memcpy(c[m], through[m], columns * 4)


cdef void _panel(
    Conv *t, long long rows, const unsigned char *b, int step, long long units, long long column, long long columns,
    int vectors, const int *start, bint first,
) noexcept nogil:
    """Multiply all packed pixels by one panel, in tiles of nearly equal height."""
    cdef unsigned char *c[NPU_TILE_ROWS]
    cdef long long tiles = (rows + t.gemm.rows - 1) // t.gemm.rows, at = 0, i, height
    cdef int m
    cdef npu_tile tile
    cdef const unsigned char *a
    # Nearly equal, because a last tile of one or two rows would spend most of its time loading weights.
    for i in range(tiles):
        height = (rows - at) // (tiles - i)
        tile = t.gemm.tile[t.mode][vectors - 1][height]
        a = t.a + at * (4 * NPU_ROW)
        for m in range(height):
            c[m] = t.outputs[at + m] + column * 4
        if columns == vectors * t.gemm.lanes:
            tile(a, b, step, units, c, start, first)
        else:
            _edge_tile(t, tile, a, b, step, units, c, start, first, height, columns)
        at += height


cdef void _correct(const Conv *t, int *start, const unsigned char *b, long long units, long long width) noexcept nogil:
    """Compute the contribution of the pixel offset to each column, to be subtracted."""
    cdef unsigned char *row = <unsigned char *>start
    cdef npu_tile tile = t.gemm.tile[t.mode][width // t.gemm.lanes - 1][1]
    tile(<const unsigned char *>t.ones, b, <int>(width * 4), units, &row, NULL, True)
    npu_offset(start, width, t.offset)


cdef void _chunk(
    Conv *t, long long pixels, long long s0, long long s1, long long k, const unsigned char *w, bint direct, bint first,
) noexcept nogil:
    """One range of segments: blocks of columns and blocks of pixels that stay in the cache, and all of their tiles."""
    cdef long long units = (k + t.per_unit - 1) // t.per_unit, wide = 2 * t.gemm.lanes
    cdef long long blocks = (pixels + NPU_BLOCK_ROWS - 1) // NPU_BLOCK_ROWS, n0, n, width, left
    cdef long long m0, rows, i, packed = -1
    cdef long long row = t.oc * t.w_size
    cdef unsigned char *b
    cdef bint whole
    n0 = 0
    if direct and pixels == 1 and t.mode == NPU_MODE_F32 and t.gemm.line != NULL:
        if interrupted(&t.done, t.oc * units // FUSED):
            return
        _pack_block(t, 0, 1, s0, s1)
        t.gemm.line(t.a, w, row, units, t.oc // t.gemm.lanes, t.outputs[0], first)
        packed, n0 = 0, t.oc // t.gemm.lanes * t.gemm.lanes
    for n0 from n0 <= n0 < t.oc by NPU_BLOCK_COLUMNS:
        left = min(<long long>NPU_BLOCK_COLUMNS, t.oc - n0)
        # The largest buffer changes least often: packed weights (up to 512 KiB) serve all pixels, a block of packed
        # pixels (224 KiB) serves all panels, a panel (64 KiB) serves all tiles of the block.
        for n from 0 <= n < left by wide:
            width = wide if left - n > t.gemm.lanes else t.gemm.lanes
            b = t.b + n * units * 4
            if not direct or left - n < width:
                t.pack_panel(b, w + (n0 + n) * t.w_size, row, k, min(width, left - n), width, t.panel_zero)
            if t.offset:
                _correct(t, t.start + n, b, units, width)
        m0 = 0
        for i in range(blocks):
            rows = (pixels - m0) // (blocks - i)
            if interrupted(&t.done, rows * left * units // FUSED):
                return
            if packed != m0:  # a single block serves all columns
                _pack_block(t, m0, rows, s0, s1)
                packed = m0
            for n from 0 <= n < left by wide:
                width = wide if left - n > t.gemm.lanes else t.gemm.lanes
                whole = direct and left - n >= width
                _panel(
                    t, rows, w + (n0 + n) * 4 if whole else t.b + n * units * 4, row if whole else width * 4, units,
                    n0 + n, min(width, left - n), width // t.gemm.lanes, t.start + n if t.offset else NULL, first,
                )
            if t.rest:
                for n in range(rows):
                    npu_less_zero(t.outputs[n] + n0 * 4, left, t.a + n * (4 * NPU_ROW), k, t.offset, t.rest)
            m0 += rows


cdef bint _scratch(Conv *t) noexcept nogil:
    """Allocate all scratch memory of ``t`` in one block, which begins at ``t.a``. False if there is no memory."""
    cdef long long count = _plan(t, NULL)
    cdef size_t columns = min(t.oc + 31, <long long>NPU_BLOCK_COLUMNS)
    cdef size_t a = NPU_BLOCK_ROWS * NPU_ROW * 4, b = NPU_CHUNK * columns * 4, edge = NPU_TILE_ROWS * 128
    cdef size_t start = NPU_BLOCK_COLUMNS * 4, ones = NPU_CHUNK * 4, outputs = NPU_BLOCK_ROWS * sizeof(void *)
    cdef unsigned char *p = npu_scratch(a + b + edge + start + ones + outputs + count * sizeof(Segment))
    cdef int i
    if p == NULL:
        return False
    t.a, t.b, t.edge, t.start = p, p + a, p + a + b, <int *>(p + a + b + edge)
    p += a + b + edge + start
    t.ones, t.outputs, t.segments = <unsigned int *>p, <unsigned char **>(p + ones), <Segment *>(p + ones + outputs)
    t.segment_count = _plan(t, t.segments)
    if t.offset:
        for i in range(NPU_CHUNK):
            t.ones[i] = npu_ones(t.mode)
    return True


cdef void _conv(Conv *t) noexcept nogil:
    """Compute the whole tile."""
    cdef long long pixels = t.batch * t.oh * t.ow, s0 = 0, s1, k, most = NPU_CHUNK * t.per_unit
    # For so few pixels, packing weights would take longer than reading them in place.
    cdef bint direct = t.per_unit == 1 and t.w_size == 4 and t.offset == 0 and pixels < 4 * t.gemm.rows
    cdef const unsigned char *w = t.w
    cdef bint first = t.first
    # Ranges of k follow each other, each over the whole tile, so accumulators keep the order of summation.
    while s0 < t.segment_count and not npu_interrupted:
        s1, k = s0, 0
        # As many segments as fit the packed buffers, to pass over the accumulators less often.
        while s1 < t.segment_count and k + t.segments[s1].k <= most:
            k += t.segments[s1].k
            s1 += 1
        _chunk(t, pixels, s0, s1, k, w, direct, first)
        w += k * t.oc * t.w_size
        s0, first = s1, False


cdef int _mode(int x_dtype, int w_dtype) except -1:
    """The multiplication mode of a pair of types. ValueError if there is none."""
    cdef bint small = (
        x_dtype in (NPU_INT8, NPU_UINT8, NPU_INT16, NPU_UINT16) and w_dtype in (NPU_INT8, NPU_UINT8, NPU_INT16)
    )
    item_size(x_dtype)
    item_size(w_dtype)
    if is_float(x_dtype) and is_float(w_dtype):
        return NPU_MODE_F32
    if x_dtype == NPU_INT32 and w_dtype == NPU_INT32:
        return NPU_MODE_I32
    if not small:
        raise ValueError(f"kernels do not multiply {type_name(x_dtype)} by {type_name(w_dtype)}")
    if level() == 3 and item_size(x_dtype) == 1 and item_size(w_dtype) == 1:
        return NPU_MODE_U8
    return NPU_MODE_I16


cdef int _prepare(Conv *t, int x_dtype, int w_dtype, long long x_zero, long long w_zero) except -1:
    # All integer modes give the same sums modulo 2**32, so the choice may depend on the machine.
    t.mode = _mode(x_dtype, w_dtype)
    t.panel_zero = weight_zero(w_dtype, w_zero)
    # VNNI multiplies u8 by s8. Signed pixels and unsigned weights are therefore shifted by 128. The resulting error is
    # a constant per column or pixel and is subtracted exactly modulo 2**32 (_correct, npu_less_zero).
    if t.mode == NPU_MODE_U8:
        t.panel_zero = 128 if w_dtype == NPU_UINT8 else 0
    t.rest = <unsigned int>(w_zero - t.panel_zero)
    t.gemm = npu_gemm_of(level())
    t.per_unit = 4 if t.mode == NPU_MODE_U8 else 2 if t.mode == NPU_MODE_I16 else 1
    t.offset = 0
    if t.mode != NPU_MODE_F32:
        t.offset = <unsigned int>(x_zero + (128 if t.mode == NPU_MODE_U8 and x_dtype == NPU_INT8 else 0))
        # 16-bit pixels must be signed: unsigned ones are shifted by 2^15.
        if x_dtype == NPU_UINT16:
            t.offset -= <unsigned int>(1 << 15)
    t.pack_pixels, t.pack_panel = npu_pixels_of(t.mode, x_dtype), npu_panel_of(t.mode, w_dtype)
    return 0


cdef int _place(Conv *t, Strided x, Strided w, Strided acc) except -1:
    """Check that every window, all weights and all accumulators are within their memories."""
    cdef Operand o
    cdef long long[4] n
    n[0], n[1] = t.batch, reach(t.oh, t.win.kh, t.win.sh, t.win.dh)
    n[2], n[3] = reach(t.ow, t.win.kw, t.win.sw, t.win.dw), t.ic
    # All other code runs without the interpreter's lock and without bounds checks. These three checks make that safe.
    dense(&o, x, n, 4, t.x_size, "x")
    t.x, t.xs[0], t.xs[1], t.xs[2] = o.p, o.s[0], o.s[1], o.s[2]
    n[1], n[2], n[3] = t.oh, t.ow, t.oc
    dense(&o, acc, n, 4, 4, "acc", True)
    t.acc, t.cs[0], t.cs[1], t.cs[2] = o.p, o.s[0], o.s[1], o.s[2]
    n[1] = t.ic * t.win.kh * t.win.kw * t.oc
    dense(&o, w, n, 2, t.w_size, "w")
    t.w, t.ws = o.p, o.s[0]
    return 0


def conv(
    int x_dtype, int w_dtype, Strided x not None, Strided w not None, Strided acc not None, dims, window,
    long long block, long long x_zero, bint first, long long w_zero=0,
):
    """Add a batch of convolution tiles to accumulators, or set them if ``first``.

    dims: (batch, oh, ow, oc, ic). window: (kh, kw, sh, sw, dh, dw). x: pixels of ``ic`` contiguous channels, padding
    included, at strides (batch, row, pixel) in bytes. w: dense [K][oc] at stride (batch), with k in the order of
    summation: blocks of ``block`` channels, kernel rows, kernel columns, channels of the block. acc: ``oc`` contiguous
    accumulators per pixel. They are float32 for floats, summed by a chain of fused multiply-adds in that order. They
    are int32, wrapping, for pairs of int8, uint8 and int16, for uint16 pixels, and for int32 by int32. x_zero is
    subtracted from pixels. int8 and uint8 weights may also have a zero point: w - w_zero is multiplied.
    """
    cdef Conv t
    cdef long long[5] n
    cdef long long _b, count = 1
    cdef bint done
    t.x_size, t.w_size = item_size(x_dtype), item_size(w_dtype)
    _prepare(&t, x_dtype, w_dtype, x_zero, w_zero)
    take(n, dims, 5)
    take_window(&t.win, window, "conv")
    t.batch, t.oh, t.ow, t.oc, t.ic, t.block, t.first = n[0], n[1], n[2], n[3], n[4], block, first
    if t.ic < 1 or block < 1:
        raise ValueError(f"conv: ic and block must be >= 1, got {t.ic} and {block}")
    _place(&t, x, w, acc)
    if is_empty(n, 4):
        return
    t.done = 0
    with nogil:
        # Weights shared by all items are packed once. Otherwise each item is a tile of its own.
        if t.ws:
            count, t.batch = n[0], 1
        done = _scratch(&t)
        if done:
            for _b in range(count):
                _conv(&t)
                t.x, t.w, t.acc = t.x + t.xs[0], t.w + t.ws, t.acc + t.cs[0]
            npu_scratch_free(t.a)
    settle()
    if not done:
        raise MemoryError("conv: no memory for packed weights")
