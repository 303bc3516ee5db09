# cython: language_level=3
"""TLV bodies and positional images of the coordinator wire (rows E-01..E-25).

A body is a run of fields ``varint id || u8 wire type || varint length || value``. :meth:`Schema.scan` walks it once and
leaves an offset table; values become Python objects only when they are asked for. Nothing here reserves memory by a
number that a peer sent.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memcpy, memset

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


FIXED = K_FIXED
LEAF = K_LEAF
STR = K_STR
BOOL = K_BOOL
RAW = K_RAW
NONZERO = 0x10

cdef enum:
    NO_SLOT = 0xFF
    FLAG_NONZERO = 0x10
    VARINT_MAX = 10
    ID_MAX = 0xFFFFFFFFU  # OPEN E-d
    FIRST_BLOCK = 256    # a writer's first reservation: most frames fit
    KEPT_BLOCK = 65536   # a writer gives back anything larger once its image was taken

cdef tuple REASONS = (
    "", "varint", "length", "truncated", "trailing", "duplicate", "wire_type", "field_id", "width", "missing", "utf8",
    "bool", "zero", "cap", "order", "unknown", "presence", "count", "tag",
)


class TlvError(ValueError):
    """A body or image that breaks the encoding. ``reason`` is from a closed set; ``field`` is the id, 0 if none."""

    def __init__(self, reason: str, field: int = 0) -> None:
        super().__init__(reason, field)
        self.reason = reason
        self.field = field

    def __str__(self) -> str:
        return f"field {self.field}: {self.reason}" if self.field else self.reason


cdef object refusal(Reason reason, uint32_t field_id):
    return TlvError(REASONS[<int>reason], field_id)


# --- readers over raw memory: they touch no Python object and never read at or beyond `end` ---------------------------


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


cdef bint is_utf8(const uint8_t *at, const uint8_t *end) noexcept nogil:
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


cdef inline Reason check_leaf(const Slot *slot, const uint8_t *value, uint32_t length) noexcept nogil:
    cdef uint32_t content
    if length < LEAF_PREFIX:
        return R_TRUNCATED
    content = load_u32(value)
    length -= LEAF_PREFIX
    if content != length:
        return R_LENGTH if content > length else R_TRAILING
    if content > slot.hi:
        return R_CAP
    if content < slot.lo:
        return R_WIDTH
    if slot.kind == K_STR and not is_utf8(value + LEAF_PREFIX, value + LEAF_PREFIX + content):
        return R_UTF8
    return R_OK


cdef inline Reason check_value(const Slot *slot, const uint8_t *value, uint32_t length) noexcept nogil:
    """The value image against the field's kind and bounds (E-14..E-19, E-23, E-24)."""
    cdef uint32_t index
    if slot.kind == K_LEAF or slot.kind == K_STR:
        return check_leaf(slot, value, length)
    if slot.kind == K_RAW:
        if length > slot.hi:
            return R_CAP
        return R_WIDTH if length < slot.lo else R_OK
    if length != slot.lo:
        return R_WIDTH
    if slot.kind == K_BOOL:
        return R_BOOL if value[0] > 1 else R_OK
    if slot.nonzero:
        for index in range(length):
            if value[index] != 0:
                return R_OK
        return R_ZERO
    return R_OK


cdef inline uint32_t id_at(const uint8_t *field) noexcept nogil:
    """Id of a field that was walked before in the same call, so that its varint is known to be whole."""
    cdef uint32_t value = field[0] & 0x7F
    cdef int shift = 7
    while field[0] >= 0x80:
        field += 1
        value |= <uint32_t>(field[0] & 0x7F) << shift
        shift += 7
    return value


cdef void sift(const uint8_t *base, uint32_t *starts, Py_ssize_t root, Py_ssize_t count) noexcept nogil:
    cdef uint32_t moved = starts[root]
    cdef uint32_t key = id_at(base + moved)
    cdef Py_ssize_t child
    while True:
        child = 2 * root + 1
        if child >= count:
            break
        if child + 1 < count and id_at(base + starts[child]) < id_at(base + starts[child + 1]):
            child += 1
        if id_at(base + starts[child]) <= key:
            break
        starts[root] = starts[child]
        root = child
    starts[root] = moved


cdef void sort_by_id(const uint8_t *base, uint32_t *starts, Py_ssize_t count) noexcept nogil:
    """Heapsort: in place and n log n for every input, so a hostile body buys neither memory nor quadratic time."""
    cdef Py_ssize_t last
    cdef Py_ssize_t root = count // 2
    cdef uint32_t swapped
    while root > 0:
        root -= 1
        sift(base, starts, root, count)
    last = count - 1
    while last > 0:
        swapped = starts[0]
        starts[0] = starts[last]
        starts[last] = swapped
        sift(base, starts, 0, last)
        last -= 1


# --- bodies ----------------------------------------------------------------------------------------------------------


@cython.final
@cython.no_gc
cdef class Schema:
    """The known fields of one message, compiled to a 256-entry table. See the stub for the argument meanings."""

    def __cinit__(self, fields, *, bint strict=False):
        cdef Slot *slot
        memset(self.index, NO_SLOT, sizeof(self.index))
        self.strict = strict
        for field_id, kind, lo, hi, required in sorted(fields):
            if not 1 <= field_id <= 255 or self.index[<uint8_t>field_id] != NO_SLOT:
                raise ValueError(f"field id {field_id} is out of 1..255 or given twice")
            if self.count == MAX_SLOTS:
                raise ValueError(f"more than {<int>MAX_SLOTS} fields")
            if not 0 <= lo <= hi <= IMAGE_MAX:
                raise ValueError(f"field {field_id}: bounds {lo}..{hi}")
            slot = &self.slots[self.count]
            slot.nonzero = bool(kind & FLAG_NONZERO)
            kind &= ~<int>FLAG_NONZERO
            if not K_FIXED <= kind <= K_RAW or (slot.nonzero and kind != K_FIXED):
                raise ValueError(f"field {field_id}: no such kind")
            if kind == K_FIXED and lo != hi:
                raise ValueError(f"field {field_id}: a fixed width has lo == hi")
            slot.field_id = field_id
            slot.kind = kind
            slot.lo, slot.hi = (1, 1) if kind == K_BOOL else (lo, hi)
            self.index[slot.field_id] = <uint8_t>self.count
            if required:
                self.required |= <uint64_t>1 << self.count
            self.count += 1

    def scan(self, body not None):
        cdef Fields fields = Fields.__new__(Fields)
        fields.open(self, body)
        return fields


@cython.final
@cython.no_gc
@cython.freelist(32)
cdef class Fields:
    """Offset table over one scanned body. It keeps the body's buffer, so views stay valid as long as they are held.

    A zeroed instance (made without a scan) is an empty body: every getter answers ``missing``.
    """

    def __dealloc__(self):
        PyMem_Free(self.entries)
        PyBuffer_Release(&self.body)

    cdef int open(self, Schema schema, object body) except -1:
        cdef uint32_t at_field = 0
        cdef bint recheck = False
        cdef Reason reason
        PyObject_GetBuffer(body, &self.body, PyBUF_SIMPLE)
        if self.body.len > IMAGE_MAX:
            raise refusal(R_CAP, 0)
        self.schema = schema
        self.entries = <Entry *>PyMem_Malloc(sizeof(Entry) * <size_t>(schema.count or 1))
        if self.entries == NULL:
            raise MemoryError
        reason = self.walk(&at_field, &recheck)
        if reason == R_OK and recheck and self.has_duplicates():
            reason = R_DUPLICATE
            at_field = 0
        if reason == R_OK:
            reason = self.missing(&at_field)
        if reason != R_OK:
            raise refusal(reason, at_field)
        return 0

    cdef Reason walk(self, uint32_t *at_field, bint *recheck) noexcept:
        """One pass. `recheck` asks for the sorted duplicate check: unknown ids of 256 and more came out of order."""
        cdef const uint8_t *base = <const uint8_t *>self.body.buf
        cdef const uint8_t *at = base
        cdef const uint8_t *end = base + self.body.len
        cdef uint64_t small[4]  # unknown ids below 256 that were seen, a bit each
        cdef uint64_t bit
        cdef uint32_t field_id = 0, length = 0, last = 0, last_large = 0
        cdef uint8_t slot
        cdef Reason reason
        memset(small, 0, sizeof(small))
        self.ordered = True
        while at < end:
            reason = read_head(&at, end, &field_id, &length)
            at_field[0] = field_id
            if reason != R_OK:
                return reason
            slot = self.schema.index[field_id] if field_id < 256 else <uint8_t>NO_SLOT
            if slot != NO_SLOT:
                bit = <uint64_t>1 << slot
                if self.present & bit:
                    return R_DUPLICATE
                self.present |= bit
            elif self.schema.strict:
                return R_UNKNOWN
            elif field_id < 256:
                bit = <uint64_t>1 << (field_id & 63)
                if small[field_id >> 6] & bit:
                    return R_DUPLICATE
                small[field_id >> 6] |= bit
            else:
                recheck[0] |= field_id <= last_large
                last_large = field_id
            if field_id < last:
                if self.schema.strict:
                    return R_ORDER
                self.ordered = False
            last = field_id
            if slot == NO_SLOT:
                self.unknowns += 1
            else:
                reason = check_value(&self.schema.slots[slot], at, length)
                if reason != R_OK:
                    return reason
                self.entries[slot].offset = <uint32_t>(at - base)
                self.entries[slot].length = length
            at += length
        return R_OK

    cdef Reason missing(self, uint32_t *at_field) noexcept:
        cdef uint64_t absent = self.schema.required & ~self.present
        cdef int slot
        for slot in range(self.schema.count):
            if absent == 0:
                break
            if absent >> slot & 1:
                at_field[0] = self.schema.slots[slot].field_id
                return R_MISSING
        return R_OK

    cdef bint has_duplicates(self) except -1:
        cdef const uint8_t *base = <const uint8_t *>self.body.buf
        cdef uint32_t *starts = NULL
        cdef Py_ssize_t index, count
        cdef bint found = False
        count = self.collect(False, &starts)
        sort_by_id(base, starts, count)
        for index in range(1, count):
            if id_at(base + starts[index - 1]) == id_at(base + starts[index]):
                found = True
                break
        PyMem_Free(starts)
        return found

    cdef Py_ssize_t collect(self, bint known, uint32_t **starts) except -1:
        """Starts of the unknown (with `known`: of all) fields in body order; the caller frees them.

        The body is walked again with every check: a caller may have changed a mutable one since the scan.
        """
        cdef const uint8_t *base = <const uint8_t *>self.body.buf
        cdef const uint8_t *at = base
        cdef const uint8_t *end = base + self.body.len
        cdef const uint8_t *start
        cdef Py_ssize_t room = self.unknowns + (self.schema.count if known else 0)
        cdef Py_ssize_t count = 0
        cdef uint32_t field_id = 0, length = 0
        starts[0] = <uint32_t *>PyMem_Malloc(sizeof(uint32_t) * <size_t>(room or 1))
        if starts[0] == NULL:
            raise MemoryError
        while at < end and count < room:
            start = at
            if read_head(&at, end, &field_id, &length) != R_OK:
                break
            at += length
            if known or field_id > 255 or self.schema.index[field_id] == NO_SLOT:
                starts[0][count] = <uint32_t>(start - base)
                count += 1
        return count

    cdef bytes emit(self, bint known):
        """The fields in increasing id order. Only minimal varints pass the scan, so their bytes are canonical."""
        cdef const uint8_t *base = <const uint8_t *>self.body.buf
        cdef const uint8_t *end = base + self.body.len
        cdef const uint8_t *at
        cdef uint32_t *starts = NULL
        cdef uint32_t field_id = 0, length = 0
        cdef Py_ssize_t index, count, total = 0
        cdef bytes image
        cdef uint8_t *out
        count = self.collect(known, &starts)
        try:
            if not self.ordered:
                sort_by_id(base, starts, count)
            for index in range(count):
                at = base + starts[index]
                read_head(&at, end, &field_id, &length)
                total += at - base - starts[index] + length
            image = PyBytes_FromStringAndSize(NULL, total)
            out = <uint8_t *>PyBytes_AS_STRING(image)
            for index in range(count):
                at = base + starts[index]
                read_head(&at, end, &field_id, &length)
                at += length
                memcpy(out, base + starts[index], <size_t>(at - base - starts[index]))
                out += at - base - starts[index]
            return image
        finally:
            PyMem_Free(starts)

    cdef int slot_of(self, long field_id) except -1:
        cdef uint8_t slot = NO_SLOT
        if self.entries != NULL and 1 <= field_id <= 255:
            slot = self.schema.index[field_id]
        if slot == NO_SLOT or not (self.present >> slot) & 1:
            raise TlvError("missing", field_id)
        return slot

    cdef const uint8_t *fixed(self, long field_id, uint32_t width) except NULL:
        cdef Entry entry = self.entries[self.slot_of(field_id)]
        if entry.length != width:
            raise TlvError("width", field_id)
        return <const uint8_t *>self.body.buf + entry.offset

    cdef Entry leaf_entry(self, long field_id, bint text) except *:
        """The content of a field that the scan checked as a leaf (and as UTF-8, for `text`)."""
        cdef int slot = self.slot_of(field_id)
        cdef uint8_t kind = self.schema.slots[slot].kind
        cdef Entry entry = self.entries[slot]
        if kind != K_STR and (text or kind != K_LEAF):
            raise TypeError(f"field {field_id} is not a {'text' if text else 'leaf'} field")
        entry.offset += LEAF_PREFIX
        entry.length -= LEAF_PREFIX
        return entry

    cdef object window(self, Entry entry):
        return PyMemoryView_FromObject(self)[entry.offset:<Py_ssize_t>entry.offset + entry.length]

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        # The whole body, always read-only bytes: views of fields are slices of this, whatever the body's own type.
        if flags & 1:
            raise BufferError("a scanned body is read-only")
        buffer.buf = self.body.buf
        buffer.obj = self
        buffer.len = self.body.len
        buffer.readonly = 1
        buffer.itemsize = 1
        buffer.format = NULL
        buffer.ndim = 1
        buffer.shape = NULL
        buffer.strides = NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def has(self, long field_id):
        cdef uint8_t slot = NO_SLOT
        if self.entries != NULL and 1 <= field_id <= 255:
            slot = self.schema.index[field_id]
        return slot != NO_SLOT and (self.present >> slot) & 1 == 1

    def u8(self, long field_id):
        return self.fixed(field_id, 1)[0]

    def u16(self, long field_id):
        return load_u16(self.fixed(field_id, 2))

    def u32(self, long field_id):
        return load_u32(self.fixed(field_id, 4))

    def u64(self, long field_id):
        return load_u64(self.fixed(field_id, 8))

    def i32(self, long field_id):
        return <int32_t>load_u32(self.fixed(field_id, 4))

    def boolean(self, long field_id):
        if self.schema is not None and self.schema.slots[self.slot_of(field_id)].kind != K_BOOL:
            raise TypeError(f"field {field_id} is not a bool field")
        return self.fixed(field_id, 1)[0] == 1

    def raw(self, long field_id):
        cdef Entry entry = self.entries[self.slot_of(field_id)]
        return PyBytes_FromStringAndSize(<const char *>self.body.buf + entry.offset, entry.length)

    def view(self, long field_id):
        return self.window(self.entries[self.slot_of(field_id)])

    def leaf(self, long field_id):
        cdef Entry entry = self.leaf_entry(field_id, False)
        return PyBytes_FromStringAndSize(<const char *>self.body.buf + entry.offset, entry.length)

    def leaf_view(self, long field_id):
        return self.window(self.leaf_entry(field_id, False))

    def text(self, long field_id):
        cdef Entry entry = self.leaf_entry(field_id, True)
        return PyUnicode_DecodeUTF8(<char *>self.body.buf + entry.offset, entry.length, NULL)

    def unknown(self):
        return self.emit(False) if self.unknowns else b""

    def canonical(self):
        if self.schema is None or self.ordered:
            return PyBytes_FromStringAndSize(<const char *>self.body.buf, self.body.len)
        return self.emit(True)


# --- positional images -----------------------------------------------------------------------------------------------


@cython.final
@cython.no_gc
@cython.freelist(32)
cdef class Cursor:
    """Positional reader over one image. Every read is checked against the end before it happens."""

    def __cinit__(self, data not None, Py_ssize_t start=0, Py_ssize_t end=-1):
        PyObject_GetBuffer(data, &self.data, PyBUF_SIMPLE)
        if end == -1:
            end = self.data.len
        if not 0 <= start <= end <= self.data.len:
            raise ValueError(f"{start}..{end} is outside of {self.data.len} bytes")
        self.at = <const uint8_t *>self.data.buf + start
        self.end = <const uint8_t *>self.data.buf + end

    def __dealloc__(self):
        PyBuffer_Release(&self.data)

    cdef const uint8_t *read(self, Py_ssize_t count) except NULL:
        cdef const uint8_t *at = self.at
        if count > self.end - at:
            raise refusal(R_TRUNCATED, 0)
        self.at = at + count
        return at

    cdef const uint8_t *read_leaf(self, long cap, uint32_t *length) except NULL:
        """`u32 length || content` (E-16, E-17). A refusal leaves the cursor where it was."""
        cdef const uint8_t *at = self.at
        if self.end - at < LEAF_PREFIX:
            raise refusal(R_TRUNCATED, 0)
        length[0] = load_u32(at)
        at += LEAF_PREFIX
        if length[0] > self.end - at:
            raise refusal(R_LENGTH, 0)
        if length[0] > cap:
            raise refusal(R_CAP, 0)
        self.at = at + length[0]
        return at

    @property
    def remaining(self):
        return self.end - self.at

    def u8(self):
        return self.read(1)[0]

    def u16(self):
        return load_u16(self.read(2))

    def u32(self):
        return load_u32(self.read(4))

    def u64(self):
        return load_u64(self.read(8))

    def i32(self):
        return <int32_t>load_u32(self.read(4))

    def take(self, Py_ssize_t count):
        if count < 0:
            raise ValueError("a negative number of bytes")
        return PyBytes_FromStringAndSize(<const char *>self.read(count), count)

    def leaf(self, long cap):
        cdef uint32_t length = 0
        cdef const uint8_t *content = self.read_leaf(cap, &length)
        return PyBytes_FromStringAndSize(<const char *>content, length)

    def text(self, long cap):
        cdef uint32_t length = 0
        cdef const uint8_t *content = self.read_leaf(cap, &length)
        if not is_utf8(content, content + length):
            raise refusal(R_UTF8, 0)
        return PyUnicode_DecodeUTF8(<char *>content, length, NULL)

    def presence(self):
        cdef uint8_t byte = self.read(1)[0]
        if byte > 1:
            raise refusal(R_PRESENCE, 0)
        return byte == 1

    def count(self, long cap):
        cdef uint16_t count = load_u16(self.read(2))
        if count > cap:
            raise refusal(R_COUNT, 0)
        return count

    def tag(self, long highest):
        cdef uint8_t tag = self.read(1)[0]
        if tag > highest:
            raise refusal(R_TAG, 0)
        return tag

    def finish(self):
        if self.at != self.end:
            raise refusal(R_TRAILING, 0)


@cython.final
@cython.no_gc
cdef class Writer:
    """Growable buffer for one body (`field_*`) or one positional image (the rest). A refused call changes nothing.

    The first bytes are kept free for a frame header, so that a frame leaves in one copy.
    """

    def __cinit__(self):
        self.size = FRAME_HEADER

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int grow(self, Py_ssize_t need) except -1:
        cdef Py_ssize_t capacity = max(need, 2 * self.capacity, <Py_ssize_t>FIRST_BLOCK)
        cdef uint8_t *data = <uint8_t *>PyMem_Realloc(self.data, <size_t>capacity)
        if data == NULL:
            raise MemoryError
        self.data = data
        self.capacity = capacity
        return 0

    cdef uint8_t *append(self, Py_ssize_t count) except NULL:
        cdef uint8_t *at
        if count > IMAGE_MAX - self.size:
            raise OverflowError(f"an image is at most {<int>IMAGE_MAX} bytes")
        if count > self.capacity - self.size:
            self.grow(self.size + count)
        at = self.data + self.size
        self.size += count
        return at

    cdef uint8_t *image(self, Py_ssize_t count) except NULL:
        cdef uint8_t *at
        if self.mode == M_BODY:
            raise ValueError("positional bytes inside a body of fields")
        at = self.append(count)
        self.mode = M_IMAGE
        return at

    cdef uint8_t *field(self, long long field_id, Py_ssize_t length) except NULL:
        """Header of a field whose value of `length` bytes the caller fills in (E-02, E-07)."""
        cdef uint8_t head[2 * VARINT_MAX + 1]
        cdef uint8_t *at
        cdef int size
        if self.mode == M_IMAGE:
            raise ValueError("a field inside a positional image")
        if field_id <= self.last_id:
            raise ValueError(f"field id {field_id} after {self.last_id}: ids increase within 1..2**32-1")
        size = store_varint(head, <uint64_t>field_id)
        head[size] = WIRE_BYTES
        size += 1 + store_varint(head + size + 1, <uint64_t>length)
        if length > IMAGE_MAX - size:
            raise OverflowError(f"an image is at most {<int>IMAGE_MAX} bytes")
        at = self.append(size + length)
        memcpy(at, head, <size_t>size)
        self.last_id = <uint32_t>field_id
        self.mode = M_BODY
        return at + size

    cdef int put(self, long long field_id, bint leaf, const uint8_t *content, Py_ssize_t length) except -1:
        """Content as a field's value, or positionally for id -1; with its u32 length in front for a leaf."""
        cdef Py_ssize_t prefix = LEAF_PREFIX if leaf else 0
        cdef uint8_t *at
        if length > IMAGE_MAX - prefix:
            raise OverflowError(f"an image is at most {<int>IMAGE_MAX} bytes")
        at = self.image(prefix + length) if field_id == -1 else self.field(field_id, prefix + length)
        if leaf:
            store_u32(at, <uint32_t>length)
        if length:
            memcpy(at + prefix, content, <size_t>length)
        return 0

    cdef int put_object(self, long long field_id, bint leaf, object data) except -1:
        cdef Py_buffer view
        if PyBytes_CheckExact(data):
            return self.put(field_id, leaf, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.put(field_id, leaf, <const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef int put_text(self, long long field_id, str text) except -1:
        cdef Py_ssize_t size = 0
        cdef const char *content
        try:
            content = PyUnicode_AsUTF8AndSize(text, &size)
        except UnicodeEncodeError:
            raise TlvError("utf8", max(field_id, 0)) from None
        return self.put(field_id, True, <const uint8_t *>content, size)

    cdef void clear(self) noexcept:
        self.size = FRAME_HEADER
        self.last_id = 0
        self.mode = M_EMPTY
        if self.capacity > KEPT_BLOCK:
            PyMem_Free(self.data)
            self.data = NULL
            self.capacity = 0

    def field_u8(self, uint32_t field_id, uint8_t value):
        self.field(field_id, 1)[0] = value

    def field_u16(self, uint32_t field_id, uint16_t value):
        store_u16(self.field(field_id, 2), value)

    def field_u32(self, uint32_t field_id, uint32_t value):
        store_u32(self.field(field_id, 4), value)

    def field_u64(self, uint32_t field_id, uint64_t value):
        store_u64(self.field(field_id, 8), value)

    def field_bool(self, uint32_t field_id, bint value):
        self.field(field_id, 1)[0] = 1 if value else 0

    def field_raw(self, uint32_t field_id, data not None):
        self.put_object(field_id, False, data)

    def field_leaf(self, uint32_t field_id, data not None):
        self.put_object(field_id, True, data)

    def field_text(self, uint32_t field_id, str text not None):
        self.put_text(field_id, text)

    def u8(self, uint8_t value):
        self.image(1)[0] = value

    def u16(self, uint16_t value):
        store_u16(self.image(2), value)

    def u32(self, uint32_t value):
        store_u32(self.image(4), value)

    def u64(self, uint64_t value):
        store_u64(self.image(8), value)

    def i32(self, int32_t value):
        store_u32(self.image(4), <uint32_t>value)

    def raw(self, data not None):
        self.put_object(-1, False, data)

    def leaf(self, data not None):
        self.put_object(-1, True, data)

    def text(self, str text not None):
        self.put_text(-1, text)

    def take(self):
        image = b""
        if self.size > FRAME_HEADER:
            image = PyBytes_FromStringAndSize(<const char *>self.data + FRAME_HEADER, self.size - FRAME_HEADER)
        self.clear()
        return image

    def take_frame(self, uint8_t frame_type):
        cdef Py_ssize_t length = self.size - FRAME_HEADER + 1
        if length > FRAME_MAX:
            raise OverflowError(f"a frame of length {length} is above {<int>FRAME_MAX}")
        if self.data == NULL:
            self.grow(self.size)
        store_u32(self.data, <uint32_t>length)
        self.data[FRAME_HEADER - 1] = frame_type
        frame = PyBytes_FromStringAndSize(<const char *>self.data, self.size)
        self.clear()
        return frame


cdef inline int store_varint(uint8_t *at, uint64_t value) noexcept nogil:
    cdef int size = 0
    while value >= 0x80:
        at[size] = <uint8_t>((value & 0x7F) | 0x80)
        value >>= 7
        size += 1
    at[size] = <uint8_t>value
    return size + 1


def encode_varint(uint64_t value):
    cdef uint8_t out[VARINT_MAX]
    cdef int size = store_varint(out, value)
    return PyBytes_FromStringAndSize(<const char *>out, size)


def decode_varint(data not None, Py_ssize_t offset=0):
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef uint64_t value = 0
    cdef Reason reason
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= offset <= view.len:
            raise ValueError(f"offset {offset} is outside of {view.len} bytes")
        at = <const uint8_t *>view.buf + offset
        reason = read_varint(&at, <const uint8_t *>view.buf + view.len, &value)
        if reason != R_OK:
            raise refusal(reason, 0)
        return value, at - <const uint8_t *>view.buf
    finally:
        PyBuffer_Release(&view)
