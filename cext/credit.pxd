from libc.stdint cimport uint64_t


cdef class Credit:
    cdef readonly uint64_t max_count
    cdef readonly uint64_t max_bytes
    cdef readonly uint64_t count
    cdef readonly uint64_t nbytes

    cpdef void add(self, uint64_t count, uint64_t nbytes) except *
    cpdef bint spend(self, uint64_t nbytes, uint64_t count=*) noexcept
    cpdef void clear(self) noexcept


cdef class Quota:
    cdef Quota _parent
    cdef Py_ssize_t _resources
    # One block of 4 * _resources counters; the other three point into it.
    cdef uint64_t* _limits
    cdef uint64_t* _used     # this level and everything below it
    cdef uint64_t* _own      # what this very level has charged and not released
    cdef uint64_t* _delta    # scratch of charge_many, all zero between calls

    cdef inline Py_ssize_t _index(self, Py_ssize_t resource) except -1
    cdef bint _fits(self, Py_ssize_t index, uint64_t amount) noexcept
    cdef void _charge(self, Py_ssize_t index, uint64_t amount) noexcept
    cdef void _release(self, Py_ssize_t index, uint64_t amount) noexcept
    cpdef bint charge(self, Py_ssize_t resource, uint64_t amount=*) except -1
    cpdef void release(self, Py_ssize_t resource, uint64_t amount=*) except *
    cpdef void release_all(self) noexcept
