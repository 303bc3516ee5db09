# cython: language_level=3
"""C surface of the frame splitter."""

from libc.stdint cimport uint8_t, uint32_t


cdef enum Refusal:
    F_NONE
    F_TYPE    # the cap table refuses the type
    F_LENGTH  # zero, above the hard cap or above the cap of its type


cdef class Block:
    cdef uint8_t *data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t readers       # read-only views that are alive
    cdef uint8_t *window_at
    cdef Py_ssize_t window_size
    cdef bint window_readonly

    cdef object window(self, Py_ssize_t at, Py_ssize_t size, bint readonly)


cdef class Splitter:
    cdef uint32_t caps[256]
    cdef Block block              # fixed receive storage; bytes start..end are not yet split
    cdef Py_ssize_t start
    cdef Py_ssize_t end
    cdef Block large              # payload of the frame under way that does not fit in the fixed storage
    cdef Py_ssize_t large_end
    cdef bytes pending            # fed bytes that found no room yet, from pending_at on
    cdef Py_ssize_t pending_at
    cdef Py_ssize_t lent          # size of the view that get_buffer gave out last
    cdef Refusal refused
    cdef uint8_t frame_type       # of the frame in `large`, or of the refused one
    cdef uint32_t length

    cdef int load_caps(self, object caps) except -1
    cdef void accept(self, Py_ssize_t count) noexcept
    cdef Py_ssize_t make_room(self) except -1
    cdef bint pull(self) except -1
    cdef bint judge(self, uint8_t frame_type, uint32_t length) noexcept
    cdef object split(self)
    cdef object split_large(self)
