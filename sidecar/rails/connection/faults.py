"""What can go wrong with a connection: one closed enum, read from what the broker says, and the callers' errors.

The broker's errors are English sentences. nats-py knows three of them, lower-cases all, and closes itself for good
on the rest; here every sentence has its fault, and every fault says how it heals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class Heal(Enum):
    """What a fault asks for."""

    CALL = "the call or subscription fails, the connection stays"
    AGAIN = "connect again"
    FRESH = "connect again with fresh credentials"
    STOP = "nothing heals it"


class Fault(StrEnum):
    """The classes of faults; the values are metric labels."""

    PUBLISH_DENIED = "publish_denied"
    SUBSCRIBE_DENIED = "subscribe_denied"
    NO_RESPONDERS = "no_responders"
    SLOW_CONSUMER = "slow_consumer"
    WATCH_SILENT = "watch_silent"
    EXPIRED = "expired"
    REVOKED = "revoked"
    AUTHORIZATION = "authorization"
    ACCOUNT = "account"
    CREDENTIALS = "credentials"
    CREDENTIALS_REFUSED = "credentials_refused"
    AUTH_TIMEOUT = "auth_timeout"
    MAX_CONNECTIONS = "max_connections"
    MAX_SUBSCRIPTIONS = "max_subscriptions"
    MAX_PAYLOAD = "max_payload"
    MAX_CONTROL_LINE = "max_control_line"
    DROPPED = "dropped"
    STALE = "stale"
    LOST = "lost"
    UNREACHABLE = "unreachable"
    OLD_BROKER = "old_broker"
    PLAINTEXT = "plaintext"
    PROTOCOL = "protocol"
    UNKNOWN = "unknown"

    @property
    def heal(self) -> Heal:
        """What it asks for."""
        return _HEALS.get(self, Heal.AGAIN)


_HEALS: Final = {
    Fault.PUBLISH_DENIED: Heal.CALL,
    Fault.SUBSCRIBE_DENIED: Heal.CALL,
    Fault.NO_RESPONDERS: Heal.CALL,
    Fault.SLOW_CONSUMER: Heal.CALL,
    Fault.WATCH_SILENT: Heal.CALL,
    Fault.EXPIRED: Heal.FRESH,
    Fault.REVOKED: Heal.FRESH,
    Fault.AUTHORIZATION: Heal.FRESH,
    Fault.ACCOUNT: Heal.FRESH,
    Fault.CREDENTIALS: Heal.FRESH,
    Fault.CREDENTIALS_REFUSED: Heal.STOP,
    Fault.OLD_BROKER: Heal.STOP,
    Fault.PLAINTEXT: Heal.STOP,
}

# Sentences of nats-server in lower case, as they begin.
_SENTENCES: Final = (
    ("user authentication expired", Fault.EXPIRED),
    ("user authentication revoked", Fault.REVOKED),
    ("credentials have been revoked", Fault.REVOKED),
    ("account authentication expired", Fault.ACCOUNT),
    ("failed account registration", Fault.ACCOUNT),
    ("authorization violation", Fault.AUTHORIZATION),
    ("authentication timeout", Fault.AUTH_TIMEOUT),
    ("maximum connections exceeded", Fault.MAX_CONNECTIONS),
    ("maximum account connections exceeded", Fault.MAX_CONNECTIONS),
    ("maximum account active connections exceeded", Fault.MAX_CONNECTIONS),
    ("maximum subscriptions exceeded", Fault.MAX_SUBSCRIPTIONS),
    ("maximum payload", Fault.MAX_PAYLOAD),
    ("maximum message payload exceeded", Fault.MAX_PAYLOAD),
    ("maximum control line exceeded", Fault.MAX_CONTROL_LINE),
    ("slow consumer", Fault.SLOW_CONSUMER),
    ("stale connection", Fault.STALE),
    ("unexpected eof", Fault.LOST),
    ("unknown protocol operation", Fault.PROTOCOL),
    ("protocol error", Fault.PROTOCOL),
    ("parser error", Fault.PROTOCOL),
    ("invalid subject", Fault.PROTOCOL),
    ("invalid publish subject", Fault.PROTOCOL),
    ("no responders", Fault.NO_RESPONDERS),
)
_VIOLATION: Final = re.compile(
    r'permissions violation for (publish to|publish with reply of|subscription to) "([^"]*)"'
    r'(?: using queue "([^"]*)")?',
    re.IGNORECASE,
)
_MAX_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class Said:
    """A fault with what is known of it. ``subject`` is in lower case, as the client library hands it on."""

    fault: Fault
    text: str = ""
    subject: str | None = None
    queue: str = ""


def classify(text: str) -> Said:
    """The fault of one error sentence, with or without quotes and the library's ``nats:`` in front."""
    sentence = text.strip().removeprefix("nats:").strip(" '\r\n")[:_MAX_TEXT]
    found = _VIOLATION.match(text.strip().removeprefix("nats:").strip(" '\r\n"))
    if found is not None:
        kind, subject, queue = found.groups()
        subscribing = kind.lower().startswith("subscription")
        fault = Fault.SUBSCRIBE_DENIED if subscribing else Fault.PUBLISH_DENIED
        return Said(fault, sentence, subject.lower(), (queue or "").lower())
    lowered = sentence.lower()
    for beginning, fault in _SENTENCES:
        if lowered.startswith(beginning):
            return Said(fault, sentence)
    return Said(Fault.UNKNOWN, sentence)


class ConnectionFault(Exception):  # noqa: N818 - the base of what this layer raises
    """A fault as a caller sees it: ``fault`` is its class."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class PermissionViolation(ConnectionFault):
    """The broker refused a publish or a subscription; ``subject`` is the caller's own spelling."""

    def __init__(self, fault: Fault, subject: str) -> None:
        what = "publish to" if fault is Fault.PUBLISH_DENIED else "subscribe to"
        super().__init__(fault, f"the broker does not let this user {what} {subject}")
        self.subject = subject


class NoResponders(ConnectionFault):
    """Nobody listens on the subject of a request."""

    def __init__(self, subject: str) -> None:
        super().__init__(Fault.NO_RESPONDERS, f"nobody listens on {subject}")
        self.subject = subject


class NotConnected(ConnectionFault):
    """The link is down. What was under way may have had its effect."""


class NotSent(ConnectionFault):
    """There is no link, and there was none: nothing of the call was sent."""


class Stopped(ConnectionFault):
    """The connection has ended for good; ``fault`` says why."""


class CredentialsRefused(Exception):  # noqa: N818 - the minter's answer
    """What a credentials callback raises when there are none for this user any more."""
