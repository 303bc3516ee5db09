# cython: language_level=3
"""C surface of the positional codec."""

from libc.stdint cimport uint8_t, uint32_t

from cext.octets cimport Reason


cdef object refusal(Reason reason, uint32_t field_id)


cdef enum Mode:
    M_EMPTY
    M_BODY
    M_IMAGE


cdef class Cursor:
    cdef Py_buffer data
    cdef const uint8_t *at
    cdef const uint8_t *end

    cdef const uint8_t *read(self, Py_ssize_t count) except NULL
    cdef const uint8_t *read_leaf(self, long cap, uint32_t *length) except NULL


cdef class Writer:
    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef uint32_t last_id
    cdef Mode mode

    cdef int grow(self, Py_ssize_t need) except -1
    cdef uint8_t *append(self, Py_ssize_t count) except NULL
    cdef uint8_t *image(self, Py_ssize_t count) except NULL
    cdef uint8_t *field(self, long long field_id, Py_ssize_t length) except NULL
    cdef int put(self, long long field_id, bint leaf, const uint8_t *content, Py_ssize_t length) except -1
    cdef int put_object(self, long long field_id, bint leaf, object data) except -1
    cdef int put_text(self, long long field_id, str text) except -1
    cdef void clear(self) noexcept
