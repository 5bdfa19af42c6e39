"""The scheduler's records: the uses of all bytes, the waits of a command, and its position in the stream.

``npusim.compiler.codegen.issue`` decides the order. This module is the part that runs for each instruction.
"""

from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport PyObject
from libc.string cimport memmove

from npusim.isa._stream cimport Sizes, asked
from npusim.compiler._views cimport Buffer, View

from npusim.isa.base import HEADER_BYTES, WAIT_BYTES, Command, Space, Unit, Wait, acc, sram
from npusim.program import CONSTANTS

cdef object ACC = Space.ACC
cdef int SRAM = int(Space.SRAM)
cdef int FIRST_CHANNEL = int(Unit.DMA)
cdef int OF_CONSTANTS = CONSTANTS  # the region; ``Buffer.is_constant``
cdef long long HEADER = HEADER_BYTES, WAIT = WAIT_BYTES

cdef long long SECOND = 1_000_000_000_000

cdef enum:
    CORE_SHIFT = 8
    NOBODY = -1


cdef class Slot:
    """A place in one core's SRAM or accumulators, with its last uses."""

    cdef readonly int core
    cdef readonly object space
    cdef readonly long long start, nbytes
    cdef readonly object address
    cdef int room
    cdef bint active
    cdef dict writers, readers

    def __init__(self, int core, space, long long start, long long nbytes, bint active=False):
        """``active``: no other slot or buffer has used its bytes."""
        self.core, self.space, self.start, self.nbytes, self.active = core, space, start, nbytes, active
        self.address = acc(start) if space is ACC else sram(start)
        self.room = core << CORE_SHIFT | <int>space
        self.writers, self.readers = {}, {}

    def __repr__(self):
        return f"Slot(core={self.core}, space={self.space!r}, start={self.start}, nbytes={self.nbytes})"


cdef class Item:
    """One instruction to issue, with what it reads and writes."""

    cdef readonly object instruction
    cdef readonly tuple reads, writes
    cdef readonly int giver

    def __init__(self, instruction, tuple reads, tuple writes, int giver=NOBODY):
        """``giver``: the core that sends its own bytes to other cores."""
        self.instruction, self.reads, self.writes, self.giver = instruction, reads, writes, giver

    def __repr__(self):
        return f"Item({self.instruction!r}, {self.reads!r}, {self.writes!r})"


cdef class Tile:
    """One tile: its loads may run while the previous step computes."""

    cdef public list loads, compute, stores

    def __init__(self, list loads=None, list compute=None, list stores=None):
        self.loads = [] if loads is None else loads
        self.compute = [] if compute is None else compute
        self.stores = [] if stores is None else stores

    def __repr__(self):
        return f"Tile({self.loads!r}, {self.compute!r}, {self.stores!r})"


# Fences: the number of commands of each unit that must be complete, by unit key (core << CORE_SHIFT | unit).

cdef inline int raise_fence(dict fences, object key, long long count) except -1:
    known = fences.get(key)
    if known is None or <long long>known < count:
        fences[key] = count
    return 0


cpdef int raise_fences(dict fences, dict others) except -1:
    """Raise each fence to at least that of others, so that waiting for the first also waits for these."""
    cdef Py_ssize_t at = 0
    cdef PyObject *key
    cdef PyObject *count
    if not others:
        return 0
    if not fences:
        fences.update(others)
        return 0
    while PyDict_Next(others, &at, &key, &count):
        known = fences.get(<object>key)
        if known is None or <long long>known < <long long><object>count:
            fences[<object>key] = <object>count
    return 0


cdef enum:
    PARTS = 32
    # Uses of a buffer by one unit for one operator that are recorded separately. With fewer, a reader of the first rows
    # of a value would wait for more of it than it needs.


cdef struct Use:
    long long low, high, count, op
    int key, tiles


cdef class Uses:
    """The reads or the writes of a buffer, newest last.

    The last ``run`` entries belong to one unit and one operator, each covering ``tiles`` neighbouring tiles.
    """

    cdef Use *recent
    cdef int most, first, end, room, run, tiles
    cdef dict older

    def __cinit__(self, int most):
        self.most, self.older = most, {}

    def __dealloc__(self):
        PyMem_Free(self.recent)

    cdef int add(self, long long low, long long high, int key, long long count, long long op) except -1:
        cdef Use *last
        cdef Use *grown
        cdef bint alike = False
        if self.end > self.first:
            last = &self.recent[self.end - 1]
            alike = last.key == key and last.op == op and low <= last.high and last.low <= high
            # Keep a few entries instead of thousands. An entry has the latest count of its uses: a wait may be longer
            # than necessary, never shorter.
            if alike and (last.tiles < self.tiles or (last.low <= low and high <= last.high)):
                self.join(last, low, high, count, 1)
                return 0
            if alike and low < last.low:
                self.supersede(low, high)
        if not alike:
            self.run, self.tiles = 0, 1
        if self.end == self.room:
            if self.first >= self.most:
                memmove(self.recent, self.recent + self.first, (self.end - self.first) * sizeof(Use))
                self.end -= self.first
                self.first = 0
            else:
                grown = <Use *>PyMem_Realloc(self.recent, max(4, 2 * self.room) * sizeof(Use))
                if not grown:
                    raise MemoryError
                self.recent, self.room = grown, max(4, 2 * self.room)
        self.recent[self.end] = Use(low, high, count, op, key, 1)
        self.end += 1
        self.run += 1
        if self.run == PARTS:
            self.halve()
        if self.end - self.first > self.most:
            last = &self.recent[self.first]
            self.first += 1
            raise_fence(self.older, last.key, last.count)
        return 0

    cdef void join(self, Use *one, long long low, long long high, long long count, int tiles) noexcept:
        one.low, one.high, one.count = min(one.low, low), max(one.high, high), count
        one.tiles += tiles

    cdef void supersede(self, long long low, long long high) noexcept:
        """Replace uses of the same bytes within the run: a wait for the new use includes the old ones.

        So a rolling buffer that is written many times never has more entries than positions.
        """
        cdef int at, begin = max(self.first, self.end - self.run), kept = begin
        cdef Use *old
        for at in range(begin, self.end):
            old = &self.recent[at]
            if low <= old.low and old.high <= high:
                continue
            if old.low < low < old.high <= high:
                old.high = low
            elif low <= old.low < high < old.high:
                old.low = high
            self.recent[kept] = self.recent[at]
            kept += 1
        self.run -= self.end - kept
        self.end = kept

    cdef void halve(self) noexcept:
        """Merge neighbouring pairs of uses in the run; later uses are merged in the same way."""
        cdef int at, begin = max(self.first, self.end - PARTS)
        cdef Use *other
        for at in range(begin, self.end - 1, 2):
            other = &self.recent[at + 1]
            self.recent[begin + (at - begin) // 2] = self.recent[at]
            self.join(&self.recent[begin + (at - begin) // 2], other.low, other.high, other.count, other.tiles)
        if (self.end - begin) % 2:
            self.recent[begin + (self.end - begin) // 2] = self.recent[self.end - 1]
        self.run = (self.end - begin + 1) // 2
        self.end = begin + self.run
        self.tiles *= 2

    cdef int raise_into(
        self, dict fences, long long low, long long high, long long but, int core=NOBODY
    ) except -1:
        """Raise fences to include all uses of these bytes.

        Excludes uses by the operator ``but`` (-1: none); if a core is given, only those by other cores for that
        operator.
        """
        cdef Use *use
        cdef int at
        raise_fences(fences, self.older)
        for at in range(self.first, self.end):
            use = &self.recent[at]
            if use.low < high and low < use.high and (
                but < 0 or use.op != but or (core != NOBODY and use.key >> CORE_SHIFT == core)
            ):
                raise_fence(fences, use.key, use.count)
        return 0

    cdef int raise_all(self, dict fences) except -1:
        cdef int at
        raise_fences(fences, self.older)
        for at in range(self.first, self.end):
            raise_fence(fences, self.recent[at].key, self.recent[at].count)
        return 0


cdef class History:
    """The reads and writes of one buffer, and the uses of its bytes before it was allocated."""

    cdef Uses reads, writes
    cdef dict before

    def __cinit__(self, int most):
        self.reads, self.writes, self.before = Uses(most), Uses(most), {}

    cdef dict summary(self):
        cdef dict fences = self.before.copy()
        self.reads.raise_all(fences)
        self.writes.raise_all(fences)
        return fences


cdef struct Place:
    # Bytes of a core's SRAM or accumulators.
    int room
    long long low, high


cdef class Occupant:
    """A slot or buffer that was the last to be allocated at its place in on-chip memory."""

    cdef Place place
    cdef object claimant


cdef inline bint overlaps(Place *one, Place *other) noexcept:
    return one.room == other.room and one.low < other.high and other.low < one.high


cdef bint find_place(object resource, Place *place) except -1:
    """Find the place of a slot, or of a view's whole buffer, in on-chip memory. Returns False if it is not there.

    The whole buffer counts, because the next one that takes its bytes waits for all of its uses.
    """
    cdef Slot slot
    if isinstance(resource, Slot):
        slot = <Slot>resource
        place.room, place.low, place.high = slot.room, slot.start, slot.start + slot.nbytes
        return True
    return find_home((<View?>resource).buffer, place)


cdef bint find_home(Buffer buffer, Place *place) except -1:
    if buffer.core is None:
        return False
    place.room, place.low = <int>buffer.core << CORE_SHIFT | SRAM, buffer.offset
    place.high = place.low + <long long>buffer.nbytes
    return True


cdef class Places:
    """A list of places in on-chip memory."""

    cdef Place *all
    cdef int count, room

    def __dealloc__(self):
        PyMem_Free(self.all)

    cdef int add(self, object resource) except -1:
        cdef Place *grown
        if self.count == self.room:
            grown = <Place *>PyMem_Realloc(self.all, max(8, 2 * self.room) * sizeof(Place))
            if not grown:
                raise MemoryError
            self.all, self.room = grown, max(8, 2 * self.room)
        self.count += find_place(resource, &self.all[self.count])
        return 0

    cdef bint touched(self, tuple resources) except -1:
        cdef Place place
        cdef int at
        for resource in resources:
            if find_place(resource, &place):
                for at in range(self.count):
                    if overlaps(&place, &self.all[at]):
                        return True
        return False

    cdef bint touched_by(self, list items) except -1:
        cdef Item item
        for item in items:
            if self.touched(item.reads) or self.touched(item.writes):
                return True
        return False


cdef int find_extent(View view, long long *low, long long *high) except -1:
    """As ``View.extent``."""
    cdef long long reach
    cdef tuple shape = view.shape, strides = view.strides
    cdef Py_ssize_t axis
    low[0] = view.offset
    high[0] = low[0] + <long long>view.dtype.itemsize
    for axis in range(len(shape)):
        reach = (<long long>shape[axis] - 1) * <long long>strides[axis]
        if reach < 0:
            low[0] += reach
        else:
            high[0] += reach
    return 0


cdef bint write_any(list items, set buffers) except -1:
    """Whether any item writes one of the buffers."""
    cdef Item item
    for item in items:
        for resource in item.writes:
            if not isinstance(resource, Slot) and (<View?>resource).buffer in buffers:
                return True
    return False


# Later times are clamped to this one. They decide nothing.
cdef long long FAR = 1 << 61


cdef class Done:
    """The end times of one unit's commands, in order. Entry 0, before all of them, is 0."""

    cdef long long *ends
    cdef Py_ssize_t count, room

    def __cinit__(self):
        self.ends = <long long *>PyMem_Realloc(NULL, 64 * sizeof(long long))
        if not self.ends:
            raise MemoryError
        self.ends[0], self.count, self.room = 0, 1, 64

    def __dealloc__(self):
        PyMem_Free(self.ends)

    cdef int add(self, long long end) except -1:
        cdef long long *grown
        if self.count == self.room:
            grown = <long long *>PyMem_Realloc(self.ends, 2 * self.room * sizeof(long long))
            if not grown:
                raise MemoryError
            self.ends, self.room = grown, 2 * self.room
        self.ends[self.count] = end
        self.count += 1
        return 0


cdef class ChannelClock:
    """The forecast end times, in picoseconds, of the commands of a stream, which are added in stream order.

    ``price(work)``: (picoseconds of a command; picoseconds of the DRAM for it, -1 if it does not use DRAM; the part of
    the first that may overlap with older commands of its unit, of which at most ``in_flight`` have started).
    ``bandwidth``: DRAM bytes per second. ``depth``: of a queue. ``cycle_ps``: minimum time between two commands.
    """

    cdef object price
    cdef dict done, by_id, by_work
    cdef Sizes sizes
    cdef long long bandwidth, depth, cycle, in_flight, dram, dispatched

    def __init__(self, price, long long bandwidth, long long depth, long long cycle_ps, long long in_flight):
        self.price, self.done, self.by_id, self.by_work, self.sizes = price, {}, {}, {}, Sizes()
        self.bandwidth, self.depth, self.cycle, self.in_flight = bandwidth, depth, cycle_ps, in_flight

    cdef Done of(self, key):
        done = self.done.get(key)
        if done is None:
            done = self.done[key] = Done()
        return <Done>done

    cdef long long free(self, key) except -1:
        """The time at which a unit has finished all of its commands."""
        cdef Done done = self.of(key)
        return done.ends[done.count - 1]

    cdef long long ready(self, dict waits) except -1:
        """The time at which units have completed the given numbers of commands."""
        cdef long long latest = 0
        cdef Done done
        for key, count in waits.items():
            if count:
                done = <Done>self.done[key]
                if not 0 < <Py_ssize_t>count < done.count:
                    raise IndexError(count)
                latest = max(latest, done.ends[<Py_ssize_t>count])
        return latest

    cdef tuple priced(self, work):
        cdef size_t place = <size_t><void *>work  # the object lives as long as its command
        known = self.by_id.get(place)
        if known is None:
            known = self.by_work.get(work)
            if known is None:
                known = self.by_work[work] = self.price(work)
            self.by_id[place] = known
        return <tuple>known

    cdef int add(self, instruction, key, Py_ssize_t waits, long long ready) except -1:
        """Add a command of a unit that may not start before ``ready``."""
        cdef Done done = self.of(key)
        cdef long long ps, dram_ps, ahead_ps, start, end, fetched, last = done.ends[done.count - 1]
        # A full queue blocks the stream until the unit takes another command, which delays all later commands.
        fetched = (HEADER + waits * WAIT + self.sizes.of(instruction)) * SECOND // self.bandwidth
        self.dram = min(self.dram + fetched, FAR)
        self.dispatched = min(self.dispatched + max(self.cycle, fetched), FAR)
        if done.count - 1 > self.depth:
            self.dispatched = max(self.dispatched, done.ends[done.count - 1 - self.depth])
        ps, dram_ps, ahead_ps = self.priced(asked(instruction))
        # It starts before older commands have ended, and finishes after them.
        start = max(done.ends[max(0, done.count - self.in_flight)] if ahead_ps else last, ready, self.dispatched)
        start = max(start, last - ahead_ps)
        end = start + min(ps, FAR)
        if dram_ps >= 0:
            self.dram = max(self.dram, start) + min(dram_ps, FAR)
            end = max(end, self.dram)
        done.add(min(end, FAR))
        return 0

    def forget_time(self):
        """Set the times of all commands so far to zero: most inferences skip them."""
        cdef Done done
        cdef Py_ssize_t at
        for each in self.done.values():
            done = <Done>each
            for at in range(done.count):
                done.ends[at] = 0
        self.dram = self.dispatched = 0


cdef class Issuer:
    """Issues items as one command stream, each with the waits that follow from what it reads and writes.

    ``pending``: for each core, its operator and step whose compute and stores have not been issued. ``alike``:
    operators of iterations of a loop, each with one of an earlier iteration: its loads take the same channels, so that
    iterations are alike in the stream.
    """

    cdef readonly list commands
    cdef readonly dict pending
    cdef dict issued, known, histories, occupants, waits, chosen
    cdef readonly dict alike
    cdef ChannelClock course
    cdef int store_channel, load_channels, recent
    cdef bint chooses
    cdef object features

    def __init__(self, int channels, ChannelClock course, bint chooses, int recent, features=None):
        """``course``: the clock of the channels (``npusim.compiler.codegen.channel_clock``), used if the issuer
        ``chooses`` among channels. ``recent``: uses of a buffer that are recorded separately. ``features``: the
        instruction type that has the first channel for itself, with constants on the second; None: all loads may use
        all channels."""
        self.features = features
        self.commands, self.pending = [], {}
        self.issued, self.known, self.histories, self.occupants, self.waits = {}, {}, {}, {}, {}
        self.chosen, self.alike = {}, {}
        self.course, self.chooses, self.recent = course, chooses, recent
        # If there are several channels, the last one is reserved for stores.
        self.store_channel, self.load_channels = FIRST_CHANNEL + channels - 1, max(1, channels - 1)

    def push(self, int core, op, Tile step):
        """Add a core's next step: issue its loads, then the pending compute."""
        cdef Item item
        self.flush_conflicts(step)
        # Commands leave the stream in order, and one whose unit has a full queue blocks all behind it. So loads precede
        # the compute of the previous step: after it, they could not start until it has left the stream.
        for item in step.loads:
            self.load((core,), op, item)
        self.flush(core)
        self.pending[core] = (op, step)

    def loads_are_late(self, int cores, int unit):
        """Whether loads are forecast to end later than the work of a unit, over all cores."""
        cdef int core, channel
        cdef long long loaded = 0, computed = 0
        for core in range(cores):
            computed = max(computed, self.course.free(core << CORE_SHIFT | unit))
            for channel in range(FIRST_CHANNEL, FIRST_CHANNEL + self.load_channels):
                loaded = max(loaded, self.course.free(core << CORE_SHIFT | channel))
        return loaded > computed

    cpdef flush_conflicts(self, Tile step):
        """Issue pending steps that conflict with a new step's loads, which otherwise go ahead of the pending compute.

        Steps of other cores with stores that the new step reads are issued too: nobody waits for a use that is not
        recorded.
        """
        cdef Item item
        cdef Tile pending
        cdef Places written
        cdef set read
        if not self.pending:
            return
        read, written = set(), Places()
        for items in (step.loads, step.compute, step.stores):
            for item in <list>items:
                for resource in item.reads:
                    if not isinstance(resource, Slot):
                        read.add((<View?>resource).buffer)
        for item in step.loads:
            for resource in item.writes:
                written.add(resource)
        for core in sorted(self.pending):
            pending = <Tile>(<tuple>self.pending[core])[1]
            if read and (write_any(pending.compute, read) or write_any(pending.stores, read)):
                self.flush(core)
            elif written.count and (written.touched_by(pending.compute) or written.touched_by(pending.stores)):
                self.flush(core)

    cpdef flush(self, int core):
        """Issue the pending step of a core."""
        cdef Item item
        cdef Tile step
        pending = self.pending.pop(core, None)
        if pending is None:
            return
        op, step = <tuple>pending
        for item in step.compute:
            self.put(core << CORE_SHIFT | <int>item.instruction.unit, op, item, self.needs(op, item))
        for item in step.stores:
            # A store waits for the compute before it. On a load channel it would delay the next tile.
            self.put(core << CORE_SHIFT | self.store_channel, op, item, self.needs(op, item))

    cdef int load_key(self, cores, long long ready, op) except -1:
        """The channel of a load that is ready at a given time."""
        cdef int key
        cdef list mine, before
        if self.load_channels == 1 and len(cores) == 1:
            return <int>cores[0] << CORE_SHIFT | FIRST_CHANNEL
        if not self.alike:
            return self.first_free(cores, ready)
        mine = self.chosen.setdefault(op, [])
        before = self.chosen.get(self.alike.get(op), [])
        key = <int>before[len(mine)] if len(mine) < len(before) else NOBODY
        if key == NOBODY or key >> CORE_SHIFT not in cores:
            key = self.first_free(cores, ready)
        mine.append(key)
        return key

    cdef int first_free(self, cores, long long ready) except -1:
        """The channel on which a load that is ready at a given time starts first."""
        cdef int channel, key
        # Among channels that are free in time, take the one that was busy longest: the others can start other loads
        # earlier.
        cdef long long free, begins, waits, least = -1, longest = 0
        cdef int found = 0
        for core in cores:
            for channel in range(FIRST_CHANNEL, FIRST_CHANNEL + self.load_channels):
                key = <int>core << CORE_SHIFT | channel
                free = self.course.free(key)
                begins, waits = max(free, ready), min(free, ready)
                if least < 0 or begins < least or (begins == least and waits > longest):
                    least, longest, found = begins, waits, key
        return found

    cdef int load(self, cores, op, Item item) except -1:
        cdef dict needs = self.needs(op, item)
        cdef int key = self.engine_of(item)
        ready = self.course.ready(needs) if self.chooses else 0
        self.put(<int>cores[0] << CORE_SHIFT | key if key else self.load_key(cores, ready, op), op, item, needs)
        return 0

    cdef int engine_of(self, Item item) except -1:
        """The only channel for a load; 0: any channel."""
        if self.features is None:
            return 0
        if isinstance(item.instruction, self.features):
            return FIRST_CHANNEL
        for resource in item.reads:
            if not isinstance(resource, Slot) and (<View?>resource).buffer.region == OF_CONSTANTS:
                return FIRST_CHANNEL + 1
        return 0

    def issue_together(self, op, loads, bint with_stores=False):
        """Issue (cores, load) pairs, each on a channel of one of its cores, without an order among them.

        ``with_stores``: on the channel of stores, so that later loads do not wait behind them.
        """
        cdef int key
        cdef Item item
        cdef dict needs = {}, fences = {}
        if len(loads) == 1 and not with_stores:
            ((cores, item),) = loads
            self.load(cores, op, item)
            return
        # First all waits, then the records: a command that reads what it writes must not wait for itself.
        for _, item in loads:
            raise_fences(needs, self.needs(op, item))
        ready = self.course.ready(needs) if self.chooses else 0
        for cores, item in loads:
            key = <int>cores[0] << CORE_SHIFT | self.store_channel if with_stores else self.load_key(cores, ready, op)
            fences.update(self.emit(key, op, item, needs))
        for resource in dict.fromkeys([resource for _, item in loads for resource in item.reads]):
            self.record(resource, fences, op, False)
        for resource in dict.fromkeys([resource for _, item in loads for resource in item.writes]):
            self.record(resource, fences, op, True)

    cdef int put(self, int key, op, Item item, dict needs) except -1:
        """Issue an item with its waits, and record what it uses."""
        cdef dict fences = self.emit(key, op, item, needs)
        # A resource that appears twice is recorded once: the fences belong to one command.
        for resource in item.reads:
            self.record(resource, fences, op, False)
        for resource in item.writes:
            self.record(resource, fences, op, True)
        return 0

    cdef dict emit(self, object key, op, Item item, dict needs):
        """Append a command to the stream. Returns the fences by which others wait for it."""
        cdef int unit = key
        cdef long long count = <long long>self.issued.get(key, 0) + 1
        self.issued[key] = count
        cdef tuple waits = self.prune(key, needs)
        self.commands.append(
            Command(unit >> CORE_SHIFT, unit & ((1 << CORE_SHIFT) - 1), op, waits, item.instruction)
        )
        if self.chooses:
            self.course.add(item.instruction, key, len(waits), self.course.ready(needs))
        return {key: count}

    cdef tuple prune(self, object key, dict needs):
        """The waits that a command needs.

        Omitted are those that an earlier command of the same unit already had, and the unit's own order: a unit starts
        a command when the previous one is complete. Transitive waits through other units are not removed: a redundant
        wait costs 8 bytes.
        """
        cdef dict known
        cdef list waits = []
        if not needs:
            return ()
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = {}
        for other in sorted(needs) if len(needs) > 1 else needs:
            if other == key:
                continue
            count = needs[other]
            before = known.get(other)
            if before is None or <long long>before < <long long>count:
                known[other] = count
                waits.append(self.wait(other, count))
        return tuple(waits)

    cdef object wait(self, object key, object count):
        """A wait object, shared by all commands that have it."""
        cdef dict waits = self.waits.get(key)
        if waits is None:
            waits = self.waits[key] = {}
        made = waits.get(count)
        if made is None:
            # What the constructor does, which is written in Python and slower.
            made = tuple.__new__(Wait, (<int>key >> CORE_SHIFT, <int>key & ((1 << CORE_SHIFT) - 1), count))
            waits[count] = made
        return made

    cpdef dict needs(self, op, Item item):
        """The fences of all commands that must have ended before an item starts."""
        cdef dict needs = {}
        cdef Slot slot
        cdef View view
        cdef long long low, high, own
        for resource in item.reads:
            if isinstance(resource, Slot):
                slot = <Slot>resource
                if not slot.active:
                    self.activate(slot)
                raise_fences(needs, slot.writers)
                continue
            view = <View?>resource
            if view.buffer.region != OF_CONSTANTS:
                # The driver writes constants before the job starts, and the verifier rejects commands that write them.
                find_extent(view, &low, &high)
                # A core sends what it has computed itself. What other cores send it meanwhile is at other bytes.
                own = <long long>op if item.giver != NOBODY and view.buffer.is_met else -1
                self.history(view.buffer).writes.raise_into(needs, low, high, own, item.giver)
        for resource in item.writes:
            if isinstance(resource, Slot):
                slot = <Slot>resource
                if not slot.active:
                    self.activate(slot)
                raise_fences(needs, slot.writers)
                raise_fences(needs, slot.readers)
            else:
                self.need_for_write(<View?>resource, op, needs, item.giver)
        return needs

    cdef int need_for_write(self, View view, long long op, dict needs, int giver) except -1:
        cdef long long low, high, own
        cdef int core = NOBODY
        cdef History history = self.history(view.buffer)
        # Only writers wait for uses from before the buffer was allocated: readers wait for a writer of these bytes.
        raise_fences(needs, history.before)
        # The stores of one operator never overlap, although their extents may. On chip they can: bytes hold other rows
        # later.
        own = op if view.buffer.core is None else -1
        if view.buffer.is_met:  # each core writes its own bytes, though the ranges around them may overlap
            own, core = op, giver if giver != NOBODY else <int>view.buffer.core
        find_extent(view, &low, &high)
        history.reads.raise_into(needs, low, high, own, core)
        history.writes.raise_into(needs, low, high, own, core)
        return 0

    cdef int record(self, resource, dict fences, op, bint write) except -1:
        cdef Slot slot
        cdef View view
        cdef History history
        cdef Uses uses
        cdef long long low, high
        if isinstance(resource, Slot):
            slot = <Slot>resource
            if write:
                # These commands have waited for all earlier uses of the slot, so a wait for them includes those.
                slot.writers, slot.readers = fences, {}
            else:
                raise_fences(slot.readers, fences)
            return 0
        view = <View?>resource
        if view.buffer.region == OF_CONSTANTS:
            return 0
        history = self.history(view.buffer)
        uses = history.writes if write else history.reads
        find_extent(view, &low, &high)
        for key, count in fences.items():
            uses.add(low, high, key, count, op)
        return 0

    cdef History history(self, Buffer buffer):
        cdef Place place
        cdef History history = self.histories.get(buffer)
        if history is None:
            history = self.histories[buffer] = History(self.recent)
            if find_home(buffer, &place):
                history.before = self.claim(&place, buffer)
        return history

    cdef int activate(self, Slot slot) except -1:
        """Set the fences of a slot's first use: all earlier uses of its bytes must have ended."""
        cdef Place place
        slot.active = True
        find_place(slot, &place)
        slot.readers = self.claim(&place, slot)
        return 0

    cdef dict claim(self, Place *place, claimant):
        """Allocate on-chip bytes to a new use. Returns the fences of all earlier uses."""
        cdef dict fences = {}
        cdef list kept = []
        cdef Occupant other
        for other in <list>self.occupants.get(place.room, []):
            if overlaps(&other.place, place):
                raise_fences(fences, self.uses(other.claimant))
                # An older use that is completely covered is dropped. Otherwise the rest of its bytes keeps its entry.
                if place.low <= other.place.low and other.place.high <= place.high:
                    continue
            kept.append(other)
        other = Occupant()
        other.place, other.claimant = place[0], claimant
        kept.append(other)
        self.occupants[place.room] = kept
        return fences

    cpdef dict uses(self, occupant):
        """The fences of all uses of the bytes of a slot or buffer."""
        cdef dict fences
        if not isinstance(occupant, Slot):
            return (<History>self.histories[occupant]).summary()
        fences = (<Slot>occupant).writers.copy()
        raise_fences(fences, (<Slot>occupant).readers)
        return fences

    def succeed(self, buffer, dict before):
        """Start a scratch buffer whose bytes were used by others before."""
        cdef History history = History(self.recent)
        history.before = before
        self.histories[buffer] = history
