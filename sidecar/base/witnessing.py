"""What an activation witness may answer, in words that the witness and the coordinator share.

The coordinator never imports the witness: it is handed a client that raises these.
"""

# ruff: noqa: N818 - the classes say what happened, as a caller reads them
from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """Machine-readable reason of a refusal."""

    LEASE_ACTIVE = "lease_active"
    """Another activation may still hold the token; try again after ``retry_after`` seconds (P12-12)."""
    EPOCH_TOO_LOW = "epoch_too_low"
    """The proposed epoch is not above ``last_epoch`` (P12-04)."""
    UNKNOWN = "unknown"
    """This coordinator was never activated here."""
    NOT_CURRENT = "not_current"
    """Not the exact current epoch, sequence, token and incarnation, or no longer in force (P12-05)."""
    SPENT = "spent"
    """The token was relinquished before (P12-12)."""
    NOT_AUTHORISED = "not_authorised"
    """The caller's key is not pinned, its signature is wrong, or the coordinator belongs to another key."""
    EXHAUSTED = "exhausted"
    """A counter is at its end or the witness holds as many coordinators as it may; nothing wraps (P4-06)."""
    STORAGE = "storage"
    """The witness could not make the change durable; nothing was granted."""


class WitnessError(Exception):
    """No usable answer came from the witness."""


class WitnessRefused(WitnessError):
    """The witness answered no.

    ``retry_after`` (seconds) comes with ``LEASE_ACTIVE``, ``last_epoch`` with ``EPOCH_TOO_LOW``.
    """

    def __init__(self, reason: Refusal, *, retry_after: float | None = None, last_epoch: int | None = None) -> None:
        detail = {
            Refusal.LEASE_ACTIVE: f": the current token may live for another {retry_after or 0:.1f} s",
            Refusal.EPOCH_TOO_LOW: f": the last epoch is {last_epoch}",
        }
        super().__init__(f"the witness refused: {reason}{detail.get(reason, '')}")
        self.reason = reason
        self.retry_after = retry_after
        self.last_epoch = last_epoch


class WitnessUnavailable(WitnessError):
    """The witness could not be reached, was silent, or could not write; asking again may help."""


class WitnessProtocolError(WitnessError):
    """What answered does not speak the protocol, or is not the pinned witness."""
