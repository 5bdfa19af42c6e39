"""Buffers and strided views of them; see ``npusim.compiler.buffers``.

A plan makes hundreds of thousands of views, and a stream two per transfer. Numbers are Python integers: a model may
specify shapes that no device holds, which is detected later.
"""

from npusim.isa.base import l2 as l2_address
from npusim.isa.base import region as region_address
from npusim.program import CONSTANTS, SCRATCH

cdef int OF_CONSTANTS = CONSTANTS
cdef int OF_SCRATCH = SCRATCH
cdef object L2_BASE = l2_address(0)


cdef class Buffer:
    """Bytes at ``offset`` in one region of DRAM, in the SRAM of ``core``, or, if ``in_l2``, in the L2.

    ``born``, ``dies``: the first and last group that uses it. ``is_rolling``: it contains some rows of a value, and
    around them the padding that its readers need. ``is_met``: each core writes what it has computed of a value into it,
    and no operator writes a byte twice.
    """

    def __init__(self, str name, int region, nbytes, offset=0, born=-1, dies=-1, core=None, bint is_rolling=False):
        self.name, self.region, self.nbytes, self.offset = name, region, nbytes, offset
        self.born, self.dies, self.core, self.is_rolling = born, dies, core, is_rolling
        self.base = region_address(region)

    def __repr__(self):
        home = "" if self.core is None else f", core={self.core}"
        return f"Buffer({self.name!r}, region={self.region}, nbytes={self.nbytes}, offset={self.offset}{home})"

    @property
    def is_constant(self):
        return self.region == OF_CONSTANTS

    @property
    def is_scratch(self):
        """Whether it is a value between operators that is not in SRAM, but in DRAM or L2."""
        return self.region == OF_SCRATCH and self.core is None

    @property
    def in_l2(self):
        return self.base == L2_BASE

    @in_l2.setter
    def in_l2(self, bint there):
        self.base = L2_BASE if there else region_address(self.region)

    @property
    def on_chip(self):
        return self.core is not None


cdef View made(Buffer buffer, object offset, tuple shape, tuple strides, object dtype):
    cdef View view = View.__new__(View)
    view.buffer, view.offset, view.shape, view.strides, view.dtype = buffer, offset, shape, strides, dtype
    return view


cdef class View:
    """Elements of ``dtype`` at ``offset + sum(index * stride)`` bytes of a buffer."""

    def __init__(self, Buffer buffer not None, offset, tuple shape not None, tuple strides not None, dtype):
        self.buffer, self.offset, self.shape, self.strides, self.dtype = buffer, offset, shape, strides, dtype

    def __repr__(self):
        return f"View({self.buffer!r}, {self.offset}, {self.shape}, {self.strides}, {self.dtype!r})"

    def __eq__(self, other):
        cdef View that
        if not isinstance(other, View):
            return NotImplemented
        that = <View>other
        return self is that or (
            self.buffer is that.buffer and self.offset == that.offset and self.shape == that.shape
            and self.strides == that.strides and self.dtype == that.dtype
        )

    def __hash__(self):
        return hash((self.buffer, self.offset, self.shape, self.strides, self.dtype))

    @property
    def address(self):
        """Address of element 0. Only valid after layout."""
        start = self.buffer.offset + self.offset
        return start if self.buffer.core is not None else self.buffer.base | start

    def moved(self, by):
        """The view after its buffer's bytes have moved."""
        found = by.get(self.buffer)
        if found is None:
            return self
        buffer, further = found
        return made(buffer, self.offset + further, self.shape, self.strides, self.dtype)

    def permute(self, perm):
        cdef list shape = [], strides = []
        for place in perm:
            shape.append(self.shape[place])
            strides.append(self.strides[place])
        return made(self.buffer, self.offset, tuple(shape), tuple(strides), self.dtype)

    def slice(self, starts, sizes, steps=None):
        """A view whose element i of a dimension is element start + i * step of this view."""
        cdef tuple shape = tuple(sizes), strides = self.strides
        offset = self.offset
        # An empty slice may start after the last element. Keeping the old offset keeps its address inside the buffer.
        if 0 not in shape:
            for start, stride in zip(starts, strides):
                offset = offset + start * stride
        if steps is not None:
            strides = tuple([stride * step for stride, step in zip(strides, steps)])
        return made(self.buffer, offset, shape, strides, self.dtype)

    def broadcast(self, shape):
        """As numpy's broadcast: new and stretched dimensions have stride 0, dimensions of size one any other stride."""
        cdef Py_ssize_t lead = len(shape) - len(self.shape)
        item = self.dtype.itemsize
        # For tiling and loads, a stride of 0 means "broadcast". A dimension of size one never is, so its stride is not
        # 0.
        cdef list strides = [item if target == 1 else 0 for target in shape[:lead]]
        for dim, stride, target in zip(self.shape, self.strides, shape[lead:], strict=True):
            strides.append(item if target == 1 else stride if dim == target else 0)
        return made(self.buffer, self.offset, tuple(shape), tuple(strides), self.dtype)

    def reshape(self, shape):
        """The view with these dimensions in row-major order, or None if strides cannot express it."""
        cdef tuple wanted = tuple(shape)
        if 0 in self.shape:
            return made(self.buffer, self.offset, wanted, (0,) * len(wanted), self.dtype)
        source = [(dim, stride) for dim, stride in zip(self.shape, self.strides, strict=True) if dim != 1]
        cdef list strides = [], remaining = list(wanted)
        position = 0
        while remaining:
            if remaining[0] == 1:
                strides.append(0)
                remaining.pop(0)
                continue
            taken = match(source, position, remaining)
            if taken is None:
                return None
            position, block = taken
            strides.extend(block)
            del remaining[: len(block)]
        return made(self.buffer, self.offset, wanted, tuple(strides), self.dtype)

    def is_dense(self):
        """Whether it is row-major without gaps."""
        return self.strides_match(dense_strides(self.shape, self.dtype.itemsize))

    def strides_match(self, strides):
        """Whether the placement is the same, ignoring dimensions of size one."""
        for dim, mine, other in zip(self.shape, self.strides, strides, strict=True):
            if dim != 1 and mine != other:
                return False
        return True

    def extent(self):
        """(first byte, byte after the last) within the buffer."""
        low, high = self.offset, self.offset + self.dtype.itemsize
        for dim, stride in zip(self.shape, self.strides, strict=True):
            reach = (dim - 1) * stride
            if reach < 0:
                low += reach
            else:
                high += reach
        return low, high

    def order(self):
        """Dimensions from outermost to innermost in memory. Broadcast dimensions and those of size one keep their
        position."""
        return memory_order(self.shape, self.strides)


cdef match(list source, Py_ssize_t position, list shape):
    """Cover a prefix of ``shape`` with whole source dimensions: (next source dimension, strides), or None if
    impossible."""
    if position == len(source):
        return None
    size, stride = source[position]
    position += 1
    covered, dims = 1, []
    for dim in shape:
        dims.append(dim)
        covered *= dim
        while covered > size:
            if position == len(source):
                return None
            next_size, next_stride = source[position]
            # Two source dimensions merge only if the outer one starts where the inner one ends.
            if stride != next_size * next_stride:
                return None
            size, stride, position = size * next_size, next_stride, position + 1
        if covered == size:
            strides, step = [], stride
            for inner in reversed(dims):
                strides.append(step)
                step *= inner
            return position, list(reversed(strides))
    return None


def memory_order(shape, strides):
    """Dimension numbers from outermost to innermost in memory. Dimensions without a stride keep their position."""
    moving = [axis for axis in range(len(shape)) if shape[axis] > 1 and strides[axis]]
    # Break ties by number, so that two compilations agree.
    by_stride = iter(sorted(moving, key=lambda axis: (-abs(strides[axis]), axis)))
    return tuple([next(by_stride) if axis in moving else axis for axis in range(len(shape))])


def dense_strides(shape, itemsize):
    """Row-major byte strides."""
    cdef list strides = []
    step = itemsize
    for dim in reversed(shape):
        strides.append(step)
        step = step * dim
    return tuple(reversed(strides))


def ordered_strides(shape, order, itemsize):
    """Dense byte strides with the dimensions in ``order``, outermost first."""
    cdef list strides = [0] * len(shape)
    step = itemsize
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def collapse(dims, *operands):
    """Merge neighbouring dimensions that are contiguous in every operand, and drop dimensions of size one."""
    cdef list merged = [], strides = [[] for _ in operands]
    cdef Py_ssize_t last = -1
    for axis, dim in enumerate(dims):
        if dim == 1:
            continue
        if last >= 0 and joins(operands, strides, last, axis, dim):
            merged[last] = merged[last] * dim
            for out, operand in zip(strides, operands):
                (<list>out)[last] = operand[axis]
        else:
            last += 1
            merged.append(dim)
            for out, operand in zip(strides, operands):
                (<list>out).append(operand[axis])
    return merged, strides


cdef bint joins(tuple operands, list strides, Py_ssize_t last, axis, dim) except -1:
    """Whether every operand's stride over a dimension continues that of the dimension before it."""
    for out, operand in zip(strides, operands):
        if (<list>out)[last] != operand[axis] * dim:
            return False
    return True
