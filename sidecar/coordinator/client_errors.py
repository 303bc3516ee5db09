"""What can go wrong at a client, as types (P13-04: nothing here is decided by message text).

A refusal that the server sent is a ``wire.errors.ProtocolError`` and is raised as such; misuse by the caller is a
``LocalProtocolError``. The classes below are the rest: what this side found out by itself.
"""

# ruff: noqa: N818 - the classes are named after what happened, like those of the code table
from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.coordinator.wire.enums import ErrorCode, GapReason

if TYPE_CHECKING:
    from sidecar.coordinator.client_trust import Standing


class ClientError(Exception):
    """Base of everything that a client finds out by itself; the text is one line and safe to show."""


class CannotConnect(ClientError):
    """Nobody answers at the socket, or the handshake did not finish in time (P1-08); nothing had an effect."""


class ConnectionLost(ClientError):
    """The connection ended: unfinished requests and streams are indeterminate (P13-07, P10-19)."""


class PeerFault(ClientError):
    """The server broke the protocol; ``code`` is what it was told before the connection was closed."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(f"the server broke the protocol ({code.name}): {detail}")
        self.code = code
        self.detail = detail


class VerificationFailed(ClientError):
    """The server did not prove what it must prove; the connection was closed and nothing was trusted.

    ``check`` names the failed check, for example ``nonce``, ``proof``, ``certificate``, ``grant``, ``digest``.
    """

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(detail)
        self.check = check


class AuthorityChanged(VerificationFailed):
    """Another authority than the pinned one (W2-09, P12-25..28): refused, never trusted again silently."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(check, f"authority_changed: {detail}")


class AuthorityConflict(VerificationFailed):
    """Two servers hold the same activation: both stay refused until an operator decides (P12-29, P12-30)."""

    def __init__(self, detail: str, held: Standing, offered: Standing) -> None:
        super().__init__("conflict", f"authority_conflict: {detail}")
        self.held = held
        self.offered = offered


class AuthorityExpired(VerificationFailed):
    """The certificate ran out without a valid renewal, so the connection was closed (P12-18)."""

    def __init__(self) -> None:
        super().__init__("expiry", "the activation certificate ran out and was not renewed; connect again")


class ContinuityLost(ClientError):
    """A stream is no longer complete; what it showed last stays a historical cut (P10-12, P10-15, P10-19).

    ``last_delivery`` and ``last_event`` are the last ones that were contiguous; ``healable`` tells that the server
    paused the subscription itself, so that a fresh snapshot may replace it on this connection. ``reason`` is the one
    that its GAP gave; None when it sent none.
    """

    def __init__(
        self, detail: str, *, last_delivery: int, last_event: int, healable: bool, reason: GapReason | None = None
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.last_delivery = last_delivery
        self.last_event = last_event
        self.healable = healable


class ReplayTooLarge(ClientError):
    """A replay is above the bound of this client; it was dropped and a fresh snapshot has to heal the stream."""


class OutcomeUnknown(ClientError):
    """The reply of a command is lost and its outcome could not be looked up; no new work was started (P8-37..39)."""

    def __init__(self, operation_id: bytes, cause: BaseException | None) -> None:
        super().__init__(f"the outcome of operation {operation_id.hex()} is unknown ({cause}); look it up by this id")
        self.operation_id = operation_id
