"""Strict reading of JSON text before anything is built of it (RFC 8259 and I-JSON; rows CC-01, C13.4-23)."""

from typing import Final

DEPTH_MAX: Final[int]
"""The deepest nesting that :func:`check` can be asked to accept."""

class JsonError(ValueError):
    """JSON text that is refused; it holds no part of the text.

    ``reason``: ``size`` (longer than the limit), ``bom``, ``utf8``, ``syntax``, ``truncated`` (ends too early),
    ``trailing`` (more than one value), ``depth``, ``escape`` (no such escape), ``surrogate`` (one without its other
    half), ``number`` (no finite double, or an integer beyond 2**53 - 1 where that is asked), ``duplicate`` (a name
    twice in one object). ``offset``: the byte where that was seen; for ``bom`` and ``utf8`` 0, for ``size`` the limit.
    """

    reason: str
    offset: int
    def __init__(self, reason: str, offset: int) -> None: ...

def check(data: bytes | bytearray | memoryview, *, limit: int, depth: int, safe_integers: bool) -> None:
    """Refuse with :class:`JsonError` what is not one strict JSON value of at most ``limit`` bytes.

    ``depth``: containers within each other, at most ``DEPTH_MAX``; a bare number or string needs 0. ``safe_integers``
    refuses integer literals (no fraction, no exponent) of a magnitude of 2**53 and more. A limit beyond 2**31 - 1 or
    another depth is ``ValueError``.
    """
