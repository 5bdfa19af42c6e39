"""A DRAM controller and its banks, at the granularity of bursts and DRAM clocks. All values are integers; no state is
kept between calls.

Time is counted in clocks of the command bus. Clocks in which nothing can happen are skipped. When a stream returns to
an earlier state, whole periods are skipped. Neither changes any result.
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset

from npusim.hw.dram._leap cimport leap


cdef inline long long ready(const Channel *c, const Entry *e, int *command) noexcept nogil:
    """The next command that an entry needs, and the first clock at which the device accepts it."""
    cdef const Bank *bank = &c.banks[e.bank]
    cdef const Group *group = &c.groups[e.group]
    cdef const Rank *rank = &c.ranks[e.rank]
    if bank.row == e.row:
        command[0] = CAS
        if e.write:
            return larger(bank.wr, larger(group.wr, rank.wr))
        return larger(bank.rd, larger(group.rd, rank.rd))
    if bank.row < 0:
        command[0] = ACT
        return larger(larger(bank.act, group.act), larger(larger(rank.act, rank.faw[rank.oldest]), c.bus))
    command[0] = PRE
    return larger(bank.pre, c.bus)


cdef void open_row(Machine *m, Channel *c, const Entry *e) noexcept nogil:
    cdef const Params *p = &m.p
    cdef Bank *bank = &c.banks[e.bank]
    cdef Group *group = &c.groups[e.group]
    cdef Rank *rank = &c.ranks[e.rank]
    cdef long long now = m.now
    bank.row, bank.hits = e.row, 0
    # Each level keeps the first clock at which it accepts a command. ready() takes the latest of all levels.
    bank.rd, bank.wr = now + p.rcd_rd, now + p.rcd_wr
    bank.pre, bank.act = now + p.ras, now + p.rc
    group.act = larger(group.act, now + p.rrd_l)
    rank.act = larger(rank.act, now + p.rrd_s)
    # A ring of four: the slot written here is read again by the fourth activation from now.
    rank.faw[rank.oldest] = now + p.faw
    rank.oldest = (rank.oldest + 1) & 3
    c.bus = now + p.act_slots


cdef void move_data(Machine *m, Channel *c, const Entry *e) noexcept nogil:
    """Issue a read or a write. Its data follow after the latency."""
    cdef const Params *p = &m.p
    cdef Bank *bank = &c.banks[e.bank]
    cdef Group *group = &c.groups[e.group]
    cdef Rank *rank = &c.ranks[e.rank]
    cdef Flight *flight
    cdef long long now = m.now
    cdef long long done = now + p.burst + (p.cwl if e.write else p.cl)
    cdef long long same_read, other_read, near_read, same_write, other_write, near_write
    cdef int r
    bank.hits += 1
    if e.write:
        same_read, other_read, near_read = done + p.wtr_l, done + p.wtr_s, done + p.rtrs - p.cl
        same_write, other_write = now + larger(p.burst, p.ccd_l), now + larger(p.burst, p.ccd_s)
        near_write = now + p.burst + p.rtrs
        bank.pre = larger(bank.pre, done + p.wr)
        m.writes += 1
    else:
        same_read, other_read = now + larger(p.burst, p.ccd_l), now + larger(p.burst, p.ccd_s)
        near_read = now + p.burst + p.rtrs
        same_write = other_write = now + p.rtw
        near_write = now + larger(p.cl - p.cwl, 0) + p.burst + p.rtrs
        bank.pre = larger(bank.pre, now + p.rtp)
        m.reads += 1
        flight = &c.ring[(c.head + c.flying) & m.mask]
        flight.at, flight.arrive, flight.probe = done, e.arrive, e.probe
        c.flying += 1
    c.latest = larger(c.latest, done)
    group.rd, group.wr = larger(group.rd, same_read), larger(group.wr, same_write)
    rank.rd, rank.wr = larger(rank.rd, other_read), larger(rank.wr, other_write)
    # Ranks share the data pins, which idle for a clock when ownership changes. Pseudo channels have separate pins.
    if not p.pseudo:
        for r in range(<int>p.ranks):
            if r != e.rank:
                c.ranks[r].rd = larger(c.ranks[r].rd, near_read)
                c.ranks[r].wr = larger(c.ranks[r].wr, near_write)


cdef void issue(Machine *m, Channel *c, Entry *e, int command) noexcept nogil:
    if not e.seen:
        e.seen = True
        if command == CAS:
            m.hits += 1
        elif command == ACT:
            m.misses += 1
        else:
            m.conflicts += 1
    if command == CAS:
        move_data(m, c, e)
    elif command == ACT:
        open_row(m, c, e)
    else:
        c.banks[e.bank].row = -1
        c.banks[e.bank].act = larger(c.banks[e.bank].act, m.now + m.p.rp)
        c.bus = m.now + 1


cdef inline void drop(Entry *entries, int *count, int at) noexcept nogil:
    count[0] -= 1
    if at < count[0]:
        memmove(&entries[at], &entries[at + 1], (count[0] - at) * sizeof(Entry))


cdef bint refresh(Machine *m, Channel *c, long long *wake) noexcept nogil:
    """One step of the refreshes that are due: close the banks of a rank, or of its next set, then refresh them. True if
    a command was issued."""
    cdef const Params *p = &m.p
    cdef long long per_rank = p.groups * p.banks
    cdef long long close_at, start_at, b
    cdef bint is_open, busy
    cdef Bank *bank
    cdef int r
    for r in range(<int>p.ranks):
        if not c.ranks[r].pending:
            continue
        is_open, busy, close_at, start_at = False, False, c.bus, c.bus
        for b in range(r * per_rank, (r + 1) * per_rank):
            if b % p.sets != c.ranks[r].turn:
                continue
            bank = &c.banks[b]
            if bank.row >= 0:
                is_open = True
                busy |= bank.active > 0
                close_at = larger(close_at, bank.pre)
            start_at = larger(start_at, bank.act)
        if busy:
            continue
        if is_open:
            start_at = close_at
        if start_at > m.now:
            wake[0] = smaller(wake[0], start_at)
            continue
        for b in range(r * per_rank, (r + 1) * per_rank):
            if b % p.sets != c.ranks[r].turn:
                continue
            bank = &c.banks[b]
            c.look[b] = 0 if c.queued[b] else FAR
            if is_open:
                if bank.row >= 0:
                    bank.row = -1
                    bank.act = larger(bank.act, m.now + p.rp)
            else:
                bank.act = m.now + p.rfc
        c.bus = m.now + 1
        if not is_open:
            c.ranks[r].pending = False
            c.ranks[r].turn = (c.ranks[r].turn + 1) % p.sets
            c.pending -= 1
            m.refreshes += 1
            m.mark |= r == 0 and c == m.channels
        return True
    return False


cdef bint from_banks(Machine *m, Channel *c, int slots, int *used, long long *wake) noexcept nogil:
    """Issue one command from the bank queues: round-robin over banks, and in each bank the first entry that may be
    issued."""
    cdef const Params *p = &m.p
    cdef int depth = <int>p.bank_queue
    cdef int n = <int>m.n_banks
    cdef int _step, b, i, j, command
    cdef long long at, soonest
    cdef bint later_hit
    cdef Entry *queue
    cdef Entry *e
    b = c.cursor
    for _step in range(n):
        b += 1
        if b >= n:
            b = 0
        if c.look[b] > m.now:
            wake[0] = smaller(wake[0], c.look[b])
            continue
        queue = &c.queue[b * depth]
        if c.ranks[queue[0].rank].pending and b % p.sets == c.ranks[queue[0].rank].turn:
            continue
        soonest = FAR
        for i in range(c.queued[b]):
            e = &queue[i]
            at = ready(c, e, &command)
            if command == PRE:
                if i:
                    continue
                later_hit = False
                for j in range(1, c.queued[b]):
                    later_hit |= queue[j].row == c.banks[b].row
                if later_hit and c.banks[b].hits < p.hit_cap:
                    continue
            if at > m.now:
                soonest = smaller(soonest, at)
                continue
            if not slots & (COLUMN if command == CAS else ROW):
                soonest = smaller(soonest, m.now + 1)
                continue
            c.look[b] = 0
            issue(m, c, e, command)
            used[0] = COLUMN if command == CAS else ROW
            if command == CAS:
                drop(queue, &c.queued[b], i)
                c.n_queued -= 1
                if not c.queued[b]:
                    c.look[b] = FAR
            c.cursor = b
            return True
        c.look[b] = soonest
        wake[0] = smaller(wake[0], soonest)
    return False


cdef int oldest_ready(
    Machine *m, Channel *c, Entry *entries, int count, int slots, bint is_active, int *command, long long *wake,
) noexcept nogil:
    """The first entry in order of arrival whose command can be issued now, or -1."""
    cdef int i, cmd, best = -1
    cdef long long at
    for i in range(count):
        if best >= 0 and entries[i].arrive >= entries[best].arrive:
            continue
        if m.p.sets > 1 and not is_active and c.ranks[entries[i].rank].pending:
            if entries[i].bank % m.p.sets == c.ranks[entries[i].rank].turn:
                continue
        at = ready(c, &entries[i], &cmd)
        if not slots & (COLUMN if cmd == CAS else ROW):
            continue
        if not is_active and cmd == PRE and c.banks[entries[i].bank].active:
            continue
        if at > m.now:
            wake[0] = smaller(wake[0], at)
            continue
        best = i
        command[0] = cmd
    return best


cdef void choose_mode(Machine *m, Channel *c) noexcept nogil:
    """Writes are collected until there are many of them or no reads are left. They are then drained until few are
    left."""
    cdef const Params *p = &m.p
    cdef bint idle = c.n_reads == 0 and c.n_queued == 0
    if p.bank_queue:
        if not c.draining and (
            c.n_writes >= p.write_high or (idle and c.n_writes >= (1 if m.over else p.write_idle))
        ):
            c.draining = c.n_writes
    elif not c.draining:
        c.draining = c.n_writes >= p.write_high or c.n_reads == 0
    elif c.n_writes < p.write_low and c.n_reads:
        c.draining = 0


cdef bint from_window(Machine *m, Channel *c, int slots, int *used, long long *wake) noexcept nogil:
    """Issue one command from the whole window: entries whose row is being opened first, then the oldest ready one."""
    cdef int at, command = NONE
    cdef Entry *entries = c.active
    cdef int *count = &c.n_active
    cdef bint is_active = True
    cdef Entry moved
    at = oldest_ready(m, c, entries, count[0], slots, True, &command, wake)
    if at < 0:
        if c.pending and m.p.sets == 1:
            return False
        choose_mode(m, c)
        is_active = False
        entries, count = (c.writes, &c.n_writes) if c.draining else (c.reads, &c.n_reads)
        at = oldest_ready(m, c, entries, count[0], slots, False, &command, wake)
        if at < 0:
            return False
    issue(m, c, &entries[at], command)
    used[0] = COLUMN if command == CAS else ROW
    if command == CAS:
        if is_active:
            c.banks[entries[at].bank].active -= 1
        drop(entries, count, at)
    elif command == ACT and not is_active:
        moved = entries[at]
        drop(entries, count, at)
        c.banks[moved.bank].active += 1
        c.active[c.n_active] = moved
        c.n_active += 1
    return True


cdef bint hand_over(Machine *m, Channel *c) noexcept nogil:
    """Move the first transaction whose bank queue has room from the front queues to that queue."""
    cdef const Params *p = &m.p
    cdef int i, b
    cdef Entry *entries
    cdef int *count
    choose_mode(m, c)
    entries, count = (c.writes, &c.n_writes) if c.draining else (c.reads, &c.n_reads)
    for i in range(count[0]):
        b = entries[i].bank
        if c.queued[b] < p.bank_queue:
            c.queue[b * p.bank_queue + c.queued[b]] = entries[i]
            c.queued[b] += 1
            c.look[b] = 0
            c.n_queued += 1
            drop(entries, count, i)
            if c.draining:
                c.draining -= 1
            return True
    return False


cdef void tick(Machine *m, Channel *c) noexcept nogil:
    """Process one clock of a channel, and compute the next clock at which it needs processing."""
    cdef const Params *p = &m.p
    cdef long long wake = FAR
    cdef bint acted = False
    cdef int r, used = 0
    cdef int slots = COLUMN | ROW
    if p.refi:
        for r in range(<int>p.ranks):
            if m.now >= c.ranks[r].due:
                c.ranks[r].due += p.refi
                if not c.ranks[r].pending:
                    c.ranks[r].pending = True
                    c.pending += 1
            wake = smaller(wake, c.ranks[r].due)
        if c.pending and refresh(m, c, &wake):
            acted = True
            slots = COLUMN if p.dual else 0
    if slots and p.bank_queue and from_banks(m, c, slots, &used, &wake):
        acted = True
        slots &= ~used
        if p.dual:
            from_banks(m, c, slots, &used, &wake)
    elif slots and not p.bank_queue:
        if p.dual:
            acted |= from_window(m, c, COLUMN, &used, &wake)
            if slots & ROW:
                acted |= from_window(m, c, ROW, &used, &wake)
        else:
            acted |= from_window(m, c, slots, &used, &wake)
    if p.bank_queue:
        acted |= hand_over(m, c)
    c.wake = m.now + 1 if acted else wake


cdef bint accept(Machine *m, const Stream *s, long long i, bint probe) noexcept nogil:
    """Put a burst into the queue of its channel. False if the queue is full."""
    cdef Entry *e
    cdef Entry fresh
    cdef Channel *c
    cdef bint write = False
    c = &m.channels[place(&m.p, burst_address(s, i, &write), &fresh)]
    if (c.n_writes >= m.p.write_queue) if write else (c.n_reads >= m.p.read_queue):
        return False
    if write:
        e = &c.writes[c.n_writes]
        c.n_writes += 1
    else:
        e = &c.reads[c.n_reads]
        c.n_reads += 1
        if not probe:
            m.outstanding += 1
    e[0] = fresh
    e.index, e.arrive, e.write, e.probe = i, m.now, write, probe
    c.wake = m.now
    return True


cdef long long drive(
    Machine *m, const Stream *s, const Stream *probe, long long limit, long long pace, long long warmup, Memo *table,
) noexcept nogil:
    """Run until the stream has been served, or all probes if there are any. Returns the clock of the last datum."""
    cdef long long i = 0
    cdef long long j = 0
    cdef long long base = 0
    cdef long long allowed = 0  # in 1/16 clock
    cdef long long next_at, k, last = 0
    cdef bint busy, stalled
    cdef Channel *c
    cdef const Params *p = &m.p
    while True:
        for k in range(m.p.channels):
            land(m, &m.channels[k])
        if table != NULL and m.mark and not m.over:
            k = leap(m, s, i, table)
            i += k
            if k:  # all whole periods have been skipped, and the rest is shorter than one
                table = NULL
        m.mark = False
        stalled = False
        if j < probe.count and not m.probing and m.now >= warmup:
            if accept(m, probe, j, True):
                m.probing = True
                j += 1
            else:
                stalled = True
        while not stalled and i < s.count and m.outstanding < limit and allowed <= m.now * 16:
            if not accept(m, s, i, False):
                stalled = True
                break
            i += 1
            if pace:
                allowed = (m.now * 16 if m.now * 16 > allowed + 16 else allowed) + pace
            if not m.p.refi and table != NULL and i - base >= s.period:
                base = i
                m.mark = True
        m.over = i >= s.count
        next_at = FAR
        busy = False
        for k in range(m.p.channels):
            c = &m.channels[k]
            if m.over:
                c.wake = m.now if c.wake == FAR and c.n_writes else c.wake
            if c.wake <= m.now:
                tick(m, c)
            next_at = smaller(next_at, c.wake)
            if c.flying:
                next_at = smaller(next_at, c.ring[c.head].at + p.turn)
            busy |= c.flying + c.n_reads + c.n_writes + c.n_active + c.n_queued > 0
            last = larger(last, c.latest)
        if (probe.count and m.probes >= probe.count) or (m.over and not busy and j >= probe.count):
            return last if not probe.count else m.now
        if i < s.count and not stalled and m.outstanding < limit:
            next_at = smaller(next_at, (allowed + 15) // 16)
        if j < probe.count and not m.probing:
            next_at = smaller(next_at, larger(warmup, m.now + 1))
        m.now = larger(m.now + 1, next_at)


cdef bint build(Machine *m) noexcept nogil:
    """Allocate the channels of a machine. False if there is no memory for them."""
    cdef Params *p = &m.p
    cdef long long k, b
    cdef Channel *c
    m.mask = 1
    while m.mask < p.cl + p.burst + p.turn + 2:  # at most one read per clock
        m.mask = 2 * m.mask + 1
    m.n_groups = p.ranks * p.groups
    m.n_banks = m.n_groups * p.banks
    m.channels = <Channel *>calloc(p.channels, sizeof(Channel))
    if m.channels == NULL:
        return False
    for k in range(p.channels):
        c = &m.channels[k]
        c.banks = <Bank *>calloc(m.n_banks, sizeof(Bank))
        c.groups = <Group *>calloc(m.n_groups, sizeof(Group))
        c.ranks = <Rank *>calloc(p.ranks, sizeof(Rank))
        c.reads = <Entry *>calloc(p.read_queue + 1, sizeof(Entry))
        c.writes = <Entry *>calloc(p.write_queue + 1, sizeof(Entry))
        c.active = <Entry *>calloc(m.n_banks + 1, sizeof(Entry))
        c.queue = <Entry *>calloc(m.n_banks * p.bank_queue + 1, sizeof(Entry))
        c.queued = <int *>calloc(m.n_banks, sizeof(int))
        c.look = <long long *>calloc(m.n_banks, sizeof(long long))
        c.ring = <Flight *>calloc(m.mask + 1, sizeof(Flight))
        if not (c.banks and c.groups and c.ranks and c.reads and c.writes and c.active and c.queue):
            return False
        if not (c.queued and c.look and c.ring):
            return False
        for b in range(m.n_banks):
            c.banks[b].row, c.look[b] = -1, FAR
        for b in range(p.ranks):
            c.ranks[b].due = p.refi * (b + 1) // p.ranks if p.stagger else p.refi
    return True


cdef void demolish(Machine *m) noexcept nogil:
    cdef long long k
    cdef Channel *c
    if m.channels == NULL:
        return
    for k in range(m.p.channels):
        c = &m.channels[k]
        free(c.banks)
        free(c.groups)
        free(c.ranks)
        free(c.reads)
        free(c.writes)
        free(c.active)
        free(c.queue)
        free(c.queued)
        free(c.look)
        free(c.ring)
    free(m.channels)


cdef int _set_up(Machine *m, dict parameters) except -1:
    """Set each field of the struct. ValueError for a missing or unknown name and for an invalid value."""
    cdef str name
    m.p = parameters
    if len(parameters) != len(<dict>m.p):
        raise ValueError(f"a memory has no {', '.join(sorted(set(parameters) - set(<dict>m.p)))}")
    for name in parameters:
        if parameters[name] < 0:
            raise ValueError(f"{name}: must be >= 0, got {parameters[name]}")
    for name in ("channels", "ranks", "groups", "banks", "burst", "read_queue", "write_queue", "write_high"):
        if parameters[name] < 1:
            raise ValueError(f"{name}: must be >= 1, got {parameters[name]}")
    if m.p.write_high > m.p.write_queue:
        raise ValueError(f"write_high: must be <= write_queue = {m.p.write_queue}, got {m.p.write_high}")
    if m.p.cl + m.p.burst + m.p.turn >= 1 << 24:
        raise ValueError(f"cl + burst + turn: must be < {1 << 24}, got {m.p.cl + m.p.burst + m.p.turn}")
    for bits, count in (("ch", "channels"), ("ra", "ranks"), ("bg", "groups"), ("ba", "banks")):
        if 1 << parameters[f"{bits}_bits"] != parameters[count]:
            raise ValueError(f"{bits}_bits: must be log2 of {count}")
    return 0


cdef int _check_addresses(const long long[::1] requests) except -1:
    cdef Py_ssize_t k
    for k in range(requests.shape[0]):
        if requests[k] < 0:
            raise ValueError(f"addresses must be >= 0, got {requests[k] >> 1} at position {k}")
    return 0


cdef dict _run(
    dict parameters, const Stream *s, const Stream *probe, long long limit, long long pace, long long warmup, bint fast,
):
    cdef Machine m
    cdef Memo *table = NULL
    cdef long long end = 0
    cdef bint built
    memset(&m, 0, sizeof(m))
    _set_up(&m, parameters)
    if limit < 1:
        raise ValueError(f"outstanding: must be >= 1, got {limit}")
    with nogil:
        built = build(&m)
        if built and fast:
            table = <Memo *>calloc(TABLE, sizeof(Memo))
        if built and s.count:
            end = drive(&m, s, probe, limit, pace, warmup, table)
        demolish(&m)
        free(table)
    if not built:
        raise MemoryError("no memory for the state of the DRAM's banks and queues")
    return dict(
        cycles=end, reads=m.reads, writes=m.writes, hits=m.hits, misses=m.misses, conflicts=m.conflicts,
        latency=m.latency, refreshes=m.refreshes, probes=m.probes, probe_latency=m.probe_latency, skipped=m.skipped,
    )


def serve(
    dict parameters, const long long[::1] requests, int unit, long long outstanding, long long pace,
    const long long[::1] probes, long long warmup,
):
    """Serve ``requests``, each address * 2 + (1 for a write), in bursts of ``1 << unit`` bytes. Returns the fields of
    npusim.hw.dram._memory.Result as a dict. ``parameters``: the fields of Params in _dram.pxd.

    At most ``outstanding`` reads are in flight; a write is complete for its sender when it is queued. ``pace``: 1/16
    clocks between two requests; 0: as fast as they are accepted. ``probes`` are read one after the other in parallel,
    from clock ``warmup`` on. If there are any, the simulation ends with the last of them.
    """
    cdef Stream s
    cdef Stream probe
    memset(&s, 0, sizeof(s))
    memset(&probe, 0, sizeof(probe))
    _check_addresses(requests)
    _check_addresses(probes)
    s.count, probe.count = requests.shape[0], probes.shape[0]
    s.unit = probe.unit = unit
    if s.count:
        s.list = &requests[0]
    if probe.count:
        probe.list = &probes[0]
    return _run(parameters, &s, &probe, outstanding, pace, warmup, False)


def serve_runs(
    dict parameters, long long base, long long other, long long runs, long long run, long long stride, int mode,
    long long outstanding, bint fast,
):
    """Serve ``runs`` runs of ``run`` bursts, whose starts are ``stride`` bursts apart. Parameters and result as for
    serve.

    ``mode``: 0 reads from ``base`` (in bursts), 1 writes there, 2 alternates reads there and writes at ``other``.
    ``fast`` skips periods of the stream, with the same result.
    """
    cdef Stream s
    cdef Stream probe
    cdef long long span, rounds
    memset(&s, 0, sizeof(s))
    memset(&probe, 0, sizeof(probe))
    if runs < 0 or run < 1 or not 0 <= mode <= 2:
        raise ValueError(f"runs, run, mode: must be >= 0, >= 1 and 0 to 2, got {runs}, {run}, {mode}")
    if base < 0 or other < 0 or stride < 0:
        raise ValueError(f"base, other, stride: must be >= 0, got {base}, {other}, {stride}")
    s.base, s.other, s.run, s.stride, s.mode = base, other, run, stride, mode
    if stride == run and run > 1:  # one long run: the shortest period
        s.run, s.stride = 1, 1
    s.count = runs * run * (2 if mode == 2 else 1)
    # After this number of runs, addresses only differ in their rows, which are the highest bits.
    span = 1 << <long long>parameters["ro_shift"]
    rounds = span
    while rounds > 1 and (rounds >> 1) * s.stride % span == 0:
        rounds >>= 1
    s.row_shift = rounds * s.stride // span
    s.period = rounds * s.run * (2 if mode == 2 else 1)
    return _run(parameters, &s, &probe, outstanding, 0, 0, fast)
