"""What a course is gone through with, shared by jobs (_course.pyx) and forecasts (_stream.pyx)."""

from libc.stdint cimport int64_t

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
    REASONS = 4  # to be stalled, beside the engines: DRAM, SRAM, the exchange between cores, L2

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
    # what comes of it
    int64_t at
    int64_t ready
    int64_t begin
    int64_t over
    int next  # of the same engine

cdef struct Engine:
    int step
    int depth
    int asking
    int flying  # so many have begun and are not over,
    int running  # the first of them
    int head  # of its queue
    int tail  # the last command that was put there, over or not
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
    # its work at the banks
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
    int who

cdef struct Link:
    int64_t capacity
    int64_t busy
    int64_t updated
    int64_t serial
    int64_t timer
    int count
    Transfer *transfers
    Transfer *ended

cdef struct Job:
    int64_t now
    int64_t serial
    int64_t started
    int n_steps
    int n_engines
    int n_cores
    int by_need
    Step *steps
    int64_t *waits  # (engine, count) each
    Engine *engines
    Waiter *waiters  # so many of each engine as there are engines
    Stall *stalls  # likewise, and REASONS more
    Banks *banks
    int *works  # engines that work at the banks of a core, in the order in which they began
    Link links[LINKS]
    int code_link
    Event *heap
    int n_events
    int room
    int *order
    int *ready  # who goes on now
    int done
    int active
    int outstanding
    int over
    int stuck
    # the sequencer
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
    int64_t depth


cdef int begin(Job *job, int steps, int engines, int cores) except -1
cdef void end(Job *job) noexcept
cdef void go(Job *job) noexcept nogil
cdef int check_range(const Step *step) except -1
