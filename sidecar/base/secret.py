"""A box for secret bytes that shows nothing by accident (W9-17, W9-18, P2-13)."""

from __future__ import annotations

import hmac
from typing import NoReturn

_SHOWN = "<secret>"


class Confined:
    """A value that stays in its process and its owner's hands: it can be neither copied nor serialised."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        # What every protocol of pickle, copy and deepcopy ends in.
        raise TypeError(f"{type(self).__name__} cannot be copied or serialised")

    def __getstate__(self) -> NoReturn:
        self.__reduce__()


class Secret(Confined):
    """Private bytes (a seed, a token) that can be used but not printed, copied, pickled or hashed.

    ``Secret(data)`` copies ``data``; ``Secret.adopt(buffer)`` takes a bytearray over without a copy, so that wiping
    the secret wipes the only buffer. Only :meth:`reveal` gives the bytes out.
    """

    __slots__ = ("_data", "_wiped")
    __hash__ = None  # type: ignore[assignment]  # a hash would survive in dictionaries and depends on the bytes

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = bytearray(data)
        self._wiped = False

    @classmethod
    def adopt(cls, buffer: bytearray) -> Secret:
        """Own ``buffer`` itself: the caller must not use it any more."""
        secret = cls(b"")
        secret._data = buffer
        return secret

    def reveal(self) -> bytes:
        """The bytes. Keep them out of variables that outlive the call; ValueError after :meth:`wipe`."""
        if self._wiped:
            raise ValueError("this secret was wiped")
        return bytes(self._data)

    def wipe(self) -> None:
        """Overwrite the buffer with zeroes; the secret is unusable afterwards. May be called twice."""
        self._data[:] = bytes(len(self._data))
        self._wiped = True

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        """Constant-time for equal lengths; a wiped secret equals nothing."""
        if not isinstance(other, Secret):
            return NotImplemented
        return not self._wiped and not other._wiped and hmac.compare_digest(self._data, other._data)

    def __repr__(self) -> str:
        return _SHOWN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return _SHOWN
