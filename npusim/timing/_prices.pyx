"""Prices of transfers and products in machine integers, as the tile search looks them up."""

from cpython cimport array
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.string cimport memcmp, memcpy

cdef enum:
    ASKED = 2

cdef Py_ssize_t[1] MISSED  # how often a price of a batch was not available yet
MISSED[0] = 0

cdef enum:
    MOST_PRICES = 1 << 16  # maximum per mapping; beyond it the prices are cleared

WAYS = []
NUMBERS = {}


cdef int number_of(str way) except -1:
    """The number of a transfer way, constant for the lifetime of the process."""
    if way not in NUMBERS:
        WAYS.append(way)
        NUMBERS[way] = len(WAYS) - 1
    return NUMBERS[way]


cdef Py_ssize_t missed() noexcept:
    """How often a price of a batch was not available yet."""
    return MISSED[0]


cdef class Prices:
    """Prices of a mapping of ``npusim.timing.tile_costs`` in machine integers, because a search looks up many.

    Keys of products are five numbers. Keys of transfers are four, the last of which is the number of a way.

    For batches of devices, prices are computed together: then ``prices`` is an ``array('q')`` that collects the
    requested keys, each after the ``column`` of the device. Until :func:`answer`, such a price equals the limit.
    """

    def __init__(self, prices, long long column=-1):
        self.prices, self.column = prices, column
        self.wanted = prices if column >= 0 else None

    def __dealloc__(self):
        PyMem_Free(self.slots)

    cdef Price *find(self, long long *key) noexcept:
        """The slot of a key, or the free slot for it. There must be a free slot."""
        cdef unsigned long long mixed = 0
        cdef Py_ssize_t at
        cdef int k
        for k in range(5):
            mixed = (mixed ^ <unsigned long long>key[k]) * 0x9E3779B97F4A7C15ULL
            mixed ^= mixed >> 29
        at = mixed & (self.room - 1)
        while self.slots[at].known and memcmp(self.slots[at].key, key, 5 * sizeof(long long)):
            at = (at + 1) & (self.room - 1)
        return &self.slots[at]

    cdef int grow(self) except -1:
        """Enlarge the table, or clear it at its maximum size."""
        cdef Price *old = self.slots
        cdef Py_ssize_t size = self.room, at
        self.slots = <Price *>PyMem_Calloc(max(64, min(2 * size, 2 * MOST_PRICES)), sizeof(Price))
        if self.slots is NULL:
            self.slots = old
            raise MemoryError
        self.room = max(64, min(2 * size, 2 * MOST_PRICES))
        if size == self.room:
            self.count = size = 0
        for at in range(size):
            if old[at].known:
                self.find(old[at].key)[0] = old[at]
        PyMem_Free(old)
        return 0

    cdef int ask(self, long long *key, bint moves, long long *value) except -1:
        """Look up a price, or request it."""
        cdef Price *price
        if self.room:
            price = self.find(key)
            if price.known:
                MISSED[0] += price.known == ASKED
                value[0], value[1], value[2] = price.value[0], price.value[1], price.value[2]
                return 0
        if self.wanted is not None:
            array.extend_buffer(self.wanted, <char *>&self.column, 1)
            array.extend_buffer(self.wanted, <char *>key, 5)
            MISSED[0] += 1
            value[0] = value[1] = value[2] = LIMIT
        elif moves:
            ps, stream, nbytes = self.prices[key[0], key[1], key[2], WAYS[key[3]]]
            value[0], value[1], value[2] = min(ps, LIMIT), min(stream, LIMIT), min(nbytes, LIMIT)
        else:
            value[0] = min(self.prices[key[0], key[1], key[2], key[3], key[4]], LIMIT)
            value[1] = value[2] = 0
        # Other calls may have added prices meanwhile.
        if 2 * (self.count + 1) > self.room:
            self.grow()
        price = self.find(key)
        self.count += not price.known
        price.known = True if self.wanted is None else ASKED
        memcpy(price.key, key, 5 * sizeof(long long))
        price.value[0], price.value[1], price.value[2] = value[0], value[1], value[2]
        return 0


def answer(list prices, const long long[:, ::1] wanted, const long long[:, ::1] values):
    """Store requested prices: picoseconds for products; for transfers also the picoseconds per transfer in a stream and
    the bytes at the DRAM pins. ``wanted``: (number of the prices, key) rows."""
    cdef Py_ssize_t at
    cdef Price *price
    cdef Prices asked
    for at in range(len(wanted)):
        asked = prices[wanted[at, 0]]
        price = asked.find(<long long *>&wanted[at, 1])
        if not price.known:  # the table was cleared meanwhile
            asked.count += 1
            memcpy(price.key, &wanted[at, 1], 5 * sizeof(long long))
        memcpy(price.value, &values[at, 0], 3 * sizeof(long long))
        price.known = True
