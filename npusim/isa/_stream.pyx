"""Loops over the commands of a stream: encoding, counting, and conversion to steps of the simulator."""

from libc.stdint cimport int64_t

from npusim.isa.base import Unit
from npusim.polling import poll

cdef int CONTROL = int(Unit.CONTROL)

cdef enum:
    HALT = -1  # marks commands of the sequencer
    CORE_SHIFT = 8
    POLL_EVERY = 4096  # commands


cdef object asked(instruction):
    """The work of an instruction, cached in it."""
    said = getattr(instruction, "_said", None)
    if said is None:
        said = instruction._said = instruction.work()
    return said


cdef class Sizes:
    """Bytes of instructions in the stream, without headers and waits."""

    def __init__(self):
        self.by_kind = {}

    cdef int64_t of(self, instruction) except -1:
        cdef object kind = type(instruction)
        size = self.by_kind.get(kind)
        if size is None:  # -1: the size varies between instructions
            size = self.by_kind[kind] = instruction.encoded_bytes() if kind.tail is None else -1
        return <int64_t>instruction.encoded_bytes() if <int64_t>size < 0 else <int64_t>size


cdef class Remembered:
    """Results of a function of works, computed once per work."""

    def __init__(self, ask):
        self.ask, self.by_id, self.by_work = ask, {}, {}

    cdef object of(self, work):
        """The result for a work that lives as long as this object."""
        # Instructions of one shape usually share one work object, which is found without a comparison.
        cdef size_t key = <size_t><void *>work
        known = self.by_id.get(key)
        if known is None:
            known = self.by_work.get(work)
            if known is None:
                known = self.by_work[work] = self.ask(work)
            self.by_id[key] = known
        return known


def encode(commands):
    """Encode commands: (bytes, end offset of each command). Errors are those of their ``to_bytes``. 74 Tiles that
    alternate between the same slots share one instruction object."""
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
    """Four bytes, little-endian."""
    at[0], at[1], at[2], at[3] = value & 255, value >> 8 & 255, value >> 16 & 255, value >> 24 & 255


def tally(commands):
    """Count commands with the same operator, core, unit, instruction class, work and targets: a list of (one of them,
    count), in order of first occurrence."""
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


def steps(commands, ends, dict index, charge, make):
    """Convert commands to steps for the units of a device: a list of ``make(engine, waits, charge, begin, end, core,
    operator, instruction)``.

    ``ends``: end offset of each command in the stream. ``index``: engines by (core, unit); commands of the sequencer
    have none. ``charge(work)``: the cost to charge. Waits refer to engines.
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
