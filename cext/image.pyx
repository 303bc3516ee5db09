# cython: language_level=3
"""Positional images inside fields, varints and the encoder (rows E-01..E-03, E-07, E-15..E-24)."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint16_t, uint64_t
from libc.string cimport memcpy

from cext.octets cimport (
    FRAME_HEADER, FRAME_MAX, IMAGE_MAX, LEAF_PREFIX, R_CAP, R_COUNT, R_LENGTH, R_OK, R_PRESENCE, R_TAG, R_TRAILING,
    R_TRUNCATED, R_UTF8, VARINT_MAX, WIRE_BYTES, is_utf8, load_u16, load_u32, load_u64, read_varint, store_u16,
    store_u32, store_u64, store_varint,
)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


cdef enum:
    FIRST_BLOCK = 256   # a writer's first reservation: most frames fit
    KEPT_BLOCK = 65536  # a writer gives back anything larger once its image was taken

cdef tuple REASONS = (
    "", "varint", "length", "truncated", "trailing", "duplicate", "wire_type", "field_id", "width", "missing", "utf8",
    "bool", "zero", "cap", "order", "unknown", "presence", "count", "tag",
)


class TlvError(ValueError):
    """A body or image that breaks the encoding. ``reason`` is from a closed set; ``field`` is the id, 0 if none."""

    __module__ = "cext.tlv"  # where it is public

    def __init__(self, reason: str, field: int = 0) -> None:
        super().__init__(reason, field)
        self.reason = reason
        self.field = field

    def __str__(self) -> str:
        return f"field {self.field}: {self.reason}" if self.field else self.reason


cdef object refusal(Reason reason, uint32_t field_id):
    return TlvError(REASONS[<int>reason], field_id)


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
