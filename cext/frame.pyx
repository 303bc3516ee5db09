# cython: language_level=3
"""Splits a byte stream into frames ``u32 length || u8 type || payload`` (rows P3-01..P3-07, P3-10, P3-53).

Bytes arrive in fixed storage of 16 KiB. A header is judged against the cap table as soon as its five bytes are there; only
then, and only for a payload that does not fit, is more reserved: exactly the payload, once, when the fixed storage
is full of it. A peer that announces a large frame and stalls therefore costs nothing beyond the fixed storage.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memmove

from cext.octets cimport FRAME_HEADER, FRAME_MAX, load_u32, store_u32, store_u64

MAX_LENGTH = FRAME_MAX
HEADER = FRAME_HEADER

cdef enum:
    LENGTH_BYTES = 4
    NUMBER_BYTES = 8
    STORAGE = 16384
    ROOM_MIN = 4096  # below this a read is not worth a system call: move what is unsplit to the front first


class FrameTooLarge(ValueError):
    """``length`` is 0, above 1 MiB or above the cap of its type (P3-02, P3-06, P3-07)."""

    def __init__(self, frame_type: int, length: int) -> None:
        super().__init__(frame_type, length)
        self.frame_type = frame_type
        self.length = length

    def __str__(self) -> str:
        return f"frame type 0x{self.frame_type:02x}: length {self.length} is not allowed"


class FrameTypeRefused(ValueError):
    """The cap table has no room for this type: unknown, wrong direction or wrong state (P3-04)."""

    def __init__(self, frame_type: int, length: int) -> None:
        super().__init__(frame_type, length)
        self.frame_type = frame_type
        self.length = length

    def __str__(self) -> str:
        return f"frame type 0x{self.frame_type:02x} is not allowed here"


@cython.final
@cython.no_gc
cdef class Block:
    """Memory that lives as long as any view of it. Only window() makes views: one memoryview of exactly one range."""

    def __cinit__(self, Py_ssize_t capacity):
        self.data = <uint8_t *>PyMem_Malloc(<size_t>max(capacity, 1))
        if self.data == NULL:
            raise MemoryError
        self.capacity = capacity

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef object window(self, Py_ssize_t at, Py_ssize_t size, bint readonly):
        self.window_at = self.data + at
        self.window_size = size
        self.window_readonly = readonly
        try:
            return PyMemoryView_FromObject(self)
        finally:
            self.window_at = NULL

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.window_at == NULL or flags & PyBUF_WRITABLE:
            raise BufferError("storage is seen through frame views only")
        buffer.buf = self.window_at
        buffer.obj = self
        buffer.len = self.window_size
        buffer.readonly = self.window_readonly
        buffer.itemsize = 1
        buffer.format = NULL
        buffer.ndim = 1
        buffer.shape = NULL
        buffer.strides = NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL
        self.readers += self.window_readonly

    def __releasebuffer__(self, Py_buffer *buffer):
        self.readers -= buffer.readonly


@cython.final
@cython.no_gc
cdef class Splitter:
    """Incremental splitter of one connection. See the stub for the calls.

    Bytes enter through get_buffer/buffer_updated or feed. Frames leave as views of the storage, which is never
    written again where a view may look: it is filled on behind the last byte, or replaced.
    """

    def __cinit__(self, caps):
        self.pending = b""
        self.load_caps(caps)

    def set_caps(self, caps):
        self.load_caps(caps)

    cdef int load_caps(self, object caps) except -1:
        cdef uint32_t table[256]
        cdef int frame_type
        if len(caps) != 256:
            raise ValueError(f"a cap table has 256 entries, not {len(caps)}")
        for frame_type in range(256):
            cap = caps[frame_type]
            if not 0 <= cap <= FRAME_MAX:
                raise ValueError(f"cap {cap} of frame type 0x{frame_type:02x} is outside of 0..{MAX_LENGTH}")
            table[frame_type] = cap
        memcpy(self.caps, table, sizeof(table))
        return 0

    @property
    def buffered(self):
        return self.end - self.start + self.large_end + PyBytes_GET_SIZE(self.pending) - self.pending_at

    # --- bytes in

    def get_buffer(self, Py_ssize_t size_hint):
        if self.large is not None:
            self.lent = self.large.capacity - self.large_end
        else:
            self.lent = self.make_room()
        if self.lent == 0 or PyBytes_GET_SIZE(self.pending):
            self.lent = 0
            raise BufferError("split the frames that are here before more is read")
        if self.large is not None:
            return self.large.window(self.large_end, self.lent, False)
        return self.block.window(self.end, self.lent, False)

    def buffer_updated(self, Py_ssize_t nbytes):
        if not 0 <= nbytes <= self.lent:
            raise ValueError(f"{nbytes} bytes in a buffer of {self.lent}")
        self.lent = 0
        self.accept(nbytes)

    def feed(self, data not None):
        if self.refused != F_NONE:
            return
        # A view that was lent may lie where these bytes will go.
        self.lent = 0
        if not PyBytes_CheckExact(data):
            data = bytes(memoryview(data))
        self.pending = self.pending[self.pending_at:] + data
        self.pending_at = 0

    cdef void accept(self, Py_ssize_t count) noexcept:
        if self.refused != F_NONE:
            return
        if self.large is not None:
            self.large_end += count
        else:
            self.end += count

    cdef Py_ssize_t make_room(self) except -1:
        """Free bytes behind `end` in the fixed storage; 0 only if it is full of bytes that were not split yet."""
        cdef Block block = self.block
        cdef Py_ssize_t kept = self.end - self.start
        if block is None:
            self.block = Block(STORAGE)
        elif (kept == 0 or STORAGE - self.end < ROOM_MIN) and self.start > 0:
            if block.readers == 0:
                memmove(block.data, block.data + self.start, <size_t>kept)
            elif STORAGE - self.end < ROOM_MIN:
                self.block = Block(STORAGE)
                memcpy(self.block.data, block.data + self.start, <size_t>kept)
            else:
                return STORAGE - self.end
            self.start = 0
            self.end = kept
        return STORAGE - self.end

    cdef bint pull(self) except -1:
        """Move fed bytes to where received ones go; False if there are none."""
        cdef Py_ssize_t count = PyBytes_GET_SIZE(self.pending) - self.pending_at
        cdef uint8_t *out
        if count == 0:
            return False
        if self.large is not None:
            count = min(count, self.large.capacity - self.large_end)
            out = self.large.data + self.large_end
        else:
            count = min(count, self.make_room())
            out = self.block.data + self.end
        memcpy(out, PyBytes_AS_STRING(self.pending) + self.pending_at, <size_t>count)
        self.accept(count)
        self.pending_at += count
        if self.pending_at == PyBytes_GET_SIZE(self.pending):
            self.pending = b""
            self.pending_at = 0
        return True

    # --- frames out

    def next_frame(self):
        while True:
            frame = self.split() if self.large is None else self.split_large()
            if self.refused != F_NONE:
                raise (FrameTypeRefused if self.refused == F_TYPE else FrameTooLarge)(self.frame_type, self.length)
            if frame is not None or not self.pull():
                return frame

    cdef bint judge(self, uint8_t frame_type, uint32_t length) noexcept:
        """True if the caps now in force allow the header; otherwise the stream is refused for good."""
        if length == 0:
            self.refused = F_LENGTH
        elif self.caps[frame_type] == 0:
            self.refused = F_TYPE
        elif length > self.caps[frame_type]:
            self.refused = F_LENGTH
        else:
            return True
        self.frame_type = frame_type
        self.length = length
        self.start = self.end
        self.large = None
        self.large_end = 0
        self.pending = b""
        self.pending_at = 0
        return False

    cdef object split(self):
        cdef Py_ssize_t have = self.end - self.start
        cdef const uint8_t *head
        cdef uint32_t length
        cdef uint8_t frame_type
        if self.refused != F_NONE or have < LENGTH_BYTES:
            return None
        head = self.block.data + self.start
        length = load_u32(head)
        if have < FRAME_HEADER:
            # A frame of length 0 has no type byte to wait for.
            if length == 0:
                self.judge(0, 0)
            return None
        frame_type = head[LENGTH_BYTES] if length else 0
        if not self.judge(frame_type, length):
            return None
        if have >= LENGTH_BYTES + <Py_ssize_t>length:
            view = self.block.window(self.start + FRAME_HEADER, <Py_ssize_t>length - 1, True)
            self.start += LENGTH_BYTES + <Py_ssize_t>length
            return frame_type, view
        if have == STORAGE:
            self.large = Block(<Py_ssize_t>length - 1)
            self.large_end = have - FRAME_HEADER
            memcpy(self.large.data, head + FRAME_HEADER, <size_t>self.large_end)
            self.frame_type = frame_type
            self.length = length
            self.start = self.end
        return None

    cdef object split_large(self):
        if not self.judge(self.frame_type, self.length) or self.large_end < self.large.capacity:
            return None
        view = self.large.window(0, self.large.capacity, True)
        self.large = None
        self.large_end = 0
        return self.frame_type, view


def encode_frame(uint8_t frame_type, body not None):
    cdef Py_buffer view
    cdef uint8_t *out
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if view.len > FRAME_MAX - 1:
            raise OverflowError(f"a frame of length {view.len + 1} is above {MAX_LENGTH}")
        frame = PyBytes_FromStringAndSize(NULL, FRAME_HEADER + view.len)
        out = <uint8_t *>PyBytes_AS_STRING(frame)
        store_u32(out, <uint32_t>(view.len + 1))
        out[LENGTH_BYTES] = frame_type
        memcpy(out + FRAME_HEADER, view.buf, <size_t>view.len)
        return frame
    finally:
        PyBuffer_Release(&view)


def numbered_frames(bytes prefix not None, uint64_t first, tails not None):
    cdef list frames = []
    cdef Py_ssize_t head = PyBytes_GET_SIZE(prefix)
    cdef Py_ssize_t length
    cdef uint64_t number = first
    cdef uint8_t *out
    cdef bytes tail, frame
    if head == 0:
        raise ValueError("a frame begins with its type")
    for tail in tails:
        if tail is None:
            raise TypeError("a tail is bytes")
        if number < first:
            raise OverflowError("the numbers do not fit in 64 bits")
        length = head + NUMBER_BYTES + PyBytes_GET_SIZE(tail)
        if length > FRAME_MAX:
            raise OverflowError(f"a frame of length {length} is above {MAX_LENGTH}")
        frame = PyBytes_FromStringAndSize(NULL, LENGTH_BYTES + length)
        out = <uint8_t *>PyBytes_AS_STRING(frame)
        store_u32(out, <uint32_t>length)
        out += LENGTH_BYTES
        memcpy(out, PyBytes_AS_STRING(prefix), <size_t>head)
        out += head
        store_u64(out, number)
        memcpy(out + NUMBER_BYTES, PyBytes_AS_STRING(tail), <size_t>PyBytes_GET_SIZE(tail))
        frames.append(frame)
        number += 1
    return frames
