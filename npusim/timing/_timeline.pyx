"""The clock of timing-only runs and forecasts: the events of ``npusim.sim`` without their objects.

It does what the stepper, its engines, the sequencer, the shared links and the banks do, statement by statement, with
the same events in the same order: by time, then by the order of their creation. A change of those files needs a change
here; ``tests/unit/sim/test_runner.py`` compares the two.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from npusim.isa._stream cimport Remembered, Sizes, asked

from npusim.isa.base import HEADER_BYTES, WAIT_BYTES, Unit
from npusim.polling import poll

cdef extern from *:
    """
    /* Bytes times picoseconds a second, and picoseconds times parts of a bank's speed, of large transfers and long
     * instructions need more than 64 bits. Where a compiler has no wider integers, those are refused. */
    #ifdef __SIZEOF_INT128__
    typedef __int128 npu_wide;
    #else
    typedef long long npu_wide;
    #endif
    """
    ctypedef long long wide "npu_wide"

cdef enum:
    HALT = -1
    NEVER = -1
    NOBODY = -1
    FETCHER = -2
    EXCHANGE = 2  # the links are those of npusim.work.Port
    CODE = 4
    WRITES = 5
    LINKS = 6
    REASONS = 4  # reasons to stall besides engines: DRAM, SRAM, the exchange between cores, L2

cdef struct Event:
    int64_t time
    int64_t serial
    int kind
    int who
    int64_t timer

cdef struct Step:
    int engine
    int core
    int n_waits
    int first_wait
    int has_flow
    int link
    int64_t op
    int64_t end
    int64_t fixed
    int64_t alone
    int64_t bus_bytes
    int64_t rate
    int64_t share
    int64_t rank
    int64_t ahead
    int64_t front
    # Results.
    int64_t at
    int64_t ready
    int64_t begin
    int64_t over
    int next  # the next step of the same engine

cdef struct Engine:
    int step
    int depth
    int asking
    int flying  # number of steps that have started and not ended
    int running  # the first of these
    int head  # of its queue
    int tail  # the last command that was queued, ended or not
    int queued
    int wait_at
    int blocker
    int n_waiters
    int n_stalls
    int64_t completed
    int64_t begin
    int64_t mark
    int64_t busy
    int64_t idle
    # Its work at the banks.
    wide left
    int64_t timer
    int working

cdef struct Waiter:
    int64_t count
    int engine

cdef struct Stall:
    int reason
    int64_t ps

cdef struct Banks:
    int64_t demand
    int64_t speed
    int64_t updated
    int n_works

cdef struct Transfer:
    wide left
    int64_t cap
    int64_t serial
    int64_t rank
    int64_t rate
    int64_t bound  # by its cap and the port of its core
    int who
    int core

cdef struct Link:
    int64_t capacity
    int64_t port  # of each core; 0 = no limit
    int64_t busy
    int64_t updated
    int64_t serial
    int64_t timer
    int count
    Transfer *transfers
    Transfer *ended
    Transfer **order  # of one rank, by bound
    int64_t *left  # what transfers of lower rank leave of the port of each core

cdef struct Job:
    int64_t now
    int64_t serial
    int64_t started
    int n_steps
    int n_engines
    int n_cores
    int by_need
    Step *steps
    int64_t *waits  # (engine, count) pairs
    Engine *engines
    Waiter *waiters  # for each engine, room for as many entries as there are engines
    Stall *stalls  # likewise, plus REASONS entries
    Banks *banks
    int *works  # engines that work at the banks of a core, in the order of their start
    Link links[LINKS]
    int code_link
    Event *heap
    int n_events
    int room
    int *order
    int *ready  # engines that continue now
    int done
    int active
    int outstanding
    int over
    int stuck
    # The sequencer.
    int blocked
    int reason
    int dispatched
    int fetching
    int halted
    int n_stalls
    Stall *held
    int64_t fetched
    int64_t requested
    int64_t total
    int64_t last
    int64_t last_op
    int64_t busy
    int64_t reads
    int64_t latency
    int64_t fetch_rate
    int64_t fetch_bytes
    int64_t code_rank
    int64_t cycle
    int64_t layer
    bint by_layer
    int64_t depth


cdef int64_t PS_PER_S = 10**12
cdef int64_t WHOLE = 1 << 20
# Times are 64-bit integers. A longer job is left to the stepper, whose integers have no limit.
cdef int64_t LONGEST = 0x3FFF_FFFF_FFFF_FFFF
cdef int CONTROL = int(Unit.CONTROL)
cdef int64_t HEADER = HEADER_BYTES, WAIT = WAIT_BYTES

cdef enum:
    CORE_SHIFT = 8
    POLL_EVERY = 4096  # commands


cdef enum Kind:
    ARRIVED  # a command arrives at its queue, whose unit was already free
    ASKED  # a command that has started no longer needs its unit for itself alone
    PASSED  # the fixed time of a command has passed, and its bytes flow
    OVER  # the fixed time of a command without bytes has passed
    WORKED  # work at the banks of a core has ended
    FLOWED  # the first transfer of a link has ended
    STREAMED  # the latency of a fetch has passed
    HALTED


cdef extern from *:
    """
    /* Wide divisions are slow, and few are needed. Quotients beyond 64 bits end up at the limit. */
    static int64_t npu_ceil_div(npu_wide a, int64_t b)
    {
        const npu_wide most = INT64_MAX;
        if (a <= 0)
            return 0;
        if (a < INT64_MAX - b)
            return ((int64_t)a + b - 1) / b;
        a = a / b + (a % b != 0);
        return (int64_t)(a < most ? a : most);
    }
    """
    int64_t ceil_div "npu_ceil_div"(wide a, int64_t b) noexcept nogil


cdef inline bint before(const Event *a, const Event *b) noexcept nogil:
    return a.time < b.time or (a.time == b.time and a.serial < b.serial)


cdef void after(Job *job, int64_t delay, int kind, int who, int64_t timer) noexcept nogil:
    """Add an event in ``delay`` picoseconds."""
    cdef int at = job.n_events, parent
    cdef Event event
    cdef Event *larger
    if delay > LONGEST - job.now:
        job.stuck = 1
        return
    if at == job.room:  # outdated timers stay until their time
        larger = <Event *>realloc(job.heap, 2 * job.room * sizeof(Event))
        if not larger:
            job.stuck = 1
            return
        job.heap = larger
        job.room *= 2
    event.time, event.serial, event.kind, event.who, event.timer = job.now + delay, job.serial, kind, who, timer
    job.serial += 1
    job.n_events += 1
    while at:
        parent = (at - 1) // 2
        if not before(&event, &job.heap[parent]):
            break
        job.heap[at] = job.heap[parent]
        at = parent
    job.heap[at] = event


cdef Event first(Job *job) noexcept nogil:
    """Remove the next event from the heap."""
    cdef Event event = job.heap[0], last
    cdef int at = 0, child
    job.n_events -= 1
    last = job.heap[job.n_events]
    while True:
        child = 2 * at + 1
        if child >= job.n_events:
            break
        if child + 1 < job.n_events and before(&job.heap[child + 1], &job.heap[child]):
            child += 1
        if not before(&job.heap[child], &last):
            break
        job.heap[at] = job.heap[child]
        at = child
    job.heap[at] = last
    return event


cdef int stall(Stall *stalls, int count, int reason, int64_t ps) noexcept nogil:
    """Add time to a reason; reasons are in the order of their first use. Returns their number."""
    cdef int at
    for at in range(count):
        if stalls[at].reason == reason:
            stalls[at].ps += ps
            return count
    stalls[count].reason, stalls[count].ps = reason, ps
    return count + 1


cdef void stall_engine(Job *job, int number, int reason, int64_t ps) noexcept nogil:
    cdef Engine *engine = &job.engines[number]
    engine.n_stalls = stall(&job.stalls[number * (job.n_engines + REASONS)], engine.n_stalls, reason, ps)


# ------------------------------------------------------------------------------------------------------------- links


cdef void flow(Job *job, Link *link) noexcept nogil:
    """Subtract what has flowed since the last change."""
    cdef int64_t elapsed = job.now - link.updated
    cdef int at
    if elapsed and link.count:
        link.busy += elapsed
        for at in range(link.count):
            link.transfers[at].left -= <wide>link.transfers[at].rate * elapsed
    link.updated = job.now


cdef void bound(Link *link, int begin, int end) noexcept nogil:
    """Share the port of each core among its transfers, lowest caps first."""
    cdef int at, other, others
    cdef int64_t left
    for at in range(begin, end):
        link.transfers[at].bound = -1
    for at in range(begin, end):
        if link.transfers[at].bound >= 0:
            continue
        if link.transfers[at].core == NOBODY:
            link.transfers[at].bound = link.transfers[at].cap
            continue
        left, others = link.left[link.transfers[at].core], 0
        for other in range(at, end):
            others += link.transfers[other].core == link.transfers[at].core
        for other in range(at, end):
            if link.transfers[other].core == link.transfers[at].core:
                link.transfers[other].bound = min(link.transfers[other].cap, left // others)
                left -= link.transfers[other].bound
                others -= 1


cdef void sort(Link *link, int begin, int end) noexcept nogil:
    """Order transfers by their bound, those of equal bounds as they are."""
    cdef int at, place
    cdef Transfer *transfer
    for at in range(begin, end):
        transfer = &link.transfers[at]
        place = at - begin
        while place and link.order[place - 1].bound > transfer.bound:
            link.order[place] = link.order[place - 1]
            place -= 1
        link.order[place] = transfer


cdef void share(Job *job, int number) noexcept nogil:
    """Set new rates, and a timer for the first transfer that will end at these rates."""
    cdef Link *link = &job.links[number]
    cdef int64_t left = link.capacity, soonest = -1, rate, delay
    cdef int at = 0, begin, end, count
    cdef Transfer *transfer
    if link.port:
        for at in range(job.n_cores):
            link.left[at] = link.port
        at = 0
    while at < link.count:
        begin = end = at
        while end < link.count and link.transfers[end].rank == link.transfers[at].rank:
            end += 1
        if link.port:
            bound(link, begin, end)
            sort(link, begin, end)
        count = end - at
        while at < end:
            transfer = link.order[at - begin] if link.port else &link.transfers[at]
            rate = left // count
            if transfer.bound < rate:
                rate = transfer.bound
            left -= rate
            count -= 1
            transfer.rate = rate
            if link.port and transfer.core != NOBODY:
                link.left[transfer.core] -= rate
            if rate or transfer.left <= 0:
                delay = ceil_div(transfer.left, rate) if transfer.left > 0 else 0
                if soonest < 0 or delay < soonest:
                    soonest = delay
            at += 1
    link.timer += 1
    if soonest >= 0:
        after(job, soonest, FLOWED, number, link.timer)


cdef void begin_transfer(
    Job *job, int number, int64_t size, int64_t cap, int who, int64_t rank, int core
) noexcept nogil:
    cdef Link *link = &job.links[number]
    cdef int at
    flow(job, link)
    link.serial += 1
    at = link.count
    link.count += 1
    while at and (
        link.transfers[at - 1].rank > rank or (link.transfers[at - 1].rank == rank and link.transfers[at - 1].cap > cap)
    ):
        link.transfers[at] = link.transfers[at - 1]
        at -= 1
    link.transfers[at].left, link.transfers[at].cap, link.transfers[at].serial = <wide>size * PS_PER_S, cap, link.serial
    link.transfers[at].rank, link.transfers[at].rate, link.transfers[at].who = rank, 0, who
    link.transfers[at].bound, link.transfers[at].core = cap, core
    share(job, number)


cdef void end_transfers(Job *job, int number, int64_t timer) noexcept nogil:
    cdef Link *link = &job.links[number]
    cdef int at, kept = 0, over = 0, place
    cdef Transfer transfer
    if timer != link.timer:
        return
    flow(job, link)
    for at in range(link.count):
        transfer = link.transfers[at]
        if transfer.left > 0:
            link.transfers[kept] = transfer
            kept += 1
            continue
        place = over
        while place and link.ended[place - 1].serial > transfer.serial:
            link.ended[place] = link.ended[place - 1]
            place -= 1
        link.ended[place] = transfer
        over += 1
    link.count = kept
    if kept:
        share(job, number)
    # Nothing that is notified here ends another transfer, so `ended` does not change.
    for at in range(over):
        if job.over:
            return
        if link.ended[at].who == FETCHER:
            fetched(job)
        else:
            finish(job, link.ended[at].who)


# ------------------------------------------------------------------------------------------------------------- banks


cdef void work(Job *job, int core) noexcept nogil:
    """Subtract the work done since the last change."""
    cdef Banks *banks = &job.banks[core]
    cdef int at
    for at in range(banks.n_works):
        job.engines[job.works[core * job.n_engines + at]].left -= <wide>(job.now - banks.updated) * banks.speed
    banks.updated = job.now


cdef void time_work(Job *job, int core, int who) noexcept nogil:
    cdef Engine *engine = &job.engines[who]
    engine.timer += 1
    after(job, ceil_div(engine.left, job.banks[core].speed), WORKED, who, engine.timer)


cdef bint adapt(Job *job, int core) noexcept nogil:
    """Set the current speed of all works. Returns whether it changed, and with it every end time."""
    cdef Banks *banks = &job.banks[core]
    cdef int64_t speed = WHOLE if banks.demand <= WHOLE else WHOLE * WHOLE // banks.demand
    cdef int at
    if speed == banks.speed:
        return False
    banks.speed = speed
    for at in range(banks.n_works):
        time_work(job, core, job.works[core * job.n_engines + at])
    return True


cdef void begin_work(Job *job, int who, const Step *step, int64_t duration) noexcept nogil:
    cdef Banks *banks = &job.banks[step.core]
    work(job, step.core)
    job.engines[who].left = <wide>duration * WHOLE
    job.engines[who].working = 1
    job.works[step.core * job.n_engines + banks.n_works] = who
    banks.n_works += 1
    banks.demand += step.share
    if not adapt(job, step.core):
        time_work(job, step.core, who)


cdef void end_work(Job *job, int who, int64_t timer) noexcept nogil:
    cdef Engine *engine = &job.engines[who]
    cdef Step *step
    cdef Banks *banks
    cdef int at, first
    # The timer of a work that has ended, which had the last number.
    if not engine.working or timer != engine.timer:
        return
    step = &job.steps[engine.running]
    banks = &job.banks[step.core]
    work(job, step.core)
    first = step.core * job.n_engines
    at = 0
    while job.works[first + at] != who:
        at += 1
    banks.n_works -= 1
    while at < banks.n_works:
        job.works[first + at] = job.works[first + at + 1]
        at += 1
    banks.demand -= step.share
    engine.working = 0
    adapt(job, step.core)
    finish(job, who)


# ------------------------------------------------------------------------------------------------------------- units


cdef void offer(Job *job, int number, int64_t at) noexcept nogil:
    """Put a command into the queue of its unit."""
    cdef Engine *engine = &job.engines[job.steps[number].engine]
    job.steps[number].at = at
    if engine.tail >= 0:
        job.steps[engine.tail].next = number
    if not engine.queued:
        engine.head = number
    engine.tail = number
    engine.queued += 1
    take(job, job.steps[number].engine)


cdef void take(Job *job, int who) noexcept nogil:
    """Take the next command from the queue if the unit can."""
    cdef Engine *engine = &job.engines[who]
    cdef int64_t at
    if engine.step >= 0 or engine.asking or engine.flying == engine.depth or not engine.queued:
        return
    engine.step = engine.head
    engine.head = job.steps[engine.head].next
    engine.queued -= 1
    at = job.steps[engine.step].at
    if job.blocked == who:
        pump(job)
    if at > job.now:
        job.active += 1
        after(job, at - job.now, ARRIVED, who, 0)
    else:
        admit(job, who)


cdef void admit(Job *job, int who) noexcept nogil:
    cdef Engine *engine = &job.engines[who]
    if not engine.flying:
        engine.idle += job.now - engine.mark
        engine.mark = job.now
    engine.wait_at = 0
    proceed(job, who)


cdef void proceed(Job *job, int who) noexcept nogil:
    """Check the remaining waits, and start the step if all hold."""
    cdef Engine *engine = &job.engines[who]
    cdef Engine *other
    cdef Step *step = &job.steps[engine.step]
    cdef int64_t *wait
    cdef int number
    if step.n_waits:
        if engine.blocker != NOBODY:
            if not engine.flying:
                stall_engine(job, who, engine.blocker, job.now - engine.mark)
                engine.mark = job.now
            engine.blocker = NOBODY
        while engine.wait_at < step.n_waits:
            wait = &job.waits[2 * (step.first_wait + engine.wait_at)]
            number = <int>wait[0]
            other = &job.engines[number]
            if other.completed < wait[1]:
                engine.blocker = number
                job.waiters[number * job.n_engines + other.n_waiters].count = wait[1]
                job.waiters[number * job.n_engines + other.n_waiters].engine = who
                other.n_waiters += 1
                return
            engine.wait_at += 1
    job.active += 1
    if not engine.flying:
        engine.running = engine.step
    engine.step = -1
    engine.flying += 1
    step.ready = job.now + step.ahead
    if engine.depth > 1 and step.front:
        engine.asking = 1
        after(job, step.front, ASKED, who, 0)
    if engine.flying == 1:
        turn(job, who)
    take(job, who)


cdef void turn(Job *job, int who) noexcept nogil:
    """The first step in flight gets the unit: the rest of its overlappable time passes, then its own time."""
    cdef Engine *engine = &job.engines[who]
    cdef Step *step = &job.steps[engine.running]
    cdef int64_t left = step.fixed - step.ahead
    engine.begin = job.now
    if step.ready > job.now:
        left += step.ready - job.now
    if step.share:
        begin_work(job, who, step, left)
    else:
        after(job, left, PASSED if step.has_flow else OVER, who, 0)


cdef void finish(Job *job, int who) noexcept nogil:
    cdef Engine *engine = &job.engines[who]
    cdef Step *step = &job.steps[engine.running]
    cdef int64_t late, due = step.alone - step.ahead
    cdef int reason
    job.active -= 1
    job.order[job.done] = engine.running
    job.done += 1
    if step.ready > engine.begin:
        due += step.ready - engine.begin
    late = job.now - engine.begin - due
    if late:
        reason = step.link if EXCHANGE <= step.link < CODE else 0 if step.has_flow else 1
        stall_engine(job, who, job.n_engines + reason, late)
    engine.busy += due
    engine.mark = job.now
    step.begin, step.over = engine.begin, job.now
    complete(job, who)
    if not job.active:
        settle(job)


cdef void complete(Job *job, int who) noexcept nogil:
    cdef Engine *engine = &job.engines[who]
    cdef Waiter *waiters = &job.waiters[who * job.n_engines]
    cdef int at, kept = 0, ready = 0
    engine.completed += 1
    engine.begin = NEVER
    engine.flying -= 1
    job.outstanding -= 1
    if engine.flying:
        engine.running = job.steps[engine.running].next
        turn(job, who)
    for at in range(engine.n_waiters):
        if waiters[at].count <= engine.completed:
            job.ready[ready] = waiters[at].engine
            ready += 1
        else:
            waiters[kept] = waiters[at]
            kept += 1
    # Before they continue, because one may wait here again for a later command, after those that are left.
    engine.n_waiters = kept
    for at in range(ready):
        proceed(job, job.ready[at])
    take(job, who)
    if job.by_layer and not job.outstanding and job.dispatched < job.n_steps:
        pump(job)


cdef void settle(Job *job) noexcept nogil:
    """Nothing is running any more."""
    if job.halted and not job.outstanding:
        job.over = 1
    else:
        job.stuck = 1


# --------------------------------------------------------------------------------------------------------- sequencer


cdef bint has_room(Job *job) noexcept nogil:
    cdef int64_t used = job.steps[job.dispatched - 1].end if job.dispatched else 0
    return job.requested < job.total and job.requested - used // job.fetch_bytes * job.fetch_bytes <= job.fetch_bytes


cdef void request(Job *job, int64_t delay) noexcept nogil:
    if not job.fetching and job.requested < job.total:
        job.fetching = 1
        job.active += 1
        after(job, delay + job.latency, STREAMED, 0, 0)


cdef void stream(Job *job) noexcept nogil:
    cdef int64_t size = job.total - job.requested
    if size > job.fetch_bytes:
        size = job.fetch_bytes
    job.requested += size
    begin_transfer(job, job.code_link, size, job.fetch_rate, FETCHER, job.code_rank, NOBODY)


cdef void fetched(Job *job) noexcept nogil:
    job.reads += job.requested - job.fetched
    job.fetched = job.requested
    job.fetching = 0
    job.active -= 1
    if job.blocked == NOBODY:
        pump(job)
    if not job.fetching and has_room(job):
        job.fetching = 1
        job.active += 1
        stream(job)
    if not job.active:
        settle(job)


cdef void pump(Job *job) noexcept nogil:
    """Dispatch until the stream runs dry, a queue is full, or the job halts."""
    cdef Step *step
    cdef int64_t takes, at
    cdef int number
    job.blocked = NOBODY
    while job.dispatched < job.n_steps:
        number = job.dispatched
        step = &job.steps[number]
        if step.end > job.fetched:
            job.reason = job.n_engines
            return
        if step.engine != HALT and job.engines[step.engine].queued >= job.depth:
            job.blocked = job.reason = step.engine
            return
        takes = job.cycle
        if step.engine != HALT and step.op != job.last_op:
            if job.by_layer:
                job.reason = job.n_engines + 1
                if job.outstanding:
                    return
                if job.last < job.now:
                    job.n_stalls = stall(job.held, job.n_stalls, job.reason, job.now - job.last)
                    job.last = job.now
            takes += job.layer
        at = job.last + takes
        if at < job.now:
            job.n_stalls = stall(job.held, job.n_stalls, job.reason, job.now - at)
            at = job.now
        job.busy += takes
        job.last_op = step.op
        job.last = at
        job.dispatched += 1
        if step.engine == HALT:
            job.active += 1
            after(job, at - job.now, HALTED, 0, 0)
            return
        job.outstanding += 1
        offer(job, number, at)
        if job.requested < job.total and not job.fetching and has_room(job):
            request(job, at - job.now)


cdef void run(Job *job) noexcept nogil:
    cdef Event event
    cdef Step *step
    while job.n_events and not job.over and not job.stuck:
        event = first(job)
        job.now = event.time
        if event.kind == FLOWED:
            end_transfers(job, event.who, event.timer)
        elif event.kind == WORKED:
            end_work(job, event.who, event.timer)
        elif event.kind == OVER:
            finish(job, event.who)
        elif event.kind == PASSED:
            step = &job.steps[job.engines[event.who].running]
            begin_transfer(
                job, step.link, step.bus_bytes, step.rate, event.who, step.rank if job.by_need else 0, step.core
            )
        elif event.kind == ARRIVED:
            job.active -= 1
            admit(job, event.who)
            if not job.active:
                settle(job)
        elif event.kind == STREAMED:
            stream(job)
        elif event.kind == ASKED:
            job.engines[event.who].asking = 0
            take(job, event.who)
        else:
            job.active -= 1
            job.halted = 1
            if not job.active:
                settle(job)


cdef int check_range(const Step *step) except -1:
    """Raise OverflowError for a step whose times do not fit into machine integers."""
    cdef bint narrow = sizeof(wide) == sizeof(int64_t)
    if step.fixed > LONGEST or (
        narrow and (step.fixed > LONGEST // WHOLE or step.bus_bytes > LONGEST // PS_PER_S)
    ):
        raise OverflowError
    return 0


cdef int fill(Job *job, object steps) except -1:
    """Copy the steps. Returns the number of their waits."""
    cdef Step *step
    cdef int number, waits = 0
    for number in range(job.n_steps):
        each = steps[number]
        charge = each.charge
        step = &job.steps[number]
        step.engine, step.core, step.op, step.end, step.rank = each.engine, each.core, each.op, each.end, each.rank
        step.fixed, step.alone, step.share = charge.fixed_ps, charge.alone_ps, charge.share
        step.ahead, step.front = charge.ahead_ps, charge.front_ps
        step.bus_bytes, step.rate, step.link = charge.bus_bytes, charge.rate, charge.link
        step.has_flow = step.bus_bytes != 0
        if not 0 <= step.link < LINKS:
            raise ValueError("a step's bytes flow over no link that there is")
        check_range(step)
        step.first_wait, step.n_waits = waits, len(each.waits)
        waits += step.n_waits
    return waits


@cython.final
@cython.auto_pickle(False)
cdef class TimingRun:
    """The result of a job. Times in ps, engines by number.

    ``length_ps``: from the first fetch to the end. ``order``: steps in the order in which they ended. ``begins``,
    ``ends``: of each step, by number. ``units``: (busy, idle, mark, completed, stalls) of each engine, idle up to
    ``mark``. ``sequencer``: (busy, last dispatch, stalls, fetched bytes). Stalls: (reason, ps), where reasons are the
    engines, then DRAM (for the sequencer: fetching), SRAM, the exchange between cores, and L2. ``link_busy_ps``: of the
    link to DRAM.
    """

    cdef readonly int64_t length_ps, link_busy_ps
    cdef readonly list order, begins, ends, units
    cdef readonly tuple sequencer


cdef list listed(const Stall *stalls, int count):
    return [(stalls[at].reason, stalls[at].ps) for at in range(count)]


cdef TimingRun told(Job *job):
    cdef TimingRun course = TimingRun()
    cdef Engine *engine
    cdef int at
    course.length_ps, course.link_busy_ps = job.now, job.links[0].busy
    course.order = [job.order[at] for at in range(job.done)]
    course.begins = [job.steps[at].begin for at in range(job.n_steps)]
    course.ends = [job.steps[at].over for at in range(job.n_steps)]
    course.units = []
    for at in range(job.n_engines):
        engine = &job.engines[at]
        stalls = listed(&job.stalls[at * (job.n_engines + REASONS)], engine.n_stalls)
        course.units.append((engine.busy, engine.idle, engine.mark, engine.completed, stalls))
    course.sequencer = job.busy, job.last, listed(job.held, job.n_stalls), job.fetched
    return course


cdef int begin(Job *job, int steps, int engines, int cores) except -1:
    """Allocate a job at time 0. ``end`` must be called even if this fails."""
    cdef int at
    memset(job, 0, sizeof(Job))
    job.n_steps, job.n_engines, job.n_cores, job.room = steps, engines, cores, 64
    job.steps = <Step *>calloc(steps + 1, sizeof(Step))
    job.engines = <Engine *>calloc(engines + 1, sizeof(Engine))
    job.waiters = <Waiter *>calloc(engines * engines + 1, sizeof(Waiter))
    job.stalls = <Stall *>calloc(engines * (engines + REASONS) + 1, sizeof(Stall))
    job.held = <Stall *>calloc(engines + REASONS, sizeof(Stall))
    job.banks = <Banks *>calloc(cores + 1, sizeof(Banks))
    job.works = <int *>calloc(cores * engines + 1, sizeof(int))
    job.order = <int *>calloc(steps + 1, sizeof(int))
    job.ready = <int *>calloc(engines + 1, sizeof(int))
    job.heap = <Event *>calloc(job.room, sizeof(Event))
    for at in range(LINKS):
        job.links[at].transfers = <Transfer *>calloc(engines + 2, sizeof(Transfer))
        job.links[at].ended = <Transfer *>calloc(engines + 2, sizeof(Transfer))
        job.links[at].order = <Transfer **>calloc(engines + 2, sizeof(Transfer *))
        job.links[at].left = <int64_t *>calloc(cores + 1, sizeof(int64_t))
        if not (job.links[at].transfers and job.links[at].ended and job.links[at].order and job.links[at].left):
            raise MemoryError
    if not (job.steps and job.engines and job.waiters and job.stalls and job.held and job.banks and job.works
            and job.order and job.ready and job.heap):
        raise MemoryError
    for at in range(cores):
        job.banks[at].speed = WHOLE
    for at in range(engines):
        job.engines[at].step, job.engines[at].blocker, job.engines[at].begin = -1, NOBODY, NEVER
        job.engines[at].depth, job.engines[at].tail = 1, -1
    job.blocked, job.reason = NOBODY, engines
    return 0


cdef void end(Job *job) noexcept:
    """Free the memory."""
    cdef int at
    free(job.steps)
    free(job.waits)
    free(job.engines)
    free(job.waiters)
    free(job.stalls)
    free(job.held)
    free(job.banks)
    free(job.works)
    free(job.order)
    free(job.ready)
    free(job.heap)
    for at in range(LINKS):
        free(job.links[at].transfers)
        free(job.links[at].ended)
        free(job.links[at].order)
        free(job.links[at].left)


cdef void go(Job *job) noexcept nogil:
    """Fetch and dispatch to the end."""
    job.total = job.steps[job.n_steps - 1].end if job.n_steps else 0
    request(job, 0)
    run(job)


def timing_run(
    steps, depths, int cores, int64_t lead_ps, int64_t cycle_ps, int64_t layer_ps, bint by_layer, int64_t depth,
    int64_t latency_ps, int64_t fetch_rate, int64_t fetch_bytes, capacities, ports, int code_rank, bint by_need,
    int64_t no_op, bint code_apart,
):
    """Run a job whose first fetch starts now, ``lead_ps`` after the job was taken.

    Returns None for a job that never ends, or whose numbers are too large for machine integers. ``steps``:
    :class:`npusim.sim.steps.Step` objects, the last of which halts. ``depths``: for each engine, how many commands it
    may run at once. ``capacities``: of the links, by port; ``ports``: of one core at them, 0 = no limit.
    ``code_apart``: commands have their own link. ``by_layer``:
    a layer begins when all commands of the previous one have ended, ``layer_ps`` later.
    """
    cdef Job job
    cdef int waits, at, number, engines = len(depths)
    if cycle_ps < 0 or len(capacities) != LINKS or min(capacities) < 1 or len(ports) != LINKS or min(ports) < 0:
        raise ValueError("a machine has a clock and a memory")
    try:
        begin(&job, len(steps), engines, cores)
        job.by_need = by_need
        try:
            waits = fill(&job, steps)
        except OverflowError:
            return None
        job.waits = <int64_t *>calloc(2 * waits + 2, sizeof(int64_t))
        if not job.waits:
            raise MemoryError
        at = 0
        for each in steps:
            if not -1 <= <int>each.engine < engines or not 0 <= <int>each.core < cores:
                raise ValueError("a step is for no unit that there is")
            for number, count in each.waits:
                if not 0 <= number < engines:
                    raise ValueError("a step waits for no unit that there is")
                job.waits[2 * at] = number
                job.waits[2 * at + 1] = count
                at += 1
        for at in range(LINKS):
            job.links[at].capacity, job.links[at].port = capacities[at], ports[at]
        job.code_link = CODE if code_apart else 0
        for at in range(engines):
            job.engines[at].mark, job.engines[at].depth = -lead_ps, depths[at]
        job.last, job.last_op = -lead_ps, no_op
        job.latency, job.fetch_rate, job.fetch_bytes = latency_ps, fetch_rate, fetch_bytes
        job.code_rank = code_rank if by_need else 0
        job.cycle, job.layer, job.by_layer, job.depth = cycle_ps, layer_ps, by_layer, depth
        with nogil:
            go(&job)
        return told(&job) if job.over else None
    finally:
        end(&job)


# ---------------------------------------------------------------------------------------------------------- forecast


cdef int fill_commands(Job *job, commands, Remembered charges, dict numbers) except -1:
    """Copy the commands except those of the sequencer, and append a halt. Returns the number of their waits."""
    cdef Step *step
    cdef int64_t *grown
    cdef int64_t total = 0
    cdef int waits = 0, room = 0, at = 0, unit
    cdef tuple waited
    cdef Sizes sizes = Sizes()
    for command in commands:
        instruction, waited, unit = command.instruction, command.waits, command.unit
        total += HEADER + len(waited) * WAIT + sizes.of(instruction)
        if unit == CONTROL:
            continue
        if at % POLL_EVERY == 0:
            poll()
        step = &job.steps[at]
        at += 1
        step.engine = numbers[<int>command.core << CORE_SHIFT | unit]
        step.fixed, step.bus_bytes, step.rate, step.ahead, step.front, step.link, step.share = (
            <tuple>charges.of(asked(instruction))
        )
        step.core, step.op = command.core, command.op
        if not 0 <= step.link < LINKS:
            raise ValueError("bytes flow over no link that there is")
        check_range(step)
        step.has_flow = step.bus_bytes != 0
        step.end, step.first_wait = total, waits
        if waits + len(waited) > room:
            room = 2 * room + <int>len(waited) + 64
            grown = <int64_t *>realloc(job.waits, 2 * room * sizeof(int64_t))
            if not grown:
                raise MemoryError
            job.waits = grown
        for core, other, count in waited:
            if count:
                job.waits[2 * waits] = numbers[<int>core << CORE_SHIFT | <int>other]
                job.waits[2 * waits + 1] = count
                waits += 1
        step.n_waits = waits - step.first_wait
    job.n_steps = at + 1
    job.steps[at].engine, job.steps[at].end = HALT, total
    return waits


cdef int rank(Job *job) except -1:
    """Rank transfers by the position of the first command that waits for the transfer, or for a later one on its
    unit."""
    cdef int at, wait, number, last = job.n_steps - 1
    cdef int64_t need
    cdef Step *step
    cdef int64_t *wanted = <int64_t *>calloc(last + 1, sizeof(int64_t))
    cdef int *places = <int *>calloc(last + 1, sizeof(int))
    cdef int *firsts = <int *>calloc(job.n_engines + 1, sizeof(int))
    cdef int *counts = <int *>calloc(job.n_engines + 1, sizeof(int))
    try:
        if not (wanted and places and firsts and counts):
            raise MemoryError
        # The steps of each engine, one engine after another.
        for at in range(last):
            firsts[job.steps[at].engine + 1] += 1
            wanted[at] = last
        for number in range(job.n_engines):
            firsts[number + 1] += firsts[number]
        for at in range(last):
            step = &job.steps[at]
            for wait in range(step.first_wait, step.first_wait + step.n_waits):
                number = <int>job.waits[2 * wait]
                if job.waits[2 * wait + 1] > counts[number]:
                    raise IndexError("a command waits for one that comes later")
                number = firsts[number] + <int>job.waits[2 * wait + 1] - 1
                if wanted[number] > at:
                    wanted[number] = at
            places[firsts[step.engine] + counts[step.engine]] = at
            counts[step.engine] += 1
        for number in range(job.n_engines):
            need = last
            for at in range(firsts[number + 1] - 1, firsts[number] - 1, -1):
                if wanted[at] < need:
                    need = wanted[at]
                job.steps[places[at]].rank = need
    finally:
        free(wanted)
        free(places)
        free(firsts)
        free(counts)
    return 0


def forecast(
    commands, charge, int64_t cycle_ps, int64_t depth, int64_t latency_ps, int64_t fetch_rate, int64_t fetch_bytes,
    capacities, ports, bint by_need, depth_of, bint code_apart, bint by_layer, int64_t launch_ps,
):
    """Picoseconds until the last command ends; 2^62 - 1 if that is later, or never happens.

    ``charge(work)``: (fixed ps, bytes that then flow, maximum bytes per second, part of the fixed ps that may overlap
    with older commands, part of that which is exclusive, link, share of the core's SRAM banks). ``capacities``: bytes
    per second of each link, ``ports``: of one core at them, 0 = no limit. ``depth_of(unit)``: how many commands a unit
    may run at once. ``code_apart``: commands have their own link. ``by_layer``: a layer begins when all commands of the
    previous one have ended, ``launch_ps`` later.
    """
    cdef Job job
    cdef dict numbers = {}
    cdef int at, key, cores = 1
    cdef int64_t last = 0
    for command in commands:
        if <int>command.core >= cores:
            cores = <int>command.core + 1
        numbers.setdefault(<int>command.core << CORE_SHIFT | <int>command.unit, len(numbers))
    try:
        begin(&job, len(commands) + 1, len(numbers), cores)
        try:
            fill_commands(&job, commands, Remembered(charge), numbers)
        except OverflowError:
            return LONGEST
        for key, at in numbers.items():
            job.engines[at].depth = depth_of(key & (1 << CORE_SHIFT) - 1)
        job.by_need = by_need
        if by_need:
            rank(&job)
            job.code_rank = -1
        for at in range(LINKS):
            job.links[at].capacity, job.links[at].port = capacities[at], ports[at]
        job.code_link = CODE if code_apart else 0
        job.cycle, job.depth, job.latency = cycle_ps, depth, latency_ps
        job.fetch_rate, job.fetch_bytes = fetch_rate, fetch_bytes
        job.last_op, job.by_layer, job.layer = -1, by_layer, launch_ps
        with nogil:
            go(&job)
        if not job.over:
            return LONGEST
        for at in range(job.n_steps - 1):
            last = max(last, job.steps[at].over)
        return last
    finally:
        end(&job)
