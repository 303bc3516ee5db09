# cython: language_level=3
"""Strict reading of JSON text before anything is built of it (RFC 8259 and I-JSON; rows CC-01, C13.4-23).

One walk over the bytes with a table of fixed size for the open containers. Nothing is decoded and no Python object is
made; memory grows with the names that stand in open objects, eight bytes for each, and with nothing that a peer declares.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.string cimport memcmp, memcpy

from cext.octets cimport IMAGE_MAX, is_utf8

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *text, char **end, PyObject *overflow_exception) except? -1.0

DEPTH_MAX = DEPTH_TOP

cdef enum:
    FEW_NAMES = 8           # objects up to this size compare every pair of names
    SAFE_DIGITS = 16        # 2**53 - 1 has as many
    DOUBLE_EXPONENT = 308   # a literal below 10**308 is a finite double
    EXPONENT_CAP = 100_000_000

cdef uint64_t SAFE_MAX = 9007199254740991ULL
cdef uint64_t LOW_BITS = 0x0101010101010101ULL
cdef uint64_t HIGH_BITS = 0x8080808080808080ULL
cdef uint32_t NO_POINT = 0xFFFFFFFFU

cdef tuple REASONS = (
    "", "size", "bom", "utf8", "syntax", "truncated", "trailing", "depth", "escape", "surrogate", "number", "duplicate",
    "memory",
)


class JsonError(ValueError):
    """JSON text that is refused; see the stub for the reasons."""

    def __init__(self, reason, offset):
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self):
        return f"{self.reason} at byte {self.offset}"


cdef inline int nibble(uint8_t byte) noexcept nogil:
    if 48 <= byte <= 57:
        return byte - 48
    byte |= 0x20
    return byte - 87 if 97 <= byte <= 102 else -1


cdef inline int64_t unit_at(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """The UTF-16 unit of four hex digits, -1 if one of them is none, -2 if the text ends before them."""
    cdef int64_t unit = 0
    cdef int index, digit
    for index in range(4):
        if at + index >= end:
            return -2
        digit = nibble(at[index])
        if digit < 0:
            return -1
        unit = unit << 4 | digit
    return unit


cdef inline uint32_t next_point(const uint8_t **cursor) noexcept nogil:
    """The next code point of a string that was walked before, its escapes resolved; NO_POINT at its end."""
    cdef const uint8_t *at = cursor[0]
    cdef uint8_t lead = at[0]
    cdef uint32_t point
    if lead == c'"':
        return NO_POINT
    if lead != c'\\':
        if lead < 0x80:
            cursor[0] = at + 1
            return lead
        if lead < 0xE0:
            cursor[0] = at + 2
            return <uint32_t>(lead & 0x1F) << 6 | (at[1] & 0x3F)
        if lead < 0xF0:
            cursor[0] = at + 3
            return <uint32_t>(lead & 0x0F) << 12 | <uint32_t>(at[1] & 0x3F) << 6 | (at[2] & 0x3F)
        cursor[0] = at + 4
        return (
            <uint32_t>(lead & 0x07) << 18 | <uint32_t>(at[1] & 0x3F) << 12 | <uint32_t>(at[2] & 0x3F) << 6
            | (at[3] & 0x3F)
        )
    cursor[0] = at + 2
    lead = at[1]
    if lead == c'u':
        point = <uint32_t>unit_at(at + 2, at + 6)
        cursor[0] = at + 6
        if 0xD800 <= point < 0xDC00:
            point = 0x10000 + ((point - 0xD800) << 10) + (<uint32_t>unit_at(at + 8, at + 12) - 0xDC00)
            cursor[0] = at + 12
        return point
    if lead == c'b':
        return 8
    if lead == c't':
        return 9
    if lead == c'n':
        return 10
    if lead == c'f':
        return 12
    if lead == c'r':
        return 13
    return lead


cdef inline uint32_t hash_of(const uint8_t *at) noexcept nogil:
    """FNV-1a over the code points of a name: two spellings of one name share it."""
    cdef uint32_t mixed = 2166136261U
    cdef uint32_t point = next_point(&at)
    while point != NO_POINT:
        mixed = (mixed ^ point) * 16777619U
        point = next_point(&at)
    return mixed


cdef int compare(const uint8_t *left, const uint8_t *right) noexcept nogil:
    """Order of two names by their code points."""
    cdef uint32_t one, other
    while True:
        one = next_point(&left)
        other = next_point(&right)
        if one != other:
            # The end of a string comes before every code point.
            return -1 if one + 1 < other + 1 else 1
        if one == NO_POINT:
            return 0


cdef inline bint precedes(const uint8_t *base, Name one, Name other) noexcept nogil:
    cdef int order
    if one.mixed != other.mixed:
        return one.mixed < other.mixed
    order = compare(base + one.at, base + other.at)
    return order < 0 or (order == 0 and one.at < other.at)


cdef inline bint equal(const uint8_t *base, Name one, Name other) noexcept nogil:
    return one.mixed == other.mixed and compare(base + one.at, base + other.at) == 0


cdef void sift(const uint8_t *base, Name *names, Py_ssize_t root, Py_ssize_t count) noexcept nogil:
    cdef Name moved = names[root]
    cdef Py_ssize_t child
    while True:
        child = 2 * root + 1
        if child >= count:
            break
        if child + 1 < count and precedes(base, names[child], names[child + 1]):
            child += 1
        if not precedes(base, moved, names[child]):
            break
        names[root] = names[child]
        root = child
    names[root] = moved


cdef void sort_names(const uint8_t *base, Name *names, Py_ssize_t count) noexcept nogil:
    """Heapsort by hash, spelling and place: n log n also for names that were chosen to share their hash."""
    cdef Py_ssize_t root = count // 2
    cdef Py_ssize_t last = count - 1
    cdef Name swapped
    while root > 0:
        root -= 1
        sift(base, names, root, count)
    while last > 0:
        swapped = names[0]
        names[0] = names[last]
        names[last] = swapped
        sift(base, names, 0, last)
        last -= 1


@cython.final
@cython.no_gc
cdef class Scan:
    """One walk. It never outlives the call that made it."""

    def __dealloc__(self):
        PyMem_Free(self.names)

    cdef Refusal fail(self, Refusal reason, const uint8_t *at) noexcept:
        self.wrong = at
        return reason

    cdef void skip_space(self) noexcept:
        cdef uint8_t byte
        while self.at < self.end:
            byte = self.at[0]
            if byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09:
                return
            self.at += 1

    cdef Refusal string(self) noexcept:
        """From behind the opening quote to behind the closing one. The text is UTF-8 already."""
        cdef const uint8_t *at = self.at
        cdef const uint8_t *end = self.end
        cdef uint64_t word, quote, slash
        cdef int64_t unit, low
        while True:
            while end - at >= 8:
                memcpy(&word, at, 8)
                quote = word ^ 0x2222222222222222ULL
                slash = word ^ 0x5C5C5C5C5C5C5C5CULL
                # A high bit is set where a byte of the word is a quote, a backslash or below 0x20.
                if (
                    ((quote - LOW_BITS) & ~quote) | ((slash - LOW_BITS) & ~slash)
                    | ((word - 0x2020202020202020ULL) & ~word)
                ) & HIGH_BITS:
                    break
                at += 8
            while at < end and at[0] != c'"' and at[0] != c'\\' and at[0] >= 0x20:
                at += 1
            if at >= end:
                return self.fail(REFUSED_TRUNCATED, end)
            if at[0] == c'"':
                self.at = at + 1
                return ACCEPTED
            if at[0] < 0x20:
                return self.fail(REFUSED_SYNTAX, at)
            if at + 1 >= end:
                return self.fail(REFUSED_TRUNCATED, end)
            if at[1] != c'u':
                if at[1] not in (c'"', c'\\', c'/', c'b', c'f', c'n', c'r', c't'):
                    return self.fail(REFUSED_ESCAPE, at)
                at += 2
                continue
            unit = unit_at(at + 2, end)
            if unit < 0:
                return self.fail(REFUSED_ESCAPE, at) if unit == -1 else self.fail(REFUSED_TRUNCATED, end)
            if 0xDC00 <= unit <= 0xDFFF:
                return self.fail(REFUSED_SURROGATE, at)
            if 0xD800 <= unit < 0xDC00:
                if end - at < 12 or at[6] != c'\\' or at[7] != c'u':
                    return self.fail(REFUSED_SURROGATE, at)
                low = unit_at(at + 8, end)
                if not 0xDC00 <= low <= 0xDFFF:
                    return self.fail(REFUSED_SURROGATE, at)
                at += 6
            at += 6

    cdef Refusal name(self) noexcept:
        """A member's name and its colon; the name is kept until its object closes."""
        cdef Name *grown
        cdef Name entry
        cdef Refusal reason
        self.skip_space()
        if self.at >= self.end:
            return self.fail(REFUSED_TRUNCATED, self.end)
        if self.at[0] != c'"':
            return self.fail(REFUSED_SYNTAX, self.at)
        self.at += 1
        entry.at = <uint32_t>(self.at - self.base)
        reason = self.string()
        if reason != ACCEPTED:
            return reason
        if self.count == self.room:
            grown = <Name *>PyMem_Realloc(self.names, sizeof(Name) * <size_t>(self.room * 2 + 32))
            if grown == NULL:
                return self.fail(REFUSED_MEMORY, self.at)
            self.names = grown
            self.room = self.room * 2 + 32
        entry.mixed = hash_of(self.base + entry.at)
        self.names[self.count] = entry
        self.count += 1
        self.skip_space()
        if self.at >= self.end:
            return self.fail(REFUSED_TRUNCATED, self.end)
        if self.at[0] != c':':
            return self.fail(REFUSED_SYNTAX, self.at)
        self.at += 1
        return ACCEPTED

    cdef Refusal close_object(self) noexcept:
        """Forget the names of the innermost object; refuse the first that stood there before."""
        cdef Name *names = self.names + self.opened[self.depth - 1]
        cdef Py_ssize_t count = self.count - self.opened[self.depth - 1]
        cdef Py_ssize_t one, other
        cdef uint32_t first = NO_POINT
        if count <= FEW_NAMES:
            for other in range(1, count):
                for one in range(other):
                    if equal(self.base, names[one], names[other]):
                        return self.fail(REFUSED_DUPLICATE, self.base + names[other].at)
        else:
            sort_names(self.base, names, count)
            for one in range(1, count):
                if names[one].at < first and equal(self.base, names[one - 1], names[one]):
                    first = names[one].at
            if first != NO_POINT:
                return self.fail(REFUSED_DUPLICATE, self.base + first)
        self.count = self.opened[self.depth - 1]
        return ACCEPTED

    cdef Refusal literal(self, const char *word, Py_ssize_t length) noexcept:
        if self.end - self.at < length or memcmp(self.at, word, <size_t>length) != 0:
            return self.fail(REFUSED_SYNTAX, self.at)
        self.at += length
        return ACCEPTED

    cdef Refusal number(self) except REFUSAL_RAISED:
        cdef const uint8_t *start = self.at
        cdef const uint8_t *at = start
        cdef const uint8_t *end = self.end
        cdef const uint8_t *digits
        cdef int64_t size, exponent = 0
        cdef uint64_t value = 0
        cdef bint whole = True, negative
        if at[0] == c'-':
            at += 1
        digits = at
        while at < end and 48 <= at[0] <= 57:
            if at - digits < SAFE_DIGITS:
                value = value * 10 + (at[0] - 48)
            at += 1
        size = at - digits
        if size == 0:
            return self.fail(REFUSED_SYNTAX, start)
        if digits[0] == c'0':
            # No digit follows a leading zero.
            at = digits + 1
            size = 0
        if at < end and at[0] == c'.':
            whole = False
            at += 1
            digits = at
            while at < end and 48 <= at[0] <= 57:
                at += 1
            if at == digits:
                return self.fail(REFUSED_SYNTAX, start)
        if at < end and (at[0] == c'e' or at[0] == c'E'):
            whole = False
            at += 1
            negative = at < end and at[0] == c'-'
            if at < end and (at[0] == c'-' or at[0] == c'+'):
                at += 1
            digits = at
            while at < end and 48 <= at[0] <= 57:
                if exponent < EXPONENT_CAP:
                    exponent = exponent * 10 + (at[0] - 48)
                at += 1
            if at == digits:
                return self.fail(REFUSED_SYNTAX, start)
            if negative:
                exponent = -exponent
        self.at = at
        if whole and self.safe and (size > SAFE_DIGITS or (size == SAFE_DIGITS and value > SAFE_MAX)):
            return self.fail(REFUSED_NUMBER, start)
        if size + exponent > DOUBLE_EXPONENT and not self.is_finite(start, at):
            return self.fail(REFUSED_NUMBER, start)
        return ACCEPTED

    cdef bint is_finite(self, const uint8_t *start, const uint8_t *end) except -1:
        """Whether a literal that may be too large for a double is one: decided by CPython's own reading."""
        cdef size_t size = <size_t>(end - start)
        cdef char *text = <char *>PyMem_Malloc(size + 1)
        cdef double value
        if text == NULL:
            raise MemoryError
        memcpy(text, start, size)
        text[size] = 0
        try:
            value = PyOS_string_to_double(text, NULL, NULL)
        finally:
            PyMem_Free(text)
        return value - value == 0

    cdef Refusal scalar(self) except REFUSAL_RAISED:
        cdef uint8_t byte = self.at[0]
        if byte == c'"':
            self.at += 1
            return self.string()
        if byte == c't':
            return self.literal(b"true", 4)
        if byte == c'f':
            return self.literal(b"false", 5)
        if byte == c'n':
            return self.literal(b"null", 4)
        if byte == c'-' or 48 <= byte <= 57:
            return self.number()
        return self.fail(REFUSED_SYNTAX, self.at)

    cdef Refusal open_container(self, bint *empty) noexcept:
        """Enter an object or array; an empty one is left again at once."""
        cdef bint is_object = self.at[0] == c'{'
        empty[0] = False
        if self.depth == self.max_depth:
            return self.fail(REFUSED_DEPTH, self.at)
        self.opened[self.depth] = <uint32_t>self.count
        self.objects[self.depth] = is_object
        self.depth += 1
        self.at += 1
        self.skip_space()
        if self.at < self.end and self.at[0] == (c'}' if is_object else c']'):
            self.at += 1
            self.depth -= 1
            empty[0] = True
            return ACCEPTED
        return self.name() if is_object else ACCEPTED

    cdef Refusal after_value(self, bint *done) noexcept:
        """Commas and closing brackets up to the next value or the end of the text."""
        cdef bint is_object
        cdef Refusal reason
        while True:
            self.skip_space()
            if self.depth == 0:
                done[0] = True
                return ACCEPTED if self.at == self.end else self.fail(REFUSED_TRAILING, self.at)
            if self.at >= self.end:
                return self.fail(REFUSED_TRUNCATED, self.end)
            is_object = self.objects[self.depth - 1]
            if self.at[0] == c',':
                self.at += 1
                return self.name() if is_object else ACCEPTED
            if self.at[0] != (c'}' if is_object else c']'):
                return self.fail(REFUSED_SYNTAX, self.at)
            self.at += 1
            if is_object:
                reason = self.close_object()
                if reason != ACCEPTED:
                    return reason
            self.depth -= 1

    cdef Refusal walk(self) except REFUSAL_RAISED:
        cdef Refusal reason
        cdef bint done = False, whole = False
        while not done:
            self.skip_space()
            if self.at >= self.end:
                return self.fail(REFUSED_TRUNCATED, self.end)
            if self.at[0] == c'{' or self.at[0] == c'[':
                reason = self.open_container(&whole)
                if reason == ACCEPTED and not whole:
                    continue
            else:
                reason = self.scalar()
            if reason == ACCEPTED:
                reason = self.after_value(&done)
            if reason != ACCEPTED:
                return reason
        return ACCEPTED

    cdef Refusal document(self, Py_ssize_t limit) except REFUSAL_RAISED:
        cdef Py_ssize_t size = self.end - self.base
        if size > limit:
            return self.fail(REFUSED_SIZE, self.base + limit)
        if size >= 3 and memcmp(self.base, b"\xef\xbb\xbf", 3) == 0:
            return self.fail(REFUSED_BOM, self.base)
        if not is_utf8(self.base, self.end):
            return self.fail(REFUSED_UTF8, self.base)
        return self.walk()


def check(data not None, *, Py_ssize_t limit, int depth, bint safe_integers):
    """Refuse what is not strict JSON; see the stub."""
    cdef Scan scan = Scan.__new__(Scan)
    cdef Py_buffer text
    cdef Refusal reason
    if not 0 <= limit <= IMAGE_MAX or not 0 <= depth <= DEPTH_TOP:
        raise ValueError(f"limit {limit} or depth {depth} is out of range")
    PyObject_GetBuffer(data, &text, PyBUF_SIMPLE)
    try:
        scan.base = scan.at = <const uint8_t *>text.buf
        scan.end = scan.base + text.len
        scan.max_depth = depth
        scan.safe = safe_integers
        reason = scan.document(limit)
        if reason == REFUSED_MEMORY:
            raise MemoryError
        if reason != ACCEPTED:
            raise JsonError(REASONS[reason], scan.wrong - scan.base)
    finally:
        PyBuffer_Release(&text)
