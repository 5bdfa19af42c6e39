"""The tile search in machine integers: enumerate the cuts of a problem, estimate them, choose one.

Prices come from the cost functions of the device, through mappings that compute each key once. Figures are exact below
4e15. Larger ones are rounded like doubles and clamped to 10^18: slow devices and large layers are planned too, and
nobody compares designs that take 11 days.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.math cimport INFINITY


cdef extern from *:
    """
    #if defined(__SIZEOF_INT128__)
    static long long scaled(long long value, long long by, long long over) {
        return (long long)((__int128)value * by / over);
    }
    #else
    static long long scaled(long long value, long long by, long long over) {
        long long whole = value / over, rest = value % over, result = 0, k;
        (void)whole;
        for (k = 1; k < by; k *= 10) { result = result * 10; rest *= 10; result += rest / over; rest %= over; }
        return whole * by + result;
    }
    #endif
    """
    long long scaled(long long value, long long by, long long over) noexcept nogil

from npusim.timing._prices cimport LIMIT, Prices, missed, number_of

from npusim.errors import CompileError

cdef long long SECOND = 1_000_000_000_000
cdef long long WITHIN_64_BITS = 9_000_000  # bytes that can be multiplied by SECOND

# The limit for sizes in elements and bytes.
cdef double LARGEST = 4.0e18

cdef enum:
    UNKNOWN = -1
    NOTHING = -1

# Purposes of an estimate: to choose a tile, or its latency between other layers, or after rows of the same layer.
cdef enum:
    CHOSEN
    AMONG
    AGAIN


cdef struct Moved:
    # A load or store of a tile.
    bint there
    double ps
    double stream  # time per transfer in a stream
    double nbytes


cdef int READ = number_of("read"), COPY = number_of("copy")
cdef int CONSTANTS = number_of("constants")

cdef struct Counts:
    # Counts of a cut with one of the loops outermost, on any device: tiles, parts of their sums, tiles per core and its
    # fraction of all, how often inputs and weights are loaded. ``x``, ``w``, ``p``, ``stores``, ``results``: equivalent
    # transfers of full tiles, since tiles at the edges are smaller.
    bint there
    long long tasks, chunks, per_core, x_loads, w_loads
    double share, full_x, x, w, p, stores, results


cdef struct Cut:
    long long groups, oc, ic, kh, kw
    long long oh, ow
    Py_ssize_t area  # the number of its area; negative if it is not in the table
    bint allowed  # the accumulators hold its sums, and one instruction may compute it
    bint ordered  # either loop may be outermost
    long long whole  # SRAM bytes if the chain processes a tile as a whole
    long long steps
    long long[4] time  # indexed by 2 * in pieces + weights outermost
    long long one, all  # picoseconds of a full tile, and of all tiles with the actual sizes at the edges
    Moved x, w, p, others, out
    Counts[2] counts  # indexed by weights outermost


cdef struct Reach:
    # The range of SRAM budgets [first, end) for which a search takes the same path.
    long long first, end


cdef long long UNBOUNDED = 1 << 62


cdef inline bint fits(long long nbytes, long long budget, Reach *reach) noexcept nogil:
    if nbytes > budget:
        reach.end = least(reach.end, nbytes)
        return False
    reach.first = most(reach.first, nbytes)
    return True


cdef inline long long up(long long value, long long by) noexcept nogil:
    return (value + by - 1) // by


cdef inline long long least(long long a, long long b) noexcept nogil:
    return a if a < b else b


cdef inline long long most(long long a, long long b) noexcept nogil:
    return a if a > b else b


cdef inline long long limited(double value) noexcept nogil:
    return <long long>value if value < <double>LIMIT else LIMIT


cdef inline long long times(long long a, long long b) noexcept nogil:
    """The product of two non-negative numbers, or the limit."""
    return a * b if <double>a * b < <double>LIMIT else LIMIT


cpdef long long cores_served(long long cores, long long bandwidth, bint multicast, long long exchange) noexcept:
    """The number of cores that one read effectively serves if ``cores`` of them need the same bytes of a memory.

    With multicast these are all. Through the ``exchange`` network, each core sends its part to the others, which takes
    longer if the network is slower than the memory. 1: each core reads for itself. Bandwidths in bytes per second.
    """
    if multicast or cores == 1 or not exchange:
        return cores if multicast else 1
    return most(1, least(cores, <long long>(<double>cores * exchange / (<double>(cores - 1) * bandwidth))))


cdef inline bint is_same(Cut *one, Cut *other) noexcept nogil:
    return (
        one.oc == other.oc and one.ic == other.ic and one.oh == other.oh and one.ow == other.ow
        and one.groups == other.groups and one.kh == other.kh and one.kw == other.kw
    )


cdef long long read_step(
    long long outputs, long long stride, long long taps, long long kernel, long long dilation,
) noexcept:
    """See ``npusim.timing.tile_problem``."""
    cdef long long a = stride if outputs > 1 else 0, b = dilation if taps > 1 else 0
    if dilation == 1 and taps == kernel:
        return 1
    while b:
        a, b = b, a % b
    return most(a, 1)


cdef enum:
    MOST_REACHED = 64  # tiles along one axis that a mean is computed over


cdef double reached(
    long long full, long long size, long long stride, long long kernel, long long taps, long long dilation,
    long long before, long long limit,
) noexcept:
    """The fraction of the input of tiles along an axis that is in [0, limit); the rest is padding.

    ``full``, ``size``: output, and output of a tile. ``kernel``, ``taps``: kernel, and part of it. ``before``: padding.
    """
    cdef long long step = up(up(full, size), MOST_REACHED) * size, out, tap, first, extent, inside = 0, total = 0
    for out from 0 <= out < full by step:
        for tap from 0 <= tap < kernel by taps:
            first = out * stride + tap * dilation - before
            extent = (least(size, full - out) - 1) * stride + (least(taps, kernel - tap) - 1) * dilation + 1
            inside += most(0, least(first + extent, limit) - most(first, 0))
            total += extent
    return <double>inside / <double>total


cdef struct Figures:
    # The terms of an estimate: picoseconds of the units, and before anything overlaps.
    long long compute, chain, loading, storing, first


cdef class Search:
    """The cuts of one problem on one device.

    ``problem``: see ``npusim.timing.tile_problem``. ``device``: see ``npusim.timing.tile``. ``cuts``: (groups, output
    channels, input channels, kernel rows, kernel columns) of a tile. ``areas``: (rows, columns). Both in the order in
    which they are tried.
    """

    cdef long long images, oh, ow, groups, oc, ic, kh, kw, sh, sw, dh, dw
    cdef long long x_rows, x_cols, top, left
    cdef bint depthwise, shared_weights, in_place, main, pinned, zeros, both_ways
    cdef int x_home, out_home, direct, dram
    cdef long long held, beside, x_serves, w_serves, w_bits, w_block, w_rows, w_cols, sum_bytes, w_kilo
    cdef long long parameters, fetched, traffic
    cdef long long x_item, w_item, out_item, stored_item
    cdef long long element_bytes, between, piece, begin, kilo
    cdef tuple operands
    cdef Prices matrix, banks, moves
    cdef object of_taps
    cdef int x_way, w_way, out_way
    cdef bint x_turned, out_turned
    cdef long long acc_limit, cores, copies, alignment, overlap, slack, most_risen
    cdef long long max_products, max_elements, channel_step, least_run
    cdef long long bandwidth, constants_bandwidth, exchange
    cdef bint multicast, ahead, one_channel, apart
    cdef long long product_code, copy_code
    cdef Cut *table
    cdef Py_ssize_t n_cuts, n_areas
    cdef Figures told

    def __cinit__(self):
        self.table = NULL

    def __dealloc__(self):
        PyMem_Free(self.table)

    def __init__(self, problem, device, cuts, areas):
        self._read(problem)
        self._read_device(device)
        self._check()
        self.n_cuts, self.n_areas = len(cuts), len(areas)
        self.table = <Cut *>PyMem_Malloc(self.n_cuts * self.n_areas * sizeof(Cut))
        if self.table is NULL:
            raise MemoryError
        cdef Cut *cut = self.table
        cdef Py_ssize_t area
        for groups, oc, ic, kh, kw in cuts:
            for area, (oh, ow) in enumerate(areas):
                cut.groups, cut.oc, cut.ic, cut.kh, cut.kw = groups, oc, ic, kh, kw
                cut.oh, cut.ow, cut.area = oh, ow, area
                self._measure(cut)
                cut += 1

    cdef _read(self, p):
        self.images, self.oh, self.ow, self.groups, self.oc, self.ic = p.images, p.oh, p.ow, p.groups, p.oc, p.ic
        self.kh, self.kw, self.sh, self.sw, self.dh, self.dw = p.kh, p.kw, p.sh, p.sw, p.dh, p.dw
        self.x_rows, self.x_cols, self.top, self.left = p.padded or (0, 0, 0, 0)
        self.both_ways = p.both_ways
        self.depthwise, self.shared_weights, self.in_place, self.main = (
            p.depthwise, p.shared_weights, p.in_place, p.main,
        )
        self.pinned, self.zeros, self.held, self.beside = p.pinned, p.w_zeros, p.held, p.beside
        self.x_home, self.out_home = p.x_home, p.out_home
        self.x_serves, self.w_serves, self.w_bits, self.w_block = p.x_serves, p.w_serves, p.w_bits, p.w_block
        self.sum_bytes, self.parameters, self.fetched = p.sum_bytes, p.parameters, p.fetched
        self.w_kilo, self.w_way = p.w_kilo, number_of(p.w_way)
        self.x_way, self.out_way = number_of(p.x_way), number_of(p.out_way)
        self.x_turned, self.out_turned = p.x_turned, p.out_turned
        self.x_item, self.w_item, self.out_item = p.x_type.itemsize, p.w_type.itemsize, p.out_type.itemsize
        self.stored_item = p.stored_bytes
        self.w_rows, self.w_cols = p.w_rows, p.w_cols
        e = p.epilogue
        self.element_bytes, self.between, self.piece, self.begin, self.kilo = (
            e.element_bytes, e.between, e.piece, e.begin, e.kilo,
        )
        self.operands = e.operands

    cdef _read_device(self, d):
        self.matrix, self.banks, self.moves, self.of_taps = d.matrix, d.banks, d.moves, d.of_taps
        self.direct, self.dram = d.direct, d.dram
        self.acc_limit, self.cores, self.copies, self.alignment = d.acc_bytes, d.cores, d.input_copies, d.alignment
        self.overlap, self.slack, self.most_risen = d.overlap, d.slack_percent, d.most_risen
        self.max_products, self.max_elements, self.channel_step = d.max_products, d.max_elements, d.channel_step
        self.bandwidth, self.constants_bandwidth, self.least_run = d.bandwidth, d.constants_bandwidth, d.least_run
        self.exchange = d.exchange
        self.multicast, self.ahead, self.one_channel, self.apart = (
            d.multicast, d.inputs_ahead, d.one_channel, d.constants_apart,
        )
        self.product_code, self.copy_code = d.product_code, d.copy_code

    cdef _check(self):
        """Refuse sizes beyond 64 bits, where the largest tile is the whole problem. Raises CompileError."""
        if least(least(self.images, self.oh), least(self.ow, least(self.groups, least(self.oc, self.ic)))) < 1:
            raise ValueError("a matrix problem has no elements")
        cdef double pixels = <double>self.images * self.oh * self.ow
        cdef double channels = <double>self.groups * self.oc
        cdef double rows = <double>self.oh * self.sh + <double>self.kh * self.dh
        cdef double cols = <double>self.ow * self.sw + <double>self.kw * self.dw
        cdef double products = pixels * channels * self.ic * self.kh * self.kw
        cdef double inputs = self.images * rows * cols * self.groups * self.ic
        cdef double each = 64.0 * (self.element_bytes + self.between + self.kilo + 64) + self.begin
        if (
            products * self.channel_step > LARGEST or inputs * 64 > LARGEST or pixels * channels * each > LARGEST
            or (channels + self.w_cols) * (self.ic * self.kh * self.kw + self.w_rows) * 64 * (self.held + 2) > LARGEST
        ):
            raise CompileError(
                f"a layer of {products:.3g} MACs on {inputs:.3g} inputs is too large to be cut into tiles; "
                f"{LARGEST / self.channel_step:.3g} MACs are allowed"
            )

    cdef inline long long _aligned(self, long long nbytes) noexcept:
        return up(nbytes, self.alignment) * self.alignment

    cdef inline long long _row_step(self, Cut *cut) noexcept:
        """The input rows that one row of a tile advances."""
        return read_step(cut.oh, self.sh, cut.kh, self.kh, self.dh)

    cdef inline long long _col_step(self, Cut *cut) noexcept:
        """The input columns that one column of a tile advances."""
        cdef long long step = read_step(cut.ow, self.sw, cut.kw, self.kw, self.dw)
        if self.x_turned or step * cut.groups * cut.ic * self.x_item < self.least_run:
            return 1
        return step

    cdef inline long long _rows(self, Cut *cut) noexcept:
        """Input rows of a tile."""
        return ((cut.oh - 1) * self.sh + (cut.kh - 1) * self.dh) // self._row_step(cut) + 1

    cdef inline long long _cols(self, Cut *cut) noexcept:
        """Input columns of a tile."""
        return ((cut.ow - 1) * self.sw + (cut.kw - 1) * self.dw) // self._col_step(cut) + 1

    cdef inline long long _parts(self, Cut *cut) noexcept:
        """Instructions per tile of the result."""
        return up(self.ic, cut.ic) * up(self.kh, cut.kh) * up(self.kw, cut.kw)

    cdef long long _weights(self, Cut *cut) noexcept:
        cdef long long k = cut.kh * cut.kw * (1 if self.depthwise else cut.ic)
        cdef long long count = cut.groups, channels = cut.oc, rows = 0, each, filled
        if self.depthwise:
            count, channels = 1, cut.groups * cut.oc
        if self.w_block:
            rows = least(up(k - 1, self.w_block) + 1, k)
        filled = k * channels
        if not self.depthwise:
            filled = up(k, self.w_rows) * self.w_rows * up(channels, self.w_cols) * self.w_cols
        each = up(filled * self.w_bits, 8) if self.w_bits else filled * self.w_item
        return count * (each + rows * channels * (5 if self.zeros else 4))

    cdef void _measure(self, Cut *cut) noexcept:
        cdef long long area = cut.oh * cut.ow, out = cut.groups * cut.oc, elements = area * out
        cdef long long x = self._rows(cut) * self._cols(cut) * cut.groups * cut.ic * self.x_item
        cdef long long weights = self._aligned(self._weights(cut))
        cdef long long parameters = self._aligned(out * self.parameters)
        cdef long long acc = elements * self.sum_bytes
        cdef long long spatial = self.images * up(self.oh, cut.oh) * up(self.ow, cut.ow)
        cdef long long channels = up(self.groups, cut.groups) * up(self.oc, cut.oc), chunks = self._parts(cut)
        cdef long long total = 2 * (weights + parameters), lanes, inputs
        if self.held:
            total = channels * (chunks * weights + parameters) * self.held
        if self.pinned:
            total = 0
        total += self._aligned(elements * self.element_bytes)
        if self.x_home != self.direct:
            total += self.copies * self._aligned(x)
        if self.in_place and not self.acc_limit:
            total += 2 * self._aligned(acc) if self.main else 0
        else:
            total += 2 * self._aligned(elements * self.out_item) if self.main else 0
            total += 0 if self.acc_limit else self._aligned(acc)
        cut.whole = total + self._aligned(elements * self.between)
        cut.steps = spatial * channels * chunks
        cut.ordered = (spatial > 1 and channels > 1 and chunks == 1) or self._may_share()
        # As the kernels step: output channels rounded up.
        lanes = up(out if self.depthwise else cut.oc, self.channel_step) * self.channel_step
        inputs = (1 if self.depthwise else cut.groups * cut.ic) * area * cut.kh * cut.kw
        cut.allowed = (
            not (self.acc_limit and acc > self.acc_limit) and <double>inputs * lanes <= <double>self.max_products
            and elements <= self.max_elements
        )
        cut.time[0] = cut.time[1] = cut.time[2] = cut.time[3] = cut.one = UNKNOWN
        cut.counts[0].there = cut.counts[1].there = False

    cdef inline long long _pieces(self, Cut *cut) noexcept:
        """SRAM bytes if the chain processes a tile in pieces."""
        cdef long long elements = cut.oh * cut.ow * cut.groups * cut.oc
        return (
            cut.whole - self._aligned(elements * self.between)
            + self._aligned(least(elements, self.piece) * self.between)
        )

    cdef Py_ssize_t _try(self, long long budget, int *tried, long long *best, Reach *reach) except -1:
        """Enumerate the options that fit into ``budget`` bytes. Fills ``tried`` with their numbers and ``best`` with
        the least time.

        Returns how many there are.
        """
        cdef Py_ssize_t c, s, count = 0
        cdef long long time, lowest = -1, here, nearest, risen
        cdef int variant, outer, pieces
        cdef Cut *cut
        reach.first, reach.end = -UNBOUNDED, UNBOUNDED
        for c in range(self.n_cuts):
            nearest, risen = -1, 0
            for s in range(self.n_areas):
                cut = &self.table[c * self.n_areas + s]
                # Parts of rows have their own halo, and stripes are small: only use them if single rows do not fit.
                if nearest >= 0 and cut.ow < self.ow and (self.held or (self.oh > 1 and self.kw > 1)):
                    break
                if not cut.allowed:
                    continue
                pieces = 0
                if not fits(cut.whole, budget, reach):
                    if not self.between or not fits(self._pieces(cut), budget, reach):
                        continue
                    pieces = 1
                here = -1
                for outer in range(2 if cut.ordered else 1):
                    variant = 2 * pieces + outer
                    time = cut.time[variant]
                    if time == UNKNOWN:
                        time = cut.time[variant] = self._estimate(cut, outer, pieces, CHOSEN)
                    if here < 0 or time < here:
                        here = time
                    tried[count] = ((c * self.n_areas + s) << 2) + variant
                    count += 1
                if lowest < 0 or here < lowest:
                    lowest = here
                if nearest < 0 or here < nearest:
                    nearest, risen = here, 0
                    continue
                risen += 1
                if risen == self.most_risen and not self.both_ways:
                    break
            # Held weights cost no loads, so smaller parts of them gain nothing.
            if self.held and not self.pinned and nearest >= 0:
                break
        best[0] = lowest
        return count

    cdef int *_room(self) except NULL:
        """Memory for the numbers of all options of one call. Other calls may run meanwhile, so it is not shared."""
        cdef int *room = <int *>PyMem_Malloc((2 * self.n_cuts * self.n_areas + 1) * sizeof(int))
        if room is NULL:
            raise MemoryError
        return room

    cdef tuple _told(self, int number):
        cdef Cut *cut = &self.table[number >> 2]
        return (
            cut.groups, cut.oh, cut.ow, cut.oc, cut.ic, bool(number & 1), bool(number & 2),
            0 if cut.kh == self.kh else cut.kh, 0 if cut.kw == self.kw else cut.kw,
        )

    def choose(self, long long budget):
        """The best tile that fits into ``budget`` bytes, as (tile, picoseconds, first, end).

        The tile is (groups, rows, columns, output channels, input channels, weights outermost, in pieces, kernel rows,
        kernel columns), or None. The result is the same for all budgets in [first, end).
        """
        cdef long long ps = 0
        cdef Reach reach
        cdef int best = self._best(budget, &ps, &reach)
        return (None if best == NOTHING else self._told(best)), ps, reach.first, reach.end

    cdef int _best(self, long long budget, long long *ps, Reach *reach) except -2:
        """The number of the option that :meth:`choose` returns, or ``NOTHING``."""
        cdef long long time, limit, lowest = 0, steps = 0
        cdef int *tried = self._room()
        cdef int best = NOTHING
        cdef Py_ssize_t at
        cdef Cut *cut
        try:
            for at in range(self._try(budget, tried, &lowest, reach)):
                if not at:
                    limit = lowest // 100 * (100 + self.slack) + lowest % 100 * (100 + self.slack) // 100
                cut = &self.table[tried[at] >> 2]
                time = cut.time[tried[at] & 3]
                if time > limit or (best != NOTHING and (cut.steps > steps or (cut.steps == steps and time > ps[0]))):
                    continue
                if best == NOTHING or cut.steps < steps or time < ps[0] or self._told(tried[at]) < self._told(best):
                    best, steps, ps[0] = tried[at], cut.steps, time
        finally:
            PyMem_Free(tried)
        return best

    def within(self, long long budget, long long limit):
        """(picoseconds, steps, tile) of all options of :meth:`choose` that take less than ``limit``."""
        cdef long long lowest
        cdef int *tried = self._room()
        cdef Py_ssize_t at
        cdef Cut *cut
        cdef Reach reach
        cdef list found = []
        try:
            for at in range(self._try(budget, tried, &lowest, &reach)):
                cut = &self.table[tried[at] >> 2]
                if cut.time[tried[at] & 3] < limit:
                    found.append((cut.time[tried[at] & 3], cut.steps, self._told(tried[at])))
        finally:
            PyMem_Free(tried)
        return found

    def score(self, tile):
        """The picoseconds by which tilings are compared."""
        cdef Cut wanted
        cdef Cut *cut = self._cut(tile, &wanted)
        cdef bint outer = tile[5], pieces = tile[6]
        cdef long long time = cut.time[2 * pieces + outer]
        return self._estimate(cut, outer, pieces, CHOSEN) if time == UNKNOWN else time

    def latency(self, tile, bint again):
        """(picoseconds of all tiles between other layers, without waits for SRAM banks; picoseconds of the DRAM)."""
        cdef Cut wanted
        return self._estimate(self._cut(tile, &wanted), tile[5], tile[6], AGAIN if again else AMONG), self.traffic

    def computing(self, tile):
        """Picoseconds of the matrix unit for all tiles in sequence."""
        cdef Cut wanted
        cdef Cut *cut = self._cut(tile, &wanted)
        if cut.one == UNKNOWN:
            self._price(cut)
        return cut.all

    def banked(self, tile):
        """Picoseconds of all SRAM banks for all tiles on the matrix unit."""
        cdef Cut wanted
        return self._all(self._cut(tile, &wanted), True)

    def bound(self):
        """A lower bound in picoseconds: of the matrix unit with one instruction per image, or of the DRAM if each
        operand passes once, whichever is larger."""
        cdef Cut whole
        whole.groups, whole.oc, whole.ic, whole.kh, whole.kw = self.groups, self.oc, self.ic, self.kh, self.kw
        cdef long long pixels = self.images * self.oh * self.ow, nbytes = 0
        if self.x_home == self.dram:
            nbytes += pixels * self.sh * self.sw * self.groups * self.ic * self.x_item
        if self.out_home == self.dram:
            nbytes += pixels * self.groups * self.oc * self.stored_item
        if not self.held:
            nbytes += self._weights(&whole) * self.w_kilo // 1024
        cdef long long image = self._price_of(self.matrix, self.groups, self.oh, self.ow, self.oc, self.ic)
        return most(times(self.images, image) // self.cores, self._bus_ps(nbytes, self.bandwidth))

    cdef Cut *_cut(self, tile, Cut *wanted) except NULL:
        """The table entry of a tile, because most tiles that are queried were chosen. Otherwise ``wanted``, without
        figures."""
        cdef Py_ssize_t at
        wanted.groups, wanted.oh, wanted.ow, wanted.oc, wanted.ic = tile[:5]
        wanted.kh, wanted.kw = tile[7] or self.kh, tile[8] or self.kw
        wanted.area = -1
        wanted.counts[0].there = wanted.counts[1].there = False
        wanted.time[0] = wanted.time[1] = wanted.time[2] = wanted.time[3] = wanted.one = UNKNOWN
        for at in range(self.n_cuts * self.n_areas):
            if is_same(&self.table[at], wanted):
                return &self.table[at]
        return wanted

    cdef Cut *_like(self, Cut *cut, bint inputs) noexcept:
        """Another entry with known prices, whose input tiles (or output tiles) have the same size; NULL if there is
        none."""
        cdef Py_ssize_t c
        cdef Cut *other
        for c in range(self.n_cuts if cut.area >= 0 else 0):
            other = &self.table[c * self.n_areas + cut.area]
            if other.one != UNKNOWN and other.groups == cut.groups and (
                other.ic == cut.ic and other.kh == cut.kh and other.kw == cut.kw if inputs else other.oc == cut.oc
            ):
                return other
        return NULL

    cdef long long _price_of(
        self, Prices prices, long long groups, long long oh, long long ow, long long oc, long long ic,
    ) except -1:
        cdef long long[5] key
        cdef long long[3] value
        key[0], key[1], key[2], key[3], key[4] = groups, oh, ow, oc, ic
        if self.depthwise:  # the groups are the channels of one image
            key[0], key[3], key[4] = 1, groups * oc, groups
        prices.ask(key, False, value)
        return value[0]

    cdef Moved _move(self, long long nbytes, long long run, long long stride, int way) except *:
        cdef Moved moved
        cdef long long[5] key
        cdef long long[3] value
        key[0], key[1], key[2], key[3], key[4] = nbytes, most(1, least(run, nbytes)), stride, way, 0
        self.moves.ask(key, True, value)
        moved.there, moved.ps, moved.stream, moved.nbytes = True, value[0], value[1], value[2]
        return moved

    cdef Moved _mean(
        self, long long groups, long long width, long long whole, long long item, long long row, long long pixels,
        int way, bint turned=False,
    ) except *:
        """The mean over all tiles of ``groups`` groups and ``width`` of their ``whole`` channels, for tiles with all of
        their pixels."""
        cdef Moved moved, one
        cdef long long some, many, count, g, c, every = self.groups * whole
        cdef int last_groups, last_channels
        moved.there, moved.ps, moved.stream, moved.nbytes = True, 0, 0, 0
        for last_groups in range(2):
            g = self.groups % groups if last_groups else groups
            some = 1 if last_groups else self.groups // groups
            for last_channels in range(2):
                c = whole % width if last_channels else width
                many = 1 if last_channels else whole // width
                count = g * c
                if not count or not some * many:
                    continue
                if turned:  # in DRAM, pixels are contiguous
                    one = self._move(pixels * count * item, row * item, 0, way)
                elif count == every or way == COPY:
                    one = self._move(pixels * count * item, count * item * (row if count == every else 1), 0, way)
                else:
                    one = self._move(pixels * count * item, count * item, every * item, way)
                moved.ps += <double>(some * many) * one.ps
                moved.stream += <double>(some * many) * one.stream
                moved.nbytes += <double>(some * many) * one.nbytes
        cdef double total = <double>(up(self.groups, groups) * up(whole, width))
        moved.ps, moved.stream, moved.nbytes = moved.ps / total, moved.stream / total, moved.nbytes / total
        return moved

    cdef int _price(self, Cut *cut) except -1:
        """Compute what is independent of the loop order and of how the chain processes a tile."""
        self._price_moves(cut)
        self._price_products(cut)
        return 0

    cdef int _price_moves(self, Cut *cut) except -1:
        cdef long long groups = cut.groups, oc = cut.oc, nbytes
        cdef Cut *like
        cut.x.there = cut.w.there = cut.p.there = cut.out.there = False
        cut.others = self._others(cut)
        if self.x_home != self.direct:
            like = self._like(cut, True)
            if like is not NULL:
                cut.x = like.x
            else:
                cut.x = self._input(cut)
        if not self.held:
            nbytes = self._weights(cut)
            cut.w = self._move(nbytes, most(1, nbytes * self.w_kilo // 1024), 0, self.w_way)
            if self.fetched:
                nbytes = groups * oc * self.fetched
                cut.p = self._move(nbytes, nbytes, 0, CONSTANTS)
        if self.out_home != self.direct:
            like = self._like(cut, False)
            if like is not NULL:
                cut.out = like.out
            else:
                cut.out = self._output(cut)
        return 0

    cdef Moved _input(self, Cut *cut) except *:
        cdef long long cols = self._cols(cut), pixels = self._rows(cut) * cols
        cdef long long row = cols if self._col_step(cut) == 1 else 1
        cdef Moved moved = self._mean(
            cut.groups, cut.ic, self.ic, self.x_item, row, pixels, self.x_way, self.x_turned
        )
        cdef Moved written
        cdef double inside
        if self.x_rows:  # positions in the padding are not read, only written
            inside = reached(self.oh, cut.oh, self.sh, self.kh, cut.kh, self.dh, self.top, self.x_rows)
            inside *= reached(self.ow, cut.ow, self.sw, self.kw, cut.kw, self.dw, self.left, self.x_cols)
            pixels *= cut.groups * cut.ic * self.x_item
            written = self._move(pixels, pixels, 0, COPY)
            moved.nbytes *= inside
            moved.ps = max(inside * moved.ps, written.ps)
            moved.stream = max(inside * moved.stream, written.stream)
        return moved

    cdef Moved _others(self, Cut *cut) except *:
        """The operands of the chain, in sequence."""
        cdef Moved moved, one
        moved.there, moved.ps, moved.stream, moved.nbytes = len(self.operands) > 0, 0, 0, 0
        for item in self.operands:
            one = self._mean(cut.groups, cut.oc, self.oc, <long long>item, cut.ow, cut.oh * cut.ow, READ)
            moved.ps += one.ps
            moved.stream += one.stream
            moved.nbytes += one.nbytes
        return moved

    cdef Moved _output(self, Cut *cut) except *:
        return self._mean(
            cut.groups, cut.oc, self.oc, self.stored_item, cut.ow, cut.oh * cut.ow, self.out_way, self.out_turned
        )

    cdef int _price_products(self, Cut *cut) except -1:
        cdef Prices prices = self._prices(False, cut.kh, cut.kw)
        cdef long long whole = self._price_of(prices, cut.groups, cut.oh, cut.ow, cut.oc, cut.ic)
        cut.all = self._all(cut, False)
        cut.one = whole
        return 0

    cdef Prices _prices(self, bint banks, long long kh, long long kw):
        """The prices of products with this many taps."""
        if kh == self.kh and kw == self.kw:
            return self.banks if banks else self.matrix
        return self.of_taps(kh, kw)[banks]

    cdef long long _all(self, Cut *cut, bint banks) except -1:
        """Picoseconds of the unit or the banks for all tiles and all parts of their sums."""
        cdef long long kh, kw, count, rows = self.kh // cut.kh, cols = self.kw // cut.kw, total = 0
        cdef long long tiles = self.images * up(self.oh, cut.oh) * up(self.ow, cut.ow)
        cdef int mask
        tiles *= up(self.groups, cut.groups) * up(self.oc, cut.oc) * up(self.ic, cut.ic)
        for mask in range(4):
            kh, kw = self.kh % cut.kh if mask & 1 else cut.kh, self.kw % cut.kw if mask & 2 else cut.kw
            count = (1 if mask & 1 else rows) * (1 if mask & 2 else cols)
            if kh and kw:
                total += times(count, self._computing(
                    self._prices(banks, kh, kw), cut.groups, cut.oh, cut.ow, cut.oc, cut.ic, tiles
                ))
                total = least(total, LIMIT)
        return total

    cdef long long _computing(
        self, Prices prices, long long groups, long long oh, long long ow, long long oc, long long ic, long long tasks,
    ) except -1:
        """Picoseconds of all ``tasks`` tiles, with the actual sizes at the edges."""
        cdef long long[5] full, size, part
        cdef int k, mask
        cdef long long total = 0, count
        cdef bint empty, whole = True
        full[0], full[1], full[2], full[3], full[4] = self.groups, self.oh, self.ow, self.oc, self.ic
        size[0], size[1], size[2], size[3], size[4] = groups, oh, ow, oc, ic
        for k in range(5):
            if full[k] % size[k]:
                whole = False
        if whole:
            return times(tasks, self._price_of(prices, groups, oh, ow, oc, ic))
        for mask in range(32):
            count, empty = 1, False
            for k in range(5):
                if mask >> k & 1:
                    part[k] = full[k] % size[k]
                else:
                    part[k] = size[k]
                    count *= full[k] // size[k]
                if not part[k]:
                    empty = True
            if count and not empty:
                total += times(count, self._price_of(prices, part[0], part[1], part[2], part[3], part[4]))
                total = least(total, LIMIT)
        return times(self.images, total)

    cdef inline bint _may_share(self) noexcept:
        """Whether cores may share loads of equal bytes."""
        return self.cores > 1 and (self.multicast or self.exchange)

    cdef void _loaded_for(
        self, long long spatial, long long channels, long long chunks, bint outermost, double *x, double *w,
    ) noexcept:
        cdef long long outer = channels if outermost else spatial, inner = spatial if outermost else channels
        cdef long long tasks, together
        x[0], w[0] = self.x_serves, self.w_serves
        if not self._may_share() or self.x_home != self.dram or self.held:
            return
        x[0] = w[0] = 1
        if outer * inner % self.cores:
            return
        tasks = outer * inner // self.cores
        if tasks % inner and inner % tasks:
            return
        together = self.cores // most(1, inner // tasks)
        if outermost:
            x[0] = cores_served(together, self.bandwidth, self.multicast, self.exchange)
        elif self.shared_weights and (channels > 1 or chunks > 1):  # else they stay, counted once for all cores
            w[0] = cores_served(together, self.constants_bandwidth, self.multicast, self.exchange)

    cdef void _count(self, Cut *cut, bint outer, Counts *n) noexcept:
        cdef long long groups = cut.groups, oh = cut.oh, ow = cut.ow, oc = cut.oc, ic = cut.ic
        cdef long long spatial = self.images * up(self.oh, oh) * up(self.ow, ow)
        cdef long long channels = up(self.groups, groups) * up(self.oc, oc), chunks = self._parts(cut)
        cdef long long tasks = spatial * channels, x_loads, w_loads
        cdef long long rows = self._rows(cut), cols = self._cols(cut)
        cdef double full_x = 1, full_w = 1, full_out = 1, o = 1, g, i, h, v, t, x_cores, w_cores
        # How often each operand is loaded.
        if chunks > 1:
            x_loads = w_loads = tasks * chunks
        elif outer:
            x_loads = spatial if channels == 1 else tasks
            w_loads = channels if self.shared_weights else tasks
        else:
            x_loads = spatial * up(self.groups, groups)
            w_loads = channels if spatial == 1 or (channels == 1 and self.shared_weights) else tasks
        if (
            self.oh % oh or self.ow % ow or self.oc % oc or self.ic % ic or self.groups % groups
            or self.kh % cut.kh or self.kw % cut.kw
        ):
            g = <double>self.groups / <double>(up(self.groups, groups) * groups)
            i = <double>self.ic / <double>(up(self.ic, ic) * ic)
            h = <double>self.oh / <double>(up(self.oh, oh) * oh)
            v = <double>self.ow / <double>(up(self.ow, ow) * ow)
            o = g * (<double>self.oc / <double>(up(self.oc, oc) * oc))
            full_x = 1 - (1 - h) * oh * self.sh / (rows * self._row_step(cut))
            full_x *= 1 - (1 - v) * ow * self.sw / (cols * self._col_step(cut))
            t = <double>(self.kh * self.kw) / <double>(up(self.kh, cut.kh) * cut.kh * up(self.kw, cut.kw) * cut.kw)
            full_w, full_out = o * i * t, h * v
        self._loaded_for(spatial, channels, chunks, outer, &x_cores, &w_cores)
        n.there, n.tasks, n.chunks, n.x_loads, n.w_loads = True, tasks, chunks, x_loads, w_loads
        n.per_core = up(tasks, self.cores)
        n.share, n.full_x = <double>n.per_core / <double>tasks, full_x
        n.stores = tasks * full_out
        n.results = n.stores * o
        n.x, n.w = x_loads / x_cores * full_x, w_loads / w_cores * full_w
        n.p = w_loads / chunks / w_cores * o

    cdef long long _estimate(self, Cut *cut, bint outer, bint in_pieces, int asked) except -1:
        if cut.one == UNKNOWN:
            self._price(cut)
        cdef Counts *n = &cut.counts[outer]
        if not n.there:
            self._count(cut, outer, n)
        cdef long long per_core = n.per_core, first = 0
        cdef long long compute = least(times(per_core * n.chunks, cut.one), cut.all)
        cdef long long elements = cut.oh * cut.ow * cut.groups * cut.oc
        cdef double stores = n.stores
        cdef double loads = 0, traffic = 0, storing = 0, apart = 0
        if cut.x.there:
            loads += n.x * cut.x.stream
            traffic += n.x * cut.x.nbytes
        if cut.w.there:
            loads += n.w * cut.w.stream
            traffic += n.w * cut.w.nbytes
        if cut.p.there:
            loads += n.p * cut.p.stream
            traffic += n.p * cut.p.nbytes
        if cut.others.there:
            loads += stores * cut.others.stream
            traffic += stores * cut.others.nbytes
        if cut.out.there:
            traffic += stores * cut.out.nbytes
            storing = (stores if stores < per_core else <double>per_core) * cut.out.stream
        cdef long long behind = elements * self.kilo // 1024
        behind += (up(elements, self.piece) if in_pieces else 1) * self.begin
        cdef long long loading = limited(n.share * loads), stored = limited(storing)
        if cut.x.there and not self.ahead:
            compute = least(compute + limited(n.share * n.x_loads * n.full_x * cut.x.ps), LIMIT)
        if self.one_channel:
            loading, stored = least(loading + stored, LIMIT), 0
        if asked == CHOSEN and not self.held:  # in a cascade, other layers determine the load of the DRAM
            traffic += self._code(cut, n)
        if cut.w.there and self.apart:
            apart = n.w * cut.w.nbytes + (n.p * cut.p.nbytes if cut.p.there else 0)
        cdef long long shared = most(
            self._bus_ps(limited((traffic - apart) * self.beside), self.bandwidth),
            self._bus_ps(limited(apart * self.beside), self.constants_bandwidth),
        )
        cdef long long chain = limited((n.results if n.results < per_core else <double>per_core) * behind)
        if asked != AGAIN:
            if cut.x.there and self.ahead:  # otherwise they are part of ``compute``
                first += <long long>cut.x.ps
            if cut.w.there and asked == CHOSEN:
                first += <long long>cut.w.ps
            if cut.out.there:
                first += <long long>cut.out.ps
        if chain > compute:
            first += compute // per_core
        elif asked != AGAIN:
            first += behind
        cdef Figures *told = &self.told
        told.compute, told.chain, told.loading, told.storing, told.first = compute, chain, loading, stored, first
        cdef long long longest = most(most(compute, chain), most(most(loading, stored), shared))
        cdef long long total = compute + chain + loading + stored + shared
        if asked == CHOSEN:
            return longest + first + (total - longest + shared) // self.overlap
        if asked == AMONG and cut.w.there:
            # Weights load during the last tile of the previous layer, which is assumed to take as long as one of these.
            first += most(0, <long long>cut.w.ps - longest // (per_core * n.chunks))
        self.traffic = shared
        return longest + first

    cdef double _code(self, Cut *cut, Counts *n) noexcept:
        """Bytes of the commands for all tiles."""
        cdef double copies = <double>n.tasks * (len(self.operands) + cut.out.there + (self.kilo > 0))
        if cut.x.there:
            copies += n.x_loads
        if cut.w.there:
            copies += n.w_loads
        if cut.p.there:
            copies += n.w_loads // n.chunks
        return copies * self.copy_code + <double>n.tasks * n.chunks * self.product_code

    cdef long long _bus_ps(self, long long nbytes, long long bandwidth) noexcept:
        if nbytes < WITHIN_64_BITS:
            return nbytes * SECOND // bandwidth
        if <double>nbytes * SECOND / bandwidth > LIMIT:
            return LIMIT
        return scaled(nbytes, SECOND, bandwidth)


FIGURES = (
    "bytes", "compute", "chain", "loading", "storing", "begin", "weights", "tail", "per_core", "x_bytes",
    "constant_bytes", "other_bytes", "out_bytes", "moved", "copies", "steps", "tiles", "groups", "oh", "ow", "oc", "ic",
    "kh", "kw", "latency", "computing",
)
"""Figures of a chosen tile: bytes of SRAM; picoseconds of the matrix unit, the chain, loads and stores; picoseconds
before anything overlaps, of the first weights, and of the chain after one tile; tiles per core; bytes at the DRAM pins
of inputs, constants, operands of the chain and results; bytes through DMA channels; numbers of transfers, products and
tiles; the sizes of a tile; ``Tilings.latency`` without waits for banks, and ``Tilings.computing``."""


@cython.final
cdef class Devices:
    """The devices of a batch as a search sees them. Each array has one element per device.

    ``moves``: prices of transfers. ``move``: the index of each device's prices; ``near``: those for transfers to and
    from the L2. ``products``: the index of each device's product prices in a :class:`SharedSearch`.
    """

    cdef list moves
    cdef const long long[::1] product, move, near, bandwidth, constants_bandwidth, exchange
    cdef const unsigned char[::1] one_channel
    cdef Py_ssize_t count

    def __init__(self, moves, products, move, near, bandwidth, constants_bandwidth, exchange, one_channel):
        self.moves, self.product, self.move, self.near = moves, products, move, near
        self.bandwidth, self.constants_bandwidth, self.one_channel = bandwidth, constants_bandwidth, one_channel
        self.exchange = exchange
        self.count = len(products)


cdef struct Products:
    bint there
    long long one, all


cdef struct Moves:
    bint there
    Moved x, w, p, others, out


@cython.final
cdef class SharedSearch(Search):
    """A search for one device after another. Many of them have equal prices, which are cached per cut."""

    cdef Devices devices
    cdef list products
    cdef object products_of
    cdef dict of_parts  # ``products`` of parts of the kernel
    cdef Moves **kept_moves  # by cut, then by column
    cdef Products **kept_products
    cdef Py_ssize_t n_moves, n_products, n_touched, now
    cdef int *touched  # cuts with prices of the device ``now``

    def __init__(self, problem, device, cuts, areas, Devices devices, products):
        Search.__init__(self, problem, device, cuts, areas)
        self.devices, self.products, self.now = devices, products(self.kh, self.kw), NOTHING
        self.products_of, self.of_parts = products, {}
        # If few devices share a price, caching is not worth its memory.
        self.n_moves = len(devices.moves) if 4 * len(devices.moves) <= devices.count + 3 else 0
        self.n_products = len(self.products) if 4 * len(self.products) <= devices.count + 3 else 0
        cdef Py_ssize_t cells = self.n_cuts * self.n_areas
        self.kept_moves = <Moves **>PyMem_Calloc(cells + 1, sizeof(Moves *))
        self.kept_products = <Products **>PyMem_Calloc(cells + 1, sizeof(Products *))
        self.touched = <int *>PyMem_Calloc(cells + 1, sizeof(int))
        if self.kept_moves is NULL or self.kept_products is NULL or self.touched is NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Py_ssize_t at
        for at in range(self.n_cuts * self.n_areas):
            if self.kept_moves is not NULL:
                PyMem_Free(self.kept_moves[at])
            if self.kept_products is not NULL:
                PyMem_Free(self.kept_products[at])
        PyMem_Free(self.kept_moves)
        PyMem_Free(self.kept_products)
        PyMem_Free(self.touched)

    cdef int _turn_to(self, Py_ssize_t number, long long begin, long long kilo, long long piece) except -1:
        """Search for this device from now on."""
        cdef Devices devices = self.devices
        cdef Py_ssize_t at
        cdef Cut *cut
        if number == self.now and (piece == self.piece or not self.between):
            return 0
        self.now, self.begin, self.kilo, self.piece = number, begin, kilo, piece
        self.matrix, self.moves = self.products[devices.product[number]], devices.moves[devices.move[number]]
        self.bandwidth, self.constants_bandwidth = devices.bandwidth[number], devices.constants_bandwidth[number]
        self.one_channel, self.exchange = devices.one_channel[number], devices.exchange[number]
        for at in range(self.n_touched):
            cut = &self.table[self.touched[at]]
            cut.time[0] = cut.time[1] = cut.time[2] = cut.time[3] = cut.one = UNKNOWN
        self.n_touched = 0
        return 0

    cdef int _price_moves(self, Cut *cut) except -1:
        cdef Py_ssize_t before = missed()
        cdef Moves *kept = NULL
        self.touched[self.n_touched] = cut - self.table
        self.n_touched += 1
        cdef Moves **row = &self.kept_moves[cut - self.table]
        if self.n_moves:
            if row[0] is NULL:
                row[0] = <Moves *>PyMem_Calloc(self.n_moves, sizeof(Moves))
                if row[0] is NULL:
                    raise MemoryError
            kept = &row[0][self.devices.move[self.now]]
            if kept.there:
                cut.x, cut.w, cut.p, cut.others, cut.out = kept.x, kept.w, kept.p, kept.others, kept.out
                return 0
        Search._price_moves(self, cut)
        if kept is not NULL and before == missed():
            kept.x, kept.w, kept.p, kept.others, kept.out = cut.x, cut.w, cut.p, cut.others, cut.out
            kept.there = True
        return 0

    cdef int _price_products(self, Cut *cut) except -1:
        cdef Py_ssize_t before = missed()
        cdef Products *kept = NULL
        cdef Products **row = &self.kept_products[cut - self.table]
        if self.n_products:
            if row[0] is NULL:
                row[0] = <Products *>PyMem_Calloc(self.n_products, sizeof(Products))
                if row[0] is NULL:
                    raise MemoryError
            kept = &row[0][self.devices.product[self.now]]
            if kept.there:
                cut.one, cut.all = kept.one, kept.all
                return 0
        Search._price_products(self, cut)
        if kept is not NULL and before == missed():
            kept.there, kept.one, kept.all = True, cut.one, cut.all
        return 0

    cdef Prices _prices(self, bint banks, long long kh, long long kw):
        if kh == self.kh and kw == self.kw:
            return self.matrix
        cdef long long part = kh * (self.kw + 1) + kw
        cdef list found = self.of_parts.get(part)
        if found is None:
            found = self.of_parts[part] = self.products_of(kh, kw)
        return found[self.devices.product[self.now]]

    cdef long long _latency(self, int option) except -1:
        """``Tilings.latency`` of an option, without waits for SRAM banks."""
        cdef long long ps = self._estimate(&self.table[option >> 2], option & 1, option & 2, AMONG)
        return ps + self.traffic // self.overlap

    cdef int _tell(self, int option, int near, double *into) except -1:
        """Write ``FIGURES`` of an option. Bits 1, 2 and 4 of ``near``: input, result and other operands are in
        the L2."""
        cdef Cut *cut = &self.table[option >> 2]
        cdef Prices plain = self.moves, other = plain
        cdef bint pieces = option & 2
        cdef Figures *told = &self.told
        cdef Counts *n = &cut.counts[option & 1]
        if cut.one == UNKNOWN:
            self._price(cut)
        if near:
            other = self.devices.moves[self.devices.near[self.now]]
            self.moves = other
            if near & 1 and cut.x.there:
                cut.x = self._input(cut)
            if near & 2 and cut.out.there:
                cut.out = self._output(cut)
            if near & 4:
                cut.others = self._others(cut)
            self.moves = plain
            self.now = NOTHING  # the table no longer has the prices of one device
        into[24], into[25] = self._latency(option), cut.all
        self._estimate(cut, option & 1, pieces, CHOSEN)
        cdef long long elements = cut.oh * cut.ow * cut.groups * cut.oc
        cdef long long each = 0
        for item in self.operands:
            each += <long long>item
        cdef double copies = n.stores * len(self.operands), moved = n.stores * elements * each
        if cut.x.there:
            copies += n.x
            moved += n.x * (self._rows(cut) * self._cols(cut) * cut.groups * cut.ic * self.x_item)
        if cut.w.there:  # parameters load with the weights
            copies += 2 * n.w
            moved += n.w * self._weights(cut)
        if cut.out.there:
            copies += n.stores
            moved += n.stores * elements * self.stored_item
        cdef double tiles = <double>cut.steps / self._parts(cut)
        into[0] = self._pieces(cut) if pieces else cut.whole
        into[1], into[2], into[3], into[4] = told.compute, told.chain, told.loading, told.storing
        into[6] = <long long>cut.w.ps if cut.w.there else 0
        into[5] = told.first - into[6]
        into[7] = elements * self.kilo // 1024 + (up(elements, self.piece) if pieces else 1) * self.begin
        into[8] = n.per_core
        into[9] = n.x * cut.x.nbytes if cut.x.there else 0
        into[10] = (n.w * cut.w.nbytes if cut.w.there else 0) + (n.p * cut.p.nbytes if cut.p.there else 0)
        into[11] = n.stores * cut.others.nbytes if cut.others.there else 0
        into[12] = n.stores * cut.out.nbytes if cut.out.there else 0
        into[13], into[14], into[15], into[16] = moved, copies, cut.steps, tiles
        into[17], into[18], into[19], into[20], into[21] = cut.groups, cut.oh, cut.ow, cut.oc, cut.ic
        into[22], into[23] = cut.kh, cut.kw
        return 0


cdef enum:
    KEPT = 8  # answers per device: values in SRAM leave different budgets


cdef struct Answer:
    # For budgets in [``first``, ``end``): the score, and the latency as in ``FIGURES``.
    long long first, end, piece, ps, latency
    int option


@cython.final
cdef class ManySearch:
    """The search of one problem on many devices, for all that are queried in one call.

    ``searches``: :class:`SharedSearch` objects. ``kinds``: the index of each device's search. ``begin``, ``kilo``: of
    the chain, see ``EpilogueCosts``.
    """

    cdef list searches
    cdef const long long[::1] kinds, begin, kilo
    cdef Answer *known  # ``KEPT`` per device
    cdef Py_ssize_t turn  # which of them is replaced next

    def __init__(self, searches, kinds, begin, kilo):
        self.searches, self.kinds, self.begin, self.kilo = searches, kinds, begin, kilo
        self.known = <Answer *>PyMem_Calloc(KEPT * len(kinds) + 1, sizeof(Answer))
        if self.known is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.known)

    def bounds(self, const long long[::1] numbers, double[::1] into):
        """Write :meth:`Search.bound` of some devices in picoseconds. Returns how many prices are still missing."""
        cdef Py_ssize_t at, number, before = missed()
        cdef SharedSearch search
        for at in range(len(numbers)):
            number = numbers[at]
            search = self.searches[self.kinds[number]]
            search._turn_to(number, self.begin[number], self.kilo[number], search.piece)
            into[at] = search.bound()
        return missed() - before

    def choose(
        self, const long long[::1] numbers, const long long[::1] budgets, const long long[::1] pieces,
        double[::1] scores, double[::1] latencies, double[:, ::1] figures=None, int near=0,
    ):
        """Choose tiles for devices ``numbers`` with ``budgets`` bytes of SRAM and chains in ``pieces`` of elements.

        Only entries with a negative score are computed. ``scores``: picoseconds by which tiles are chosen;
        ``latencies``: those by which memory areas are chosen; both infinite if no tile fits. ``figures``: see
        ``FIGURES``. Returns the number of scores that are left, because prices for them were requested by this call.
        """
        cdef Py_ssize_t at, number, kept, before, left = 0
        cdef SharedSearch search
        cdef Answer *answer
        cdef Reach reach
        cdef bint known
        for at in range(len(numbers)):
            if scores[at] >= 0:
                continue
            number = numbers[at]
            search = self.searches[self.kinds[number]]
            for kept in range(KEPT):
                answer = &self.known[KEPT * number + kept]
                known = budgets[at] >= answer.first and budgets[at] < answer.end
                known = known and (pieces[at] == answer.piece or not search.between)
                if known:
                    break
            else:
                self.turn = (self.turn + 1) % KEPT
                answer = &self.known[KEPT * number + self.turn]
            if figures is not None or not known:
                search._turn_to(number, self.begin[number], self.kilo[number], pieces[at])
                before = missed()
                if not known:
                    answer.ps = 0
                    answer.option = search._best(budgets[at], &answer.ps, &reach)
                    answer.first, answer.end, answer.piece = reach.first, reach.end, pieces[at]
                    if answer.option != NOTHING:
                        answer.latency = search._latency(answer.option)
                if figures is not None and answer.option != NOTHING:
                    search._tell(answer.option, near, &figures[at, 0])
                if missed() != before:
                    left += 1
                    answer.end = answer.first
                    search.now = NOTHING
                    continue
            scores[at] = <double>answer.ps if answer.option != NOTHING else <double>INFINITY
            latencies[at] = <double>answer.latency if answer.option != NOTHING else <double>INFINITY
        return left
