# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef enum:
    DEPTH_TOP = 200  # containers within each other that a walk can follow


cdef enum Refusal:
    REFUSAL_RAISED = -1
    ACCEPTED
    REFUSED_SIZE
    REFUSED_BOM
    REFUSED_UTF8
    REFUSED_SYNTAX
    REFUSED_TRUNCATED
    REFUSED_TRAILING
    REFUSED_DEPTH
    REFUSED_ESCAPE
    REFUSED_SURROGATE
    REFUSED_NUMBER
    REFUSED_DUPLICATE
    REFUSED_MEMORY


cdef struct Name:
    uint32_t mixed  # hash of its code points
    uint32_t at     # where its text begins


cdef class Scan:
    cdef const uint8_t *base
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *wrong
    cdef Name *names
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef int depth
    cdef int max_depth
    cdef bint safe
    cdef uint32_t opened[DEPTH_TOP]
    cdef uint8_t objects[DEPTH_TOP]

    cdef Refusal fail(self, Refusal reason, const uint8_t *at) noexcept
    cdef void skip_space(self) noexcept
    cdef Refusal string(self) noexcept
    cdef Refusal name(self) noexcept
    cdef Refusal close_object(self) noexcept
    cdef Refusal literal(self, const char *word, Py_ssize_t length) noexcept
    cdef Refusal number(self) except REFUSAL_RAISED
    cdef bint is_finite(self, const uint8_t *start, const uint8_t *end) except -1
    cdef Refusal scalar(self) except REFUSAL_RAISED
    cdef Refusal open_container(self, bint *empty) noexcept
    cdef Refusal after_value(self, bint *done) noexcept
    cdef Refusal walk(self) except REFUSAL_RAISED
    cdef Refusal document(self, Py_ssize_t limit) except REFUSAL_RAISED
