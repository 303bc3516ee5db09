"""One typed error per protocol code, made from the code table (P13-01, P13-02, P13-05, P13-06).

``ProtocolError`` is what goes over the wire: a code, a safe detail and whether the connection survives it.
``LocalProtocolError`` is the caller's own misuse and never leaves the process.
"""

# ruff: noqa: N818 - the classes carry the names of the code table
from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sidecar.coordinator.wire.enums import ErrorCode

MAX_DIAGNOSTIC = 1024
"""Bytes of UTF-8 in a diagnostic (P3-32)."""

FATAL_CODES = frozenset(
    {
        ErrorCode.VERSION_INCOMPATIBLE,
        ErrorCode.FRAME_TOO_LARGE,
        ErrorCode.MALFORMED_MESSAGE,
        ErrorCode.PROTOCOL_ERROR,
        ErrorCode.AUTHENTICATION_FAILED,
        ErrorCode.STALE_AUTHORITY,
        ErrorCode.AUTHORITY_FENCED,
    }
)
"""Codes that always end the connection. The others are scoped to their request, but ``fatal=True`` in the handshake."""


class LocalProtocolError(ValueError):
    """This side tried to build or do something that the protocol does not allow; nothing was sent."""


class ProtocolError(Exception):
    """A refusal that the peer is told as COORD_ERROR.

    ``code`` is what the peer branches on, ``message`` a safe detail (at most 1024 bytes of UTF-8; never credentials,
    nonces, proofs, payloads), ``request_id`` the request it answers if that was decoded, ``fatal`` whether the
    connection closes.
    An INTERNAL error is fatal unless it names its request.
    """

    code: ClassVar[ErrorCode]

    def __init__(self, message: str = "", *, request_id: int | None = None, fatal: bool | None = None) -> None:
        self.message = clip_diagnostic(message)
        self.request_id = request_id
        self._fatal = fatal
        super().__init__(self.message)

    @property
    def fatal(self) -> bool:
        """Whether the connection closes after this error."""
        if self._fatal is not None:
            return self._fatal
        if self.code is ErrorCode.INTERNAL:
            return self.request_id is None
        return self.code in FATAL_CODES

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}" if self.message else self.code.name


class VersionIncompatible(ProtocolError):
    """Major or minor differs (P5-03)."""

    code = ErrorCode.VERSION_INCOMPATIBLE


class FrameTooLargeError(ProtocolError):
    """An announced length is outside the cap of its type (P3-02, P3-06..09)."""

    code = ErrorCode.FRAME_TOO_LARGE


class MalformedMessage(ProtocolError):
    """The bytes are not a legal image of the message (P3-12)."""

    code = ErrorCode.MALFORMED_MESSAGE


class ProtocolViolation(ProtocolError):
    """A legal image at an illegal time, in the wrong direction, or of an unknown type (P7-02..04)."""

    code = ErrorCode.PROTOCOL_ERROR


class AuthenticationFailed(ProtocolError):
    """The proof, the key or the grant failed; the message never says which (W4-08)."""

    code = ErrorCode.AUTHENTICATION_FAILED


class CapabilityRequired(ProtocolError):
    """The negotiated capabilities do not cover this (P5-14, P5-17)."""

    code = ErrorCode.CAPABILITY_REQUIRED


class ScopeDenied(ProtocolError):
    """The effective scopes do not cover this (W8-03)."""

    code = ErrorCode.SCOPE_DENIED


class StaleAuthority(ProtocolError):
    """The guard is not the one of the unexpired certificate (P4-12)."""

    code = ErrorCode.STALE_AUTHORITY


class AuthorityFenced(ProtocolError):
    """This writer lost its authority and commits nothing more (P12-17)."""

    code = ErrorCode.AUTHORITY_FENCED


class OperationConflict(ProtocolError):
    """The operation id is taken by another principal or another digest (P8-15)."""

    code = ErrorCode.OPERATION_CONFLICT


class RevisionConflict(ProtocolError):
    """A precondition or the state of an object does not allow this."""

    code = ErrorCode.REVISION_CONFLICT


class CursorInvalid(ProtocolError):
    """A cursor, lease or cut is not usable (P9-09)."""

    code = ErrorCode.CURSOR_INVALID


class ResourceExhausted(ProtocolError):
    """A quota refuses the new action; nothing old was evicted (P3-49)."""

    code = ErrorCode.RESOURCE_EXHAUSTED


class NotFound(ProtocolError):
    """Absent or not visible: both look the same (P6-18)."""

    code = ErrorCode.NOT_FOUND


class InternalError(ProtocolError):
    """The server failed; scoped when the request is known and the state is intact."""

    code = ErrorCode.INTERNAL


ERRORS: dict[ErrorCode, type[ProtocolError]] = {
    error.code: error
    for error in (
        VersionIncompatible,
        FrameTooLargeError,
        MalformedMessage,
        ProtocolViolation,
        AuthenticationFailed,
        CapabilityRequired,
        ScopeDenied,
        StaleAuthority,
        AuthorityFenced,
        OperationConflict,
        RevisionConflict,
        CursorInvalid,
        ResourceExhausted,
        NotFound,
        InternalError,
    )
}
"""Class of each code."""


def error_for(code: ErrorCode, message: str = "", request_id: int | None = None) -> ProtocolError:
    """The typed error of a code, for example of a received COORD_ERROR."""
    return ERRORS[code](message, request_id=request_id)


def refusal_of(read: Callable[[], object]) -> str | None:
    """Why ``read`` refuses, ``None`` when it does not."""
    try:
        read()
    except ProtocolError as error:
        return error.message
    return None


def clip_diagnostic(message: str) -> str:
    """``message`` cut to the diagnostic cap at a character boundary: an error path must not fail on its own text."""
    image = message.encode("utf-8", "replace")
    return image[:MAX_DIAGNOSTIC].decode("utf-8", "ignore")
