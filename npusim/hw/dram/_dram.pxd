"""State of the DRAM model, shared by its controller (_dram.pyx) and its fast path for periodic streams (_leap.pyx)."""

cdef extern from *:
    """
    #define NPU_FAR (1LL << 60)
    """
    const long long FAR "NPU_FAR"

cdef enum:
    TABLE = 8192  # number of remembered states; a power of two
    COLUMN = 1
    ROW = 2
    NONE = 0
    ACT = 1
    PRE = 2
    CAS = 3

ctypedef unsigned long long u64

cdef struct Params:  # filled by name; see npusim/hw/dram/_memory.py
    long long channels, ranks, groups, banks
    # timings in clocks, by their JEDEC names; 0 for refi: no refresh
    long long cl, cwl, rcd_rd, rcd_wr, rp, ras, rc, rtp, wr, rrd_s, rrd_l, faw, ccd_s, ccd_l, wtr_s, wtr_l, rfc, refi
    long long sets  # of banks that are refreshed one after another
    long long burst, rtw, rtrs, act_slots, turn
    # controller
    long long bank_queue, read_queue, write_queue, write_high, write_low, write_idle, hit_cap
    long long dual, pseudo, stagger  # 0 or 1
    # position of each field in an address
    long long co_shift, co_bits, ch_shift, ch_bits, ra_shift, ra_bits, bg_shift, bg_bits, ba_shift, ba_bits, ro_shift

cdef struct Entry:
    long long row, index, arrive
    int bank, group, rank
    bint write, probe, seen

cdef struct Bank:
    long long row, act, rd, wr, pre, hits
    int active

cdef struct Group:
    long long act, rd, wr

cdef struct Rank:
    long long act, rd, wr, due
    long long turn  # the set of banks that is refreshed next
    long long[4] faw
    int oldest
    bint pending

cdef struct Flight:
    long long at, arrive
    bint probe

cdef struct Channel:
    Bank *banks
    Group *groups
    Rank *ranks
    Entry *reads
    Entry *writes
    Entry *active
    Entry *queue  # bank_queue entries per bank
    int *queued
    long long *look  # no entry of the queue of a bank can be issued before this clock; FAR if the queue is empty
    Flight *ring
    int n_reads, n_writes, n_active, n_queued, cursor, head, flying, pending
    long long draining, wake, bus, latest

cdef struct Machine:
    Params p
    Channel *channels
    long long now, n_banks, n_groups
    int mask  # of the ring of outstanding reads of a channel
    long long hits, misses, conflicts, latency, refreshes, probes, probe_latency, reads, writes, skipped
    long long outstanding
    bint probing, over, mark

cdef struct Stream:
    const long long *list  # address * 2 + write of each burst, or NULL: runs
    long long count, base, other, run, stride, mode, period, row_shift
    long long unit  # log2 of the bytes of a burst

cdef struct Memo:
    u64[2] hash
    long long i, now, reads, writes, hits, misses, conflicts, latency, refreshes


cdef inline long long larger(long long a, long long b) noexcept nogil:
    return a if a > b else b


cdef inline long long smaller(long long a, long long b) noexcept nogil:
    return a if a < b else b


cdef inline long long burst_address(const Stream *s, long long i, bint *write) noexcept nogil:
    """The address of the i-th burst, in bursts. Modes: 0 reads, 1 writes, 2 alternating reads and writes."""
    cdef long long k = i
    cdef long long at
    if s.list != NULL:
        write[0] = s.list[i] & 1
        return s.list[i] >> (1 + s.unit)
    write[0] = s.mode == 1 or (s.mode == 2 and i & 1)
    if s.mode == 2:
        k = i >> 1
    at = s.other if s.mode == 2 and write[0] else s.base
    if s.run == 1:
        return at + k * s.stride
    return at + (k // s.run) * s.stride + k % s.run


cdef inline int place(const Params *p, long long address, Entry *e) noexcept nogil:
    """Decode the address of a burst into its fields. Returns its channel."""
    cdef long long group, bank
    e.rank = <int>((address >> p.ra_shift) & ((1LL << p.ra_bits) - 1))
    group = (address >> p.bg_shift) & ((1LL << p.bg_bits) - 1)
    bank = (address >> p.ba_shift) & ((1LL << p.ba_bits) - 1)
    e.row = address >> p.ro_shift
    e.group = <int>(e.rank * p.groups + group)
    e.bank = <int>(e.group * p.banks + bank)
    e.seen = False
    return <int>((address >> p.ch_shift) & ((1LL << p.ch_bits) - 1))


cdef inline void land(Machine *m, Channel *c) noexcept nogil:
    """Remove the reads whose data have arrived."""
    cdef Flight *flight
    while c.flying and c.ring[c.head].at + m.p.turn <= m.now:
        flight = &c.ring[c.head]
        if flight.probe:
            m.probing = False
            m.probes += 1
            m.probe_latency += flight.at - flight.arrive
        else:
            m.outstanding -= 1
            m.latency += flight.at - flight.arrive
        c.head = (c.head + 1) & m.mask
        c.flying -= 1
