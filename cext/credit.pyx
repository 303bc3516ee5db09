# cython: binding=False
# Plain method descriptors: the interpreter calls them faster than function objects.
"""Dual credit balances and hierarchical quota counters.

Everything here is exact unsigned 64-bit arithmetic: a sum that would pass a maximum is refused before anything
changes, so no caller ever sees half a charge. Arguments below zero or above 2**64 - 1 raise ``OverflowError``.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint64_t
from libc.string cimport memset


class CreditOverflow(ValueError):
    """Credit would rise above the selected maximum (P10-09, P10-16); the balance is unchanged."""


@cython.final
cdef class Credit:
    """Credit balance of one subscription: events and bytes, both needed to send (P10-06, P10-07)."""

    def __cinit__(self, uint64_t max_count, uint64_t max_bytes, uint64_t count=0, uint64_t nbytes=0):
        if count > max_count or nbytes > max_bytes:
            raise CreditOverflow("initial credit is above the maximum")
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.count = count
        self.nbytes = nbytes

    cpdef void add(self, uint64_t count, uint64_t nbytes) except *:
        # Compared by what is left, so that no addition can wrap.
        if count > self.max_count - self.count or nbytes > self.max_bytes - self.nbytes:
            raise CreditOverflow("credit would rise above the maximum")
        self.count += count
        self.nbytes += nbytes

    cpdef bint spend(self, uint64_t nbytes, uint64_t count=1) noexcept:
        if count > self.count or nbytes > self.nbytes:
            return False
        self.count -= count
        self.nbytes -= nbytes
        return True

    cpdef void clear(self) noexcept:
        self.count = 0
        self.nbytes = 0

    def __repr__(self) -> str:
        return f"Credit(count={self.count}/{self.max_count}, nbytes={self.nbytes}/{self.max_bytes})"


@cython.final
cdef class Quota:
    """Counters of one level (connection, principal, server) below its parents; all or nothing (P3-48, P3-49)."""

    def __cinit__(self, limits not None, Quota parent=None):
        cdef list given = list(limits)
        cdef Py_ssize_t size = len(given)
        cdef Py_ssize_t index
        if size == 0:
            raise ValueError("a quota needs at least one resource")
        if parent is not None and parent._resources != size:
            raise ValueError("a quota and its parent must count the same resources")
        self._limits = <uint64_t*> PyMem_Calloc(4 * <size_t> size, sizeof(uint64_t))
        if self._limits is NULL:
            raise MemoryError
        self._used = self._limits + size
        self._own = self._used + size
        self._delta = self._own + size
        self._resources = size
        self._parent = parent
        for index in range(size):
            self._limits[index] = given[index]

    def __dealloc__(self):
        PyMem_Free(self._limits)

    cdef inline Py_ssize_t _index(self, Py_ssize_t resource) except -1:
        if resource < 0 or resource >= self._resources:
            raise IndexError("no such resource")
        return resource

    cdef bint _fits(self, Py_ssize_t index, uint64_t amount) noexcept:
        cdef Quota level = self
        while level is not None:
            if amount > level._limits[index] - level._used[index]:
                return False
            level = level._parent
        return True

    cdef void _charge(self, Py_ssize_t index, uint64_t amount) noexcept:
        cdef Quota level = self
        self._own[index] += amount
        while level is not None:
            level._used[index] += amount
            level = level._parent

    cdef void _release(self, Py_ssize_t index, uint64_t amount) noexcept:
        # A parent's total always covers what its levels own, so only this level has to be checked by the callers.
        cdef Quota level = self
        self._own[index] -= amount
        while level is not None:
            level._used[index] -= amount
            level = level._parent

    cpdef bint charge(self, Py_ssize_t resource, uint64_t amount=1) except -1:
        cdef Py_ssize_t index = self._index(resource)
        if not self._fits(index, amount):
            return False
        self._charge(index, amount)
        return True

    def charge_many(self, amounts not None) -> bool:
        cdef Py_ssize_t index
        cdef uint64_t amount
        try:
            for resource, value in list(amounts):  # a generator may not run between the scratch writes
                index = self._index(resource)
                amount = value
                if amount > <uint64_t> -1 - self._delta[index]:
                    return False
                self._delta[index] += amount
            for index in range(self._resources):
                if not self._fits(index, self._delta[index]):
                    return False
            for index in range(self._resources):
                self._charge(index, self._delta[index])
            return True
        finally:
            memset(self._delta, 0, <size_t> self._resources * sizeof(uint64_t))

    cpdef void release(self, Py_ssize_t resource, uint64_t amount=1) except *:
        cdef Py_ssize_t index = self._index(resource)
        if amount > self._own[index]:
            raise ValueError("released more than was charged")
        self._release(index, amount)

    cpdef void release_all(self) noexcept:
        cdef Py_ssize_t index
        for index in range(self._resources):
            self._release(index, self._own[index])

    def used(self, Py_ssize_t resource) -> int:
        return self._used[self._index(resource)]

    def limit(self, Py_ssize_t resource) -> int:
        return self._limits[self._index(resource)]
