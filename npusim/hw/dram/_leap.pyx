"""Fast path for periodic streams: whole periods are skipped once a state repeats.

A state is all data that determines the next actions of a memory, with times relative to now, rows relative to the
current row of the stream, and bursts relative to the next one. Two moments with the same state, a whole number of
periods of the stream apart, are followed by the same commands. The actions between them will therefore repeat.
"""

from npusim.hw.dram._dram cimport Channel, Entry, FAR, Machine, Memo, Stream, TABLE, smaller, u64


cdef inline void blend(u64 *h, long long value) noexcept nogil:
    """Two independent 64-bit lanes. Equal states have equal hashes; different states collide with probability
    2**-128."""
    h[0] = (h[0] ^ <u64>value) * <u64>0x9E3779B97F4A7C15
    h[0] ^= h[0] >> 29
    h[1] = (h[1] + <u64>value) * <u64>0xD6E8FEB86659FD93
    h[1] ^= h[1] >> 32


cdef inline long long since(long long at, long long now) noexcept nogil:
    return at - now if at > now else 0


cdef void blend_entries(u64 *h, const Entry *e, int count, long long base, long long i, long long now) noexcept nogil:
    cdef int k
    blend(h, count)
    for k in range(count):
        blend(h, e[k].row - base)
        blend(h, i - e[k].index)
        blend(h, now - e[k].arrive)
        blend(h, e[k].bank * 4 + e[k].write * 2 + e[k].seen)


cdef void blend_channel(
    u64 *h, const Machine *m, const Channel *c, long long base, long long i,
) noexcept nogil:
    cdef long long now = m.now
    cdef long long b
    cdef int k
    for b in range(m.n_banks):
        blend(h, c.banks[b].row - base if c.banks[b].row >= 0 else -FAR)
        blend(h, since(c.banks[b].act, now))
        blend(h, since(c.banks[b].rd, now))
        blend(h, since(c.banks[b].wr, now))
        blend(h, since(c.banks[b].pre, now))
        blend(h, smaller(c.banks[b].hits, m.p.hit_cap))
        blend(h, c.banks[b].active)
        if m.p.bank_queue:
            blend_entries(h, &c.queue[b * m.p.bank_queue], c.queued[b], base, i, now)
    for b in range(m.n_groups):
        blend(h, since(c.groups[b].act, now))
        blend(h, since(c.groups[b].rd, now))
        blend(h, since(c.groups[b].wr, now))
    for b in range(m.p.ranks):
        blend(h, since(c.ranks[b].act, now))
        blend(h, since(c.ranks[b].rd, now))
        blend(h, since(c.ranks[b].wr, now))
        blend(h, c.ranks[b].due - now if m.p.refi else 0)
        blend(h, c.ranks[b].pending)
        for k in range(4):
            blend(h, since(c.ranks[b].faw[(c.ranks[b].oldest + k) & 3], now))
    blend_entries(h, c.reads, c.n_reads, base, i, now)
    blend_entries(h, c.writes, c.n_writes, base, i, now)
    blend_entries(h, c.active, c.n_active, base, i, now)
    blend(h, c.cursor)
    blend(h, c.draining)
    blend(h, since(c.bus, now))
    blend(h, since(c.wake, now) if c.wake < FAR else -1)
    blend(h, c.flying)
    for k in range(c.flying):
        blend(h, c.ring[(c.head + k) & m.mask].at - now)
        blend(h, c.ring[(c.head + k) & m.mask].arrive - now)


cdef void shift_entries(Entry *e, int count, long long rows, long long bursts, long long clocks) noexcept nogil:
    cdef int k
    for k in range(count):
        e[k].row += rows
        e[k].index += bursts
        e[k].arrive += clocks


cdef void shift_channel(Machine *m, Channel *c, long long rows, long long bursts, long long clocks) noexcept nogil:
    """Shift all state of a channel, as if whole periods had passed."""
    cdef long long b
    cdef int k
    for b in range(m.n_banks):
        if c.banks[b].row >= 0:
            c.banks[b].row += rows
        c.banks[b].act += clocks
        c.banks[b].rd += clocks
        c.banks[b].wr += clocks
        c.banks[b].pre += clocks
        c.look[b] = 0 if c.queued[b] else FAR
        if m.p.bank_queue:
            shift_entries(&c.queue[b * m.p.bank_queue], c.queued[b], rows, bursts, clocks)
    for b in range(m.n_groups):
        c.groups[b].act += clocks
        c.groups[b].rd += clocks
        c.groups[b].wr += clocks
    for b in range(m.p.ranks):
        c.ranks[b].act += clocks
        c.ranks[b].rd += clocks
        c.ranks[b].wr += clocks
        c.ranks[b].due += clocks
        for k in range(4):
            c.ranks[b].faw[k] += clocks
    shift_entries(c.reads, c.n_reads, rows, bursts, clocks)
    shift_entries(c.writes, c.n_writes, rows, bursts, clocks)
    shift_entries(c.active, c.n_active, rows, bursts, clocks)
    c.bus += clocks
    c.latest += clocks
    if c.wake < FAR:
        c.wake += clocks
    for k in range(c.flying):
        c.ring[(c.head + k) & m.mask].at += clocks
        c.ring[(c.head + k) & m.mask].arrive += clocks


cdef long long leap(Machine *m, const Stream *s, long long i, Memo *table) noexcept nogil:
    """The number of bursts that can be skipped because this state has occurred before. Advances the machine by that
    many."""
    cdef u64[2] h
    cdef Memo *memo
    cdef long long rounds, bursts, clocks, c, k
    cdef u64 slot
    h[0], h[1] = 1, 2
    blend(h, i % s.period)
    blend(h, m.outstanding)
    for c in range(m.p.channels):
        blend_channel(h, m, &m.channels[c], (i // s.period) * s.row_shift, i)
    slot = h[0] & (TABLE - 1)
    for k in range(8):
        memo = &table[(slot + <u64>k) & (TABLE - 1)]
        if memo.now == 0:
            break
        if memo.hash[0] == h[0] and memo.hash[1] == h[1]:
            bursts, clocks = i - memo.i, m.now - memo.now
            if bursts <= 0 or bursts % s.period:
                return 0
            rounds = (s.count - i) // bursts
            m.reads += rounds * (m.reads - memo.reads)
            m.writes += rounds * (m.writes - memo.writes)
            m.hits += rounds * (m.hits - memo.hits)
            m.misses += rounds * (m.misses - memo.misses)
            m.conflicts += rounds * (m.conflicts - memo.conflicts)
            m.latency += rounds * (m.latency - memo.latency)
            m.refreshes += rounds * (m.refreshes - memo.refreshes)
            m.now += rounds * clocks
            m.skipped += rounds * bursts
            for c in range(m.p.channels):
                shift_channel(
                    m, &m.channels[c], rounds * (bursts // s.period) * s.row_shift, rounds * bursts, rounds * clocks,
                )
            return rounds * bursts
    memo.hash[0], memo.hash[1] = h[0], h[1]
    memo.i, memo.now = i, m.now
    memo.reads, memo.writes, memo.hits, memo.misses = m.reads, m.writes, m.hits, m.misses
    memo.conflicts, memo.latency, memo.refreshes = m.conflicts, m.latency, m.refreshes
    return 0
