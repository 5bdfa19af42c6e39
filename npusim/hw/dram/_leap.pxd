from npusim.hw.dram._dram cimport Machine, Memo, Stream

cdef long long leap(Machine *m, const Stream *s, long long i, Memo *table) noexcept nogil
