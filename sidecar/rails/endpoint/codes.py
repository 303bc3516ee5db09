"""Why a call on the endpoint rails fails: the closed catalog of codes, the outcome, and the errors (13.3).

``Refusal`` is what the serving side says. The calling side raises ``CallRefused`` for a refusal that came as a reply
and ``CallFailed`` for what it found out by itself: the second has no part of a reply in it (C13.3-46).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from sidecar.base.strictjson import JsonValue


class Code(StrEnum):
    """The catalog, a closed set (C13.3-58)."""

    BAD_REQUEST = "bad-request"
    UNSUPPORTED_VERSION = "unsupported-version"
    OP_MISMATCH = "op-mismatch"
    CLASS_MISMATCH = "class-mismatch"
    TARGET_MISMATCH = "target-mismatch"
    SENDER_MISMATCH = "sender-mismatch"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission-denied"
    NOT_FOUND = "not-found"
    ALREADY_EXISTS = "already-exists"
    CONFLICT = "conflict"
    CONTRACT_MISMATCH = "contract-mismatch"
    CONTRACT_INVALID = "contract-invalid"
    FAILED_PRECONDITION = "failed-precondition"
    DEADLINE_EXCEEDED = "deadline-exceeded"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNAVAILABLE = "unavailable"
    UNIMPLEMENTED = "unimplemented"
    RESOURCE_EXHAUSTED = "resource-exhausted"
    INTERNAL = "internal"


class Outcome(StrEnum):
    """Whether the command had an effect (C13.3-39)."""

    EXECUTED = "executed"
    NOT_EXECUTED = "not-executed"
    UNKNOWN = "unknown"


MAX_CODE: Final = 64
"""Bytes of a code (C13.3-59)."""
MAX_ERROR_TEXT: Final = 512
"""Characters of a message that we send; what is longer is cut."""
MAX_DETAILS: Final = 16
"""Entries of ``details`` that we send and read."""
MAX_DETAIL_BYTES: Final = 16_384
"""Bytes of all details that we send; those behind it are left out."""
EXTENSION: Final = "extension"
"""The metric label of every code outside of the catalog."""

_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_EXTENSION = re.compile(rf"{_LABEL}(?:\.{_LABEL}){{2,}}")
_CATALOG = frozenset(Code)

Details = Sequence[Mapping[str, JsonValue]]


def is_code(value: object) -> bool:
    """Whether a value is a code: of the catalog, or a reverse-DNS token of at least three labels (C13.3-58, -59)."""
    if not isinstance(value, str) or len(value) > MAX_CODE:
        return False
    return value in _CATALOG or _EXTENSION.fullmatch(value) is not None


def label(code: str) -> str:
    """A code as a metric label, of a closed set."""
    return str(code) if code in _CATALOG else EXTENSION


class Refusal(Exception):  # noqa: N818 - the field's word
    """A request is refused. Raised by handlers, and by the checks in front of them.

    ``outcome`` is what the responder knows of the effect; a handler that has begun no effect says ``NOT_EXECUTED``
    (C13.3-44), one that may have begun does not (C13.3-45). ``message`` is read by the caller.
    """

    def __init__(self, code: str, message: str, outcome: Outcome = Outcome.UNKNOWN, details: Details = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.outcome, self.details = code, message, outcome, tuple(details)


class CallError(Exception):
    """A call that gave no data. ``outcome`` tells whether it may be repeated: NOT_EXECUTED says that it may.

    ``endpoint``, ``command`` and ``id`` are those of the request, empty where there was none; ``details`` are the
    refusal's own, or what the caller found (C13.3-37).
    """

    def __init__(self, code: str, message: str, outcome: Outcome, details: Details = ()) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.outcome, self.details = code, message, outcome, tuple(details)
        self.endpoint = self.command = self.id = ""

    def has(self, kind: str) -> bool:
        """Whether one of the details is of this kind."""
        return any(one.get("kind") == kind for one in self.details)


class CallRefused(CallError):  # noqa: N818 - the field's word
    """The endpoint answered that it refuses. ``outcome`` is the reply's own, ``UNKNOWN`` when it says none (C13.3-43).

    ``instance`` and ``epoch`` of the answering instance are those of the reply's subject (C13.2-49).
    """

    def __init__(
        self,
        code: str,
        message: str,
        outcome: Outcome,
        details: Details = (),
        instance: str = "",
        epoch: int = 0,
    ) -> None:
        super().__init__(code, message, outcome, details)
        self.instance, self.epoch = instance, epoch


class CallFailed(CallError):  # noqa: N818 - the field's word
    """The caller itself gave the call up: deadline, nobody there, permission, connection, or a reply that is none."""

    nobody = False
    """The broker said that nobody serves the request (C13.3-49, C13.5-28)."""


def unsent(code: Code, message: str, details: Details = ()) -> CallFailed:
    """Refused before publication: nothing was executed (C13.3-47)."""
    return CallFailed(code, message, Outcome.NOT_EXECUTED, details)


def nobody(endpoint: str, instance: str | None = None) -> CallFailed:
    """The broker's word that nobody listens: nothing was executed (C13.3-49, C13.4-04)."""
    error = unsent(Code.UNAVAILABLE, f"nobody serves {f'instance {instance} of ' if instance else ''}{endpoint}")
    error.nobody = True
    return error
