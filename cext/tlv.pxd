# cython: language_level=3
"""C surface of the body scanner."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cext.octets cimport Reason


cdef enum:
    MAX_SLOTS = 64  # one bit each in a presence mask


cdef enum Kind:
    K_FIXED = 0
    K_LEAF = 1
    K_STR = 2
    K_BOOL = 3
    K_RAW = 4


cdef struct Entry:
    uint32_t offset
    uint32_t length


cdef struct Slot:
    uint32_t lo
    uint32_t hi
    uint8_t field_id
    uint8_t kind
    bint nonzero


cdef class Schema:
    cdef uint8_t index[256]
    cdef Slot slots[MAX_SLOTS]
    cdef int count
    cdef uint64_t required
    cdef bint strict


cdef class Fields:
    cdef Schema schema
    cdef Py_buffer body
    cdef Entry *entries
    cdef uint64_t present
    cdef Py_ssize_t unknowns
    cdef bint ordered
    cdef uint8_t *window_at
    cdef uint32_t window_size

    cdef int open(self, Schema schema, object body) except -1
    cdef Reason walk(self, uint32_t *at_field, bint *recheck) noexcept
    cdef Reason missing(self, uint32_t *at_field) noexcept
    cdef bint has_duplicates(self) except -1
    cdef Py_ssize_t collect(self, bint known, uint32_t **starts) except -1
    cdef bytes emit(self, bint known)
    cdef int slot_of(self, long field_id) except -1
    cdef const uint8_t *fixed(self, long field_id, uint32_t width) except NULL
    cdef int leaf_slot(self, long field_id) except -1
    cdef object window(self, int slot, uint32_t skip)
