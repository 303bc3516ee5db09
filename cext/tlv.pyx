# cython: language_level=3
"""TLV bodies and positional images of the coordinator wire (rows E-01..E-25).

A body is a run of fields ``varint id || u8 wire type || varint length || value``. :meth:`Schema.scan` walks it once and
leaves an offset table; values become Python objects only when they are asked for. Nothing here reserves memory by a
number that a peer sent.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t
from libc.string cimport memcpy, memset

from cext.image cimport refusal
from cext.octets cimport (
    IMAGE_MAX, LEAF_PREFIX, R_BOOL, R_CAP, R_DUPLICATE, R_LENGTH, R_MISSING, R_OK, R_ORDER, R_TRAILING, R_TRUNCATED,
    R_UNKNOWN, R_UTF8, R_WIDTH, R_ZERO, is_utf8, load_u16, load_u32, load_u64, read_head,
)

from cext.image import Cursor, TlvError, Writer, decode_varint, encode_varint

FIXED = K_FIXED
LEAF = K_LEAF
STR = K_STR
BOOL = K_BOOL
RAW = K_RAW
NONZERO = 0x10

cdef enum:
    NO_SLOT = 0xFF
    FLAG_NONZERO = 0x10


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


cdef inline uint32_t key_of(const uint8_t *base, uint32_t item) noexcept nogil:
    return item if base == NULL else id_at(base + item)


cdef void sift(const uint8_t *base, uint32_t *items, Py_ssize_t root, Py_ssize_t count) noexcept nogil:
    cdef uint32_t moved = items[root]
    cdef uint32_t key = key_of(base, moved)
    cdef Py_ssize_t child
    while True:
        child = 2 * root + 1
        if child >= count:
            break
        if child + 1 < count and key_of(base, items[child]) < key_of(base, items[child + 1]):
            child += 1
        if key_of(base, items[child]) <= key:
            break
        items[root] = items[child]
        root = child
    items[root] = moved


cdef void sort_by_id(const uint8_t *base, uint32_t *items, Py_ssize_t count) noexcept nogil:
    """Sort field starts by id, or plain ids if `base` is NULL.

    Heapsort: in place and n log n for every input, so a hostile body buys neither memory nor quadratic time.
    """
    cdef Py_ssize_t last
    cdef Py_ssize_t root = count // 2
    cdef uint32_t swapped
    while root > 0:
        root -= 1
        sift(base, items, root, count)
    last = count - 1
    while last > 0:
        swapped = items[0]
        items[0] = items[last]
        items[last] = swapped
        sift(base, items, 0, last)
        last -= 1


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
        cdef uint32_t *items = NULL
        cdef Py_ssize_t index, count
        cdef bint found = False
        count = self.collect(False, &items)
        for index in range(count):
            items[index] = id_at(base + items[index])
        sort_by_id(NULL, items, count)
        for index in range(1, count):
            if items[index - 1] == items[index]:
                found = True
                break
        PyMem_Free(items)
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

    cdef int leaf_slot(self, long field_id) except -1:
        """Slot of a field that the scan checked as a leaf."""
        cdef int slot = self.slot_of(field_id)
        if self.schema.slots[slot].kind != K_LEAF and self.schema.slots[slot].kind != K_STR:
            raise TypeError(f"field {field_id} is not a leaf field")
        return slot

    cdef object window(self, int slot, uint32_t skip):
        self.window_at = <uint8_t *>self.body.buf + self.entries[slot].offset + skip
        self.window_size = self.entries[slot].length - skip
        try:
            return PyMemoryView_FromObject(self)
        finally:
            self.window_at = NULL

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        # Only for window(): one memoryview of exactly the value, read-only bytes whatever the body's own type.
        if self.window_at == NULL or flags & PyBUF_WRITABLE:
            raise BufferError("take a view of a field")
        buffer.buf = self.window_at
        buffer.obj = self
        buffer.len = self.window_size
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
        cdef int slot = self.slot_of(field_id)
        if self.schema.slots[slot].kind != K_BOOL:
            raise TypeError(f"field {field_id} is not a bool field")
        return (<const uint8_t *>self.body.buf)[self.entries[slot].offset] == 1

    def raw(self, long field_id):
        cdef Entry entry = self.entries[self.slot_of(field_id)]
        return PyBytes_FromStringAndSize(<const char *>self.body.buf + entry.offset, entry.length)

    def view(self, long field_id):
        return self.window(self.slot_of(field_id), 0)

    def leaf(self, long field_id):
        cdef Entry entry = self.entries[self.leaf_slot(field_id)]
        return PyBytes_FromStringAndSize(
            <const char *>self.body.buf + entry.offset + LEAF_PREFIX, entry.length - LEAF_PREFIX
        )

    def leaf_view(self, long field_id):
        return self.window(self.leaf_slot(field_id), LEAF_PREFIX)

    def text(self, long field_id):
        cdef int slot = self.slot_of(field_id)
        cdef Entry entry = self.entries[slot]
        if self.schema.slots[slot].kind != K_STR:
            raise TypeError(f"field {field_id} is not a text field")
        return PyUnicode_DecodeUTF8(
            <char *>self.body.buf + entry.offset + LEAF_PREFIX, entry.length - LEAF_PREFIX, NULL
        )

    def unknown(self):
        return self.emit(False) if self.unknowns else b""

    def canonical(self):
        if self.schema is None or self.ordered:
            return PyBytes_FromStringAndSize(<const char *>self.body.buf, self.body.len)
        return self.emit(True)
