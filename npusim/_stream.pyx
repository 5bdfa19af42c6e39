"""Loops over the commands of a stream that are gone through once for a program: what they are, and what they take.

The forecast is a timing-only run without what ``npusim.compiler.forecast`` leaves out. Its events are those of
``_course.pyx``.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, realloc

from npusim._course cimport CODE, HALT, LINKS, Job, Step, begin, check_range, end, go

from npusim.isa.base import HEADER_BYTES, WAIT_BYTES, Unit
from npusim.polling import poll

cdef int64_t LONGEST = 0x3FFF_FFFF_FFFF_FFFF
cdef int CONTROL = int(Unit.CONTROL)
cdef int64_t HEADER = HEADER_BYTES, WAIT = WAIT_BYTES

cdef enum:
    CORE_SHIFT = 8
    POLL_EVERY = 4096  # commands


cdef object asked(instruction):
    """What an instruction asks for, which most have said before."""
    said = getattr(instruction, "_said", None)
    if said is None:
        said = instruction._said = instruction.work()
    return said


cdef class Sizes:
    """Bytes of instructions in the stream, without their waits and headers."""

    def __init__(self):
        self.by_kind = {}

    cdef int64_t of(self, instruction) except -1:
        cdef object kind = type(instruction)
        size = self.by_kind.get(kind)
        if size is None:  # -1: each has a size of its own
            size = self.by_kind[kind] = instruction.encoded_bytes() if kind.tail is None else -1
        return <int64_t>instruction.encoded_bytes() if <int64_t>size < 0 else <int64_t>size


cdef class Remembered:
    """What a function says of works, asked once for each."""

    cdef object ask
    cdef dict by_id, by_work

    def __init__(self, ask):
        self.ask, self.by_id, self.by_work = ask, {}, {}

    cdef object of(self, work):
        """Of a work that lives as long as this."""
        # Instructions of one shape mostly have the very same one, which is found without being compared.
        cdef size_t key = <size_t><void *>work
        known = self.by_id.get(key)
        if known is None:
            known = self.by_work.get(work)
            if known is None:
                known = self.by_work[work] = self.ask(work)
            self.by_id[key] = known
        return known


def encode(commands):
    """The bytes of commands, and where each of them ends. Raises what their ``to_bytes`` raises, which says what the
    bytes are."""
    cdef list parts = [], ends = []
    cdef dict bodies = {}
    cdef unsigned char head[12 + 8 * 255]
    cdef tuple waited
    cdef bytes body
    cdef int64_t total = 0, length, unit, core, op, count
    cdef size_t key
    cdef unsigned char *at
    cdef bint fits
    for command in commands:
        instruction, waited = command.instruction, command.waits
        if len(ends) % POLL_EVERY == 0:
            poll()
        # Tiles that take turns in the same slots have the very same instruction.
        key = <size_t><void *>instruction
        known = bodies.get(key)
        if known is None:
            known = bodies[key] = instruction.to_bytes()
        body = <bytes>known
        unit, core, op, length = command.unit, command.core, command.op, 12 + 8 * len(waited) + len(body)
        fits = len(waited) <= 255 and length < 1 << 16 and 0 <= unit < 256 and 0 <= core < 256 and 0 <= op < 1 << 32
        if fits:
            head[0], head[1], head[2], head[3] = instruction.opcode, unit, core, len(waited)
            put(head + 4, length)
            put(head + 8, op)
            at = head + 12
            for of, other, completed in waited:
                core, unit, count = of, other, completed
                fits = fits and 0 <= unit < 256 and 0 <= core < 256 and 0 <= count < 1 << 32
                put(at, core | unit << 8)
                put(at + 4, count)
                at += 8
        if fits:
            parts.append((<char *>head)[: 12 + 8 * len(waited)])
            parts.append(body)
            total += length
        else:
            body = command.to_bytes()
            parts.append(body)
            total += len(body)
        ends.append(total)
    return b"".join(parts), ends


cdef inline void put(unsigned char *at, int64_t value) noexcept:
    """Four bytes, the lowest first."""
    at[0], at[1], at[2], at[3] = value & 255, value >> 8 & 255, value >> 16 & 255, value >> 24 & 255


def tally(commands):
    """How often there is a command of the same operator, core, unit, kind of instruction, work and targets: a list of
    (one of them, how many), in the order in which each came first."""
    cdef dict found = {}
    cdef list entry
    cdef int64_t seen = 0
    for command in commands:
        if seen % POLL_EVERY == 0:
            poll()
        seen += 1
        instruction = command.instruction
        work = asked(instruction)
        key = (
            command.op, command.core, command.unit, type(instruction), <size_t><void *>work,
            getattr(instruction, "cores", None),
        )
        entry = found.get(key)
        if entry is None:
            found[key] = [command, 1]
        else:
            entry[1] = <object>entry[1] + 1
    return [(command, times) for command, times in found.values()]


cdef int fill(Job *job, commands, Remembered charges, dict numbers) except -1:
    """Take over commands but those of the sequencer, and let the last step halt; how many waits they have."""
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
        step.core = command.core
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
    """Rank transfers by where the first command stands that waits for one, or for one behind it on its unit."""
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
        # The steps of each engine, one engine after the other.
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
    capacities, bint by_need, depth_of, bint code_apart,
):
    """Picoseconds until the last of some commands is over; 2^62 - 1 for those that take longer, or never end.

    ``charge(work)``: (fixed ps, bytes that then flow, bytes a second at the most, what of the fixed ps may pass ahead,
    what of that is one command's alone, over what they flow, which part of the banks of its core it takes).
    ``capacities``: bytes a second that transfers share, by what they flow over. ``depth_of(unit)``: how many commands a
    unit may have begun at once; ``code_apart``: commands come by a link of their own.
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
            fill(&job, commands, Remembered(charge), numbers)
        except OverflowError:
            return LONGEST
        for key, at in numbers.items():
            job.engines[at].depth = depth_of(key & (1 << CORE_SHIFT) - 1)
        job.by_need = by_need
        if by_need:
            rank(&job)
            job.code_rank = -1
        for at in range(LINKS):
            job.links[at].capacity = capacities[at]
        job.code_link = CODE if code_apart else 0
        job.cycle, job.depth, job.latency = cycle_ps, depth, latency_ps
        job.fetch_rate, job.fetch_bytes = fetch_rate, fetch_bytes
        with nogil:
            go(&job)
        if not job.over:
            return LONGEST
        for at in range(job.n_steps - 1):
            last = max(last, job.steps[at].over)
        return last
    finally:
        end(&job)


def steps(commands, ends, dict index, charge, make):
    """What commands are to the units of a device: a list of ``make(engine, waits, charge, begin, end, core, operator,
    instruction)``.

    ``ends``: where each command ends in the stream; ``index``: engines by (core, unit), of which commands of the
    sequencer are none; ``charge(work)``: what is charged. Waits are of engines.
    """
    cdef list made = [], waits
    cdef Remembered charges = Remembered(charge)
    cdef dict engines = {}
    cdef tuple waited
    start = 0
    for (core, unit), number in index.items():
        engines[<int>core << CORE_SHIFT | <int>unit] = number
    for command, stop in zip(commands, ends, strict=True):
        instruction, unit, core = command.instruction, command.unit, command.core
        price = charges.of(asked(instruction))
        if <int>unit == CONTROL:
            made.append(make(HALT, (), price, start, stop, 0, command.op, instruction))
        else:
            waited = command.waits
            waits = []
            for of, other, count in waited:
                if count:
                    waits.append((engines[<int>of << CORE_SHIFT | <int>other], count))
            made.append(make(
                engines[<int>core << CORE_SHIFT | <int>unit], tuple(waits), price, start, stop, core, command.op,
                instruction,
            ))
        start = stop
    return made
