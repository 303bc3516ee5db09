# cython: language_level=3
"""Raw memory of the wire: big-endian numbers, varints, field headers, UTF-8.

Nothing here touches a Python object or reads at or beyond the `end` that it is given.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef enum:
    VARINT_MAX = 10         # bytes of a 64-bit varint
    ID_MAX = 0xFFFFFFFFU    # ids above are refused (OPEN E-d)
    WIRE_BYTES = 4          # the one wire type of the body level (E-09)
    LEAF_PREFIX = 4         # u32 length before a leaf's content (E-16)
    IMAGE_MAX = 0x7FFFFFFF  # offsets are 32 bits wide
    FRAME_HEADER = 5        # u32 length || u8 type
    FRAME_MAX = 1048576     # cap of a frame's `length` (P3-02)


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


cdef inline Reason read_varint(const uint8_t **at, const uint8_t *end, uint64_t *value) noexcept nogil:
    """Minimal unsigned LEB128 of at most 64 bits (E-03, E-04)."""
    cdef const uint8_t *byte = at[0]
    cdef uint64_t total
    cdef int index
    if byte >= end:
        return R_TRUNCATED
    if byte[0] < 0x80:
        value[0] = byte[0]
        at[0] = byte + 1
        return R_OK
    total = byte[0] & 0x7F
    for index in range(1, VARINT_MAX):
        byte += 1
        if byte >= end:
            return R_TRUNCATED
        # The tenth byte holds bit 63 alone: anything else overflows or continues.
        if index == VARINT_MAX - 1 and byte[0] > 1:
            return R_VARINT
        total |= <uint64_t>(byte[0] & 0x7F) << (7 * index)
        if byte[0] < 0x80:
            if byte[0] == 0:
                return R_VARINT
            value[0] = total
            at[0] = byte + 1
            return R_OK
    return R_VARINT


cdef inline Reason read_head(
    const uint8_t **at, const uint8_t *end, uint32_t *field_id, uint32_t *length
) noexcept nogil:
    """Id, wire type and length of one field; on return `at` is its value, which lies inside the body."""
    cdef uint64_t number = 0
    cdef Reason reason
    field_id[0] = 0
    reason = read_varint(at, end, &number)
    if reason != R_OK:
        return reason
    if number == 0 or number > ID_MAX:
        return R_FIELD_ID
    field_id[0] = <uint32_t>number
    if at[0] >= end:
        return R_TRUNCATED
    if at[0][0] != WIRE_BYTES:
        return R_WIRE_TYPE
    at[0] += 1
    reason = read_varint(at, end, &number)
    if reason != R_OK:
        return reason
    if number > <uint64_t>(end - at[0]):
        return R_LENGTH
    length[0] = <uint32_t>number
    return R_OK


cdef inline bint is_tail(uint8_t byte) noexcept nogil:
    return (byte & 0xC0) == 0x80


cdef inline bint is_utf8(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Strict UTF-8: no overlong form, no surrogate, nothing above U+10FFFF (E-18)."""
    cdef uint64_t word
    cdef uint8_t lead, low, high
    cdef int tails, index
    while at < end:
        if end - at >= 8:
            memcpy(&word, at, 8)
            if (word & 0x8080808080808080ULL) == 0:
                at += 8
                continue
        lead = at[0]
        at += 1
        if lead < 0x80:
            continue
        low, high = 0x80, 0xBF
        if lead < 0xC2:
            return False
        elif lead < 0xE0:
            tails = 1
        elif lead < 0xF0:
            tails = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif lead < 0xF5:
            tails = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - at < tails or at[0] < low or at[0] > high:
            return False
        for index in range(1, tails):
            if not is_tail(at[index]):
                return False
        at += tails
    return True


cdef inline int store_varint(uint8_t *at, uint64_t value) noexcept nogil:
    cdef int size = 0
    while value >= 0x80:
        at[size] = <uint8_t>((value & 0x7F) | 0x80)
        value >>= 7
        size += 1
    at[size] = <uint8_t>value
    return size + 1
