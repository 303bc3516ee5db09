# cython: language_level=3
"""C surface of the TLV codec: bounds-checked readers of one body, and the growable writer."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum Reason:
    R_OK
    R_VARINT
    R_LENGTH
    R_TRUNCATED
    R_TRAILING
    R_DUPLICATE
    R_WIRE_TYPE
    R_FIELD_ID
    R_WIDTH
    R_MISSING
    R_UTF8
    R_BOOL
    R_ZERO
    R_CAP
    R_ORDER
    R_UNKNOWN
    R_PRESENCE
    R_COUNT
    R_TAG


cdef enum Kind:
    K_FIXED = 0
    K_LEAF = 1
    K_STR = 2
    K_BOOL = 3
    K_RAW = 4


cdef enum Mode:
    M_EMPTY
    M_BODY
    M_IMAGE


cdef enum:
    WIRE_BYTES = 4          # the one wire type of the body level (E-09)
    LEAF_PREFIX = 4         # u32 length before a leaf's content (E-16)
    MAX_SLOTS = 64          # one bit each in a presence mask
    FRAME_HEADER = 5        # u32 length || u8 type
    FRAME_MAX = 1048576     # cap of a frame's `length` (P3-02)
    IMAGE_MAX = 0x7FFFFFFF  # offsets are 32 bits wide


cdef struct Entry:
    uint32_t offset
    uint32_t length


cdef struct Slot:
    uint32_t lo
    uint32_t hi
    uint8_t field_id
    uint8_t kind
    bint nonzero


cdef inline uint16_t load_u16(const uint8_t *at) noexcept nogil:
    return <uint16_t>((<uint32_t>at[0] << 8) | at[1])


cdef inline uint32_t load_u32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | <uint32_t>at[3]


cdef inline uint64_t load_u64(const uint8_t *at) noexcept nogil:
    return (<uint64_t>load_u32(at) << 32) | load_u32(at + 4)


cdef inline void store_u16(uint8_t *at, uint16_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value


cdef inline void store_u32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline void store_u64(uint8_t *at, uint64_t value) noexcept nogil:
    store_u32(at, <uint32_t>(value >> 32))
    store_u32(at + 4, <uint32_t>value)


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

    cdef int open(self, Schema schema, object body) except -1
    cdef Reason walk(self, uint32_t *at_field, bint *recheck) noexcept
    cdef Reason missing(self, uint32_t *at_field) noexcept
    cdef bint has_duplicates(self) except -1
    cdef Py_ssize_t collect(self, bint known, uint32_t **starts) except -1
    cdef bytes emit(self, bint known)
    cdef int slot_of(self, long field_id) except -1
    cdef const uint8_t *fixed(self, long field_id, uint32_t width) except NULL
    cdef Entry leaf_entry(self, long field_id, bint text) except *
    cdef object window(self, Entry entry)


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
